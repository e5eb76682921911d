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
from coterie.core import Cohort, Method, Position, Round, Task
from coterie.data.world import World
from coterie.engines.flower.client import Participant, client_app
from coterie.engines.flower.mods import boundary_mod
from coterie.engines.flower.strategy import MethodStrategy
from coterie.engines.rounds import setup
from coterie.engines.workers import EngineError, default_workers
from coterie.randomness import Purpose, seeded
from coterie.robust import Robust
from coterie.settings import SettingError

MAX_ROUND_SECONDS = 6 * 3600.0
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
    # What stays at the clients is lost with the processes of an earlier simulation.
    boundary = boundary or Boundary()
    if start is not None:
        kept_values = _kept_values(method, start, seed, world, boundary)
        if kept_values is not None:
            raise SettingError(
                f"{method.name} keeps {kept_values} at the clients, which are lost when Flower's simulation ends: "
                "a run with engine flower cannot be resumed"
            )
    # A daemon process can have no children.
    if multiprocessing.current_process().daemon:
        raise SettingError(
            "engine flower starts processes, which a process of a multiprocessing.Pool cannot: use engine inprocess"
        )
    # A process of its own runs Ray and Flower, and sends one round for each request.
    context = multiprocessing.get_context("spawn")
    pipe, process_pipe = context.Pipe()
    with tempfile.TemporaryDirectory() as home_folder:
        simulation = _Simulation(
            method=method,
            world=world,
            rounds=rounds,
            seed=seed,
            eval_every=eval_every,
            start=start,
            boundary=boundary,
            robust=robust or Robust(),
        )
        serve_rounds = partial(
            _serve, process_pipe, simulation, workers or default_workers(), home_folder
        )
        server_process = context.Process(target=serve_rounds, daemon=False)
        with _safe_path():
            server_process.start()
        process_pipe.close()
        try:
            last_round = start.round if start else 0
            while last_round < rounds:
                finished_round = _next_round(pipe, Path(home_folder) / "log")
                last_round = finished_round.number
                yield finished_round
        finally:
            with suppress(OSError):
                pipe.send(None)
            pipe.close()
            server_process.join(timeout=30)
            if server_process.is_alive():
                server_process.terminate()
                server_process.join()


@contextmanager
def _safe_path() -> Iterator[None]:
    """Stop Python processes started meanwhile from importing from the current folder, which may be another user's."""
    value_before = os.environ.get("PYTHONSAFEPATH")
    os.environ["PYTHONSAFEPATH"] = "1"
    try:
        yield
    finally:
        del os.environ["PYTHONSAFEPATH"]
        if value_before is not None:
            os.environ["PYTHONSAFEPATH"] = value_before


def _next_round(pipe: Connection, log_file: Path) -> Round:
    """Ask the simulation's process for the next round, and wait for it."""
    try:
        pipe.send("go")
        if not pipe.poll(MAX_ROUND_SECONDS):
            raise EngineError(
                f"Flower's simulation did not complete a round in {MAX_ROUND_SECONDS:g} s"
            )
        answer = pipe.recv()
    except (EOFError, OSError):
        answer = "its process ended"
    if isinstance(answer, Round):
        return answer
    # Any other answer says why there is no round.
    details = log_file.read_text(errors="replace")[-4000:] if log_file.exists() else ""
    raise EngineError(f"Flower's simulation failed: {answer}", details)


@dataclass(frozen=True, kw_only=True)
class _Simulation:
    """The arguments for the process of a simulation."""

    method: Method[Any]
    world: Callable[[], World]
    rounds: int
    seed: int
    eval_every: int
    start: Position | None
    boundary: Boundary
    robust: Robust


def _kept_values(
    method: Method[Any], start: Position, seed: int, world: Callable[[], World], boundary: Boundary
) -> str | None:
    """What a method keeps at the clients according to its first and its next plan; None for nothing.

    The next plan alone does not tell: in a review or between two questions it may use nothing that
    is kept.
    """
    built_world = _built(world)
    if built_world.training.keep_optimizer:
        return "the states of optimizers"
    _, federation = setup(method, built_world, seed, boundary)
    # Look at the tasks of the first plan and of the next one.
    first_cohort = Cohort(present=federation.clients, exchange=0, seed=seed)
    next_cohort = Cohort(present=start.members, exchange=start.exchange, seed=seed)
    first_plan = method.plan(method.init(federation), first_cohort)
    next_plan = method.plan(start.state, next_cohort)
    planned_tasks: list[Task] = []
    for plan in (first_plan, next_plan):
        for _, part in plan.leaves():
            planned_tasks += part.tasks.values()
    if any(task.local_layers for task in planned_tasks):
        return "layers"
    if any(task.personal is not None for task in planned_tasks):
        return "personal models"
    return "sketches" if any(task.private.question is not None for task in planned_tasks) else None


