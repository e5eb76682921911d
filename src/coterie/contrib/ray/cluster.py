"""Rounds on a Ray cluster: the in-process engine, whose clients train on the nodes of the cluster.

The process that runs the method is the server of :func:`coterie.engines.rounds.rounds`, unchanged.
Only its jobs run elsewhere: each node of the cluster has one actor, which makes the world for
itself and has a :class:`.pool.ClientPool` of its own, with one worker process per core. So clients'
data are never sent. For each exchange

- models go to Ray's object store once, and from there once to each node;
- each node gets the jobs of its share of the clients. Jobs are the blocks of clients that one
  process would form, so the replies have the same bits as in one process;
- updates stay on the node if the method needs their means or sketches only. The node sends these.
  Otherwise, for exact inner products for example, it sends the updates.

If a node is lost, its jobs run on the others. A job depends on its seed alone, so its result is the
same there.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import threading
import warnings
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import ray
import torch
from ray.exceptions import RayActorError, RayError, RayTaskError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy
from torch import Tensor

from coterie.boundary import Boundary
from coterie.core import Client, Means, Method, Note, Position, Round
from coterie.data.world import World
from coterie.engines import rounds as inprocess
from coterie.engines.pool import ClientPool
from coterie.engines.worker import PlacedOrder, Test, Worker
from coterie.engines.workers import EngineError, Hardware, WorkerLost, default_workers, sentence
from coterie.randomness import Purpose, seeded
from coterie.robust import Extent, Robust, extent
from coterie.settings import SettingError, UserError
from coterie.training import ClientResult, Order

MAX_START_SECONDS = 120.0
"""Longest time in seconds until an actor has started on each node. A node without free cores by
then is not used."""

MAX_CONNECTION_SECONDS = 5.0
"""Longest time in seconds for a connection to the address of a cluster."""


def rounds(
    method: Method[Any],
    world: World,
    maker: Callable[[], World],
    *,
    address: str | None = None,
    rounds: int,
    seed: int = 0,
    workers: int | None = None,
    width: int | None = None,
    precision: str = "fp32",
    eval_every: int = 1,
    start: Position | None = None,
    boundary: Boundary | None = None,
    robust: Robust | None = None,
) -> Generator[Round, None, None]:
    """Run the rounds of :func:`coterie.engines.rounds.rounds` with the clients on a Ray cluster.

    The replies of the clients have the same bits as in one process. Means that nodes compute are
    added up in another order, so they are the same up to float rounding. Leaving the loop early
    ends the actors.

    Args:
        method: The method to run.
        world: The clients, as in ``maker``. Here only the sizes of their data are used, and their
            model.
        maker: Function that makes the world. It must be picklable, because every node makes its own
            world.
        address: Address of the cluster, see :func:`connected`.
        rounds: Number of the last round.
        seed: Seed of all random draws.
        workers: Worker processes on each node. None means one per core that Ray counts.
        width: Clients trained in one block, see :class:`~coterie.engines.workers.Hardware`.
        precision: Number format for training, see :class:`~coterie.engines.workers.Hardware`.
        eval_every: Rounds between tests on the clients' test data.
        start: Position from which the run continues. None starts a new run.
        boundary: Operations on the rows between clients and server.
        robust: Bounds on the influence of one client on the others.

    Yields:
        Each communication round, up to number ``rounds``.

    Raises:
        EngineError: Training fails, or no node is left.
        UserError: The cluster cannot be used.
    """
    hardware = Hardware(workers=workers, width=width, precision=precision)
    with (
        connected(address, workers),
        Cluster(maker, boundary or Boundary(), seed, hardware) as cluster,
    ):
        yield from inprocess.rounds(
            method,
            world,
            rounds=rounds,
            seed=seed,
            workers=1,
            width=width,
            precision=precision,
            eval_every=eval_every,
            start=start,
            boundary=boundary,
            robust=robust,
            remote=cluster,
        )


def try_nodes(
    maker: Callable[[], World],
    address: str | None,
    boundary: Boundary,
    seed: int,
    hardware: Hardware,
) -> None:
    """Make the world on every node of an existing cluster, before a run begins. Without a cluster there is nothing to try.

    Args:
        maker: Function that makes the world.
        address: Address of the cluster, see :func:`connected`.
        boundary: Operations on the rows between clients and server.
        seed: Seed of all random draws.
        hardware: The hardware settings.

    Raises:
        UserError: The cluster cannot be used.
    """
    with connected(address, start=False) as is_connected:
        if is_connected:
            Cluster(maker, boundary, seed, hardware).close()


# ----------------------------------------------------------------------------------------------------
# The connection to a cluster.


@contextmanager
def connected(
    address: str | None = None, cores: int | None = None, start: bool = True
) -> Iterator[bool]:
    """Context manager that connects this process to a Ray cluster. A connection that is there already is used, and stays.

    Args:
        address: ``HOST:PORT`` of the cluster; ``auto`` for the one that runs on this machine;
            ``local`` to start one of this machine alone. None for that of the environment's
            RAY_ADDRESS, or else ``auto``, or else ``local``.
        cores: Cores of a cluster that is started. None for all.
        start: Whether a cluster may be started.

    Yields:
        Whether there is a connection.

    Raises:
        UserError: There is no cluster at the address.
    """
    if ray.is_initialized():
        connected_address = ray.get_runtime_context().gcs_address
        if address not in (None, "auto", connected_address):
            raise UserError(
                "address must be that of the cluster to which this process is connected, "
                f"{connected_address}, got {address!r}"
            )
        yield True
        return
    if not _connect(address, cores, start):
        yield False
        return
    try:
        yield True
    finally:
        ray.shutdown()


def _connect(address: str | None, cores: int | None, start: bool) -> bool:
    """Connect to a cluster, or start one; return whether there is a connection."""
    wanted_address = address or os.environ.get("RAY_ADDRESS") or None
    if wanted_address not in (None, "auto", "local"):
        _check_reachable(wanted_address, "address" if address else "RAY_ADDRESS")
    log_settings: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR"}
    with _undisturbed():
        # Without an address, the cluster of this machine is tried before one is started.
        if wanted_address != "local":
            try:
                ray.init(address=wanted_address or "auto", **log_settings)
                return True
            except (ConnectionError, RuntimeError, ValueError) as error:
                if wanted_address is not None:
                    hint = "does it run the same versions?"
                    if wanted_address == "auto":
                        hint = "ray start --head starts one"
                    raise UserError(
                        f"there is no Ray cluster at {wanted_address}: {_first_line(error)} ({hint})"
                    ) from error
        if start:
            ray.init(
                address="local",
                num_cpus=cores or default_workers(),
                include_dashboard=False,
                **log_settings,
            )
        return start


def _check_reachable(address: str, source: str) -> None:
    """Raise an error if nothing answers at an address; Ray itself would try for a minute."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal() or "/" in address:
        raise SettingError(f"{source} must be HOST:PORT, auto or local, got {address!r}")
    try:
        endpoint = host.strip("[]"), int(port)
        socket.create_connection(endpoint, timeout=MAX_CONNECTION_SECONDS).close()
    except (OSError, OverflowError) as error:
        raise UserError(
            f"there is no Ray cluster at {source} {address}: {_first_line(error)}"
        ) from error


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0].rstrip(".") or type(error).__name__


