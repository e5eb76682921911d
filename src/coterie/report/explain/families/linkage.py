"""FL+HC's and ACFL's decision: one clustering that merges the nearest groups, up to a threshold or a number of groups."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from coterie.clustering import dendrogram
from coterie.report.explain.view import Change, Clients, Explanation, Flip, NoteView, sentence, short, who


@dataclass(frozen=True)
class Linkage:
    """The explanations of FL+HC or ACFL.

    Attributes:
        alike: Whether the threshold and the numbers are similarities, which are greater for nearer clients.
    """

    alike: bool

    def about(self, settings: dict[str, Any]) -> str:
        """Return how the method decides, in a sentence."""
        if self.alike:
            what = f"the cosine similarity of their {settings.get('similarity', 'weights')}"
            rule = "above" if settings.get("threshold") is not None else None
            return f"ACFL compares all clients once, by {what}, and merges the most alike groups first{_until(settings, rule)}."
        rule = "below" if settings.get("threshold") is not None else None
        return (
            f"FL+HC compares all clients once, by the {settings.get('metric', 'l2')} distance of their updates, and merges the "
            f"nearest groups first ({settings.get('linkage', 'ward')} linkage tells how far two groups are)"
            f"{_until(settings, rule)}."
        )

    # -- the clustering -------------------------------------------------------------------------------------------------

    def decision(self, view: NoteView) -> Explanation:
        """Explain the clustering: the last merge that was made, and the next one that was not."""
        numbers = view.numbers
        made, open_ = (numbers.get(self._name(n)) for n in ("made", "open"))
        if made is None and open_ is None:
            return Explanation(says=(sentence(view.note["text"]),), data=numbers)
        unit, says = self._unit, []
        if made is not None:
            says.append(f"The last merge that was made joined two groups at {unit} {short(made)}.")
        if open_ is not None:
            says.append(f"The next one, which was not made, would have joined two at {unit} {short(open_)}.")
        return Explanation(says=tuple(says), flips=self._flips(view, made, open_), data=numbers)

    def _flips(self, view: NoteView, made: float | None, open_: float | None) -> tuple[Flip, ...]:
        settings = view.story.settings
        threshold, groups = settings.get("threshold"), settings.get("groups")
        more, fewer = "there would have been more groups", "there would have been fewer groups"
        flips = []
        if threshold is not None:
            if made is not None:
                flips.append(Flip((Change("threshold", ">=" if self.alike else "<=", made, threshold),), more))
            if open_ is not None:
                flips.append(Flip((Change("threshold", "<" if self.alike else ">", open_, threshold),), fewer))
        elif groups is not None:
            flips = [Flip((Change("groups", ">=", groups + 1, groups),), more)] if made is not None else []
            flips += [Flip((Change("groups", "<=", groups - 1, groups),), fewer)] if open_ is not None and groups > 1 else []
        return tuple(flips)

    def _name(self, which: str) -> str:
        both = {"made": "lowest_merged", "open": "highest_apart"} if self.alike else {
            "made": "highest_merge", "open": "lowest_cut",
        }  # fmt: skip
        return both[which]

    @property
    def _unit(self) -> str:
        return "similarity" if self.alike else "distance"

    # -- one client -----------------------------------------------------------------------------------------------------

    def member(self, view: NoteView, client: int) -> Explanation:
        """Explain a client's place in the clustering.

        It states at which height the client merged with others first, at which height its group was complete, and with which
        thresholds it would be alone or its group would be larger.

        Args:
            view: The note.
            client: The client.
        """
        clients, matrix = self._matrix(view)
        if matrix is None:
            return Explanation(says=("The distances that the clustering went by were not recorded.",))
        if client not in clients:
            return Explanation(says=("It was not heard in the exchange that clustered the clients, and was placed later.",))
        side = next(part for part in view.parts or [view.clients] if client in part)
        climb = climbed(1 - matrix if self.alike else matrix, clients, view.story.settings.get("linkage", "average"), client)
        unit, value = self._unit, (lambda height: 1 - height) if self.alike else (lambda height: height)
        says, data = self._nearest(clients, matrix, side, client), {"side": list(side)}
        inside = [step for step in climb if set(step.joined) <= set(side)]
        beyond = next((step for step in climb if not set(step.joined) <= set(side)), None)
        if inside:
            first, last = inside[0], inside[-1]
            says.append(f"It merged first at {unit} {short(value(first.height))}, with {who(first.joined)}.")
            if len(inside) > 1:
                says.append(f"Its group was complete at {unit} {short(value(last.height))}, with {who(last.joined)}.")
            data |= {"alone_at": value(first.height), "complete_at": value(last.height)}
        if beyond is not None:
            says.append(f"The next merge would have been at {unit} {short(value(beyond.height))}, with {who(beyond.joined)}.")
            data |= {"greater_at": value(beyond.height), "greater_with": list(beyond.joined)}
        return Explanation(says=tuple(says), flips=self._member_flips(view, inside, beyond, value), data=data)

    def _matrix(self, view: NoteView) -> tuple[list[int], np.ndarray | None]:
        clients, found = view.matrices
        if not self.alike:
            return clients, found.get("all")
        named = view.story.settings.get("layers") or []
        return clients, found.get("compared", found.get(named[0]) if len(named) == 1 else None)

    def _nearest(self, clients: list[int], matrix: np.ndarray, side: Clients, client: int) -> list[str]:
        at, sign, unit = clients.index(client), -1 if self.alike else 1, self._unit
        says = []
        for name, there in (("its own", True), ("another", False)):
            found = {c: float(matrix[at, i]) for i, c in enumerate(clients) if i != at and (c in side) == there}
            if found:
                best = min(found, key=lambda c: (sign * found[c], c))
                says.append(f"The nearest client of {name} group is {best}, at {unit} {short(found[best])}.")
        return says

    def _member_flips(
        self, view: NoteView, inside: list[Merge], beyond: Merge | None, value: Callable[[float], float]
    ) -> tuple[Flip, ...]:
        threshold = view.story.settings.get("threshold")
        if threshold is None:
            return ()
        flips = []
        if inside:
            alone = Change("threshold", ">=" if self.alike else "<=", value(inside[0].height), threshold)
            flips.append(Flip((alone,), "it would have been alone"))
        if beyond is not None:
            more = Change("threshold", "<" if self.alike else ">", value(beyond.height), threshold)
            flips.append(Flip((more,), f"its group and {who(beyond.joined)} would have been one"))
        return tuple(flips)


@dataclass(frozen=True)
class Merge:
    """A merge on a client's path up the dendrogram.

    Attributes:
        height: The distance at which the groups merge.
        joined: The clients of the other group.
    """

    height: float
    joined: Clients


def climbed(apart: np.ndarray, clients: list[int], linkage: str, client: int) -> list[Merge]:
    """Return the merges of a client's groups, lowest first.

    Args:
        apart: The distances ``(n, n)``.
        clients: The n client ids of the rows.
        linkage: The linkage.
        client: The client.
    """
    square = (apart + apart.T) / 2
    np.fill_diagonal(square, 0.0)
    inside: dict[int, Clients] = {i: (c,) for i, c in enumerate(clients)}
    steps, mine = [], clients.index(client)
    for row, (one, two, height, _) in enumerate(dendrogram(np.maximum(square, 0.0), linkage)):
        made = len(clients) + row
        inside[made] = tuple(sorted((*inside[int(one)], *inside[int(two)])))
        if mine in (int(one), int(two)):
            steps.append(Merge(float(height), inside[int(two) if int(one) == mine else int(one)]))
            mine = made
    return steps


def _until(settings: dict[str, Any], rule: str | None) -> str:
    if rule is None:
        return f" until {settings.get('groups')} groups are left, as asked for"
    return f", as long as that is {rule} the threshold of {short(float(settings['threshold']))}"


FLHC, ACFL = Linkage(alike=False), Linkage(alike=True)
