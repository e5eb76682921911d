"""Clients with their own data: the pools of each client, from one .npz file per client or a Python list of arrays."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence, Sized
from dataclasses import dataclass, field, replace
from numbers import Integral
from typing import Any

import numpy as np
import torch

from coterie.core import Client
from coterie.data.arrays import ordinary
from coterie.data.batches import Batch, Items, mapped
from coterie.data.duplicates import duplicate_hints
from coterie.data.examples import Pool, check_distinct, own_pool, pool
from coterie.data.matching import Matching, check_scale
from coterie.data.objective import (
    CLASSIFICATION,
    MULTILABEL,
    REGRESSION,
    Objective,
    cross_entropy,
    squared_error,
)
from coterie.data.order import (
    ORDERS,
    about_order,
    in_time,
    order_of_each,
    spans_of,
    tested_by,
    window_hints,
    with_spans,
)
from coterie.data.scaling import Constants, standardized, with_standardized_targets
from coterie.data.schema import NONE, Schema
from coterie.data.spelling import check_unlike, name_of
from coterie.data.splits import check_shares, hold_out
from coterie.data.tasks import Task, hint
from coterie.data.tensor_sets import as_arrays
from coterie.data.world import OF_A_WORLD, ClientData, World, by_names, whole
from coterie.models import nets
from coterie.randomness import Purpose, numpy_generator
from coterie.settings import UserError, brief, nearest
from coterie.settings.calls import public

SUBJECT = "subject"
"""Key, and column of a pool's ``meta``, of the subject of each example."""

KEYS = (("x_train", "y_train"), ("x_validation", "y_validation"), ("x_test", "y_test"))


def pools(
    arrays: Mapping[str, Any], where: Any, make: Callable[..., Pool] = pool, gap: Any = None
) -> tuple[Pool | None, ...]:
    """Make the pools of one client.

    Args:
        arrays: Key -> array, with the keys of
            :func:`coterie.data.datasets.folder.read_folder`.
        where: The client, for messages.
        make: Makes a pool of inputs and targets, for a client.
        gap: See :func:`coterie.from_lists`.

    Returns:
        The (training, validation, test) pools; a missing one is None.

    Raises:
        UserError: Keys or arrays are not valid.
    """
    named = {{"x": "x_train", "y": "y_train"}.get(key, key): value for key, value in arrays.items()}
    if len(named) < len(arrays):
        raise UserError(
            f"{where} must hold either x and y or x_train and y_train; it holds {', '.join(arrays)}"
        )
    check_keys(arrays, ("x", "y", *(key for pair in KEYS for key in pair), SUBJECT, *ORDERS), where)
    for x, y in KEYS:
        if (x in named) != (y in named) or KEYS[0][0] not in named:
            known = "x and y (or x_train and y_train), and x_validation, y_validation, x_test, y_test in pairs"
            raise UserError(f"{where} must hold {known}; it holds {', '.join(arrays) or 'nothing'}")
    several = sum(x in named for x, _ in KEYS) > 1
    made: list[Pool | None] = []
    for x, y in KEYS:
        part = f"{where}: its {x.removeprefix('x_')} part" if several else where
        made.append(make(named[x], named[y], part) if x in named else None)
    return with_spans(
        (_with_subjects(made[0], named.get(SUBJECT), where), *made[1:]), named, gap, where
    )


def _with_subjects(pool: Pool | None, subject: Any, where: Any) -> Pool | None:
    """A pool with the subjects of its examples, numbers or names ``(N,)``; None if it has none."""
    if pool is None or subject is None:
        return pool
    names = np.asarray(subject, None if hasattr(subject, "dtype") else object)
    numbers = names.dtype.kind in "iu" or all(
        isinstance(one, Integral) and not isinstance(one, bool) for one in names.flat
    )
    if names.shape != (len(pool),) or not (
        numbers or all(isinstance(one, str) and one for one in names.flat)
    ):
        what = (
            f"an array of shape {names.shape}"
            if names.shape != (len(pool),)
            else f"{names.tolist()[:3]}"
        )
        raise UserError(
            f"{where}: subject must hold a whole number or a name for each of {len(pool)} examples, got {what:.60}"
        )
    distinct, number = np.unique(names, return_inverse=True)
    check_unlike(distinct, f"subjects of {where}")
    return replace(pool, meta={**pool.meta, SUBJECT: torch.from_numpy(number)})


