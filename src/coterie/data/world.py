"""Worlds: clients' data, the model, the objective, and the true groups if they are known."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import numpy as np
import torch

from coterie.core import LONGEST_NAME, Client, Groups, Training, as_groups
from coterie.data.adversaries import Attack, flipped
from coterie.data.attendance import Attendance, id_of
from coterie.data.batches import Batch, Items, as_batch, mapped, rows, size
from coterie.data.objective import Objective
from coterie.data.on_demand import OnDemand, examined
from coterie.data.schema import Schema
from coterie.data.spelling import check_unlike
from coterie.models.layout import averaging
from coterie.models.nets import check_maker, described
from coterie.notebook.tables import count, labels, some, table
from coterie.printable import printable
from coterie.settings import SettingError, brief
from coterie.settings.calls import public

SPLITS = ("train", "validation", "test")
"""The fields of :class:`ClientData` that are splits."""


@public
@dataclass(frozen=True, eq=False)
class Split:
    """Some examples of a pool: ``inputs[index]`` with their own ``targets``.

    Two splits with the same ``inputs`` and ``index`` objects hold the same examples, so the outputs
    of a model for them are computed once.

    Attributes:
        inputs: The pool, shared by many splits and never copied or changed: a tensor ``(N, ...)``,
            a tuple or dict of such tensors, or :class:`~coterie.data.batches.Items`.
        index: Rows of the pool, ``(s,)`` int64.
        targets: The client's targets ``(s, ...)``, also a tuple or dict; its labels may be
            permuted. None for :class:`~coterie.data.batches.Items`, which have their own.
        subjects: Number of the subject of each example, such as a patient, ``(s,)`` int64. Examples
            of one subject are not independent, so they stay together where examples are divided.
            None if each example has its own.
        spans: First and last time that each example shows, ``(s, 2)`` int64 ranks; held-out
            examples are then the latest, see ``time_order``. None if examples have no order in time.
    """

    inputs: Batch
    index: torch.Tensor
    targets: Batch = None
    subjects: torch.Tensor | None = None
    spans: torch.Tensor | None = None

    def __post_init__(self) -> None:
        # Items read their targets themselves; all other examples need targets here.
        if self.targets is None and not isinstance(self.inputs, Items):
            raise ValueError("a split needs targets, unless its inputs are Items")
        if self.targets is not None and len(self.index) != size(self.targets):
            raise ValueError(f"{len(self.index)} examples but {size(self.targets)} targets")
        if self.subjects is not None and self.subjects.shape != self.index.shape:
            raise ValueError(f"{len(self.index)} examples but {len(self.subjects)} subjects")
        if self.spans is not None and self.spans.shape != (*self.index.shape, 2):
            raise ValueError(
                f"{len(self.index)} examples but spans of shape {tuple(self.spans.shape)}"
            )

    def __len__(self) -> int:
        # It takes a fifth of the time of ``len(self.index)``.
        return self.index.shape[0]

    def __repr__(self) -> str:
        if isinstance(self.inputs, Items):
            return f"<Split: {count(len(self), 'example')} of {type(self.inputs.dataset).__name__}>"
        input_shape = mapped(_example_shape, self.inputs)
        target_shape = mapped(_example_shape, self.targets)
        return (
            f"<Split: {count(len(self), 'example')}, inputs of shape {input_shape}, "
            f"targets of shape {target_shape}>"
        )

    @property
    def independent(self) -> int:
        """The number of independent observations: of subjects, or of examples if each has its own."""
        return len(self) if self.subjects is None else len(self.subjects.unique())

    def at(self, positions: torch.Tensor | slice) -> Split:
        """The split of the examples at some positions of this one."""
        targets = None if self.targets is None else rows(self.targets, positions)
        subjects = None if self.subjects is None else self.subjects[positions]
        spans = None if self.spans is None else self.spans[positions]
        return Split(self.inputs, self.index[positions], targets, subjects, spans)

    def batch(self, positions: torch.Tensor) -> tuple[Batch, Batch]:
        """(inputs, targets) of the examples at ``positions`` of this split."""
        if isinstance(self.inputs, Items):
            return self.inputs.batch(self.index[positions])
        return rows(self.inputs, self.index[positions]), rows(self.targets, positions)


def _example_shape(tensor: torch.Tensor) -> tuple[int, ...]:
    return tuple(tensor.shape[1:])


@public
def whole(
    inputs: Batch,
    targets: Batch = None,
    subjects: torch.Tensor | None = None,
    spans: torch.Tensor | None = None,
) -> Split:
    """Make a split that has its whole pool.

    Args:
        inputs: The pool: a tensor or array ``(N, ...)``, a tuple or dict of these, or
            :class:`~coterie.data.batches.Items`.
        targets: The targets ``(N, ...)``, in the same forms; None for Items, which have their own.
        subjects: Number of the subject of each example, ``(N,)`` int64; None if each has its own.
        spans: See :class:`Split`.

    Returns:
        The split. Tensors stay as they are; arrays become tensors, floats of float32 and whole
        numbers of int64.

    Raises:
        UserError: They hold no numbers, or have masked values.
    """
    if isinstance(inputs, Items):
        return Split(inputs, torch.arange(len(inputs)), targets, subjects, spans)
    inputs = as_batch(inputs, "inputs")
    if targets is not None:
        targets = as_batch(targets, "targets")
    return Split(inputs, torch.arange(size(inputs)), targets, subjects, spans)


@public
@dataclass(frozen=True, eq=False, kw_only=True)
class ClientData:
    """The data of one client, all from its own distribution.

    Attributes:
        train: Examples to train on.
        validation: Examples for choices; may be empty.
        test: Examples for tests, which no method receives.
        scoring: Examples set aside for validation scores, which no method receives either; None if
            there are none. See ``coterie.training.set_aside``.
        name: Its name, or empty; see :class:`World`.
        schema: What its numbers mean, as far as the tensors do not show it: names of columns and
            classes, scaling. None if that is not known. Nodes of a federation are compared by it.
    """

    train: Split
    validation: Split
    test: Split
    scoring: Split | None = None
    name: str = ""
    schema: Schema | None = None

    def __post_init__(self) -> None:
        for split_name in SPLITS:
            split = getattr(self, split_name)
            if not isinstance(split, Split):
                raise SettingError(
                    f"ClientData.{split_name} must be a coterie.Split, such as coterie.whole(x, y), "
                    f"got {brief(split)}"
                )

    def __repr__(self) -> str:
        shown_name = f" {printable(self.name)}" if self.name else ""
        split_sizes = (f"{len(getattr(self, split_name)):,} {split_name}" for split_name in SPLITS)
        return f"<ClientData{shown_name}: {', '.join(split_sizes)} examples>"


@public
@dataclass(frozen=True, eq=False, kw_only=True)
class Drift:
    """Data that change over rounds: every ``period`` rounds a time step begins, with new data of some or all clients.

    A client that keeps its data keeps the same :class:`ClientData` object, so nothing is copied.
    After the last time step its data stay.

    Attributes:
        period: Rounds of a time step.
        concepts: For each time step, client -> the number of its concept. Clients of one concept
            are a true group.
        data: For each time step, client -> its data.

    Raises:
        SettingError: The period is below 1.
        ValueError: There is no time step, or the time steps have different clients.
    """

    period: int
    concepts: Sequence[Mapping[Client, int]]
    data: Sequence[Mapping[Client, ClientData]]

    def __post_init__(self) -> None:
        if self.period < 1:
            raise SettingError(f"Drift.period must be an integer >= 1, got {self.period}")
        if not self.data or len(self.concepts) != len(self.data):
            raise ValueError(
                f"a drift needs data and concepts of each time step, got {len(self.data)} and {len(self.concepts)}"
            )
        if any(set(step) != set(self.data[0]) for step in (*self.concepts, *self.data)):
            raise ValueError("all time steps of a drift need the same clients")

    def step(self, round: int) -> int:
        """The time step, counted from 0, of a round, counted from 1."""
        return min(max(round - 1, 0) // self.period, len(self.data) - 1)

    def truth(self, round: int) -> Groups:
        """The true groups in a round."""
        return as_groups(clients_of_concepts(self.concepts[self.step(round)]))


def clients_of_concepts(concepts: Mapping[Client, int]) -> list[list[Client]]:
    """Return the clients of each concept, from client -> concept."""
    # A dict keeps the concepts in the order of their first clients.
    clients_of_concept: dict[int, list[Client]] = {}
    for client, concept in concepts.items():
        clients_of_concept.setdefault(concept, []).append(client)
    return list(clients_of_concept.values())


Value = TypeVar("Value")

OF_A_WORLD = ("training", "truth", "augment", "attendance", "attacks", "buffers", "about", "drift")
"""Fields of a :class:`World` that a function which makes one of data takes as they are."""


@public
@dataclass(frozen=True, eq=False, kw_only=True)
class World:
    """Clients, their model and training, and the true groups if they are known.

    Attributes:
        clients: Client -> its data; with a drift, those of the first time step. The keys are whole
            numbers, or names of at most 100 characters; clients with names have the ids 0, 1, ...
            in their order, and are shown by their names. Data that are made on demand
            (:func:`coterie.from_function`) are not all in memory.
        model: Function that makes a module with fresh parameters from torch's global generator;
            engines call it in a seeded scope.
        training: Settings of local training.
        objective: The loss and the metrics.
        truth: The true groups, by ids or names, or None. With a drift, its concepts are the truth.
        augment: Function of (inputs, generator) that returns inputs; used for training batches
            only.
        attendance: Rounds in which clients are present, by ids or names. Where all names are whole
            numbers, a number is a name; so it is in ``attacks`` and ``truth``.
        attacks: Client, by its id or name -> the attack on its updates; flipped labels are already
            in its data.
        buffers: Names of the model's float buffers, such as BatchNorm's statistics, that are sent
            and averaged; ``*`` stands for any text. The others keep their first values. None leaves
            this to ``model``.
        about: Facts to record with a run: text, numbers, and lists of them, such as the names of
            the classes.
        drift: Data that change over rounds, and who has which concept when; by ids, not names.
            None: data that stay.
        hints: Sentences about the data for the user, such as that a column looks like time.

    Raises:
        ValueError: There is no client, or a client has no training data or a wrong id, or the drift
            does not fit.
        SettingError: A name is too long, empty or given twice, no client trains, ``model``,
            ``training`` or ``objective`` is of another kind, ``truth`` does not have each client
            once, or ``about`` has what no record can hold.
    """

    clients: Mapping[Client, ClientData]
    model: Callable[[], torch.nn.Module]
    training: Training = field(default_factory=Training)
    objective: Objective = field(default_factory=Objective)
    truth: Groups | None = None
    augment: Callable[[torch.Tensor, torch.Generator], torch.Tensor] | None = None
    attendance: Attendance = field(default_factory=Attendance)
    attacks: Mapping[Client, Attack] = field(default_factory=dict)
    buffers: Sequence[str] | None = None
    about: Mapping[str, Any] = field(default_factory=dict)
    drift: Drift | None = None
    hints: Sequence[str] = ()

    def __post_init__(self) -> None:
        # First what the next steps read.
        self._check_types_of_clients()
        # From here on, clients have ids everywhere, also those that were given by name.
        self._take_names()
        self._take_ids()
        self._check_types()
        # The choice of buffers becomes part of the function that makes the model.
        if self.buffers is not None:
            object.__setattr__(self, "model", averaging(self.model, self.buffers))
            object.__setattr__(self, "buffers", None)
        if not self.clients:
            raise ValueError("a world needs at least one client")
        if not (self.training.steps or self.training.epochs):
            raise SettingError(
                "training.epochs must be >= 1 (or training.steps be set) for clients to train, got 0"
            )
        if not self.attendance.founders(self.clients):
            raise ValueError("a world needs at least one client in its first round")
        self._check_drift()
        self._take_truth()
        unwritable = _unwritable(self.about)
        if unwritable is not None:
            raise SettingError(
                "World.about must have text, finite numbers, and lists of them by name, "
                f"got {unwritable:.60}"
            )
        self._check_clients()

    def _check_types_of_clients(self) -> None:
        """Check the types of ``clients`` and ``attendance``, which the next steps read."""
        # A list of what is wrong, because None may be among the wrong values.
        wrong_values: list[Any] = [self.clients]
        if isinstance(self.clients, Mapping):
            wrong_values = [
                data for data in examined(self.clients).values() if not isinstance(data, ClientData)
            ]
        if wrong_values:
            raise SettingError(
                "World.clients must be a mapping from ids or names to coterie.ClientData, "
                f"got {brief(wrong_values[0])}"
            )
        if not isinstance(self.attendance, Attendance):
            raise SettingError(
                f"World.attendance must be a coterie.Attendance, got {brief(self.attendance)}"
            )

    def _check_types(self) -> None:
        """Check the types of ``training``, ``objective`` and ``model``."""
        for field_name, expected_type in (("training", Training), ("objective", Objective)):
            field_value = getattr(self, field_name)
            if not isinstance(field_value, expected_type):
                raise SettingError(
                    f"World.{field_name} must be a coterie.{expected_type.__name__}, got {field_value!r:.60}"
                )
        check_maker(self.model, "World.model")

    def _check_clients(self) -> None:
        """Check each client's id and training data, in every time step."""
        for clients in self.steps:
            for client, data in examined(clients).items():
                if not isinstance(client, int) or isinstance(client, bool) or client < 0:
                    raise ValueError(f"a client id must be a non-negative integer, got {client!r}")
                if not len(data.train):
                    raise ValueError(f"client {self.name(client)} has no training data")

    def _check_drift(self) -> None:
        if self.drift is None:
            return
        if self.truth is not None:
            raise ValueError("World.truth must be None with a drift, whose concepts are the truth")
        if set(self.drift.data[0]) != set(self.clients):
            raise ValueError("World.drift must have the ids of World.clients")

    def _take_truth(self) -> None:
        """Sort the true groups, give named clients in them their ids, and check that they have each client once."""
        if self.truth is None:
            return
        # Names become ids; what is no name stays, and is checked below.
        ids: Mapping[Any, Client] = self.ids
        try:
            truth_by_ids = [[ids.get(client, client) for client in group] for group in self.truth]
            groups_per_client = Counter(client for group in truth_by_ids for client in group)
        except TypeError:
            raise SettingError(
                "World.truth must be groups of clients, such as [[0, 1], [2]], "
                f"got {self.truth!r:.60}"
            ) from None
        for client, group_count in groups_per_client.items():
            if client not in self.clients:
                raise SettingError(f"World.truth has client {client!r:.60}, which does not exist")
            if group_count > 1:
                raise SettingError(
                    f"World.truth has client {self.name(client)} {group_count} times: true groups "
                    "must not overlap"
                )
        # A true group must be known for each client, or for none.
        missing_clients = set(self.clients) - set(groups_per_client)
        if missing_clients:
            raise SettingError(
                f"World.truth lacks client {self.name(min(missing_clients))}: every client must be "
                "in a true group"
            )
        object.__setattr__(self, "truth", as_groups(truth_by_ids))

    @property
    def steps(self) -> Sequence[Mapping[Client, ClientData]]:
        """For each time step, client -> its data; a single step without a drift."""
        return (self.clients,) if self.drift is None else self.drift.data

    @property
    def has_validation_scores(self) -> bool:
        """Whether clients have examples that are set aside for validation scores."""
        return any(data.scoring is not None for data in examined(self.clients).values())

    @property
    def examined(self) -> World:
        """The world whose data a check looks at: this one, or some clients of one whose data are made on demand."""
        if not isinstance(self.clients, OnDemand):
            return self
        return replace(
            self, clients=self.clients.examples, truth=None, attendance=Attendance(), attacks={}
        )

    def only(self, clients: Collection[Client]) -> World:
        """The world of some of the clients, with the same ids.

        Args:
            clients: The clients, at least one.
        """
        chosen = set(clients)
        truth = None
        if self.truth is not None:
            true_groups = [[client for client in group if client in chosen] for group in self.truth]
            truth = as_groups(filter(None, true_groups))
        drift = None
        if self.drift is not None:
            concepts = [_of_clients(step, chosen) for step in self.drift.concepts]
            data = [_of_clients(step, chosen) for step in self.drift.data]
            drift = replace(self.drift, concepts=concepts, data=data)
        attacks = {client: attack for client, attack in self.attacks.items() if client in chosen}
        return replace(
            self,
            clients=_of_clients(self.clients, chosen),
            truth=truth,
            drift=drift,
            attendance=self.attendance.of(chosen),
            attacks=attacks,
        )

    def step(self, round: int) -> int:
        """The time step, counted from 0, of a round, counted from 1; 0 without a drift."""
        return 0 if self.drift is None else self.drift.step(round)

    def true_groups(self, round: int) -> Groups | None:
        """The true groups in a round, counted from 1; None if they are not known."""
        return self.truth if self.drift is None else self.drift.truth(round)

    def _take_names(self) -> None:
        """Give clients with names ids, and check the names."""
        # Clients whose data are made on demand are numbered and have no names.
        if isinstance(self.clients, OnDemand):
            return
        given_keys: Iterable[Any] = self.clients
        # NumPy's integers become Python's.
        if any(isinstance(key, np.integer) for key in given_keys):
            plain_keys = [int(key) if isinstance(key, np.integer) else key for key in given_keys]
            object.__setattr__(
                self, "clients", dict(zip(plain_keys, self.clients.values(), strict=True))
            )
        if any(isinstance(key, str) for key in self.clients):
            self._number_named_clients()
        # The names may also have come with the clients' data.
        client_names = [data.name for data in self.clients.values() if data.name]
        if client_names and len(client_names) < len(self.clients):
            raise SettingError(
                f"either all clients have a name or none, and {len(client_names)} of "
                f"{len(self.clients)} have one"
            )
        for client_name in client_names:
            check_name(client_name, "clients")
        for client_name, occurrences in Counter(client_names).items():
            if occurrences > 1:
                raise SettingError(f"two clients have the name {client_name!r}; names must differ")
        check_unlike(client_names, "clients")

    def _number_named_clients(self) -> None:
        """Give the ids 0, 1, ... to clients whose keys are names, in their order."""
        named_clients: dict[Client, ClientData] = {}
        for client, (given_name, data) in enumerate(self.clients.items()):
            check_name(str(given_name), "clients")
            named_clients[client] = replace(data, name=str(given_name))
        # Attendance, attacks and truth may refer to clients by these names.
        about_clients = {field_name: getattr(self, field_name) for field_name in ABOUT_CLIENTS}
        about_clients = by_names(about_clients, self.clients)
        object.__setattr__(self, "clients", named_clients)
        for field_name, field_value in about_clients.items():
            object.__setattr__(self, field_name, field_value)

    def _take_ids(self) -> None:
        """Give named clients in the attendance and the attacks their ids, and check that each of them exists."""
        attendance = self.attendance
        joins = self._by_id(attendance.joins, "World.attendance")
        away = self._by_id(attendance.away, "World.attendance")
        object.__setattr__(self, "attendance", replace(attendance, joins=joins, away=away))
        object.__setattr__(self, "attacks", self._by_id(self.attacks, "World.attacks"))

    def _by_id(self, value_by_name_or_id: Mapping[Any, Any], owner: str) -> dict[Client, Any]:
        """A table of clients by name or id, by id alone; ``owner`` is what messages call it."""
        ids = self.ids
        value_by_id: dict[Client, Any] = {}
        for name_or_id, value in value_by_name_or_id.items():
            client = id_of(owner, name_or_id, ids) if isinstance(name_or_id, str) else name_or_id
            if client not in self.clients:
                raise SettingError(f"{owner} has client {name_or_id!r}, which does not exist")
            if client in value_by_id:
                raise SettingError(
                    f"{owner} has client {self.name(client)} twice, by its name and by its id"
                )
            value_by_id[client] = value
        return value_by_id

    @property
    def client_names(self) -> dict[Client, str]:
        """Client -> its name; empty if clients have no names."""
        if isinstance(self.clients, OnDemand):
            return {}
        return {client: data.name for client, data in self.clients.items() if data.name}

    @property
    def ids(self) -> dict[str, Client]:
        """Name of a client -> its id; empty if clients have no names."""
        return {name: client for client, name in self.client_names.items()}

    def name(self, client: Client) -> str:
        """The client's name, or its id as text."""
        if isinstance(self.clients, OnDemand):
            return str(client)
        return self.clients[client].name or str(client)

    def __repr__(self) -> str:
        # Examples of all clients together, unless that would make the data of all of them.
        split_sizes = "data made on demand"
        if not isinstance(self.clients, OnDemand):
            examples_of: Counter[str] = Counter()
            for data in self.clients.values():
                for split_name in SPLITS:
                    examples_of[split_name] += len(getattr(data, split_name))
            split_sizes = (
                f"{examples_of['train']:,} train, {examples_of['validation']:,} validation and "
                f"{examples_of['test']:,} test examples"
            )
        truth_words = ""
        if self.drift is not None:
            time_steps = count(len(self.drift.data), "time step")
            truth_words = f"; {time_steps} of {count(self.drift.period, 'round')}"
        elif self.truth is not None:
            truth_words = f"; {count(len(self.truth), 'true group')}"
        shown_names = some(range(len(self.clients)))
        if not isinstance(self.clients, OnDemand):
            shown_names = some([self.name(client) for client in self.clients])
        client_count = count(len(self.clients), "client")
        return f"<World of {client_count}: {shown_names}; {split_sizes}; metric {self.objective.main}{truth_words}>"

    def _repr_html_(self) -> str:
        # A row for each client, with its true group if it is known; of many, for some.
        group_of_client: dict[Client, int] = {}
        for number, members in enumerate(self.truth or ()):
            group_of_client |= dict.fromkeys(members, number)
        table_rows = []
        for client, data in examined(self.clients).items():
            table_row: dict[str, Any] = {"client": self.name(client)}
            table_row |= {split_name: len(getattr(data, split_name)) for split_name in SPLITS}
            if group_of_client:
                table_row["true group"] = group_of_client.get(client)
            table_rows.append(table_row)
        return table(repr(self)[1:-1], table_rows)


