"""Rounds of a world under Flower's simulation: Ray runs the clients, and the server runs the same method."""

from __future__ import annotations

import logging
import multiprocessing
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from flwr.app import Context, Message
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp

from coterie.boundary import Boundary
from coterie.core import Cohort, Method, Position, Round
from coterie.data.world import World
from coterie.engines.flower.client import Participant, client_app
from coterie.engines.flower.mods import boundary_mod
from coterie.engines.flower.strategy import MethodStrategy
from coterie.engines.rounds import setup
from coterie.engines.workers import EngineError, default_workers
from coterie.randomness import Purpose, seeded
from coterie.robust import Robust
from coterie.settings import SettingError

PATIENCE = 6 * 3600.0
"""Longest time for a round, in seconds. The first round includes the start of Ray and PyTorch."""


def rounds(
    method: Method[Any],
    world: Callable[[], World],
    *,
    rounds: int,
    seed: int = 0,
    workers: int | None = None,
    eval_every: int = 1,
    start: Position | None = None,
    boundary: Boundary | None = None,
    robust: Robust | None = None,
) -> Iterator[Round]:
    """Run the rounds of :func:`coterie.engines.rounds.rounds` with every client as a Flower node.

    The results are the same up to float rounding. Leaving the loop early ends the simulation.
    Layers, personal models and sketches that stay at the clients are lost when it ends, so a method
    with these cannot ``start`` at a later round.

    Args:
        method: The method to run.
        world: Function that makes the world. It must be picklable, because every process makes its
            own world.
        rounds: Number of the last round.
        seed: Seed of all random draws.
        workers: Number of clients that train at the same time. None means one per core.
        eval_every: Rounds between tests on the clients' test data.
        start: Position from which the run continues. None starts a new run.
        boundary: Operations on the rows between clients and server.
        robust: Bounds on the influence of one client on the others.

    Yields:
        Each communication round, up to number ``rounds``.

    Raises:
        EngineError: The simulation fails.
        SettingError: There is a ``start``, and the method keeps layers, personal models or sketches
            at the clients.
    """
    if start is not None and (what := _keeps(method, start, seed, world, boundary or Boundary())):
        lost = "are lost when Flower's simulation ends: a run with engine flower cannot be resumed"
        raise SettingError(f"{method.name} keeps {what} at the clients, which {lost}")
    if multiprocessing.current_process().daemon:
        raise SettingError(
            "engine flower starts processes, which a process of a multiprocessing.Pool cannot: use engine inprocess"
        )
    ours, theirs = multiprocessing.get_context("spawn").Pipe()
    with tempfile.TemporaryDirectory() as home:
        log_file = Path(home) / "log"
        order = _Job(
            method,
            world,
            rounds,
            seed,
            eval_every,
            start,
            boundary or Boundary(),
            robust or Robust(),
        )
        job = partial(_serve, theirs, order, workers or default_workers(), home)
        process = multiprocessing.get_context("spawn").Process(target=job, daemon=False)
        with _safe_path():
            process.start()
        theirs.close()
        try:
            position = start.round if start else 0
            while position < rounds:
                done = _next(ours, log_file)
                position = done.number
                yield done
        finally:
            with suppress(OSError):
                ours.send(None)
            ours.close()
            process.join(timeout=30)
            if process.is_alive():
                process.terminate()
                process.join()


@contextmanager
def _safe_path() -> Iterator[None]:
    """Stop Python processes started meanwhile from importing from the current folder, which may be another user's."""
    before = os.environ.get("PYTHONSAFEPATH")
    os.environ["PYTHONSAFEPATH"] = "1"
    try:
        yield
    finally:
        del os.environ["PYTHONSAFEPATH"]
        if before is not None:
            os.environ["PYTHONSAFEPATH"] = before


def _next(pipe: Connection, log_file: Path) -> Round:
    try:
        pipe.send("go")
        if not pipe.poll(PATIENCE):
            raise EngineError(f"Flower's simulation did not complete a round in {PATIENCE:g} s")
        found = pipe.recv()
    except (EOFError, OSError):
        found = "its process ended"
    if isinstance(found, Round):
        return found
    details = log_file.read_text(errors="replace")[-4000:] if log_file.exists() else ""
    raise EngineError(f"Flower's simulation failed: {found}", details)


@dataclass(frozen=True)
class _Job:
    """The arguments for the process of a simulation."""

    method: Method[Any]
    world: Callable[[], World]
    rounds: int
    seed: int
    eval_every: int
    start: Position | None
    boundary: Boundary
    robust: Robust


