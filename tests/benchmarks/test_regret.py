"""The study of regret: its worlds are what they say, a run gives a row, and the summary adds up."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from coterie.data.examples import Pool
from coterie.data.scenario import SCENARIOS
from coterie.engines import rounds
from coterie.methods import METHODS
from coterie.settings import build

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "benchmarks"), str(ROOT / "tools" / "docs")]

import regret_tables  # noqa: E402
from result_file import read_results  # noqa: E402
from study import regret, regret_summary  # noqa: E402
from study.frozen import frozen  # noqa: E402
from study.regret_summary import Worse  # noqa: E402
from study.run import followed  # noqa: E402

from coterie.contrib.bench.held_out import _bags, distinct_tests, same_sizes  # noqa: E402
from coterie.contrib.bench.kinds import WORLD_KINDS, clients, examples, needs_files, scenario, sizes  # noqa: E402

WORLDS = [(kind, size) for kind in WORLD_KINDS for size in sizes(kind)]

# -- worlds
# ---------------------------------------------------------------------------------------------------------------


def assert_holds_out(kind: str, size: str, folder: Path | None) -> None:
    """Validation data of 15 % of each client's examples, which are as many as the size says, and tests of others."""
    world, n = scenario(kind, size, 0.3).build(0, folder), examples(kind, size)
    own = list(world.clients.values())
    assert len(own) == clients(kind)
    assert world.attendance.silent == pytest.approx(0.7)
    held = np.array([len(data.train) + len(data.validation) for data in own])
    assert 0.8 * n <= held.mean() <= 1.25 * n
    assert all(abs(len(data.validation) - 0.15 * k) <= 1 for data, k in zip(own, held, strict=True))
    if (
        not {"quantity", "unequal", "dirichlet"} & set(kind.split("-"))
        or "alike" in WORLD_KINDS[kind][1]
    ):
        assert held.max() <= n
        assert held.min() >= 0.9 * n
    assert min(distinct_tests(world.clients)) >= 18
    if needs_files(kind) and kind != "writers":  # tests are upstream's
        return
    trained = np.concatenate([part.index for data in own for part in (data.train, data.validation)])
    assert len(trained) == len(np.unique(trained))
    before = own[0].train.inputs[trained]
    tested = np.concatenate([data.test.inputs[data.test.index.unique()] for data in own])
    seen = {image.tobytes() for image in before.numpy()}
    assert not [image for image in tested if image.tobytes() in seen]


@pytest.mark.parametrize(("kind", "size"), [world for world in WORLDS if not needs_files(world[0])])
def test_clients_hold_out_validation_data(kind: str, size: str) -> None:
    assert_holds_out(kind, size, None)


@pytest.mark.parametrize(("kind", "size"), [world for world in WORLDS if needs_files(world[0])])
def test_clients_of_files_hold_out_validation_data(kind: str, size: str, data_folder: Path) -> None:
    assert_holds_out(kind, size, data_folder)


def classes(split: Any) -> np.ndarray:
    return np.bincount(split.targets.numpy(), minlength=10) / len(split)


def test_every_client_of_shards_has_two_classes_at_most() -> None:
    for size in sizes("shards"):
        for data in scenario("shards", size).build(3).clients.values():
            assert len(set(data.train.targets.tolist())) <= 2


@pytest.mark.parametrize("kind", ["dirichlet-0.1", "dirichlet-5", "shards", "classes-5"])
def test_tests_have_the_classes_of_their_client(kind: str) -> None:
    for data in scenario(kind, "few").build(0).clients.values():
        whole = np.concatenate([data.train.targets, data.validation.targets])
        shares = np.bincount(whole, minlength=10) / len(whole)
        assert np.abs(classes(data.test) - shares).max() < 0.005


def test_less_concentration_means_fewer_classes() -> None:
    labels, found = np.arange(1000) % 10, {}
    for alpha in (0.1, 5.0):
        parts = same_sizes(labels, 20, 40, alpha, np.random.default_rng(0))
        assert [len(part) for part in parts] == [40] * 20
        assert len(np.unique(np.concatenate(parts))) == 800
        found[alpha] = np.mean([np.bincount(labels[part]).max() / 40 for part in parts])
    assert found[0.1] > 0.5
    assert found[5.0] < 0.35


def test_all_examples_can_be_dealt() -> None:
    parts = same_sizes(np.arange(30) % 3, 5, 6, 0.01, np.random.default_rng(1))
    assert sorted(np.concatenate(parts).tolist()) == list(range(30))


def test_bags_count_words_and_tell_topics() -> None:
    pool = Pool(
        torch.tensor([[0, 2, 2], [3, 1, 4]]),
        torch.tensor([[2, 2, 3], [1, 4, 0]]),
        {"topic": torch.tensor([3, 1])},
    )
    found = _bags(pool, 5)
    assert found.inputs.tolist() == [[0, 0, 2, 0, 0], [0, 0, 0, 1, 1]]
    assert found.targets.tolist() == [3, 1]


