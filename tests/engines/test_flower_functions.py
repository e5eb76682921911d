"""Apps with a train and a test function of their own: what methods ask of them, and the app on the documentation's page."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

pytest.importorskip("flwr", reason="Flower is not installed")

from flwr.app import ConfigRecord, Context
from flwr.clientapp import ClientApp

from alone import alone
from coterie.core import Training
from coterie.data.world import Split, World
from coterie.engines import rounds as inprocess
from coterie.engines.flower import client_app
from coterie.engines.flower.messages import QUERY
from coterie.engines.refusals import RefusedError
from coterie.methods import CFL, FedAvg
from coterie.randomness import seeded
from coterie.settings import SettingError
from federation import PATIENCE, ROOT, ended, environment
from flowered import Here, same, strategy_of
from small import mlp, world

IDS = (0, 1, 2, 3, 4, 5)


def own(tried: World, **how: Any) -> ClientApp:
    """An app whose functions make one step on all examples per epoch, in whatever order they come."""

    def dataset(split: Split) -> TensorDataset:
        return TensorDataset(split.inputs[split.index], split.targets)

    def load(context: Context) -> Any:
        data = tried.clients[int(context.node_config["partition-id"])]
        return dataset(data.train), dataset(data.test)

    def train(net: nn.Module, examples: Any, config: dict[str, Any]) -> None:
        optimizer = torch.optim.SGD(net.parameters(), lr=config["lr"])
        assert net.training
        for _ in range(config.get("steps", config["epochs"])):
            for x, y in DataLoader(examples, batch_size=len(examples), shuffle=True):
                optimizer.zero_grad()
                nn.functional.cross_entropy(net(x), y).backward()
                optimizer.step()

    @torch.no_grad()
    def test(net: nn.Module, examples: Any) -> tuple[float, float]:
        x, y = next(iter(DataLoader(examples, batch_size=len(examples))))
        outputs = net(x)
        assert not net.training
        return nn.functional.cross_entropy(outputs, y).item(), (
            outputs.argmax(1) == y
        ).float().mean().item()

    return client_app(model=tried.model, **{"data": load, "train": train, "test": test, **how})


@seeded(0)
def test_own_functions_do_every_task_as_coteries_training_does(
    method: Any, flower_run: None
) -> None:
    """Halves, choices, layers that stay, losses and several epochs; a step on all examples does not depend on their order."""
    tried = replace(world(IDS), training=Training(batch=0, lr=0.2, lr_decay=0.9))
    if method.name == "knn-per":  # its tests need the features of a net
        with pytest.raises(
            SettingError,
            match=r"^knn-per serves clients by their nearest training examples, which no app here",
        ):
            next(strategy_of(method, tried).rounds(Here(own(tried), 6), 1))
        return
    if method.name in ("apfl", "auto", "ditto", "fedbabu", "fedrep", "race", "scaffold", "tuned"):
        with pytest.raises(
            SettingError,
            match=f"^{method.name} asks a client .* which client 0's app does not support",
        ):
            next(strategy_of(method, tried).rounds(Here(own(tried), 6), 1))
        return
    found = list(strategy_of(method, tried).rounds(Here(own(tried), 6), 3))
    same(found, list(inprocess.rounds(method, tried, rounds=3, workers=1)))


@seeded(0)
def test_an_ensemble_is_tested_as_one_net(flower_run: None) -> None:
    tried = replace(world(IDS), training=Training(batch=0, lr=0.2))
    method = CFL(eps1=10.0, eps2=0.0, gamma_max=0.0, persistence=1, ensemble=True)
    found = list(strategy_of(method, tried).rounds(Here(own(tried), 6), 2))
    assert found[-1].assignment.ensemble
    same(found, list(inprocess.rounds(method, tried, rounds=2, workers=1)))


def test_a_gradient_is_refused_before_anybody_trains(flower_run: None) -> None:
    tried = world(IDS)
    grid, method = Here(own(tried), 6), CFL(similarity="gradients", post_split="parent-mean")
    says = "^cfl asks a client for a gradient .*client 0's app does not support, because it trains by a function of its own$"
    with pytest.raises(SettingError, match=says):
        next(strategy_of(method, tried).rounds(grid, 3))
    assert {message.metadata.message_type for message, _ in grid.messages} == {QUERY}


def test_a_train_function_gets_the_settings_and_the_config_of_the_server_app(
    flower_run: None,
) -> None:
    tried, seen = replace(world(IDS), training=Training(lr=0.3, lr_decay=0.5, epochs=2)), []
    app = own(tried, train=lambda net, examples, config: seen.append((len(examples), config)))
    strategy = strategy_of(FedAvg(), tried, nodes=1)
    strategy.start(Here(app, 1), num_rounds=2, train_config=ConfigRecord({"momentum": 0.5}))
    assert [size for size, _ in seen] == [len(tried.clients[0].train)] * 2
    config = seen[1][1]
    assert (config["lr"], config["epochs"], config["momentum"], config["server-round"]) == (
        0.15,
        2,
        0.0,
        2,
    )
    assert not {"steps", "coterie"} & config.keys()


def test_data_that_are_no_data_sets_are_one_sentence(flower_run: None) -> None:
    tried = world(IDS)
    loader = DataLoader(TensorDataset(torch.zeros(4, 2)))
    for sets in ((loader, loader), TensorDataset(torch.zeros(4, 2)), None):
        grid = Here(own(tried, data=lambda context, sets=sets: sets), 1)
        with pytest.raises(
            RefusedError,
            match="its app failed: with train and test, client_app's data must return two data sets",
        ):
            list(strategy_of(FedAvg(), tried, nodes=1).rounds(grid, 1))


def test_functions_come_together() -> None:
    with pytest.raises(TypeError, match="takes train and test together, with model and data"):
        client_app(model=mlp, data=lambda context: None, train=lambda *given: None)


# -- under Flower's simulation
# ------------------------------------------------------------------------------------------------

PAGE = (ROOT / "docs" / "deploy" / "flower.md").read_text()
NOTES = (ROOT / "notes" / "flower.md").read_text()

SIMULATION = """
from flwr.serverapp import ServerApp
from flwr.simulation import run_simulation

