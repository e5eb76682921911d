"""Split-half: federated averaging that splits a group where two halves of every client's data say that it is two.

Coterie's own, after an idea that is old in statistics: what two halves of a client's data agree on is signal, what they
differ in is noise. Every ``probe_every`` rounds a group *probes*: each member trains twice, on two disjoint random halves,
and sends both updates. Their mean serves as the round's update, so a round is not lost. The server takes their Gram matrix
and tests whether the members are congruent (:func:`coterie.clustering.congruence`); the only threshold is ``level``, the
probability of splitting clients who are alike.

- A group whose probe finds it incongruent probes again in the next round. It splits if both together are below ``level``
  (:func:`coterie.clustering.repeated_p`), and goes on splitting as long as its parts are incongruent in both
  (:func:`.split_half_groups.confirmed`). Clients on whose side the two disagree walk down from there like newcomers. A group
  whose probes show nothing waits longer for the next, twice as long each time, up to four times ``probe_every``.
- Newcomers, and members that were silent when their group split, walk down the parameter tree with halves
  (:mod:`.split_half_walk`).
- ``review_every`` rounds after the groups last changed, everybody trains on halves from one model, the median of all, in an
  exchange of its own. Two groups that are one by the evidence merge, and a client that belongs to another group moves. A
  review that changes nothing is followed by one twice as many rounds later.

All halves make the same number of steps, whoever's they are: unequal work makes updates differ.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar, Literal, cast

import torch
from torch import Tensor

from coterie.core import (
    Assignment,
    Client,
    Cohort,
    Federation,
    Note,
    Plan,
    Replies,
    Task,
    Training,
    weights,
)  # fmt: skip
from coterie.methods import cfl_leaves, walking
from coterie.methods.cfl_leaves import Leaf, join, ordered
from coterie.methods.probing import of_equal_steps
from coterie.methods.split_half_groups import Found, enough, looked_at
from coterie.methods.split_half_review import closest, middle, reviewed
from coterie.methods.split_half_state import CALM, SplitHalfState, Watch, forget, members_of, several
from coterie.methods.split_half_walk import probed, step
from coterie.settings import check, setting
from coterie.tree import root


@dataclass(frozen=True, kw_only=True)
class SplitHalf:
    """Splits groups where two halves of every client's data say so: no threshold but the probability of a false alarm."""

    name: ClassVar[str] = "split-half"

    level: float = setting(1e-4, "probability of splitting a group of equal clients, by two probes (α)", gt=0, lt=1)
    probe_every: int = setting(4, "rounds from one probe of a group to the next; up to four times as many in calm", ge=1)
    first_probe: int = setting(2, "the round of the first probe", ge=2)
    review_every: int = setting(
        8, "rounds from a change of the groups to a review of all; more where reviews change nothing; 0 is never", ge=0
    )
    steps: int | None = setting(
        None, "mini-batch steps of each half; none is half of what a client of median size does in a round", ge=1
    )
    fraction: float = setting(1.0, "share of each group's clients asked in a round, at least one", gt=0, le=1)
    weighting: str = setting("data", "weights of means: by training examples, or uniform", choices=("data", "uniform"))

    def __post_init__(self) -> None:
        check(self)

    @property
    def asks(self) -> tuple[Task, ...]:
        """What a later round asks of clients, and the first may not."""
        return (Task(offered=(0,), halves=True),)

    # -- the contract ---------------------------------------------------------------------------------------------------

    def init(self, federation: Federation) -> SplitHalfState:
        leaf = Leaf(node=0, clients=federation.clients, model=federation.draw(0))
        tree = root(federation.clients, federation.parameters.stop)
        watched = {0: Watch(due=self.first_probe)}
        return SplitHalfState(round=0, leaves=(leaf,), tree=tree, watched=watched, training=federation.training)

    def plan(self, state: SplitHalfState, cohort: Cohort) -> Plan:
        columns, weighting = slice(0, state.tree.parameters), cast(Literal["data", "uniform"], self.weighting)
        probe = Task(offered=(0,), halves=True, training=self._probing(state))
        if state.reviewing:
            present = set(cohort.present)
            members = [c for leaf in state.leaves for c in leaf.clients if c in present]
            tasks = dict.fromkeys(sorted(members), probe)
            return Plan(models=middle(state.leaves)[None], tasks=tasks, need="mean", columns=columns, ends_round=False)
        models, tasks = [leaf.model for leaf in state.leaves], {}
        for row, leaf in enumerate(state.leaves):
            if leaf.clients:
                probes = self.probes(state, leaf)  # everybody: of a few, no group can be told from another
                task = replace(probe, offered=(row,)) if probes else Task(offered=(row,))
                tasks.update(dict.fromkeys(cohort.sample(leaf.clients, 1.0 if probes else self.fraction), task))
        more, walks = walking.tasks(state.tree, state.walkers, cohort.present, len(models), halves=True)
        for client, task in walks.items():  # as long as those did who were there when the node was split
            steps = state.probed[state.walkers[client]].steps
            tasks[client] = replace(task, training=replace(state.training, steps=steps))
        return Plan(models=torch.stack([*models, *more]), tasks=tasks, need="rows", columns=columns, weighting=weighting)

    def probes(self, state: SplitHalfState, leaf: Leaf) -> bool:
        """Whether a leaf probes in the round that comes."""
        return len(leaf.clients) > 1 and state.round + 1 >= state.watched[leaf.node].due

    def _probing(self, state: SplitHalfState) -> Training:
        """How every half is trained."""
        usual = state.training
        if self.steps is not None:
            return replace(usual, steps=self.steps)
        # Under noise clients do not tell how many examples they have.
        return of_equal_steps(usual, state.examples.values()) or replace(usual, steps=max(1, usual.epochs))

    def step(self, state: SplitHalfState, replies: Replies) -> SplitHalfState:
        counts = dict(zip(replies.clients, map(int, replies.examples), strict=True))
        steps = self._probing(state).steps or 1  # as was asked, before this round's sizes were known
        state = replace(state, examples={**state.examples, **counts}, notes=())
        if state.reviewing:
            return self._review(state, replies)
        new = replace(state, leaves=(), round=state.round + 1)
        for leaf in state.leaves:
            own = replies.of(leaf.clients)
            if not own.clients or own.updates is None:
                new = replace(new, leaves=(*new.leaves, leaf))
            elif self.probes(state, leaf):
                new = self._look(new, leaf, own, steps)
            else:
                new = replace(new, leaves=(*new.leaves, self._trained(leaf, own)))
        new = self._walk(replace(new, leaves=ordered(new.leaves)), state.walkers, replies)
        return self._ended(new, state)

    # -- in one step ----------------------------------------------------------------------------------------------------

    def _look(self, new: SplitHalfState, leaf: Leaf, own: Replies, steps: int) -> SplitHalfState:
        """The state after a leaf's probe of so many steps: the leaf, or its parts."""
        watch = new.watched[leaf.node]
        found = looked_at(self.level, leaf, own, watch.evidence)
        if found is None or found.note.kind != "split":
            watch = self._watch(watch, found, new.round)
            leaves, watched = (*new.leaves, self._trained(leaf, own)), {**new.watched, leaf.node: watch}
            notes = new.notes if found is None else (*new.notes, found.note)
            return replace(new, leaves=leaves, watched=watched, notes=notes)
        means = {part: self._mean(own.of(part)) for part in found.note.parts}
        tree, children = cfl_leaves.split(new.tree, leaf, means, own, new.round - 1)
        note = cfl_leaves.placed(found.note, leaf, children)
        late = set(leaf.clients) - {c for part in means for c in part}
        return replace(
            new, tree=tree, leaves=(*new.leaves, *children), notes=(*new.notes, note),
            walkers={**new.walkers, **dict.fromkeys(late, leaf.node)},
            watched={**new.watched, **{child.node: Watch(due=self._turn(new.round)) for child in children}},
            probed={**new.probed, leaf.node: probed(steps, found.evidence, found.note.parts)},
        )  # fmt: skip

    def _watch(self, watch: Watch, found: Found | None, round: int) -> Watch:
        """When a leaf that stays whole probes again: in the next round if what was found is to be confirmed, later the more
        often nothing was."""
        if found is None:
            return replace(watch, due=self._turn(round) if watch.evidence is None else round + 1)
        if found.note.kind == "hold":
            return Watch(due=round + 1, evidence=found.evidence)
        calm = watch.calm + 1 if found.note.numbers["p"] > CALM else 0
        return Watch(due=self._turn(round + self.probe_every * (min(2 ** max(calm - 1, 0), 4) - 1)), calm=calm)

    def _turn(self, round: int) -> int:
        """The first round after this one in which it is time for a probe."""
        return round + 1 + (self.first_probe - round - 1) % self.probe_every if round >= self.first_probe else self.first_probe

    def _mean(self, own: Replies) -> Tensor:
        return own.mean(weights(own, self.weighting))

    def _trained(self, leaf: Leaf, own: Replies) -> Leaf:
        return replace(leaf, model=leaf.model + self._mean(own))

    def _walk(self, state: SplitHalfState, before: Mapping[Client, int], replies: Replies) -> SplitHalfState:
        """Those who walked in this exchange go down one level; leaves that split in it are inner nodes already."""
        for client in replies.of(before).clients:
            went = step(state.tree, before[client], client, state.probed[before[client]], replies, self.level)
            at = state.merged.get(went.at, went.at)  # a leaf that was merged leads to the one it became part of
            state = replace(
                state, tree=went.tree.place(client, at), notes=(*state.notes, went.note),
                probed={**state.probed, before[client]: went.probe},
                walkers={c: node for c, node in state.walkers.items() if c != client},
            )  # fmt: skip
            if went.alone:
                own, model = replies.of([client]), state.tree.nodes[before[client]].model
                assert own.updates is not None
                assert model is not None
                leaf = Leaf(node=at, clients=(), model=model + own.updates[0])
                state = replace(state, leaves=(*state.leaves, leaf), watched={**state.watched, at: Watch(due=state.round)})
            if state.tree.is_leaf(at):
                state = replace(state, leaves=ordered(join(state.leaves, {client: at})))
            else:
                state = replace(state, walkers={**state.walkers, client: at})
        return state

    def _ended(self, new: SplitHalfState, before: SplitHalfState) -> SplitHalfState:
        """The round has ended: if groups have changed the next review is some rounds away, and where one is due it comes
        next."""
        if not self.review_every:
            return new
        if {leaf.node for leaf in new.leaves} != {leaf.node for leaf in before.leaves}:
            return replace(new, review=(new.round + self.review_every, self.review_every))
        return replace(new, reviewing=new.round >= new.review[0] and several(new))

    def _review(self, state: SplitHalfState, replies: Replies) -> SplitHalfState:
        examples = state.examples if self.weighting == "data" else {}
        leaves, merged, notes = reviewed(self.level, state.leaves, replies, examples)
        tree = state.tree
        for leaf in leaves:
            for client in leaf.clients:
                tree = tree.place(client, leaf.node)
        gone = {node: merged.get(into, into) for node, into in state.merged.items()} | merged
        new = replace(state, leaves=ordered(leaves), tree=tree, merged=gone, reviewing=False)
        changed = [node for node, members in members_of(new).items() if members != members_of(state).get(node)]
        heard = enough([c for leaf in state.leaves for c in leaf.clients], replies.clients)
        if not changed:
            text = "reviewed: nobody moves, no groups are one" if heard else "reviewed, but too few answered"
            everyone = tuple(sorted(c for leaf in leaves for c in leaf.clients))
            notes = [Note(kind="keep", clients=everyone, text=text, numbers=closest(leaves, replies))]
        wait = 2 * state.review[1] if heard and not changed else self.review_every
        again = {node: Watch(due=self._turn(state.round)) for node in changed}
        review = (state.round + wait, wait)
        return replace(new, watched={**state.watched, **again}, review=review, notes=tuple(notes))

    def assignment(self, state: SplitHalfState) -> Assignment:
        return cfl_leaves.served(state)

    def admit(self, state: SplitHalfState, clients: tuple[Client, ...]) -> SplitHalfState:
        return cfl_leaves.admitted(state, clients)

    def retire(self, state: SplitHalfState, clients: tuple[Client, ...]) -> SplitHalfState:
        left, gone = cfl_leaves.retired(state, clients), set(clients)
        watched = {node: forget(watch, gone) for node, watch in left.watched.items()}
        examples = {client: n for client, n in left.examples.items() if client not in gone}
        return replace(left, watched=watched, examples=examples, reviewing=left.reviewing and several(left))

    def explain(self, state: SplitHalfState) -> tuple[Note, ...]:
        return state.notes
