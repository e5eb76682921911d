"""Labels that rotate in two directions, the protocol of fed-clma: ``python benchmarks/label_rotations.py --data DIR``.

    python benchmarks/label_rotations.py --data DIR [--images 500] [--seeds N] [--only METHOD ...]
    python benchmarks/label_rotations.py --table

The package fed-clma 0.1.1 (Adarsh N L, M. Amarlingam, D. Sharma, "Collaborative Drift Compensation",
CODS-COMAD 2024, doi 10.1145/3703323.3703341) clusters clients whose data drift, in plain Flower apps.
Its readme compares it with FedAvg: ten clients with alike images of CIFAR-10, a net of 545,290
parameters, ten rounds. In rounds 3, 5, 7 and 9 the labels of eight clients rotate by one class: those
of four clients upwards, those of the other four downwards. Two clients keep their labels.

Not printed there, and not tuned here: SGD with learning rate 0.02 and momentum 0.9, one epoch a
round, batches of 32. The net is that with this number of parameters: two convolutions with
BatchNorm, and two dense layers.

The strategy of fed-clma itself runs here too, if the package is installed (``pip install fed-clma``).
Its messages are carried out in this process, with the same data, steps and settings; its first model
and its batches are other draws. A client is tested with its own labels of the round.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from drift import Oracle
from result_file import append_result, read_results
from torch import nn

import coterie
from coterie.core import Client, Method
from coterie.data import readers
from coterie.data.datasets.cifar import cifar10_files
from coterie.data.world import Drift, Split, World
from coterie.methods import Auto, FedAvg, SplitHalf, Tuned

RESULTS = Path(__file__).resolve().parent / "results" / "label-rotations.jsonl"
NUM_CLIENTS = 10
NUM_CLASSES = 10
NUM_ROUNDS = 10
PERIOD = 2
"""Rounds of a time step: labels rotate in rounds 3, 5, 7 and 9."""

STATIONARY = (0, 1)
UPWARDS = (2, 3, 4, 5)
DOWNWARDS = (6, 7, 8, 9)
TEST_IMAGES = 500

TRAINING = coterie.Training(lr=0.02, momentum=0.9, batch=32, epochs=1)

CLMA = "fed-clma"
METHODS: Mapping[str, Method[Any]] = {
    "fedavg": FedAvg(),
    "split-half alert": SplitHalf(alert=True),
    "tuned alert": Tuned(method=SplitHalf(alert=True), epochs=2, start="either", pull=0.2),
    "auto": Auto(),
}
ORACLES = ("oracle", "oracle warm")

PRINTED: Mapping[str, tuple[str, ...]] = {
    "fed-clma, printed": ("", "0.649", "0.632", "0.514", ""),
    "FedAvg, printed": ("", "0.058", "0.176", "0.342", ""),
}
"""Rows of the readme of fed-clma 0.1.1, as in :func:`table`; it has no number of seeds."""


def net() -> nn.Module:
    """The net of 545,290 parameters."""
    return nn.Sequential(
        nn.Conv2d(3, 32, 3, padding=1),
        nn.BatchNorm2d(32),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 3, padding=1),
        nn.BatchNorm2d(64),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(64 * 8 * 8, 128),
        nn.ReLU(),
        nn.Linear(128, NUM_CLASSES),
    )


def rotation(client: Client, time_step: int) -> int:
    """By how many classes the labels of a client are rotated in a time step, counted from 0."""
    if client in STATIONARY:
        return 0
    return time_step if client in UPWARDS else -time_step


def images_of(paths: Iterable[Path]) -> tuple[torch.Tensor, torch.Tensor]:
    """Images ``(n, 3, 32, 32)`` and labels ``(n,)`` of files of CIFAR-10."""
    files = [readers.cifar(path, 1) for path in paths]
    images, labels = (
        torch.from_numpy(np.concatenate(arrays)) for arrays in zip(*files, strict=True)
    )
    return (images.float() / 255 - 0.5) / 0.25, labels.long()


def world(folder: Path, images_per_client: int, seed: int) -> World:
    """The world: in each time step, the same images with rotated labels."""
    order = torch.randperm(NUM_CLIENTS * images_per_client, generator=_generator(seed))
    *train_paths, test_path = cifar10_files(folder)
    train_images, train_labels = images_of(train_paths)
    test_images, test_labels = images_of([test_path])
    test_images, test_labels = test_images[:TEST_IMAGES], test_labels[:TEST_IMAGES]
    steps = []
    for time_step in range(NUM_ROUNDS // PERIOD):
        clients = []
        for client, positions in enumerate(order.chunk(NUM_CLIENTS)):
            turned = rotation(client, time_step)
            clients.append(
                (
                    train_images[positions],
                    (train_labels[positions] + turned) % NUM_CLASSES,
                    test_images,
                    (test_labels + turned) % NUM_CLASSES,
                )
            )
        steps.append(
            coterie.from_lists(
                clients, model=net, training=TRAINING, classes=NUM_CLASSES, validation=0.0
            )
        )
    concepts = []
    for time_step in range(len(steps)):
        rotations = [rotation(client, time_step) for client in range(NUM_CLIENTS)]
        numbers = {turned: number for number, turned in enumerate(dict.fromkeys(rotations))}
        concepts.append({client: numbers[rotations[client]] for client in range(NUM_CLIENTS)})
    drift = Drift(period=PERIOD, concepts=concepts, data=[step.clients for step in steps])
    return replace(steps[0], drift=drift)


def _generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def by_coterie(name: str, whole: World, seed: int) -> list[list[float]]:
    """The accuracy of each client after each round, of one of Coterie's methods."""
    method: Any = METHODS.get(name)
    if name in ORACLES:
        assert whole.drift is not None
        concepts = [own_concepts(time_step) for time_step in range(len(whole.drift.data))]
        method = Oracle(concepts=tuple(concepts), period=PERIOD, warm=name == "oracle warm")
    accuracies = []
    for done in coterie.run(method, whole, rounds=NUM_ROUNDS, seed=seed, workers=1):
        scores = done.scores or {}
        accuracies.append([scores[client]["accuracy"] for client in range(NUM_CLIENTS)])
    return accuracies


