"""Flower's Ray simulation, written as Flower's quickstart for PyTorch is, in a process of its own.

The server waits for a signal before each round, so that its rounds can take turns with those of
others.
"""

from __future__ import annotations

import importlib.util
import logging
import multiprocessing
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from multiprocessing.connection import Connection
from typing import Any

import torch

from . import plain
from .workloads import Workload

ABSENT = "Flower's simulation is left out: it is not installed (`make bench` installs it)."
START = 300
"""Seconds a first round may take; Ray starts in it."""


def installed() -> bool:
    """Whether Flower and Ray can be imported."""
    return all(importlib.util.find_spec(name) is not None for name in ("flwr", "ray"))


def client_app(work: Workload) -> Any:
    """A ClientApp that trains on its partition, which the process keeps in memory."""
    from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
    from flwr.clientapp import ClientApp

    app = ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        torch.set_num_threads(1)
        model = work.module()
        model.load_state_dict(message.content["arrays"].to_torch_state_dict())
        batches = plain.loader(work, int(context.node_config["partition-id"]))
        loss = plain.train(model, [batches] * work.epochs, work.lr)
        metrics = MetricRecord({"train_loss": loss, "num-examples": work.examples})
        return Message(
            content=RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": metrics}),
            reply_to=message,
        )

    return app


def server_app(
    work: Workload, rounds: int, wait: Callable[[], Any], tell: Callable[[float | str], None]
) -> Any:
    """A ServerApp with FedAvg that calls ``wait`` before a round and ``tell`` with its seconds, or its errors, after it."""
    from flwr.app import ArrayRecord, Context
    from flwr.serverapp import Grid, ServerApp
    from flwr.serverapp.strategy import FedAvg

    class Timed(FedAvg):
        """FedAvg; a round is timed from the choice of the clients to the mean of their models."""

        def configure_train(
            self, server_round: int, arrays: Any, config: Any, grid: Any
        ) -> Iterable[Any]:
            wait()
            while (
                len(list(grid.get_node_ids())) < work.clients
            ):  # otherwise it would sample from the clients connected so far
                time.sleep(0.01)
            self.since = time.perf_counter()
            return super().configure_train(server_round, arrays, config, grid)

        def aggregate_train(self, server_round: int, replies: Iterable[Any]) -> Any:
            replies = list(replies)
            result = super().aggregate_train(server_round, replies)
            errors = {str(reply.error) for reply in replies if reply.has_error()}
            if len(replies) != work.asked:
                errors.add(f"{len(replies)} of {work.asked} clients answered")
            tell("; ".join(sorted(errors)) or time.perf_counter() - self.since)
            return result

    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        least = {"min_available_nodes": work.clients, "min_train_nodes": 1}
        strategy = Timed(fraction_train=work.fraction, fraction_evaluate=0.0, **least)
        strategy.start(
            grid=grid, initial_arrays=ArrayRecord(work.module().state_dict()), num_rounds=rounds
        )

    return app


def serve(pipe: Connection, work: Workload, workers: int, rounds: int) -> None:
    """The process: a simulation of ``rounds`` rounds, each when a message comes; answers with its seconds."""
    with tempfile.TemporaryDirectory() as home, open(os.devnull, "w") as nowhere:
        os.dup2(nowhere.fileno(), sys.stdout.fileno())
        os.dup2(nowhere.fileno(), sys.stderr.fileno())  # what Ray and Flower report of themselves
        paths = [path for path in sys.path if path]  # Ray's processes import these modules too
        settings = {
            "FLWR_TELEMETRY_ENABLED": "0",
            "RAY_USAGE_STATS_ENABLED": "0",
            "FLWR_HOME": home,
        }
        os.environ.update(settings, PYTHONPATH=os.pathsep.join(paths))
        from flwr.simulation import run_simulation

        logging.getLogger("flwr").setLevel(logging.ERROR)
        run_simulation(
            server_app=server_app(work, rounds, pipe.recv, pipe.send),
            client_app=client_app(work),
            num_supernodes=work.clients,
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


class Flower:
    """A simulation of exactly ``rounds`` rounds with ``workers`` clients at a time. ``seconds()``: time of the next round.

    The processes start before the first round, but only in it do they import PyTorch and make the
    data.
    """

    def __init__(self, work: Workload, workers: int, rounds: int) -> None:
        context = multiprocessing.get_context("spawn")  # Ray needs a fresh process
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(
            target=serve, args=(theirs, work, workers, rounds), daemon=True
        )
        self.process.start()
        theirs.close()

    def seconds(self) -> float:
        self.pipe.send("go")
        if not self.pipe.poll(START):
            raise RuntimeError(f"Flower's simulation has not ended a round in {START} s")
        taken = self.pipe.recv()
        if isinstance(taken, str):
            raise RuntimeError(f"clients of Flower's simulation failed: {taken}")
        return float(taken)

    def close(self) -> None:
        """Wait for its end, which comes by itself after the last round; or end it."""
        self.pipe.close()
        self.process.join(timeout=20)
        if self.process.is_alive():
            self.process.terminate()
            self.process.join()