@contextmanager
def _undisturbed() -> Iterator[None]:
    """Let Ray start without reports of usage to its authors, without a warning about GPUs, and without a signal handler.

    Ray's workers search the driver's current folder first for modules, and it may be another
    person's run directory. So they get the folder of Coterie itself, from which they import anyway.
    """
    current_folder = os.getcwd()
    variables = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_USAGE_STATS_PROMPT_ENABLED": "0"}
    variables_before = {name: os.environ.get(name) for name in variables}
    # Python allows signal handlers in the main thread only.
    in_main_thread = threading.current_thread() is threading.main_thread()
    sigterm_handler = signal.getsignal(signal.SIGTERM) if in_main_thread else None
    os.environ.update(variables)
    os.chdir(Path(__file__).parents[2])
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Tip: In future versions of Ray", FutureWarning)
            yield
    finally:
        os.chdir(current_folder)
        for name, value in variables_before.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value
        if sigterm_handler is not None:
            signal.signal(signal.SIGTERM, sigterm_handler)


# ----------------------------------------------------------------------------------------------------
# On a node: an actor with a world and a pool of its own. What goes to it, and what it returns.


@dataclass(frozen=True)
class NodeOrder:
    """Jobs for a node. Rows and slots are numbered anew, for the node's own matrices.

    Attributes:
        jobs: Lists of :class:`.worker.PlacedOrder` or of :class:`.worker.Test`.
        personal_rows: Shape ``(p, d)``: the rows made for single clients, which follow the models.
        slots: Number of slots for replies.
        sketch: Numbers of a sketch; 0 without sketches.
        updates_stay: Whether the updates stay on the node.
        keeps_earlier: Whether the updates that stay there from an earlier order are still needed.
    """

    jobs: list[Any]
    personal_rows: np.ndarray
    slots: int = 0
    sketch: int = 0
    updates_stay: bool = False
    keeps_earlier: bool = False


