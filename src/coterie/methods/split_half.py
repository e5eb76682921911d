"""Split-half: federated averaging that splits a group where two halves of every client's data say that it is two.

Coterie's own, after an old idea in statistics: two halves of a client's data agree in the signal
and differ in the noise. Every ``probe_every`` rounds a group *probes*: each member trains twice, on
two disjoint random halves of its data, and sends both updates. Their mean is the member's update
for the round, so no round is lost. From the Gram matrix of the updates, the server tests whether
the members are congruent, that is, have the same signal (:func:`coterie.clustering.congruence`).
The only threshold is ``level``, the probability of splitting clients that are alike.

- If few clients answer in a round, the probe lasts several rounds (:class:`Gathered`): each client
  trains from the same model when it first answers, until :data:`MOST` of the group, or :data:`MANY`
  clients, have answered. In the group's mean, such a client counts with the model that it came to,
  and clients that have answered train as usual.
- A group that a probe finds incongruent probes again in the next round. It splits if the two probes
  together are below ``level`` (:func:`coterie.clustering.repeated_p`), and its parts split further
  as long as they are incongruent in both (:func:`confirmed`). Clients that the two probes put on
  different sides walk down the parameter tree from there like newcomers. If probes show no
  difference, the time to the next probe doubles, up to four times ``probe_every``.
- Newcomers, and members that were silent when their group split, walk down the parameter tree by
  updates of halves (:func:`step`).
- ``review_every`` rounds after the last change of the groups there is a *review*: in a separate
  exchange, all clients train on halves from one model, the median of the groups' models. Two groups
  that do not differ by the evidence merge, and a client that belongs to another group moves. After
  a review that changes nothing, the time to the next review doubles. A model that has diverged does
  not count in a merger (:data:`DIVERGED`).
- With ``alert``, data may change. Each round begins with an exchange in which clients report their
  training loss. If one rises, the client may no longer fit its group. It then measures the models
  of all groups, those of up to :data:`KEPT` groups that all clients have left, and if its loss
  doubled the first draw, which is better than a model of opposite labels. If one of them undoes
  more than half of the rise, the client takes it, before the round's training. Otherwise its group
  probes in this round. A review follows.

- The probes of a round ask :data:`PROBED` clients at most, a random sample of each group. If a
  group splits, its other clients walk down the tree, as many of them in a round. A review asks as
  many clients in all.

All halves of all clients make the same number of steps, because unequal work makes updates differ.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar, NamedTuple

import numpy as np
import torch

from coterie.clustering import (
    congruence,
    congruent_groups,
    contrast,
    gram,
    member_contrasts,
    repeated_p,
    signal_cosine,
    signal_cut,
    signal_gram,
)
from coterie.clustering.congruence import (
    Congruence,
    Contrast,
    Excess,
    Noise,
    excess_of_sums,
    noise_of,
)
from coterie.clustering.halves import halves
from coterie.core import (
    P_VALUE,
    Assignment,
    Averaging,
    Client,
    Cohort,
    Criterion,
    Federation,
    Groups,
    HalvedUpdates,
    Note,
    Plan,
    Replies,
    Task,
    Training,
    as_groups,
    rows_without,
    state,
    tested,
    weights,
)
from coterie.methods import _cluster_tree
from coterie.methods._cluster_tree import Leaf, Tree, join, ordered, root
from coterie.methods._half_steps import Probing, of_equal_steps
from coterie.settings import check, setting

LONGER = 4.0
"""Steps on a half, in those of a client of median size in a round. What a client's distribution
says adds up over the steps, and the noise of single batches averages out: with 40 examples a
client, the groups of digits are found that half a round does not show."""

MOST, MANY = 0.8, 30
"""A probe goes on until this share of a group, or this number of its clients, has answered."""

PROBED = 1_000
"""Most clients that the probes of a round ask, that a review asks, and that walk down the tree in a
round: the Gram matrix of their halves has ``(2n)²`` entries. A probe may ask :data:`MANY` in any
case."""

LONGEST = 12
"""Rounds after which a probe ends, whoever has answered."""

CALM = 0.1
"""A probe with p above this shows no difference."""

RISE = 10.0
"""A loss rises if it grows by more than this multiple of the usual change: the median over clients
in the round before, or half of the usual change then, if that is more. A wrong rise costs a probe
and a review, and splits no group."""

KEPT = 8
"""Most groups without clients whose models are kept, with ``alert``: a concept may come back. The
one left first goes first."""


@state("split-half.gathered")
class Gathered:
    """Replies to a probe that lasts several rounds, because few clients answer in one. All train from the same model.

    Attributes:
        round: number of rounds completed when the probe began.
        steps: mini-batch steps on each half.
        model: ``(d,)``, the model from which clients train.
        heard: clients that have answered.
        clients: the m of them that have sent updates of halves.
        updates: ``(m, d)``, the means of both updates of each client.
        second_halves: ``(m, d)``, the updates of the second halves.
    """

    round: int
    steps: int
    model: torch.Tensor
    heard: tuple[Client, ...] = ()
    clients: tuple[Client, ...] = ()
    updates: torch.Tensor
    second_halves: torch.Tensor

    @classmethod
    def begun(cls, round: int, steps: int, model: torch.Tensor) -> Gathered:
        """Return a probe to which nobody has answered."""
        none = model.new_zeros(0, len(model))
        return cls(round=round, steps=steps, model=model, updates=none, second_halves=none)

    def ends(self, members: Sequence[Client], round: int) -> bool:
        """Return whether the probe of a group ends after a round: most or many have answered, or it has lasted long."""
        return len(self.heard) >= min(MOST * len(members), MANY) or round - self.round >= LONGEST

    def late(self, own: Replies) -> tuple[Client, ...]:
        """Return the clients of ``own`` that have not answered before; they have trained from the probe's model."""
        return tuple(sorted(set(own.clients) - set(self.heard)))

    def take(self, own: Replies) -> Gathered:
        """Add the replies of clients that have not answered before."""
        new = own.of(self.late(own))
        taken = replace(self, heard=(*self.heard, *new.clients))
        if new.halves is None or new.halves.second is None:
            return taken
        halved = new.of(new.halves.clients)
        return replace(
            taken,
            clients=(*self.clients, *halved.clients),
            updates=torch.cat([self.updates, halved.all_updates]),
            second_halves=torch.cat([self.second_halves, new.halves.second]),
        )

    def without(self, gone: set[Client]) -> Gathered:
        """Remove the replies of these clients."""
        clients, updates = rows_without(self.clients, self.updates, gone)
        _, seconds = rows_without(self.clients, self.second_halves, gone)
        heard = tuple(client for client in self.heard if client not in gone)
        return replace(self, heard=heard, clients=clients, updates=updates, second_halves=seconds)

    def replies(
        self, parameters: int | None, examples: Mapping[Client, int], averaging: Averaging
    ) -> Replies:
        """Return the replies as if they were those of one exchange.

        Args:
            parameters: number of columns of the Gram matrix.
            examples: client -> its number of training examples.
            averaging: the rule by which the run averages updates.
        """
        at = sorted(range(len(self.clients)), key=lambda i: self.clients[i])
        clients = tuple(self.clients[i] for i in at)
        updates, seconds = self.updates[at], self.second_halves[at]
        both = torch.cat([2 * updates - seconds, seconds])
        return Replies(
            clients=clients,
            examples=np.array([examples.get(self.clients[i], 1) for i in at], dtype=np.int64),
            updates=updates,
            halves=HalvedUpdates(clients=clients, gram=gram(both, columns=slice(0, parameters)))
            if at
            else None,
            averaging=averaging,
        )


