"""HCCT's decisions: partitions by utility, which is similarity minus the price of little data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from coterie.clustering import benefits, utility, utility_merge
from coterie.report.explain.view import Change, Clients, Criterion, Explanation, Flip, NoteView, sentence, short, who

STEPS, HALVINGS = 24, 20
"""The number of smaller values of λ tried, down to a hundredth of the one used, and the number of bisection steps."""

MOST = 300
"""With more clients than this, no smaller λ is tried, because each needs a new partition."""

GAIN = "What the best merge that was not made would add to the utility of all"


def about(settings: dict[str, Any]) -> str:
    """Return how HCCT decides, in a few sentences."""
    return (
        "HCCT makes the groups anew, again and again. A client's utility in a group is how well the group's mean update points "
        "the way its own does (a cosine, 1 alone), less a price for little data: tradeoff (λ) over the group's number of "
        "examples. Groups merge while that raises the utility of all clients together."
    )


def decision(view: NoteView) -> Explanation:
    """Explain a note: the utilities that it compared, and the values of λ that would have changed the groups."""
    numbers = view.numbers
    if view.kind != "partition" or "utility" not in numbers:
        return Explanation(says=(sentence(view.note["text"]),), data=numbers)
    says = [f"The utility of all clients together was {short(numbers['utility'])}."]
    tests: tuple[Criterion, ...] = ()
    if "best_open" in numbers:
        tests = (Criterion(GAIN, numbers["best_open"], "<=", 0.0, "no merge was worth it"),)
    if view.story.settings.get("groups") is not None:
        groups = view.story.settings["groups"]
        says.append(f"Groups were merged until {groups} were left, as asked for (groups), whether that was a gain or not.")
        return Explanation(says=tuple(says), criteria=tests, data=numbers)
    return Explanation(says=tuple(says), criteria=tests, flips=_flips(view), data=numbers)


@dataclass(frozen=True)
class Utilities:
    """The data of a partition, from its records.

    Attributes:
        clients: The n client ids.
        gram: ``(n, n)``, as in :mod:`coterie.clustering.utility`.
        sizes: ``(n,)``, as there.
        price: ``(n,)``, as there.
    """

    clients: list[int]
    gram: np.ndarray
    sizes: np.ndarray
    price: np.ndarray

    @cached_property
    def place(self) -> Mapping[int, int]:
        """The position of each client."""
        return {client: i for i, client in enumerate(self.clients)}

    def at(self, group: Sequence[int]) -> list[int]:
        """Return the sorted positions of those members of a group that are known."""
        return sorted(self.place[client] for client in group if client in self.place)

    def each(self, group: Sequence[int]) -> dict[int, float]:
        """Return client -> utility, for every member of a group that is known."""
        at = self.at(group)
        found = utility(self.gram[np.ix_(at, at)], self.sizes[at], self.price[at], range(len(at))) if at else ()
        return {self.clients[i]: float(value) for i, value in zip(at, found, strict=True)}

    def total(self, groups: Sequence[Sequence[int]]) -> float:
        """Return the sum of the utilities of all members of some groups."""
        return sum(sum(self.each(group).values()) for group in groups)

    def becomes(self, parts: Sequence[Sequence[int]], factor: float) -> bool:
        """Return whether the partition with λ times ``factor`` has these parts."""
        found = utility_merge(self.gram, self.sizes, factor * self.price)
        return set(map(frozenset, found)) == set(map(frozenset, parts))


def recovered(view: NoteView) -> Utilities | None:
    """Return the data of a partition from the cosines, norms, sizes and prices of a note.

    Args:
        view: The note.

    Returns:
        The data, or None if they were not all recorded.
    """
    clients, found = view.matrices
    norm, size, price = (view.values(name) for name in ("norm", "size", "price"))
    if not found or any(client not in row for client in clients for row in (norm, size, price)):
        return None
    cosines = next(iter(found.values()))
    lengths = np.array([norm[c] for c in clients])
    gram = (cosines + cosines.T) / 2 * np.outer(lengths, lengths)
    np.fill_diagonal(gram, lengths**2)
    return Utilities(clients, gram, np.array([size[c] for c in clients]), np.array([price[c] for c in clients]))


def _flips(view: NoteView) -> tuple[Flip, ...]:
    """Return the nearest values of λ that would have led to other groups."""
    known, was = recovered(view), view.story.settings.get("tradeoff")
    if known is None or not was:
        return ()
    flips, parts = [], [known.at(part) for part in view.parts if known.at(part)]
    if len(parts) > 1:
        factor, pair = merging(known, parts)
        if np.isfinite(factor):
            one, two = ([known.clients[i] for i in parts[i]] for i in pair)
            then = f"{who(one)} and {who(two)} would have been worth more together"
            flips.append(Flip((Change("tradeoff", ">", was * factor, was),), then))
    less = parting(known, parts)
    if less is not None:
        flips.append(Flip((Change("tradeoff", "<=", was * less, was),), "the groups would have been others"))
    return tuple(flips)


def merging(known: Utilities, parts: Sequence[Sequence[int]]) -> tuple[float, tuple[int, int]]:
    """Return the smallest factor of λ, at least 1, at which merging two of the parts would cost nothing.

    With a greater factor the merge is a gain. Utilities, and so gains, are linear in λ.

    Args:
        known: The data of the partition.
        parts: The positions of the clients of each part.

    Returns:
        The factor, or infinity if there is none, and the two parts to merge.
    """
    free, full = (benefits(known.gram, known.sizes, price, parts) for price in (0 * known.price, known.price))
    for gain in (free, full):
        np.fill_diagonal(gain, 0.0)
    slope = full - free
    with np.errstate(divide="ignore", invalid="ignore"):
        factor = np.where(slope > 0, -free / slope, np.inf)
    np.fill_diagonal(factor, np.inf)
    one, two = np.unravel_index(int(factor.argmin()), factor.shape)
    return float(max(factor[one, two], 1.0)), (int(one), int(two))


def parting(known: Utilities, parts: Sequence[Sequence[int]]) -> float | None:
    """Return the greatest factor of λ below 1 found that leads to other groups.

    Args:
        known: The data of the partition.
        parts: The positions of the clients of each part.

    Returns:
        The factor. None if no factor down to a hundredth changes the groups, if there are too many clients to try, or if
        these groups are not the result of one partition.
    """
    n = len(known.clients)
    if n > MOST or not known.becomes(parts, 1.0):
        return None
    stays = 1.0
    for factor in np.geomspace(1.0, 0.01, STEPS + 1)[1:]:
        if not known.becomes(parts, float(factor)):
            changes = float(factor)
            break
        stays = float(factor)
    else:
        return None
    for _ in range(HALVINGS):
        middle = (stays + changes) / 2
        stays, changes = (middle, changes) if known.becomes(parts, middle) else (stays, middle)
    return changes


# -- one client ---------------------------------------------------------------------------------------------------------


def member(view: NoteView, client: int) -> Explanation:
    """Return a client's utility in its group, alone, and in each of the other groups."""
    side = next((part for part in view.parts if client in part), ())
    own, gain = view.values("utility").get(client), view.values("gain").get(client)
    if own is None:
        return Explanation(says=("It was not among those compared, and stayed with those it had been with.",))
    says = [f"Its own utility in its group was {short(own)}{'' if gain is None else _alone(gain)}."]
    data: dict[str, Any] = {"side": list(side), "utility": own, "gain": gain}
    known = recovered(view)
    others = [part for part in view.parts if client not in part]
    if known is None or client not in known.clients:
        if view.parts:
            says.append("What it would have had in another group cannot be told: norms and sizes were not recorded.")
        return Explanation(says=tuple(says), data=data)
    elsewhere = sorted((_moved(known, client, side, part) for part in others if known.at(part)), key=lambda one: -one[1])
    data["elsewhere"] = [{"clients": list(g), "utility": u, "change_of_all": change} for g, u, change in elsewhere]
    if elsewhere:
        group, there, change = elsewhere[0]
        says.append(
            f"Elsewhere it would have had most with {who(group)}: {short(there)}. Its move would have changed the utility of "
            f"all clients together by {change:+.3g}."
        )
    return Explanation(says=tuple(says), data=data)


def _alone(gain: float) -> str:
    return ", as alone" if gain == 0 else f", {short(abs(gain))} {'more' if gain > 0 else 'less'} than alone"


def _moved(known: Utilities, client: int, side: Clients, part: Clients) -> tuple[Clients, float, float]:
    """Return another group, the client's own utility in it, and the change of the total utility by the move."""
    left = [c for c in side if c != client]
    before, after = known.total([side, part]), known.total([left, (*part, client)])
    return part, known.each((*part, client))[client], after - before
