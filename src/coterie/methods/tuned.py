"""Tuned: any method, and a personal model at each client that serves it where held-out loss says that it pays.

In each round a client trains as the method asks. Then it trains on, for ``epochs`` more passes over
its data: the result is its personal model, which stays at the client. With ``start`` own, the
personal model continues from round to round instead, pulled to the method's (``pull``). It can then
learn more than a few passes allow, but falls behind the method's model if the client trains seldom.

The client reports the sums of the losses of both models on its held-out examples, that of the
method and its own. With FedAvg this is FedAvg with fine-tuning, which has the regret of one model
with a personal part (G. Cheng, K. Chadha, J. Duchi, "Federated Asymptotics: a model to compare
federated learning algorithms", arXiv 2108.07313; K. Wang et al., "Federated Evaluation of On-device
Personalization", arXiv 1910.10252).

Fine-tuning raises the mean and can harm some clients (arXiv 2206.09262). So the personal model is
served only where it pays. Few held-out examples say little about a single client. Therefore a group
decides together, by its mean gain over all held-out examples, of this report and the ones before.
Only if the gains of its clients differ significantly (Cochran's Q, :data:`MAX_P_TO_DIFFER`), the
gain of each client counts: it is shrunk towards the group's mean by empirical Bayes, ``m_i = (τ² d_i + v_i μ) / (τ² +
v_i)``, with the client's mean difference of losses d_i, its variance v_i (that of one example,
pooled over the group, divided by the client's number of examples), the group's mean μ weighted by
the precisions, and the variance τ² between clients by the method of moments (R. DerSimonian, N.
Laird, "Meta-analysis in clinical trials", 1986). A client begins to use its own model if ``m_i`` is
below zero by a standard error of the group's mean gain, and stays with it as long as ``m_i < 0``.

Where no client uses its own model, and the models have been worse beyond noise for
:data:`WORSE_LOOKS_TO_REST` rounds, they rest: they are tried again after one round, then after two,
four and :data:`MAX_ROUNDS_OF_REST`. If they are neither better nor worse, they train in every
second round from :data:`LESS_OFTEN_FROM` reports on, and in every fourth from :data:`SELDOM_FROM` on.
When clients hold out nothing any more, only those that use their own model train it.

With ``neighbours``, a client's predictions may be mixed with those of its nearest training examples
(kNN-Per, arXiv 2111.09360, with the same weight λ = :data:`NEIGHBOURS_WEIGHT` for
all). Nothing is trained or sent for that. Every :data:`NEIGHBOURS_EVERY` rounds clients measure it
for both of their models. It is used by the same rule as personal models, but begins beyond
:data:`ERRORS_TO_USE_NEIGHBOURS` standard errors and :data:`MIN_GAIN_OF_NEIGHBOURS`, because an export
of the model lacks it. While it is used, clients measure it in each round, and choose between models
that both have neighbours.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np
import scipy

from coterie.core import (
    NOT_STORED,
    WITH_NEIGHBOURS,
    Admits,
    AllBut,
    Assignment,
    Client,
    Cohort,
    Feature,
    Federation,
    Holdout,
    Needs,
    Neighbours,
    Note,
    Personal,
    Plan,
    Replies,
    Task,
    among,
    needs_of,
    serving_tasks,
    state,
    without,
)
from coterie.core.client_table import (
    MIN_TABLE_ENTRIES,
    ClientTable,
    are_among,
    as_array,
    entries_among,
    those_among,
    with_entries,
)
from coterie.methods._fences import clients_limited, fence_note, fenced_reports
from coterie.methods._leavers import entries_without
from coterie.methods._named import made
from coterie.settings import SettingError, check, setting

USES_PERSONAL = "uses its personal model"
"""The name, in notes, of 1 for a client that uses its personal model and 0 for others."""

EXPECTED_GAIN = "expected difference of held-out losses"
"""The name, in notes, of the held-out loss of a client's personal model less that of the method's
model."""

MAX_P_TO_DIFFER = 0.01
"""Clients of a group decide separately if the p-value of equal gains is below this."""

MIN_SHARE_TO_CONTINUE = 0.5
"""Personal models continue from round to round, with ``start`` either, if this share of the clients
trains in a round."""

WORSE_LOOKS_TO_REST = 4
"""Personal models rest if they were significantly worse for all in so many rounds in a row."""

MAX_ROUNDS_OF_REST = 8
"""The longest time between two trials of personal models that rest, in rounds."""

LESS_OFTEN_FROM = 4
"""From so many reports of each client on, personal models that no client uses train in every second round."""

SELDOM_FROM = 10
"""From so many reports of each client on, personal models that no client uses train in every fourth round."""

USES_NEIGHBOURS = "uses its nearest training examples"
"""The name, in notes, of 1 for a client whose nearest training examples take part in its predictions."""

GAIN_OF_NEIGHBOURS = "expected difference of held-out losses by nearest training examples"
"""The name, in notes, of the held-out loss with a client's nearest training examples less that
without."""

NEIGHBOURS_WEIGHT = 0.7
"""The weight λ of the nearest training examples in a client's predictions."""

