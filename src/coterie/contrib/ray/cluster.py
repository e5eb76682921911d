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
    eval_clients: int | None = None,
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
        eval_clients: Clients that are tested; None for all.
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
            eval_clients=eval_clients,
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
    # A connection of the user's own program is used, and stays.
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
                    likely_reason = "does it run the same versions?"
                    if wanted_address == "auto":
                        likely_reason = "ray start --head starts one"
                    raise UserError(
                        f"there is no Ray cluster at {wanted_address}: {_first_line(error)} ({likely_reason})"
                    ) from error
        if start:
            ray.init(
                address="local",
                num_cpus=cores or default_workers(),
                include_dashboard=False,
                **log_settings,
            )
        return start


def _check_reachable(address: str, address_source: str) -> None:
    """Raise an error if nothing answers at an address; Ray itself would try for a minute."""
    # Only an address with a port can be tried.
    host_name, _, port_text = address.rpartition(":")
    if not host_name or not port_text.isdecimal() or "/" in address:
        raise SettingError(f"{address_source} must be HOST:PORT, auto or local, got {address!r}")
    try:
        endpoint = host_name.strip("[]"), int(port_text)
        socket.create_connection(endpoint, timeout=MAX_CONNECTION_SECONDS).close()
    except (OSError, OverflowError) as error:
        raise UserError(
            f"there is no Ray cluster at {address_source} {address}: {_first_line(error)}"
        ) from error


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0].rstrip(".") or type(error).__name__


@contextmanager
def _undisturbed() -> Iterator[None]:
    """Let Ray start without reports of usage to its authors, without a warning about GPUs, and without a signal handler.

    Ray's workers search the driver's current folder first for modules, and it may be another
    person's run directory. So they get the folder of Coterie itself, from which they import anyway.
    """
    # Everything that is changed here is restored afterwards.
    current_folder = os.getcwd()
    variables = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_USAGE_STATS_PROMPT_ENABLED": "0"}
    variables_before = {variable_name: os.environ.get(variable_name) for variable_name in variables}
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
        for variable_name, earlier_value in variables_before.items():
            os.environ.pop(variable_name, None)
            if earlier_value is not None:
                os.environ[variable_name] = earlier_value
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
        sys.path += [module_folder for module_folder in folders if module_folder not in sys.path]
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
            # The node's own worker processes carry out the jobs.
            job_runner = pool.put(model_rows, personal_rows, order.slots, order.sketch)
            results = job_runner.run(order.jobs)
        except EngineError as error:
            return Failure(str(error), error.details, node_lost=isinstance(error, WorkerLost))
        reply_rows = pool.worker.replies
        if order.updates_stay:
            earlier_updates = self.stored_updates if order.keeps_earlier else []
            self.stored_updates = [*earlier_updates, reply_rows]
        sent_rows: dict[int, np.ndarray] = {}
        extents: dict[int, Extent] = {}
        kept_layers: dict[int, np.ndarray] = {}
        for placed, client_result in _training_results(results):
            # Personal models go to the server in any case, and updates if they do not stay.
            if placed.personal_slot is not None:
                sent_rows[placed.personal_slot] = reply_rows[placed.personal_slot].numpy()
            if not client_result.trained or placed.order.beside_halves:
                continue
            update = reply_rows[placed.slot]
            if not order.updates_stay:
                sent_rows[placed.slot] = update.numpy()
                continue
            # Of an update that stays, the server gets its measure and the layers that the client
            # keeps. These count in no mean.
            keep_mask = pool.keep_mask(placed.order.task)
            start_model = model_rows[list(client_result.chosen)].mean(0)
            extents[placed.slot] = extent(update, start_model, pool.wire, keep_mask)
            if keep_mask is not None:
                kept_layers[placed.slot] = update[keep_mask].numpy()
                update[keep_mask] = 0.0
        # Sketches are small, and go to the server in any case.
        sketches = pool.worker.sketches[: order.slots if order.sketch else 0].numpy()
        return Outcome(results, sent_rows, sketches, extents, kept_layers)

    def reduce(
        self,
        order_number: int,
        reply_slots: Sequence[int],
        scale_factors: Sequence[float],
        amounts: np.ndarray,
        groups: Sequence[Sequence[int]],
    ) -> tuple[list[int], np.ndarray, np.ndarray]:
        """Average updates that stayed here.

        Args:
            order_number: The position of the order of which they are replies, among those whose
                updates are here.
            reply_slots: The slots of the updates.
            scale_factors: The factor by which each is scaled first.
            amounts: Shape ``(m,)``: their weights.
            groups: For each update, the groups in which it counts.

        Returns:
            The groups with updates here; their means, one row each; the sums of the weights.
        """
        # Updates that are too long count as shorter ones, as the server has decided.
        stored_updates = self.stored_updates[order_number]
        for reply_slot, scale_factor in zip(reply_slots, scale_factors, strict=True):
            if scale_factor != 1.0:
                stored_updates[reply_slot] *= scale_factor
        return means_of(stored_updates, reply_slots, amounts, groups)