@state("split-half.watch")
class Watch:
    """Schedule of a leaf's probes.

    Attributes:
        due: round of the next probe.
        calm: number of probes in a row that showed no difference.
        evidence: result of the last probe, if the next one is to confirm it.
        gathered: replies to the current probe, if it lasts several rounds.
    """

    due: int
    calm: int = 0
    evidence: Evidence | None = None
    gathered: Gathered | None = None


def forget(watch: Watch, gone: set[Client]) -> Watch:
    """Return the schedule without the evidence of these clients."""
    if watch.gathered is not None:
        watch = replace(watch, gathered=watch.gathered.without(gone))
    if watch.evidence is None or not gone & set(watch.evidence.clients):
        return watch
    stay = [client for client in watch.evidence.clients if client not in gone]
    return replace(watch, evidence=watch.evidence.of(stay) if len(stay) > 1 else None)


@state("split-half")
class SplitHalfState:
    """State of split-half.

    Attributes:
        round: number of rounds completed.
        leaves: the groups, as in :class:`~coterie.methods._cluster_tree.CFLState`.
        tree: the parameter tree.
        walkers: client -> the inner node where it is.
        watched: leaf's node -> schedule of its probes.
        probed: inner node -> the probe that split it.
        examples: client -> its number of training examples.
        answered: share of the clients that answered in the last round, of those that were asked.
        merged: node of a merged leaf -> node of the leaf that it became part of.
        review: the round after which the next review comes, and the current interval between
            reviews, in rounds.
        reviewing: whether the next exchange is a review.
        losses: client -> its training loss when it was last asked for it.
        usual: the usual change of losses: the median over clients in the last round, or half of the
            value before if greater.
        watching: whether the next exchange asks for losses, unless there is a review.
        rose: client whose loss rose -> the middle between its losses before and after; a model is
            better if its loss is less.
        first: ``(d,)``, the first draw, with ``alert``.
        left: nodes of groups that all clients have left, the one left first in front. They are in
            ``merged`` too.
        training: the experiment's training settings.
        notes: notes of the last exchange.
    """

    round: int
    leaves: tuple[Leaf, ...]
    tree: Tree
    walkers: Mapping[Client, int] = field(default_factory=dict)
    watched: Mapping[int, Watch] = field(default_factory=dict)
    probed: Mapping[int, Probed] = field(default_factory=dict)
    examples: Mapping[Client, int] = field(default_factory=dict)
    answered: float = 1.0
    merged: Mapping[int, int] = field(default_factory=dict)
    review: tuple[int, int] = (0, 0)
    reviewing: bool = False
    losses: Mapping[Client, float] = field(default_factory=dict)
    usual: float = 0.0
    watching: bool = False
    rose: Mapping[Client, float] = field(default_factory=dict)
    first: torch.Tensor | None = None
    left: tuple[int, ...] = ()
    training: Training = field(default_factory=Training)
    notes: tuple[Note, ...] = ()


def several(state: SplitHalfState) -> bool:
    """Return whether there are at least two groups with clients."""
    return sum(bool(leaf.clients) for leaf in state.leaves) > 1


def members_of(state: SplitHalfState) -> dict[int, tuple[Client, ...]]:
    """Return the leaf's node -> its clients, for leaves that have any."""
    return {leaf.node: leaf.clients for leaf in state.leaves if leaf.clients}


