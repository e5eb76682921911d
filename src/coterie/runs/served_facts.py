"""What an export says about its models beyond their weights, from the clients' data: calibration, and what places a new site.

Rows that were trained on give neither: temperatures are fitted on validation rows and judged on test
rows, and losses that place a site are those of both.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import scipy
import torch
from torch import Tensor, nn

from coterie.boundary import Wire
from coterie.core import Assignment, Client, Position
from coterie.data.world import ClientData, Split
from coterie.engines.served import Nets
from coterie.models.layout import Layout
from coterie.randomness import seeded
from coterie.runs.calibration import best_temperature, calibrated
from coterie.runs.facts import same_world
from coterie.runs.group_profiles import GroupProfiles, group_profiles
from coterie.runs.run import Run
from coterie.runs.site_moments import (
    described_tensors,
    fitted_description,
    moments_of,
    with_spread,
)
from coterie.settings import UserError
from coterie.training.outputs import (
    CLASS_LOGITS,
    LABEL_LOGITS,
    batches,
    output_kind,
    outputs_and_targets,
    row_losses,
    suitable,
)

MAX_PLACING_GROUPS = 64
"""Most groups among which an export can place a site: each client is tested with the model of each."""

MAX_PLACING_ROWS = 1000
"""Most rows of a client that tell what its group is like."""

MIN_PLACING_ROWS = 2
"""Fewest rows of a client that tell what its group is like, as one has no variance."""


@dataclass(frozen=True)
class GroupNet:
    """The net that a whole group shares.

    Attributes:
        rows: Its rows in the assignment's models; several are an ensemble.
        client: The client whose own layers it has; None for none.
        files: Its files.
    """

    rows: tuple[int, ...]
    client: Client | None
    files: tuple[str, ...]


@dataclass(frozen=True)
class ServedFacts:
    """What the clients' data say about the models.

    Attributes:
        kind: What the outputs are, see :mod:`coterie.training.outputs`; empty for a loss of the user's own.
        why_none: Why there are neither rows nor calibration nor placement; empty if there are.
        rows: Client -> its training, validation and test rows.
        calibration: Files of the net, joined by "+" -> its calibration.
        placement: Facts for placing a site; None if no site can be placed.
        tensors: Tensors for placing a site, for a file.
    """

    kind: str = ""
    why_none: str = ""
    rows: Mapping[Client, Mapping[str, int]] = field(default_factory=dict)
    calibration: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    placement: Mapping[str, Any] | None = None
    tensors: Mapping[str, Tensor] = field(default_factory=dict)


def served_facts(
    run: Run,
    position: Position,
    assignment: Assignment,
    files_of_client: Mapping[Client, tuple[str, ...]],
    group_nets: Sequence[GroupNet | None],
) -> ServedFacts:
    """Return what the data of a run's clients say about its models.

    Args:
        run: The run.
        position: Its position.
        assignment: Which model serves each client.
        files_of_client: Client -> the files of its net.
        group_nets: The net of each group; None if the group has none as a whole.

    Returns:
        The facts; without any, and with a reason, where the data are not here or not those of the run.
    """
    try:
        world = run.experiment.world(run.seed)
    except UserError as error:
        return ServedFacts(why_none=f"the clients' data cannot be read: {error}")
    if not same_world(run.facts(world), run.record.description()["world"]):
        return ServedFacts(why_none="the clients' data are no longer those of the run")
    # A hostile client's rows say nothing about others.
    data_of_step = world.steps[world.step(position.round)]
    data_of_client = {
        client: data_of_step[client]
        for client in assignment.row
        if client in data_of_step and client not in world.attacks
    }
    rows = {
        client: {
            split_name: len(getattr(data_of_step[client], split_name))
            for split_name in ("train", "validation", "test")
        }
        for client in assignment.row
        if client in data_of_step
    }
    kind = output_kind(world.objective)
    with seeded(0):
        layout = Layout(world.model())
    nets = Nets(
        world.model,
        Wire(run.experiment.boundary, layout, run.seed),
        world.objective,
        data_of_client,
    )

    def net_of(client: Client) -> nn.Module:
        model_rows = [assignment.models[row] for row in assignment.serving(client)]
        return nets(model_rows, position.own(assignment, client), client)

    def net_of_group(group_net: GroupNet) -> nn.Module:
        model_rows = [assignment.models[row] for row in group_net.rows]
        own_values = None
        if group_net.client is not None:
            own_values = position.own(assignment, group_net.client)
        return nets(model_rows, own_values, group_net.client or 0)

    calibration: dict[str, dict[str, Any]] = {}
    if kind in (CLASS_LOGITS, LABEL_LOGITS):
        # The net of each client, and of each group whose clients have personal models.
        served_nets: dict[str, ServedNet] = {}
        for client in data_of_client:
            net_name = "+".join(files_of_client[client])
            net = served_nets.setdefault(net_name, ServedNet(partial(net_of, client)))
            net.clients.append(client)
        for group_net, group in zip(group_nets, assignment.groups, strict=False):
            if group_net is not None and "+".join(group_net.files) not in served_nets:
                clients = [client for client in group if client in data_of_client]
                net = ServedNet(partial(net_of_group, group_net), clients)
                served_nets["+".join(group_net.files)] = net
        calibration = _calibration(kind, served_nets, data_of_client)
    placement = None
    tensors: dict[str, Tensor] = {}
    shared_nets = [group_net for group_net in group_nets if group_net is not None]
    has_all_groups = len(shared_nets) == len(group_nets)
    if has_all_groups and 0 < len(group_nets) <= MAX_PLACING_GROUPS:
        temperatures = []
        modules = []
        for group_net in shared_nets:
            modules.append(net_of_group(group_net))
            entry = calibration.get("+".join(group_net.files), {})
            temperatures.append(float(entry.get("temperature", 1.0)))
        clients_of_groups = [
            [client for client in group if client in data_of_client] for group in assignment.groups
        ]
        placement, tensors = _placement(
            kind, modules, temperatures, clients_of_groups, data_of_client
        )
    return ServedFacts(kind, "", rows, calibration, placement, tensors)


@dataclass(frozen=True)
class ServedNet:
    """A net, and the clients on whose rows it is calibrated.

    Attributes:
        make: Makes the net.
        clients: The clients.
    """

    make: Callable[[], nn.Module]
    clients: list[Client] = field(default_factory=list)


def _calibration(
    kind: str,
    served_nets: Mapping[str, ServedNet],
    data_of_client: Mapping[Client, ClientData],
) -> dict[str, dict[str, Any]]:
    """Files of each net, joined by "+" -> its calibration; empty if no client has validation rows of a suitable form."""
    held_out: dict[str, tuple[Tensor, Tensor] | None] = {}
    tested: dict[str, tuple[Tensor, Tensor] | None] = {}
    for net_name, served_net in served_nets.items():
        net = served_net.make()
        validation_splits = [data_of_client[client].validation for client in served_net.clients]
        test_splits = [data_of_client[client].test for client in served_net.clients]
        held_out[net_name] = suitable(kind, outputs_and_targets(net, validation_splits))
        tested[net_name] = suitable(kind, outputs_and_targets(net, test_splits))
    # One temperature from the rows of all, for models with few rows.
    all_held_out = [pair for pair in held_out.values() if pair is not None]
    if not all_held_out:
        return {}
    all_outputs = torch.cat([outputs for outputs, _ in all_held_out])
    all_targets = torch.cat([targets for _, targets in all_held_out])
    shared = best_temperature(kind, all_outputs, all_targets)
    return {
        net_name: calibrated(kind, held_out[net_name], tested[net_name], shared)
        for net_name in served_nets
    }


def _placement(
    kind: str,
    group_nets: Sequence[nn.Module],
    temperatures: Sequence[float],
    clients_of_groups: Sequence[Sequence[Client]],
    data_of_client: Mapping[Client, ClientData],
) -> tuple[dict[str, Any] | None, dict[str, Tensor]]:
    """Facts and tensors for placing a site by its labels, and without labels; None if neither is possible."""
    facts: dict[str, Any] = {"temperatures": list(temperatures)}
    tensors: dict[str, Tensor] = {}
    # By labels: the losses of each group's model on rows that were not trained on.
    held_out: list[list[LossesOfClient]] = []
    for clients in clients_of_groups:
        of_group = []
        for client in clients if kind else ():
            data = data_of_client[client]
            losses = _held_out_losses(kind, group_nets, temperatures, [data.validation, data.test])
            if losses is not None and len(losses.losses) >= MIN_PLACING_ROWS:
                of_group.append(losses)
        held_out.append(of_group)
    if all(held_out):
        profiles = group_profiles(
            [[moments_of(client.losses) for client in of_group] for of_group in held_out]
        )
        _add(facts, tensors, "labels", profiles)
        if kind == CLASS_LOGITS:
            class_shares = _class_shares(group_nets[0], clients_of_groups, data_of_client)
            facts["class_shares"] = class_shares
            facts["constant_is_better"] = _shares_with_better_constant(
                held_out, class_shares, profiles
            )
    # Without labels: inputs, embeddings and outputs.
    try:
        inputs_of_groups = []
        for clients in clients_of_groups:
            of_clients = []
            for client in clients:
                parts = [
                    inputs for inputs, _ in batches(data_of_client[client].train, MAX_PLACING_ROWS)
                ]
                of_clients.append(parts)
            inputs_of_groups.append(of_clients)
        # As many rows of each client, so that none outweighs the others.
        first_parts = [parts[0] for of_clients in inputs_of_groups for parts in of_clients]
        description = fitted_description(group_nets, first_parts)
        input_moments = []
        for of_clients in inputs_of_groups:
            moments_of_group = []
            for parts in of_clients:
                numbers = np.concatenate([description.numbers(group_nets, part) for part in parts])
                if len(numbers) >= MIN_PLACING_ROWS:
                    moments_of_group.append(with_spread(numbers))
            input_moments.append(moments_of_group)
    # Data of the user's own form: they are placed by labels alone, or not at all.
    except (UserError, RuntimeError, TypeError, AttributeError, IndexError):
        input_moments = []
    if input_moments and all(input_moments):
        tensors |= described_tensors(description)
        facts["has_inputs"] = description.has_inputs
        _add(facts, tensors, "inputs", group_profiles(input_moments))
    return (facts, tensors) if tensors else (None, {})


@dataclass(frozen=True)
class LossesOfClient:
    """Losses of the groups' models on a client's rows that were not trained on.

    Attributes:
        losses: Of each of n rows under each of G models, ``(n, G)``.
        targets: The class, label or number of each row, ``(n, ...)``.
    """

    losses: np.ndarray
    targets: np.ndarray


def _held_out_losses(
    kind: str, nets: Sequence[nn.Module], temperatures: Sequence[float], splits: Sequence[Split]
) -> LossesOfClient | None:
    """The losses under each net; None if there is no row, rows have another form, or a loss is not finite."""
    columns = []
    targets = None
    for net, temperature in zip(nets, temperatures, strict=True):
        pair = suitable(kind, outputs_and_targets(net, splits))
        if pair is None:
            return None
        columns.append(row_losses(kind, *pair, temperature).double().numpy())
        targets = pair[1].numpy()
    losses = np.stack(columns, 1)
    if targets is None or not np.isfinite(losses).all():
        return None
    return LossesOfClient(losses, targets)


def _shares_with_better_constant(
    held_out: Sequence[Sequence[LossesOfClient]],
    class_shares: Sequence[float],
    profiles: GroupProfiles,
) -> list[float]:
    """For each group, how many of its own clients would do better with a constant than with its model.

    Args:
        held_out: The held-out losses of each group's clients.
        class_shares: Shares of the classes at all training clients.
        profiles: The profiles of the groups by these losses.

    Returns:
        The share of the clients of each group ``(G,)``, where a client counts by its probability.
    """
    shares = []
    for group, clients in enumerate(held_out):
        spread = float(profiles.within[group, group]) ** 0.5
        probabilities = []
        for client in clients:
            constants = constant_losses(client.targets, class_shares)
            better = probability_of_gain(client.losses[:, group], constants, spread)
            probabilities.append(1 - better)
        shares.append(float(np.mean(probabilities)))
    return shares


def _class_shares(
    net: nn.Module,
    clients_of_groups: Sequence[Sequence[Client]],
    data_of_client: Mapping[Client, ClientData],
) -> list[float]:
    """The share of each class among all training rows, of which each class counts as having one more."""
    counts: np.ndarray | None = None
    for clients in clients_of_groups:
        for client in clients:
            outputs, targets = outputs_and_targets(
                net, [data_of_client[client].train.at(slice(0, 1000))]
            ) or (None, None)
            if outputs is None or targets is None:
                continue
            if counts is None:
                counts = np.ones(outputs.shape[1])
            counts += np.bincount(targets.numpy(), minlength=len(counts))
    return [] if counts is None else (counts / counts.sum()).tolist()


def _add(
    facts: dict[str, Any], tensors: dict[str, Tensor], name: str, profiles: GroupProfiles
) -> None:
    """Add the profiles of groups to what an export has."""
    facts[name] = {
        "powers": profiles.powers.tolist(),
        "power_weights": profiles.power_weights.tolist(),
        "accuracy": profiles.accuracy,
        "clients": profiles.num_clients.tolist(),
    }
    for field_name in PROFILE_TENSORS:
        tensors[f"{name}_{field_name}"] = torch.from_numpy(getattr(profiles, field_name))


def profiles_of(
    facts: Mapping[str, Any], tensors: Mapping[str, Tensor], name: str
) -> GroupProfiles:
    """The profiles of groups that an export has under a name, ``labels`` or ``inputs``."""
    arrays = {}
    for field_name in PROFILE_TENSORS:
        if f"{name}_{field_name}" in tensors:
            arrays[field_name] = tensors[f"{name}_{field_name}"].numpy()
    of_source = facts[name]
    num_clients = np.array(of_source["clients"], int)
    if "power" in of_source:
        # An export of an earlier version has one variance between clients, and one power.
        return GroupProfiles(
            arrays["centres"],
            arrays["within"],
            np.zeros_like(arrays["centres"]),
            arrays["between"][None],
            np.ones_like(arrays["between"][None]),
            num_clients,
            np.array([float(of_source["power"])]),
            np.ones(1),
            float(of_source["accuracy"]),
        )
    return GroupProfiles(
        arrays["centres"],
        arrays["within"],
        arrays["row_errors"],
        arrays["between"],
        arrays["between_weights"],
        num_clients,
        np.array(of_source["powers"], float),
        np.array(of_source["power_weights"], float),
        float(of_source["accuracy"]),
    )


PROFILE_TENSORS = ("centres", "within", "row_errors", "between", "between_weights")
"""The arrays of profiles that are in an export's file."""


