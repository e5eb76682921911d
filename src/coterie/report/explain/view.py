"""Access to a run's records: its settings, its rounds up to the requested one, and every note with its context."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from coterie.records.codec import DamagedError
from coterie.records.record import RUN, Line, Record
from coterie.report.page.charts import load
from coterie.report.terminal import members
from coterie.settings import UserError

Clients = tuple[int, ...]


@dataclass(frozen=True)
class RunHistory:
    """A run as recorded, up to a round.

    Attributes:
        folder: The run directory.
        description: The content of ``run.toml``.
        lines: The rounds; the requested one is the last.
    """

    folder: Path
    description: Mapping[str, Any]
    lines: Sequence[Line]

    @property
    def method(self) -> str:
        """The name of the method."""
        return str(self.description["methods"][0]["name"])

    @cached_property
    def settings(self) -> dict[str, Any]:
        """The settings of the method; ``none`` becomes None."""
        return {key: None if value == "none" else value for key, value in self.description["methods"][0].items()}

    @property
    def truth(self) -> list[Clients] | None:
        """The true groups, of the clients that are present; None if they are not known."""
        here = {c for group in self.groups for c in group}
        true = self.description["world"].get("true_groups")
        groups = [tuple(c for c in group if c in here) for group in true or ()]
        return [group for group in groups if group] if true else None

    @property
    def groups(self) -> list[Clients]:
        """The groups after the last of these rounds."""
        return [tuple(group) for group in self.lines[-1]["groups"]]

    @property
    def adversaries(self) -> list[int]:
        """The hostile clients, if the data contain this information."""
        return list(self.description["world"].get("adversaries", ()))

    def group(self, client: int) -> Clients | None:
        """Return the present group of a client, or None if it is in none."""
        return next((group for group in self.groups if client in group), None)

    @cached_property
    def nodes(self) -> dict[int, Clients]:
        """Number of a node of the tree of groups -> its members when it was made, if that was recorded."""
        found: dict[int, Clients] = {}
        for view in self.views():
            first = view.numbers.get("first_part")
            if first is not None:
                found |= {int(first) + i: part for i, part in enumerate(view.parts)}
        return found

    def views(self) -> Iterator[NoteView]:
        """Yield every note, oldest first."""
        before: Line | None = None
        for place, line in enumerate(self.lines):
            for note in line["notes"]:
                yield NoteView(self, place, line, before, note)
            before = line


@dataclass(frozen=True)
class NoteView:
    """A note with its context.

    Attributes:
        story: The run.
        place: The position of the note's round in the run.
        line: The record of that round.
        before: The record of the round before, or None.
        note: The note.
    """

    story: RunHistory
    place: int
    line: Line
    before: Line | None
    note: Mapping[str, Any]

    @property
    def round(self) -> int:
        """The number of the note's round."""
        return int(self.line["round"])

    @property
    def kind(self) -> str:
        """The kind of the note."""
        return str(self.note["kind"])

    @property
    def clients(self) -> Clients:
        """The clients that the note is about."""
        return tuple(self.note["clients"])

    @property
    def parts(self) -> list[Clients]:
        """The parts of the note: groups of clients."""
        return [tuple(part) for part in self.note["parts"]]

    @property
    def numbers(self) -> dict[str, float]:
        """The numbers of the note that are known."""
        return {name: value for name, value in (self.note.get("numbers") or {}).items() if value is not None}

    def values(self, name: str) -> dict[int, float]:
        """Return client -> number for the numbers that are known; empty if the record has none of this name."""
        found = (self.note.get("values") or {}).get(name) or {}
        return {int(client): value for client, value in found.items() if value is not None}

    @cached_property
    def matrices(self) -> tuple[list[int], dict[str, np.ndarray]]:
        """The clients of the rows, and the matrices ``(n, n)`` by name; both empty if nothing was recorded."""
        name, line = self.note.get("similarity"), self.story.lines[self.round - 1]
        if name and name in line.get("files", {}):
            return load(self.story.folder, line, self.note)
        if name:
            with suppress(DamagedError):  # in records of an earlier Coterie a lost file looks like one never written
                return load(self.story.folder, line, self.note)
        return [], {}

    def matrix(self, name: str = "all") -> tuple[list[int], np.ndarray | None]:
        """Return the clients of the rows, and the matrix ``(n, n)`` of this name or None."""
        clients, found = self.matrices
        return clients, found.get(name)

    @property
    def changes(self) -> bool:
        """Whether the note changed groups."""
        if self.arrives:
            return False
        if self.kind in ("join", "move", "merge"):
            return True
        if not self.parts or self.kind in ("hold", "ask", "gradients"):
            return False
        if self.kind == "partition":  # written if the next groups are not those that trained
            return True
        inside = {c for part in self.parts for c in part}
        old = {frozenset(inside & set(group)) for group in (self.before["groups"] if self.before else [inside])}
        return {frozenset(part) for part in self.parts} != {group for group in old if group}

    @property
    def arrives(self) -> bool:
        """Whether the note records only that clients came to the federation: a note of the engine, not of the method."""
        return self.kind == "join" and not self.numbers and str(self.note["text"]).endswith(f"joined in round {self.round}")


