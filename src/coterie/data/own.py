"""Clients that have data of their own: checks of the pools, the split of each client, and the world.

Every door for a user's own data ends in :class:`OwnData`, whose ``world`` divides each client's
examples and makes the :class:`World`:

* :func:`from_lists`, at the end of this file: arrays, tables and data sets in memory. It takes each
  client's data through ``matching``, :func:`own_pools`, and :func:`of_pools` (for classes) or
  :func:`of_own_pools` (for anything else).
* ``datasets.folder``: one .npz file per client, through :func:`pools` and :func:`of_pools`.
* ``frames`` (:func:`coterie.from_frame`), ``datasets.table`` and ``datasets.images``, which make
  their pools themselves.

Flower's clients have data of their own at their own nodes, and use none of this. Refused are keys
that are not used, parts without targets, clients whose inputs or targets differ in shape or type,
labels that look like ids, and a model by name for data that do not say its inputs or outputs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence, Sized
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from numbers import Integral
from typing import Any

import numpy as np
import torch

from coterie.core import Client
from coterie.data.arrays import ordinary
from coterie.data.batches import Batch, Items, mapped
from coterie.data.duplicates import duplicate_hints, foreign_hints
from coterie.data.examples import Pool, check_distinct, own_pool, pool
from coterie.data.loss_sign import loss_name
from coterie.data.matching import Matching, check_scale
from coterie.data.net_cautions import of_unused_outputs
from coterie.data.objective import (
    CLASSIFICATION,
    MULTILABEL,
    REGRESSION,
    Objective,
    cross_entropy,
    squared_error,
)
from coterie.data.scaling import Constants, standardized, with_standardized_targets
from coterie.data.schema import NOT_SCALED, Schema
from coterie.data.spelling import check_unlike, client_called, name_of
from coterie.data.splits import check_shares, hold_out
from coterie.data.tasks import PredictionTask, hint
from coterie.data.tensor_sets import PARTS, arrays_of_pairs, as_arrays
from coterie.data.time_order import (
    ORDERS,
    about_order,
    in_time,
    order_of_each,
    spans_of,
    tested_by,
    time_column_hints,
    window_hints,
    with_spans,
)
from coterie.data.world import OF_A_WORLD, ClientData, World, by_names, whole
from coterie.models import nets
from coterie.randomness import Purpose, numpy_generator
from coterie.settings import UserError, brief, nearest
from coterie.settings.calls import public

SUBJECT = "subject"
"""Key, and column of a pool's ``meta``, of the subject of each example."""

KEYS_OF_PARTS = (("x_train", "y_train"), ("x_validation", "y_validation"), ("x_test", "y_test"))
"""Keys of the inputs and targets of the training, validation and test part."""


def pools(
    arrays: Mapping[str, Any],
    context: Any,
    make_pool: Callable[..., Pool] = pool,
    gap: Any = None,
) -> tuple[Pool | None, ...]:
    """Make the pools of one client.

    Args:
        arrays: Key -> array, with the keys of
            :func:`coterie.data.datasets.folder.read_folder`.
        context: The client, for messages.
        make_pool: Makes a pool of inputs and targets, for a client.
        gap: See :func:`coterie.from_lists`.

    Returns:
        The (training, validation, test) pools; a missing one is None.

    Raises:
        UserError: Keys or arrays are not valid.
    """
    # x and y stand for x_train and y_train: only one of the two spellings may be there.
    long_keys = {"x": "x_train", "y": "y_train"}
    array_by_key = {long_keys.get(key, key): array for key, array in arrays.items()}
    if len(array_by_key) < len(arrays):
        raise UserError(
            f"{context} must hold either x and y or x_train and y_train; it holds {', '.join(arrays)}"
        )
    check_keys(arrays, ("x", "y", *chain(*KEYS_OF_PARTS), SUBJECT, *ORDERS), context)
    for input_key, target_key in KEYS_OF_PARTS:
        is_pair = (input_key in array_by_key) == (target_key in array_by_key)
        if not is_pair or "x_train" not in array_by_key:
            allowed = (
                "x and y (or x_train and y_train), "
                "and x_validation, y_validation, x_test, y_test in pairs"
            )
            raise UserError(
                f"{context} must hold {allowed}; it holds {', '.join(arrays) or 'nothing'}"
            )

    # A message names the part only where the client has several of them.
    has_several_parts = sum(input_key in array_by_key for input_key, _ in KEYS_OF_PARTS) > 1
    client_pools: list[Pool | None] = []
    for input_key, target_key in KEYS_OF_PARTS:
        if input_key not in array_by_key:
            client_pools.append(None)
            continue
        part_context = context
        if has_several_parts:
            part_context = f"{context}: its {input_key.removeprefix('x_')} part"
        client_pools.append(
            make_pool(array_by_key[input_key], array_by_key[target_key], part_context)
        )

    # Subjects and times are those of the examples of the training pool.
    client_pools[0] = _with_subjects(client_pools[0], array_by_key.get(SUBJECT), context)
    return with_spans(tuple(client_pools), array_by_key, gap, context)