def constant_losses(classes: np.ndarray, class_shares: Sequence[float]) -> np.ndarray:
    """Return the loss of a constant prediction for each row ``(n,)``, by the other rows of the site.

    Args:
        classes: The class of each row ``(n,)``.
        class_shares: Shares of the classes at all training clients, which count as one row.

    Returns:
        The negative logarithm of the probability of each row's class.
    """
    shares = np.asarray(class_shares)
    counts = np.bincount(classes, minlength=len(shares)) + shares
    # The row itself does not count.
    losses: np.ndarray = -np.log((counts[classes] - 1) / len(classes))
    return losses


def probability_of_gain(losses: np.ndarray, constants: np.ndarray, spread_of_row: float) -> float:
    """Return how likely a model is better than a constant prediction, by the losses of rows of one client.

    Args:
        losses: Of the model, for each row ``(n,)``.
        constants: Of the constant prediction, for each row ``(n,)``.
        spread_of_row: Standard deviation between rows, where the rows are too few to tell.
    """
    gains = constants - losses
    error = max(standard_error(gains, spread_of_row), 1e-12)
    return float(scipy.special.ndtr(gains.mean() / error))


def standard_error(values: np.ndarray, spread_of_row: float) -> float:
    """Return the standard error of a mean; of fewer than MIN_SPREAD_VALUES, by the spread that rows are known to have."""
    spread = float(np.std(values, ddof=1)) if len(values) >= MIN_SPREAD_VALUES else spread_of_row
    return spread / math.sqrt(len(values))


MIN_SPREAD_VALUES = 5
"""Fewest values whose own spread says how sure their mean is."""