def own_concepts(time_step: int) -> dict[Client, int]:
    """Client -> the number of its rotation among all nine; a rotation keeps its number over time steps."""
    return {client: rotation(client, time_step) % NUM_CLASSES for client in range(NUM_CLIENTS)}


def by_clma(whole: World, seed: int) -> list[list[float]]:
    """The accuracy of each client after each round with the strategy of fed-clma, whose messages are carried out here."""
    from clma import CLMA as Strategy
    from clma.client import DriftReporter
    from clma.interop import to_arrayrecord
    from flwr.app import ArrayRecord, ConfigRecord, RecordDict
    from flwr.supercore.task_identity import TaskIdentity

    # Messages name the run and the node that makes them.
    TaskIdentity.task_id = TaskIdentity.run_id = TaskIdentity.node_id = 1
    torch.manual_seed(seed)
    module = net()
    strategy = Strategy()
    nodes = SimpleNamespace(get_node_ids=lambda: list(range(1, NUM_CLIENTS + 1)))
    contexts = [SimpleNamespace(state=RecordDict()) for _ in range(NUM_CLIENTS)]
    arrays = ArrayRecord(module.state_dict())
    accuracies = []
    for number in range(1, NUM_ROUNDS + 1):
        data = whole.steps[whole.step(number)]
        replies = []
        for message in strategy.configure_train(number, arrays, ConfigRecord(), nodes):
            client = message.metadata.dst_node_id - 1
            module.load_state_dict(message.content["arrays"].to_torch_state_dict())
            inputs, targets = examples_of(data[client].train)
            loss = trained(module, inputs, targets, (seed, number, client))
            reply = DriftReporter(contexts[client]).build_reply(
                message, ArrayRecord(module.state_dict()), loss, len(targets)
            )
            replies.append(reply)
        arrays, _ = strategy.aggregate_train(number, replies)
        of_round = []
        for client in range(NUM_CLIENTS):
            parameters = strategy.registry.params(strategy.registry.cohort_of(client + 1))
            module.load_state_dict(to_arrayrecord(parameters).to_torch_state_dict())
            inputs, targets = examples_of(data[client].test)
            module.eval()
            with torch.no_grad():
                of_round.append(float((module(inputs).argmax(1) == targets).float().mean()))
        accuracies.append(of_round)
    return accuracies


def examples_of(split: Split) -> tuple[torch.Tensor, torch.Tensor]:
    """The inputs and labels of a split."""
    return split.inputs[split.index], split.targets


def trained(
    module: nn.Module, inputs: torch.Tensor, targets: torch.Tensor, key: Sequence[int]
) -> float:
    """Train a module for one epoch, with the settings of all methods; return the mean training loss."""
    generator = _generator(hash(tuple(key)) % 2**31)
    optimizer = torch.optim.SGD(module.parameters(), lr=TRAINING.lr, momentum=TRAINING.momentum)
    module.train()
    losses = []
    for positions in torch.randperm(len(targets), generator=generator).split(TRAINING.batch):
        # BatchNorm needs two examples.
        if len(positions) < 2:
            continue
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(module(inputs[positions]), targets[positions])
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    return float(np.mean(losses))


def known() -> list[dict[str, Any]]:
    """The measured runs."""
    return read_results(RESULTS)


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """A line for each method: means over seeds of stationary and of drifted clients, at the end and from round 4 on."""
    table_lines = [
        "| method | seeds | stationary: last round | rounds 4 to 10 | drifted: last round | rounds 4 to 10 |",
        "| --- | ---: | ---: | ---: | ---: | ---: |",
    ]
    for name in dict.fromkeys(row["method"] for row in rows):
        curves = np.array([row["accuracies"] for row in rows if row["method"] == name])
        cells = []
        for clients in (STATIONARY, (*UPWARDS, *DOWNWARDS)):
            of_clients = curves[:, :, list(clients)]
            cells += [of_clients[:, -1].mean(), of_clients[:, 3:].mean()]
        numbers = " | ".join(f"{value:.3f}" for value in cells)
        table_lines.append(f"| {name} | {len(curves)} | {numbers} |")
    for name, printed_cells in PRINTED.items():
        table_lines.append(f"| {name} | {' | '.join(printed_cells)} |")
    return "\n".join(table_lines)


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", help="folder with cifar-10-batches-bin")
    parser.add_argument("--images", type=int, default=500, help="images of a client")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--only", nargs="*", default=[*ORACLES, *METHODS, CLMA])
    parser.add_argument("--table", action="store_true", help="only print what is measured")
    asked = parser.parse_args(argv)
    done = {(row["method"], row["images"], row["seed"]) for row in known()}
    torch.set_num_threads(1)
    for seed in range(0 if asked.table else asked.seeds):
        whole = world(Path(asked.data), asked.images, seed)
        for name in asked.only:
            if (name, asked.images, seed) in done:
                continue
            run = by_clma(whole, seed) if name == CLMA else by_coterie(name, whole, seed)
            row = {"method": name, "images": asked.images, "seed": seed, "accuracies": run}
            append_result(RESULTS, row)
            print(name, seed, [round(float(np.mean(of_round)), 3) for of_round in run], flush=True)
    print(table(known()))


if __name__ == "__main__":
    main()