def test_topics_are_learnt_from_bags(data_folder: Path) -> None:
    world = scenario("news-classes-2", "few").build(0, data_folder)
    assert world.truth is not None
    assert len(world.truth) == 2
    *_, last = rounds.rounds(METHODS["independent"](), world, rounds=10, workers=1, eval_every=10)
    assert (last.mean("accuracy") or 0.0) > 0.6  # two topics are 0.5 by chance


# -- runs
# -----------------------------------------------------------------------------------------------------------------


def test_settings_are_those_of_methods() -> None:
    for method in regret.known(list(regret.SETTINGS["frozen"])):
        build(METHODS[method], frozen(regret.SETTINGS, "iid", method))
    elsewhere = {
        "hcct-e",
        "flsc",
        "race",
        "split-half-sums",
        "split-half-private",
        "feddrift",
        "cfl-gp",
        "clove",
        # They came after the study.
        "fedopt",
        "fedprox",
        "fedbn",
        "scaffold",
        "fedamp",
        "pfedgraph",
        "timed",
    }
    assert set(METHODS) - elsewhere <= set(regret.SETTINGS["frozen"])


def test_runs_go_on_where_they_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(regret.SETTINGS, "rounds", 2)
    path = tmp_path / "regret.jsonl.gz"
    call = [
        "--out",
        str(path),
        "--only",
        "adversaries,iid-60",
        "--methods",
        "fedavg,hcct,nonsense",
        "--seeds",
        "7",
    ]
    assert regret.main([*call, "--participation", "1.0", "--part", "0/2"]) == 0
    assert capsys.readouterr().err == "left out, because Coterie does not have them: nonsense\n"
    first = path.read_bytes()
    assert regret.main([*call, "--participation", "1.0"]) == 0
    assert path.read_bytes().startswith(first)
    rows = read_results(path)
    assert {(row["kind"], row["size"], row["method"]) for row in rows} == {
        (kind, size, method)
        for kind, size in (("adversaries", "many"), ("adversaries", "few"), ("iid-60", "tiny"))
        for method in ("fedavg", "hcct")
    }
    assert len(rows) == 6
    for row in rows:
        known = [value for value in row["accuracies"] if value is not None]
        assert len(known) == {"adversaries": 18, "iid-60": 60}[row["kind"]]
        assert row["accuracy"] == pytest.approx(np.mean(known))
        assert len(row["tests"]) == len(row["accuracies"])
        assert row["settings"] == {}
        assert row["bytes"] > 0


def test_what_a_method_chose_is_kept() -> None:
    """Of a real run, so that the words of notes cannot change unseen."""
    world = replace(
        SCENARIOS["digits/label-permutation"], clients=8, groups=2, train=0.7, validation=0.1
    ).build(0)
    _, _, notes = followed(build(METHODS["auto"], {"patience": 4}), world, 0, 10)
    ended = ["local models (independent)", "one model (fedavg)"]
    assert sorted(regret.chosen(notes)) == [
        *(["drop", arm] for arm in ended),
        ["lead", "groups (split-half)"],
    ]


# -- summary
# --------------------------------------------------------------------------------------------------------------


def row(method: str, seed: int, accuracies: list[float | None], **more: Any) -> dict[str, Any]:
    known = [value for value in accuracies if value is not None]
    usual = {
        "kind": "swaps-4",
        "size": "many",
        "participation": 1.0,
        "settings": {},
        "ari": 0.5,
        "bytes": 3e6,
        "chosen": [],
    }
    tests = {"tests": [100] * len(accuracies), "accuracy": sum(known) / len(known)}
    return {**usual, **tests, "method": method, "seed": seed, "accuracies": accuracies, **more}


ROWS = [
    row(
        "auto",
        0,
        [0.5, 0.75, None],
        bytes=9e6,
        chosen=[["lead", "groups"], ["drop", "one model"], ["lead", "all"]],
    ),
    row("auto", 1, [0.75, 0.75, None], bytes=9e6),
    row("fedavg", 0, [0.75, 0.75, None], ari=0.0),
    row("fedavg", 1, [1.0, 0.5, None], ari=0.0),
    row("independent", 0, [0.25, 0.75, None], bytes=0),
    row("independent", 1, [0.5, 0.75, None], bytes=0),
    row("hcct", 0, [1.0, 1.0, None]),  # with one seed alone
]


def test_regret_is_what_a_method_lacks_to_the_best_with_the_same_seeds() -> None:
    (runs,) = regret_summary.by_world(ROWS).values()
    # It lacks 0.125 and 0 to fedavg, which is the best in both; and in the other seed than the
    # first no one is better.
    assert regret_summary.regret(runs, "auto") == regret_summary.Regret(
        "fedavg", 0.0625, pytest.approx(0.0625), 0.0
    )
    assert regret_summary.regret(runs, "fedavg") == regret_summary.Regret("fedavg", 0.0, 0.0, 0.0)
    assert regret_summary.regret(runs, "hcct") == regret_summary.Regret("hcct", 0.0, None, None)
    assert regret_summary.regret(runs, "nonsense") is None