def _with_subjects(train_pool: Pool | None, subject: Any, context: Any) -> Pool | None:
    """A pool with the subjects of its examples, numbers or names ``(N,)``; None if it has none."""
    if train_pool is None or subject is None:
        return train_pool
    subjects = np.asarray(subject, None if hasattr(subject, "dtype") else object)
    is_one_each = subjects.shape == (len(train_pool),)
    if not is_one_each or not (_are_whole_numbers(subjects) or _are_names(subjects)):
        shown_subjects = f"{subjects.tolist()[:3]}"
        if not is_one_each:
            shown_subjects = f"an array of shape {subjects.shape}"
        raise UserError(
            f"{context}: subject must hold a whole number or a name for each of {len(train_pool)} examples, "
            f"got {shown_subjects:.60}"
        )
    # From here on subjects are numbers: a split keeps all examples of one number together.
    distinct_subjects, subject_numbers = np.unique(subjects, return_inverse=True)
    check_unlike(distinct_subjects, f"subjects of {context}")
    return replace(train_pool, meta={**train_pool.meta, SUBJECT: torch.from_numpy(subject_numbers)})


def _are_whole_numbers(subjects: np.ndarray) -> bool:
    """Whether subjects are all whole numbers; True and False are none."""
    if subjects.dtype.kind in "iu":
        return True
    return all(
        isinstance(subject, Integral) and not isinstance(subject, bool) for subject in subjects.flat
    )


def _are_names(subjects: np.ndarray) -> bool:
    """Whether subjects are all texts that are not empty."""
    return all(isinstance(subject, str) and subject for subject in subjects.flat)


def check_keys(keys: Iterable[str], allowed_keys: Sequence[str], context: Any) -> None:
    """Raise :class:`~coterie.settings.UserError` for the first of ``keys`` that is not allowed."""
    for key in keys:
        if key not in allowed_keys:
            raise UserError(
                f"{context} has {key!r}, which is not used{nearest(key, allowed_keys)} "
                f"(known: {', '.join(allowed_keys)})"
            )


def own_pools(
    data: Any,
    context: str,
    as_classes: bool,
    collate: Callable[[list[Any]], Any] | None,
    gap: Any = None,
) -> tuple[Pool | None, ...]:
    """Make the pools of a client in memory.

    Args:
        data: ``(x, y)``, ``(x, y, x_test, y_test)``, a mapping with the keys of
            :func:`coterie.data.datasets.folder.read_folder`, a
            data set whose items are read when they are needed, or a mapping with data sets as train
            and, optionally, validation and test, subject, and the orders of :func:`folder`.
        context: The client, for messages.
        as_classes: Whether targets must be class labels, or tokens.
        collate: See :class:`~coterie.data.batches.Items`.
        gap: See :func:`coterie.from_lists`.

    Returns:
        The (training, validation, test) pools; a missing one is None.

    Raises:
        UserError: The data are not valid.
    """
    if isinstance(data, Mapping) and "train" in data:
        return _pools_of_data_sets(data, context, collate, gap)
    if not isinstance(data, Mapping | Sequence):
        # A single data set, whose items are read when they are needed.
        return Pool(Items(data, collate), None), None, None
    if not isinstance(data, Mapping):
        if len(data) not in (2, 4):
            raise UserError(
                f"{context} must be (x, y) or (x, y, x_test, y_test), got {len(data)} arrays"
            )
        data = dict(zip(("x", "y", "x_test", "y_test"), data, strict=False))

    # Class labels go with inputs that are one array. Tuples and dicts of arrays stay as they are.
    arrays: dict[str, Any] = {}
    make_pool = pool if as_classes else own_pool
    for key, array in data.items():
        arrays[key] = array.detach() if isinstance(array, torch.Tensor) else array
        if isinstance(array, Mapping | tuple) and key not in (SUBJECT, *ORDERS):
            make_pool = own_pool
    return pools(arrays, context, make_pool, gap)


def _pools_of_data_sets(
    data: Mapping[str, Any],
    context: str,
    collate: Callable[[list[Any]], Any] | None,
    gap: Any,
) -> tuple[Pool | None, ...]:
    """The pools of a client with data sets as train and, optionally, validation and test."""
    check_keys(data, (*PARTS, SUBJECT, *ORDERS), context)
    if data["train"] is None:
        raise UserError(f"{context} has no data set to train on: its train is None")
    client_pools: list[Pool | None] = []
    for part in PARTS:
        dataset = data.get(part)
        if isinstance(dataset, Sized) and not len(dataset):
            raise UserError(f"{context}: its {part} data set has no items")
        client_pools.append(None if dataset is None else Pool(Items(dataset, collate), None))
    client_pools[0] = _with_subjects(client_pools[0], data.get(SUBJECT), context)
    return with_spans(tuple(client_pools), data, gap, context)


