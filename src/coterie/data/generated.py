"""A world of clients whose data a function makes when they are needed, from the seed and the client's number."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import torch

from coterie.core import Client
from coterie.data.batches import tensors
from coterie.data.objective import Objective
from coterie.data.on_demand import MOST_KEPT, OnDemand
from coterie.data.world import OF_A_WORLD, SPLITS, ClientData, Split, World, whole
from coterie.models import nets
from coterie.randomness import Purpose, numpy_generator, seeded
from coterie.settings import SettingError, UserError, brief
from coterie.settings.calls import public

MakeClient = Callable[[Client, np.random.Generator], Any]
"""Function of a client and its generator that returns its data, see :func:`from_function`."""


@public(more=OF_A_WORLD)
def from_function(
    make_client: MakeClient,
    clients: int,
    *,
    model: str | Callable[[], torch.nn.Module],
    classes: int | None = None,
    objective: Objective | None = None,
    seed: int = 0,
    kept: int = MOST_KEPT,
    **world: Any,
) -> World:
    """Make a world of clients whose data are made when they are needed and then forgotten.

    So a million clients take no more memory than those of a round. Where a check looks at the data
    of all clients, it looks at those of a hundred.

    Args:
        make_client: Function of a client's number and a generator, the client's own, that returns
            its data: ``(x, y, x_test, y_test)`` of arrays or tensors, ``(x, y)`` without test
            examples, or a :class:`ClientData`. It is called again and again, also in other
            processes, and must return the same data each time: all random numbers come from the
            generator.
        clients: The number of clients; they have the ids 0, 1, ...
        model: Name of a model, or a function that makes a fresh module.
        classes: Number of classes, for a model by name.
        objective: The loss and the metrics; by default those of classes.
        seed: Seed of the clients' generators.
        kept: Clients whose data stay in memory, in each process: those that were needed last. They
            should be as many as train in a round.
        **world: ``training``, ``truth``, ``augment``, ``buffers``, ``attendance`` of the
            :class:`World`.

    Returns:
        The world.

    Raises:
        UserError: The function fails, returns something else, or not the same data twice; or the
            model does not fit.

    Example:
        >>> def make_client(client, generator):
        ...     x = generator.normal(size=(50, 5)).astype("f")
        ...     y = (x[:, client % 2] > 0).astype(int)
        ...     return x[:40], y[:40], x[40:], y[40:]
        >>> made = from_function(make_client, 1_000_000, model="linear", classes=2)
        >>> len(made.clients), len(made.clients[999_999].train)
        (1000000, 40)
    """
    if not isinstance(clients, int) or isinstance(clients, bool) or clients < 1:
        raise SettingError(f"clients must be a whole number >= 1, got {clients!r:.60}")
    if not isinstance(kept, int) or isinstance(kept, bool) or kept < 1:
        raise SettingError(f"kept must be a whole number >= 1, got {kept!r:.60}")
    if not callable(make_client):
        raise SettingError(
            f"make_client must be a function of a client and its generator, got {brief(make_client)}"
        )
    if not isinstance(seed, int) or isinstance(seed, bool) or seed < 0:
        raise SettingError(f"seed must be a whole number >= 0, got {seed!r:.60}")
    if classes is not None and classes < 2:
        raise SettingError(f"classes must be >= 2, got {classes}")
    maker = _Maker(make_client, seed)
    _check_repeatable(maker, clients)
    # Other clients are checked when they are made, against the first.
    maker = _Maker(make_client, seed, _form(maker(0)))
    # A model by name needs the shape of an input, that of the first client.
    make_model: Callable[[], torch.nn.Module]
    if not isinstance(model, str):
        make_model = model
    else:
        if classes is None:
            raise SettingError(f"classes must be given with a model by name, got model {model!r}")
        inputs = maker(0).train.inputs
        if not isinstance(inputs, torch.Tensor):
            raise SettingError("a model by name needs inputs that are one array")
        make_model = nets.factory(model, tuple(inputs.shape[1:]), classes)
    return World(
        clients=OnDemand(maker, clients, kept),
        model=make_model,
        objective=objective or Objective(),
        **world,
    )


@dataclass(frozen=True)
class _Maker:
    """Makes the data of a client, in other processes as well.

    Attributes:
        make_client: The user's function.
        seed: The seed of the clients' generators.
        form: The form of the first client's data, which all must have; None until it is known.
    """

    make_client: MakeClient
    seed: int
    form: list[str] | None = None

    def __call__(self, client: Client) -> ClientData:
        try:
            client_data = self.make_client(
                client, numpy_generator(self.seed, Purpose.DATA, 0, client)
            )
        except UserError:
            raise
        except Exception as error:
            is_call = isinstance(error, TypeError) and "positional argument" in str(error)
            hint = (
                "; it is called as make_client(client, rng), with a NumPy generator"
                if is_call
                else ""
            )
            raise UserError(
                f"make_client fails for client {client}: {type(error).__name__}: {error}{hint}"
            ) from error
        if isinstance(client_data, tuple) and len(client_data) in (2, 4):
            client_data = _of_arrays(client_data)
        if not isinstance(client_data, ClientData):
            raise UserError(
                "make_client must return (x, y), (x, y, x_test, y_test) or a coterie.ClientData, "
                f"got {brief(client_data)} for client {client}"
            )
        if not len(client_data.train):
            raise UserError(f"client {client} has no training data")
        if client_data.name:
            raise UserError(
                f"clients that are made on demand have no names, got {client_data.name!r} for client {client}"
            )
        if self.form is not None and _form(client_data) != self.form:
            raise UserError(
                f"make_client must return data of the same form for all clients: client 0 has {', '.join(self.form)}, "
                f"client {client} has {', '.join(_form(client_data))}"
            )
        for split_name in SPLITS:
            split = getattr(client_data, split_name)
            for tensor in _tensors_of(split):
                # Clients may have rows of one pool.
                values = tensor if len(tensor) == len(split) else tensor[split.index]
                if values.is_floating_point() and not torch.isfinite(values).all():
                    raise UserError(
                        f"make_client returns numbers that are not finite for client {client} ({split_name})"
                    )
        return client_data


def _form(client_data: ClientData) -> list[str]:
    """The shape of an example and the types of a client's training data, in words."""
    forms = []
    for tensor in _tensors_of(client_data.train):
        dtype_name = str(tensor.dtype).removeprefix("torch.")
        forms.append(f"{tuple(tensor.shape[1:])} {dtype_name}")
    return forms


