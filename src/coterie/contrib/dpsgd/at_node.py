"""DP-SGD at a node of a federation: what its operator allows, and the ε that the node counts for itself.

The server states the noise in its tasks. A node that trusts no server has an entry in its config::

    row-privacy = "noise=1.5, clip=1.0, delta=1e-5, epsilon=8"

It then trains only with DP-SGD, with at least this noise multiplier and at most this norm. It refuses
what would raise the ε of its rows above ``epsilon``, over all runs. The count is in the folder
``keep-dir`` of the node's config, and is written before the training begins.
"""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from coterie.boundary import Boundary, Wire
from coterie.boundary.privacy import spent
from coterie.contrib.dpsgd.accounting import RENYI_ORDERS
from coterie.contrib.dpsgd.options import OPTIMIZER_NAME, RecordPrivacy, options_of
from coterie.contrib.dpsgd.protected import COVERED_FEATURES, protected_wire_of_client
from coterie.core.needs import IN_WORDS, features_of
from coterie.data.world import ClientData
from coterie.models.layout import Layout
from coterie.records.store import locked, write_whole
from coterie.settings import SettingError
from coterie.settings.optimizers import arguments
from coterie.training import Order

RULE = "row-privacy"
"""Entry of a node's config: what its operator demands."""

KEPT_FOLDER = "keep-dir"
"""Entry of a node's config: the folder of what the node keeps."""

COUNT_FILE = "row-privacy.json"
"""File in this folder with what was released of the node's rows so far."""

log = logging.getLogger("flwr.coterie")


@dataclass(frozen=True)
class NodeRule:
    """What a node's operator demands of a server's tasks.

    Attributes:
        noise: The least noise multiplier σ.
        clip: The greatest norm C of an example's gradient.
        epsilon: The greatest ε of a row, over all runs; infinite for any.
        delta: The δ at which the node counts.
    """

    noise: float
    clip: float = math.inf
    epsilon: float = math.inf
    delta: float = 1e-5

    @classmethod
    def of_config(cls, node_config: Mapping[str, Any]) -> NodeRule | None:
        """Read the rule of a node's config; None if it has none.

        Raises:
            SettingError: The entry is not of this form.
        """
        text = str(node_config.get(RULE, "")).strip()
        if not text:
            return None
        parts = [part.strip() for part in text.split(",")]
        numbers = arguments(f"{RULE} of the node config", tuple(parts))
        rule_names = ("noise", "clip", "epsilon", "delta")
        for name, number in numbers.items():
            is_number = isinstance(number, (int, float)) and not isinstance(number, bool)
            if name not in rule_names or not is_number or not 0 < number < math.inf:
                raise SettingError(
                    f"{RULE} of the node config must have numbers > 0 for {', '.join(rule_names)}, got {text!r:.80}"
                )
        if "noise" not in numbers:
            raise SettingError(f"{RULE} of the node config must state noise, got {text!r:.80}")
        rule = cls(**{name: float(number) for name, number in numbers.items()})
        if not rule.delta < 1:
            raise SettingError(f"{RULE} of the node config: delta must be < 1, got {rule.delta:g}")
        return rule


def check_orders(
    orders: Sequence[Order],
    layout: Layout,
    data: ClientData,
    node_config: Mapping[str, Any],
) -> None:
    """Refuse orders whose answers the noise would not cover, or that the node's operator does not allow.

    Args:
        orders: The tasks of a message.
        layout: The layout of the model's parameters.
        data: The node's data.
        node_config: The node's config.

    Raises:
        SettingError: The orders are refused.
    """
    rule = NodeRule.of_config(node_config)
    releases: list[Release] = []
    for order in orders:
        is_private = order.training.optimizer == OPTIMIZER_NAME
        if not is_private and rule is not None:
            raise SettingError(
                f"this node trains only with {OPTIMIZER_NAME} ({RULE} of its config), "
                f"and the server asks for {order.training.optimizer}"
            )
        if not is_private:
            continue
        options = options_of(order.training.optimizer_options)
        _check_order(order, data, options)
        if rule is not None:
            _check_rule(rule, options)
        wire = Wire(Boundary(), layout, order.seed)
        client_wire = protected_wire_of_client(wire, order.training, order.client, data.train)
        amount = client_wire.releases(order.task, client=order.client)
        if amount:
            releases.append(_release(options, order, len(data.train), amount))
    if rule is not None and rule.epsilon < math.inf and releases:
        _spend(rule, releases, node_config)


