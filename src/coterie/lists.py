"""A world of clients with data of their own, in memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import nn

from coterie import models
from coterie.data import own
from coterie.data.splits import check_shares
from coterie.settings import UserError
from coterie.world import World


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
    if isinstance(model, str) and not models.takes_tokens(model):
        named = own.features(named)
    shape, classes = own.common(named, classes)
    maker = models.factory(model, shape, classes) if isinstance(model, str) else model
    return own.world(named, maker, (train, validation), seed, **world)
