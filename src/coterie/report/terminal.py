"""Runs in a terminal: the tree of groups, tables, and one line per event, as functions from records to rich objects."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import IO, Any, NoReturn

from rich.console import Console, ConsoleOptions, RenderableType
from rich.console import Group as Together
from rich.segment import Segment
from rich.table import Table
from rich.text import Text
from rich.tree import Tree

from coterie.printable import printable
from coterie.records.record import Line
from coterie.records.shown import ClientId, mean_of, shown_as
from coterie.report.gathered import examines_groups
from coterie.report.summary import Summary, differences, unequal


class _Console(Console):
    """A console that shows plain text: no markup, and no control sequences except those of rich's own styles."""

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterator[Segment]:
        for text, style, control in super().render(renderable, options):
            yield Segment(text if control else printable(text, keep="\n"), style, control)

    def on_broken_pipe(self) -> NoReturn:
        raise BrokenPipeError  # rich would end the process with an error


def console(stream: IO[str]) -> Console:
    """Return a console on ``stream``.

    Its width is COLUMNS, if that is set. Otherwise it is the terminal's width, or 160 columns if
    ``stream`` is not a terminal, so that rows stay on one line.

    Args:
        stream: The stream to write to.
    """
    columns = os.environ.get("COLUMNS", "")
    width = (
        int(columns)
        if re.fullmatch("[1-9][0-9]{0,4}", columns)
        else None
        if stream.isatty()
        else 160
    )
    environment = {
        name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES")
    }  # rich trusts them
    return _Console(
        file=stream, width=width, highlight=False, markup=False, emoji=False, _environ=environment
    )


def tree(lines: Sequence[Line]) -> Tree:
    """Return the groups of a run as a tree of splits: members, mean score, and the round and reason of each split."""
    tested = next((line for line in reversed(lines) if line["tested"]), None)
    return _branch(history(lines), tested, None)


def _branch(group: Group, tested: Line | None, parent: Tree | None) -> Tree:
    label = Text(members(group.clients), style="bold" if not group.parts else "")
    score = mean_of(tested, group.clients) if tested else None
    if tested and score is not None:
        label.append(f"  {shown_as(tested).main} {score:.3f}", style="cyan")
    if group.parts and group.round is not None:
        label.append(f"\nround {group.round}: ", style="yellow")
        label.append(printable(group.why or "groups of the last round"), style="dim")
    elif group.why:
        label.append(f"\n{printable(group.why)}", style="dim")
    branch = Tree(label, guide_style="dim") if parent is None else parent.add(label)
    for part in group.parts:
        _branch(part, tested, branch)
    return branch


def members(clients: Iterable[ClientId], most: int = 12) -> str:
    """Return a list of clients in words: consecutive numbers are joined, and long lists are cut.

    Names that contain a comma are in quotes.

    Args:
        clients: The clients, all numbers or all names.
        most: The greatest number of parts to show.

    Example:
        >>> members(["north", "south"])
        'north, south (2 clients)'
        >>> members(["Bern, east", "south"])
        '"Bern, east", south (2 clients)'
        >>> members([0, 1, 2, 3, 4, 7, 9])
        '0-4, 7, 9 (7 clients)'
        >>> members(range(0, 100, 2), most=3)
        '0, 2, 4, ... 98 (50 clients)'
    """
    ids: list[Any] = sorted(clients)
    spans: list[list[Any]] = []
    for client in ids:
        if spans and not isinstance(client, str) and client == spans[-1][-1] + 1:
            spans[-1] = [spans[-1][0], client]
        else:
            spans.append([client, client])
    spans = [[f'"{a}"', f'"{b}"'] if isinstance(a, str) and "," in a else [a, b] for a, b in spans]
    texts = [str(a) if a == b else f"{a}-{b}" if b > a + 1 else f"{a}, {b}" for a, b in spans]
    if len(texts) > most:
        texts = [*texts[:most], f"... {texts[-1]}"]
    return f"{', '.join(texts)} ({len(ids)} client{'' if len(ids) == 1 else 's'})"


def event(note: Mapping[str, Any], round: int) -> Text | None:
    """Return one line about a note that changed groups.

    Args:
        note: The note.
        round: Its round.

    Returns:
        The line, or None if the note has fewer than two parts.
    """
    if len(note["parts"]) < 2:
        return None
    became = " | ".join(members(part, most=4) for part in note["parts"][:4])
    more = f" | and {len(note['parts']) - 4} more" if len(note["parts"]) > 4 else ""
    return Text.assemble(
        (f"round {round} ", "yellow"), (f"{note['kind']}: ", "bold"), f"{became}{more}"
    )