def _check_order(order: Order, data: ClientData, options: RecordPrivacy) -> None:
    """Refuse a task whose answer depends on the rows without noise."""
    for feature in sorted(features_of(order.task)):
        if feature not in COVERED_FEATURES:
            raise SettingError(
                f"{OPTIMIZER_NAME} cannot be used with this task: it asks this node {IN_WORDS[feature]}, "
                "which its noise does not cover"
            )
    if order.task.halves and options.sampling != "shuffled":
        raise SettingError(f"{OPTIMIZER_NAME} needs sampling shuffled for halves of the data")
    if order.task.halves and data.train.subjects is not None:
        # The server counts the passes over a half by the number of rows alone.
        raise SettingError(
            f"{OPTIMIZER_NAME} cannot train halves of this node's data in a federation: they are divided by subjects"
        )


def _check_rule(rule: NodeRule, options: RecordPrivacy) -> None:
    """Refuse less noise than the node's operator demands."""
    if options.noise < rule.noise:
        raise SettingError(
            f"this node demands noise >= {rule.noise:g} ({RULE} of its config), and the server asks for {options.noise:g}"
        )
    if options.clip > rule.clip:
        raise SettingError(
            f"this node demands clip <= {rule.clip:g} ({RULE} of its config), and the server asks for {options.clip:g}"
        )


# ----------------------------------------------------------------------------------------------------
# What a node has released of its rows, over all runs.


Release = tuple[float, float, int]
"""Share of the rows in a batch, 1 for a pass over shuffled batches; noise multiplier; how many."""


def _release(options: RecordPrivacy, order: Order, rows: int, amount: int) -> Release:
    """What the answer to an order releases."""
    rate = 1.0
    if options.sampling == "poisson":
        rate = min(order.training.batch or rows, rows) / rows
    return rate, options.noise, amount


def _spend(rule: NodeRule, releases: Sequence[Release], node_config: Mapping[str, Any]) -> None:
    """Count releases before the training begins; a failure after this still counts."""
    folder = str(node_config.get(KEPT_FOLDER, ""))
    if not folder:
        raise SettingError(
            f"epsilon in {RULE} needs a folder in the node config, {KEPT_FOLDER}: nothing else persists between Flower's runs"
        )
    count_file = Path(folder) / COUNT_FILE
    try:
        count_file.parent.mkdir(parents=True, exist_ok=True)
        with locked(count_file.parent):
            counts = _read_counts(count_file)
            for rate, noise, amount in releases:
                key = f"{rate!r} {noise!r}"
                counts[key] = counts.get(key, 0) + amount
            epsilon = epsilon_of_counts(counts, rule.delta)
            if epsilon > rule.epsilon * (1 + 1e-9):
                raise SettingError(
                    f"this node's privacy budget is spent: one more answer would raise ε of its rows to {epsilon:.4g}, "
                    f"above {rule.epsilon:g} at δ {rule.delta:g}"
                )
            write_whole(count_file, json.dumps(counts).encode())
    except OSError:
        # Its text would reveal this machine's folders to the server.
        log.warning("the count of the privacy budget cannot be saved", exc_info=True)
        raise SettingError(
            "the count of this node's privacy budget cannot be saved; see its log"
        ) from None


def _read_counts(count_file: Path) -> dict[str, int]:
    """Rate and noise multiplier -> number of releases."""
    if not count_file.exists():
        return {}
    try:
        counts = json.loads(count_file.read_bytes())
        for key, amount in counts.items():
            rate, noise = map(float, key.split())
            is_valid = 0 < rate <= 1 and 0 < noise < math.inf
            if not is_valid or type(amount) is not int or amount < 0:
                raise ValueError(key)
    except (ValueError, TypeError, AttributeError, RecursionError):
        raise SettingError(
            "the count of this node's privacy budget is damaged; its operator must repair it"
        ) from None
    return dict(counts)


def epsilon_of_counts(counts: Mapping[str, int], delta: float) -> float:
    """Return the ε of a row after all releases.

    Args:
        counts: ``"rate noise"`` -> number of releases.
        delta: δ.

    Returns:
        ε: exact if all releases are passes over shuffled batches, which are Gaussian mechanisms;
        else a bound by Rényi divergences.
    """
    # Gaussian mechanisms with multipliers z_t are one with 1 / z² = Σ 1 / z_t².
    precision = 0.0
    sampled: list[tuple[float, float, int]] = []
    for key, amount in counts.items():
        rate, noise = map(float, key.split())
        if rate == 1.0:
            precision += amount / noise**2
        else:
            sampled.append((rate, noise, amount))
    if not sampled:
        return spent(1 / math.sqrt(precision), 1, delta, sums=True) if precision else 0.0
    import dp_accounting as dp
    from dp_accounting.rdp import RdpAccountant

    ledger = RdpAccountant(RENYI_ORDERS)
    if precision:
        ledger.compose(dp.GaussianDpEvent(1 / math.sqrt(precision)))
    for rate, noise, amount in sampled:
        step = dp.PoissonSampledDpEvent(rate, dp.GaussianDpEvent(noise))
        ledger.compose(dp.SelfComposedDpEvent(step, amount))
    return float(ledger.get_epsilon(delta))