def check_keys(given: Iterable[str], known: Sequence[str], where: Any) -> None:
    """Raise :class:`~coterie.settings.UserError` for the first of ``given`` that is not one of ``known``."""
    for key in given:
        if key not in known:
            raise UserError(
                f"{where} has {key!r}, which is not used{nearest(key, known)} (known: {', '.join(known)})"
            )


def own_pools(
    data: Any,
    where: str,
    classes: bool,
    collate: Callable[[list[Any]], Any] | None,
    gap: Any = None,
) -> tuple[Pool | None, ...]:
    """Make the pools of a client in memory.

    Args:
        data: ``(x, y)``, ``(x, y, x_test, y_test)``, a mapping with the keys of
            :func:`coterie.data.datasets.folder.read_folder`, a
            data set whose items are read when they are needed, or a mapping with data sets as train
            and, optionally, validation and test, subject, and the orders of :func:`folder`.
        where: The client, for messages.
        classes: Whether targets must be class labels, or tokens.
        collate: See :class:`~coterie.data.batches.Items`.
        gap: See :func:`coterie.from_lists`.

    Returns:
        The (training, validation, test) pools; a missing one is None.

    Raises:
        UserError: The data are not valid.
    """
    if isinstance(data, Mapping) and "train" in data:
        check_keys(data, ("train", "validation", "test", SUBJECT, *ORDERS), where)
        if data["train"] is None:
            raise UserError(f"{where} has no data set to train on: its train is None")
        parts = [data.get(name) for name in ("train", "validation", "test")]
        for name, part in zip(("train", "validation", "test"), parts, strict=True):
            if isinstance(part, Sized) and not len(part):
                raise UserError(f"{where}: its {name} data set has no items")
        first, *rest = (
            None if part is None else Pool(Items(part, collate), None) for part in parts
        )
        return with_spans(
            (_with_subjects(first, data.get(SUBJECT), where), *rest), data, gap, where
        )
    if not isinstance(data, Mapping | Sequence):
        return Pool(Items(data, collate), None), None, None
    if not isinstance(data, Mapping):
        if len(data) not in (2, 4):
            raise UserError(
                f"{where} must be (x, y) or (x, y, x_test, y_test), got {len(data)} arrays"
            )
        data = dict(zip(("x", "y", "x_test", "y_test"), data, strict=False))
    as_given = (SUBJECT, *ORDERS)
    plain = classes and not any(
        isinstance(part, Mapping | tuple) for name, part in data.items() if name not in as_given
    )
    arrays = {
        key: part.detach() if isinstance(part, torch.Tensor) else part for key, part in data.items()
    }
    return pools(arrays, where, pool if plain else own_pool, gap)


def of_pools(
    clients: Mapping[str, Sequence[Pool | None]], as_features: bool, classes: int | None = None
) -> OwnData:
    """Check that the clients' pools belong together.

    Args:
        clients: Name of each client -> its pools.
        as_features: Whether whole-number inputs become floats, for models that take features and
            not tokens.
        classes: Number of classes; None takes the greatest label + 1.

    Returns:
        The clients' data.

    Raises:
        UserError: The inputs of two clients differ in shape or type, or a label is too great.
    """
    if as_features:
        for name, three in clients.items():
            for some in three:
                if some is not None and not some.inputs.is_floating_point():
                    check_distinct(some.inputs, f"client {name}: input")
        clients = {
            name: tuple(
                p
                if p is None or p.inputs.dtype == torch.uint8
                else replace(p, inputs=p.inputs.float())
                for p in three
            )
            for name, three in clients.items()
        }
    shape = _shape(clients)
    _check_forms(clients, "targets")
    labels = torch.cat(
        [p.targets.unique() for three in clients.values() for p in three if p is not None]
    ).unique()
    top = int(labels.max())
    if classes is not None and top >= classes:
        raise UserError(f"labels must be 0 to {classes - 1}, found {top}")
    if classes is None and top >= GAPS * len(labels):
        found = f"found {len(labels)} different labels from {int(labels.min())} to {top}"
        raise UserError(
            f"labels must be class numbers from 0, {found}; number them 0 to {len(labels) - 1}"
        )
    return OwnData(pools=clients, shape=shape, outputs=classes or top + 1)


GAPS = 10
"""Times the number of different labels that the greatest label may reach; a last layer would have
outputs for all."""