def table(summaries: Sequence[Summary]) -> Table:
    """Return a table with one row per run.

    The columns are the mean and worst score over clients, the groups, their agreement with the true
    groups, traffic and time. With one metric the table fits into 80 columns.

    Args:
        summaries: The summaries of the runs.
    """
    out = Table(box=None, pad_edge=False, header_style="bold")
    seeds = len({one["seed"] for one in summaries}) > 1
    others = _other_metrics(summaries)
    metric = title(summaries)
    for name in (
        "method",
        *(["seed"] if seeds else []),
        "rounds",
        metric,
        "worst",
        *others,
        "groups",
    ):
        out.add_column(name, justify="left" if name == "method" else "right", no_wrap=True)
    attacked = any(one.get("isolated") is not None for one in summaries)
    for name in ("ARI", *(["isolated"] if attacked else []), "up", "down", "seconds"):
        out.add_column(name, justify="right", no_wrap=True)
    for one in summaries:
        score = one["score"] or {}
        out.add_row(
            one["method"],
            *([str(one["seed"])] if seeds else []),
            str(one["rounds"]),
            number(score.get("mean")),
            number(score.get("worst")),
            *(number(one.get(name)) for name in others),
            str(len(one["groups"])),
            number(one["ari"], 2),
            *([number(one["isolated"], 2)] if attacked else []),
            size(one["bytes_up"]),
            size(one["bytes_down"]),
            number(one["seconds"], 1),
        )
    return out


def _other_metrics(summaries: Sequence[Summary]) -> list[str]:
    """Return the metrics besides the loss and the main one; in a summary they follow the loss and precede the bytes."""
    names: dict[str, None] = {}
    for one in summaries:
        keys = list(one)
        names |= dict.fromkeys(
            k for k in keys[keys.index("loss") + 1 : keys.index("bytes_up")] if k != one["metric"]
        )
    return list(names)


def title(results: Iterable[Mapping[str, Any]]) -> str:
    """Return the heading of a column of main metrics: the metric's name, or "score" if there are several metrics."""
    names = {one["metric"] for one in results}
    return names.pop() if len(names) == 1 else "score"


def comparison(compared: Sequence[Mapping[str, Any]]) -> Together:
    """Return a table per scenario, with one row per method.

    A row shows means over seeds and, with more than one seed, half the 95% interval of the score.
    Several entries of one method are numbered. Below the table are the settings of methods in which
    these differ, and once all other settings that are not the same in all rows.

    Args:
        compared: The entries of :func:`coterie.compare`.
    """
    scenarios = list(dict.fromkeys(one["scenario"] for one in compared))
    parts: list[Text | Table] = []
    for name in scenarios:
        here = [one for one in compared if one["scenario"] == name]
        labels = numbered([one["method"] for one in here])
        parts += [Text("")] if parts else []
        parts += [Text(name, style="bold"), _comparison(here, labels)]
        labelled = zip(labels, differences(here, ("settings",)), strict=True)
        parts += [Text(f"{label}: {words}", style="dim") for label, words in labelled if words]
        unlike = "; ".join(unequal(here, labels))
        parts += (
            [Text(f"The rows differ in more than the method: {unlike}", style="yellow")]
            if unlike
            else []
        )
    return Together(*parts)


def numbered(names: Sequence[str]) -> list[str]:
    """Return the names, with a number added to each name that occurs more than once.

    Example:
        >>> numbered(["cfl", "fedavg", "cfl"])
        ['cfl 1', 'fedavg', 'cfl 2']
    """
    return [
        name if names.count(name) == 1 else f"{name} {names[: i + 1].count(name)}"
        for i, name in enumerate(names)
    ]


def _comparison(compared: Sequence[Mapping[str, Any]], labels: Sequence[str]) -> Table:
    """Return the table of one scenario: at most 116 columns, for labels of 11 letters."""
    out = Table(box=None, pad_edge=False, header_style="bold")
    out.add_column("method", vertical="bottom", no_wrap=True)
    attacked = any(one["isolated"]["mean"] is not None for one in compared)
    for name in (
        "seeds",
        "rounds",
        title(compared),
        "worst\nclient",
        "std of\nclients",
        "adjusted\nRand",
        "groups",
        "exchanges",
        "up",
        "down",
        "client\nevals",
        *(["adversaries\nisolated"] if attacked else []),
    ):
        out.add_column(name, justify="right", vertical="bottom", no_wrap=True)
    for one, label in zip(compared, labels, strict=True):
        rounds = one["rounds"]
        out.add_row(
            label,
            str(len(one["seeds"])),
            str(rounds[0]) if len(rounds) == 1 else f"{rounds[0]}-{rounds[-1]}",
            plus_minus(one["score"]),
            number(one["worst"]["mean"]),
            number(one["std"]["mean"]),
            number(one["ari"]["mean"], 2),
            number(one["groups"]["mean"], 1),
            number(one["exchanges"]["mean"], 0),
            size(one["bytes_up"]["mean"]),
            size(one["bytes_down"]["mean"]),
            number(one["evaluations"]["mean"], 0),
            *([number(one["isolated"]["mean"], 2)] if attacked else []),
        )
    return out