@dataclass(frozen=True, kw_only=True)
class SplitHalf(Probing):
    """Splits groups where two halves of every client's data say so: no threshold but the probability of a false alarm."""

    name: ClassVar[str] = "split-half"

    alert: bool = setting(
        False,
        "data may change: clients whose loss rises take a better model, or their group probes, at once",
    )

    def __post_init__(self) -> None:
        check(self)

    # -- the contract
    # ---------------------------------------------------------------------------------------------------

    def init(self, federation: Federation) -> SplitHalfState:
        leaf = Leaf(node=0, clients=federation.clients, model=federation.draw(0))
        tree = root(federation.clients, federation.parameters.stop)
        state = SplitHalfState(
            round=0,
            leaves=(leaf,),
            tree=tree,
            watched={0: Watch(due=self.first_probe)},
            training=federation.training,
        )
        return replace(state, watching=True, first=leaf.model) if self.alert else state

    def plan(self, state: SplitHalfState, cohort: Cohort) -> Plan:
        columns = slice(0, state.tree.parameters)
        if state.reviewing:
            asked = reviewers(state.leaves)
            members = [
                c
                for leaf in state.leaves
                if leaf.clients
                for c in sample(cohort, leaf.clients, asked[leaf.node])
            ]
            tasks = dict.fromkeys(
                sorted(members), Task(offered=(0,), halves=True, training=self._probing(state))
            )
            return Plan(
                models=middle(state.leaves)[None],
                tasks=tasks,
                need="mean",
                columns=columns,
                ends_round=False,
            )
        if state.watching or state.rose:
            return self._measuring(state, cohort)
        models, tasks = [leaf.model for leaf in state.leaves], dict[Client, Task]()
        most = PROBED // max(1, sum(self.probes(state, leaf) for leaf in state.leaves))
        for row, leaf in enumerate(state.leaves):
            if leaf.clients:
                tasks.update(self._asked(state, leaf, row, len(models), cohort, max(most, MANY)))
                begun = state.watched[leaf.node].gathered
                models += [] if begun is None else [begun.model]
        walking = sample(cohort, sorted(state.walkers), PROBED)
        more, walks = _cluster_tree.tasks(
            state.tree, state.walkers, walking, len(models), halves=True
        )
        for (
            client,
            task,
        ) in walks.items():  # as many steps as the node's clients made when it was split
            steps = state.probed[state.walkers[client]].steps
            tasks[client] = replace(task, training=replace(state.training, steps=steps))
        lasts = any(self._lasts(state, leaf) for leaf in state.leaves if leaf.clients)
        return Plan(
            models=torch.stack([*models, *more]),
            tasks=tasks,
            need="rows" if lasts or any(task.halves for task in tasks.values()) else "mean",
            columns=columns,
            weighting=self.weighting,
            second_halves=lasts,
        )

    def _asked(
        self, state: SplitHalfState, leaf: Leaf, row: int, earlier: int, cohort: Cohort, most: int
    ) -> dict[Client, Task]:
        """The tasks of a leaf's clients; its model is in ``row``, that of a probe which has begun before in ``earlier``.

        A probe that begins asks ``most`` of them.
        """
        begun, before = state.watched[leaf.node].gathered, state.watched[leaf.node].evidence
        task, tasks = Task(offered=(row,)), dict[Client, Task]()
        probes = begun is None and self.probes(state, leaf)
        if not probes or len(leaf.clients) > most:
            tasks.update(dict.fromkeys(cohort.sample(leaf.clients, self.fraction), task))
        if probes:  # asks all members, or many: too few would not separate groups
            task = Task(offered=(row,), halves=True, training=self._probing(state))
            tasks.update(
                dict.fromkeys(
                    sample(cohort, leaf.clients, most, before.clients if before else ()), task
                )
            )
        if begun is not None:
            same = replace(state.training, steps=begun.steps)
            task = Task(offered=(earlier,), halves=True, training=same, lr_round=begun.round)
            late = (set(cohort.present) & set(leaf.clients)) - set(begun.heard)
            tasks.update(dict.fromkeys(sorted(late), task))
        return tasks

    def probes(self, state: SplitHalfState, leaf: Leaf) -> bool:
        """Return whether a leaf probes in the next round."""
        return len(leaf.clients) > 1 and state.round + 1 >= state.watched[leaf.node].due

    def _lasts(self, state: SplitHalfState, leaf: Leaf) -> bool:
        """Return whether a leaf's probe lasts several rounds: too few would answer in the next one alone."""
        if not self.probes(state, leaf):
            return False
        n = len(leaf.clients)
        return state.watched[leaf.node].gathered is not None or state.answered * n < min(
            MOST * n, MANY
        )

    def _probing(self, state: SplitHalfState) -> Training:
        """The training settings of every half."""
        usual = state.training
        if self.steps is not None:
            return replace(usual, steps=self.steps)
        # With noise added for privacy, clients do not report their number of examples.
        return of_equal_steps(usual, state.examples.values(), LONGER) or replace(
            usual, steps=max(1, usual.epochs)
        )

    def step(self, state: SplitHalfState, replies: Replies) -> SplitHalfState:
        counts = dict(zip(replies.clients, map(int, replies.examples), strict=True))
        steps = self._probing(state).steps or 1  # as planned, before this round's sizes were known
        state = replace(state, examples={**state.examples, **counts}, notes=())
        if state.reviewing:
            return self._review(state, replies)
        if state.watching:
            return self._alerted(state, replies)
        if state.rose:
            return self._taken(state, replies)
        new = replace(state, leaves=(), round=state.round + 1)
        for row, leaf in enumerate(state.leaves):
            own = replies.of(leaf.clients)
            if not own.clients:
                new = replace(new, leaves=(*new.leaves, leaf))
            elif replies.updates is None:  # nobody probes or walks
                new = replace(
                    new,
                    leaves=(
                        *new.leaves,
                        replace(leaf, model=leaf.model + replies.mean_updates[row]),
                    ),
                )
            elif self._lasts(state, leaf):
                new = self._gather(new, leaf, own, steps)
            elif self.probes(state, leaf):
                new = self._look(new, leaf, own, own, leaf.model, steps, state.round)
            else:
                new = replace(new, leaves=(*new.leaves, self._trained(leaf, own)))
        asked = self.fraction * (
            sum(len(leaf.clients) for leaf in state.leaves) + len(state.walkers)
        )
        new = replace(new, answered=min(1.0, len(replies.clients) / max(1.0, asked)))
        new = self._walk(replace(new, leaves=ordered(new.leaves)), state.walkers, replies)
        return self._ended(replace(new, watching=self.alert), state)

    # -- in one step
    # ----------------------------------------------------------------------------------------------------

    def _gather(self, new: SplitHalfState, leaf: Leaf, own: Replies, steps: int) -> SplitHalfState:
        """The state after a round of a leaf's probe that lasts several; ``steps`` per half, if it begins."""
        watch = new.watched[leaf.node]
        begun = watch.gathered or Gathered.begun(new.round - 1, steps, leaf.model)
        gathered, late = begun.take(own), set(begun.late(own))
        moved = torch.tensor([[client in late] for client in own.clients]) * (
            begun.model - leaf.model
        )
        own = replace(
            own, updates=own.all_updates + moved
        )  # so the mean is that of the models that clients came to
        if not gathered.ends(leaf.clients, new.round):
            watch = replace(watch, gathered=gathered, due=new.round + 1)
            return replace(
                new,
                leaves=(*new.leaves, self._trained(leaf, own)),
                watched={**new.watched, leaf.node: watch},
            )
        new = replace(new, watched={**new.watched, leaf.node: replace(watch, gathered=None)})
        members = gathered.without(set(gathered.heard) - set(leaf.clients))
        seen = members.replies(new.tree.parameters, new.examples, own.averaging)
        return self._look(new, leaf, own, seen, begun.model, begun.steps, begun.round)

    def _look(
        self,
        new: SplitHalfState,
        leaf: Leaf,
        own: Replies,
        seen: Replies,
        model: torch.Tensor,
        steps: int,
        begun: int,
    ) -> SplitHalfState:
        """The state after a leaf's probe, with the leaf or its parts.

        Args:
            new: the state to change.
            leaf: the leaf.
            own: the replies of its clients in this round.
            seen: their replies to the probe.
            model: the model from which they trained in the probe.
            steps: steps on each half.
            begun: number of rounds completed when the probe began.
        """
        watch, trained = new.watched[leaf.node], self._trained(leaf, own)
        found = looked_at(self.level, leaf, seen, watch.evidence)
        if found is None or found.note.kind != "split":
            watch = self._watch(watch, found, new.round)
            leaves, watched = (*new.leaves, trained), {**new.watched, leaf.node: watch}
            notes = new.notes if found is None else (*new.notes, found.note)
            return replace(new, leaves=leaves, watched=watched, notes=notes)
        means = {part: self._mean(seen.of(part)) for part in found.note.parts}
        if (
            seen is not own
        ):  # parts differ from the group's model as their means do from that of all
            since = trained.model - model - self._mean(seen)
            means = {part: mean + since for part, mean in means.items()}
        tree, children = _cluster_tree.split(
            new.tree, replace(leaf, model=model), means, seen, begun
        )
        note = _cluster_tree.placed(found.note, leaf, children)
        late = set(leaf.clients) - {c for part in means for c in part}
        return replace(
            new,
            tree=tree,
            leaves=(*new.leaves, *children),
            notes=(*new.notes, note),
            walkers={**new.walkers, **dict.fromkeys(late, leaf.node)},
            watched={
                **new.watched,
                **{child.node: Watch(due=self._turn(new.round)) for child in children},
            },
            probed={**new.probed, leaf.node: probed(steps, found.evidence, found.note.parts)},
        )

    def _watch(self, watch: Watch, found: Found | None, round: int) -> Watch:
        """Schedule the next probe of a leaf that stays whole.

        It is in the next round if a finding is to be confirmed; else later, the more probes showed
        no difference.
        """
        if found is None:
            return replace(watch, due=self._turn(round) if watch.evidence is None else round + 1)
        if found.note.kind == "hold":
            return Watch(due=round + 1, evidence=found.evidence)
        calm = watch.calm + 1 if found.note.numbers["p"] > CALM else 0
        return Watch(due=self._later(round, calm), calm=calm)

    def _mean(self, own: Replies) -> torch.Tensor:
        return own.mean(weights(own, self.weighting))

    def _trained(self, leaf: Leaf, own: Replies) -> Leaf:
        return replace(leaf, model=leaf.model + self._mean(own))

    def _walk(
        self, state: SplitHalfState, before: Mapping[Client, int], replies: Replies
    ) -> SplitHalfState:
        """Move the walkers of this exchange down one level; leaves that split in it are inner nodes now."""
        went = walk(state.tree, before, state.probed, replies.of(before), self.level)
        goes = {
            client: state.merged.get(to, to) for client, to in went.goes.items()
        }  # a merged leaf is part of another one
        still = {
            client: node
            for client, node in {**state.walkers, **goes}.items()
            if not went.tree.is_leaf(node)
        }
        arrived = {client: node for client, node in goes.items() if client not in still}
        new = [Leaf(node=node, clients=(), model=model) for node, model in went.models.items()]
        return replace(
            state,
            tree=went.tree.place(goes),
            leaves=ordered(join([*state.leaves, *new], arrived)),
            walkers=still,
            watched={**state.watched, **{node: Watch(due=state.round) for node in went.models}},
            probed=went.probed,
            notes=(*state.notes, *went.notes),
        )

    def _measuring(self, state: SplitHalfState, cohort: Cohort) -> Plan:
        """Ask clients for the loss of their group's model, or those whose loss rose for the losses of all models.

        The first draw is for those whose loss more than doubled: a model that serves a client badly
        may be little better.
        """
        leaves, asked = tried(state), dict[Client, tuple[int, ...]]()
        if state.watching:
            asked = {
                c: (row,)
                for row, leaf in enumerate(leaves)
                for c in cohort.sample(leaf.clients, self.fraction)
            }
        else:
            groups, all_ = tuple(range(len(state.leaves))), tuple(range(len(leaves)))
            doubled = {
                c
                for c, middle in state.rose.items()
                if state.losses[c] > 2 * (2 * middle - state.losses[c])
            }
            asked = {
                c: all_ if c in doubled else groups
                for c in sorted(set(state.rose) & set(cohort.present))
            }
        tasks = {
            client: Task(offered=rows, epochs=0, measure="train") for client, rows in asked.items()
        }
        return Plan(
            models=torch.stack([leaf.model for leaf in leaves]),
            tasks=tasks,
            need="mean",
            ends_round=False,
        )

    def _alerted(self, state: SplitHalfState, replies: Replies) -> SplitHalfState:
        """The state in which the clients whose loss rose measure other models next, and a review is due."""
        measured = {
            c: row[0]
            for c, row in zip(replies.clients, replies.losses, strict=True)
            if np.isfinite(row[0])
        }
        changes = {c: loss - state.losses[c] for c, loss in measured.items() if c in state.losses}
        rose = {
            c: measured[c] - change / 2
            for c, change in changes.items()
            if state.usual and change > RISE * state.usual
        }
        now = float(np.median(np.abs(list(changes.values())))) if changes else 0.0
        usual = max(
            now, state.usual / 2
        )  # a probe trains longer, so losses change more after it for some rounds
        new = replace(
            state, losses={**state.losses, **measured}, usual=usual, watching=False, rose=rose
        )
        if not rose:
            return new
        text = f"the losses of {len(rose)} clients rose by more than {RISE:g} times the usual change, {state.usual:.3g}"
        numbers = {"rise": max(changes[c] for c in rose), "usual": state.usual}
        note = Note(
            kind="alert", effect="info", clients=tuple(sorted(rose)), text=text, numbers=numbers
        )
        return replace(new, review=(state.round, self.review_every), notes=(note,))

    def _taken(self, state: SplitHalfState, replies: Replies) -> SplitHalfState:
        """The state in which clients whose loss rose have the best model, if it is better; the groups of the others probe."""
        leaves, tree, found = tried(state), state.tree, dict[Client, tuple[int, float]]()
        for client, row in zip(replies.clients, replies.losses, strict=True):
            losses = np.nan_to_num(row, nan=np.inf)
            if client in state.rose and losses.min() < state.rose[client]:
                found[client] = (leaves[int(losses.argmin())].node, float(losses.min()))
        goes = {client: node for client, (node, _) in found.items()}
        if len(tree.nodes) in goes.values():
            tree = tree.plant()
        before = {c: leaf.node for leaf in leaves for c in leaf.clients}
        place = before | goes
        moved = [
            replace(leaf, clients=_at(place, leaf.node))
            for leaf in leaves
            if leaf.node < len(tree.nodes)
        ]
        notes = tuple(_taken_note(state, c, before[c], *found[c]) for c in found)
        new = replace(state, leaves=ordered(moved), tree=tree.place(goes), rose={}, notes=notes)
        changed = [
            node
            for node, members in members_of(new).items()
            if members != members_of(state).get(node)
        ]
        watched = {
            **state.watched,
            **{node: Watch(due=self._turn(state.round)) for node in changed},
        }
        doubted = {place[c] for c in state.rose if c in place and c not in goes}
        idle = [
            node
            for node in doubted
            if watched[node].evidence is None and watched[node].gathered is None
        ]
        watched |= {node: Watch(due=state.round + 1) for node in idle}
        measured = {client: loss for client, (_, loss) in found.items()}
        return with_left(replace(new, watched=watched, losses={**state.losses, **measured}), state)

    def _ended(self, new: SplitHalfState, before: SplitHalfState) -> SplitHalfState:
        """End a round: after a change of the groups postpone the next review; if a review is due, make it next."""
        if not self.review_every:
            return new
        if {leaf.node for leaf in new.leaves} != {leaf.node for leaf in before.leaves}:
            return replace(new, review=(new.round + self.review_every, self.review_every))
        return replace(new, reviewing=new.round >= new.review[0] and several(new))

    def _review(self, state: SplitHalfState, replies: Replies) -> SplitHalfState:
        examples = state.examples if self.weighting == "data" else {}
        leaves, merged, notes = reviewed(self.level, state.leaves, replies, examples)
        tree = state.tree.place({client: leaf.node for leaf in leaves for client in leaf.clients})
        gone = {node: merged.get(into, into) for node, into in state.merged.items()} | merged
        new = replace(state, leaves=ordered(leaves), tree=tree, merged=gone, reviewing=False)
        changed = [
            node
            for node, members in members_of(new).items()
            if members != members_of(state).get(node)
        ]
        heard = 2 * len(replies.clients) >= sum(reviewers(state.leaves).values())
        if not changed:
            notes = [unchanged(leaves, replies, heard)]
        wait = 2 * state.review[1] if heard and not changed else self.review_every
        again = {node: Watch(due=self._turn(state.round)) for node in changed}
        review = (state.round + wait, wait)
        new = replace(new, watched={**state.watched, **again}, review=review, notes=tuple(notes))
        return with_left(new, state) if self.alert else new

    def assignment(self, state: SplitHalfState) -> Assignment:
        return _cluster_tree.served(state)

    def admit(self, state: SplitHalfState, clients: tuple[Client, ...]) -> SplitHalfState:
        return _cluster_tree.admitted(state, clients, state.merged.get(0, 0))

    def retire(self, state: SplitHalfState, clients: tuple[Client, ...]) -> SplitHalfState:
        left, gone = _cluster_tree.retired(state, clients), set(clients)
        watched = {node: forget(watch, gone) for node, watch in left.watched.items()}
        examples = {client: n for client, n in left.examples.items() if client not in gone}
        losses = {client: loss for client, loss in left.losses.items() if client not in gone}
        rose = {client: loss for client, loss in left.rose.items() if client not in gone}
        reviewing = left.reviewing and several(left)
        return replace(
            left, watched=watched, examples=examples, losses=losses, rose=rose, reviewing=reviewing
        )

    def explain(self, state: SplitHalfState) -> tuple[Note, ...]:
        return state.notes