NEIGHBOURS_EVERY = 5
"""Rounds from one measurement of the nearest training examples to the next, while no client uses them."""

ERRORS_TO_USE_NEIGHBOURS = 2.0
"""From so many standard errors on, a client begins to use its nearest training examples."""

MIN_GAIN_OF_NEIGHBOURS = 0.02
"""The least decrease of held-out loss (nats) with which a client begins to use them: less is not worth
that an export lacks them."""

WORSE_LOOKS_TO_STOP = 2
"""Nearest training examples are measured no more if they were significantly worse for all so many
times in a row."""

Gain = tuple[float, float, int]
"""Mean of a client's personal loss less that of the method's model, the variance of this mean, and
the number of examples."""


@state("tuned")
class TunedState:
    """State of a method with personal models.

    Attributes:
        inner: State of the method.
        gains: Client -> the last report of its gain.
        own: Clients that are served by their personal models, sorted.
        tuned: Names of the method's parts in which clients have personal models; other values of
            theirs are the method's.
        share: Share of the clients that train in a round, averaged over rounds, later ones more.
        worse: Rounds in a row in which personal models were worse for all, beyond noise.
        rest: Rounds until personal models are trained again.
        settled: Whether clients held no examples out in the last round, so that the choice stays.
        classifier: The layer whose input is the features of nearest training examples; "" if
            clients do not predict classes by such a layer.
        neighbour_gains: Client -> the last report of its gain by nearest training examples.
        remembering: Clients whose nearest training examples take part in their predictions, sorted.
        rounds: Rounds with reports, since the choice was opened.
        neighbours_worse: Measurements in a row in which nearest training examples were worse for
            all, beyond noise.
        notes: Notes of the last exchange.
        served: The method that made the assignment of this state, and the assignment, once it is
            known. It is not stored.
    """

    inner: Any
    gains: Mapping[Client, Gain] = field(default_factory=dict)
    own: tuple[Client, ...] = ()
    tuned: tuple[str, ...] = ()
    share: float = 1.0
    worse: int = 0
    rest: int = 0
    settled: bool = False
    classifier: str = ""
    neighbour_gains: Mapping[Client, Gain] = field(default_factory=dict)
    remembering: tuple[Client, ...] = ()
    rounds: int = 0
    neighbours_worse: int = 0
    notes: tuple[Note, ...] = field(default=(), metadata=NOT_STORED)
    served: tuple[Any, Assignment | None] = field(
        default=(None, None), init=False, repr=False, metadata=NOT_STORED
    )


@dataclass(frozen=True)
class _Choice:
    """To which clients something is expected to pay.

    Attributes:
        clients: These clients, sorted.
        expected: Client -> its expected gain.
        served: The clients of the groups, as the keys of a mapping.
        limited: Clients whose reports were limited by those of the others.
    """

    clients: tuple[Client, ...]
    expected: Mapping[Client, float]
    served: Mapping[Client, int]
    limited: tuple[Client, ...]


