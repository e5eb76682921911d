"""Clients with their own data: the pools of each client, from one .npz file per client or a Python list of arrays."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from coterie.data import readers
from coterie.data.examples import Pool, pool
from coterie.data.objective import Objective
from coterie.data.scaling import Constants, standardized
from coterie.data.splits import check_shares, hold_out
from coterie.data.world import ClientData, World, whole
from coterie.models import nets
from coterie.randomness import Purpose, numpy_generator
from coterie.settings import UserError

KEYS = (("x_train", "y_train"), ("x_validation", "y_validation"), ("x_test", "y_test"))


def folder(path: Path) -> dict[str, tuple[Pool | None, ...]]:
    """Read every .npz file of a folder; each file is one client.

    Keys are x_train, y_train (or x, y) and, optionally, x_validation, y_validation, x_test, y_test.

    Args:
        path: The folder.

    Returns:
        Name of the client -> its (training, validation, test) pools; a pool that the file lacks is None.

    Raises:
        UserError: The folder has no .npz file, or a file is not valid.
    """
    files = sorted(path.glob("*.npz"))
    if not files:
        raise UserError(f"{path} holds no .npz file; each client is one, with arrays x and y (or x_train and y_train)")
    return {file.stem: pools(readers.npz(file), file) for file in files}


def pools(arrays: Mapping[str, Any], where: Path | str) -> tuple[Pool | None, ...]:
    """Make the pools of one client.

    Args:
        arrays: Key -> array, with the keys of :func:`folder`.
        where: The client, for messages.

    Returns:
        The (training, validation, test) pools; a missing one is None.

    Raises:
        UserError: Keys or arrays are not valid.
    """
    named = {{"x": "x_train", "y": "y_train"}.get(key, key): value for key, value in arrays.items()}
    for x, y in KEYS:
        if (x in named) != (y in named) or KEYS[0][0] not in named:
            known = "x and y (or x_train and y_train), and x_validation, y_validation, x_test, y_test in pairs"
            raise UserError(f"{where} must hold {known}; it holds {', '.join(arrays) or 'nothing'}")
    return tuple(pool(named[x], named[y], where) if x in named else None for x, y in KEYS)


def of_pools(clients: Mapping[str, Sequence[Pool | None]], as_features: bool, classes: int | None = None) -> OwnData:
    """Check that the clients' pools belong together.

    Args:
        clients: Name of each client -> its pools.
        as_features: Whether whole-number inputs become floats, for models that take features and not tokens.
        classes: Number of classes; None takes the greatest label + 1.

    Returns:
        The clients' data.

    Raises:
        UserError: The inputs of two clients differ in shape or type, or a label is too great.
    """
    if as_features:
        clients = {
            name: tuple(p if p is None else replace(p, inputs=p.inputs.float()) for p in three)
            for name, three in clients.items()
        }
    shapes: dict[tuple[Any, ...], str] = {}
    top = 0
    for name, three in clients.items():
        for some in three:
            if some is not None:
                shapes.setdefault((tuple(some.inputs.shape[1:]), some.inputs.dtype), name)
                top = max(top, int(some.targets.max()))
    if len(shapes) > 1:
        (a, first), (b, second) = list(shapes.items())[:2]
        differ = f"{first} has {a[0]} {a[1]}, {second} has {b[0]} {b[1]}"
        raise UserError(f"the inputs of all clients must have the same shape and type: {differ}")
    if classes is not None and top >= classes:
        raise UserError(f"labels must be 0 to {classes - 1}, found {top}")
    return OwnData(pools=clients, shape=next(iter(shapes))[0], outputs=classes or top + 1)


def client_data(
    name: str,
    pools: Sequence[Pool | None],
    train: float,
    validation: float,
    rng: np.random.Generator,
    samples: int | None = None,
) -> ClientData:
    """Make the splits of one client.

    The splits that the client does not provide are held out of its training pool. A client that provides test data trains on
    all examples that are not held out for validation.

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
    pieces = hold_out(order, kept if third is None else 1.0, held, third is None, name)
    cut = [whole(first.inputs, first.targets).at(torch.from_numpy(rows)) for rows in pieces]
    return ClientData(
        train=cut[0],
        validation=cut[1] if second is None else whole(second.inputs, second.targets),
        test=cut[2] if third is None else whole(third.inputs, third.targets),
        name=name,
    )