def _shape(clients: Mapping[str, Sequence[Pool | None]]) -> tuple[int, ...]:
    """The shape of one input; raises :class:`~coterie.settings.UserError` if clients have inputs of several forms."""
    _check_forms(clients, "inputs")
    inputs = next(some.inputs for three in clients.values() for some in three if some is not None)
    return tuple(inputs.shape[1:]) if isinstance(inputs, torch.Tensor) else ()


def _check_forms(clients: Mapping[str, Sequence[Pool | None]], part: str) -> None:
    """Raise :class:`~coterie.settings.UserError` if the ``inputs``, or ``targets``, of clients have several forms."""
    forms: dict[str, str] = {}
    for name, three in clients.items():
        for some in three:
            if some is not None:
                forms.setdefault(_form(getattr(some, part)), name)
    if len(forms) > 1:
        (a, first), (b, second) = list(forms.items())[:2]
        raise UserError(
            f"the {part} of all clients must have the same shape and type: {first} has {a}, {second} has {b}"
        )


def _of_one_type(
    clients: Mapping[str, Sequence[Pool | None]],
) -> Mapping[str, Sequence[Pool | None]]:
    """The pools with targets of floats where some clients have floats, and others whole numbers, to predict."""
    targets = [some.targets for three in clients.values() for some in three if some is not None]
    if (
        not all(isinstance(one, torch.Tensor) for one in targets)
        or len({one.dtype for one in targets}) < 2
    ):
        return clients
    for name, three in clients.items():
        for some in three:
            if some is not None and not some.targets.is_floating_point():
                columns = some.targets.reshape(len(some.targets), -1)
                check_distinct(columns, f"client {name}: target")
    return {
        name: tuple(
            some if some is None else replace(some, targets=some.targets.float()) for some in three
        )
        for name, three in clients.items()
    }


def _form(inputs: Batch) -> str:
    """Shape and type of an input in words."""
    return str(mapped(lambda one: f"{tuple(one.shape[1:])} {one.dtype}", inputs))


def of_own_pools(clients: Mapping[str, Sequence[Pool | None]], objective: Objective) -> OwnData:
    """Check that the clients' pools, of any inputs and targets, belong together.

    Args:
        clients: Name of each client -> its pools.
        objective: The loss and the metrics.

    Returns:
        The clients' data.

    Raises:
        UserError: The inputs of two clients differ in shape or type.
    """
    if any(
        p is not None and isinstance(p.inputs, Items) for three in clients.values() for p in three
    ):
        return OwnData(pools=clients, shape=(), outputs=0, objective=objective)
    if objective.loss is not cross_entropy:
        clients = _of_one_type(clients)
    _check_forms(clients, "targets")
    targets = next(p.targets for three in clients.values() for p in three if p is not None)
    numbers = isinstance(targets, torch.Tensor) and (
        targets.is_floating_point() or objective.loss is squared_error
    )
    outputs = math.prod(targets.shape[1:]) if numbers else 0
    return OwnData(pools=clients, shape=_shape(clients), outputs=outputs, objective=objective)


def client_data(
    name: str,
    pools: Sequence[Pool | None],
    train: float,
    validation: float,
    rng: np.random.Generator,
    samples: int | None = None,
) -> ClientData:
    """Make the splits of one client.

    The splits that the client does not provide are held out of its training pool. A client that
    provides test data trains on all examples that are not held out for validation. If the training
    pool has the subjects of its examples (:data:`SUBJECT` of its ``meta``), shares are shares of
    the subjects, and all examples of a subject are in the same split. If it has the times of its
    examples, splits follow each other in time, see ``order``; examples that reach into a later
    split are left out, and so are those of a subject that a later split has.

    Args:
        name: Name of the client.
        pools: Its (training, validation, test) pools; the last two may be None.
        train: Share of the training pool to train on.
        validation: Share of the training pool for validation; the rest is the test split.
        rng: Draws the order of the training pool.
        samples: Greatest number of examples of the training pool that are used; None uses all.

    Returns:
        The client's data.

    Raises:
        UserError: The client has too few examples.
    """
    first, second, third = pools
    assert first is not None
    held = validation if second is None else 0.0
    kept = train if second is None else train / (train + (1 - train - validation) or 1)
    order = rng.permutation(len(first))[:samples]
    share, spans = kept if third is None else 1.0, spans_of(first.meta)
    subjects = _numbered_by_rows(first.meta[SUBJECT]) if SUBJECT in first.meta else None
    own = None if subjects is None else subjects.numpy()[order]
    if spans is not None:
        _, *later = hold_out(order, share, held, third is None, name, own=True)
        sizes = len(later[0]), len(later[1])
        pieces: Iterable[np.ndarray] = [
            order[rows] for rows in in_time(spans.numpy()[order], sizes, own, name)
        ]
    elif own is None:
        pieces = hold_out(order, share, held, third is None, name, own=True)
    else:
        people = hold_out(
            rng.permutation(np.unique(own)),
            share,
            held,
            third is None,
            name,
            own=True,
            noun="subject",
        )
        pieces = [order[np.isin(own, some)] for some in people]
    every = whole(first.inputs, first.targets, subjects, spans)
    cut = [every.at(torch.from_numpy(rows)) for rows in pieces]
    return ClientData(
        train=cut[0],
        validation=cut[1] if second is None else whole(second.inputs, second.targets),
        test=cut[2] if third is None else whole(third.inputs, third.targets),
        name=name,
    )