def read(run: Path | str, round: int | None = None) -> RunHistory:
    """Read the records of the run in directory ``run``.

    Args:
        run: The run directory.
        round: The last round to read; None for all.

    Raises:
        UserError: For a folder of several runs or of none, a run without rounds, or one without this round.
    """
    folder = Path(run)
    if not (folder / RUN).is_file():
        inside = sorted(path.parent.name for path in folder.glob(f"*/{RUN}"))
        if inside:
            named = ", ".join(inside[:6]) + (f" and {len(inside) - 6} more" if len(inside) > 6 else "")
            raise UserError(f"{run} has {len(inside)} runs inside, and explain tells of one: {named}")
    record = Record(folder)
    description, lines = record.description(), record.lines()
    if not lines:
        raise UserError(f"{run} has no completed round yet: there is nothing to explain; coterie resume {run} goes on with it")
    last = lines[-1]["round"]
    if round is not None and not 1 <= round <= last:
        raise UserError(f"--round {round} is not among the {last} recorded rounds of {run}: 1 to {last}")
    return RunHistory(folder, description, lines if round is None else lines[:round])


def of_client(story: RunHistory, client: int) -> Clients:
    """Return the group of a client.

    Args:
        story: The run.
        client: The client.

    Raises:
        UserError: If the client is not present; the message names the nearest one.
    """
    group = story.group(client)
    if group is None:
        ids = sorted(c for members in story.groups for c in members)
        near = min(ids, key=lambda other: (abs(other - client), other))
        once = next((line["round"] for line in reversed(story.lines) if str(client) in line["clients"]), None)
        what = f"was last there in round {once}" if once else "is not one of the run's clients"
        raise UserError(
            f"client {client} {what}: after round {story.lines[-1]['round']} there are {len(ids)} clients, "
            f"{ids[0]} to {ids[-1]}; the nearest is {near}"
        )
    return group


# ----------------------------------------------------------------------------------------------------
# The numbers that a decision compared, how close they were, and what would have changed it: values and sentences.


SIGNS = {"<": "below", "<=": "at most", ">": "above", ">=": "at least"}
"""The condition of a criterion, in words."""

WHOLE = ("min_cluster_size",)
"""Settings that are integers."""


@dataclass(frozen=True)
class Criterion:
    """One comparison: ``value sign bound``.

    Attributes:
        what: The value in words.
        value: The value.
        sign: One of :data:`SIGNS`.
        bound: The number that the value is compared with.
        means: The consequence if the comparison holds.
        setting: The name of the setting that is the bound, or empty.
        fails: The consequence if the comparison does not hold.
    """

    what: str
    value: float
    sign: str
    bound: float
    means: str = ""
    setting: str = ""
    fails: str = ""

    @property
    def holds(self) -> bool:
        """Whether the comparison holds."""
        return {"<": self.value < self.bound, "<=": self.value <= self.bound, ">": self.value > self.bound}.get(
            self.sign, self.value >= self.bound
        )

    def words(self) -> str:
        """Return one sentence: the numbers compared, how close they were, and the consequence."""
        bound = f"{self.setting} {short(self.bound)}" if self.setting else short(self.bound)
        comparison = SIGNS[self.sign] if self.holds else f"not {SIGNS[self.sign]}"
        end = self.means if self.holds else self.fails
        said = f"{self.what} was {short(self.value)}, {comparison} {bound} ({margin(self.value, self.bound)})"
        return f"{said}: {end}." if end else f"{said}."

    def json(self) -> dict[str, Any]:
        """Return the comparison as data for JSON."""
        ratio = self.value / self.bound if self.bound else None
        return {
            "what": self.what, "value": self.value, "sign": self.sign, "bound": self.bound, "setting": self.setting or None,
            "holds": self.holds, "ratio": ratio, "difference": self.value - self.bound,
        }  # fmt: skip