@dataclass(frozen=True)
class Outcome:
    """What a node returns for an order.

    Attributes:
        results: The result of each job.
        rows: Slot -> its row ``(d,)``: personal models, and updates that do not stay.
        sketches: Shape ``(slots, sketch)``.
        extents: Slot -> the measure of an update that stays.
        kept_layers: Slot -> the values of an update that stays, in the columns of the layers that
            stay at the client.
    """

    results: list[Any]
    rows: Mapping[int, np.ndarray]
    sketches: np.ndarray
    extents: Mapping[int, Extent]
    kept_layers: Mapping[int, np.ndarray]


@dataclass(frozen=True)
class Failure:
    """What a node returns if an order failed.

    Attributes:
        message: One sentence.
        details: A traceback, or empty.
        node_lost: Whether the node cannot be used any more.
    """

    message: str
    details: str = ""
    node_lost: bool = False


class Station:
    """The actor of a node. Every method returns a :class:`Failure` if it fails."""

    def ready(self) -> str:
        """Return the version of Coterie on the node."""
        return version("coterie")

    def begin(
        self,
        maker: Callable[[], World],
        boundary: Boundary,
        seed: int,
        hardware: Hardware,
        folders: Sequence[str] = (),
    ) -> Failure | None:
        """Make the world and its pool.

        Args:
            maker: Function that makes the world.
            boundary: Operations on the rows.
            seed: Seed of all random draws.
            hardware: The hardware settings.
            folders: Where the server's process finds modules. They are searched last here.
        """
        sys.path += [folder for folder in folders if folder not in sys.path]
        try:
            # The same seed gives the same world on each node.
            with seeded(0, Purpose.OWN_CODE):
                world = maker()
        except UserError as error:
            return Failure(str(error))
        self.pool = ClientPool(world, inprocess.wire_of(world, seed, boundary), hardware)
        self.stored_updates: list[Tensor] = []
        return None

    def work(self, models: np.ndarray, order: NodeOrder) -> Outcome | Failure:
        """Carry out an order.

        Args:
            models: The models ``(k, d)``.
            order: The order.
        """
        pool = self.pool
        # Arrays in Ray's own memory are read-only.
        model_rows = torch.from_numpy(models.copy())
        personal_rows = list(torch.from_numpy(order.personal_rows.copy()))
        if order.keeps_earlier:
            # The pool gets new memory for replies; the earlier rows stay in ``stored_updates``.
            pool.worker.replies = torch.empty(0, pool.layout.size)
        try:
            runner = pool.put(model_rows, personal_rows, order.slots, order.sketch)
            results = runner.run(order.jobs)
        except EngineError as error:
            return Failure(str(error), error.details, node_lost=isinstance(error, WorkerLost))
        replies = pool.worker.replies
        if order.updates_stay:
            earlier_updates = self.stored_updates if order.keeps_earlier else []
            self.stored_updates = [*earlier_updates, replies]
        rows: dict[int, np.ndarray] = {}
        extents: dict[int, Extent] = {}
        kept_layers: dict[int, np.ndarray] = {}
        for placed, result in _training_results(results):
            # Personal models go to the server in any case, and updates if they do not stay.
            if placed.personal_slot is not None:
                rows[placed.personal_slot] = replies[placed.personal_slot].numpy()
            if not result.trained or placed.order.beside_halves:
                continue
            update = replies[placed.slot]
            if not order.updates_stay:
                rows[placed.slot] = update.numpy()
                continue
            # Of an update that stays, the server gets its measure and the layers that the client
            # keeps. These count in no mean.
            keep_mask = pool.keep_mask(placed.order.task)
            start = model_rows[list(result.chosen)].mean(0)
            extents[placed.slot] = extent(update, start, pool.wire, keep_mask)
            if keep_mask is not None:
                kept_layers[placed.slot] = update[keep_mask].numpy()
                update[keep_mask] = 0.0
        sketches = pool.worker.sketches[: order.slots if order.sketch else 0].numpy()
        return Outcome(results, rows, sketches, extents, kept_layers)

    def reduce(
        self,
        order_number: int,
        slots: Sequence[int],
        factors: Sequence[float],
        amounts: np.ndarray,
        groups: Sequence[Sequence[int]],
    ) -> tuple[list[int], np.ndarray, np.ndarray]:
        """Average updates that stayed here.

        Args:
            order_number: The position of the order of which they are replies, among those whose
                updates are here.
            slots: The slots of the updates.
            factors: The factor by which each is scaled first.
            amounts: Shape ``(m,)``: their weights.
            groups: For each update, the groups in which it counts.

        Returns:
            The groups with updates here; their means, one row each; the sums of the weights.
        """
        updates = self.stored_updates[order_number]
        for slot, factor in zip(slots, factors, strict=True):
            if factor != 1.0:
                updates[slot] *= factor
        return means_of(updates, slots, amounts, groups)