@dataclass(frozen=True, eq=False, kw_only=True)
class OwnData:
    """The data of clients that have their own.

    Attributes:
        pools: Name of each client -> its (training, validation, test) pools, of which the last two may be None.
        shape: Shape of one input.
        outputs: Number of outputs of the model, such as the number of classes.
        objective: The loss and the metrics.
        about: Facts to record with a run, such as the names of the classes.
        named: Whether the names are those of the clients, and not only for messages.
    """

    pools: Mapping[str, Sequence[Pool | None]]
    shape: tuple[int, ...]
    outputs: int
    objective: Objective = field(default_factory=Objective)
    about: Mapping[str, Any] = field(default_factory=dict)
    named: bool = True

    def world(
        self,
        model: str | Callable[[], torch.nn.Module],
        shares: tuple[float, float],
        seed: int,
        samples: int | None = None,
        standardize: str | Constants = "none",
        **rest: Any,
    ) -> World:
        """Make the world of these clients; their ids are 0, 1, ... in their order.

        Args:
            model: Name of a model, or a function that makes a fresh module.
            shares: Shares of a training pool for training and validation, see :func:`client_data`.
            seed: Seed of the splits.
            samples: Greatest number of examples of each training pool that are used; None uses all.
            standardize: See :func:`~coterie.data.scaling.standardized`.
            **rest: Other fields of the :class:`World`, also in place of this object's.

        Returns:
            The world.

        Raises:
            UserError: A client has too few examples, or the model does not fit them.
        """
        clients = {
            number: client_data(name, pools, *shares, numpy_generator(seed, Purpose.DATA, 1, number), samples)
            for number, (name, pools) in enumerate(self.pools.items())
        }
        if not self.named:
            clients = {number: replace(data, name="") for number, data in clients.items()}
        maker = nets.factory(model, self.shape, self.outputs) if isinstance(model, str) else model
        fields = {"objective": self.objective, "about": self.about, **rest}
        return standardized(World(clients=clients, model=maker, **fields), standardize)


# ----------------------------------------------------------------------------------------------------
# A world of clients with their own data, in memory.


def from_lists(
    clients: Sequence[Sequence[Any] | Mapping[str, Any]] | Mapping[str, Sequence[Any] | Mapping[str, Any]],
    *,
    model: str | Callable[[], torch.nn.Module] = "mlp",
    classes: int | None = None,
    train: float = 0.8,
    validation: float = 0.1,
    seed: int = 0,
    standardize: str | Constants = "none",
    **world: Any,
) -> World:
    """Make a world of clients with their own data in memory.

    Splits that a client does not provide are held out of its x, y by the shares ``train`` and ``validation``.

    Args:
        clients: Each is ``(x, y)``, ``(x, y, x_test, y_test)`` or a mapping with the keys of a client's .npz file (x, y,
            x_validation, y_validation, x_test, y_test); the values are arrays or tensors. In a mapping, the keys are the
            names of the clients.
        model: Name of a model, or a function that makes a fresh module.
        classes: Number of classes, by default the greatest label + 1.
        train: Share of x, y to train on.
        validation: Share of x, y for validation.
        seed: Seed of the splits.
        standardize: ``"none"``, ``"pooled"``, or means and deviations, see :func:`~coterie.data.scaling.standardized`.
        **world: ``training``, ``objective``, ``truth``, ``augment`` of the :class:`World`.

    Returns:
        The world; its clients have the ids 0, 1, ... in their order.

    Raises:
        UserError: There is no client, or the data of a client are not valid.

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
    known = isinstance(clients, Mapping)
    named = {}
    for name, arrays in clients.items() if isinstance(clients, Mapping) else enumerate(clients):
        if not isinstance(arrays, Mapping):
            if len(arrays) not in (2, 4):
                raise UserError(f"client {name} must be (x, y) or (x, y, x_test, y_test), got {len(arrays)} arrays")
            arrays = dict(zip(("x", "y", "x_test", "y_test"), arrays, strict=False))
        named[str(name) if known else f"client {name}"] = pools(arrays, f"client {name}")
    if not named:
        raise UserError("a world needs at least one client")
    data = of_pools(named, isinstance(model, str) and not nets.takes_tokens(model), classes)
    data = replace(data, named=known)
    return data.world(model, (train, validation), seed, standardize=standardize, **world)
