"""Groups for the clients of a run that have none yet, by small batches: :meth:`coterie.Run.place_waiting`.

Split-half asks a thousand clients in a round that look for their group. So of a million clients most
still wait when a run ends. Here they all walk down the parameter tree, a batch after the other, as
they would in rounds: each trains on the two halves of its data from the model of its node, and goes
to the nearest branch. The models stay as they are. A client that differs from all branches is a
group of its own; the clients that wait share the level of this test, as a million tests at the level
of one would make many groups by chance.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from coterie.boundary import Boundary
from coterie.core import Client, Groups, Plan, Position, as_groups
from coterie.core.needs import all_methods
from coterie.engines.clock import Clock
from coterie.engines.exchange import exchange
from coterie.engines.pool import ClientPool
from coterie.engines.rounds import setup
from coterie.methods import _cluster_tree
from coterie.methods._split_half_walks import walk
from coterie.methods.split_half import SplitHalf, SplitHalfState
from coterie.records.codec import from_stored
from coterie.runs.facts import same_world
from coterie.settings import SettingError, UserError
from coterie.settings.calls import public


@public
@dataclass(frozen=True)
class PlacedClients:
    """The groups of all clients of a run.

    Attributes:
        groups: The groups.
        placed: How many clients waited for a group and have one now.
        without: Clients that did not answer, or whose reply was refused: they still have none.
        name_of_client: The names of clients that have one.
    """

    groups: Groups
    placed: int
    without: tuple[Client, ...]
    name_of_client: Mapping[Client, str] = field(default_factory=dict)

    def write(self, path: Path | str) -> None:
        """Write a CSV file with the group of each client, the number of its place in ``groups``.

        A client is written by its name, or by its number if it has none.

        Args:
            path: The file.
        """
        group_of_client: dict[Client, int] = {}
        for group_number, members in enumerate(self.groups):
            group_of_client |= dict.fromkeys(members, group_number)
        with Path(path).open("w", newline="", encoding="utf-8") as file:
            rows = csv.writer(file)
            rows.writerow(("client", "group"))
            for client, group_number in sorted(group_of_client.items()):
                rows.writerow((self.name_of_client.get(client, client), group_number))


def without_placement(run: Any) -> PlacedClients:
    """The groups of all clients of a run as they are: clients that wait are in the group of their node.

    Args:
        run: The :class:`coterie.Run`.

    Raises:
        UserError: There is no checkpoint, or it is damaged.
    """
    groups = run.groups()
    # Names as they are shown: of a federation they are in another file.
    naming = run.record.naming(run.record.description())
    name_of_client = {int(client_key): str(name) for client_key, name in naming.labels.items()}
    return PlacedClients(groups, 0, (), name_of_client)


def place_waiting(run: Any, batch: int, workers: int | None) -> PlacedClients:
    """Place all clients of a run that wait for a group, see :meth:`coterie.Run.place_waiting`.

    Args:
        run: The :class:`coterie.Run`, whose module imports this one.
        batch: Clients that train together, at least 1.
        workers: Processes that train; None for the experiment's number.

    Returns:
        The groups of all clients.

    Raises:
        UserError: See there.
    """
    if not isinstance(batch, int) or isinstance(batch, bool) or batch < 1:
        raise SettingError(f"batch must be an integer >= 1, got {batch!r}")
    checkpoint = run.record.stored(Position) if run.record.begun else None
    if checkpoint is None:
        raise UserError(f"{run.folder} has no checkpoint yet, which has the groups")
    round_number, position = checkpoint
    if replace(run.experiment.boundary, secret=None) != Boundary():
        raise UserError(
            f"{run.folder} changes updates on their way (boundary), so that they cannot be compared here"
        )
    split_half = next((m for m in all_methods(run.method) if isinstance(m, SplitHalf)), None)
    state = next(_states_of_split_half(position.state), None)
    if split_half is None or state is None:
        raise UserError(f"{run.method.name} runs no {SplitHalf.name} now, so no client waits")
    world = run.experiment.world(run.seed)
    if not same_world(run.facts(world), run.record.description()["world"]):
        raise UserError(f"{run.folder}: the scenario's clients or data have changed")
    hardware = run.experiment.hardware(workers)
    wire, _ = setup(run.method, world, run.seed, run.experiment.boundary)
    with (
        from_stored(run.record.checkpoints.path(round_number)),
        ClientPool(world, wire, hardware, run.experiment.robust) as pool,
    ):
        walkers = _Walkers(split_half, state, replace(position, kept={}), run.seed)
        walkers.walk_all(pool, batch)
    return replace(walkers.result(), name_of_client=world.client_names)


def _states_of_split_half(state: Any) -> Iterator[SplitHalfState]:
    """The states of split-half in that of a method, in the states of the methods that it runs."""
    if isinstance(state, SplitHalfState):
        yield state
    for inner_state in (*getattr(state, "arms", {}).values(), getattr(state, "inner", None)):
        if inner_state is not None:
            yield from _states_of_split_half(inner_state)


class _Walkers:
    """The clients that walk down the tree, and where they arrive."""

    def __init__(
        self, method: SplitHalf, state: SplitHalfState, position: Position, seed: int
    ) -> None:
        self.method = method
        self.state = state
        self.position = position
        self.seed = seed
        self.tree = state.tree
        self.probed = state.probed
        self.waiting = dict(state.walkers)
        # At each depth of the tree, the probability of any new group by mistake is the method's level.
        self.client_level = method.level / max(1, len(self.waiting))
        self.leaf_of_client: dict[Client, int] = {}
        self.unheard: list[Client] = []

    def walk_all(self, pool: ClientPool, batch: int) -> None:
        """Let all walk to a leaf, one level of the tree after the other."""
        while self.waiting:
            # An exchange for each level: its batches draw the same random numbers as all together.
            self.position = replace(self.position, exchange=self.position.exchange + 1)
            further: dict[Client, int] = {}
            clients = sorted(self.waiting)
            for start in range(0, len(clients), batch):
                further |= self._step(pool, clients[start : start + batch])
            self.waiting = further

    def _step(self, pool: ClientPool, clients: Sequence[Client]) -> Mapping[Client, int]:
        """Move some walkers down one level; return those that are at no leaf yet, and their nodes."""
        nodes = {client: self.waiting[client] for client in clients}
        models, tasks = _cluster_tree.tasks(
            self.tree,
            nodes,
            tuple(clients),
            0,
            self.state.training_at,
            halves=True,
        )
        plan = Plan(
            models=torch.stack(models),
            tasks=tasks,
            need="rows",
            columns=slice(0, self.tree.parameters),
            weighting=self.method.weighting,
        )
        replies, _ = exchange(pool, plan, self.position, self.seed, Clock())
        walked = walk(self.tree, nodes, self.probed, replies, self.client_level)
        # A walker that differs from all branches is a leaf that the next ones are compared to.
        self.tree = walked.tree
        self.probed = walked.probed
        further = {}
        for client, new_node in walked.new_nodes.items():
            # A merged leaf is part of another one.
            node = self.state.merged.get(new_node, new_node)
            if self.tree.is_leaf(node):
                self.leaf_of_client[client] = node
            else:
                further[client] = node
        self.unheard += [client for client in clients if client not in walked.new_nodes]
        return further

    def result(self) -> PlacedClients:
        """The groups of all clients that have one."""
        members_of_leaf = {leaf.node: list(leaf.clients) for leaf in self.state.leaves}
        for client, node in self.leaf_of_client.items():
            members_of_leaf.setdefault(node, []).append(client)
        groups = as_groups(filter(None, members_of_leaf.values()))
        return PlacedClients(groups, len(self.leaf_of_client), tuple(sorted(self.unheard)))