def means_of(
    rows: Tensor, slots: Sequence[int], amounts: np.ndarray, groups: Sequence[Sequence[int]]
) -> tuple[list[int], np.ndarray, np.ndarray]:
    """Compute the weighted means of some rows for each group, in the way of one process.

    Args:
        rows: Shape ``(slots, d)``.
        slots: The m rows that count.
        amounts: Shape ``(m,)``: their weights.
        groups: For each of them, the groups in which it counts.

    Returns:
        The groups with rows; their means, one row each; the sums of the weights.
    """
    groups_here = sorted(set().union(*groups))
    place_of_group = {group: place for place, group in enumerate(groups_here)}
    places = [[place_of_group[group] for group in groups_of_row] for groups_of_row in groups]
    # A view if the rows are the first ones, as in one process, and else a copy.
    are_first_rows = list(slots) == list(range(len(slots)))
    counted_rows = rows[: len(slots)] if are_first_rows else rows[list(slots)]
    means = Means(len(groups_here), rows.shape[1])
    means.add(counted_rows, amounts, places)
    return groups_here, means.means.numpy(), means.weight


# ----------------------------------------------------------------------------------------------------
# At the server: the nodes of the cluster, and what each of them does.


@dataclass(frozen=True, eq=False)
class ClusterNode:
    """A node of the cluster.

    Attributes:
        name: Its host's name and the beginning of its id, for messages.
        actor: The handle of its :class:`Station`.
        processes: Number of its worker processes.
    """

    name: str
    actor: Any
    processes: int


@dataclass(frozen=True, eq=False)
class Share:
    """A node's share of the jobs of an exchange.

    Attributes:
        node: The node.
        job_positions: The positions of its jobs in the list of all.
        slots: The slots of its replies here, in the order of those there.
        order: The jobs, as they were sent.
        order_number: The position of the order among those whose updates are on the node.
    """

    node: ClusterNode
    job_positions: tuple[int, ...]
    slots: tuple[int, ...]
    order: NodeOrder
    order_number: int = 0


@dataclass(frozen=True)
class CountedUpdate:
    """How an update that stays on a node counts in means.

    Attributes:
        amount: Its weight.
        groups: The groups in which it counts.
        replies: As how many replies it counts: the second half of a client's data as none.
    """

    amount: float
    groups: tuple[int, ...]
    replies: int