def test_luck_does_not_raise_what_is_crossed() -> None:
    runs = {
        "auto": {seed: {"accuracy": 0.5} for seed in (0, 1)},
        "lucky": {0: {"accuracy": 0.875}, 1: {"accuracy": 0.25}},
        "better": {0: {"accuracy": 0.625}, 1: {"accuracy": 0.75}},
    }
    # Lacks: lucky 0.375 and -0.25, better 0.125 and 0.25. By seed 1 better is the best, by seed 0
    #     lucky is.
    assert regret_summary.regret(runs, "auto") == regret_summary.Regret(
        "better", 0.1875, 0.0625, -0.0625
    )


def test_who_is_worse_off() -> None:
    (runs,) = regret_summary.by_world(ROWS).values()
    # Client 0 lacks 0.25 twice; 0.75 against 0.5 on 100 examples is 3.8 standard deviations. Client
    # 1 lacks 0 and -0.25.
    assert regret_summary.worse(runs, "auto", "fedavg") == Worse(0.5, 0.5, 0.5, 0.5)
    assert regret_summary.worse(runs, "auto", "independent") == Worse(0.0, 0.0, 0.0, 0.0)
    assert regret_summary.worse(runs, "auto", "hcct") is None


def test_a_difference_of_few_examples_may_be_chance() -> None:
    own, other = np.array([[0.5, 0.5]]), np.array([[0.75, 0.75]])
    # The standard deviation of the difference is (0.4375 / n)^1/2: 0.25 is 1.93 of them for n = 26,
    # and 1.96 for 27.
    assert regret_summary.surely_lower(own, other, np.array([[26, 27]])).tolist() == [[False, True]]
    # Mean 0.02 and standard deviation 0.01 of 3 seeds: t = 3.46 is below 4.30, and 5.2 of mean 0.03
    # is not.
    lacks = np.array([[0.01, 0.02], [0.02, 0.03], [0.03, 0.04]])
    assert regret_summary.lower_over_seeds(1 - lacks, np.ones((3, 2))).tolist() == [False, True]


def test_tables_say_what_was_measured() -> None:
    page = regret_summary.page(ROWS, "auto")
    assert "No setting has runs of all methods with the same seeds." in page
    assert "| `swaps-4`, many | 0.688 | 0.750 | 0.562 | **1.000** |" in page
    line = "| `swaps-4`, many | `fedavg` | 0.0625 ± 0.0625 | 0.0000 | 0.50, 0.50, 0.50 | 0.00, 0.00, 0.00 | 3.00 | 0.50 | – |"
    assert line in page
    totals = regret_summary.totals(ROWS[:-1])
    assert totals.startswith("1 settings, 2 seeds:")
    assert (
        "| `auto` | 0.0625 | 0.0000 | 0.062 (`swaps-4`, many) | 0 of 1 | 0.688 | 0.50, 0.50 | 0.00, 0.00 | 3.00 |"
        in totals
    )
    assert totals.index("`fedavg`") < totals.index("`auto`") < totals.index("`independent`")


@pytest.fixture
def measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Puts rows in the place of those that were measured."""
    path = tmp_path / "regret.jsonl"
    monkeypatch.setattr(regret_tables, "REGRET", path)
    return lambda *rows: path.write_text("".join(f"{regret.json.dumps(one)}\n" for one in rows))


def test_tables_of_documents_are_of_those_who_answer(measured: Callable[..., None]) -> None:
    assert "Not measured yet" in regret_tables.regret("totals", "all") + regret_tables.choices()
    silent = row("fedavg", 0, [0.25], participation=0.3)
    measured(silent, *ROWS, row("fedavg", 5, [0.125], settings={"fraction": 0.5}))
    assert "| `swaps-4`, many, 30% answer | **0.250** |" in regret_tables.regret(
        "accuracies", "three-in-ten"
    )
    assert "| `swaps-4`, many | 0.750 | 0.562 | **1.000** | 0.688 |" in regret_tables.regret(
        "accuracies", "all", "many"
    )
    assert "Not measured yet" in regret_tables.regret("accuracies", "all", "few")
    assert "Not measured yet" in regret_tables.regret("accuracies", "all", "files")
    measured(*ROWS, row("fedavg", 0, [0.375], kind="writers"))
    assert "writers" not in regret_tables.regret("accuracies", "all")
    assert "| `writers`, many | **0.375** |" in regret_tables.regret("accuracies", "all", "files")
    measured(*ROWS)
    assert "0.0625 ± 0.0625" in regret_tables.regret("judged", "all")
    assert (
        "| `swaps-4`, many | all: 1, one model (fedavg): 1 | none: 1, one model: 1 |"
        in regret_tables.choices()
    )
    with pytest.raises(KeyError):
        regret_tables.regret("nonsense", "all")


def test_the_table_of_gaps_has_the_least_mean_gap_first(measured: Callable[..., None]) -> None:
    measured()
    assert "Not measured yet" in regret_tables.gaps()
    measured(*ROWS)
    _, _, *lines = regret_tables.gaps().splitlines()
    assert lines[0] == "| `fedavg` | 0.000 | 1 of 1 | 0.000 (`swaps-4`, many) |"
    assert "| `auto` | 0.062 | 0 of 1 | 0.062 (`swaps-4`, many) |" in lines