# ----------------------------------------------------------------------------------------------------
# Probes: whether a group splits, and the reasons.


@state("split-half.evidence")
class Evidence:
    """Result of one probe of a group.

    Attributes:
        clients: the n clients that answered.
        products: ``(2n, 2n)``, the Gram matrix of their halves.
    """

    clients: tuple[Client, ...]
    products: torch.Tensor

    def of(self, clients: Sequence[Client]) -> Evidence:
        """Return the evidence of some of the clients."""
        place = {client: i for i, client in enumerate(self.clients)}
        at = [half * len(self.clients) + place[client] for half in (0, 1) for client in clients]
        return Evidence(clients=tuple(clients), products=self.products[at][:, at])


@dataclass(frozen=True)
class Found:
    """Conclusion from a probe.

    Attributes:
        note: the decision and its reasons; its kind is ``keep``, ``hold`` (probe again) or
            ``split``.
        evidence: the result of the probe.
    """

    note: Note
    evidence: Evidence


def sample(
    cohort: Cohort, clients: Sequence[Client], most: int, first: Sequence[Client] = ()
) -> tuple[Client, ...]:
    """Return the clients of a group that are asked for halves.

    Args:
        cohort: the clients that are present.
        clients: the group.
        most: how many are drawn at random from a larger group. Of a smaller one, all that are
            present are asked.
        first: if some of these are present, they are asked in place of a sample.
    """
    if len(clients) <= most:
        return cohort.sample(clients, 1.0)
    return tuple(sorted(set(first) & set(cohort.present))) or cohort.sample(
        clients, most / len(clients)
    )