@dataclass(frozen=True)
class Change:
    """A change of a setting that would have been necessary: to ``sign value``.

    Attributes:
        setting: The name of the setting.
        sign: One of :data:`SIGNS`.
        value: The bound of its new value.
        was: Its value in the run.
    """

    setting: str
    sign: str
    value: float
    was: Any

    def words(self) -> str:
        """Return the change in words."""
        if isinstance(self.value, int):
            side = "or more" if self.sign == ">=" else "or fewer"
            return f"{self.setting} {self.value} {side} (it was {plain(self.was)})"
        side = {"<": "below", "<=": "at or below", ">": "above", ">=": "at or above"}[self.sign]
        return f"{self.setting} {side} {outward(self.value, self.sign)} (it was {plain(self.was)})"

    def possible(self, limits: Mapping[str, Any]) -> bool:
        """Return whether a setting with these limits can have such a value."""
        reach = math.inf if self.sign in (">", ">=") else -math.inf
        value = self.value if "=" in self.sign else math.nextafter(self.value, reach)
        low, high = limits.get("ge", -math.inf), limits.get("le", math.inf)
        return low <= value <= high and limits.get("gt", -math.inf) < value < limits.get("lt", math.inf)


@dataclass(frozen=True)
class Flip:
    """Changes that together would have changed a decision.

    Attributes:
        changes: The changes, all of which are necessary.
        then: What would have happened then.
    """

    changes: tuple[Change, ...]
    then: str

    def words(self) -> str:
        """Return the changes and their effect in one sentence."""
        *most, last = (change.words() for change in self.changes)
        return f"With {', '.join(most)} and {last}, {self.then}." if most else f"With {last}, {self.then}."

    def json(self) -> dict[str, Any]:
        """Return the changes and their effect as data for JSON."""
        changes = [{"setting": c.setting, "sign": c.sign, "value": c.value, "was": c.was} for c in self.changes]
        return {"changes": changes, "then": self.then}


@dataclass(frozen=True)
class Explanation:
    """The explanation of a decision, or of one client in it.

    Attributes:
        says: Further sentences, before the criteria.
        criteria: The comparisons.
        flips: Changes of settings that would have changed the decision.
        data: The numbers of the sentences, for JSON.
    """

    says: tuple[str, ...] = ()
    criteria: tuple[Criterion, ...] = ()
    flips: tuple[Flip, ...] = ()
    data: Mapping[str, Any] = field(default_factory=dict)

    def words(self) -> list[str]:
        """Return all sentences."""
        return [*self.says, *(c.words() for c in self.criteria), *(f.words() for f in self.flips)]

    def within(self, limits: Mapping[str, Mapping[str, Any]]) -> Explanation:
        """Return the explanation without changes that no setting allows.

        Args:
            limits: Name of a setting -> its limits.
        """
        flips = (f for f in self.flips if all(change.possible(limits.get(change.setting, {})) for change in f.changes))
        return replace(self, flips=tuple(flips))

    def json(self) -> dict[str, Any]:
        """Return the explanation as data for JSON."""
        return {
            "says": list(self.says), "criteria": [c.json() for c in self.criteria],
            "would_change": [f.json() for f in self.flips], "numbers": dict(self.data),
        }  # fmt: skip