from client import Net, app
from coterie.core import Training
from coterie.engines.flower import MethodStrategy
from coterie.methods import METHODS

server = ServerApp()


@server.main()
def main(grid, context):
    for name, settings in {methods}.items():
        training = Training(lr=0.2, epochs=5, batch=16)
        strategy = MethodStrategy(METHODS[name](**settings), Net, nodes=8, training=training, eval_every=5)
        result = strategy.start(grid, num_rounds={rounds})
        print("found", name, sorted(result.groups), flush=True)


if __name__ == "__main__":
    resources = {{"client_resources": {{"num_cpus": 1, "num_gpus": 0.0}}}}
    init = {{"init_args": {{"address": "local", "num_cpus": 2, "include_dashboard": False}}}}
    run_simulation(server_app=server, client_app=app, num_supernodes=8, backend_config=resources | init)
"""


def simulated(folder: Path, client: str, rounds: int, methods: dict[str, Any]) -> str:
    """What a simulation of eight nodes with this client's module prints and logs."""
    (folder / "client.py").write_text(client)
    return ran(folder, SIMULATION.format(methods=methods, rounds=rounds))


def ran(folder: Path, script: str) -> str:
    """What a script that runs Flower's simulation prints and logs."""
    pytest.importorskip("ray", reason="Ray is not installed")
    (folder / "run.py").write_text(script)
    where = environment(folder, FLWR_HOME=str(folder / "home"), RAY_USAGE_STATS_ENABLED="0")
    command = [sys.executable, str(folder / "run.py")]
    with alone(), ended(folder):
        done = subprocess.run(
            command,
            cwd=folder,
            env=where,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
        )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def section(title: str, page: str = PAGE) -> str:
    """The Python code of a section of a page."""
    found = re.search(rf"^#+ {title}\n.*?^```python\n(.*?)^```$", page, re.DOTALL | re.MULTILINE)
    assert found
    return found[1]


@pytest.mark.slow
def test_the_pages_app_with_functions_of_its_own_finds_the_groups(tmp_path: Path) -> None:
    code = section("Your own training function")
    lines = [line.strip() for line in code.splitlines()]
    assert len([line for line in lines if line and not line.startswith("#")]) <= 25
    said = simulated(tmp_path, code, 8, {"split-half": {}, "ifca": {"models": 2}, "hcct-p": {}})
    for name in ("split-half", "ifca", "hcct-p"):
        assert f"found {name} [(0, 2, 4, 6), (1, 3, 5, 7)]" in said
    assert "Traceback" not in said


@pytest.mark.slow
def test_the_pages_script_simulates_that_app(tmp_path: Path) -> None:
    said = ran(
        tmp_path, section("Your own training function") + section("Simulate your app in one script")
    )
    groups = re.search(r"It prints `(.*)` in the end", PAGE)
    assert groups
    assert f"\n{groups[1]}\n" in f"\n{said}\n"
    assert "Traceback" not in said


@pytest.mark.slow
def test_a_plain_app_logs_no_traceback(tmp_path: Path) -> None:
    code = section("A plain app", NOTES)
    assert "coterie" not in code.lower()
    said = simulated(
        tmp_path, code, 12, {"fedavg": {}, "cfl": {"gamma_max": 0.0, "eps1": 0.7, "persistence": 1}}
    )
    assert f"found fedavg [{tuple(range(8))}]" in said
    assert "found cfl" in said
    assert "Traceback" not in said
    assert "ERROR" not in said