def means_of(
    update_rows: Tensor,
    reply_slots: Sequence[int],
    amounts: np.ndarray,
    groups: Sequence[Sequence[int]],
) -> tuple[list[int], np.ndarray, np.ndarray]:
    """Compute the weighted means of some rows for each group, in the way of one process.

    Args:
        update_rows: Shape ``(slots, d)``.
        reply_slots: The m rows that count.
        amounts: Shape ``(m,)``: their weights.
        groups: For each of them, the groups in which it counts.

    Returns:
        The groups with rows; their means, one row each; the sums of the weights.
    """
    # Only groups with updates on this node have a row here.
    groups_here = sorted(set().union(*groups))
    row_of_group = {group: row_number for row_number, group in enumerate(groups_here)}
    rows_of_updates = []
    for groups_of_update in groups:
        rows_of_updates.append([row_of_group[group] for group in groups_of_update])
    # A view if the rows are the first ones, as in one process, and else a copy.
    are_first_rows = list(reply_slots) == list(range(len(reply_slots)))
    counted_rows = update_rows[: len(reply_slots)]
    if not are_first_rows:
        counted_rows = update_rows[list(reply_slots)]
    node_means = Means(len(groups_here), update_rows.shape[1])
    node_means.add(counted_rows, amounts, rows_of_updates)
    return groups_here, node_means.means.numpy(), node_means.weight


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
        new_notes = tuple(self._notes)
        self._notes = []
        return new_notes

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
            node_cores = int(description["Resources"].get("CPU", 0))
            if not description["Alive"] or not node_cores:
                continue
            processes = min(workers or node_cores, node_cores)
            on_this_node = NodeAffinitySchedulingStrategy(node_id, soft=False)
            station_class = ray.remote(Station).options(
                num_cpus=processes, scheduling_strategy=on_this_node
            )
            node_name = f"{description['NodeManagerHostname']} ({node_id[:8]})"
            candidates.append(ClusterNode(node_name, station_class.remote(), processes))
        # If this fails, ``close`` ends the actors of these nodes.
        self.nodes = candidates
        # Wait until the actors have started, and use those that have.
        node_of_call = {node.actor.ready.remote(): node for node in candidates}
        actor_calls = list(node_of_call)
        started_calls: list[Any] = []
        if actor_calls:
            started_calls, _ = ray.wait(
                actor_calls, num_returns=len(actor_calls), timeout=MAX_START_SECONDS
            )
        if not started_calls:
            raise UserError(
                f"the Ray cluster has no free cores: none of its {len(candidates)} nodes with cores "
                f"started an actor in {MAX_START_SECONDS:g} s"
            )
        usable_nodes = []
        for actor_call, node in node_of_call.items():
            obstacle: str | None = f"it had no {node.processes} free cores"
            if actor_call in started_calls:
                obstacle = _obstacle(node, actor_call)
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
        # All nodes make their worlds at the same time.
        module_folders = [module_folder for module_folder in sys.path if module_folder]
        actor_calls = []
        for node in self.nodes:
            node_hardware = replace(hardware, workers=node.processes)
            actor_call = node.actor.begin.remote(
                maker, boundary, seed, node_hardware, module_folders
            )
            actor_calls.append((node, actor_call))
        for node, actor_call in actor_calls:
            try:
                failure = ray.get(actor_call)
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

    def place(
        self,
        models: Tensor,
        personal_rows: Sequence[Tensor],
        local_worker: Worker,
        updates_stay: bool,
    ) -> None:
        """See :class:`.pool.Remote`. The same models are sent once."""
        # Exchanges of a round often have the same models.
        if models is not self._models:
            self._models = models
            self._models_in_store = ray.put(np.ascontiguousarray(models.numpy()))
        self._personal_rows = personal_rows
        self._server_worker = local_worker
        self._updates_stay = updates_stay
        self._shares = []
        self._extents = {}
        self._factors = {}
        self._second_half_of = {}

    def run(self, jobs: Sequence[Any]) -> list[Any]:
        """Carry out jobs, see :class:`.pool.Runner`. Jobs of a node that is lost run on the others."""
        # Results come in the order in which nodes finish, and are sorted by job.
        results: list[Any] = [None] * len(jobs)
        self._jobs = jobs
        for share, outcome in self._run_shares(range(len(jobs))):
            for position, job_result in zip(share.job_positions, outcome.results, strict=True):
                results[position] = _with_server_orders(jobs[position], job_result)
            self._store_outcome(share, outcome)
        return results

    def _run_shares(self, positions: Sequence[int]) -> Iterator[tuple[Share, Outcome]]:
        """Carry out the jobs at these positions; yield every share as soon as it is done."""
        share_of_call = {self._send(share): share for share in self._shares_of(positions)}
        while share_of_call:
            (actor_call, *_), _ = ray.wait(list(share_of_call), num_returns=1)
            share = share_of_call.pop(actor_call)
            outcome = self._receive(share, actor_call)
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

    def _receive(self, share: Share, actor_call: Any) -> Outcome | None:
        """The outcome of a share; None if its node is lost."""
        try:
            outcome = _result(share.node, actor_call)
        except RayError as error:
            outcome = Failure(_first_line(error), node_lost=True)
        # A failure of a job ends the run; a lost node does not.
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
        self.nodes = [other_node for other_node in self.nodes if other_node is not node]
        if not self.nodes:
            raise EngineError(
                f"no node of the Ray cluster is left; the last was {node.name}: {failure}"
            )
        # The note says whose jobs run elsewhere.
        clients: set[Client] = set()
        for position in positions:
            clients.update(*map(_clients, self._jobs[position]))
        note_text = f"{_full_name(node)} was lost: {failure}; its clients run on the others"
        self._add_note(tuple(sorted(clients)), note_text)

    def _add_note(self, clients: tuple[Client, ...], note_text: str) -> None:
        self._notes.append(Note(kind="node", effect="warns", clients=clients, text=note_text))

    # -- shares
    # -------------------------------------------------------------------------------------------------------

    def _shares_of(self, positions: Sequence[int]) -> list[Share]:
        """Divide jobs among the nodes, each the next one that would end first; always in the same way."""
        positions_of_nodes: list[list[int]] = [[] for _ in self.nodes]
        # A node is as fast as it has processes.
        job_costs = [self._cost(self._jobs[position]) for position in positions]
        node_speeds = [node.processes for node in self.nodes]
        for job_number, node_number in divided(job_costs, node_speeds):
            positions_of_nodes[node_number].append(positions[job_number])
        new_shares = []
        for node, positions_of_node in zip(self.nodes, positions_of_nodes, strict=True):
            if positions_of_node:
                new_shares.append(self._share(node, tuple(positions_of_node)))
        return new_shares

    def _cost(self, job: Sequence[PlacedOrder | Test]) -> int:
        """Number of examples of a job."""
        # The cost of a job is the number of examples to compute.
        job_cost = 0
        for job_item in job:
            if isinstance(job_item, Test):
                job_cost += len(job_item)
            else:
                job_cost += self._examples(job_item.order)
        return job_cost

    def _examples(self, order: Order) -> int:
        """Number of training examples of an order; a half has half of them."""
        time_step = self._server_worker.world.step(order.round + 1)
        client_data = self._server_worker.data(order.client, order.task.holdout.share, time_step)
        return len(client_data.train) // (1 if order.half is None else 2)

    def _share(self, node: ClusterNode, positions: tuple[int, ...]) -> Share:
        """A node's share, with slots and rows numbered anew."""
        assert self._models is not None
        server_jobs = [self._jobs[position] for position in positions]
        model_count = len(self._models)
        # The slots that the jobs write, and the rows of single clients that they read. They get the
        # numbers from 0, and those behind the models, in the node's own matrices.
        written_slots: set[int] = set()
        personal_rows: set[int] = set()
        for job in server_jobs:
            for job_item in job:
                written_slots.update(_slots(job_item))
                for row_number in _rows(job_item):
                    if row_number >= model_count:
                        personal_rows.add(row_number)
        sorted_slots = sorted(written_slots)
        sorted_rows = sorted(personal_rows)
        node_slots = {reply_slot: node_slot for node_slot, reply_slot in enumerate(sorted_slots)}
        node_rows = {
            row_number: node_row for node_row, row_number in enumerate(sorted_rows, model_count)
        }
        node_jobs = []
        for job in server_jobs:
            node_jobs.append([_renumbered(job_item, node_slots, node_rows) for job_item in job])
        # The rows of single clients are sent with the jobs. The models are in the object store.
        sent_rows = self._models[:0]
        if sorted_rows:
            sent_rows = torch.stack(
                [self._personal_rows[row_number - model_count] for row_number in sorted_rows]
            )
        earlier_orders = sum(share.node is node for share in self._shares)
        node_order = NodeOrder(
            node_jobs,
            sent_rows.numpy(),
            slots=len(sorted_slots),
            # Tests have no slots; of the orders of an exchange, all have sketches or none.
            sketch=server_jobs[0][0].order.sketch_numbers if sorted_slots else 0,
            updates_stay=self._updates_stay,
            keeps_earlier=self._updates_stay and earlier_orders > 0,
        )
        return Share(node, positions, tuple(sorted_slots), node_order, earlier_orders)

    def _store_outcome(self, share: Share, outcome: Outcome) -> None:
        """Write what a node sent to the matrices of this process."""
        # Slots of the node are numbered anew, so each is mapped back to its slot here.
        server_worker = self._server_worker
        for placed, client_result in _training_results(outcome.results):
            reply_slot = share.slots[placed.slot]
            if not (client_result.trained or placed.order.beside_halves or self._updates_stay):
                # Clear the row of an earlier exchange.
                server_worker.replies[reply_slot] = 0.0
            if placed.slot in outcome.kept_layers:
                keep_mask = server_worker.wire.layout.mask(placed.order.task.local_layers)
                kept_values = outcome.kept_layers[placed.slot].copy()
                server_worker.replies[reply_slot, keep_mask] = torch.from_numpy(kept_values)
        for node_slot, sent_row in outcome.rows.items():
            server_worker.replies[share.slots[node_slot]] = torch.from_numpy(sent_row.copy())
        if share.order.sketch:
            server_worker.sketches[list(share.slots)] = torch.from_numpy(outcome.sketches.copy())
        for node_slot, update_extent in outcome.extents.items():
            self._extents[share.slots[node_slot]] = update_extent

    # -- updates that stay
    # --------------------------------------------------------------------------------------------

    def extent(self, reply_slot: int) -> Extent:
        """See :class:`.pool.Remote`."""
        return self._extents[reply_slot]

    def scale(self, reply_slots: Sequence[int], scale_factor: float) -> None:
        """See :class:`.pool.Remote`."""
        self._factors.update(dict.fromkeys(reply_slots, scale_factor))

    def pair(self, first_slot: int, second_slot: int) -> None:
        """See :class:`.pool.Remote`."""
        self._second_half_of[first_slot] = second_slot

    def add_means(
        self,
        running_means: Means,
        reply_slots: Sequence[int],
        update_weights: np.ndarray,
        groups_of_updates: Sequence[Sequence[int]],
    ) -> None:
        """See :class:`.pool.Remote`. Updates of a node that is lost are made again on the others."""
        counted_updates = self._counted_updates(reply_slots, update_weights, groups_of_updates)
        # Each node averages its updates. Lost nodes are replaced until all shares are averaged.
        node_means: list[tuple[Share, tuple[list[int], np.ndarray, np.ndarray]]] = []
        open_shares = list(self._shares)
        while open_shares:
            actor_calls = [(share, self._average(share, counted_updates)) for share in open_shares]
            open_shares = []
            for share, actor_call in actor_calls:
                if actor_call is None:
                    continue
                try:
                    node_means.append((share, _result(share.node, actor_call)))
                except RayError as error:
                    open_shares += self._run_again(share, _first_line(error))
        # Always in the same order, whichever node was first.
        for share, (groups_there, mean_rows, mean_weights) in sorted(
            node_means, key=lambda of_share: of_share[0].slots
        ):
            for group, node_mean, mean_weight in zip(
                groups_there, mean_rows, mean_weights, strict=True
            ):
                reply_count = 0
                for reply_slot in share.slots:
                    counted_update = counted_updates.get(reply_slot)
                    if counted_update is not None and group in counted_update.groups:
                        reply_count += counted_update.replies
                running_means.join(
                    group, torch.from_numpy(node_mean.copy()), float(mean_weight), reply_count
                )

    def _counted_updates(
        self,
        reply_slots: Sequence[int],
        update_weights: np.ndarray,
        groups_of_updates: Sequence[Sequence[int]],
    ) -> dict[int, CountedUpdate]:
        """How the update of each slot counts; of both halves of a client's data, each with half the weight."""
        counted_updates = {}
        for reply_slot, update_weight, groups_of_update in zip(
            reply_slots, update_weights, groups_of_updates, strict=True
        ):
            counted_updates[reply_slot] = CountedUpdate(
                float(update_weight), tuple(groups_of_update), 1
            )
        # The mean of both halves is the same as both halves with half the weight each.
        for first_slot, second_slot in self._second_half_of.items():
            if first_slot in counted_updates:
                whole_update = counted_updates[first_slot]
                half_update = replace(whole_update, amount=whole_update.amount / 2)
                counted_updates[first_slot] = replace(half_update, replies=1)
                counted_updates[second_slot] = replace(half_update, replies=0)
        return counted_updates

    def _average(self, share: Share, counted_updates: Mapping[int, CountedUpdate]) -> Any:
        """The call that averages the updates of a share; None if none of them counts."""
        # The updates of this share that count, and the factors by which they are scaled.
        node_slots = []
        scale_factors = []
        share_updates = []
        for node_slot, reply_slot in enumerate(share.slots):
            if reply_slot in counted_updates:
                node_slots.append(node_slot)
                scale_factors.append(self._factors.get(reply_slot, 1.0))
                share_updates.append(counted_updates[reply_slot])
        if not any(counted_update.groups for counted_update in share_updates):
            return None
        update_weights = np.array([counted_update.amount for counted_update in share_updates])
        groups_of_updates = [counted_update.groups for counted_update in share_updates]
        return share.node.actor.reduce.remote(
            share.order_number, node_slots, scale_factors, update_weights, groups_of_updates
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


def divided(job_costs: Sequence[float], node_speeds: Sequence[float]) -> Iterator[tuple[int, int]]:
    """Divide jobs among nodes: each job, in this order, goes to the node that would be done with it first.

    Args:
        job_costs: The cost of each job.
        node_speeds: The speed of each node.

    Yields:
        (Position of the job, position of the node), for each job.

    Example:
        >>> list(divided([4, 3, 2, 1], [1, 1]))
        [(0, 0), (1, 1), (2, 1), (3, 0)]
    """
    # The load of a node is the cost of the jobs that it has so far.
    node_loads = [0.0] * len(node_speeds)
    for job_number, job_cost in enumerate(job_costs):
        end_times = [
            (node_load + job_cost) / node_speed
            for node_load, node_speed in zip(node_loads, node_speeds, strict=True)
        ]
        node_number = end_times.index(min(end_times))
        node_loads[node_number] += job_cost
        yield job_number, node_number


def _obstacle(node: ClusterNode, actor_call: Any) -> str | None:
    """Return why a node was lost before it began, or None. It is an error if it does not have this version of Coterie."""
    # Another version of Coterie could compute something else, or fail later.
    server_version = version("coterie")
    try:
        node_version = ray.get(actor_call)
    except RayError as error:
        if isinstance(error, RayActorError) and not error.actor_init_failed:
            return _first_line(error)
        remedy = f"install coterie[ray] {server_version} there, as here"
        raise UserError(f"{_full_name(node)} cannot import Coterie: {remedy}") from error
    if node_version != server_version:
        raise UserError(
            f"{_full_name(node)} has Coterie {node_version}, this machine has {server_version}: "
            "install the same version"
        )
    return None


def _result(node: ClusterNode, actor_call: Any) -> Any:
    """The result of a node's work. An error in its code ends the run; a lost node is an error of Ray."""
    try:
        return ray.get(actor_call)
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
    for job_item, job_result in zip(job, node_results, strict=True):
        if isinstance(job_item, PlacedOrder):
            _, client_result = job_result
            results.append((job_item, client_result))
        else:
            results.append(job_result)
    return results


def _training_results(
    results: Sequence[Sequence[Any]],
) -> Iterator[tuple[PlacedOrder, ClientResult]]:
    """The orders and their results; nothing of tests."""
    for results_of_job in results:
        for job_result in results_of_job:
            if isinstance(job_result, tuple):
                yield job_result


def _clients(job_item: PlacedOrder | Test) -> tuple[Client, ...]:
    """The clients of an order or a test."""
    return job_item.clients if isinstance(job_item, Test) else (job_item.order.client,)


def _slots(job_item: PlacedOrder | Test) -> list[int]:
    """The slots of the reply matrix that an order writes."""
    if isinstance(job_item, Test):
        return []
    return [
        reply_slot
        for reply_slot in (job_item.slot, job_item.personal_slot)
        if reply_slot is not None
    ]


def _rows(job_item: PlacedOrder | Test) -> list[int]:
    """The rows of the model matrix that an order or a test reads."""
    read_rows = list(job_item.rows)
    if isinstance(job_item, PlacedOrder) and job_item.personal_row is not None:
        read_rows.append(job_item.personal_row)
    return read_rows


def _renumbered(
    job_item: PlacedOrder | Test, new_slots: Mapping[int, int], new_rows: Mapping[int, int]
) -> PlacedOrder | Test:
    """An order or a test with the slots, and the rows of single clients, numbered anew."""
    # Rows of models keep their numbers.
    model_rows = tuple(new_rows.get(row_number, row_number) for row_number in job_item.rows)
    if isinstance(job_item, Test):
        return replace(job_item, rows=model_rows)
    personal_row = job_item.personal_row
    personal_slot = job_item.personal_slot
    return replace(
        job_item,
        rows=model_rows,
        slot=new_slots[job_item.slot],
        personal_row=None if personal_row is None else new_rows.get(personal_row, personal_row),
        personal_slot=None if personal_slot is None else new_slots[personal_slot],
    )