class Cluster:
    """The nodes of a Ray cluster, which carry out the jobs of a pool: a :class:`.pool.Remote`.

    Args:
        maker: Function that makes the world.
        boundary: Operations on the rows between clients and server.
        seed: Seed of all random draws.
        hardware: The hardware settings; ``workers`` are those of a node.

    Raises:
        UserError: No node can be used, or the world cannot be made there.
    """

    def __init__(
        self, maker: Callable[[], World], boundary: Boundary, seed: int, hardware: Hardware
    ) -> None:
        self.nodes: list[ClusterNode] = []
        self._notes: list[Note] = []
        # The jobs of the current exchange, and the rows to which they refer.
        self._models: Tensor | None = None
        self._models_in_store: Any = None
        self._personal_rows: Sequence[Tensor] = ()
        self._jobs: Sequence[Any] = ()
        # The updates that stay on the nodes: in which shares they are, and how they count.
        self._updates_stay = False
        self._shares: list[Share] = []
        self._extents: dict[int, Extent] = {}
        self._factors: dict[int, float] = {}
        self._second_half_of: dict[int, int] = {}
        try:
            self.nodes = self._start_actors(hardware.workers)
            self._begin(maker, boundary, seed, hardware)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Cluster:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the actors."""
        for node in self.nodes:
            # The cluster may be gone.
            with suppress(Exception):
                ray.kill(node.actor)
        self.nodes = []

    def notes(self) -> tuple[Note, ...]:
        """Return what happened to the nodes since the last call."""
        notes = tuple(self._notes)
        self._notes = []
        return notes

    @property
    def machines(self) -> int:
        """The number of nodes."""
        return len(self.nodes)

    # -- the beginning
    # ------------------------------------------------------------------------------------------------

    def _start_actors(self, workers: int | None) -> list[ClusterNode]:
        """Start an actor on each node that has cores."""
        candidates = []
        for description in sorted(ray.nodes(), key=lambda description: description["NodeID"]):
            node_id = description["NodeID"]
            cores = int(description["Resources"].get("CPU", 0))
            if not description["Alive"] or not cores:
                continue
            processes = min(workers or cores, cores)
            on_this_node = NodeAffinitySchedulingStrategy(node_id, soft=False)
            station = ray.remote(Station).options(
                num_cpus=processes, scheduling_strategy=on_this_node
            )
            name = f"{description['NodeManagerHostname']} ({node_id[:8]})"
            candidates.append(ClusterNode(name, station.remote(), processes))
        # If this fails, ``close`` ends the actors of these nodes.
        self.nodes = candidates
        node_of_call = {node.actor.ready.remote(): node for node in candidates}
        calls = list(node_of_call)
        started_calls: list[Any] = []
        if calls:
            started_calls, _ = ray.wait(calls, num_returns=len(calls), timeout=MAX_START_SECONDS)
        if not started_calls:
            raise UserError(
                f"the Ray cluster has no free cores: none of its {len(candidates)} nodes with cores "
                f"started an actor in {MAX_START_SECONDS:g} s"
            )
        usable_nodes = []
        for call, node in node_of_call.items():
            obstacle: str | None = f"it had no {node.processes} free cores"
            if call in started_calls:
                obstacle = _obstacle(node, call)
            if obstacle is None:
                usable_nodes.append(node)
            else:
                ray.kill(node.actor)
                self._add_note((), f"{_full_name(node)} is not used: {obstacle}")
        if not usable_nodes:
            raise UserError(f"no node of the Ray cluster can be used: {obstacle}")
        return usable_nodes

    def _begin(
        self, maker: Callable[[], World], boundary: Boundary, seed: int, hardware: Hardware
    ) -> None:
        """Make the world on each node."""
        folders = [folder for folder in sys.path if folder]
        calls = []
        for node in self.nodes:
            node_hardware = replace(hardware, workers=node.processes)
            call = node.actor.begin.remote(maker, boundary, seed, node_hardware, folders)
            calls.append((node, call))
        for node, call in calls:
            try:
                failure = ray.get(call)
            except RayTaskError as error:
                raise UserError(
                    f"{_full_name(node)} cannot make the world: {sentence(error.cause)}"
                ) from error
            except RayError as error:
                self._lose(node, _first_line(error), ())
                continue
            if failure is not None:
                raise UserError(f"{_full_name(node)} cannot make the world: {failure.message}")

    # -- jobs
    # ---------------------------------------------------------------------------------------------------------

    def place(self, models: Tensor, personal: Sequence[Tensor], here: Worker, stay: bool) -> None:
        """See :class:`.pool.Remote`. The same models are sent once."""
        if models is not self._models:
            self._models = models
            self._models_in_store = ray.put(np.ascontiguousarray(models.numpy()))
        self._personal_rows = personal
        self._server_worker = here
        self._updates_stay = stay
        self._shares = []
        self._extents = {}
        self._factors = {}
        self._second_half_of = {}

    def run(self, jobs: Sequence[Any]) -> list[Any]:
        """Carry out jobs, see :class:`.pool.Runner`. Jobs of a node that is lost run on the others."""
        results: list[Any] = [None] * len(jobs)
        self._jobs = jobs
        for share, outcome in self._run_shares(range(len(jobs))):
            for position, result in zip(share.job_positions, outcome.results, strict=True):
                results[position] = _with_server_orders(jobs[position], result)
            self._store_outcome(share, outcome)
        return results

    def _run_shares(self, positions: Sequence[int]) -> Iterator[tuple[Share, Outcome]]:
        """Carry out the jobs at these positions; yield every share as soon as it is done."""
        share_of_call = {self._send(share): share for share in self._shares_of(positions)}
        while share_of_call:
            (call, *_), _ = ray.wait(list(share_of_call), num_returns=1)
            share = share_of_call.pop(call)
            outcome = self._receive(share, call)
            if outcome is not None:
                yield share, outcome
                continue
            # The node is lost: the others carry out its jobs.
            for new_share in self._shares_of(share.job_positions):
                share_of_call[self._send(new_share)] = new_share

    def _send(self, share: Share) -> Any:
        if self._updates_stay:
            self._shares.append(share)
        return share.node.actor.work.remote(self._models_in_store, share.order)

    def _receive(self, share: Share, call: Any) -> Outcome | None:
        """The outcome of a share; None if its node is lost."""
        try:
            outcome = _result(share.node, call)
        except RayError as error:
            outcome = Failure(_first_line(error), node_lost=True)
        if isinstance(outcome, Failure):
            if not outcome.node_lost:
                raise EngineError(outcome.message, outcome.details)
            if share in self._shares:
                self._shares.remove(share)
            self._lose(share.node, outcome.message, share.job_positions)
            return None
        return outcome

    def _lose(self, node: ClusterNode, failure: str, positions: Sequence[int]) -> None:
        """Use a node no more, and note which clients run elsewhere."""
        with suppress(Exception):
            ray.kill(node.actor)
        self.nodes = [other for other in self.nodes if other is not node]
        if not self.nodes:
            raise EngineError(
                f"no node of the Ray cluster is left; the last was {node.name}: {failure}"
            )
        clients: set[Client] = set()
        for position in positions:
            clients.update(*map(_clients, self._jobs[position]))
        text = f"{_full_name(node)} was lost: {failure}; its clients run on the others"
        self._add_note(tuple(sorted(clients)), text)

    def _add_note(self, clients: tuple[Client, ...], text: str) -> None:
        self._notes.append(Note(kind="node", effect="warns", clients=clients, text=text))

    # -- shares
    # -------------------------------------------------------------------------------------------------------

    def _shares_of(self, positions: Sequence[int]) -> list[Share]:
        """Divide jobs among the nodes, each the next one that would end first; always in the same way."""
        positions_of_nodes: list[list[int]] = [[] for _ in self.nodes]
        costs = [self._cost(self._jobs[position]) for position in positions]
        speeds = [node.processes for node in self.nodes]
        for job, node_number in divided(costs, speeds):
            positions_of_nodes[node_number].append(positions[job])
        shares = []
        for node, positions_of_node in zip(self.nodes, positions_of_nodes, strict=True):
            if positions_of_node:
                shares.append(self._share(node, tuple(positions_of_node)))
        return shares

    def _cost(self, job: Sequence[PlacedOrder | Test]) -> int:
        """Number of examples of a job."""
        cost = 0
        for work in job:
            cost += len(work) if isinstance(work, Test) else self._examples(work.order)
        return cost

    def _examples(self, order: Order) -> int:
        """Number of training examples of an order; a half has half of them."""
        step = self._server_worker.world.step(order.round + 1)
        data = self._server_worker.data(order.client, order.task.holdout.share, step)
        return len(data.train) // (1 if order.half is None else 2)

    def _share(self, node: ClusterNode, positions: tuple[int, ...]) -> Share:
        """A node's share, with slots and rows numbered anew."""
        assert self._models is not None
        jobs = [self._jobs[position] for position in positions]
        model_count = len(self._models)
        # The slots that the jobs write, and the rows of single clients that they read. They get the
        # numbers from 0, and those behind the models, in the node's own matrices.
        slots: set[int] = set()
        personal_rows: set[int] = set()
        for job in jobs:
            for work in job:
                slots.update(_slots(work))
                personal_rows.update(row for row in _rows(work) if row >= model_count)
        sorted_slots = sorted(slots)
        sorted_rows = sorted(personal_rows)
        node_slots = {slot: node_slot for node_slot, slot in enumerate(sorted_slots)}
        node_rows = {row: node_row for node_row, row in enumerate(sorted_rows, model_count)}
        node_jobs = []
        for job in jobs:
            node_jobs.append([_renumbered(work, node_slots, node_rows) for work in job])
        sent_rows = self._models[:0]
        if sorted_rows:
            sent_rows = torch.stack([self._personal_rows[row - model_count] for row in sorted_rows])
        earlier_orders = sum(share.node is node for share in self._shares)
        node_order = NodeOrder(
            node_jobs,
            sent_rows.numpy(),
            slots=len(sorted_slots),
            # Tests have no slots; of the orders of an exchange, all have sketches or none.
            sketch=jobs[0][0].order.sketch_numbers if sorted_slots else 0,
            updates_stay=self._updates_stay,
            keeps_earlier=self._updates_stay and earlier_orders > 0,
        )
        return Share(node, positions, tuple(sorted_slots), node_order, earlier_orders)

    def _store_outcome(self, share: Share, outcome: Outcome) -> None:
        """Write what a node sent to the matrices of this process."""
        worker = self._server_worker
        for placed, result in _training_results(outcome.results):
            slot = share.slots[placed.slot]
            if not (result.trained or placed.order.beside_halves or self._updates_stay):
                # Clear the row of an earlier exchange.
                worker.replies[slot] = 0.0
            if placed.slot in outcome.kept_layers:
                keep_mask = worker.wire.layout.mask(placed.order.task.local_layers)
                kept_values = outcome.kept_layers[placed.slot].copy()
                worker.replies[slot, keep_mask] = torch.from_numpy(kept_values)
        for node_slot, row in outcome.rows.items():
            worker.replies[share.slots[node_slot]] = torch.from_numpy(row.copy())
        if share.order.sketch:
            worker.sketches[list(share.slots)] = torch.from_numpy(outcome.sketches.copy())
        for node_slot, update_extent in outcome.extents.items():
            self._extents[share.slots[node_slot]] = update_extent

    # -- updates that stay
    # --------------------------------------------------------------------------------------------

    def extent(self, slot: int) -> Extent:
        """See :class:`.pool.Remote`."""
        return self._extents[slot]

    def scale(self, slots: Sequence[int], factor: float) -> None:
        """See :class:`.pool.Remote`."""
        self._factors.update(dict.fromkeys(slots, factor))

    def pair(self, first: int, second: int) -> None:
        """See :class:`.pool.Remote`."""
        self._second_half_of[first] = second

    def add_means(
        self,
        means: Means,
        slots: Sequence[int],
        amounts: np.ndarray,
        groups: Sequence[Sequence[int]],
    ) -> None:
        """See :class:`.pool.Remote`. Updates of a node that is lost are made again on the others."""
        counted = self._counted_updates(slots, amounts, groups)
        # Each node averages its updates. Lost nodes are replaced until all shares are averaged.
        node_means: list[tuple[Share, tuple[list[int], np.ndarray, np.ndarray]]] = []
        open_shares = list(self._shares)
        while open_shares:
            calls = [(share, self._average(share, counted)) for share in open_shares]
            open_shares = []
            for share, call in calls:
                if call is None:
                    continue
                try:
                    node_means.append((share, _result(share.node, call)))
                except RayError as error:
                    open_shares += self._run_again(share, _first_line(error))
        # Always in the same order, whichever node was first.
        for share, (groups_there, rows, weights) in sorted(
            node_means, key=lambda of_share: of_share[0].slots
        ):
            for group, mean, weight in zip(groups_there, rows, weights, strict=True):
                reply_count = 0
                for slot in share.slots:
                    if slot in counted and group in counted[slot].groups:
                        reply_count += counted[slot].replies
                means.join(group, torch.from_numpy(mean.copy()), float(weight), reply_count)

    def _counted_updates(
        self, slots: Sequence[int], amounts: np.ndarray, groups: Sequence[Sequence[int]]
    ) -> dict[int, CountedUpdate]:
        """How the update of each slot counts; of both halves of a client's data, each with half the weight."""
        counted = {}
        for slot, amount, groups_of_update in zip(slots, amounts, groups, strict=True):
            counted[slot] = CountedUpdate(float(amount), tuple(groups_of_update), 1)
        for first, second in self._second_half_of.items():
            if first in counted:
                half = replace(counted[first], amount=counted[first].amount / 2)
                counted[first] = replace(half, replies=1)
                counted[second] = replace(half, replies=0)
        return counted

    def _average(self, share: Share, counted: Mapping[int, CountedUpdate]) -> Any:
        """The call that averages the updates of a share; None if none of them counts."""
        node_slots = []
        factors = []
        updates = []
        for node_slot, slot in enumerate(share.slots):
            if slot in counted:
                node_slots.append(node_slot)
                factors.append(self._factors.get(slot, 1.0))
                updates.append(counted[slot])
        if not any(update.groups for update in updates):
            return None
        amounts = np.array([update.amount for update in updates])
        groups = [update.groups for update in updates]
        return share.node.actor.reduce.remote(
            share.order_number, node_slots, factors, amounts, groups
        )

    def _run_again(self, share: Share, failure: str) -> list[Share]:
        """Carry out a share of a lost node on the others; the new shares. Its results are known already."""
        self._shares.remove(share)
        if share.node in self.nodes:
            self._lose(share.node, failure, share.job_positions)
        earlier_shares = len(self._shares)
        for _ in self._run_shares(share.job_positions):
            pass
        return self._shares[earlier_shares:]


