"""Which of a client's examples it trains on: without those held out, or on one of two random halves."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from coterie.core import Client
from coterie.data.on_demand import OnDemand
from coterie.data.time_order import latest
from coterie.data.world import ClientData, Split, World
from coterie.randomness import Purpose, generator


def halvable(data: Split, min_examples: int) -> bool:
    """Whether a client can train on both halves of these examples, however they are drawn.

    Args:
        data: The examples.
        min_examples: Fewest examples of a step.
    """
    largest_subject = 1
    if data.subjects is not None and len(data):
        largest_subject = int(data.subjects.unique(return_counts=True)[1].max())
    # The smaller half has at least half of what the largest subject leaves of the examples.
    return len(data) - largest_subject >= 2 * min_examples - 1


def halves(data: Split, key: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    """Divide examples into two disjoint random halves.

    Of an odd number of examples, one is left out. Where examples have subjects, those of a subject
    are in the same half, none is left out, and the sizes differ by the greatest number of examples
    of a subject at most.

    Args:
        data: The examples.
        key: Seed of the draw.

    Returns:
        The positions of the examples of each half.

    Raises:
        ValueError: There are too few examples, or all are of one subject.
    """
    if not halvable(data, 1):
        too_few_subjects = "" if data.subjects is None else " of too few subjects"
        plural = "s" if len(data) != 1 else ""
        raise ValueError(f"{len(data)} training example{plural}{too_few_subjects} cannot be halved")
    draws = generator(*key, 2)
    if data.subjects is None:
        shuffled = torch.randperm(len(data), generator=draws)
        half_size = len(data) // 2
        return shuffled[:half_size], shuffled[half_size : 2 * half_size]
    # Subjects in random order are cut where the sizes of both sides are nearest to each other.
    subject_of_example, example_counts = _counted(data.subjects)
    subjects = torch.randperm(len(example_counts), generator=draws)
    ends = example_counts[subjects].cumsum(0)[:-1]
    cut_position = 1 + int((2 * ends - len(data)).abs().argmin())
    before_cut = torch.isin(subject_of_example, subjects[:cut_position])
    # Of two cuts that are equally near, argmin always takes the first: so chance says which side
    # is the first half.
    swapped = bool(torch.randint(2, (), generator=draws))
    first_half = (before_cut == swapped).nonzero().squeeze(1)
    second_half = (before_cut != swapped).nonzero().squeeze(1)
    return first_half, second_half


def held_out(data: ClientData, share: float, seed: int, client: Client) -> ClientData:
    """Return a client's data with validation examples.

    Args:
        data: The client's data.
        share: The share of its training examples that become validation examples if it has none, at
            least one and at most half; always the same ones, and all of a subject. Of examples in
            order of time they are the latest, and those that reach into them are left out. 0 for
            none.
        seed: The seed of the run.
        client: The client.
    """
    if not share or len(data.validation):
        return data
    parts = taken_out(data.train, share, (seed, Purpose.HOLDOUT, client))
    if parts is None:
        return data
    return replace(data, train=parts.remaining, validation=parts.held_out)


def set_aside(world: World, share: float, seed: int) -> World:
    """Return a world in which a share of each client's training examples gives validation scores.

    Nobody trains on these examples, and no method sees them: they are neither in the validation
    part, by which methods choose, nor tested. So scores on them may choose among methods and
    settings. They are the same for all methods of a seed.

    Args:
        world: The world.
        share: The share of the training examples, at least one and at most half; all of a subject,
            and of examples in order of time the latest. A client that cannot spare any has none.
        seed: The seed of the run.

    Returns:
        The world; the parts are in ``ClientData.scoring``.
    """
    # Data that are made on demand are divided on demand.
    if isinstance(world.clients, OnDemand):
        divided = world.clients.changed(
            lambda client, data: _with_part_for_scoring(data, share, seed, client)
        )
        return replace(world, clients=divided)
    divided_data: dict[tuple[Client, int], ClientData] = {}
    clients_of_steps = []
    for clients in world.steps:
        divided_clients = {}
        for client, data in clients.items():
            # Data that a client keeps over time steps stay one object.
            data_key = (client, id(data))
            if data_key not in divided_data:
                divided_data[data_key] = _with_part_for_scoring(data, share, seed, client)
            divided_clients[client] = divided_data[data_key]
        clients_of_steps.append(divided_clients)
    drift = None if world.drift is None else replace(world.drift, data=clients_of_steps)
    return replace(world, clients=clients_of_steps[0], drift=drift)


def _with_part_for_scoring(data: ClientData, share: float, seed: int, client: Client) -> ClientData:
    """A client's data with a share of its training examples set aside, see :func:`set_aside`."""
    parts = taken_out(data.train, share, (seed, Purpose.VALIDATION, client))
    if parts is None:
        parts = Division(held_out=data.train.at(slice(0)), remaining=data.train)
    return replace(data, train=parts.remaining, scoring=parts.held_out)