def of_pools(
    pools_of_clients: Mapping[str, Sequence[Pool | None]],
    as_features: bool,
    classes: int | None = None,
) -> OwnData:
    """Check that the clients' pools belong together.

    Args:
        pools_of_clients: Name of each client -> its pools.
        as_features: Whether whole-number inputs become floats, for models that take features and
            not tokens.
        classes: Number of classes; None takes the greatest label + 1.

    Returns:
        The clients' data.

    Raises:
        UserError: The inputs of two clients differ in shape or type, or a label is too great.
    """
    if as_features:
        pools_of_clients = _with_float_inputs(pools_of_clients)
    shape = _shape(pools_of_clients)
    _check_forms(pools_of_clients, "targets")

    # The model has an output for each class from 0 to the greatest label. Labels with large gaps
    # between them are ids, for which the last layer would have far too many outputs.
    labels_of_pools = [
        client_pool.targets.unique() for _, client_pool in _each_pool(pools_of_clients)
    ]
    labels = torch.cat(labels_of_pools).unique()
    greatest_label = int(labels.max())
    if classes is not None and greatest_label >= classes:
        raise UserError(f"labels must be 0 to {classes - 1}, found {greatest_label}")
    if classes is None and greatest_label >= MAX_OUTPUTS_PER_LABEL * len(labels):
        labels_found = (
            f"found {len(labels)} different labels from {int(labels.min())} to {greatest_label}"
        )
        raise UserError(
            f"labels must be class numbers from 0, {labels_found}; number them 0 to {len(labels) - 1}"
        )
    # Labels from 1 to K, as in many files, leave an output without examples.
    lowest_label = int(labels.min())
    hints = []
    if classes is None and lowest_label and len(labels) == greatest_label - lowest_label + 1 > 1:
        hints.append(
            f"the labels are {lowest_label} to {greatest_label}, and the model has an output for each number from 0: subtract "
            f"{lowest_label}, so that they begin at 0"
        )
    return OwnData(
        pools=pools_of_clients, shape=shape, outputs=classes or greatest_label + 1, hints=hints
    )


def _each_pool(
    pools_of_clients: Mapping[str, Sequence[Pool | None]],
) -> Iterator[tuple[str, Pool]]:
    """Each pool that is there, with the name of its client."""
    for client_name, client_pools in pools_of_clients.items():
        for client_pool in client_pools:
            if client_pool is not None:
                yield client_name, client_pool


def _each_changed(
    change: Callable[[Pool], Pool], pools_of_clients: Mapping[str, Sequence[Pool | None]]
) -> dict[str, tuple[Pool | None, ...]]:
    """The pools of all clients with ``change`` applied to each pool that is there."""
    changed_pools: dict[str, tuple[Pool | None, ...]] = {}
    for client_name, client_pools in pools_of_clients.items():
        changed_pools_of_client: list[Pool | None] = []
        for client_pool in client_pools:
            changed_pools_of_client.append(None if client_pool is None else change(client_pool))
        changed_pools[client_name] = tuple(changed_pools_of_client)
    return changed_pools


def _with_float_inputs(
    pools_of_clients: Mapping[str, Sequence[Pool | None]],
) -> Mapping[str, Sequence[Pool | None]]:
    """The pools with whole-number inputs as floats; pixels of one byte each stay bytes."""

    def with_floats(client_pool: Pool) -> Pool:
        if client_pool.inputs.dtype == torch.uint8:
            return client_pool
        return replace(client_pool, inputs=client_pool.inputs.float())

    # Large whole numbers, such as ids, may become equal floats, which would go unnoticed.
    for name, client_pool in _each_pool(pools_of_clients):
        if not client_pool.inputs.is_floating_point():
            check_distinct(client_pool.inputs, f"{client_called(name)}: input")
    return _each_changed(with_floats, pools_of_clients)


MAX_OUTPUTS_PER_LABEL = 10
"""The greatest label must be below this many times the number of different labels: a last layer has
an output for each number up to it."""


def _shape(pools_of_clients: Mapping[str, Sequence[Pool | None]]) -> tuple[int, ...]:
    """The shape of one input; raises :class:`~coterie.settings.UserError` if clients have inputs of several forms."""
    _check_forms(pools_of_clients, "inputs")
    _, first_pool = next(_each_pool(pools_of_clients))
    inputs = first_pool.inputs
    return tuple(inputs.shape[1:]) if isinstance(inputs, torch.Tensor) else ()


def _check_forms(pools_of_clients: Mapping[str, Sequence[Pool | None]], field_name: str) -> None:
    """Raise :class:`~coterie.settings.UserError` if the ``inputs``, or ``targets``, of clients have several forms."""
    # The first client of each form is the one that a message names.
    first_client_of_form: dict[str, str] = {}
    for client_name, client_pool in _each_pool(pools_of_clients):
        first_client_of_form.setdefault(_form(getattr(client_pool, field_name)), client_name)
    if len(first_client_of_form) > 1:
        (first_form, client_name), (other_form, other_name), *_ = first_client_of_form.items()
        raise UserError(
            f"the {field_name} of all clients must have the same shape and type: "
            f"{client_name} has {first_form}, {other_name} has {other_form}"
        )