def _tensors_of(split: Split) -> list[torch.Tensor]:
    """The tensors of a split's pool: of its inputs, then of its targets."""
    parts = [*tensors(split.inputs), *tensors(split.targets)]
    return [part for part in parts if isinstance(part, torch.Tensor)]


def _of_arrays(arrays: tuple[Any, ...]) -> ClientData:
    """The data of a client, from (x, y) or (x, y, x_test, y_test)."""
    train = _split(*arrays[:2])
    no_examples = train.at(slice(0))
    test = _split(*arrays[2:]) if len(arrays) > 2 else no_examples
    return ClientData(train=train, validation=no_examples, test=test)


def _split(inputs: Any, targets: Any) -> Split:
    """The split of :func:`whole`, without its checks for arrays of the types that it makes."""
    is_plain = (
        type(inputs) is np.ndarray
        and type(targets) is np.ndarray
        and inputs.dtype == np.float32
        and targets.dtype in (np.float32, np.int64)
        and inputs.flags.writeable
        and targets.flags.writeable
    )
    if not is_plain:
        return whole(inputs, targets)
    return Split(torch.from_numpy(inputs), _positions(len(inputs)), torch.from_numpy(targets))


@lru_cache
def _positions(number: int) -> torch.Tensor:
    """The positions of so many examples, the same tensor for all clients that have as many."""
    return torch.arange(number)


def _all_tensors(client_data: ClientData) -> list[torch.Tensor]:
    """The tensors of a client's data."""
    all_tensors: list[torch.Tensor] = []
    for split_name in SPLITS:
        all_tensors += _tensors_of(getattr(client_data, split_name))
    return all_tensors


def _check_repeatable(maker: _Maker, clients: int) -> None:
    """Check that the first client has the same data when they are made again, whatever the global generators are.

    And that the data of another client, which are made in between, do not take their place, as in an
    array that each call fills.
    """
    with seeded(0):
        first = maker(0)
        kept = [tensor.clone() for tensor in _all_tensors(first)]
        if clients > 1:
            maker(clients - 1)
        if not all(map(torch.equal, kept, _all_tensors(first))):
            raise UserError(
                "make_client changes what it returned before: return new arrays in each call, such as x.copy()"
            )
    with seeded(1):
        again = maker(0)
    for split_name in SPLITS:
        split = getattr(first, split_name)
        split_again = getattr(again, split_name)
        parts = [
            tensors((split.inputs, split.index, split.targets)) for split in (split, split_again)
        ]
        equal_parts = (
            torch.equal(tensor, tensor_again) for tensor, tensor_again in zip(*parts, strict=True)
        )
        if len(split) != len(split_again) or not all(equal_parts):
            raise UserError(
                "make_client returns other data when it is called again: all random numbers must "
                "come from the generator that it receives"
            )