@dataclass(frozen=True, kw_only=True)
class Tuned:
    """Any method, and a fine-tuned model for each client where that is better."""

    name: ClassVar[str] = "tuned"

    method: Any = setting("fedavg", "the method whose models are tuned", method=True)
    epochs: int = setting(
        3,
        "passes over a client's data, after those of the round, that make its personal model",
        ge=0,
    )
    start: Literal["trained", "own", "either"] = setting(
        "trained",
        "trained: the personal model is trained on from the round's; own: it continues from round to round (Ditto); "
        "either: own while half of the clients or more train in a round",
        choices=("trained", "own", "either"),
    )
    pull: float = setting(
        0.0,
        "weight of the term that pulls a personal model to the method's (λ of Ditto)",
        ge=0,
        not_with={"epochs": (0,)},
    )
    neighbours: int = setting(
        0,
        "nearest training examples of a client that may take part in its predictions (k of kNN-Per); 0: none",
        ge=0,
    )
    holdout: float = setting(
        0.15,
        "share of the training examples that clients without a validation part hold out",
        gt=0,
        le=0.5,
    )

    def __post_init__(self) -> None:
        check(self)
        object.__setattr__(self, "method", method_of(self.method, "tuned.method"))

    @property
    def needs(self) -> Needs:
        """What the method needs from an engine: what the tuned method needs, personal models, and held-out losses."""
        features: list[Feature] = ["held-out-losses", "holdout", "personal-model"]
        if self.pull:
            features.append("pull")
        occasional: tuple[Feature, ...] = ("neighbours",) if self.neighbours else ()
        tuned_method = needs_of(self.method)
        own_needs = Needs(
            occasional=occasional, unchanged_by="rotation", fraction=tuned_method.fraction
        )
        return own_needs.with_inner(features, self.method)

    def serving_tasks(self, state: TunedState, cohort: Cohort) -> tuple[Task, ...]:
        """Return the next tasks of the method, which make personal models too."""
        inner_tasks = serving_tasks(self.method, state.inner, cohort)
        return tuple(self.tuned(task, state) for task in inner_tasks)

    # -- the contract
    # ---------------------------------------------------------------------------------------------------

    def init(self, federation: Federation) -> TunedState:
        # Nearest training examples vote for a class, by the features that the last layer receives.
        last_layer = tuple(federation.columns)[-1]
        has_features = federation.labels and last_layer in federation.dense
        return TunedState(
            inner=self.method.init(federation), classifier=last_layer if has_features else ""
        )

    def plan(self, state: TunedState, cohort: Cohort) -> Plan:
        return self._with_personal(self.method.plan(state.inner, cohort), state)

    def _with_personal(self, plan: Plan, state: TunedState) -> Plan:
        """The plan, in which clients train a personal model too, also in the parts of the plan."""
        # Clients often share one task object, which is changed once.
        changed_tasks: dict[tuple[int, bool], Task] = {}
        tasks = {}
        for client, task in plan.tasks.items():
            trains_personal = plan.ends_round and self._may_pay(state, client)
            if (id(task), trains_personal) not in changed_tasks:
                changed = self._held_out(task, state if plan.ends_round else None)
                if trains_personal:
                    changed = self.tuned(task, state)
                changed_tasks[id(task), trains_personal] = changed
            tasks[client] = changed_tasks[id(task), trains_personal]
        personal_parts = {
            part_name: self._with_personal(part_plan, state)
            for part_name, part_plan in plan.parts.items()
        }
        return replace(plan, tasks=tasks, parts=personal_parts)

    def _may_pay(self, state: TunedState, client: Client) -> bool:
        """Whether a client trains its personal model in this round: it is used, or may be used later."""
        if state.settled:
            return bool(among((client,), state.own))
        if state.rest:
            return False
        if state.own or state.worse >= WORSE_LOOKS_TO_REST:
            return True
        # No client uses its personal model: the more each has reported, the less often it is tried.
        reports = state.rounds * state.share
        if reports >= SELDOM_FROM:
            return state.rounds % 4 == 0
        return reports < LESS_OFTEN_FROM or state.rounds % 2 == 0

    def tuned(self, task: Task, state: TunedState | None = None) -> Task:
        """A task that makes a personal model, unless it trains no model or layers stay at the client.

        Args:
            task: The method's task.
            state: The state, which says how personal models start. None for the state of a run in
                which all clients train.
        """
        if not _makes_personal(task):
            return self._held_out(task, state)
        state = state or TunedState(inner=None)
        start = self.start
        if start == "either":
            start = "own" if state.share >= MIN_SHARE_TO_CONTINUE else "trained"
        # After a rest, a personal model of long ago would be out of date.
        if state.worse >= WORSE_LOOKS_TO_REST:
            start = "trained"
        personal = task.personal or Personal(start=start, epochs=self.epochs, pull=self.pull)
        holdout = Holdout(
            share=self.holdout, report_losses=True, neighbours=self._measured_neighbours(state)
        )
        return replace(task, holdout=holdout, personal=personal)

    def _held_out(self, task: Task, state: TunedState | None) -> Task:
        """The task with the share of this method, so that all parts of a plan hold out the same examples.

        Args:
            task: The method's task.
            state: The state if the round ends, so that held-out losses may be reported.
        """
        neighbours = None if state is None else self._measured_neighbours(state)
        report_losses = task.holdout.report_losses
        # Without a report, the choice of models would count as settled.
        if state is not None and not state.settled and _makes_personal(task):
            report_losses = True
        holdout = Holdout(share=self.holdout, report_losses=report_losses, neighbours=neighbours)
        return replace(task, holdout=holdout)

    def _measured_neighbours(self, state: TunedState) -> Neighbours | None:
        """The nearest training examples if they are measured in this round: they are used, or it is their turn."""
        is_their_turn = state.rounds % NEIGHBOURS_EVERY == NEIGHBOURS_EVERY - 1
        may_win = is_their_turn and state.neighbours_worse < WORSE_LOOKS_TO_STOP
        if not state.settled and (may_win or state.remembering):
            return self._neighbours(state)
        return None

    def _neighbours(self, state: TunedState) -> Neighbours | None:
        """How nearest training examples take part in predictions; None if they cannot."""
        if not self.neighbours or not state.classifier:
            return None
        return Neighbours(
            layer=state.classifier, k=self.neighbours, scale=1.0, weights=(NEIGHBOURS_WEIGHT,)
        )

    def step(self, state: TunedState, replies: Replies) -> TunedState:
        # The method takes the replies as it would without personal models.
        inner_state = self.method.step(state.inner, replies)
        inner_assignment = self.method.assignment(inner_state)
        served_part = inner_assignment.part
        # How many clients train in a round decides how personal models start.
        training_share = state.share
        rest = state.rest
        if replies.ends_round:
            rest = max(rest - 1, 0)
            answered = min(len(replies.clients) / max(len(inner_assignment.row), 1), 1.0)
            training_share = (training_share + answered) / 2
        gains: dict[Client, Gain] = {}
        neighbour_gains: dict[Client, Gain] = {}
        tuned_parts = set(state.tuned)
        personal_clients = set(state.own)
        remembering = set(state.remembering)
        for client, held_out in replies.held_out_losses.items():
            # The held-out loss of the personal model (1) less that of the method's model (0), both
            # with nearest training examples if the client uses them.
            shared_model = (served_part, 0)
            personal_model = (served_part, 1)
            if client in remembering and (served_part, WITH_NEIGHBOURS) in held_out.models:
                shared_model = (served_part, WITH_NEIGHBOURS)
                personal_model = (served_part, WITH_NEIGHBOURS + 1)
            gain = held_out.difference(personal_model, shared_model)
            if gain is not None:
                gains[client] = _averaged((*gain, held_out.count), state.gains.get(client))
            # The loss with nearest training examples less that without, of the model in use.
            used_model = 0
            if client in personal_clients and (served_part, 1) in held_out.models:
                used_model = 1
            gain = held_out.difference(
                (served_part, WITH_NEIGHBOURS + used_model), (served_part, used_model)
            )
            if gain is not None:
                neighbour_gains[client] = _averaged(
                    (*gain, held_out.count), state.neighbour_gains.get(client)
                )
            for part_name, model_number in held_out.models:
                if model_number == 1:
                    tuned_parts.add(part_name)
        sorted_parts = tuple(sorted(tuned_parts))
        new_state = replace(
            state,
            inner=inner_state,
            gains=with_entries(state.gains, gains),
            neighbour_gains=with_entries(state.neighbour_gains, neighbour_gains),
            tuned=sorted_parts,
            share=training_share,
            rest=rest,
            rounds=state.rounds + int(replies.ends_round),
            notes=(),
        )
        if replies.ends_round and replies.clients:
            # Clients that hold examples out report losses of the method's model at least.
            held_out_count = sum(losses.count for losses in replies.held_out_losses.values())
            settled = not held_out_count
            # A choice that is open again begins without what was known of personal models.
            if state.settled and not settled:
                new_state = replace(
                    new_state,
                    gains={},
                    worse=0,
                    rest=0,
                    neighbour_gains={},
                    neighbours_worse=0,
                    rounds=0,
                )
            new_state = replace(new_state, settled=settled)
        limited = replies.averaging.limits_reports
        if gains:
            new_state = self._chosen(new_state, limited)
        if neighbour_gains:
            new_state = self._with_neighbours(new_state, limited)
        return new_state

    def _chosen(self, state: TunedState, limited: bool) -> TunedState:
        """Decide for each client by which model it is served; ``limited``: as some clients may be hostile."""
        choice = self._choice(state, state.gains, state.own, limited)
        state = self._rested(state, choice.clients, choice.served)
        notes = list(state.notes)
        if choice.clients != those_among(state.own, choice.served):
            notes.append(_note(choice.expected, choice.clients, state.own))
        if choice.limited:
            notes.append(fence_note(choice.limited))
        return replace(state, own=choice.clients, notes=tuple(notes))

    def _with_neighbours(self, state: TunedState, limited: bool) -> TunedState:
        """Decide for each client whether its nearest training examples take part in its predictions."""
        choice = self._choice(
            state,
            state.neighbour_gains,
            state.remembering,
            limited,
            errors_to_begin=ERRORS_TO_USE_NEIGHBOURS,
            min_gain=MIN_GAIN_OF_NEIGHBOURS,
        )
        notes = list(state.notes)
        if choice.clients != those_among(state.remembering, choice.served):
            notes.append(_note_of_neighbours(choice.expected, choice.clients, state.remembering))
        if choice.limited:
            notes.append(fence_note(choice.limited))
        neighbours_worse = 0
        if not choice.clients and _are_worse(state.neighbour_gains, choice.served):
            neighbours_worse = state.neighbours_worse + 1
        return replace(
            state,
            remembering=choice.clients,
            neighbours_worse=neighbours_worse,
            notes=tuple(notes),
        )

    def _choice(
        self,
        state: TunedState,
        gains: Mapping[Client, Gain],
        used_before: tuple[Client, ...],
        limited: bool,
        *,
        errors_to_begin: float = 1.0,
        min_gain: float = 0.0,
    ) -> _Choice:
        """The clients to which something is expected to pay: a personal model, or nearest training examples.

        Args:
            state: The state.
            gains: Client -> its loss with it less that without.
            used_before: The clients that use it, sorted.
            limited: Whether one client's report is limited by those of the others.
            errors_to_begin: By how many standard errors of its group's mean gain a client's loss
                must be lower for it to begin.
            min_gain: By how much it must be lower at least.
        """
        assignment = self.method.assignment(state.inner)
        clients_of_groups = []
        expected_of_groups = []
        limited_clients: set[Client] = set()
        chosen_clients: list[Client] = []
        # Each group decides together, unless the gains of its clients differ.
        for group in assignment.groups:
            reports = _reports_of(gains, group)
            clients, expected, limited_in_group = _shrunk_within_fences(reports, limited)
            clients_of_groups.append(clients)
            expected_of_groups.append(expected)
            limited_clients.update(limited_in_group)
            # A client begins if that is expected to lower its loss by standard errors of the group's
            # mean gain, and stays with it as long as the loss is lower at all.
            least_gain = max(errors_to_begin * _error_of_mean(reports), min_gain)
            used = are_among(clients, used_before)
            chosen_clients += clients[expected < np.where(used, 0.0, -least_gain)].tolist()
        return _Choice(
            tuple(sorted(chosen_clients)),
            _by_client(clients_of_groups, expected_of_groups),
            assignment.row,
            tuple(limited_clients),
        )

    def _rested(
        self, state: TunedState, personal: tuple[Client, ...], clients: Mapping[Client, int]
    ) -> TunedState:
        """The state, in which personal models rest if they have been worse for long: the longer, the longer."""
        if personal or not _are_worse(state.gains, clients):
            return replace(state, worse=0, rest=0)
        worse = state.worse + 1
        if worse < WORSE_LOOKS_TO_REST:
            return replace(state, worse=worse, rest=0)
        rounds_of_rest = min(2 ** (worse - WORSE_LOOKS_TO_REST), MAX_ROUNDS_OF_REST)
        return replace(state, worse=worse, rest=rounds_of_rest)

    def assignment(self, state: TunedState) -> Assignment:
        # Looked up several times in a round: of many clients, it takes long to make.
        made_by, assignment = state.served
        if made_by is not self or assignment is None:
            assignment = self._assignment(state)
            state.__dict__["served"] = (self, assignment)
        return assignment

    def _assignment(self, state: TunedState) -> Assignment:
        base_assignment = self.method.assignment(state.inner)
        # The mean of an ensemble has no features.
        if state.remembering and not base_assignment.ensemble:
            base_assignment = replace(
                base_assignment,
                neighbours=self._neighbours(state),
                by_neighbours=state.remembering,
            )
        # A client's own values in other parts, such as layers that stay, are the method's.
        if base_assignment.part not in state.tuned:
            return base_assignment
        # Only a few of many clients may have one.
        in_groups = those_among(state.own, base_assignment.row)
        with_own_model: Collection[Client] = in_groups
        if base_assignment.plain:
            plain_clients = set(those_among(in_groups, base_assignment.plain))
            with_own_model = [client for client in in_groups if client not in plain_clients]
        return replace(base_assignment, plain=AllBut(base_assignment.row, with_own_model))

    def explain(self, state: TunedState) -> tuple[Note, ...]:
        return (*self.method.explain(state.inner), *state.notes)

    def admit(self, state: TunedState, clients: tuple[Client, ...]) -> TunedState:
        return replace(state, inner=self.method.admit(state.inner, clients), notes=())

    def retire(self, state: TunedState, clients: tuple[Client, ...]) -> TunedState:
        return replace(
            state,
            inner=self.method.retire(state.inner, clients),
            gains=entries_without(state.gains, clients),
            own=without(state.own, clients),
            neighbour_gains=entries_without(state.neighbour_gains, clients),
            remembering=without(state.remembering, clients),
            notes=(),
        )