def _keeps(
    method: Method[Any], start: Position, seed: int, world: Callable[[], World], boundary: Boundary
) -> str | None:
    """What a method keeps at the clients according to its first and its next plan; None for nothing.

    The next plan alone does not tell: in a review or between two questions it may use nothing that
    is kept.
    """
    _, federation = setup(method, _built(world), seed, boundary)
    plans = (
        method.plan(
            method.init(federation), Cohort(present=federation.clients, exchange=0, seed=seed)
        ),
        method.plan(start.state, Cohort(present=start.members, exchange=start.exchange, seed=seed)),
    )
    tasks = [task for plan in plans for _, part in plan.leaves() for task in part.tasks.values()]
    if any(task.local_layers for task in tasks):
        return "layers"
    if any(task.personal is not None for task in tasks):
        return "personal models"
    return "sketches" if any(task.private.question is not None for task in tasks) else None


def _serve(pipe: Connection, job: _Job, workers: int, home: str) -> None:
    """Main function of the simulation's process: run one round for each request."""
    with open(Path(home) / "log", "w") as log:
        os.dup2(log.fileno(), sys.stdout.fileno())
        os.dup2(log.fileno(), sys.stderr.fileno())  # the log output of Ray and Flower
        paths = [path for path in sys.path if path]  # Ray's processes import the same modules
        settings = {
            "FLWR_TELEMETRY_ENABLED": "0",
            "RAY_USAGE_STATS_ENABLED": "0",
            "FLWR_HOME": home,
        }
        os.environ.update(settings, PYTHONPATH=os.pathsep.join(paths))
        os.chdir(home)  # Ray's processes import from the current folder, too
        from flwr.simulation import run_simulation

        logging.getLogger("flwr").setLevel(logging.ERROR)
        try:
            here = _built(job.world)
            run_simulation(
                server_app=_server(pipe, job, here),
                client_app=simulated(job.world, job.boundary, job.seed),
                num_supernodes=len(here.clients),
                backend_config={
                    "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
                    "init_args": {
                        "address": "local",
                        "num_cpus": workers,
                        "log_to_driver": False,
                        "include_dashboard": False,
                    },
                },
            )
        except Exception as error:  # report any error to the other process
            with suppress(OSError):
                pipe.send(f"{type(error).__name__}: {error}")


def _server(pipe: Connection, job: _Job, world: World) -> ServerApp:
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        strategy = MethodStrategy(
            job.method,
            world.model,
            training=world.training,
            nodes=len(world.clients),
            seed=job.seed,
            eval_every=job.eval_every,
            min_replies=1.0,
            boundary=replace(job.boundary, secret=None),
            robust=job.robust,
            patience=world.attendance.patience,
            metrics={name: (name,) for name in ("loss", *world.objective.named)},
        )
        try:
            for done in strategy.rounds(grid, job.rounds, start=job.start, roster=world):
                if pipe.recv() is None:
                    return
                pipe.send(replace(done, main=world.objective.main))
            pipe.recv()  # wait until the last round has been received
        except EOFError:
            return
        except Exception as error:
            pipe.send(f"{type(error).__name__}: {error}")

    return app


def simulated(
    world: Callable[[], World], boundary: Boundary | None = None, seed: int = 0
) -> ClientApp:
    """Make one ClientApp for all clients of a world. Partition i is the i-th client in the order of ids.

    Args:
        world: Function that makes the world.
        boundary: Operations on the rows between clients and server.
        seed: Seed of the run.

    Returns:
        The app.
    """
    mods = [] if boundary in (None, Boundary()) else [partial(_bounded, world, boundary, seed)]
    return client_app(
        participant=partial(_participant, world), client=partial(_client, world), mods=mods
    )


def _bounded(
    world: Callable[[], World],
    boundary: Boundary,
    seed: int,
    message: Message,
    context: Context,
    call_next: Any,
) -> Message:
    """A version of :func:`.mods.boundary_mod` that can be pickled."""
    return boundary_mod(boundary, _made(world).model, simulated=seed)(message, context, call_next)


_WORLDS: dict[Any, World] = {}


def _built(world: Callable[[], World]) -> World:
    """The world that a function makes, the same in each process."""
    with seeded(0, Purpose.OWN_CODE):
        return world()


def _made(world: Callable[[], World]) -> World:
    """The world, made once in this process, because Flower unpickles the app again for every message."""
    key = (getattr(world, "func", world), getattr(world, "args", ()))
    if key not in _WORLDS:
        _WORLDS.clear()
        _WORLDS[key] = _built(world)
    return _WORLDS[key]


def _client(world: Callable[[], World], context: Context) -> int:
    return sorted(_made(world).clients)[int(context.node_config["partition-id"])]


def _participant(world: Callable[[], World], context: Context) -> Participant:
    made, client = _made(world), _client(world, context)
    return Participant(
        made.clients[client],
        made.model,
        made.objective,
        made.augment,
        made.attacks.get(client),
        compared=False,
    )