def opposed(criterion: Criterion, setting: str, was: Any, value: float) -> Change:
    """Return the change of a setting that reverses a criterion.

    Args:
        criterion: The criterion, in which ``setting`` is on the side of the bound.
        setting: The name of the setting.
        was: Its value in the run.
        value: The number compared with the setting, in its unit.
    """
    flipped = {"<": "<=", "<=": "<", ">": ">=", ">=": ">"} if criterion.holds else {"<": ">", "<=": ">=", ">": "<", ">=": "<="}
    sign = flipped[criterion.sign]
    if setting not in WHOLE:
        return Change(setting, sign, value, was)
    return Change(setting, ">=" if sign == ">" else sign, int(value) + (sign == ">"), was)


def sentence(text: str) -> str:
    """Return a note's text as a sentence.

    Example:
        >>> sentence("a group of one cannot split")
        'A group of one cannot split.'
    """
    return f"{text[:1].upper()}{text[1:].rstrip('.')}." if text else ""


def short(value: float) -> str:
    """Return a number with three significant digits.

    Example:
        >>> short(0.123456), short(1234567.0), short(3.0)
        ('0.123', '1.23e+06', '3')
    """
    return f"{value:.3g}"


def plain(value: Any) -> str:
    """Return a setting's value in words."""
    return short(value) if isinstance(value, float) else "none" if value is None else str(value)


def outward(value: float, sign: str) -> str:
    """Return a bound with three significant digits.

    It is rounded so that every number beyond it, in the direction of ``sign``, is also beyond ``value``.

    Args:
        value: The exact bound.
        sign: One of :data:`SIGNS`.

    Example:
        >>> outward(0.31449, "<="), outward(0.31441, ">"), outward(0.5, "<"), outward(1.00000000001, ">")
        ('0.314', '0.315', '0.5', '1.01')
    """
    if value == 0 or not math.isfinite(value):
        return short(value)
    down = sign in ("<", "<=")
    shown = float(short(value))
    if (shown > value) if down else (shown < value):
        step = 10.0 ** (math.floor(math.log10(abs(value))) - 2)
        shown += -step if down else step
    return short(shown)


def margin(value: float, bound: float) -> str:
    """Return how close a value was to its bound, in words.

    Example:
        >>> margin(0.25, 0.5), margin(0.51, 0.5), margin(1e-9, 1e-4), margin(0.2, 0.0), margin(0.5, 0.5)
        ('a factor of 2 below', '2 % above', 'a factor of 1e+05 below', '0.2 above', 'equal')
    """
    if value == bound:
        return "equal"
    side = "below" if value < bound else "above"
    if value > 0 and bound > 0:
        ratio = value / bound
        if 2 / 3 < ratio < 1.5:
            return f"{abs(ratio - 1) * 100:.2g} % {side}"
        return f"a factor of {short(max(ratio, 1 / ratio))} {side}"
    return f"{short(abs(value - bound))} {side}"


# ----------------------------------------------------------------------------------------------------
# Parts of sentences that all explanations use.


def who(clients: Iterable[int]) -> str:
    """Return a group in words.

    Example:
        >>> who([3]), who([0, 1, 2])
        ('client 3', 'clients 0-2 (3 clients)')
    """
    ids = list(clients)
    return f"client {ids[0]}" if len(ids) == 1 else f"clients {members(ids, most=6)}"


def count(number: int, noun: str) -> str:
    """Return a number with its noun.

    Example:
        >>> count(1, "group"), count(3, "group")
        ('1 group', '3 groups')
    """
    return f"{number} {noun}{'' if number == 1 else 's'}"


def rounds(numbers: Sequence[int], most: int = 8) -> str:
    """Return rounds in words.

    Example:
        >>> rounds([4]), rounds([1, 2, 3, 7])
        ('round 4', 'rounds 1-3, 7')
    """
    text = members(numbers, most=most).rpartition(" (")[0]
    return f"round{'' if len(numbers) == 1 else 's'} {text}"


def ranked(values: Mapping[str, float], names: Mapping[str, str], most: int = 4) -> str:
    """Return numbers in words, each with a name, in their order; those after the first ``most`` are only counted.

    Example:
        >>> ranked({"a": 0.5, "b": 0.25, "c": 1.0}, {"a": "branch a", "b": "branch b"}, most=2)
        '0.5 for branch a; 0.25 for branch b; and 1 more'
    """
    shown = "; ".join(f"{short(value)} for {names[name]}" for name, value in list(values.items())[:most])
    return shown + (f"; and {len(values) - most} more" if len(values) > most else "")