def method_of(setting_value: Any, setting: str) -> Any:
    """Return the method that a setting names, from its name, from a table of its name and settings, or as it is.

    Args:
        setting_value: The value of the setting.
        setting: Its name, for the message.

    Raises:
        SettingError: There is no such method, a setting of it is not allowed, or clients cannot
            join and leave it.
    """
    method = made(setting_value)
    if not isinstance(method, Admits):
        raise SettingError(
            f"{setting} {method.name} must take newcomers: it has no methods admit and retire"
        )
    return method


class _Reports(NamedTuple):
    """The reports of some clients: shape ``(n,)`` their sorted ids, and ``(n, 3)`` mean, variance and count of each gain."""

    clients: np.ndarray
    numbers: np.ndarray


def _reports_of(gains: Mapping[Client, Gain], group: Collection[Client]) -> _Reports:
    """The reports of the clients of a group that have reported a gain, a number each."""
    reported = entries_among(gains, group)
    if isinstance(reported, ClientTable):
        clients = reported.clients.astype(np.int64)
        numbers = np.stack(reported.columns, axis=1).astype(np.float64, copy=False)
    else:
        clients = as_array(reported)
        numbers = np.array(list(reported.values()), dtype=np.float64).reshape(-1, 3)
    has_numbers = ~np.isnan(numbers).any(axis=1)
    return _Reports(clients[has_numbers], numbers[has_numbers])


