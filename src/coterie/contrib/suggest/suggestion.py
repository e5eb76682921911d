"""The answer of ``coterie suggest``: the groups found, and for each method the settings that would have found them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from coterie.core import Client, Groups
from coterie.notebook.tables import partition, some
from coterie.printable import printable
from coterie.settings.calls import public

CLEAR = "clear"
NARROW = "narrow"
NONE = "none"
"""The confidence in an advice, see :func:`sureness`."""

MIN_CLEAR_MARGIN = 1.5
"""The least margin of a clear advice: a value in the middle may then be off by a fifth in either
direction."""

DOUBTFUL_P_VALUE = 0.05
"""A p-value below this does not support that clients are alike."""


@dataclass(frozen=True)
class Range:
    """The range of a setting's values that give the groups found.

    Attributes:
        setting: The name of the setting.
        low: The lower end; where there is no bound, infinite or the setting's own limit.
        high: The upper end; where there is no bound, infinite or the setting's own limit.
        value: The suggested value; None if there is no room between the ends. For CFL's eps2 and
            gamma_max it may be below ``low``, since one of the two is enough to keep a group whole.
        margin: The ratio of ``high`` to ``low``, as distances or norms.
    """

    setting: str
    low: float
    high: float
    value: float | None
    margin: float


@dataclass(frozen=True)
class Advice:
    """The settings with which a method would find the groups.

    Attributes:
        method: The name of the method.
        compared: The quantities that it compares, in words: for example a metric and a linkage.
        settings: All settings to set, as in an experiment's file; empty if none are right.
        ranges: The ranges of the settings that were searched for.
        margin: The room for the settings, as a ratio; 1 or less is none.
        sure: ``clear``, ``narrow`` or ``none``.
        ari: Adjusted Rand index of the most similar groups that the method could make; 1 if it can
            make the groups found.
        text: The numbers that were compared, in a sentence.
    """

    method: str
    compared: str
    settings: Mapping[str, Any]
    ranges: tuple[Range, ...]
    margin: float
    sure: str
    ari: float
    text: str


@dataclass(frozen=True)
class Finding:
    """The result of the split-half test for the clients, from two probes with independently drawn halves.

    Attributes:
        clients: The clients in ``groups``, ``(n,)``: those on which both probes agree, or those
            that the run has placed.
        level: The level of the test.
        p: The p-value that all clients are alike, from both probes together.
        groups: The groups that both probes confirm. In a run that split-half has split they may
            only divide its groups further; if they do anything else, these are the groups of the
            run.
        alone: The groups that each probe finds by itself.
        agreement: Adjusted Rand index of the two partitions ``alone``.
        alike: For each group, the p-value that its members are alike, from both probes together.
        reliability: For each client, the share of signal in its difference from the others, mean of
            both probes, ``(n,)``.
        of_run: Whether these are the groups into which split-half has split the run. They were
            found at the same level, and one more model at which a difference does not show is no
            evidence against it.
    """

    clients: tuple[Client, ...]
    level: float
    p: float
    groups: Groups
    alone: tuple[Groups, Groups]
    agreement: float
    alike: tuple[float, ...]
    reliability: tuple[float, ...]
    of_run: bool = False

    @property
    def same(self) -> bool:
        """Whether each probe finds the same groups by itself."""
        return self.alone[0] == self.alone[1]

    @property
    def doubt(self) -> float | None:
        """The least p-value of a group if it is small, else None: this group most likely consists of several.

        Small is below :data:`DOUBTFUL_P_VALUE` divided by the number of groups.
        """
        # Bonferroni's correction: of many groups, one has a small p-value by chance.
        smallest_p = min(self.alike)
        return smallest_p if smallest_p < DOUBTFUL_P_VALUE / len(self.groups) else None

    @property
    def firm(self) -> bool:
        """Whether thresholds may be set by these groups: each probe finds the same, and no group has a small p-value."""
        return self.same and self.doubt is None and not self.unseen

    @property
    def unseen(self) -> bool:
        """Whether the groups are the run's, and the probes of this model find others."""
        return self.of_run and self.alone != (self.groups, self.groups)


