"""Clients that bring their own data: one .npz file per client, or a Python list of arrays."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from coterie.data import own, readers
from coterie.data.examples import Pool, pool
from coterie.data.splits import check_shares, hold_out
from coterie.data.world import ClientData, Split, World, whole
from coterie.models import nets
from coterie.randomness import Purpose, numpy_generator
from coterie.settings import UserError

KEYS = (("x_train", "y_train"), ("x_validation", "y_validation"), ("x_test", "y_test"))


def folder(path: Path) -> dict[str, tuple[Pool | None, ...]]:
    """name -> (training, validation, test) pools of every .npz file of a folder; a pool that a file lacks is None.

    Keys are x_train, y_train (or x, y) and, where the client has them, x_validation, y_validation, x_test, y_test.
    """
    files = sorted(path.glob("*.npz"))
    if not files:
        raise UserError(f"{path} holds no .npz file; each client is one, with arrays x and y (or x_train and y_train)")
    return {file.stem: pools(readers.npz(file), file) for file in files}


def pools(arrays: Mapping[str, Any], where: Path | str) -> tuple[Pool | None, ...]:
    """(training, validation, test) pools of one client's arrays by key; ``where`` names it in messages."""
    named = {{"x": "x_train", "y": "y_train"}.get(key, key): value for key, value in arrays.items()}
    for x, y in KEYS:
        if (x in named) != (y in named) or KEYS[0][0] not in named:
            known = "x and y (or x_train and y_train), and x_validation, y_validation, x_test, y_test in pairs"
            raise UserError(f"{where} must hold {known}; it holds {', '.join(arrays) or 'nothing'}")
    return tuple(pool(named[x], named[y], where) if x in named else None for x, y in KEYS)


def features(clients: Mapping[str, tuple[Pool | None, ...]]) -> dict[str, tuple[Pool | None, ...]]:
    """The same pools with whole-number inputs as floats: for models that take features, not tokens."""
    return {
        name: tuple(p if p is None else replace(p, inputs=p.inputs.float()) for p in three) for name, three in clients.items()
    }


def common(clients: Mapping[str, Sequence[Pool | None]], classes: int | None) -> tuple[tuple[int, ...], int]:
    """(shape of one input, number of classes) of all pools; raises :class:`UserError` where clients disagree."""
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
        raise UserError(f"the inputs of all clients must be alike: {differ}")
    if classes is not None and top >= classes:
        raise UserError(f"labels must be 0 to {classes - 1}, found {top}")
    return next(iter(shapes))[0], classes or top + 1


def client_data(
    name: str,
    pools: Sequence[Pool | None],
    train: float,
    validation: float,
    rng: np.random.Generator,
    samples: int | None = None,
) -> ClientData:
    """One client's splits. What it does not bring is held out of its training pool.

    train, validation: shares of the training pool; the rest is the test split. Where the client brings test data, it
    trains on all that is not held out for validation.
    """
    first, second, third = pools
    assert first is not None
    held = validation if second is None else 0.0
    kept = train if second is None else train / (train + (1 - train - validation) or 1)
    order = rng.permutation(len(first))[:samples]
    pieces = hold_out(order, kept if third is None else 1.0, held, third is None, name)
    cut = [Split(first.inputs, torch.from_numpy(rows), first.targets[torch.from_numpy(rows)]) for rows in pieces]
    return ClientData(
        train=cut[0],
        validation=cut[1] if second is None else whole(second.inputs, second.targets),
        test=cut[2] if third is None else whole(third.inputs, third.targets),
        name=name,
    )


def world(
    named: Mapping[str, Sequence[Pool | None]],
    model: Callable[[], nn.Module],
    shares: tuple[float, float],
    seed: int,
    samples: int | None = None,
    **rest: Any,
) -> World:
    """The world of these clients, 0, 1, ... in their order; ``rest``: other fields of the :class:`World`."""
    clients = {
        number: client_data(name, pools, *shares, numpy_generator(seed, Purpose.DATA, 1, number), samples)
        for number, (name, pools) in enumerate(named.items())
    }
    return World(clients=clients, model=model, **rest)


# ----------------------------------------------------------------------------------------------------
# A world of clients with data of their own, in memory.


def from_lists(
    clients: Sequence[Sequence[Any] | Mapping[str, Any]],
    *,
    model: str | Callable[[], nn.Module] = "mlp",
    classes: int | None = None,
    train: float = 0.8,
    validation: float = 0.1,
    seed: int = 0,
    **world: Any,
) -> World:
    """A world of clients with data of their own, in memory.

    clients: each ``(x, y)``, ``(x, y, x_test, y_test)`` or a mapping with the keys of a client's .npz file (x, y,
    x_validation, y_validation, x_test, y_test), arrays or tensors; what it does not bring is held out of x, y by the
    shares ``train`` and ``validation``. model: a name, or a function that makes a fresh module. classes: their number,
    by default the greatest label + 1. world: ``training``, ``objective``, ``truth``, ``augment`` of the :class:`World`.

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
    named = {}
    for number, arrays in enumerate(clients):
        if not isinstance(arrays, Mapping):
            if len(arrays) not in (2, 4):
                raise UserError(f"client {number} must be (x, y) or (x, y, x_test, y_test), got {len(arrays)} arrays")
            arrays = dict(zip(("x", "y", "x_test", "y_test"), arrays, strict=False))
        named[f"client {number}"] = own.pools(arrays, f"client {number}")
    if not named:
        raise UserError("a world needs at least one client")
    if isinstance(model, str) and not nets.takes_tokens(model):
        named = own.features(named)
    shape, classes = own.common(named, classes)
    maker = nets.factory(model, shape, classes) if isinstance(model, str) else model
    return own.world(named, maker, (train, validation), seed, **world)