def _by_client(
    clients: Sequence[np.ndarray], values: Sequence[np.ndarray]
) -> Mapping[Client, float]:
    """Client -> value, from the clients ``(n,)`` and values ``(n,)`` of several groups."""
    if not clients:
        return {}
    all_clients = np.concatenate(clients)
    all_values = np.concatenate(values)
    if len(all_clients) >= MIN_TABLE_ENTRIES:
        return ClientTable(all_clients, (all_values,), False)
    return dict(zip(all_clients.tolist(), all_values.tolist(), strict=True))


def _averaged(gain: Gain, gain_before: Gain | None) -> Gain:
    """A client's gain, with that of the report before as half of the mean: the noise of training averages out.

    Its held-out examples are the same, so its variance is that of one report.
    """
    if gain_before is None:
        return gain
    mean, variance, count = gain
    return (mean + gain_before[0]) / 2, variance, count


def _error_of_mean(reports: _Reports) -> float:
    """The standard error of the mean gain over all held-out examples of the clients; 0 without reports."""
    if not len(reports.clients):
        return 0.0
    _, variances, example_counts = reports.numbers.T
    shares = example_counts / example_counts.sum()
    # The variance of a single example is not known.
    known_variances = np.where(np.isfinite(variances), variances, 0.0)
    return float(np.sqrt(shares**2 @ known_variances))