def _of_clients(values: Mapping[Client, Value], clients: Iterable[Client]) -> dict[Client, Value]:
    """Client -> value, of some clients in ascending order."""
    return {client: values[client] for client in sorted(clients)}


ABOUT_CLIENTS = ("attendance", "attacks", "truth")
"""The fields of a :class:`World` that are about certain clients."""


def by_names(fields: Mapping[str, Any], names: Iterable[Any]) -> dict[str, Any]:
    """Where all names of clients are whole numbers, a number in a field that is about clients stands for a name, not an id.

    Args:
        fields: Some fields of a :class:`World`, in which clients may be given by names or ids.
        names: The names of all clients.

    Returns:
        The fields, in which such a number is a text.
    """
    # Only where every name is a number, a number may be meant as a name.
    labels_of_clients = labels(dict(enumerate(map(str, names))))
    if not all(isinstance(label, int) for label in labels_of_clients.values()):
        return dict(fields)
    renamed_fields = dict(fields)
    # Arguments of another type stay as they are, and are refused by the World.
    attendance = fields.get("attendance")
    if isinstance(attendance, Attendance):
        renamed_fields["attendance"] = replace(
            attendance, joins=_by_name(attendance.joins), away=_by_name(attendance.away)
        )
    attacks = fields.get("attacks")
    if isinstance(attacks, Mapping):
        renamed_fields["attacks"] = _by_name(attacks)
    truth = fields.get("truth")
    if isinstance(truth, list | tuple):
        named_groups = []
        for group in truth:
            if isinstance(group, list | tuple):
                group = list(map(_as_name, group))
            named_groups.append(group)
        renamed_fields["truth"] = named_groups
    return renamed_fields