def enough(asked: Sequence[Client], heard: Sequence[Client]) -> bool:
    """Return whether at least half of the clients asked answered; fewer do not represent a group."""
    return 2 * len(set(asked) & set(heard)) >= len(asked)


def evidence_of(own: Replies) -> Evidence | None:
    """Return the evidence of the clients that sent halves; None if there are fewer than two."""
    if own.halves is None or len(own.halves.clients) < 2:
        return None
    return Evidence(clients=own.halves.clients, products=torch.from_numpy(own.halves.gram))


def looked_at(level: float, leaf: Leaf, own: Replies, before: Evidence | None) -> Found | None:
    """Evaluate a group's probe.

    Args:
        level: probability of splitting clients that are alike.
        leaf: the group.
        own: its replies.
        before: evidence of the probe before, if this one is to confirm it.

    Returns:
        The conclusion; None if too few members answered.
    """
    now = evidence_of(own)
    if now is None:
        return None
    if before is not None and 2 * len(now.clients) < len(before.clients):
        text = f"only {len(now.clients)} clients answered the second probe, and {len(before.clients)} the first; asked again"
        return Found(Note(kind="hold", effect="keeps", clients=leaf.clients, text=text), before)
    test = congruence(now.products.numpy())
    if before is None:
        one = differ(
            "p if seen twice", repeated_p(test.p, test.p, test.clients), level, test.clients
        )
        again = "in the next round, for confirmation"
        if one.held:
            otherwise = f"it would not have been probed again {again}"
            return Found(
                group_note(leaf, "hold", f"{one.text}; probed again {again}", test, one, otherwise),
                now,
            )
        return Found(
            group_note(
                leaf, "keep", one.text, test, one, f"it would have been probed again {again}"
            ),
            now,
        )
    both = differ("p of two probes", together(before, now), level, test.clients)
    if not both.held:
        otherwise = "it would have split in this round, if both probes had found the same two sides"
        return Found(group_note(leaf, "keep", both.text, test, both, otherwise), now)
    parts = confirmed(level, before, now)
    if len(parts) < 2:
        return Found(
            group_note(
                leaf, "keep", f"{both.text}; but the probes find different sides", test, both
            ),
            now,
        )
    text, undecided = both.text, len(now.clients) - sum(map(len, parts))
    if undecided:
        text += f"; {undecided} clients, on which the probes disagree, walk down the tree"
    note = group_note(leaf, "split", text, test, both, "it would not have split in this round")
    return Found(_with_evidence(replace(note, parts=parts), before, now), now)


def differ(name: str, p: float, level: float, count: int) -> Criterion:
    """The criterion of a split: a p-value, of all clients being alike, below the level."""
    return Criterion(
        name,
        p,
        "<",
        level,
        "level",
        met=f"{count} clients differ beyond chance",
        unmet=f"{count} clients differ no more than by chance",
        key=P_VALUE,
    )


def group_note(
    leaf: Leaf, kind: str, text: str, test: Congruence, criterion: Criterion, otherwise: str = ""
) -> Note:
    """Describe the conclusion from a group's probe, with the numbers of its test."""
    numbers = {
        "p": test.p,
        "z": test.z,
        "spread": test.spread,
    }
    numbers["dimension"] = test.dimension
    return Note(
        kind=kind,
        effect="divides" if kind == "split" else "keeps",
        clients=leaf.clients,
        text=text,
        criteria=(criterion,),
        otherwise=otherwise,
        numbers={k: v for k, v in numbers.items() if np.isfinite(v)},
        labels={"node": leaf.node, "heard": test.clients},
    )


def _with_evidence(note: Note, first: Evidence, second: Evidence) -> Note:
    """Add cosines and distances to a split's note: of both probes' mean if it represents the group; else of the second."""
    both = tuple(sorted(set(first.clients) & set(second.clients)))
    one = enough(second.clients, both)
    clients = both if one else second.clients
    products = second.of(clients).products.numpy()
    products = (products + first.of(clients).products.numpy()) / 2 if one else products
    values = distances(clients, products, note.parts)
    return replace(with_cosines(note, clients, products), values=values)


def together(first: Evidence, second: Evidence) -> float:
    """Return the p-value of two probes of a group for its clients being congruent; not all need to be in both."""
    one, other = (congruence(evidence.products.numpy()).p for evidence in (first, second))
    return repeated_p(one, other, clients=min(len(first.clients), len(second.clients)))


def confirmed(level: float, first: Evidence, second: Evidence) -> Groups:
    """Return the groups that two probes confirm.

    A group splits if both probes find it incongruent, and both find that the two sides of one cut
    differ. Then the sides are tested in the same way. Clients that are not in both probes, or that
    the probes put on different sides, are in no group. If fewer than half of the clients of the
    second probe are in the first, the groups are those of the second alone.

    Args:
        level: probability of splitting clients that are alike.
        first: evidence of the first probe.
        second: evidence of the second probe.
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


def _sides(
    level: float, group: tuple[Client, ...], first: Evidence, second: Evidence
) -> list[tuple[Client, ...]]:
    """The two sides of a group, or none if it stays whole.

    The cut is that of both probes' mean: if several groups are equally far apart, many cuts are
    equally good, and each probe alone would choose a different one. Both probes must find that the
    sides differ, and agree on the side of each client.
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
            tuple(group[i] for i in side if all(seen[i] == sign for seen in nearer))
            for side, sign in ((left, 1), (right, -1))
        ]
        if all(sides):
            return sides
    return []