def _makes_personal(task: Task) -> bool:
    """Whether a client can make a personal model with a task: it trains, and no layers stay at the client."""
    return task.trains and not task.gradient and not task.local_layers


def _are_worse(gains: Mapping[Client, Gain], clients: Collection[Client]) -> bool:
    """Whether personal models are worse than the method's by more than two standard errors, over all clients."""
    reports = _reports_of(gains, clients)
    if not len(reports.clients):
        return False
    mean_gains, _, example_counts = reports.numbers.T
    mean_gain = float(example_counts @ mean_gains / example_counts.sum())
    return mean_gain > 2 * _error_of_mean(reports)


def _spreads(variances: np.ndarray, example_counts: np.ndarray) -> np.ndarray:
    """The variances of a single example ``(n,)``; 0 for a client with one example, whose variance is not known."""
    return np.where(example_counts > 1, variances, 0.0) * example_counts


def shrunk(
    gains: Mapping[Client, Gain], group: Collection[Client], limited: bool = False
) -> dict[Client, float]:
    """Return the expected gain of each client of a group, shrunk towards the group's mean.

    Args:
        gains: Client -> the last report of its gain. Clients without one have no expected gain.
        group: The clients.
        limited: Whether one client's report is limited by those of the others in the mean of all,
            as some may be hostile.

    Returns:
        Client -> expected difference of losses; below zero where the personal model is better.

    Example:
        >>> reports = {1: (-0.3, 0.01, 20), 2: (-0.3, 0.01, 20), 3: (0.1, 0.1, 2)}
        >>> shrunk(reports, [1, 2, 3])[3] < 0  # its own evidence is weak
        True
    """
    clients, expected, _ = _shrunk_within_fences(_reports_of(gains, group), limited)
    return dict(zip(clients.tolist(), expected.tolist(), strict=True))