def _with_targets_of_one_type(
    pools_of_clients: Mapping[str, Sequence[Pool | None]],
) -> Mapping[str, Sequence[Pool | None]]:
    """The pools with targets of floats where some clients have floats, and others whole numbers, to predict."""
    # Tuples and dicts of targets, and targets of one type, stay as they are.
    all_targets = [client_pool.targets for _, client_pool in _each_pool(pools_of_clients)]
    if not all(isinstance(targets, torch.Tensor) for targets in all_targets):
        return pools_of_clients
    if len({targets.dtype for targets in all_targets}) < 2:
        return pools_of_clients
    # Large whole numbers may become equal floats, which would go unnoticed.
    for name, client_pool in _each_pool(pools_of_clients):
        targets = client_pool.targets
        if not targets.is_floating_point():
            check_distinct(targets.reshape(len(targets), -1), f"{client_called(name)}: target")
    return _each_changed(
        lambda client_pool: replace(client_pool, targets=client_pool.targets.float()),
        pools_of_clients,
    )


def _form(inputs: Batch) -> str:
    """Shape and type of an input in words."""
    return str(mapped(lambda tensor: f"{tuple(tensor.shape[1:])} {tensor.dtype}", inputs))


def of_own_pools(
    pools_of_clients: Mapping[str, Sequence[Pool | None]], objective: Objective
) -> OwnData:
    """Check that the clients' pools, of any inputs and targets, belong together.

    Args:
        pools_of_clients: Name of each client -> its pools.
        objective: The loss and the metrics.

    Returns:
        The clients' data.

    Raises:
        UserError: The inputs of two clients differ in shape or type.
    """
    # Items are read one by one later, and nothing of them is known before.
    if any(
        isinstance(client_pool.inputs, Items) for _, client_pool in _each_pool(pools_of_clients)
    ):
        return OwnData(pools=pools_of_clients, shape=(), outputs=0, objective=objective)
    # Only classes must stay whole numbers.
    if objective.loss is not cross_entropy:
        pools_of_clients = _with_targets_of_one_type(pools_of_clients)
    _check_forms(pools_of_clients, "targets")

    # Numbers to predict say how many outputs a model needs. A loss of the user's own does not, and
    # so no model can be made by name.
    _, first_pool = next(_each_pool(pools_of_clients))
    targets = first_pool.targets
    are_numbers = isinstance(targets, torch.Tensor) and (
        targets.is_floating_point() or objective.loss is squared_error
    )
    outputs = math.prod(targets.shape[1:]) if are_numbers else 0
    shape = _shape(pools_of_clients)
    return OwnData(pools=pools_of_clients, shape=shape, outputs=outputs, objective=objective)


def client_data(
    name: str,
    pools: Sequence[Pool | None],
    train: float,
    validation: float,
    split_rng: np.random.Generator,
    samples: int | None = None,
) -> ClientData:
    """Make the splits of one client.

    The splits that the client does not provide are held out of its training pool. A client that
    provides test data trains on all examples that are not held out for validation. If the training
    pool has the subjects of its examples (:data:`SUBJECT` of its ``meta``), shares are shares of
    the subjects, and all examples of a subject are in the same split. If it has the times of its
    examples, splits follow each other in time, see ``time_order``; examples that reach into a later
    split are left out, and so are those of a subject that a later split has.

    Args:
        name: Name of the client.
        pools: Its (training, validation, test) pools; the last two may be None.
        train: Share of the training pool to train on.
        validation: Share of the training pool for validation; the rest is the test split.
        split_rng: Draws the order of the training pool.
        samples: Greatest number of examples of the training pool that are used; None uses all.

    Returns:
        The client's data.

    Raises:
        UserError: The client has too few examples.
    """
    train_pool, validation_pool, test_pool = pools
    assert train_pool is not None

    # Shares of the training pool. A part that the client provides takes nothing of it.
    validation_share = validation
    train_share = train
    if validation_pool is not None:
        validation_share = 0.0
        train_share = train / (train + (1 - train - validation) or 1)
    if test_pool is not None:
        train_share = 1.0
    divide = partial(
        hold_out,
        train_share=train_share,
        validation_share=validation_share,
        needs_test_part=test_pool is None,
        client_name=name,
        own_data=True,
    )

    # Random positions decide which examples are used, and in which order they are divided.
    positions = split_rng.permutation(len(train_pool))[:samples]
    spans = spans_of(train_pool.meta)
    subjects = None
    subject_at_position = None
    if SUBJECT in train_pool.meta:
        subjects = _numbered_by_rows(train_pool.meta[SUBJECT])
        subject_at_position = subjects.numpy()[positions]

    parts: Sequence[np.ndarray]
    if spans is not None:
        # By time: the random division only says how large each part should be.
        _, validation_part, test_part = divide(positions)
        part_sizes = len(validation_part), len(test_part)
        rows_of_parts = in_time(spans.numpy()[positions], part_sizes, subject_at_position, name)
        parts = [positions[part_rows] for part_rows in rows_of_parts]
    elif subject_at_position is None:
        # At random.
        parts = divide(positions)
    else:
        # By subject: all examples of a subject are in the part of the subject.
        shuffled_subjects = split_rng.permutation(np.unique(subject_at_position))
        parts = []
        for part_subjects in divide(shuffled_subjects, noun="subject"):
            parts.append(positions[np.isin(subject_at_position, part_subjects)])

    # Parts that the client provides replace the empty ones that were held out.
    whole_pool = whole(train_pool.inputs, train_pool.targets, subjects, spans)
    train_split, validation_split, test_split = (
        whole_pool.at(torch.from_numpy(part)) for part in parts
    )
    if validation_pool is not None:
        validation_split = whole(validation_pool.inputs, validation_pool.targets)
    if test_pool is not None:
        test_split = whole(test_pool.inputs, test_pool.targets)
    return ClientData(train=train_split, validation=validation_split, test=test_split, name=name)