class Division(NamedTuple):
    """Examples that are taken out of others, and those that remain."""

    held_out: Split
    remaining: Split


def taken_out(train: Split, share: float, key: tuple[int, ...]) -> Division | None:
    """Take a share of some examples out, always the same ones; None if nothing can be spared.

    Args:
        train: The examples.
        share: The share, at least one example and at most half; all of a subject. Of examples in
            order of time they are the latest, and those that reach into them are left out.
        key: Seed of the draw.
    """
    held_out_count = min(max(round(share * len(train)), 1), len(train) // 2)
    if not held_out_count:
        return None
    if train.spans is not None:
        subjects = None if train.subjects is None else train.subjects.numpy()
        latest_and_earlier = latest(train.spans.numpy(), len(train) // 2, held_out_count, subjects)
        if latest_and_earlier is None:
            return None
        # In order of time, the latest are held out.
        held_out_positions, remaining_positions = map(torch.from_numpy, latest_and_earlier)
        return Division(train.at(held_out_positions), train.at(remaining_positions))
    draws = generator(*key)
    # Without an order they are drawn: single examples, or whole subjects.
    if train.subjects is None:
        shuffled = torch.randperm(len(train), generator=draws)
        held_out_positions = shuffled[:held_out_count].sort().values
        remaining_positions = shuffled[held_out_count:].sort().values
    else:
        held_out_positions, remaining_positions = _whole_subjects(
            train.subjects, held_out_count, draws
        )
    if not len(held_out_positions):
        return None
    return Division(train.at(held_out_positions), train.at(remaining_positions))


def _counted(subjects: Tensor) -> tuple[Tensor, Tensor]:
    """For each example, the position of its subject among all subjects; and the number of examples of each."""
    _, subject_of_example, example_counts = subjects.unique(return_inverse=True, return_counts=True)
    return subject_of_example, example_counts


def _whole_subjects(
    subjects: Tensor, wanted_count: int, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Positions of about ``count`` examples of random subjects, at most half of all; and of the rest."""
    subject_of_example, example_counts = _counted(subjects)
    chosen_subjects: list[int] = []
    held_out_count = 0
    for subject in torch.randperm(len(example_counts), generator=generator).tolist():
        # A subject is taken if that is still needed, and at most half of all examples are then held
        # out.
        with_subject = held_out_count + int(example_counts[subject])
        if held_out_count < wanted_count and 2 * with_subject <= len(subjects):
            chosen_subjects.append(subject)
            held_out_count = with_subject
    is_held_out = torch.isin(subject_of_example, torch.tensor(chosen_subjects, dtype=torch.int64))
    return is_held_out.nonzero().squeeze(1), (~is_held_out).nonzero().squeeze(1)


def of_each_subject(losses: Tensor, subjects: Tensor | None) -> Tensor:
    """Return the mean loss of each subject's examples: unlike single examples, subjects are independent.

    Args:
        losses: Losses of m models on each example, ``(m, examples)``.
        subjects: Number of the subject of each example, or None if each example has its own.

    Returns:
        ``(m, subjects)``.
    """
    if subjects is None or not len(subjects):
        return losses
    subject_of_example, example_counts = _counted(subjects)
    loss_sums = losses.new_zeros(len(losses), len(example_counts))
    loss_sums.index_add_(1, subject_of_example, losses)
    return loss_sums / example_counts
