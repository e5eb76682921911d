"""R2 and the root mean squared error of clients with few test rows: of all their rows together, by the definition."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.stats
import torch

import coterie
from coterie.contrib.tracking.metrics import Metrics
from coterie.data.objective import METRICS, REGRESSION, Objective, Tally, mean_output, squared_error
from coterie.pooling import flat, parted, pooled, sound
from coterie.records.record import Record
from coterie.records.shown import mean_of, spread
from coterie.report.page import document
from coterie.report.ranking import contests
from coterie.report.trials import read


def by_definition(outputs: np.ndarray, targets: np.ndarray) -> float:
    """R2 around the mean of these targets, the mean over the columns ``(n, m)`` whose targets differ."""
    columns = [
        1 - ((true - guess) ** 2).sum() / ((true - true.mean()) ** 2).sum()
        for true, guess in zip(targets.T, outputs.T, strict=True)
        if len(set(true)) > 1
    ]
    return float(np.mean(columns)) if columns else math.nan


def sums_of(outputs: np.ndarray, targets: np.ndarray) -> dict[str, dict[str, list[float]]]:
    """The sums that a client with these test rows has of R2 and of the root mean squared error."""
    objective = Objective(
        loss=squared_error, metrics=("R2Score", "RootMeanSquaredError"), combine=mean_output
    )
    tally = Tally(objective)
    tally.add(torch.from_numpy(outputs), torch.from_numpy(targets))
    return {
        name: dict(sums) for name, sums in parted(objective.error_sums(tally.result()))[1].items()
    }


@pytest.mark.parametrize("outputs", [1, 3])
@pytest.mark.parametrize("sizes", [(1, 1, 1, 2), (2, 7, 30), (1,), (5, 1, 1, 400)])
@pytest.mark.parametrize("offset", [0.0, 1e6])
def test_the_pooled_value_is_that_of_all_rows(
    outputs: int, sizes: tuple[int, ...], offset: float
) -> None:
    rng = np.random.default_rng(sum(sizes))
    clients = [
        (rng.normal(size=(n, outputs)) + offset, rng.normal(size=(n, outputs)) + offset)
        for n in sizes
    ]
    each = [sums_of(*client) for client in clients]
    guessed, true = (np.concatenate(part) for part in zip(*clients, strict=True))
    wanted = by_definition(guessed, true)
    assert pooled(one["R2Score"] for one in each) == pytest.approx(wanted, rel=1e-6, nan_ok=True)
    root = np.sqrt(np.mean((guessed - true) ** 2))
    assert pooled(one["RootMeanSquaredError"] for one in each) == pytest.approx(root, rel=1e-6)


def test_targets_that_are_equal_have_no_r2() -> None:
    """The rounded mean of equal targets is not always this number."""
    same = np.full((7, 1), 0.1)
    guesses = same + np.arange(7)[:, None]
    assert math.isnan(METRICS["R2Score"].of(torch.from_numpy(guesses), torch.from_numpy(same))[""])
    one, other = sums_of(guesses, same)["R2Score"], sums_of(guesses[:2], same[:2])["R2Score"]
    assert math.isnan(pooled([one, other]))
    differing = sums_of(guesses[:2], np.full((2, 1), 0.3))["R2Score"]
    true = np.concatenate([same, np.full((2, 1), 0.3)])
    assert pooled([one, differing]) == pytest.approx(
        by_definition(np.concatenate([guesses, guesses[:2]]), true)
    )
    mixed = np.column_stack([same, np.arange(7.0)])  # an output without R2 does not count
    both = np.column_stack([guesses, np.arange(7.0) + 0.5])
    assert METRICS["R2Score"].of(torch.from_numpy(both), torch.from_numpy(mixed))[
        ""
    ] == pytest.approx(by_definition(both, mixed))


def test_a_client_that_has_diverged_does_not_count_and_none_has_no_value() -> None:
    good = sums_of(np.zeros((4, 1)), np.arange(4.0)[:, None])["R2Score"]
    assert pooled([good, {**good, "errors": [math.nan]}, {**good, "errors": [math.inf]}]) == pooled(
        [good]
    )
    assert math.isnan(pooled([]))


def test_sums_are_numbers_by_key_and_back() -> None:
    sums = sums_of(np.zeros((4, 2)), np.ones((4, 2)))
    keys = {key: value for name, each in sums.items() for key, value in flat(name, each).items()}
    assert parted({"loss": 1.0, "a|b": 2.0, **keys}) == ({"loss": 1.0, "a|b": 2.0}, sums)
    assert json.loads(json.dumps(sums)) == sums


@pytest.mark.parametrize(
    "change",
    [
        {"rows": [0]},
        {"rows": [1e300]},
        {"rows": [4, 4]},
        {"errors": [-1.0]},
        {"errors": []},
        {"errors": [1.0, 1.0]},
        {"squares": ["1"]},
        {"squares": [True]},
        {"means": 1.0},
        {"other": [1.0]},
    ],
)
def test_what_no_client_can_have_measured_is_not_taken(change: dict[str, object]) -> None:
    sums = {"rows": [4.0], "errors": [2.0], "means": [-1.0], "squares": [3.0]}
    assert sound(sums)
    assert sound({**sums, "errors": [None]})  # NaN in a record
    assert not sound({**sums, **change})
    assert not sound({name: value for name, value in sums.items() if name != "means"})
    assert not sound([])


# ----------------------------------------------------------------------------------------------------
# Runs over many clients with two test rows each.


def pupils(seed: int) -> coterie.World:
    """Thirty schools of 20 pupils, of whom two are for tests: the mean of their R2 is far below 0 for any model."""
    rng = np.random.default_rng(seed)
    school, x = np.repeat(np.arange(30), 20), rng.normal(size=(600, 3))
    score = x @ [0.6, -0.4, 0.0] + 0.3 * rng.normal(size=30)[school] + 0.5 * rng.normal(size=600)
    table = {"school": school, **dict(zip("abc", x.T, strict=True)), "score": score}
    training = coterie.Training(lr=0.05, epochs=2, batch=10)
    return coterie.from_frame(table, "school", "score", training=training, seed=seed)


def r2_of(seed: int) -> coterie.World:
    world = pupils(seed)
    objective = Objective(
        loss=squared_error, metrics=("R2Score", "RootMeanSquaredError"), combine=mean_output
    )
    return coterie.World(
        clients=world.clients,
        model=world.model,
        training=world.training,
        objective=objective,
        about=world.about,
    )


def errors_of(world: coterie.World, done: coterie.Round) -> tuple[np.ndarray, np.ndarray]:
    """The outputs and targets of all clients' test rows together."""
    guessed, true = [], []
    for data in world.clients.values():
        x, y = data.test.batch(slice(None))
        guessed.append(done.model(data.name)(x).detach().numpy())
        true.append(y.numpy())
    return np.concatenate(guessed), np.concatenate(true)