def _by_name(values: Mapping[Any, Any]) -> dict[Any, Any]:
    return {_as_name(client): value for client, value in values.items()}


def _as_name(client: Any) -> Any:
    """A whole number as text; anything else as it is."""
    is_number = isinstance(client, int | np.integer) and not isinstance(client, bool)
    return str(client) if is_number else client


def _unwritable(value: Any) -> str | None:
    """The first value among facts that a record cannot hold, in words; None if there is none."""
    # Tables need names, and lists and tables are searched to their ends.
    if isinstance(value, Mapping):
        for key in value:
            if not isinstance(key, str):
                return repr(key)
        return _unwritable(list(value.values()))
    if isinstance(value, list | tuple):
        for inner_value in value:
            unwritable = _unwritable(inner_value)
            if unwritable is not None:
                return unwritable
        return None
    # JSON has no NaN and no infinity.
    is_writable = isinstance(value, str | int) or (
        isinstance(value, float) and math.isfinite(value)
    )
    return None if is_writable else repr(value)


def check_name(name: str, owner: str) -> None:
    """Check the name of a client or a class, which records and reports show.

    Args:
        name: The name.
        owner: Where it stands, for the message.

    Raises:
        SettingError: The name is long or empty, or has characters that no file can hold.
    """
    has_control_character = any(
        character < " " or "\ud800" <= character <= "\udfff" for character in name
    )
    if len(name) > LONGEST_NAME or not name.strip() or has_control_character:
        raise SettingError(
            f"{owner}: names must have at most {LONGEST_NAME} characters and no control "
            f"characters, got {name[:LONGEST_NAME]!r}"
        )