def _numbered_by_rows(subjects: torch.Tensor) -> torch.Tensor:
    """Subjects ``(N,)`` with the numbers 0, 1, ... in the order of their first rows, which other clients cannot change."""
    _, first_rows, subject_of_row = np.unique(
        subjects.numpy(), return_index=True, return_inverse=True
    )
    return torch.from_numpy(first_rows.argsort().argsort()[subject_of_row])


@dataclass(frozen=True, eq=False, kw_only=True)
class OwnData:
    """The data of clients that have their own.

    Attributes:
        pools: Name of each client -> its (training, validation, test) pools, of which the last two
            may be None.
        shape: Shape of one input.
        outputs: Number of outputs of the model, such as the number of classes.
        objective: The loss and the metrics.
        about: Facts to record with a run, such as the names of the classes.
        named: Whether the names are those of the clients, and not only for messages.
        hints: See :class:`~coterie.data.world.World`.
        dtypes: The type of each column, if columns have names; see
            :class:`~coterie.data.schema.Schema`.
        encode: Makes features of what the pools have as inputs, once the splits are known: its
            constants are those of the training examples. Called with this object, the clients, and
            the facts of the earlier world or None; returns both. None if inputs are features already.
    """

    pools: Mapping[str, Sequence[Pool | None]]
    shape: tuple[int, ...]
    outputs: int
    objective: Objective = field(default_factory=Objective)
    about: Mapping[str, Any] = field(default_factory=dict)
    named: bool = True
    hints: Sequence[str] = ()
    dtypes: Sequence[str] = ()
    encode: (
        Callable[
            [OwnData, dict[Client, ClientData], Mapping[str, Any] | None],
            tuple[OwnData, dict[Client, ClientData]],
        ]
        | None
    ) = None

    @property
    def schema(self) -> Schema:
        """What the numbers mean, before they are standardized."""
        # A list in which a name occurs twice cannot be compared by name, and counts as not known.
        names_of_fact: dict[str, tuple[str, ...]] = {}
        for fact in ("features", "targets", "classes"):
            fact_names = tuple(map(str, self.about.get(fact, ())))
            names_of_fact[fact] = fact_names if len(set(fact_names)) == len(fact_names) else ()
        feature_names = names_of_fact["features"]
        return Schema(
            columns=feature_names,
            dtypes=tuple(self.dtypes) if len(self.dtypes) == len(feature_names) else (),
            targets=names_of_fact["targets"],
            task=str(self.about.get("task", "")),
            classes=names_of_fact["classes"],
            scaling=NOT_SCALED,
        )

    def world(
        self,
        model: str | Callable[[], torch.nn.Module],
        shares: tuple[float, float],
        seed: int,
        samples: int | None = None,
        standardize: str | Constants = "none",
        standardize_target: str | bool | Constants = "none",
        after: World | None = None,
        **world_fields: Any,
    ) -> World:
        """Make the world of these clients; their ids are 0, 1, ... in their order, new clients last.

        Args:
            model: Name of a model, or a function that makes a fresh module.
            shares: Shares of a training pool for training and validation, see :func:`client_data`.
            seed: Seed of the splits.
            samples: Greatest number of examples of each training pool that are used; None uses all.
            standardize: See :func:`~coterie.data.scaling.standardized`.
            standardize_target: See ``with_standardized_targets``.
            after: An earlier world, whose clients keep their ids, and whose pooled means and
                deviations are used again.
            **world_fields: Other fields of the :class:`World`, also in place of this object's.

        Returns:
            The world.

        Raises:
            UserError: A client has too few examples, or the model does not fit them.
        """
        # New clients continue the numbers of the earlier world, and take over its pooled constants.
        name_of_client = numbered(self.pools, after if self.named else None)
        if after is not None and standardize == "pooled" and "means" in after.about:
            standardize = (after.about["means"], after.about["deviations"])

        # The splits of each client, drawn by its own number: another client changes nothing.
        schema = self.schema
        clients: dict[Client, ClientData] = {}
        for client, name in name_of_client.items():
            split_rng = numpy_generator(seed, Purpose.DATA, 1, client)
            data_of_client = client_data(name, self.pools[name], *shares, split_rng, samples)
            clients[client] = replace(
                data_of_client, schema=schema, name=name if self.named else ""
            )

        # Columns of a table as it is become features, by constants of the training examples.
        own_data = self
        if self.encode is not None:
            own_data, clients = self.encode(self, clients, None if after is None else after.about)

        maker = own_data._factory(model) if isinstance(model, str) else model
        # Facts and hints that only the splits show.
        about, test_hints = tested_by(own_data.about, self.pools, clients.values())
        all_fields = {
            "objective": own_data.objective,
            "about": about,
            "hints": (
                *self.hints,
                *test_hints,
                *duplicate_hints(clients.values()),
                *foreign_hints(clients.values()),
            ),
            **world_fields,
        }
        if self.named:
            all_fields = by_names(all_fields, self.pools)

        # Constants are computed from the training splits, so they come last.
        world = World(clients=clients, model=maker, **all_fields)
        if not isinstance(model, str):
            output_hint = of_unused_outputs(world, own_data.outputs)
            world = replace(world, hints=(*world.hints, *([output_hint] if output_hint else ())))
        world = standardized(world, standardize)
        return with_standardized_targets(world, standardize_target, after)

    def _factory(self, model: str) -> Callable[[], torch.nn.Module]:
        """A function that makes the model of a name, with the inputs and outputs that the data need."""
        # Items of a data set are not read before, so nothing says their shape and targets.
        if not self.shape:
            raise UserError(
                f"the model {model!r} needs arrays as inputs, of one shape at all clients, "
                "and these are of another form: pass a function that makes yours"
            )
        if not self.outputs:
            raise UserError(
                f"how many outputs the model {model!r} needs is not known for the loss "
                f"{loss_name(self.objective.loss)} and targets that are whole numbers: "
                "pass a function that makes yours"
            )
        return nets.factory(model, self.shape, self.outputs)