def _nearer(
    signal: np.ndarray, left: Sequence[int], right: Sequence[int], alone: bool
) -> np.ndarray:
    """1 for clients whose signal is nearer to the mean of the left side than to that of the right, -1 for the others.

    A client's own share in these means is left out, so that its noise does not keep it on its side.
    But where all clients differ from each other, every client is then nearer to the other side.
    With ``alone`` the client's share is included.
    """
    away = np.nan_to_num(
        _from_means(signal, (left, right), alone)
    )  # a side with only this client: distance zero
    return np.where(away[0] < away[1], 1, -1)


def _from_means(signal: np.ndarray, sides: Iterable[Sequence[int]], own: bool) -> np.ndarray:
    """Squared distances ``(sides, n)`` of n clients from the mean of each side, with or without their ``own`` share in it.

    NaN where a side has no client.
    """
    square, found = np.diagonal(signal), []
    for side in sides:
        at = list(side)
        inside = np.zeros(len(signal), dtype=bool)
        if not own:
            inside[at] = True
        rows, total = signal[:, at].sum(axis=1), float(signal[np.ix_(at, at)].sum())
        count = len(at) - inside
        row, whole = (
            np.where(inside, rows - square, rows),
            np.where(inside, total - 2 * rows + square, total),
        )
        many = np.where(count > 0, count, 1)
        found.append(np.where(count > 0, square - 2 * row / many + whole / many**2, np.nan))
    return np.array(found)


def with_cosines(note: Note, clients: tuple[Client, ...], products: np.ndarray) -> Note:
    """Add to a note the cosines of the clients' signals, without noise.

    Args:
        note: the note.
        clients: n clients.
        products: ``(2n, 2n)``, the Gram matrix of their halves.
    """
    return replace(
        note, heard=clients, similarity={"all": torch.from_numpy(signal_cosine(products)).float()}
    )


def distances(
    clients: Sequence[Client], products: np.ndarray, parts: Groups
) -> dict[str, dict[Client, float]]:
    """Return the squared distances of the clients' signals from the mean signal of each part.

    The bias of noise is removed, so a distance may be below zero. A client's own share in a mean is
    left out.

    Args:
        clients: n clients.
        products: ``(2n, 2n)``, the Gram matrix of their halves.
        parts: groups of clients.

    Returns:
        ``distance to part j`` -> client -> its squared distance from part j; no value where the
        client is alone in the part.
    """
    place = {client: i for i, client in enumerate(clients)}
    at = [[place[client] for client in part if client in place] for part in parts]
    return {
        f"distance to part {j}": {
            client: float(apart)
            for client, apart in zip(clients, row, strict=True)
            if not np.isnan(apart)
        }
        for j, row in enumerate(_from_means(signal_gram(products), at, own=False))
    }


# ----------------------------------------------------------------------------------------------------
# Reviews: which groups merge, which clients move, and the reasons.


ALIKE = 0.01
"""Two groups may be one, and a client may belong to a group, unless the p-value of that is below
this."""

ITERATIONS = 100
"""Number of iterations for a geometric median."""


def middle(leaves: Iterable[Leaf]) -> torch.Tensor:
    """Return the model ``(d,)`` from which all clients train in a review: the geometric median of the leaves' models.

    Each model counts once per client. If the median is not a single point, it is the one nearest to
    the mean. A mean would follow a single group with an outlying model, such as one of adversaries.
    The median is found by Weiszfeld's iteration; it is equivariant under orthonormal maps of the
    models.
    """
    seen = [leaf for leaf in leaves if leaf.clients]
    models = torch.stack([leaf.model for leaf in seen]).double()
    count = torch.tensor([float(len(leaf.clients)) for leaf in seen], dtype=torch.float64)
    point = count @ models / count.sum()
    for _ in range(ITERATIONS):
        pull = count / (models - point).norm(dim=1).clamp(min=1e-150)
        point = pull @ models / pull.sum()
    return point.to(seen[0].model.dtype)


def reviewed(
    level: float, leaves: Sequence[Leaf], replies: Replies, examples: Mapping[Client, int]
) -> tuple[list[Leaf], dict[int, int], list[Note]]:
    """Evaluate a review, in which all clients trained from one model.

    Args:
        level: probability of moving any client by mistake.
        leaves: the groups.
        replies: replies of the review.
        examples: client -> number of training examples, the weights of merged models; clients
            without a number count as 1.

    Returns:
        The groups after the review; node -> the node it was merged into; and the reasons.
    """
    seen = evidence_of(replies)
    if seen is None:
        return list(leaves), {}, []
    moved, notes = _moved(level, leaves, seen)
    asked = reviewers(leaves)
    merged: dict[int, int] = {}
    while pair := _closest(moved, seen, asked):
        one, other, note = pair
        merged = {
            node: one.node if into == other.node else into for node, into in merged.items()
        } | {other.node: one.node}
        moved = [leaf for leaf in moved if leaf.node not in (one.node, other.node)] + [
            _joined(one, other, examples)
        ]
        notes.append(note)
    if notes:  # once per review, whatever it changed
        notes[0] = with_cosines(notes[0], seen.clients, seen.products.numpy())
    return moved, merged, notes


def unchanged(leaves: Sequence[Leaf], replies: Replies, heard: bool) -> Note:
    """Describe a review that changed nothing, by the two groups that are most likely to be one.

    Args:
        leaves: the groups.
        replies: replies of the review.
        heard: whether enough clients answered.
    """
    seen = evidence_of(replies)
    pair = max(
        _pairs(leaves, seen, reviewers(leaves)) if seen else (),
        key=lambda pair: pair[2].p,
        default=None,
    )
    text = (
        "reviewed: no client moves, no groups merge"
        if heard
        else "reviewed: too few clients answered"
    )
    clients = tuple(sorted(c for leaf in leaves for c in leaf.clients))
    if pair is None:
        return Note(kind="keep", effect="keeps", clients=clients, text=text)
    one, other, found = pair
    return Note(
        kind="keep",
        effect="keeps",
        clients=clients,
        text=f"{text}; {same_group(found.p).text}",
        criteria=(same_group(found.p),),
        numbers={"distance": found.distance},
        labels={"node": one.node, "other_node": other.node},
    )