# ----------------------------------------------------------------------------------------------------
# Worlds with adversaries.


def with_attacks(world: World, attacks: Mapping[Client, Attack]) -> World:
    """Return ``world`` in which some clients carry out an attack; test data do not change.

    Args:
        world: The world without adversaries.
        attacks: Adversary -> its attack.

    Returns:
        The world.

    Raises:
        SettingError: label-flip has no class labels to flip.
    """
    flipping_clients = [client for client, attack in attacks.items() if attack.kind == "label-flip"]
    if not flipping_clients:
        return replace(world, attacks=attacks) if attacks else world
    # Labels are flipped in every time step; a drift keeps the steps.
    clients_of_steps = [
        _with_flipped_labels(world, clients, flipping_clients) for clients in world.steps
    ]
    drift = None if world.drift is None else replace(world.drift, data=clients_of_steps)
    return replace(world, attacks=attacks, clients=clients_of_steps[0], drift=drift)


def _with_flipped_labels(
    world: World, clients: Mapping[Client, ClientData], flipping_clients: Collection[Client]
) -> dict[Client, ClientData]:
    """All clients of a time step; adversaries flip the labels that they train and validate on."""
    # Labels can be flipped only if they are classes, of which the model knows the number.
    model_description = described(world.model)
    has_other_targets = any(data.train.targets.ndim > 1 for data in clients.values())
    if model_description is None or has_other_targets:
        raise SettingError(
            "Scenario.attack label-flip needs one class label per example, and these clients have "
            "other targets"
        )
    class_count = model_description["classes"]
    changed_clients = dict(clients)
    for client in flipping_clients:
        data = clients[client]
        train_labels = flipped(data.train.targets, class_count)
        validation_labels = flipped(data.validation.targets, class_count)
        changed_clients[client] = replace(
            data,
            train=replace(data.train, targets=train_labels),
            validation=replace(data.validation, targets=validation_labels),
        )
    return changed_clients