def numbered(names: Collection[str], after: World | None) -> dict[Client, str]:
    """Number clients: 0, 1, ... in their order, or, after an earlier world, its clients as there and new ones from its last.

    Args:
        names: The names of the clients.
        after: The earlier world.

    Returns:
        Client -> its name, sorted by the numbers.

    Raises:
        UserError: The earlier world's clients have no names, or none of these.
    """
    # The first world numbers its clients in their order.
    if after is None:
        return dict(enumerate(names))
    earlier_ids = after.ids
    new_names: list[str] = []
    earlier_clients: dict[Client, str] = {}
    for client_name in names:
        if client_name in earlier_ids:
            earlier_clients[earlier_ids[client_name]] = client_name
        else:
            new_names.append(client_name)
    if not earlier_clients:
        raise UserError(
            "after must be a world with some of these clients, by their names; "
            f"it has none, such as {new_names[0]!r}"
        )
    # An id that a client of the earlier world has is never given to another one.
    first_new_id = 1 + max(after.clients)
    return dict(sorted(earlier_clients.items())) | dict(enumerate(new_names, first_new_id))


# ----------------------------------------------------------------------------------------------------
# A world of clients with their own data, in memory.


@public(more=OF_A_WORLD)
def from_lists(
    clients: Sequence[Any] | Mapping[str, Any],
    *,
    model: str | Callable[[], torch.nn.Module] = "mlp",
    classes: int | None = None,
    objective: Objective | None = None,
    collate: Callable[[list[Any]], Any] | None = None,
    order: Any = None,
    gap: Any = None,
    train: float = 0.8,
    validation: float = 0.1,
    seed: int = 0,
    standardize: str | Constants = "none",
    standardize_target: str | bool | Constants = "none",
    after: World | None = None,
    **world: Any,
) -> World:
    """Make a world of clients with their own data.

    Splits that a client does not provide are held out of its x, y by the shares ``train`` and
    ``validation``, at random or by time (``order``).

    Args:
        clients: Each client's data, in a list or by the clients' names: ``(x, y)``, ``(x, y,
            x_test, y_test)``, a mapping with the keys of a client's .npz file (x, y, x_validation,
            y_validation, x_test, y_test), a data set of PyTorch or Hugging Face, or a mapping with
            such data sets, or pairs (x, y), as train, validation and test. An x is an array or tensor, also a
            memory-mapped one, a data frame, or a tuple or dict of them, which the model receives as
            arguments. Names of columns, keys and classes are matched: all clients need the same
            ones. Items of a data set are read when they are needed. A mapping may also have a
            subject: numbers or names ``(N,)`` of the subjects of x or train, such as patients, see
            :func:`coterie.from_frame`; and an order, order_validation and order_test: the times of
            x (or train), x_validation and x_test.
        model: Name of a model, or a function that makes a fresh module.
        classes: Number of classes, by default the greatest label + 1.
        objective: The loss and the metrics. By default that of the targets: class numbers or
            tokens, several labels (booleans ``(N, m)``), or numbers to predict (floats, unless all
            are 0 or 1).
        collate: Function from a list of a data set's items to a batch (inputs, targets), for items
            of different lengths.
        order: The times of each client's x, in a list or by the clients' names, or one array for
            all: numbers, dates or ISO dates as text, ``(N,)``, or the first and last time that an
            example shows ``(N, 2)``. The latest examples test, and those before are for validation.
            Overlapping windows of a series are recognised; those that reach over a cut are left
            out. None divides at random, unless a client's mapping has an order.
        gap: Examples of a later part are later by more than this, in the unit of the order; of
            dates a duration such as ``"7D"``, ``"12h"`` or ``"30min"``.
        train: Share of x, y to train on.
        validation: Share of x, y for validation.
        seed: Seed of the splits.
        standardize: ``"none"``, ``"pooled"``, or means and deviations, see
            :func:`~coterie.data.scaling.standardized`.
        standardize_target: The same for the numbers to predict, see
            ``with_standardized_targets``; metrics and predictions stay in their unit.
        after: An earlier world of clients with names, to add clients to: its clients keep their
            ids, and new ones get the next. Its columns keep their order, and its pooled means and
            deviations are used again.
        **world: ``training``, ``truth``, ``augment``, ``buffers``, ``attendance`` of the
            :class:`World`.

    Returns:
        The world; its clients have the ids 0, 1, ... in their order.

    Raises:
        UserError: There is no client, the data of a client are not valid, or names differ between
            clients or look alike.

    Example:
        >>> import numpy as np
        >>> rng = np.random.default_rng(0)
        >>> made = from_lists([(rng.random((20, 5), "f"), rng.integers(0, 3, 20)) for _ in range(4)])
        >>> len(made.clients), len(made.clients[0].train)
        (4, 16)
        >>> from coterie.randomness import seeded
        >>> with seeded(0):
        ...     made.model()[-1]
        Linear(in_features=64, out_features=3, bias=True)
    """
    check_shares(train, validation, "share")
    _check_arguments(clients, classes, objective, seed)

    # Each client's data by its name, with plain arrays in place of tables, and columns, keys and
    # classes in the order of the first client.
    are_named = isinstance(clients, Mapping)
    data_of_key: dict[Any, Any]
    if isinstance(clients, Mapping):
        data_of_key = dict(clients)
    else:
        data_of_key = {f"client {number}": data for number, data in enumerate(clients)}
    if not data_of_key:
        raise UserError("a world needs at least one client")
    client_names = [name_of(key) for key in data_of_key]
    check_unlike(data_of_key, "clients")
    contexts = {name: f"client {name}" if are_named else name for name in client_names}
    time_hints = time_column_hints(data_of_key) if order is None else []
    for key, client_name in zip(data_of_key, client_names, strict=True):
        data_of_key[key] = arrays_of_pairs(data_of_key[key], contexts[client_name])
    data_of_key = order_of_each(data_of_key, order, gap)
    matching = Matching(None if after is None else after.about)
    data_of_client: dict[str, Any] = {}
    for client_name, given_data in zip(client_names, data_of_key.values(), strict=True):
        data_of_client[client_name] = matching.client(given_data, contexts[client_name])

    # Data sets that only hold tensors become arrays, and need not be read item by item.
    from_tensor_sets = {} if collate is not None else _arrays_of_tensor_sets(data_of_client)
    data_of_client |= from_tensor_sets

    # The objective, and whether the targets are classes.
    target_hints = [] if objective is not None else _target_hints(data_of_client.values())
    objective = objective or _objective(data_of_client.values())
    as_classes = objective.loss is cross_entropy
    if isinstance(model, str) and objective.plain_classes:
        # Torch's own cross entropy of class numbers is the same loss.
        as_classes = as_classes or _have_class_numbers(data_of_client.values())

    # A function that makes a model for a data set knows the shape of its items; a named model takes
    # what arrays become.
    as_they_are = set() if isinstance(model, str) else set(from_tensor_sets)
    becomes_classes = {name: as_classes and name not in as_they_are for name in client_names}
    check_scale(
        {contexts[name]: data_of_client[name] for name in client_names if becomes_classes[name]}
    )
    pools_of_clients: dict[str, Sequence[Pool | None]] = {}
    for client_name, given_data in data_of_client.items():
        pools_of_clients[client_name] = own_pools(
            given_data, contexts[client_name], becomes_classes[client_name], collate, gap
        )

    # Pools of classes are checked together, and say how many outputs a model needs.
    if as_classes and all(
        _has_classes(client_pool) for _, client_pool in _each_pool(pools_of_clients)
    ):
        as_features = isinstance(model, str) and not nets.takes_tokens(model)
        own_data = of_pools(pools_of_clients, as_features, classes)
    else:
        own_data = of_own_pools(pools_of_clients, objective)
    own_data = replace(
        own_data,
        named=are_named,
        objective=objective,
        about={**matching.about, **about_order("", gap, pools_of_clients)},
        hints=[*own_data.hints, *time_hints, *window_hints(pools_of_clients), *target_hints],
    )
    return own_data.world(
        model,
        (train, validation),
        seed,
        standardize=standardize,
        standardize_target=standardize_target,
        after=after,
        **world,
    )


