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

PLACING = 120.0
"""Longest time in seconds until an actor has started on each node. A node without free cores by
then is not used."""

REACHING = 5.0
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
    with connected(address, start=False) as found:
        if found:
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
        here = ray.get_runtime_context().gcs_address
        if address not in (None, "auto", here):
            raise UserError(
                f"address must be that of the cluster to which this process is connected, {here}, got {address!r}"
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
    named = address or os.environ.get("RAY_ADDRESS") or None
    if named not in (None, "auto", "local"):
        _check_reachable(named, "address" if address else "RAY_ADDRESS")
    quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR"}
    with _undisturbed():
        if named != "local":
            try:
                ray.init(address=named or "auto", **quiet)
                return True
            except (ConnectionError, RuntimeError, ValueError) as error:
                if named is not None:
                    hint = (
                        "ray start --head starts one"
                        if named == "auto"
                        else "does it run the same versions?"
                    )
                    raise UserError(
                        f"there is no Ray cluster at {named}: {_first_line(error)} ({hint})"
                    ) from error
        if start:
            ray.init(
                address="local",
                num_cpus=cores or default_workers(),
                include_dashboard=False,
                **quiet,
            )
        return start


def _check_reachable(address: str, name: str) -> None:
    """Raise an error if nothing answers at an address; Ray itself would try for a minute."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal() or "/" in address:
        raise SettingError(f"{name} must be HOST:PORT, auto or local, got {address!r}")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=REACHING).close()
    except (OSError, OverflowError) as error:
        raise UserError(
            f"there is no Ray cluster at {name} {address}: {_first_line(error)}"
        ) from error


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0].rstrip(".") or type(error).__name__


@contextmanager
def _undisturbed() -> Iterator[None]:
    """Let Ray start without reports of usage to its authors, without a warning about GPUs, and without a signal handler.

    Ray's workers search the driver's current folder first for modules, and it may be another
    person's run directory. So they get the folder of Coterie itself, from which they import anyway.
    """
    here = os.getcwd()
    settings = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_USAGE_STATS_PROMPT_ENABLED": "0"}
    before = {name: os.environ.get(name) for name in settings}
    main = threading.current_thread() is threading.main_thread()
    handler = signal.getsignal(signal.SIGTERM) if main else None
    os.environ.update(settings)
    os.chdir(Path(__file__).parents[2])
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Tip: In future versions of Ray", FutureWarning)
            yield
    finally:
        os.chdir(here)
        for name, value in before.items():
            os.environ.pop(name, None)
            os.environ.update({} if value is None else {name: value})
        if handler is not None:
            signal.signal(signal.SIGTERM, handler)


# ----------------------------------------------------------------------------------------------------
# On a node: an actor with a world and a pool of its own. What goes to it, and what it returns.


@dataclass(frozen=True)
class NodeOrder:
    """Jobs for a node. Rows and slots are numbered anew, for the node's own matrices.

    Attributes:
        jobs: Lists of :class:`.worker.PlacedOrder` or of :class:`.worker.Test`.
        extra: Shape ``(p, d)``: the rows made for single clients, which follow the models.
        slots: Number of slots for replies.
        sketch: Numbers of a sketch; 0 without sketches.
        stay: Whether the updates stay on the node.
        more: Whether the updates that stay there from an earlier order are still needed.
    """

    jobs: list[Any]
    extra: np.ndarray
    slots: int = 0
    sketch: int = 0
    stay: bool = False
    more: bool = False


@dataclass(frozen=True)
class Outcome:
    """What a node returns for an order.

    Attributes:
        results: The result of each job.
        rows: Slot -> its row ``(d,)``: personal models, and updates that do not stay.
        sketches: Shape ``(slots, sketch)``.
        extents: Slot -> the measure of an update that stays.
        kept: Slot -> the values of an update that stays, in the columns of the layers that stay at
            the client.
    """

    results: list[Any]
    rows: Mapping[int, np.ndarray]
    sketches: np.ndarray
    extents: Mapping[int, Extent]
    kept: Mapping[int, np.ndarray]


@dataclass(frozen=True)
class Failure:
    """What a node returns if an order failed.

    Attributes:
        message: One sentence.
        details: A traceback, or empty.
        lost: Whether the node cannot be used any more.
        wrong: Whether it is a mistake of the user.
    """

    message: str
    details: str = ""
    lost: bool = False
    wrong: bool = False


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
            with seeded(0, Purpose.OWN_CODE):  # the same world on each node
                world = maker()
        except UserError as error:
            return Failure(str(error), wrong=True)
        self.pool = ClientPool(world, inprocess.wire_of(world, seed, boundary), hardware)
        self.held: list[Tensor] = []
        return None

    def work(self, models: np.ndarray, order: NodeOrder) -> Outcome | Failure:
        """Carry out an order.

        Args:
            models: The models ``(k, d)``.
            order: The order.
        """
        pool, given = self.pool, torch.from_numpy(models.copy())  # Ray's own memory is read-only
        if order.more:
            pool.worker.replies = torch.empty(
                0, pool.layout.size
            )  # new memory; the earlier rows stay in ``held``
        try:
            results = pool.put(
                given, list(torch.from_numpy(order.extra.copy())), order.slots, order.sketch
            ).run(order.jobs)
        except EngineError as error:
            return Failure(str(error), error.details, lost=isinstance(error, WorkerLost))
        if order.stay:
            self.held = [*(self.held if order.more else ()), pool.worker.replies]
        rows: dict[int, np.ndarray] = {}
        extents: dict[int, Extent] = {}
        kept: dict[int, np.ndarray] = {}
        for placed, result in _results(results):
            if placed.personal_slot is not None:
                rows[placed.personal_slot] = pool.worker.replies[placed.personal_slot].numpy()
            if not result.trained or placed.order.beside_halves:
                continue
            row = pool.worker.replies[placed.slot]
            if not order.stay:
                rows[placed.slot] = row.numpy()
                continue
            keep_mask = pool.keep_mask(placed.order.task)
            start = given[list(result.chosen)].mean(0)
            extents[placed.slot] = extent(row, start, pool.wire, keep_mask)
            if keep_mask is not None:
                kept[placed.slot] = row[keep_mask].numpy()
                row[keep_mask] = 0.0  # it counts in no mean
        return Outcome(
            results,
            rows,
            pool.worker.sketches[: order.slots if order.sketch else 0].numpy(),
            extents,
            kept,
        )

    def reduce(
        self,
        held: int,
        slots: Sequence[int],
        factors: Sequence[float],
        amounts: np.ndarray,
        groups: Sequence[Sequence[int]],
    ) -> tuple[list[int], np.ndarray, np.ndarray]:
        """Average updates that stayed here.

        Args:
            held: The position of the order of which they are replies, among those whose updates are
                here.
            slots: The slots of the updates.
            factors: The factor by which each is scaled first.
            amounts: Shape ``(m,)``: their weights.
            groups: For each update, the groups in which it counts.

        Returns:
            The groups with updates here; their means, one row each; the sums of the weights.
        """
        rows = self.held[held]
        for slot, factor in zip(slots, factors, strict=True):
            if factor != 1.0:
                rows[slot] *= factor
        return means_of(rows, slots, amounts, groups)


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
    there = sorted({group for each in groups for group in each})
    place = {group: i for i, group in enumerate(there)}
    means = Means(len(there), rows.shape[1])
    chosen = rows[: len(slots)] if list(slots) == list(range(len(slots))) else rows[list(slots)]
    means.add(chosen, amounts, [[place[group] for group in each] for each in groups])
    return there, means.means.numpy(), means.weight


# ----------------------------------------------------------------------------------------------------
# At the server: the nodes of the cluster, and what each of them does.


@dataclass(frozen=True, eq=False)
class Node:
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
        at: The positions of its jobs in the list of all.
        slots: The slots of its replies here, in the order of those there.
        order: The jobs, as they were sent.
        held: The position of the order among those whose updates are on the node.
    """

    node: Node
    at: tuple[int, ...]
    slots: tuple[int, ...]
    order: NodeOrder
    held: int = 0


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
        self.nodes: list[Node] = []
        self._said: list[Note] = []
        self._why = ""
        self._models: Tensor | None = None
        self._sent: Any = None
        self._personal: Sequence[Tensor] = ()
        self._jobs: Sequence[Any] = ()
        self._stay = False
        self._shares: list[Share] = []
        self._extents: dict[int, Extent] = {}
        self._factors: dict[int, float] = {}
        self._pairs: dict[int, int] = {}
        try:
            self.nodes = self._placed(hardware.workers)
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
            with suppress(Exception):  # the cluster may be gone
                ray.kill(node.actor)
        self.nodes = []

    def notes(self) -> tuple[Note, ...]:
        """Return what happened to the nodes since the last call."""
        said, self._said = tuple(self._said), []
        return said

    @property
    def machines(self) -> int:
        """The number of nodes."""
        return len(self.nodes)

    # -- the beginning
    # ------------------------------------------------------------------------------------------------

    def _placed(self, workers: int | None) -> list[Node]:
        """Start an actor on each node that has cores."""
        made = []
        for one in sorted(ray.nodes(), key=lambda one: one["NodeID"]):
            cores = int(one["Resources"].get("CPU", 0))
            if not one["Alive"] or not cores:
                continue
            processes = min(workers or cores, cores)
            there = NodeAffinitySchedulingStrategy(one["NodeID"], soft=False)
            actor = (
                ray.remote(Station).options(num_cpus=processes, scheduling_strategy=there).remote()
            )
            made.append(
                Node(f"{one['NodeManagerHostname']} ({one['NodeID'][:8]})", actor, processes)
            )
        self.nodes = made
        asked = {node.actor.ready.remote(): node for node in made}
        started, _ = (
            ray.wait(list(asked), num_returns=len(asked), timeout=PLACING) if asked else ([], [])
        )
        if not started:
            none = f"none of its {len(made)} nodes with cores started an actor in {PLACING:g} s"
            raise UserError(f"the Ray cluster has no free cores: {none}")
        nodes = []
        for call, node in asked.items():
            why = (
                _obstacle(node, call)
                if call in started
                else f"it had no {node.processes} free cores"
            )
            if why is None:
                nodes.append(node)
            else:
                ray.kill(node.actor)
                self._say((), f"{_named(node)} is not used: {why}")
        if not nodes:
            raise UserError(f"no node of the Ray cluster can be used: {why}")
        return nodes

    def _begin(
        self, maker: Callable[[], World], boundary: Boundary, seed: int, hardware: Hardware
    ) -> None:
        """Make the world on each node."""
        folders = [folder for folder in sys.path if folder]
        calls = [
            (
                node,
                node.actor.begin.remote(
                    maker, boundary, seed, replace(hardware, workers=node.processes), folders
                ),
            )
            for node in self.nodes
        ]
        for node, call in calls:
            try:
                failed = ray.get(call)
            except RayTaskError as error:
                raise UserError(
                    f"{_named(node)} cannot make the world: {sentence(error.cause)}"
                ) from error
            except RayError as error:
                self._lose(node, _first_line(error), ())
                continue
            if failed is not None:
                raise UserError(f"{_named(node)} cannot make the world: {failed.message}")

    # -- jobs
    # ---------------------------------------------------------------------------------------------------------

    def place(self, models: Tensor, personal: Sequence[Tensor], here: Worker, stay: bool) -> None:
        """See :class:`.pool.Remote`. The same models are sent once."""
        if models is not self._models:
            self._models, self._sent = models, ray.put(np.ascontiguousarray(models.numpy()))
        self._personal, self._here, self._stay, self._shares = personal, here, stay, []
        self._extents, self._factors, self._pairs = {}, {}, {}

    def run(self, jobs: Sequence[Any]) -> list[Any]:
        """Carry out jobs, see :class:`.pool.Runner`. Jobs of a node that is lost run on the others."""
        results: list[Any] = [None] * len(jobs)
        self._jobs = jobs
        for share, outcome in self._carried_out(range(len(jobs))):
            for at, result in zip(share.at, outcome.results, strict=True):
                results[at] = [self._known(jobs[at], i, one) for i, one in enumerate(result)]
            self._take(share, outcome)
        return results

    def _known(self, jobs: Sequence[Any], i: int, one: Any) -> Any:
        """A result with the job as it is numbered here."""
        return (jobs[i], one[1]) if isinstance(jobs[i], PlacedOrder) else one

    def _carried_out(self, at: Sequence[int]) -> Iterator[tuple[Share, Outcome]]:
        """Carry out the jobs at these positions; every share as soon as it is done."""
        waiting = {self._send(share): share for share in self._cut(at)}
        while waiting:
            (call, *_), _ = ray.wait(list(waiting), num_returns=1)
            share = waiting.pop(call)
            outcome = self._received(share, call)
            if outcome is None:
                waiting |= {self._send(again): again for again in self._cut(share.at)}
            else:
                yield share, outcome

    def _send(self, share: Share) -> Any:
        if self._stay:
            self._shares.append(share)
        return share.node.actor.work.remote(self._sent, share.order)

    def _received(self, share: Share, call: Any) -> Outcome | None:
        """The outcome of a share; None if its node is lost."""
        try:
            outcome = _result(share.node, call)
        except RayError as error:
            outcome = Failure(_first_line(error), lost=True)
        if isinstance(outcome, Failure):
            if not outcome.lost:
                raise EngineError(outcome.message, outcome.details)
            if share in self._shares:
                self._shares.remove(share)
            self._lose(share.node, outcome.message, share.at)
            return None
        return outcome

    def _lose(self, node: Node, why: str, at: Sequence[int]) -> None:
        """Use a node no more, and say which clients run elsewhere."""
        with suppress(Exception):
            ray.kill(node.actor)
        self._why, self.nodes = why, [other for other in self.nodes if other is not node]
        if not self.nodes:
            raise EngineError(
                f"no node of the Ray cluster is left; the last was {node.name}: {why}"
            )
        clients = tuple(
            sorted({client for i in at for one in self._jobs[i] for client in _clients(one)})
        )
        self._say(clients, f"{_named(node)} was lost: {why}; its clients run on the others")

    def _say(self, clients: tuple[Client, ...], text: str) -> None:
        self._said.append(Note(kind="node", effect="warns", clients=clients, text=text))

    # -- shares
    # -------------------------------------------------------------------------------------------------------

    def _cut(self, at: Sequence[int]) -> list[Share]:
        """Divide jobs among the nodes, each the next one that would end first; always in the same way."""
        shares: list[list[int]] = [[] for _ in self.nodes]
        for i, node in divided(
            [self._cost(self._jobs[i]) for i in at], [node.processes for node in self.nodes]
        ):
            shares[node].append(at[i])
        return [
            self._share(node, tuple(share))
            for node, share in zip(self.nodes, shares, strict=True)
            if share
        ]

    def _cost(self, job: Sequence[Any]) -> int:
        """Number of examples of a job."""
        return sum(len(one) if isinstance(one, Test) else self._examples(one.order) for one in job)

    def _examples(self, order: Order) -> int:
        """Number of training examples of an order; a half has half of them."""
        step = self._here.world.step(order.round + 1)
        data = self._here.data(order.client, order.task.holdout.share, step)
        return len(data.train) // (1 if order.half is None else 2)

    def _share(self, node: Node, at: tuple[int, ...]) -> Share:
        """A node's share, with slots and rows numbered anew."""
        assert self._models is not None
        jobs, k = [self._jobs[i] for i in at], len(self._models)
        slots = sorted({slot for job in jobs for one in job for slot in _slots(one)})
        rows = sorted({row for job in jobs for one in job for row in _rows(one) if row >= k})
        slot, row = (
            {old: new for new, old in enumerate(slots)},
            {old: k + new for new, old in enumerate(rows)},
        )
        renamed = [[_renumbered(one, slot, row) for one in job] for job in jobs]
        extra = torch.stack([self._personal[old - k] for old in rows]) if rows else self._models[:0]
        # Tests have no slots; of the orders of an exchange, all have sketches or none.
        sketch = jobs[0][0].order.sketch_numbers if slots else 0
        held = sum(other.node is node for other in self._shares)
        node_order = NodeOrder(
            renamed, extra.numpy(), len(slots), sketch, self._stay, self._stay and held > 0
        )
        return Share(node, at, tuple(slots), node_order, held)

    def _take(self, share: Share, outcome: Outcome) -> None:
        """Write what a node sent to the matrices of this process."""
        replies, sketches = self._here.replies, self._here.sketches
        for placed, result in _results(outcome.results):
            slot = share.slots[placed.slot]
            if not (result.trained or placed.order.beside_halves or self._stay):
                replies[slot] = 0.0  # clears the row of an earlier exchange
            if placed.slot in outcome.kept:
                keep_mask = self._here.wire.layout.mask(placed.order.task.local_layers)
                replies[slot, keep_mask] = torch.from_numpy(outcome.kept[placed.slot].copy())
        for slot, row in outcome.rows.items():
            replies[share.slots[slot]] = torch.from_numpy(row.copy())
        if share.order.sketch:
            sketches[list(share.slots)] = torch.from_numpy(outcome.sketches.copy())
        self._extents.update({share.slots[slot]: one for slot, one in outcome.extents.items()})

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
        self._pairs[first] = second

    def add_means(
        self,
        means: Means,
        slots: Sequence[int],
        amounts: np.ndarray,
        groups: Sequence[Sequence[int]],
    ) -> None:
        """See :class:`.pool.Remote`. Updates of a node that is lost are made again on the others."""
        counted = {
            slot: (float(amount), tuple(each), 1)
            for slot, amount, each in zip(slots, amounts, groups, strict=True)
        }
        for (
            first,
            second,
        ) in self._pairs.items():  # the mean of both halves: each counts with half the weight
            if first in counted:
                amount, each, _ = counted[first]
                counted |= {first: (amount / 2, each, 1), second: (amount / 2, each, 0)}
        found: list[tuple[Share, tuple[list[int], np.ndarray, np.ndarray]]] = []
        waiting = list(self._shares)
        while waiting:
            calls = [(share, self._reduced(share, counted)) for share in waiting]
            waiting = []
            for share, call in calls:
                try:
                    found += [] if call is None else [(share, _result(share.node, call))]
                except RayError as error:
                    waiting += self._again(share, _first_line(error))
        for share, (there, rows, weights) in sorted(found, key=lambda one: one[0].slots):
            for group, mean, weight in zip(there, rows, weights, strict=True):
                heard = sum(
                    counted[slot][2]
                    for slot in share.slots
                    if slot in counted and group in counted[slot][1]
                )
                means.join(group, torch.from_numpy(mean.copy()), float(weight), heard)

    def _reduced(
        self, share: Share, counted: Mapping[int, tuple[float, tuple[int, ...], int]]
    ) -> Any:
        """The call that averages the updates of a share; None if none of them counts."""
        at = [(there, slot) for there, slot in enumerate(share.slots) if slot in counted]
        if not any(counted[slot][1] for _, slot in at):
            return None
        factors = [self._factors.get(slot, 1.0) for _, slot in at]
        weights, groups = (
            np.array([counted[slot][0] for _, slot in at]),
            [counted[slot][1] for _, slot in at],
        )
        return share.node.actor.reduce.remote(
            share.held, [there for there, _ in at], factors, weights, groups
        )

    def _again(self, share: Share, why: str) -> list[Share]:
        """Carry out a share of a lost node on the others; the new shares. Its results are known already."""
        self._shares.remove(share)
        if share.node in self.nodes:
            self._lose(share.node, why, share.at)
        before = len(self._shares)
        for _ in self._carried_out(share.at):
            pass
        return self._shares[before:]


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
    for i, cost in enumerate(costs):
        node = min(range(len(speeds)), key=lambda n: ((loads[n] + cost) / speeds[n], n))
        loads[node] += cost
        yield i, node


def _obstacle(node: Node, call: Any) -> str | None:
    """Return why a node was lost before it began, or None. It is an error if it does not have this version of Coterie."""
    here = version("coterie")
    try:
        there = ray.get(call)
    except RayError as error:
        if isinstance(error, RayActorError) and not error.actor_init_failed:
            return _first_line(error)
        hint = f"install coterie[ray] {here} there, as here"
        raise UserError(f"{_named(node)} cannot import Coterie: {hint}") from error
    if there != here:
        raise UserError(
            f"{_named(node)} has Coterie {there}, this machine has {here}: install the same version"
        )
    return None


def _result(node: Node, call: Any) -> Any:
    """The result of a node's work. An error in its code ends the run; a lost node is an error of Ray."""
    try:
        return ray.get(call)
    except RayTaskError as error:
        raise EngineError(f"{_named(node)} failed: {sentence(error.cause)}", str(error)) from error


def _named(node: Node) -> str:
    return f"node {node.name} of the Ray cluster"


def _results(
    results: Sequence[Sequence[Any]],
) -> Iterator[tuple[PlacedOrder, ClientResult]]:
    """The orders and their results; nothing of tests."""
    return (pair for result in results for pair in result if isinstance(pair, tuple))


def _clients(job: PlacedOrder | Test) -> tuple[Client, ...]:
    """The clients of an order or a test."""
    return job.clients if isinstance(job, Test) else (job.order.client,)


def _slots(job: PlacedOrder | Test) -> list[int]:
    """The slots of the reply matrix that an order writes."""
    if isinstance(job, Test):
        return []
    return [slot for slot in (job.slot, job.personal_slot) if slot is not None]


def _rows(job: PlacedOrder | Test) -> list[int]:
    """The rows of the model matrix that an order or a test reads."""
    rows = list(job.rows)
    if isinstance(job, PlacedOrder) and job.personal_row is not None:
        rows.append(job.personal_row)
    return rows


def _renumbered(
    job: PlacedOrder | Test, slots: Mapping[int, int], rows: Mapping[int, int]
) -> PlacedOrder | Test:
    """An order or a test with the slots, and the rows of single clients, numbered anew."""
    model_rows = tuple(rows.get(row, row) for row in job.rows)
    if isinstance(job, Test):
        return replace(job, rows=model_rows)
    personal_row = job.personal_row
    personal_slot = job.personal_slot
    return replace(
        job,
        rows=model_rows,
        slot=slots[job.slot],
        personal_row=None if personal_row is None else rows.get(personal_row, personal_row),
        personal_slot=None if personal_slot is None else slots[personal_slot],
    )