@pytest.mark.parametrize("workers", [1, 2])
def test_the_mean_of_a_round_is_that_of_all_test_rows(workers: int) -> None:
    world = r2_of(0)
    *_, done = coterie.run("fedavg", world, rounds=4, workers=workers)
    guessed, true = errors_of(world, done)
    assert (
        done.mean() == done.mean("R2Score") == pytest.approx(by_definition(guessed, true), rel=1e-4)
    )
    assert done.mean("RootMeanSquaredError") == pytest.approx(
        np.sqrt(np.mean((guessed - true) ** 2)), rel=1e-4
    )
    assert done.scores is not None
    assert (
        np.mean([score["R2Score"] for score in done.scores.values()])
        < -1
        < 0.2
        < (done.mean() or 0)
    )
    assert set(done.scores[0]) == {"loss", "R2Score", "RootMeanSquaredError"}


def test_a_table_of_numbers_is_judged_by_a_metric_that_two_rows_have() -> None:
    assert (REGRESSION.main, REGRESSION.better) == ("MeanAbsoluteError", "smaller")
    world = pupils(0)
    *_, done = coterie.run("fedavg", world, rounds=4, workers=1)
    guessed, true = errors_of(world, done)
    assert done.mean() == pytest.approx(
        np.abs(guessed - true).mean(), rel=1e-4
    )  # all clients have two rows
    assert done.mean("R2Score") == pytest.approx(by_definition(guessed, true), rel=1e-4)