def _check_arguments(clients: Any, classes: Any, objective: Any, seed: Any) -> None:
    """Refuse arguments of :func:`from_lists` that have another type."""
    # Numbers that came as text, from a file or a command line, are the usual mistake.
    for argument_name, argument, lowest in (("classes", classes, 1), ("seed", seed, 0)):
        if argument is not None and (
            not isinstance(argument, int | np.integer) or argument < lowest
        ):
            raise UserError(f"{argument_name} must be a whole number >= {lowest}, got {argument!r}")
    if objective is not None and not isinstance(objective, Objective):
        wanted = "such as coterie.REGRESSION"
        if callable(objective):
            wanted = "such as coterie.Objective(loss=YOUR_LOSS) for a loss of your own"
        raise UserError(f"objective must be a coterie.Objective, {wanted}, got {objective!r:.60}")
    if not isinstance(clients, Mapping | Iterable) or isinstance(
        clients, str | bytes | set | frozenset
    ):
        allowed = (
            "a list of each client's data, such as (x, y), "
            "or a mapping from the clients' names to them"
        )
        raise UserError(f"clients must be {allowed}, got {brief(clients)}")


def _arrays_of_tensor_sets(data_of_client: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Name -> the arrays of a client whose data sets only hold tensors; other clients are left out."""
    arrays_of_client: dict[str, dict[str, Any]] = {}
    for name, data in data_of_client.items():
        arrays = as_arrays(data)
        if arrays is not None:
            arrays_of_client[name] = arrays
    return arrays_of_client


def _has_classes(client_pool: Pool) -> bool:
    """Whether a pool has tensors, and class numbers as targets."""
    return (
        isinstance(client_pool.inputs, torch.Tensor) and not client_pool.targets.is_floating_point()
    )


def _have_class_numbers(clients: Iterable[Any]) -> bool:
    """Whether every client in memory has one whole number per example as target."""
    for data in clients:
        targets = _array_of(data, "y")
        if targets is None:
            return False
        # Sequences of classes have another place in torch's outputs than in a named model's.
        array = np.asarray(ordinary(targets, "y"))
        if array.ndim != 1 or array.dtype.kind not in "iu":
            return False
    return True


def _objective(clients: Iterable[Any]) -> Objective:
    """The objective for the clients' targets: of classes, unless they are several labels, or floats other than 0 and 1."""
    target_arrays = []
    for data in clients:
        targets = _array_of(data, "y")
        if targets is not None:
            target_arrays.append(np.asarray(ordinary(targets, "y")))
    # Columns of booleans are labels. Of one column, only floats with other values are numbers.
    if target_arrays and all(array.dtype == bool and array.ndim == 2 for array in target_arrays):
        return MULTILABEL
    for array in target_arrays:
        if array.dtype.kind == "f" and not np.isin(array, (0, 1)).all():
            return REGRESSION
    return CLASSIFICATION


def _target_hints(clients: Collection[Any]) -> list[str]:
    """A hint if the type of targets of tables of features decides between classes and numbers, and their values do not fit."""
    target_arrays = []
    for data in clients:
        inputs = _array_of(data, "x")
        targets = _array_of(data, "y")
        if targets is None or getattr(inputs, "ndim", 0) != 2:
            return []
        target_arrays.append(np.asarray(targets))
    # Targets of several columns, or of text, leave no doubt.
    if not target_arrays or any(array.ndim != 1 for array in target_arrays):
        return []
    if any(array.dtype.kind not in "iuf" for array in target_arrays):
        return []
    task_kind = "regression" if _objective(clients) is REGRESSION else "classification"
    for_classes = "class numbers must be integers"
    for_numbers = "objective=coterie.REGRESSION"
    sentence = hint(
        np.concatenate(target_arrays),
        PredictionTask(task_kind, 1),
        "the target",
        for_classes,
        for_numbers,
    )
    return [sentence] if sentence else []


def _array_of(data: Any, key: str) -> Any:
    """The inputs (``"x"``) or targets (``"y"``) of a client in memory; None if they are not one array."""
    array: Any = None
    if isinstance(data, Mapping):
        array = data.get(key, data.get(f"{key}_train"))
    elif isinstance(data, Sequence) and len(data) > 1:
        array = data["xy".index(key)]
    return None if isinstance(array, Mapping | tuple) else array