def divided(costs: Sequence[float], speeds: Sequence[float]) -> Iterator[tuple[int, int]]:
    """Divide jobs among nodes: each job, in this order, goes to the node that would be done with it first.

    Args:
        costs: The cost of each job.
        speeds: The speed of each node.

    Yields:
        (Position of the job, position of the node), for each job.

    Example:
        >>> list(divided([4, 3, 2, 1], [1, 1]))
        [(0, 0), (1, 1), (2, 1), (3, 0)]
    """
    loads = [0.0] * len(speeds)
    for job, cost in enumerate(costs):
        end_times = [(load + cost) / speed for load, speed in zip(loads, speeds, strict=True)]
        node = end_times.index(min(end_times))
        loads[node] += cost
        yield job, node


def _obstacle(node: ClusterNode, call: Any) -> str | None:
    """Return why a node was lost before it began, or None. It is an error if it does not have this version of Coterie."""
    server_version = version("coterie")
    try:
        node_version = ray.get(call)
    except RayError as error:
        if isinstance(error, RayActorError) and not error.actor_init_failed:
            return _first_line(error)
        hint = f"install coterie[ray] {server_version} there, as here"
        raise UserError(f"{_full_name(node)} cannot import Coterie: {hint}") from error
    if node_version != server_version:
        raise UserError(
            f"{_full_name(node)} has Coterie {node_version}, this machine has {server_version}: "
            "install the same version"
        )
    return None