def reviewers(leaves: Sequence[Leaf]) -> dict[int, int]:
    """Return the leaf's node -> the number of its clients that a review asks."""
    most = max(PROBED // max(1, sum(bool(leaf.clients) for leaf in leaves)), 2)
    return {leaf.node: min(len(leaf.clients), most) for leaf in leaves}


def _heard(leaf: Leaf, seen: Evidence) -> list[int]:
    members = set(leaf.clients)
    return [i for i, client in enumerate(seen.clients) if client in members]


def _moved(level: float, leaves: Sequence[Leaf], seen: Evidence) -> tuple[list[Leaf], list[Note]]:
    """Move clients that differ from their own group, but not from another one, to that group."""
    matrix, notes = seen.products.numpy(), []
    there = {leaf.node: _heard(leaf, seen) for leaf in leaves}
    goes: dict[Client, int] = {}
    for leaf in leaves:
        members = there[leaf.node]
        for i, own in zip(
            members, member_contrasts(matrix, members) if len(members) > 1 else (), strict=False
        ):
            if not own.p < level / len(seen.clients):
                continue
            others = {
                node: contrast(matrix, [i], at)
                for node, at in there.items()
                if node != leaf.node and at
            }
            best = min(others, key=lambda node: others[node].distance, default=None)
            if best is not None and others[best].p > ALIKE:
                client = seen.clients[i]
                goes[client] = best
                notes.append(
                    _move_note(
                        client, leaf.node, best, own, others[best], level / len(seen.clients)
                    )
                )
    place = {client: leaf.node for leaf in leaves for client in leaf.clients} | goes
    return [replace(leaf, clients=_at(place, leaf.node)) for leaf in leaves], notes


def _move_note(
    client: Client, at: int, to: int, own: Contrast, there: Contrast, level: float
) -> Note:
    """Describe the move of a client from node ``at`` to node ``to``."""
    criteria = (
        Criterion(
            "p of belonging to its group",
            own.p,
            "<",
            level,
            met="it differs from its group",
            key="own_group",
        ),
        Criterion(
            "p of belonging to the other",
            there.p,
            ">",
            ALIKE,
            met="it does not differ from the other",
            key="other_group",
        ),
    )
    numbers = {"distance": own.distance, "distance_there": there.distance}
    text = f"client {client} moves from node {at} to node {to}: {tested(criteria)}"
    return Note(
        kind="move",
        effect="moves",
        clients=(client,),
        text=text,
        criteria=criteria,
        numbers=numbers,
        labels={"at": at, "node": to},
    )


def _at(place: Mapping[Client, int], node: int) -> tuple[Client, ...]:
    return tuple(sorted(client for client, at in place.items() if at == node))


def _closest(
    leaves: Iterable[Leaf], seen: Evidence, asked: Mapping[int, int]
) -> tuple[Leaf, Leaf, Note] | None:
    """The nearest two groups of those whose signals do not differ; None if there are none."""
    alike = [pair for pair in _pairs(leaves, seen, asked) if pair[2].p > ALIKE]
    if not alike:
        return None
    one, other, found = min(alike, key=lambda pair: pair[2].distance)
    clients = tuple(sorted((*one.clients, *other.clients)))
    same = same_group(found.p)
    numbers = {"distance": found.distance, "error": found.error}
    return (
        one,
        other,
        Note(
            kind="merge",
            effect="merges",
            clients=clients,
            text=same.text,
            criteria=(same,),
            numbers=numbers,
            labels={"node": one.node, "other_node": other.node},
        ),
    )


def same_group(p: float) -> Criterion:
    """The criterion of a merge: a p-value, of two groups being one, above :data:`ALIKE`."""
    return Criterion(
        "p of one group",
        p,
        ">",
        ALIKE,
        met="two groups do not differ",
        unmet="all groups differ",
        key="one_group",
    )


def _pairs(
    leaves: Iterable[Leaf], seen: Evidence, asked: Mapping[int, int]
) -> list[tuple[Leaf, Leaf, Contrast]]:
    """All pairs of groups of which half of the clients ``asked`` answered, and the contrast between them."""
    there = [
        (leaf, at)
        for leaf in leaves
        if (at := _heard(leaf, seen)) and 2 * len(at) >= asked[leaf.node]
    ]
    return [
        (one, other, contrast(seen.products.numpy(), at, also))
        for i, (one, at) in enumerate(there)
        for other, also in there[i + 1 :]
    ]


DIVERGED = 3.0
"""A model whose norm is this many times another one's (or 1, if that is less) has diverged. Models
that learn differ by far less. That of a hostile client that is alone in its group climbs its loss
for many rounds; a mean with it would ruin the group that it joins."""


def _joined(one: Leaf, other: Leaf, examples: Mapping[Client, int]) -> Leaf:
    """Merge two groups into the first, with the mean of their models, weighted by examples, without one that diverged."""
    n, m = (sum(examples.get(client, 1) for client in leaf.clients) for leaf in (one, other))
    length, other_length = (float(leaf.model.norm()) for leaf in (one, other))
    if length > DIVERGED * max(other_length, 1.0):
        model = other.model
    elif other_length > DIVERGED * max(length, 1.0):
        model = one.model
    else:
        model = (n * one.model + m * other.model) / (n + m)
    return replace(one, clients=tuple(sorted((*one.clients, *other.clients))), model=model)


# ----------------------------------------------------------------------------------------------------
# Alerts: clients whose loss rose take another model.


def tried(state: SplitHalfState) -> tuple[Leaf, ...]:
    """Return the groups whose models a client tries if its loss rose: all, and a new one that begins with the first draw."""
    new = (
        ()
        if state.first is None
        else (Leaf(node=len(state.tree.nodes), clients=(), model=state.first),)
    )
    return (*state.leaves, *new)


def with_left(new: SplitHalfState, before: SplitHalfState) -> SplitHalfState:
    """Keep the models of groups that all clients have left, of :data:`KEPT` at most, as groups without clients.

    Newcomers who would join such a group join the group to which most of its clients went.

    Args:
        new: the state after clients moved or groups merged.
        before: the state before.
    """
    place = {client: leaf.node for leaf in new.leaves for client in leaf.clients}
    now, merged = set(place.values()), dict(new.merged)
    emptied = [leaf for leaf in before.leaves if leaf.clients and leaf.node not in now]
    for leaf in emptied:
        ((into, _),) = Counter(place[client] for client in leaf.clients).most_common(1)
        merged = {node: into if to == leaf.node else to for node, to in merged.items()} | {
            leaf.node: into
        }
    left = (*(node for node in new.left if node not in now), *(leaf.node for leaf in emptied))
    leaves = {leaf.node: leaf for leaf in new.leaves} | {
        leaf.node: replace(leaf, clients=()) for leaf in emptied
    }
    gone = set(left[:-KEPT])
    return replace(
        new,
        leaves=ordered(leaf for leaf in leaves.values() if leaf.node not in gone),
        merged={node: to for node, to in merged.items() if node not in now},
        left=left[-KEPT:],
    )


def _taken_note(state: SplitHalfState, client: Client, at: int, to: int, loss: float) -> Note:
    """Describe the move of a client whose loss rose from node ``at`` to node ``to``, whose model has this ``loss``."""
    met = "it undoes more than half of the rise"
    criteria = (
        Criterion(
            "loss with the other model", loss, "<", state.rose[client], met=met, key="other_loss"
        ),
    )
    new = ", which begins with the first draw" if to == len(state.tree.nodes) else ""
    text = f"client {client}, whose loss rose, moves from node {at} to node {to}{new}: {tested(criteria)}"
    return Note(
        kind="move",
        effect="moves",
        clients=(client,),
        text=text,
        criteria=criteria,
        labels={"at": at, "node": to},
    )


# ----------------------------------------------------------------------------------------------------
# Newcomers: down the parameter tree, by updates of halves and the distance to every branch.
#
# Coterie's own, after CFL's Algorithm 4, which follows the edge with the single update of greatest
# cosine. Here a walker trains on halves from the model of its node, as that node's clients did in
# the probe that split it. So its update can be compared with theirs. For every branch, this gives
# the squared distance of the mean signals, without the bias of noise, and the p-value of the walker
# being of that branch. The walker moves to the nearest branch; if it differs from all branches, it
# becomes a new leaf.


@state("split-half.probed")
class Probed:
    """The probe that split a node.

    Attributes:
        steps: mini-batch steps of each half.
        levels: client -> noise of its whole update, ``‖D‖²``.
        share: ``1/r``, with r the effective dimension of the noise.
        df: degrees of freedom of that estimate.
    """

    steps: int
    levels: Mapping[Client, float]
    share: float
    df: float


def probed(steps: int, evidence: Evidence, parts: Groups) -> Probed:
    """Summarise the probe of a split.

    The directions of noise are estimated within the parts, whose members are alike, because the
    difference of the parts has other directions.

    Args:
        steps: mini-batch steps of each half.
        evidence: result of the probe.
        parts: the parts of the split.
    """
    h = halves(evidence.products.numpy())
    within = [
        noise_of(halves(evidence.of(part).products.numpy())) for part in parts if len(part) > 1
    ]
    seen = [noise for noise in within if np.isfinite(noise.df)] or [noise_of(h)]
    levels = dict(zip(evidence.clients, map(float, np.diagonal(h.noise)), strict=True))
    share, df = max(noise.share for noise in seen), sum(noise.df for noise in seen)
    return Probed(steps=steps, levels=levels, share=share, df=df)


@dataclass(frozen=True)
class Walked:
    """Result of a step of the walkers.

    Attributes:
        tree: the tree, with new leaves.
        goes: walker -> the node to which it goes.
        probed: inner node -> the probe that split it, with the noise of walkers that became new
            leaves below it.
        models: new leaf's node -> its model.
        notes: the reasons.
    """

    tree: Tree
    goes: dict[Client, int]
    probed: dict[int, Probed]
    models: dict[int, torch.Tensor]
    notes: list[Note]


def walk(
    tree: Tree,
    walkers: Mapping[Client, int],
    probed: Mapping[int, Probed],
    own: Replies,
    level: float,
) -> Walked:
    """Move walkers one level down, each to the nearest branch of its node.

    Args:
        tree: the parameter tree.
        walkers: walker -> the inner node where it is.
        probed: inner node -> the probe that split it.
        own: replies of the walkers that answered.
        level: a walker whose p-values are all below this becomes a new leaf.
    """
    went = Walked(tree, {}, dict(probed), {}, [])
    branches: dict[int, list[Branch]] = {}
    noise = (
        {}
        if own.halves is None
        else dict(
            zip(
                own.halves.clients,
                map(float, np.diagonal(halves(own.halves.gram).noise)),
                strict=True,
            )
        )
    )
    for client, update in zip(own.clients, own.all_updates if own.clients else (), strict=True):
        at = walkers[client]
        if at not in branches:
            branches[at] = branches_of(went.tree, at, went.probed[at])
        found = distances_to(
            branches[at], tree.short(update[None])[0], noise.get(client), went.probed[at]
        )
        to = min(found, key=lambda id: (found[id].value, id))
        if client in noise and all(seen.p < level for seen in found.values()):
            grown, to = went.tree.grow(at, client, update)
            before = went.probed[at]
            went.probed[at] = replace(before, levels={**before.levels, client: noise[client]})
            went.models[to] = tree.model(at) + update
            went = replace(went, tree=grown)
            branches[at] = branches_of(grown, at, went.probed[at])
        went.goes[client] = to
        went.notes.append(
            _walk_note(went.tree, client, at, to, found, level if client in noise else None)
        )
    return went


class Branch(NamedTuple):
    """A child of an inner node, to which a walker may go.

    Attributes:
        id: its node.
        mean: ``(p,)``, the mean update of the m clients that sent one in the probe, in the form
            that an edge keeps.
        levels: ``(m,)``, the noise of each of these updates, ``‖D‖²``.
        largest: the greatest squared norm of these updates.
    """

    id: int
    mean: torch.Tensor
    levels: np.ndarray
    largest: float


def branches_of(tree: Tree, at: int, probe: Probed) -> list[Branch]:
    """Return the branches of an inner node, from the updates on its edges.

    Args:
        tree: the parameter tree.
        at: the node.
        probe: the probe that split it.
    """
    found = []
    for child in tree.children(at):
        members = [i for i, client in enumerate(child.heard) if client in probe.levels]
        if child.updates is not None and members:
            levels, updates = (
                np.array([probe.levels[child.heard[i]] for i in members]),
                child.updates[members].double(),
            )
            found.append(
                Branch(child.id, updates.mean(dim=0), levels, float((updates**2).sum(dim=1).max()))
            )
    return found


def distances_to(
    branches: Iterable[Branch], update: torch.Tensor, noise: float | None, probe: Probed
) -> dict[int, Excess]:
    """Return the squared distance of a walker's signal from the mean signal of each branch, without the bias of noise.

    This is :func:`~coterie.clustering.congruence.excess` with weights 1 of the walker and -1 / m of
    the m clients of a branch.

    Args:
        branches: the branches of the walker's node.
        update: ``(p,)``, the walker's update, in the form that an edge keeps.
        noise: the noise of this update; None if it is not known, which counts as none.
        probe: the probe that split the node.

    Returns:
        Node of a branch -> the distance, and the p-value of the walker being of the branch.
    """
    own, update, found = noise or 0.0, update.double(), {}
    for branch in branches:
        apart, m = update - branch.mean, len(branch.levels)
        levels = np.array([own, *branch.levels])
        expected, squares = (
            own + branch.levels.sum() / m**2,
            own**2 + (branch.levels**2).sum() / m**4,
        )
        sums = float(apart @ apart), float(expected), float(squares), float(expected**2 - squares)
        largest = max(float(update @ update), branch.largest)
        found[branch.id] = excess_of_sums(sums, levels, largest, Noise(probe.share, probe.df))
    return found


def _walk_note(
    tree: Tree,
    client: Client,
    at: int,
    child: int,
    found: Mapping[int, Excess],
    level: float | None,
) -> Note:
    """Describe a walker's step; with p-values and the level only if the walker's noise is known."""
    by = ", ".join(
        f"{seen.value:.3g} to node {id}" + (f" (p {seen.p:.2g})" if level else "")
        for id, seen in sorted(found.items())
    )
    where = "joins" if tree.is_leaf(child) else "continues from"
    numbers = {f"node_{id}": seen.value for id, seen in found.items()}
    criteria: tuple[Criterion, ...] = ()
    if level is not None:
        chances = {f"p_{id}": seen.p for id, seen in found.items()}
        numbers |= chances
        name, unmet = "p of the most similar branch", "it differs from all branches"
        criteria = (
            Criterion(
                name,
                max(chances.values()),
                ">=",
                level,
                "level",
                "it fits a branch",
                unmet,
                "nearest_branch",
            ),
        )
    return Note(
        kind="join" if tree.is_leaf(child) else "walk",
        effect="joins" if tree.is_leaf(child) else "waits",
        clients=(client,),
        criteria=criteria,
        text=f"client {client} at node {at}: squared distance {by}; {where} node {child}"
        + ("" if child in found else ", a new group: it differs from all"),
        otherwise=f"it would have {'started a new group' if child in found else 'joined the nearest branch'}",
        numbers=numbers,
        labels={"at": at, "node": child},
    )
