"""Faults over a real SuperLink and SuperNodes: who answers nonsense, too late or never, who dies, joins late, comes back."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from functools import partial
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch
from sklearn.datasets import load_digits

pytest.importorskip("flwr", reason="Flower is not installed")

from flwr.app import Message

import coterie
from coterie.contrib.private import SplitHalfPrivate, SplitHalfSums
from coterie.core import Round, Training
from coterie.engines.flower import MethodStrategy, client_app
from coterie.methods import CFL, FedAvg, FedPer
from coterie.models.layout import Layout
from coterie.randomness import seeded
from federation import ROOT, Federation, accuracies, federation, rounds_of, until
from flowered import FIRST, Here, a_run

pytestmark = pytest.mark.slow

TRAINING = Training(lr=0.1, batch=16, epochs=8)
"""The example's, but longer: three clients are then at odds in the third round."""

FAULTY = '''
"""The example's client app with faults: in round N a node does what ``round-N`` of its node config says."""

import time
from pathlib import Path

import numpy as np
from coterie.engines.flower import client_app
from digits_app.task import load, net
from flwr.app import Array, ArrayRecord


def faulty(message, context, call_next):
    reply = call_next(message, context)
    if message.metadata.message_type != "train":
        return reply
    config = context.node_config
    number = message.content["config"]["server-round"]
    folder, me = Path(config["folder"]), config["partition-id"]
    (folder / f"trained-{me}-{number}").touch()
    fault = config.get(f"round-{number}")
    if fault == "waits":
        while not (folder / f"go-{me}-{number}").exists():
            time.sleep(0.1)
    if fault in ("nan", "shape"):
        for name, record in reply.content.array_records.items():
            arrays = [array.numpy() for array in record.values()]
            arrays[0] = np.full_like(arrays[0], np.nan) if fault == "nan" else arrays[0][:-1]
            reply.content[name] = ArrayRecord({key: Array(value) for key, value in zip(record, arrays)})
    return reply


app = client_app(model=net, data=load, mods=[faulty])
'''


READING = """
import numpy as np

def load_digits(return_X_y):
    with np.load({path!r}) as digits:
        return digits["x"], digits["y"]
"""
"""In place of scikit-learn's: to import that is a fifth of the time that every message takes."""


@pytest.fixture
def app(tmp_path: Path) -> Path:
    """The example app, with faults."""
    made, digits = tmp_path / "made", tmp_path / "digits.npz"
    shutil.copytree(
        ROOT / "examples" / "flower", made, ignore=shutil.ignore_patterns("__pycache__")
    )
    (made / "digits_app" / "client_app.py").write_text(FAULTY)
    x, y = load_digits(return_X_y=True)
    np.savez(digits, x=x, y=y)
    task = made / "digits_app" / "task.py"
    quick = task.read_text().replace(
        "from sklearn.datasets import load_digits", READING.format(path=str(digits))
    )
    assert quick != task.read_text()
    task.write_text(quick)
    return made


class Watched(Federation):
    """A federation whose nodes have faults, and tell by files how far they are."""

    def faulty(self, i: int, **faults: str) -> None:
        """Start a node. faults: ``round_N`` -> what it does then."""
        self.node(
            i,
            folder=str(self.folder),
            **{name.replace("_", "-"): fault for name, fault in faults.items()},
        )

    def trained(self, i: int, round: int) -> None:
        """Wait until node i has trained in a round; its reply is on the way, unless it waits."""
        until(
            lambda: (self.folder / f"trained-{i}-{round}").exists(),
            f"node {i} has trained in round {round}",
            self.failed,
        )

    def go(self, i: int, round: int) -> None:
        """Let a node answer that waits."""
        (self.folder / f"go-{i}-{round}").touch()

    def recorded(self, round: int) -> list[dict[str, Any]]:
        """The rounds so far, once there are so many."""
        until(lambda: len(rounds_of(self.out)) >= round, f"round {round} is recorded", self.failed)
        return rounds_of(self.out)

    def begin(self, name: str, **config: str | float) -> None:
        """``flwr run``, with tests after the last round only."""
        self.run(
            name,
            **{
                "out": str(self.out),
                "eval-every": 100,
                "training.epochs": TRAINING.epochs,
                **config,
            },
        )

    def stop(self, name: str) -> None:
        """Kill the ServerApp, and who reads its log."""
        self.kill_server()
        self.kill(name)

    @property
    def out(self) -> Path:
        return self.folder / "out"


@pytest.fixture
def watched(app: Path, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Watched]:
    with federation(tmp_path / "federation", app, request.param, Watched) as made:
        yield made


