"""What split-half makes of its probes: whether a group is two, and why, in words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from coterie.clustering import congruence, congruent_groups, contrast, repeated_p, signal_cut, signal_gram
from coterie.clustering.congruence import Congruence
from coterie.core import Client, Groups, Note, Replies, as_groups, state
from coterie.methods import split_half_notes
from coterie.methods.cfl_leaves import Leaf


@state("split-half.evidence")
class Evidence:
    """One probe of a group: the Gram matrix ``(2n, 2n)`` of the halves of the ``clients`` that answered."""

    clients: tuple[Client, ...]
    products: Tensor

    def of(self, clients: Sequence[Client]) -> Evidence:
        """The same of some of them."""
        place = {client: i for i, client in enumerate(self.clients)}
        at = [half * len(self.clients) + place[client] for half in (0, 1) for client in clients]
        return Evidence(clients=tuple(clients), products=self.products[at][:, at])


@dataclass(frozen=True)
class Found:
    """What a probe found; ``note.kind`` is ``keep``, ``hold`` (probe again) or ``split``."""

    note: Note
    evidence: Evidence


def enough(asked: Sequence[Client], heard: Sequence[Client]) -> bool:
    """Whether half of them answered: fewer do not speak for a group."""
    return 2 * len(set(asked) & set(heard)) >= len(asked)


def evidence_of(own: Replies) -> Evidence | None:
    """The halves of those who sent them; None of fewer than two."""
    seen = own.of(own.halved)
    if seen.halves is None or len(seen.clients) < 2:
        return None
    return Evidence(clients=seen.clients, products=torch.from_numpy(seen.halves))


def looked_at(level: float, leaf: Leaf, own: Replies, before: Evidence | None) -> Found | None:
    """What a group's probe says, alone or with the one ``before`` it; None where too few answered."""
    now = evidence_of(own)
    if now is None:
        return None
    if before is not None and 2 * len(now.clients) < len(before.clients):
        text = f"only {len(now.clients)} clients answered the second probe, and {len(before.clients)} the first; asked again"
        return Found(Note(kind="hold", clients=leaf.clients, text=text), before)
    test = congruence(now.products.numpy())
    told, rule = f"p {test.p:.2g} of {test.clients} clients alike", f"below level {level:g}"
    if before is None:
        p = repeated_p(test.p, test.p, test.clients)
        kind, says, verdict = ("hold", "incongruent", rule) if p < level else ("keep", "congruent", f"not {rule}")
        text = f"{says}: {told}; coming twice it would be {p:.2g}, {verdict}"
        return Found(_note(leaf, kind, text, test, p_twice=p), now)
    p = together(before, now)
    told += f", {p:.2g} with the probe before"
    if not p < level:
        return Found(_note(leaf, "keep", f"congruent: {told}, not {rule}", test, p_together=p), now)
    parts = confirmed(level, before, now)
    if len(parts) < 2:
        text = f"incongruent: {told}, {rule}; but the two probes do not see the same two sides"
        return Found(_note(leaf, "keep", text, test, p_together=p), now)
    text, undecided = f"incongruent: {told}, {rule}", len(now.clients) - sum(map(len, parts))
    if undecided:
        text += f"; {undecided} clients, on which they disagree, walk down"
    return Found(_told(replace(_note(leaf, "split", text, test, p_together=p), parts=parts), before, now), now)


def _note(leaf: Leaf, kind: str, text: str, test: Congruence, **more: float) -> Note:
    numbers = {"node": float(leaf.node), "heard": float(test.clients), "p": test.p, "z": test.z, "spread": test.spread}
    numbers |= {"dimension": test.dimension, **more}
    return Note(kind=kind, clients=leaf.clients, text=text, numbers={k: v for k, v in numbers.items() if np.isfinite(v)})


def _told(note: Note, first: Evidence, second: Evidence) -> Note:
    """A split with what its parts rest on: both probes' mean, as far as that speaks for the group; else the second's."""
    both = tuple(sorted(set(first.clients) & set(second.clients)))
    one = enough(second.clients, both)
    clients = both if one else second.clients
    products = second.of(clients).products.numpy()
    products = (products + first.of(clients).products.numpy()) / 2 if one else products
    values = split_half_notes.distances(clients, products, note.parts)
    return replace(split_half_notes.with_cosines(note, clients, products), values=values)


def together(first: Evidence, second: Evidence) -> float:
    """The p-value of two probes of a group that its clients are congruent; not all need to be in both."""
    one, other = (congruence(evidence.products.numpy()).p for evidence in (first, second))
    return repeated_p(one, other, clients=min(len(first.clients), len(second.clients)))


def confirmed(level: float, first: Evidence, second: Evidence) -> Groups:
    """The groups that two probes confirm: both find the whole incongruent, and the two sides of one cut apart; and so on
    with the sides.

    Clients who are not in both probes, or on different sides, are in none of the groups. Where fewer than half of those of
    the second probe are in the first, the groups are those of the second alone.
    """
    both = sorted(set(first.clients) & set(second.clients))
    if not enough(second.clients, both):
        found = congruent_groups(second.products.numpy(), level).groups
        return as_groups([second.clients[i] for i in group] for group in found)
    waiting = [tuple(both)]
    groups: list[tuple[Client, ...]] = []
    while waiting:
        group = waiting.pop()
        sides = _sides(level, group, first, second)
        if sides:
            waiting += sides
        else:
            groups.append(group)
    return as_groups(groups)


def _sides(level: float, group: tuple[Client, ...], first: Evidence, second: Evidence) -> list[tuple[Client, ...]]:
    """The two sides of a group, or none where it stays whole.

    The cut is that of both probes' mean: where several groups are equally far apart many cuts are as good as each other,
    and each probe alone would take another. Both have to say that the sides differ, and who is on which.
    """
    if len(group) < 2 or not together(first.of(group), second.of(group)) < level:
        return []
    matrices = [evidence.of(group).products.numpy() for evidence in (first, second)]
    left, right = signal_cut(signal_gram(matrices[0]) + signal_gram(matrices[1]))
    one, other = (contrast(matrix, left, right).p for matrix in matrices)
    if not repeated_p(one, other, len(group)) < level:
        return []
    for alone in (False, True):
        nearer = [_nearer(signal_gram(matrix), left, right, alone) for matrix in matrices]
        sides = [
            tuple(group[i] for i in side if all(seen[i] == sign for seen in nearer)) for side, sign in ((left, 1), (right, -1))
        ]
        if all(sides):
            return sides
    return []


def _nearer(signal: np.ndarray, left: Sequence[int], right: Sequence[int], alone: bool) -> np.ndarray:
    """1 for clients whose signal is nearer to the mean of the left side than to that of the right, -1 for the others.

    Their own part in these means is left out, lest chance keep a client where chance has put it; but where clients all
    differ, everybody is then nearer to the other side. alone: left in.
    """
    out = np.zeros(len(signal))
    for i in range(len(signal)):
        away = []
        for side in (left, right):
            rest = [j for j in side if alone or j != i]
            # Of a side that is this client alone nothing is left, and it is at distance zero.
            away.append(signal[np.ix_(rest, rest)].mean() - 2 * signal[i, rest].mean() if rest else -signal[i, i])
        out[i] = 1 if away[0] < away[1] else -1
    return out