def _shrunk_within_fences(
    reports: _Reports, limited: bool
) -> tuple[np.ndarray, np.ndarray, set[Client]]:
    """The clients ``(n,)`` and expected gains ``(n,)`` of :func:`shrunk`, and the clients whose reports were limited."""
    reporting = reports.clients
    nobody = reporting[:0]
    if not len(reporting):
        return nobody, np.zeros(0), set()
    client_count = len(reporting)
    mean_gains, variances, example_counts = reports.numbers.T
    # In the mean of all, one hostile client decides nothing for the others.
    limited_means = mean_gains
    limited_clients: set[Client] = set()
    if limited:
        as_reported = (mean_gains, _spreads(variances, example_counts))
        within_fences = fenced_reports(*as_reported)
        limited_means, _ = within_fences
        limited_clients = clients_limited(reporting.tolist(), as_reported, within_fences)
    common_mean = float(example_counts @ limited_means / example_counts.sum())
    # The noise of single examples is estimated over the whole group, because one client has too few
    # examples for it.
    degrees = float((example_counts - 1).sum())
    if not degrees:
        return nobody, np.zeros(0), limited_clients
    example_variance = float(
        (example_counts * (example_counts - 1))
        @ np.where(example_counts > 1, variances, 0.0)
        / degrees
    )
    # Cochran's test: whether the clients' means differ by more than noise explains.
    excess = float(example_counts @ (mean_gains - common_mean) ** 2)
    # Rounding alone may give a single client an excess.
    clients_differ = client_count > 1 and excess > 0
    if clients_differ and example_variance:
        p_value = scipy.special.chdtrc(client_count - 1, excess / example_variance)
        clients_differ = p_value < MAX_P_TO_DIFFER
    # The variance between clients, by the method of moments (DerSimonian and Laird).
    moment_scale = float(example_counts.sum() - (example_counts**2).sum() / example_counts.sum())
    client_variance = 0.0
    if clients_differ:
        client_variance = max(excess - (client_count - 1) * example_variance, 0.0) / moment_scale
    if not client_variance:
        return reporting, np.full(client_count, common_mean), limited_clients
    # Each client's mean is shrunk to the mean of all, the more the noisier it is.
    precisions = 1 / (example_variance / example_counts + client_variance)
    mean_of_all = float(precisions @ limited_means / precisions.sum())
    own_mean_shares = client_variance * precisions
    expected = own_mean_shares * mean_gains + (1 - own_mean_shares) * mean_of_all
    return reporting, expected, limited_clients


