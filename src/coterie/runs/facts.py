"""Facts about a world that ``run.toml`` records: its clients, the sizes of their data, and a digest of these."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch

from coterie.data.batches import Batch, Items, tensors
from coterie.data.cautions import cautions
from coterie.data.constant import constant
from coterie.data.deciding_tests import deciding_tests, digest_of_tests
from coterie.data.objective import METRICS, mean_probability
from coterie.data.shared_tests import times_tested
from coterie.data.target_scale import recorded
from coterie.data.world import Split, World
from coterie.models import nets
from coterie.records.shown import Shown


def world_facts(world: World) -> dict[str, Any]:
    """The entries of ``run.toml`` about a world.

    Args:
        world: The clients and their data.

    Returns:
        The client ids, the sizes of their training and test sets in that order, a digest of all
        data, and where they apply: the numbers of the subjects of their test sets, the names of the
        clients in that order, a main metric other than the accuracy, the true groups, who has which
        concept in each time step of a drift (a row per time step, in the order of the clients), the
        hostile clients, a description from which a net like the clients' can be made, and facts
        about the data (the names of features and classes, the constants of a standardization).
        Sizes are those of the first time step. For the verdict: how many clients test each example,
        which rows these are, which of them decide the noise of the main metric, what a constant
        prediction scores, and what the data warn of.
    """
    # Who the clients are, how much data they have, and a digest of it.
    client_ids = sorted(world.clients)
    train_splits = [world.clients[client].train for client in client_ids]
    test_splits = [world.clients[client].test for client in client_ids]
    facts: dict[str, Any] = {
        "clients": client_ids,
        "examples": list(map(len, train_splits)),
        "tests": list(map(len, test_splits)),
        "data": digest(world),
    }
    if world.has_validation_scores:
        scoring_splits = [world.clients[client].scoring for client in client_ids]
        facts["validation_rows"] = [len(split or ()) for split in scoring_splits]
    if any(split.subjects is not None for split in test_splits):
        facts["test_subjects"] = [split.independent for split in test_splits]
    # What readers cannot derive is recorded only where it applies.
    name_of_client = world.client_names
    if name_of_client:
        facts["names"] = [name_of_client[client] for client in client_ids]
    # Readers assume the accuracy, and the mean of probabilities in an ensemble.
    if (world.objective.main, world.objective.better) != (Shown.main, Shown.better):
        facts["metric"] = {"main": world.objective.main, "better": world.objective.better}
    if world.objective.target_scale is not None:
        facts["target_scale"] = recorded(world.objective.target_scale)
    facts |= _facts_of_tests(world, client_ids)
    combine_name = getattr(world.objective.combine, "__name__", "custom")
    if combine_name != mean_probability.__name__:
        facts["combine"] = combine_name
    if world.truth is not None:
        facts["true_groups"] = list(map(list, world.truth))
    if world.drift is not None:
        # A row for each time step, in the order of the clients.
        concepts_by_step = []
        for concept_of_client in world.drift.concepts:
            concepts_by_step.append([concept_of_client[client] for client in client_ids])
        facts["drift"] = {"period": world.drift.period, "concepts": concepts_by_step}
    if world.attacks:
        facts["adversaries"] = sorted(world.attacks)
    model_description = nets.described(world.model)
    if model_description is not None:
        facts["model"] = model_description
    if world.about:
        facts["about"] = dict(world.about)
    return facts


DERIVED_FACTS = (
    "constant",
    "testers",
    "cautions",
    "averages_shares",
    "deciding_tests",
    "test_rows",
)
"""Facts about a world that follow from its data, and are for the verdict."""


def _facts_of_tests(world: World, client_ids: Sequence[int]) -> dict[str, Any]:
    """What a verdict needs to know about the clients' tests, see :data:`DERIVED_FACTS`."""
    # How many clients test an example; 1 for the examples of a hostile client.
    test_counts = times_tested(world)
    facts: dict[str, Any] = {
        "testers": [round(test_counts.get(client, 1.0), 6) for client in client_ids]
    }
    # Which rows these are: seeds may repeat the same test.
    facts["test_rows"] = digest_of_tests(world)
    # The test examples on which the noise of a metric of a whole test set depends.
    numbers_of_client = deciding_tests(world)
    if numbers_of_client is not None:
        facts["deciding_tests"] = [numbers_of_client[client] for client in client_ids]
    # What a constant prediction scores, for comparison with the models.
    reference = constant(world)
    if reference is not None:
        facts["constant"] = {
            "predicts": reference.predicts,
            "values": [round(reference.values[client], 6) for client in client_ids],
            "own": [round(reference.own[client], 6) for client in client_ids],
        }
        if reference.sums:
            facts["constant"]["sums"] = [
                _as_lists(reference.sums.get(client, {})) for client in client_ids
            ]
    main_metric_name = world.objective.main
    main_metric = world.objective.named[main_metric_name]
    # Of Coterie's own metrics, readers know it.
    if main_metric is not METRICS.get(main_metric_name):
        facts["averages_shares"] = main_metric.averages_shares
    warnings_of_data = cautions(world)
    if warnings_of_data:
        facts["cautions"] = warnings_of_data
    return facts