def _numbered_by_rows(subjects: torch.Tensor) -> torch.Tensor:
    """Subjects ``(N,)`` with the numbers 0, 1, ... in the order of their first rows, which other clients cannot change."""
    _, first, which = np.unique(subjects.numpy(), return_index=True, return_inverse=True)
    return torch.from_numpy(first.argsort().argsort()[which])


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
    """

    pools: Mapping[str, Sequence[Pool | None]]
    shape: tuple[int, ...]
    outputs: int
    objective: Objective = field(default_factory=Objective)
    about: Mapping[str, Any] = field(default_factory=dict)
    named: bool = True
    hints: Sequence[str] = ()
    dtypes: Sequence[str] = ()

    @property
    def schema(self) -> Schema:
        """What the numbers mean, before they are standardized."""
        names = {
            fact: tuple(map(str, self.about.get(fact, ())))
            for fact in ("features", "targets", "classes")
        }
        known = {fact: each if len(set(each)) == len(each) else () for fact, each in names.items()}
        return Schema(
            columns=known["features"],
            dtypes=tuple(self.dtypes) if len(self.dtypes) == len(known["features"]) else (),
            targets=known["targets"],
            task=str(self.about.get("task", "")),
            classes=known["classes"],
            scaling=NONE,
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
        **rest: Any,
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
            **rest: Other fields of the :class:`World`, also in place of this object's.

        Returns:
            The world.

        Raises:
            UserError: A client has too few examples, or the model does not fit them.
        """
        numbers = numbered(self.pools, after if self.named else None)
        if after is not None and standardize == "pooled" and "means" in after.about:
            standardize = (after.about["means"], after.about["deviations"])
        clients = {
            number: client_data(
                name,
                self.pools[name],
                *shares,
                numpy_generator(seed, Purpose.DATA, 1, number),
                samples,
            )
            for number, name in numbers.items()
        }
        schema = self.schema
        clients = {number: replace(data, schema=schema) for number, data in clients.items()}
        if not self.named:
            clients = {number: replace(data, name="") for number, data in clients.items()}
        if isinstance(model, str) and not (self.outputs and self.shape):
            raise UserError(
                f"the model {model!r} needs inputs of one shape and class labels: pass a function that makes yours"
            )
        maker = nets.factory(model, self.shape, self.outputs) if isinstance(model, str) else model
        about, hints = tested_by(self.about, self.pools, clients.values())
        fields = {
            "objective": self.objective,
            "about": about,
            "hints": (*self.hints, *hints, *duplicate_hints(clients.values())),
            **rest,
        }
        if self.named:
            fields = by_names(fields, self.pools)
        made = standardized(World(clients=clients, model=maker, **fields), standardize)
        return with_standardized_targets(made, standardize_target, after)


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
    if after is None:
        return dict(enumerate(names))
    before = after.ids
    new = [name for name in names if name not in before]
    known = {before[name]: name for name in names if name in before}
    if not known:
        raise UserError(
            f"after must be a world with some of these clients, by their names; it has none, such as {new[0]!r}"
        )
    return dict(sorted(known.items())) | dict(enumerate(new, 1 + max(after.clients)))


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
            such data sets as train, validation and test. An x is an array or tensor, also a
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
    for setting, number, least in (("classes", classes, 1), ("seed", seed, 0)):
        if number is not None and (not isinstance(number, int | np.integer) or number < least):
            raise UserError(f"{setting} must be a whole number >= {least}, got {number!r}")
    if objective is not None and not isinstance(objective, Objective):
        raise UserError(
            f"objective must be a coterie.Objective, such as coterie.REGRESSION, got {objective!r:.60}"
        )
    if not isinstance(clients, Mapping | Iterable) or isinstance(
        clients, str | bytes | set | frozenset
    ):
        taken = "a list of each client's data, such as (x, y), or a mapping from the clients' names to them"
        raise UserError(f"clients must be {taken}, got {brief(clients)}")
    known = isinstance(clients, Mapping)
    given = (
        dict(clients)
        if isinstance(clients, Mapping)
        else {f"client {i}": one for i, one in enumerate(clients)}
    )
    if not given:
        raise UserError("a world needs at least one client")
    names = [name_of(key) for key in given]
    check_unlike(given, "clients")
    given = order_of_each(given, order, gap)
    matching = Matching(None if after is None else after.about)
    where = {name: f"client {name}" if known else name for name in names}
    plain = {
        name: matching.client(one, where[name])
        for name, one in zip(names, given.values(), strict=True)
    }
    unwrapped = {
        name: arrays
        for name, one in plain.items()
        if collate is None and (arrays := as_arrays(one)) is not None
    }
    # A function that makes a model for a data set knows the shape of its items; a named model takes
    # what arrays become.
    as_they_are = set() if isinstance(model, str) else set(unwrapped)
    plain |= unwrapped
    hints = [] if objective is not None else _target_hints(plain.values())
    objective = objective or _objective(plain.values())
    as_classes = objective.loss is cross_entropy
    if as_classes:
        check_scale({where[name]: one for name, one in plain.items() if name not in as_they_are})
    named = {
        name: own_pools(one, where[name], as_classes and name not in as_they_are, collate, gap)
        for name, one in plain.items()
    }
    if as_classes and all(
        _has_classes(p) for three in named.values() for p in three if p is not None
    ):
        data = of_pools(named, isinstance(model, str) and not nets.takes_tokens(model), classes)
    else:
        data = of_own_pools(named, objective)
    about = {**matching.about, **about_order("", gap, named)}
    data = replace(
        data, named=known, objective=objective, about=about, hints=[*window_hints(named), *hints]
    )
    return data.world(
        model,
        (train, validation),
        seed,
        standardize=standardize,
        standardize_target=standardize_target,
        after=after,
        **world,
    )


