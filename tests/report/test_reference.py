"""What is said before a method is recommended: a constant prediction's score, whom a method fails, and what is not decided."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import coterie
from coterie.data.shared_tests import times_tested
from coterie.data.world import ClientData, World, whole
from coterie.report.explain import explain
from coterie.report.page import document
from coterie.report.ranking import contests
from coterie.report.recommendation import recommend
from coterie.report.trials import read
from coterie.report.verdict import verdict
from page_runs import line, note, write

LATE = {"predicts": "the class 'on time'", "values": [0.918] * 4, "own": [0.918] * 4}


def run(
    folder: Path,
    method: str,
    values: dict[int, float],
    *notes: Any,
    metric: str = "accuracy",
    **world: Any,
) -> Path:
    """A run of two rounds with these values of the main metric, and losses that no longer fall."""
    lines = []
    for number in (1, 2):
        made = line(number, [sorted(values)], *(notes if number == 2 else ()))
        for client, entry in made["clients"].items():
            entry.pop("accuracy")
            entry |= {metric: values[int(client)], "loss": 1.0}
        lines.append(made)
    facts = {"tests": [100] * len(values), "testers": [1.0] * len(values), **world}
    return write(
        folder,
        lines,
        method,
        **facts,
        **({} if metric == "accuracy" else {"metric": {"main": metric, "better": "greater"}}),
    )


def said(*folders: Path) -> dict[str, Any]:
    (found,) = contests(map(read, folders))
    return verdict(found)


def test_a_constant_model_is_not_recommended(tmp_path: Path) -> None:
    values = dict.fromkeys(range(4), 0.918)
    folders = [run(tmp_path / name, name, values, constant=LATE) for name in ("fedavg", "cfl")]
    found = said(*folders)
    assert (
        found["constant"]
        == "Always predicting the class 'on time' has a mean accuracy of 0.918 over 4 clients."
    )
    assert found["warnings"] == [
        "fedavg is no better than always predicting the class 'on time': accuracy 0.918 against 0.918."
    ]
    assert found["use"].startswith("No method is recommended: fedavg")
    # One with more groups has a better score, by chance.
    higher = run(tmp_path / "higher", "cfl", dict.fromkeys(range(4), 0.93), constant=LATE)
    assert said(folders[0], higher)["use"].startswith(
        "No method is recommended: cfl has the best mean accuracy, but is not significantly better"
    )
    assert said(folders[0], higher)["table"]["methods"] == ["cfl", "fedavg"]
    (shown,) = document(folders)["verdicts"]
    assert (shown["constant"], shown["warnings"]) == (found["constant"], found["warnings"])
    assert explain(folders[1])["verdict"][0] == found["warnings"][0].replace("fedavg", "cfl")


@pytest.mark.parametrize(("accuracy", "better"), [(0.90, False), (0.93, False), (0.999, True)])
def test_better_than_a_constant_is_better_beyond_noise(
    accuracy: float, better: bool, tmp_path: Path
) -> None:
    values = dict.fromkeys(range(4), accuracy)
    found = said(*(run(tmp_path / name, name, values, constant=LATE) for name in ("fedavg", "cfl")))
    assert found["use"].startswith("Use fedavg for all clients") == better
    assert (found["warnings"] == []) == better


def test_auroc_of_chance_is_no_better_than_a_constant(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    chance = {"predicts": "class 0", "values": [0.5] * 30, "own": [0.5] * 30}
    folders = [
        run(
            tmp_path / name,
            name,
            dict(enumerate(0.505 + 0.1 * rng.normal(size=30))),
            metric="AUROC",
            constant=chance,
        )
        for name in ("fedavg", "cfl")
    ]
    found = said(*folders)
    assert "better than always predicting class 0" in found["warnings"][0]
    assert found["use"].startswith("No method is recommended")


def test_two_clients_and_one_seed_do_not_say_that_nothing_was_learned(tmp_path: Path) -> None:
    mean = {
        "predicts": "the mean of the training targets",
        "values": [-0.1, -0.2],
        "own": [-0.01, -0.02],
    }
    folders = [
        run(tmp_path / name, name, {0: 0.8, 1: 0.7}, metric="R2Score", constant=mean)
        for name in ("fedavg", "cfl")
    ]
    assert said(*folders)["warnings"] == []


def test_of_methods_within_noise_one_that_has_learned_comes_first(tmp_path: Path) -> None:
    one = run(tmp_path / "a", "fedavg", dict.fromkeys(range(4), 0.95), constant=LATE)
    other = run(tmp_path / "b", "ditto", dict.fromkeys(range(4), 0.99), constant=LATE)
    assert said(one)["warnings"]
    assert said(one, other)["use"].startswith("Use ditto for all clients")


def test_inverted_labels_at_three_of_eight_sites_are_said_first(tmp_path: Path) -> None:
    """Eight sites, three with inverted labels: one model fails these, and the evidence for two groups is overwhelming."""
    half = {"predicts": "class 0", "values": [0.5] * 8, "own": [0.5] * 8}
    sizes = [80, 70, 60, 50, 40, 30, 20, 8]
    values = {0: 0.9, 1: 0.9, 2: 0.13, 3: 0.9, 4: 0.9, 5: 0.17, 6: 0.9, 7: 0.375}
    names = list("ABCDEFGH")
    hidden = note(
        "keep",
        range(8),
        text="8 clients differ, but the probes find different sides",
        numbers={"p": 1.6e-22},
    )
    facts = {"tests": sizes, "names": names, "constant": half}
    base = run(tmp_path / "a", "fedavg", values, **facts)
    found = said(base, run(tmp_path / "b", "split-half", values, hidden, **facts))
    assert (
        found["constant"]
        == "Always predicting class 0 has a mean accuracy of 0.500 over 8 clients."
    )
    below, undecided, evidence = found["warnings"]
    assert below.startswith("With fedavg, 3 of 8 clients score worse than")
    assert below.endswith("C 0.130 (0.500), F 0.170 (0.500), H 0.375 (0.500).")
    assert undecided.endswith(": H (8 rows).")
    assert (
        "Strongest evidence for groups (p < 1e-16, split-half, round 2): 8 clients differ"
        in evidence
    )
    assert found["use"].startswith("Use fedavg, but not for clients C, F, H (3 clients), ")


def test_evidence_has_the_p_value_that_its_note_compares(tmp_path: Path) -> None:
    # Two probes are compared together; the number is that of the second alone.
    criterion = {
        "name": "p of two probes",
        "value": 8.42e-13,
        "sign": "<",
        "bound": 1e-4,
        "setting": "level",
        "met": "4 clients differ",
        "unmet": "",
        "key": "p_value",
        "held": True,
    }
    hidden = note(
        "keep",
        range(4),
        text="4 clients differ: p of two probes 8.42e-13 < level 0.0001",
        numbers={"p": 6.4e-17},
        criteria=[criterion],
    )
    values = dict.fromkeys(range(4), 0.9)
    found = said(run(tmp_path / "a", "fedavg", values), run(tmp_path / "b", "auto", values, hidden))
    (evidence,) = (line for line in found["warnings"] if "evidence" in line)
    assert evidence == (
        "fedavg has one model for all. Strongest evidence for groups (auto, round 2): "
        "4 clients differ: p of two probes 8.42e-13 < level 0.0001."
    )


def test_a_client_that_its_own_commonest_class_serves_better_is_below_it(tmp_path: Path) -> None:
    known = {"predicts": "class 0", "values": [0.5, 0.0], "own": [0.5, 0.95]}
    found = said(run(tmp_path / "a", "fedavg", {0: 0.9, 1: 0.8}, constant=known))
    assert "With fedavg, 1 of 2 clients score worse" in found["warnings"][0]
    assert found["warnings"][0].endswith("1 0.800 (0.950).")


def test_weak_evidence_for_groups_is_not_shown(tmp_path: Path) -> None:
    weak = note("keep", range(4), numbers={"p": 0.01})
    values = dict.fromkeys(range(4), 0.99)
    found = said(
        run(tmp_path / "a", "fedavg", values, constant=LATE),
        run(tmp_path / "b", "cfl", values, weak, constant=LATE),
    )
    assert found["warnings"] == []


def test_what_the_data_warn_of_comes_first_and_once(tmp_path: Path) -> None:
    values = dict.fromkeys(range(4), 0.918)
    more = {
        "constant": LATE,
        "cautions": ["the inputs are not scaled: feature 'dist' is typically 1.46e+03"],
    }
    found = said(*(run(tmp_path / name, name, values, **more) for name in ("fedavg", "cfl")))
    assert (
        found["warnings"][0] == "The inputs are not scaled: feature 'dist' is typically 1.46e+03."
    )
    assert len(found["warnings"]) == 2


def test_old_records_say_nothing_about_a_constant(tmp_path: Path) -> None:
    values = dict.fromkeys(range(4), 0.1)
    found = said(*(write_old(tmp_path / name, name, values) for name in ("fedavg", "cfl")))
    assert (found["constant"], found["warnings"]) == ("", [])
    assert found["use"].startswith("Use fedavg for all clients")
    assert "Whether clients share test examples is not recorded" in found["noise"]


def write_old(folder: Path, method: str, values: dict[int, float]) -> Path:
    made = line(1, [sorted(values)])
    for client, entry in made["clients"].items():
        entry["accuracy"] = values[int(client)]
    return write(folder, [made], method, tests=[100] * len(values))


# ----------------------------------------------------------------------------------------------------
# The error rate of significant differences between two models that are equally good, over draws of their
# test sets.

DRAWS = 600


def answers(
    rng: np.random.Generator, shape: tuple[int, ...], right: float, kind: str
) -> tuple[np.ndarray, np.ndarray]:
    """Whether each answer of two models is right: with independent errors, or with errors that exclude each other."""
    place = rng.random(shape)
    other = 1 - place if kind == "opposite" else rng.random(shape)
    return place < right, other < right


@pytest.mark.parametrize("kind", ["independent", "opposite"])
@pytest.mark.parametrize("right", [0.5, 0.9])
@pytest.mark.parametrize(
    ("clients", "tests", "shared"),
    [(1, 24, False), (1, 100, False), (10, 30, True), (10, 30, False)],
)
def test_equal_models_differ_beyond_noise_in_at_most_a_twentieth_of_draws(
    kind: str, right: float, clients: int, tests: int, shared: bool, tmp_path: Path
) -> None:
    facts = {"tests": [tests] * clients, "testers": [float(clients if shared else 1)] * clients}
    folders = [
        run(tmp_path / name, name, dict.fromkeys(range(clients), right), **facts)
        for name in ("fedavg", "cfl")
    ]
    (found,) = contests(map(read, folders))
    rng = np.random.default_rng(1)
    beyond = 0
    for _ in range(DRAWS):
        shape = (1, tests) if shared else (clients, tests)
        mine, theirs = (one.mean(1) for one in answers(rng, shape, right, kind))
        rows = {
            client: (float(mine[client % len(mine)]), float(theirs[client % len(mine)]))
            for client in range(clients)
        }
        by = sum(a - b for a, b in rows.values()) / clients
        beyond += abs(by) > found.noise_of_shares(rows)
    assert beyond / DRAWS <= 0.05 + 2 * math.sqrt(0.05 * 0.95 / DRAWS)


def test_the_noise_of_a_shared_test_set_is_that_of_one_client(tmp_path: Path) -> None:
    """Ten clients with the same 30 test examples and the same two models say no more than one."""
    values = dict.fromkeys(range(10), 0.6)
    facts = {"tests": [30] * 10, "testers": [10.0] * 10}
    (found,) = contests(
        read(run(tmp_path / name, name, values, **facts)) for name in ("fedavg", "cfl")
    )
    rows = dict.fromkeys(range(10), (0.6, 0.5))
    assert found.noise_of_shares(rows) == pytest.approx(found.noise_of_shares({0: (0.6, 0.5)}))


def test_the_interval_over_clients_is_no_noise_where_they_share_their_test_examples(
    tmp_path: Path,
) -> None:
    """The same difference at all clients has no spread, and may still be that of one test set."""
    facts = {"testers": [4.0] * 4, "metric": "AUROC"}
    folders = [
        run(tmp_path / n, n, dict.fromkeys(range(4), v), **facts)
        for n, v in (("fedavg", 0.7), ("cfl", 0.71))
    ]
    (compared,) = contests(map(read, folders))
    assert recommend(compared).reason == "not known"


# ----------------------------------------------------------------------------------------------------
# Real runs: the records have what the verdict needs.


def test_a_run_records_what_its_verdict_needs(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    shared = rng.normal(size=(30, 3)).astype(np.float32), rng.integers(0, 2, 30)
    clients = {
        name: ClientData(
            train=whole(*_tensors(rng.normal(size=(20, 3)), np.array([0] * 15 + [1] * 5))),
            validation=whole(*_tensors(np.zeros((0, 3)), np.zeros(0))),
            test=whole(*_tensors(*shared)),
        )
        for name in ("north", "south", "west")
    }
    world = World(clients=clients, model=lambda: __import__("torch").nn.Linear(3, 2))
    assert set(times_tested(world).values()) == {3.0}
    runs = coterie.begin(
        world, tmp_path / "runs", ["fedavg", "independent"], rounds=1, workers=1
    ).finish()
    found = said(*(one.folder for one in runs))
    share = float((shared[1] == 0).mean())
    assert (
        found["constant"]
        == f"Always predicting class 0 has a mean accuracy of {share:.3f} over 3 clients."
    )
    assert "a test example that several of them have counts once" in found["noise"]


def _tensors(inputs: np.ndarray, targets: np.ndarray) -> tuple[Any, Any]:
    import torch

    return torch.tensor(inputs, dtype=torch.float32), torch.tensor(targets, dtype=torch.int64)


def test_the_constant_of_a_pooled_metric_is_pooled(tmp_path: Path) -> None:
    """R2 of always predicting the training mean, over all test rows together: 0 if these have the same mean."""
    rng = np.random.default_rng(0)
    clients = []
    for place in (-2.0, 0.0, 2.0):
        targets = place + rng.normal(size=40)
        clients.append((rng.normal(size=(40, 2)).astype("f"), targets.astype("f")))
    objective = coterie.Objective(
        loss=coterie.REGRESSION.loss, metrics=["R2Score"], combine=coterie.REGRESSION.combine
    )
    world = coterie.from_lists(clients, model="linear", objective=objective)
    runs = coterie.begin(
        world, tmp_path / "runs", ["fedavg", "independent"], rounds=2, workers=1
    ).finish()
    tests = [data.test.targets.flatten().double() for data in world.clients.values()]
    mean = np.concatenate(
        [data.train.targets.flatten().numpy() for data in world.clients.values()]
    ).mean()
    rows = np.concatenate([one.numpy() for one in tests])
    score = 1 - np.square(rows - mean).sum() / np.square(rows - rows.mean()).sum()
    found = said(*(one.folder for one in runs))
    assert found["constant"].startswith("Always predicting the mean of the training targets")
    assert (
        found["constant"].endswith(f"R2Score of {score:.3f} over 3 clients.") or abs(score) < 1e-3
    )