def _as_lists(error_sums: Mapping[str, Iterable[float]]) -> dict[str, list[float]]:
    """The sums of a metric's errors, with their numbers as lists."""
    return dict(zip(error_sums, map(list, error_sums.values()), strict=True))


def same_world(facts_now: Mapping[str, Any], recorded_facts: Mapping[str, Any]) -> bool:
    """Whether these facts are those that a run has recorded.

    :data:`DERIVED_FACTS` are not compared: they follow from the data, whose digest is compared,
    and may differ in the last digit between versions of PyTorch.
    """
    compared_facts = (facts_now.keys() | recorded_facts.keys()) - set(DERIVED_FACTS)
    for fact_name in compared_facts:
        # A fact that only one of them has differs, too.
        if fact_name not in facts_now or fact_name not in recorded_facts:
            return False
        if facts_now[fact_name] != recorded_facts[fact_name]:
            return False
    return True


def digest(world: World) -> str:
    """A hash of the examples and targets of all clients; a pool that clients share is read once.

    Of a data set that is read item by item, 16 items of each split are hashed, evenly
    spaced. If an item is not the same when it is read again, as with random augmentation, only the
    numbers of items are.
    """
    # Time steps, clients and splits in a fixed order: equal worlds have equal digests.
    data_hash = hashlib.blake2b(digest_size=16)
    hashed_pools: set[int] = set()
    for data_of_client in world.steps:
        for client in sorted(data_of_client):
            client_data = data_of_client[client]
            splits = [client_data.train, client_data.validation, client_data.test]
            if client_data.scoring is not None:
                splits.append(client_data.scoring)
            for data_split in splits:
                for tensor in tensors(_hashed_parts(data_split, hashed_pools)):
                    data_hash.update(tensor.contiguous().numpy())
    return data_hash.hexdigest()


def _hashed_parts(data_split: Split, hashed_pools: set[int]) -> tuple[Any, ...]:
    """The parts of a split that are hashed, without a pool that was hashed before, and notes its pool as hashed."""
    is_new_pool = id(data_split.inputs) not in hashed_pools
    hashed_pools.add(id(data_split.inputs))
    hashed_parts: list[Any] = []
    if isinstance(data_split.inputs, Items):
        hashed_parts += [_probed(data_split), data_split.index]
    else:
        hashed_parts += [data_split.inputs] if is_new_pool else []
        hashed_parts += [data_split.index, data_split.targets]
    # Only some data have subjects, or spans of a text.
    for optional_part in (data_split.subjects, data_split.spans):
        if optional_part is not None:
            hashed_parts.append(optional_part)
    return tuple(hashed_parts)


MAX_PROBED_ITEMS = 16
"""Items of a split that are hashed, of a data set that is read item by item."""


def _probed(data_split: Split) -> list[Batch]:
    """Some items of a split, each as a batch of one; none if an item is not the same when it is read again."""
    if len(data_split) == 0:
        return []
    last_item = len(data_split) - 1
    # Evenly spaced items; the first one is read twice.
    positions = torch.linspace(0, last_item, min(MAX_PROBED_ITEMS, len(data_split))).long()
    first_read = data_split.batch(positions[:1])
    second_read = data_split.batch(positions[:1])
    for tensor, tensor_again in zip(tensors(first_read), tensors(second_read), strict=True):
        if not torch.equal(tensor, tensor_again):
            return []
    return [data_split.batch(positions[start : start + 1]) for start in range(len(positions))]