def _mean_of(values: Mapping[Client, float], clients: tuple[Client, ...]) -> float:
    """The mean value of some sorted clients."""
    return float(np.mean(list(entries_among(values, clients).values())))


def _marked(clients: Mapping[Client, float], marked: tuple[Client, ...]) -> Mapping[Client, float]:
    """Client -> 1 for those of the sorted ``marked``, and 0 for others, in the order of ``clients``."""
    if isinstance(clients, ClientTable):
        is_marked = np.zeros(len(clients))
        is_marked[clients.positions(as_array(marked))] = 1.0
        return ClientTable(clients.clients, (is_marked,), False, clients.rank)
    is_marked_client = set(marked)
    return {client: float(client in is_marked_client) for client in clients}


def _note_of_neighbours(
    expected: Mapping[Client, float], used_now: tuple[Client, ...], used_before: tuple[Client, ...]
) -> Note:
    """Describe whose nearest training examples take part in predictions now, and whose did before."""
    description = f"nearest training examples help {len(used_now) or 'none'} of {len(expected)} clients to predict"
    mean_gain = 0.0
    if used_now:
        mean_gain = _mean_of(expected, used_now)
        description += f": they are expected to lower held-out loss by {-mean_gain:.3g} on average"
    return Note(
        kind="tune",
        effect="info",
        clients=tuple(sorted(expected)),
        text=description,
        numbers={
            "neighbours": float(len(used_now)),
            "before": float(len(used_before)),
            "gain": mean_gain,
        },
        values={
            GAIN_OF_NEIGHBOURS: expected,
            USES_NEIGHBOURS: _marked(expected, used_now),
        },
    )


def _note(
    expected: Mapping[Client, float], own_now: tuple[Client, ...], own_before: tuple[Client, ...]
) -> Note:
    """Describe which clients are served by their own models now, and which were before."""
    description = (
        f"personal models are better for {len(own_now) or 'none'} of {len(expected)} clients"
    )
    mean_gain = 0.0
    if own_now:
        mean_gain = _mean_of(expected, own_now)
        description += f": they are expected to lower held-out loss by {-mean_gain:.3g} on average"
    else:
        description += ": none lowers held-out loss"
    return Note(
        kind="tune",
        effect="info",
        clients=tuple(sorted(expected)),
        text=description,
        numbers={"own": float(len(own_now)), "before": float(len(own_before)), "gain": mean_gain},
        values={
            EXPECTED_GAIN: expected,
            USES_PERSONAL: _marked(expected, own_now),
        },
    )