def _has_classes(pool: Pool) -> bool:
    """Whether a pool has tensors, and class numbers as targets."""
    return isinstance(pool.inputs, torch.Tensor) and not pool.targets.is_floating_point()


def _objective(clients: Iterable[Any]) -> Objective:
    """The objective for the clients' targets: of classes, unless they are several labels, or floats other than 0 and 1."""
    found = [np.asarray(ordinary(y, "y")) for data in clients if (y := _targets(data)) is not None]
    if found and all(y.dtype == bool and y.ndim == 2 for y in found):
        return MULTILABEL
    return (
        REGRESSION
        if any(y.dtype.kind == "f" and not np.isin(y, (0, 1)).all() for y in found)
        else CLASSIFICATION
    )


def _target_hints(clients: Collection[Any]) -> list[str]:
    """A hint if the type of targets of tables of features decides between classes and numbers, and their values do not fit."""
    parts = []
    for data in clients:
        x, y = _named(data, "x"), _targets(data)
        if y is None or getattr(x, "ndim", 0) != 2:
            return []
        parts.append(np.asarray(y))
    if (
        not parts
        or {part.ndim for part in parts} != {1}
        or not all(part.dtype.kind in "iuf" for part in parts)
    ):
        return []
    values = np.concatenate(parts)
    kind = "regression" if _objective(clients) is REGRESSION else "classification"
    task = Task(kind, 1)
    choices = "class numbers must be integers", "objective=coterie.REGRESSION"
    return [text for text in [hint(values, task, "the target", *choices)] if text]


def _targets(data: Any) -> Any:
    """The targets of a client in memory, if they are one array."""
    return _named(data, "y")


def _named(data: Any, key: str) -> Any:
    """The inputs (x) or targets (y) of a client in memory, if they are one array."""
    found: Any = None
    if isinstance(data, Mapping):
        found = data.get(key, data.get(f"{key}_train"))
    elif isinstance(data, Sequence) and len(data) > 1:
        found = data["xy".index(key)]
    return None if isinstance(found, Mapping | tuple) else found