@pytest.fixture
def example(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The example's net and data, in this process."""
    monkeypatch.syspath_prepend(str(ROOT / "examples" / "flower"))
    return import_module("digits_app.task")


def expected(
    example: ModuleType, method: Any, parts: int, rounds: int, silent: Mapping[int, set[int]]
) -> Round:
    """The last round, with nodes in this process. silent: round -> who does not answer. The last of four nodes joins in
    round 5."""
    app = client_app(model=example.net, data=example.load)
    with a_run():
        grid = Here(app, 0)

        def join(i: int) -> None:
            grid.contexts[grid.join(i)].node_config["num-partitions"] = parts

        for i in range(min(parts, 3)):
            join(i)
        strategy = MethodStrategy(
            method, example.net, nodes=min(parts, 3), wait=1.0, training=TRAINING, eval_every=100
        )
        for done in strategy.rounds(grid, rounds):
            grid.fate = partial(_fate, {FIRST + 7 * i for i in silent.get(done.number + 1, ())})
            if done.number == 4 and parts == 4:
                join(3)
    return done


def _fate(gone: set[int], message: Message) -> str | None:
    return "silent" if message.metadata.dst_node_id in gone else None


def same(line: Mapping[str, Any], done: Round) -> None:
    assert done.scores is not None
    assert line["groups"] == [list(group) for group in done.assignment.groups]
    for client, score in done.scores.items():
        assert line["clients"][str(client)]["loss"] == pytest.approx(score["loss"], rel=1e-3)
        assert line["clients"][str(client)]["accuracy"] == pytest.approx(
            score["accuracy"], abs=0.02
        )


@pytest.mark.parametrize("watched", [4], indirect=True)
def test_cfl_keeps_its_groups_whatever_happens(watched: Watched, example: ModuleType) -> None:
    watched.faulty(0, round_4="nan")
    watched.faulty(1, round_4="shape", round_5="waits")
    watched.faulty(2, round_4="waits", round_5="waits")
    watched.begin("first", nodes=3, rounds=6)
    kept = watched.recorded(2)
    watched.stop("first")

    # A node that dies is missed for as long as an exchange may take: as little as this machine
    # allows.
    slowest = max(line["seconds"]["train"] for line in kept)
    watched.begin("second", nodes=3, rounds=6, timeout=max(30.0, 3 * slowest))
    watched.recorded(3)
    watched.faulty(3)
    until(
        lambda: "SuperNode ID" in watched.log("node3"), "the fourth node is there", watched.failed
    )
    watched.trained(2, 4)
    watched.go(2, 4)  # round 4 has ended, and the fourth node takes part in the next
    watched.trained(1, 5)
    watched.kill("node1")
    watched.faulty(1)  # with another node id, and by its partition who it was
    watched.recorded(5)
    watched.go(2, 5)  # too late
    watched.await_end("second")

    lines = rounds_of(watched.out)
    assert [line["round"] for line in lines] == [1, 2, 3, 4, 5, 6]
    assert [line["exchange"] for line in lines] == [1, 2, 3, 4, 5, 6]
    assert [line["groups"] for line in lines[: len(kept)]] == [line["groups"] for line in kept]
    assert [line["groups"] for line in lines[2:]] == [
        [[0, 2], [1]],
        [[0, 2], [1]],
        [[0, 2], [1, 3]],
        [[0, 2], [1, 3]],
    ]
    assert [(line["asked"], line["answered"]) for line in lines] == [
        (3, 3),
        (3, 3),
        (3, 3),
        (3, 1),
        (4, 2),
        (4, 4),
    ]
    assert lines[3]["refused"].keys() == {"0", "1"}
    assert lines[4]["refused"].keys() <= {
        "1"
    }  # who is late is silent; of a node that is gone Flower may tell
    assert "NaN" in lines[3]["refused"]["0"]
    assert "has shape (31, 64) where the model has (32, 64)" in lines[3]["refused"]["1"]
    assert min(accuracies(lines[-1])) > 0.6
    # The late reply counted nowhere, and nothing was lost: the models are those of clients that
    # were silent then.
    same(lines[-1], expected(example, CFL(persistence=1), 4, 6, {4: {0, 1}, 5: {1, 2}}))


@pytest.mark.parametrize("watched", [2], indirect=True)
def test_layers_that_stay_are_those_of_the_round_a_stopped_server_goes_on_from(
    watched: Watched, example: ModuleType
) -> None:
    kept = {
        "keep-dir": str(watched.folder / "kept")
    }  # Flower's own state is one for each of its runs
    watched.faulty(0, **kept)
    watched.faulty(1, round_2="waits", **kept)
    watched.begin("first", method="fedper", nodes=2, rounds=3)
    for i in (0, 1):  # a round that is never recorded, and trained again
        watched.trained(i, 2)
    watched.stop("first")
    assert len(rounds_of(watched.out)) == 1
    watched.go(1, 2)
    watched.begin("second", method="fedper", nodes=2, rounds=3)
    watched.await_end("second")
    same(rounds_of(watched.out)[-1], expected(example, FedPer(), 2, 3, {}))


MASKING = '''
"""The example's client app behind masks: asked to unmask a sum for the N-th time, a node does as ``unmask-N`` says."""

import time
from pathlib import Path

from coterie.boundary import Boundary
from coterie.engines.flower import boundary_mod, client_app
from digits_app.task import load, net


def watching(message, context, call_next):
    step = str(message.content["config"].get("coterie-masks", "")) if "config" in message.content else ""
    if '"step": "unmask"' in step:
        folder, me = Path(context.node_config["folder"]), context.node_config["partition-id"]
        number = 1 + len(list(folder.glob(f"asked-{me}-*")))
        (folder / f"asked-{me}-{number}").touch()
        while context.node_config.get(f"unmask-{number}") == "waits":
            time.sleep(0.1)
    return call_next(message, context)


app = client_app(model=net, data=load, mods=[watching, boundary_mod(Boundary(masks=True, bound=10.0), net)])
'''


def masked(watched: Watched, more: str = "") -> None:
    """Put the app of a federation behind masks; ``more``: of its config."""
    there = watched.folder / "app"
    (there / "digits_app" / "client_app.py").write_text(MASKING)
    with (there / "pyproject.toml").open("a") as config:
        config.write(f"\n[tool.flwr.app.config.boundary]\nmasks = true\nbound = 10.0\n{more}")


@pytest.mark.parametrize("watched", [3], indirect=True)
@pytest.mark.parametrize(
    ("method", "rounds", "how"),
    [  # three clients are probed, and are too few to be divided behind masks
        (SplitHalfSums, 2, {"smallest": 1, "sketch": 8}),  # tells of its probe in the second round
        (SplitHalfPrivate, 1, {"level": 0.9, "first_probe": 1, "levels": 1, "sketch": 8}),
    ],
)
def test_a_probe_by_masked_sums_over_nodes_is_that_of_one_process(
    watched: Watched, example: ModuleType, method: Any, rounds: int, how: dict[str, Any]
) -> None:
    table = "".join(f"{name} = {value}\n" for name, value in how.items())
    masked(watched, f"\n[tool.flwr.app.config.{method.name}]\n{table}")
    for i in range(3):
        watched.faulty(i)
    watched.begin("run", method=method.name, nodes=3, rounds=rounds, timeout=60.0)
    watched.await_end("run")
    done = expected(example, method(**how), 3, rounds, {})
    (*_, last) = rounds_of(watched.out)
    assert last["answered"] == last["asked"]
    found = [note for note in last["notes"] if note["kind"] != "node"]
    for note, other in zip(found, done.notes, strict=True):
        assert note["kind"] == other.kind
        assert note["numbers"] == pytest.approx(dict(other.numbers), rel=1e-2)
    assert_models(watched, example, done)


@pytest.mark.parametrize("watched", [3], indirect=True)
def test_a_masked_sum_survives_a_node_killed_between_masking_and_unmasking(
    watched: Watched, example: ModuleType
) -> None:
    masked(watched)
    for i in range(3):
        watched.faulty(i, **({"unmask_1": "waits"} if i == 2 else {}))
    watched.begin("run", method="fedavg", nodes=3, rounds=1, timeout=60.0)
    until(
        lambda: (watched.folder / "asked-2-1").exists(),
        "node 2 is asked to unmask the sum",
        watched.failed,
    )
    watched.kill("node2")
    watched.await_end("run")
    lines = rounds_of(watched.out)
    assert [(line["round"], line["asked"], line["answered"]) for line in lines] == [(1, 3, 3)]
    assert accuracies(lines[-1]) == []  # no test score of a single client is sent
    assert_models(watched, example, expected(example, FedAvg(), 3, 1, {}))


def assert_models(watched: Watched, example: ModuleType, done: Round) -> None:
    """The models that the run has written are those of a round in this process."""
    coterie.save(watched.out, watched.folder / "models")
    with seeded(0):
        layout = Layout(example.net())
    files = sorted((watched.folder / "models").glob("*.safetensors"))
    rows = torch.stack([layout.row(safetensors.torch.load_file(file)) for file in files])
    torch.testing.assert_close(rows, done.assignment.models, rtol=1e-3, atol=1e-5)