def _serve(request_pipe: Connection, simulation: _Simulation, workers: int, home: str) -> None:
    """Main function of the simulation's process: run one round for each request."""
    with open(Path(home) / "log", "w") as log_stream:
        # The log has the output of Ray and Flower.
        os.dup2(log_stream.fileno(), sys.stdout.fileno())
        os.dup2(log_stream.fileno(), sys.stderr.fileno())
        # Ray's processes import the same modules, and from the current folder, too.
        module_paths = [module_path for module_path in sys.path if module_path]
        variables = {
            "FLWR_TELEMETRY_ENABLED": "0",
            "RAY_USAGE_STATS_ENABLED": "0",
            "FLWR_HOME": home,
        }
        os.environ.update(variables, PYTHONPATH=os.pathsep.join(module_paths))
        os.chdir(home)
        from flwr.simulation import run_simulation

        logging.getLogger("flwr").setLevel(logging.ERROR)
        try:
            world = _built(simulation.world)
            run_simulation(
                server_app=_server_app(request_pipe, simulation, world),
                client_app=simulated(simulation.world, simulation.boundary, simulation.seed),
                num_supernodes=len(world.clients),
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
        except Exception as error:
            # The other process raises the error.
            with suppress(OSError):
                request_pipe.send(f"{type(error).__name__}: {error}")


def _server_app(request_pipe: Connection, simulation: _Simulation, world: World) -> ServerApp:
    """The ServerApp that runs the method, one round for each request."""
    server_app = ServerApp()

    @server_app.main()
    def main(grid: Grid, context: Context) -> None:
        # The same strategy as for a real federation, with the world's settings. All nodes are
        # awaited.
        strategy = MethodStrategy(
            simulation.method,
            world.model,
            # The clients' worlds have the augmentation, which is no part of a message.
            training=replace(world.training, augment=None),
            nodes=len(world.clients),
            seed=simulation.seed,
            eval_every=simulation.eval_every,
            min_replies=1.0,
            boundary=replace(simulation.boundary, secret=None),
            robust=simulation.robust,
            patience=world.attendance.patience,
            metrics={
                metric_name: (metric_name,) for metric_name in ("loss", *world.objective.named)
            },
        )
        try:
            finished_rounds = strategy.rounds(
                grid, simulation.rounds, start=simulation.start, roster=world
            )
            for finished_round in finished_rounds:
                if request_pipe.recv() is None:
                    return
                request_pipe.send(replace(finished_round, main=world.objective.main))
            # Wait until the last round has been received.
            request_pipe.recv()
        except EOFError:
            return
        except Exception as error:
            request_pipe.send(f"{type(error).__name__}: {error}")

    return server_app


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
    client_mods = []
    if boundary not in (None, Boundary()):
        client_mods.append(partial(_boundary_mod, world, boundary, seed))
    return client_app(
        participant=partial(_participant, world), client=partial(_client, world), mods=client_mods
    )


def _boundary_mod(
    world: Callable[[], World],
    boundary: Boundary,
    seed: int,
    message: Message,
    context: Context,
    call_next: Any,
) -> Message:
    """A version of :func:`.mods.boundary_mod` that can be pickled."""
    mod = boundary_mod(boundary, _world_of_process(world).model, simulated=seed)
    return mod(message, context, call_next)


_LAST_WORLD: dict[Any, World] = {}
"""Function that makes a world -> the world of the last one."""


def _built(make_world: Callable[[], World]) -> World:
    """The world that a function makes, the same in each process."""
    with seeded(0, Purpose.OWN_CODE):
        return make_world()


def _world_of_process(make_world: Callable[[], World]) -> World:
    """The world, made once in this process, because Flower unpickles the app again for every message."""
    maker_key = (getattr(make_world, "func", make_world), getattr(make_world, "args", ()))
    if maker_key not in _LAST_WORLD:
        _LAST_WORLD.clear()
        _LAST_WORLD[maker_key] = _built(make_world)
    return _LAST_WORLD[maker_key]


def _client(make_world: Callable[[], World], context: Context) -> int:
    return sorted(_world_of_process(make_world).clients)[int(context.node_config["partition-id"])]


def _participant(make_world: Callable[[], World], context: Context) -> Participant:
    world = _world_of_process(make_world)
    client = _client(make_world, context)
    return Participant(
        world.clients[client],
        world.model,
        world.objective,
        world.augment,
        world.attacks.get(client),
        compared=False,
    )