def plus_minus(value: Mapping[str, float | None], digits: int = 3) -> str:
    """Return a mean in words, with half its interval if that is known.

    Args:
        value: mean, low and high.
        digits: The number of decimal places.

    Example:
        >>> plus_minus({"mean": 0.9, "low": 0.85, "high": 0.95}), plus_minus({"mean": 0.9, "low": None, "high": None})
        ('0.900 ± 0.050', '0.900')
    """
    if value["mean"] is None or value["high"] is None:
        return number(value["mean"], digits)
    return f"{value['mean']:.{digits}f} ± {value['high'] - value['mean']:.{digits}f}"


def number(value: float | None, digits: int = 3) -> str:
    """Return a number in words, or a dash for None."""
    return "-" if value is None else f"{value:.{digits}f}"


def size(count: float | None) -> str:
    """Return a number of bytes in words, or a dash for None.

    Example:
        >>> size(999), size(1_234_567)
        ('999 B', '1.2 MB')
    """
    if count is None:
        return "-"
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            break
        count, unit = count / 1000, "TB"
    return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"


# ----------------------------------------------------------------------------------------------------
# The history of a run's groups: the tree of groups and their splits, computed from the records.


Members = tuple[ClientId, ...]


@dataclass
class Group:
    """A group at one time, and its split, if it was divided later.

    Attributes:
        clients: The ids of its members.
        round: The round in which it was divided, or None.
        why: The reason, in the words of the note.
        parts: The groups that it was divided into.
    """

    clients: Members
    round: int | None = None
    why: str = ""
    parts: list[Group] = field(default_factory=list)

    def leaves(self) -> list[Group]:
        """Return the groups at the leaves of the tree below this group."""
        return [leaf for part in self.parts for leaf in part.leaves()] if self.parts else [self]


def history(lines: Sequence[Line]) -> Group:
    """Return the tree of groups whose leaves are the groups of the last round, built from the notes of each round.

    If the notes do not lead to these groups, they are placed directly below a group of all clients.

    Args:
        lines: The completed rounds.

    Returns:
        The root of the tree.
    """
    groups = sorted(tuple(group) for group in lines[-1]["groups"])
    root = Group(clients=tuple(sorted(c for group in lines[0]["groups"] for c in group)))
    for line in lines:
        for note in line["notes"]:
            parts = sorted(tuple(part) for part in note["parts"])
            if parts:
                _divide(root, tuple(sorted(note["clients"])), parts, line["round"], note["text"])
            elif (
                root.clients == tuple(note["clients"]) and not root.parts and examines_groups(note)
            ):
                root.why = note["text"]
        _follow(root, [tuple(group) for group in line["groups"]])
    if sorted(leaf.clients for leaf in root.leaves()) != groups:
        everyone = tuple(sorted(c for group in groups for c in group))
        root = Group(
            clients=everyone,
            round=lines[-1]["round"],
            parts=[Group(clients=group) for group in groups],
        )
    return root


def _follow(root: Group, groups: Sequence[Members]) -> None:
    """Set the leaves to ``groups`` if clients only came, left or moved; groups of new clients are added below the root."""
    leaves, homes = root.leaves(), []
    for group in groups:
        shared = [len(set(leaf.clients) & set(group)) for leaf in leaves]
        homes.append(shared.index(max(shared)) if max(shared) else None)
    known = [home for home in homes if home is not None]
    if sorted(leaf.clients for leaf in leaves) == sorted(groups) or len(set(known)) < len(known):
        return
    for leaf in leaves:
        leaf.clients = ()
    for group, home in zip(groups, homes, strict=True):
        if home is not None:
            leaves[home].clients = group
        elif root.parts:
            root.parts.append(Group(clients=group))
    _gather(root)


def _gather(group: Group) -> None:
    """Set the members of an inner group to those of its parts, and remove empty parts."""
    if group.parts:
        for part in group.parts:
            _gather(part)
        group.parts = [part for part in group.parts if part.clients]
        group.clients = tuple(sorted(c for part in group.parts for c in part.clients))


def _divide(group: Group, clients: Members, parts: list[Members], round: int, why: str) -> None:
    """Add ``parts`` below the group whose members are exactly ``clients``."""
    if group.clients != clients:
        for part in group.parts:
            _divide(part, clients, parts, round, why)
    elif len(parts) == 1:
        group.parts, group.round, group.why = [], None, why
    elif (
        sorted(part.clients for part in group.parts) != parts
    ):  # a new division, not a confirmed one
        group.parts = [Group(clients=part) for part in parts]
        group.round, group.why = round, why