@pytest.mark.slow
def test_every_reader_of_a_record_shows_the_pooled_value(tmp_path: Path) -> None:
    runs = coterie.begin(
        r2_of, tmp_path / "runs", ["fedavg", "independent"], rounds=3, workers=1
    ).finish()
    world = r2_of(0)
    *_, done = coterie.run("fedavg", world, rounds=3, workers=1)
    value = by_definition(*errors_of(world, done))
    folder = runs[0].folder
    description, lines = Record(folder).shown()
    near = pytest.approx(value, rel=1e-4)
    assert spread(lines[-1])["mean"] == near
    assert mean_of(lines[-1], lines[-1]["groups"][0]) == near
    said = coterie.summary(folder)
    assert said["score"]["mean"] == said["R2Score"]["mean"] == near
    assert coterie.compare(folder)[0]["score"]["mean"] == near
    assert Metrics(description["world"]).of(lines[-1])["R2Score/mean"] == near
    assert f"R2Score {value:.3f}" in runs[0]._repr_html_()
    contest = contests(map(read, (one.folder for one in runs)))[0]
    of = contest.find("fedavg")
    assert of
    assert contest.mean_score(of) == near
    page = document([one.folder for one in runs])
    mine = next(one for one in page["runs"] if one["method"] == "fedavg")
    assert mine["pooled"]
    assert mine["nodes"][0]["score"] == near
    assert (
        mine["scores"]["pooled"]["R2Score"]["all"][3]
        == mine["scores"]["pooled"]["R2Score"]["0"][3]
        == near
    )
    table = page["verdicts"][0]["table"]
    assert table["means"][table["methods"].index("fedavg")] == near
    coterie.plot(folder, "score", tmp_path / "score.svg")


def test_noise_of_a_pooled_metric_is_that_of_its_pseudo_values(tmp_path: Path) -> None:
    (run,) = coterie.begin(r2_of, tmp_path / "run", "fedavg", rounds=2, workers=1).finish()
    found = read(run.folder)
    sums = dict(found.sums[2])
    worse = {client: {**each, "errors": [3 * each["errors"][0]]} for client, each in sums.items()}
    other = replace(found, sums={2: worse}, summary={**found.summary, "method": "independent"})
    (contest,) = contests([found, other])

    def difference(clients: Sequence[Any]) -> float:
        of, over = (pooled(each[client] for client in clients) for each in (sums, worse))
        return of - over

    everyone = list(sums)
    whole, n = difference(everyone), len(everyone)
    pseudo = [
        n * whole - (n - 1) * difference([c for c in everyone if c != left]) for left in everyone
    ]
    low, high = scipy.stats.t.interval(
        0.95, n - 1, loc=np.mean(pseudo), scale=scipy.stats.sem(pseudo)
    )
    gain = contest.mean_gain(*contest.methods)
    assert gain
    assert contest.methods[0].name == "fedavg"
    assert gain.improvement == pytest.approx(whole)
    assert (gain.noise, gain.sign) == (pytest.approx((high - low) / 2), 1)


def test_sums_from_a_node_are_checked() -> None:
    pytest.importorskip("flwr")
    from flwr.app import MetricRecord

    from coterie.engines.flower.messages import error_sums

    sums = sums_of(np.zeros((4, 1)), np.arange(4.0)[:, None])["R2Score"]
    sent = {"R2": 0.5, "num-examples": 4, **flat("R2", sums)}
    assert error_sums(MetricRecord(dict(sent)), ("R2Score", "R2")) == sums
    assert error_sums(MetricRecord({"R2": 0.5}), ("R2",)) == {}
    for key, value in (
        ("R2|rows/0", 0.0),
        ("R2|errors/0", -1.0),
        ("R2|errors/0", math.nan),
        ("R2|squares/0", 1e300),
    ):
        assert error_sums(MetricRecord({**sent, key: value}), ("R2",)) == {}