@dataclass(frozen=True)
class OwnProbes:
    """How split-half, which probes by itself, comes to the groups of a suggestion.

    Attributes:
        settings: All settings with which its first probe starts from the model that was probed
            here; empty if there is nothing to set.
        rounds: The number of rounds in which it then probes three times, each with the next round
            for confirmation; None without ``settings``.
        text: Which groups are the advice if split-half finds others, and why it may, in a sentence.
    """

    settings: Mapping[str, Any]
    rounds: int | None
    text: str


@public
@dataclass(frozen=True)
class Suggestion:
    """The result of :func:`coterie.suggest` for a run.

    Attributes:
        run: The run directory.
        method: The method of the run.
        scenario: The scenario of the run.
        seed: The seed of the run.
        start: The model from which the probes started, in words.
        round: The number of rounds for which that model was trained.
        finding: The groups.
        split_half: How split-half comes to these groups.
        advice: The advice for each method; the quantities that it compares by default come first.
        caveats: Reasons to trust the result less, one sentence each.
        left_out: Client -> why it could not be asked.
        exchanges: The number of exchanges in which the clients were asked.
        names: Client -> its name, if clients have names.
    """

    run: str
    method: str
    scenario: str
    seed: int
    start: str
    round: int
    finding: Finding
    split_half: OwnProbes
    advice: tuple[Advice, ...]
    caveats: tuple[str, ...]
    left_out: Mapping[Client, str]
    exchanges: int
    names: Mapping[Client, str] = field(default_factory=dict)

    def __repr__(self) -> str:
        confidences = some([f"{advice.method} {advice.sure}" for advice in self.advice])
        groups = partition(self.finding.groups)
        return f"<Suggestion for {printable(self.run)}: {groups} clients; advice: {confidences}>"

    def best(self, method: str) -> Advice:
        """The advice to follow for a method.

        Args:
            method: The name of the method.

        Returns:
            The advice for its default quantities if that is clear, else the advice with the widest
            margin.

        Raises:
            KeyError: There is no advice for the method.
        """
        of_method = [advice for advice in self.advice if advice.method == method]
        if not of_method:
            raise KeyError(method)
        # The advice for the method's default quantities comes first, and needs the fewest settings.
        for_defaults = of_method[0]
        if for_defaults.sure == CLEAR:
            return for_defaults
        return max(of_method, key=lambda advice: advice.margin)


def sureness(margin: float, firm: bool) -> str:
    """The confidence in an advice.

    Args:
        margin: The room for the settings, as a ratio.
        firm: Whether the groups are firm, see :attr:`Finding.firm`.

    Returns:
        ``none`` if no value is right, ``clear`` from a margin of :data:`MIN_CLEAR_MARGIN` on if the
        groups are firm, else ``narrow``.
    """
    # A margin that is not a number is none, too.
    if not margin > 1:
        return NONE
    return CLEAR if margin >= MIN_CLEAR_MARGIN and firm else NARROW


def group_labels(groups: Groups) -> np.ndarray:
    """The number of each client's group ``(n,)``, with the clients in ascending order."""
    group_of_client: dict[Client, int] = {}
    for group_number, group in enumerate(groups):
        group_of_client |= dict.fromkeys(group, group_number)
    # In the order of the rows of a matrix of distances.
    return np.array([group_of_client[client] for client in sorted(group_of_client)])


def lie_within(groups: Iterable[Sequence[Client]], parts: Groups) -> bool:
    """Whether each group lies within one of the parts.

    Args:
        groups: The groups.
        parts: The parts of a coarser partition.
    """
    part_members = list(map(set, parts))
    return all(any(map(set(group).issubset, part_members)) for group in groups)


def no_advice(method: str, compared: str, text: str, ari: float = 0.0) -> Advice:
    """The advice if no settings are right.

    Args:
        method: The name of the method.
        compared: The quantities that it compares, in words.
        text: The reason, in a sentence.
        ari: Adjusted Rand index of the most similar groups that the method could make.

    Returns:
        The advice, without settings.
    """
    return Advice(
        method=method,
        compared=compared,
        settings={},
        ranges=(),
        margin=0.0,
        sure=NONE,
        ari=ari,
        text=text,
    )
