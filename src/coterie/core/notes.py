"""What a method says of a step: its criteria and its notes."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal, get_args

import torch

from coterie.core.clients import Client, Groups
from coterie.notebook.tables import count
from coterie.printable import one_line
from coterie.settings.calls import public

Sign = Literal["<", "<=", ">", ">="]
"""How a criterion compares its value with its bound."""

_COMPARISONS = {"<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge}
_OPPOSITE: Mapping[str, Sign] = {"<": ">=", "<=": ">", ">": "<=", ">=": "<"}


@public
@dataclass(frozen=True)
class Criterion:
    """One comparison on which a decision rests: ``value sign bound``.

    The explanation of a run, its charts, figures and trackers show criteria without knowing the
    method.

    Attributes:
        name: What is compared, in few words, the same in every round: its curve has this name.
        value: The number that was compared.
        sign: The comparison.
        bound: The number that it was compared with.
        setting: The setting whose value is the bound; empty if the bound was measured or is fixed.
        met: What it means if the comparison holds, in few words.
        unmet: What it means otherwise.
        key: Its name for programs, which stays when ``name`` is reworded. The key of a p-value for
            "all of these clients have the same distribution" is ``P_VALUE``.

    Example:
        >>> stationary = Criterion("mean update", 0.625, "<", 0.5, setting="eps1", met="stationary", unmet="not stationary")
        >>> stationary.held, stationary.text
        (False, 'not stationary: mean update 0.625 >= eps1 0.5')
    """

    name: str
    value: float
    sign: Sign
    bound: float
    setting: str = ""
    met: str = ""
    unmet: str = ""
    key: str = ""

    @property
    def held(self) -> bool:
        """Whether the comparison holds; it never does if one of the numbers is NaN."""
        return bool(_COMPARISONS[self.sign](self.value, self.bound))

    @property
    def meaning(self) -> str:
        """``met`` or ``unmet``."""
        return self.met if self.held else self.unmet

    @property
    def text(self) -> str:
        """The comparison as it came out, and its meaning."""
        # If the comparison does not hold, the opposite sign makes the text true.
        comparison_sign = self.sign if self.held else _OPPOSITE[self.sign]
        shown_bound = f"{self.setting} {self.bound:.3g}" if self.setting else f"{self.bound:.3g}"
        meaning = f"{self.meaning}: " if self.meaning else ""
        return f"{meaning}{self.name} {self.value:.3g} {comparison_sign} {shown_bound}"


@public
def tested(criteria: Iterable[Criterion]) -> str:
    """Describe criteria that are tested one after the other, up to the first that does not hold.

    Args:
        criteria: The criteria, in their order.

    Returns:
        Their texts, joined by semicolons.

    Example:
        >>> tested([Criterion("p", 0.5, "<", 0.01), Criterion("gain", 1, ">", 0)])
        'p 0.5 >= 0.01'
    """
    # The first criterion that does not hold decides, so the others were not tested.
    criterion_texts = []
    for criterion in criteria:
        criterion_texts.append(criterion.text)
        if not criterion.held:
            break
    return "; ".join(criterion_texts)


P_VALUE = "p_value"
"""Key of a criterion that tests whether all clients of a group have the same distribution."""

Effect = Literal[
    # Its clients are divided into its parts.
    "divides",
    # Its parts train from the next round.
    "regroups",
    # Its clients become one group.
    "merges",
    # Its client is now a member of a group.
    "joins",
    # Its client is now a member of another group.
    "moves",
    # Its client is on its way to a group.
    "waits",
    # Its clients are new in the federation.
    "arrives",
    # Its clients are no longer in the federation.
    "leaves",
    # The groups of its clients were examined and stay as they are.
    "keeps",
    # Other models are trained, or serve the clients.
    "serves",
    # The weight or the replies of its clients were limited.
    "limits",
    # Clients could not do their part; the person who runs the federation should know.
    "warns",
    # Nothing.
    "info",
]
"""What happens to the groups by the decision that a note describes. Reports read this, and no
``kind``."""


@public
@dataclass(frozen=True, kw_only=True)
class Note:
    """The reason why a method acted or did not act, for people and for records.

    Attributes:
        kind: A word for the decision, chosen by the method: ``"split"``, ``"cluster"``, ``"keep"``.
            It is shown and recorded, and no program depends on it.
        effect: What happens to the groups.
        clients: The group that the note is about.
        text: One sentence with the numbers that were compared.
        parts: The groups into which it was divided.
        criteria: The comparisons on which the decision rests. If all hold, each is necessary for
            the decision. If some do not, all of these were in its way.
        otherwise: What would have happened then, as the end of a sentence: "it would not have
            split". Empty if it is unknown.
        numbers: Further measurements, by name; their curves are drawn.
        labels: Numbers that name or count something, such as the node of a tree: no curve is drawn.
        values: Numbers for each client, by name. ``model`` is the number of the model that a client
            took. Names that differ only in a number at their end, such as ``loss of model 0``,
            belong together.
        similarity: Matrices ``(n, n)`` on which the decision rests, by layer or ``all``. Their rows
            are the clients of ``order``.
        heard: The clients of these rows, in order; empty if they are ``clients``.

    Raises:
        ValueError: There is no such ``effect``, or a matrix has not as many rows and columns as there
            are clients in ``order``.
    """

    kind: str
    effect: Effect = "info"
    clients: tuple[Client, ...]
    text: str
    parts: Groups = ()
    criteria: tuple[Criterion, ...] = ()
    otherwise: str = ""
    numbers: Mapping[str, float] = field(default_factory=dict)
    labels: Mapping[str, int] = field(default_factory=dict)
    values: Mapping[str, Mapping[Client, float]] = field(default_factory=dict)
    similarity: Mapping[str, torch.Tensor] = field(default_factory=dict)
    heard: tuple[Client, ...] = ()

    def __repr__(self) -> str:
        return f"<Note {self.kind} of {count(len(self.clients), 'client')}: {one_line(self.text, 200)}>"

    def __post_init__(self) -> None:
        if self.effect not in get_args(Effect):
            raise ValueError(
                f"Note.effect must be one of {get_args(Effect)}, got {self.effect!r:.40}"
            )
        # Each matrix has a row for each client that replied.
        row_count = len(self.order)
        for matrix_name, similarity_matrix in self.similarity.items():
            if tuple(similarity_matrix.shape) != (row_count, row_count):
                raise ValueError(
                    f"Note.similarity {matrix_name!r} has shape {tuple(similarity_matrix.shape)}, "
                    f"but {row_count} clients replied"
                )

    @property
    def order(self) -> tuple[Client, ...]:
        """The clients in the order of the rows of ``similarity``."""
        return self.heard or self.clients