def _result(node: ClusterNode, call: Any) -> Any:
    """The result of a node's work. An error in its code ends the run; a lost node is an error of Ray."""
    try:
        return ray.get(call)
    except RayTaskError as error:
        raise EngineError(
            f"{_full_name(node)} failed: {sentence(error.cause)}", str(error)
        ) from error


def _full_name(node: ClusterNode) -> str:
    return f"node {node.name} of the Ray cluster"


def _with_server_orders(
    job: Sequence[PlacedOrder | Test], node_results: Sequence[Any]
) -> list[Any]:
    """The results of a job with its orders as they are numbered at the server."""
    results = []
    for work, result in zip(job, node_results, strict=True):
        results.append((work, result[1]) if isinstance(work, PlacedOrder) else result)
    return results


def _training_results(
    results: Sequence[Sequence[Any]],
) -> Iterator[tuple[PlacedOrder, ClientResult]]:
    """The orders and their results; nothing of tests."""
    for results_of_job in results:
        for result in results_of_job:
            if isinstance(result, tuple):
                yield result


def _clients(work: PlacedOrder | Test) -> tuple[Client, ...]:
    """The clients of an order or a test."""
    return work.clients if isinstance(work, Test) else (work.order.client,)


def _slots(work: PlacedOrder | Test) -> list[int]:
    """The slots of the reply matrix that an order writes."""
    if isinstance(work, Test):
        return []
    return [slot for slot in (work.slot, work.personal_slot) if slot is not None]


def _rows(work: PlacedOrder | Test) -> list[int]:
    """The rows of the model matrix that an order or a test reads."""
    rows = list(work.rows)
    if isinstance(work, PlacedOrder) and work.personal_row is not None:
        rows.append(work.personal_row)
    return rows


def _renumbered(
    work: PlacedOrder | Test, slots: Mapping[int, int], rows: Mapping[int, int]
) -> PlacedOrder | Test:
    """An order or a test with the slots, and the rows of single clients, numbered anew."""
    model_rows = tuple(rows.get(row, row) for row in work.rows)
    if isinstance(work, Test):
        return replace(work, rows=model_rows)
    personal_row = work.personal_row
    personal_slot = work.personal_slot
    return replace(
        work,
        rows=model_rows,
        slot=slots[work.slot],
        personal_row=None if personal_row is None else rows.get(personal_row, personal_row),
        personal_slot=None if personal_slot is None else slots[personal_slot],
    )
