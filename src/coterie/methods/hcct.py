"""HCCT: in every epoch, clients train in the groups whose members gain most from each other; the groups are made anew.

Y. Sun, M. Kountouris, J. Zhang, "How to Collaborate: Towards Maximizing the Generalization Performance in Cross-Silo
Federated Learning", arXiv 2401.13236: Algorithms 1 (training) and 2 (client partition), equations 8 to 20; the variants
HCCT-E (section V, "efficient implementation") and HCCT-P (section VII, with the personalisation layers of M. G.
Arivazhagan et al., arXiv 1912.00818).

The utility of client n in group G is ``U_n(G) = cos(g_n, ḡ_G) - λ_n / N_G``; see :mod:`coterie.clustering.utility`.

Deviations
- λ is a share of the mean training-set size by default (``scale``), for it lives on the scale of these sizes: the paper
  has one absolute number per data set. Its constant Γ cancels in every merge and is left out.
- The cosine sees trainable parameters alone, and the running statistics of BatchNorm are averaged like parameters. In the
  code published with the paper, counters of batches drown the similarity, and a group has the statistics of client 0.
- HCCT-E takes the relative variance across clients of whole layers (``robust``). The published code's variance is over
  clients and coordinates together, and divided by a signed mean near zero (``paper-code``). The layer is found in the
  first epoch, which counts; the published code throws a round of probing away. Normalisation layers do not compete.
- HCCT-P compares the layers that travel, and heads never leave their client. The published code averages the heads of a
  group's members before each epoch.
- The utility that is told is that of the merge. The published code's report counts a client's own data twice in a group.
- The cosines are means over epochs (``memory``), for near an optimum those of one epoch are noise, and a newcomer's first
  update is compared with the others' first ones. 0 is the paper.
- ``cosines="signals"`` asks for updates of two halves of everybody's data, and takes the noise that they tell out of the
  squared norms (:mod:`coterie.methods.hcct_hearing`). These epochs cost twice the upload and train half as far, so groups
  are made in every fourth only (``partition_every``), while a newcomer waits, and until everybody has been heard once; in
  the others means suffice. HCCT-E chooses its layer by whole updates, and the cosines of that epoch are theirs.
- The paper has every client in every epoch. Here those that answered are partitioned, with those silent ones whose cosines
  with all of them are remembered. The others go with the new group that has most data of those they were with. Silent
  clients have the model of their group whenever it moves, and keep their weight in the start of their next group.
- With ``one_shot`` all clients are asked in the first epoch, and those silent in it find their group like newcomers.
- ``newcomers="benefit"`` follows the paper's text (equations 15 and 16); ``partition`` is what the published code does.
  Where a number of ``groups`` is asked for and reached, a newcomer joins the best of them also where it gains nothing.
- With a memory, a newcomer trains its first epoch with the learning rate of the first epoch of all.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import numpy as np
import torch

from coterie.core import (
    Assignment,
    Client,
    Cohort,
    Federation,
    Note,
    Plan,
    Replies,
    Task,
    as_groups,
    joined,
    without,
)  # fmt: skip
from coterie.methods.hcct_groups import HCCTState, regroup
from coterie.methods.hcct_hearing import hear
from coterie.methods.hcct_layers import comparable, layer_note, paper_code_ratios, relative_variances
from coterie.methods.hcct_memory import forget
from coterie.methods.hcct_models import beginners, starts, trained
from coterie.methods.probing import of_equal_steps
from coterie.settings import SettingError, check, setting

LAYERS = ("all", "robust", "paper-code")
_LAYER = "what cosines are taken of: all layers; or one, chosen after the first epoch: robust, or as in the paper-code"
_PERSONAL = "number of last layers that stay at their client (HCCT-P)"


@dataclass(frozen=True, kw_only=True)
class HCCT:
    """In every epoch, the groups whose members gain most from each other: data against unlikeness."""

    name: ClassVar[str] = "hcct"

    tradeoff: float = setting(0.7, "price of little data (λ), on the chosen scale; 0: all alone, inf: one group", ge=0)
    scale: str = setting(
        "mean-size", "λ is a share of the mean training-set size (ours), or absolute, or a share of each client's own size",
        choices=("mean-size", "absolute", "per-client"),
    )  # fmt: skip
    groups: int | None = setting(None, "number of groups, in place of merging while there is a gain", ge=1)
    one_shot: bool = setting(False, "partition once, after the first epoch")
    layer: str = setting("all", _LAYER, choices=LAYERS)
    personal: int = setting(0, _PERSONAL, ge=0)
    newcomers: str = setting(
        "benefit", "after a round alone, a new client joins the group of most benefit, or takes part in the next partition",
        choices=("benefit", "partition"),
    )  # fmt: skip
    memory: float = setting(
        0.95, "weight of an epoch's cosines in each later one (β), 0: none, as in the paper; ours", ge=0, le=1
    )
    cosines: str = setting(
        "updates", "what cosines are of: updates, as in the paper; or the signals in them, by halves of clients' data; ours",
        choices=("updates", "signals"),
    )  # fmt: skip
    partition_every: int | None = setting(
        None, "epochs from one partition to the next; none: 1, as in the paper, or 4 with signals, which cost; ours", ge=1
    )
    fraction: float = setting(1.0, "share of each group's clients asked in an epoch, at least one; ours", gt=0, le=1)
    sketch: int | None = setting(
        None, "take cosines of sketches of so many numbers; updates are not kept then; ours", multiple=4
    )

    def __post_init__(self) -> None:
        check(self)
        name = type(self).__name__
        if self.groups is not None and np.isinf(self.tradeoff):
            raise SettingError(f"{name}.groups {self.groups} needs a finite tradeoff, got inf, which is one group")

    @property
    def asks(self) -> tuple[Task, ...]:
        """What clients are asked for in an epoch whose groups are compared, if not in the first."""
        return (Task(offered=(0,), halves=self.cosines == "signals" and not np.isinf(self.tradeoff)),)

    @property
    def invariant(self) -> str:
        """Under which maps of updates its groups stay what they are: the published code's layer looks at their signs."""
        return "permutation" if self.layer == "paper-code" else "rotation"

    # -- the contract ---------------------------------------------------------------------------------------------------

    def init(self, federation: Federation) -> HCCTState:
        name, clients, layers = type(self).__name__, federation.clients, tuple(federation.columns)
        if self.groups is not None and self.groups > len(clients):
            raise SettingError(f"{name}.groups must be at most the {len(clients)} clients, got {self.groups}")
        if self.personal > len(layers):
            raise SettingError(f"{name}.personal must be at most the {len(layers)} layers of the model, got {self.personal}")
        keep = layers[len(layers) - self.personal :]
        first = federation.draw(0)
        return HCCTState(
            clients=clients, first=first, models=first[None], row=dict.fromkeys(clients, 0), groups=(clients,),
            next=(clients,), parameters=federation.parameters.stop, keep=keep,
            layers={} if self.layer == "all" else comparable(federation, keep), training=federation.training,
        )  # fmt: skip

    def plan(self, state: HCCTState, cohort: Cohort) -> Plan:
        share = 1.0 if self.one_shot and not state.partitioned else self.fraction
        compares = not (np.isinf(self.tradeoff) or self._rests(state))
        new, opens = set(self._remembered_firsts(state)), self.layer_open(state)
        usual = Task(offered=(0,), keep=state.keep)
        if self.cosines == "signals" and compares and not opens:
            usual = replace(usual, halves=True, training=of_equal_steps(state.training, state.sizes.values()))
        tasks = {}
        for row, group in enumerate(state.next):
            # A first update is compared with those of the first epoch, so it has that epoch's learning rate.
            task = replace(usual, offered=(row,), lr_round=0 if new.issuperset(group) else None)
            tasks.update(dict.fromkeys(cohort.sample(group, share), task))
        if opens:
            return Plan(models=starts(state), tasks=tasks, need="rows")
        if not compares:
            return Plan(models=starts(state), tasks=tasks, need="mean")
        need: Literal["rows", "gram"] = "rows" if new else "gram"  # first updates are remembered as sketches
        return Plan(models=starts(state), tasks=tasks, need=need, columns=state.columns, sketch=self.sketch)

    def step(self, state: HCCTState, replies: Replies) -> HCCTState:
        if not replies.clients:
            return replace(state, notes=())
        state, notes = self._with_layer(state, replies)
        new, rests = self._remembered_firsts(state), self._rests(state)
        state = replace(trained(state, replies), epoch=state.epoch + 1)
        if rests:
            return replace(state, notes=notes)
        state, heard = hear(self, state, replies, new)
        return regroup(self, state, heard, notes)

    def assignment(self, state: HCCTState) -> Assignment:
        return Assignment(models=state.models, row=state.row, groups=state.groups)

    def explain(self, state: HCCTState) -> tuple[Note, ...]:
        return state.notes

    def admit(self, state: HCCTState, clients: tuple[Client, ...]) -> HCCTState:
        """Each newcomer trains from the first model, in a group of its own."""
        new = tuple(sorted(set(clients) - set(state.clients)))
        alone = [(c,) for c in new]
        return replace(
            state, clients=joined(state.clients, new), models=torch.cat([state.models, state.first[None]]),
            row={**state.row, **dict.fromkeys(new, len(state.models))}, groups=as_groups([*state.groups, *alone]),
            next=as_groups([*state.next, *alone]), waiting=tuple(sorted((*state.waiting, *new))),
        )  # fmt: skip

    def retire(self, state: HCCTState, clients: tuple[Client, ...]) -> HCCTState:
        gone = set(clients)
        stay = without(state.clients, gone)
        left = lambda groups: as_groups(g for g in ([c for c in group if c not in gone] for group in groups) if g)  # noqa: E731
        return replace(
            state, clients=stay, row={c: state.row[c] for c in stay}, groups=left(state.groups), next=left(state.next),
            sizes={c: n for c, n in state.sizes.items() if c not in gone}, waiting=tuple(c for c in state.waiting if c in stay),
            memory=forget(state.memory, gone),
        )  # fmt: skip

    # -- in one step ----------------------------------------------------------------------------------------------------

    def settled(self, state: HCCTState) -> bool:
        """Whether the one partition has been made; it is made anew where all of its clients have gone."""
        return self.one_shot and state.partitioned and state.waiting != state.clients

    def _rests(self, state: HCCTState) -> bool:
        """Whether groups stay what they are in the coming epoch: it is no turn of theirs, nobody waits, all have been heard."""
        every = self.partition_every or (1 if self.cosines == "updates" else 4)
        due = not state.partitioned or state.epoch % every == 0 or not state.sizes.keys() >= set(state.clients)
        return not state.waiting and (self.settled(state) or not due)

    def layer_open(self, state: HCCTState) -> bool:
        return self.layer != "all" and state.layer is None and bool(state.layers) and not np.isinf(self.tradeoff)

    def _with_layer(self, state: HCCTState, replies: Replies) -> tuple[HCCTState, tuple[Note, ...]]:
        """HCCT-E: the layer whose updates differ most between clients, once two or more have been heard (eq. 19)."""
        if not self.layer_open(state) or len(replies.clients) < 2:
            return state, ()
        assert replies.updates is not None
        measured = relative_variances if self.layer == "robust" else paper_code_ratios
        ratios = measured(replies.updates, state.layers)
        note = layer_note(state.clients, ratios, self.layer)
        return replace(state, layer=max(ratios, key=lambda layer: ratios[layer])), (note,)

    def _remembered_firsts(self, state: HCCTState) -> tuple[Client, ...]:
        """Whose coming update will be remembered as its first."""
        return beginners(state) if self.memory and not np.isinf(self.tradeoff) else ()


@dataclass(frozen=True, kw_only=True)
class HCCTE(HCCT):
    """HCCT that compares one layer alone: the one whose first updates differ most between clients."""

    name: ClassVar[str] = "hcct-e"

    layer: str = setting("robust", _LAYER, choices=LAYERS)


@dataclass(frozen=True, kw_only=True)
class HCCTP(HCCT):
    """HCCT whose clients keep their last layer to themselves: groups share what is below it."""

    name: ClassVar[str] = "hcct-p"

    personal: int = setting(1, _PERSONAL, ge=0)
