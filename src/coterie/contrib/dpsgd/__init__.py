"""DP-SGD at the clients: differential privacy of single training examples (record level).

M. Abadi et al., "Deep Learning with Differential Privacy", CCS 2016, Algorithm 1. A client clips the
gradient of each example, adds Gaussian noise to their sum, and makes its step with that. All that
depends on its training rows, and leaves it, is computed from such noisy steps.

This module is what the entry point ``dp-sgd`` in ``coterie.optimizers`` names::

    [training]
    optimizer = "dp-sgd"
    optimizer_options = { clip = 1.0, noise = 1.0 }

- :mod:`.options`: the settings
- :mod:`.steps`: the noisy steps (:func:`train`)
- :mod:`.protected`: what is refused, because noise would not cover it, and what is counted (:func:`wire`)
- :mod:`.accounting`: ε from the counts (:func:`privacy`)
- :mod:`.at_node`: over Flower, what a node refuses, and the ε that it counts for itself (:func:`check_orders`)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from coterie.contrib.dpsgd.accounting import noise_for_rows as noise_for_rows
from coterie.contrib.dpsgd.accounting import privacy as privacy
from coterie.contrib.dpsgd.accounting import spent_by_rows as spent_by_rows
from coterie.contrib.dpsgd.options import RecordPrivacy as RecordPrivacy
from coterie.contrib.dpsgd.options import options_of

if TYPE_CHECKING:
    import torch

    from coterie.boundary import Wire
    from coterie.core import Training
    from coterie.data.world import ClientData, World
    from coterie.models.layout import Layout
    from coterie.training import Order


def check_options(options: tuple[str, ...]) -> None:
    """Check the arguments of ``training.optimizer_options``.

    Args:
        options: Texts ``name=value``.

    Raises:
        SettingError: There is no such argument, or its value is not allowed.
    """
    options_of(options)


def wire(plain_wire: Wire, world: World) -> Wire:
    """Return a wire that refuses what noise would not cover, and counts what it covers.

    Args:
        plain_wire: The wire between the clients and the server.
        world: The clients.

    Raises:
        SettingError: The model, the data or the boundary do not fit.
        UserError: dp-accounting is not installed.
    """
    # Imported here: these modules load torch, for which commands that only read do not wait.
    from coterie.contrib.dpsgd.protected import protected_wire

    return protected_wire(plain_wire, world)


def server_wire(plain_wire: Wire, training: Training) -> Wire:
    """Return the wire of a federation's server, see :func:`.protected.server_wire`."""
    from coterie.contrib.dpsgd.protected import server_wire as protected_server_wire

    return protected_server_wire(plain_wire, training)


def check_orders(
    orders: Sequence[Order],
    layout: Layout,
    data: ClientData,
    node_config: Mapping[str, Any],
) -> None:
    """Refuse the orders of a server at a node, see :func:`.at_node.check_orders`."""
    from coterie.contrib.dpsgd.at_node import check_orders as check_orders_at_node

    check_orders_at_node(orders, layout, data, node_config)


def train(*arguments: Any, **named_arguments: Any) -> torch.Tensor:
    """Train a model with noisy steps, see :func:`.steps.train`."""
    from coterie.contrib.dpsgd.steps import train as train_with_noise

    return train_with_noise(*arguments, **named_arguments)
