"""`make bench` at tiny sizes: its code works, all who are compared do the same work, and the tables say what was measured."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from coterie.models.layout import Layout
from coterie.randomness import seeded
from coterie.records.record import Record
from coterie.report.page import document
from coterie.report.summary import summary

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "benchmarks"), str(ROOT / "tools" / "docs")]

import bench  # noqa: E402
import report_page  # noqa: E402
import speed_tables  # noqa: E402
from speed import clock, experiments, flops, flower, machine, pfl_research, scaling  # noqa: E402
from speed.ours import Coterie  # noqa: E402
from speed.plain import PlainLoop  # noqa: E402
from speed.workloads import Workload, workloads  # noqa: E402

from alone import alone  # noqa: E402

SMALL = {work.key: work for work in workloads("small")}


@pytest.fixture(autouse=True)
def threads() -> Any:
    """Plain loops set PyTorch's threads."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


# -- what is measured
# -----------------------------------------------------------------------------------------------------


def test_everyone_takes_a_turn_in_every_repetition_and_the_first_is_kept_apart() -> None:
    turns: list[str] = []

    def one(name: str) -> float:
        turns.append(name)
        return float(len(turns))

    found = clock.interleaved({name: (lambda name=name: one(name)) for name in "abc"}, 3)
    assert "".join(turns) == "abc" + "abc" + "bca" + "cab"
    assert found["a"] == {
        "first": 1.0,
        "values": [4.0, 9.0, 11.0],
        "median": 9.0,
        "min": 4.0,
        "max": 11.0,
    }


def test_what_is_over_in_no_time_is_called_more_often() -> None:
    values = iter([10.0, 1.0, 2.0, 6.0, 4.0])
    found = clock.interleaved({"a": lambda: next(values)}, 2, calls=2)
    assert found["a"] == {
        "first": 10.0,
        "values": [1.5, 5.0],
        "median": 3.25,
        "min": 1.5,
        "max": 5.0,
    }


@pytest.mark.parametrize("dataloader", [True, False])
@pytest.mark.parametrize("key", ["a", "b", "c100", "d"])
@seeded(0)
def test_a_round_of_the_plain_loop_is_a_round_of_coterie(key: str, dataloader: bool) -> None:
    """With one batch per epoch their order cannot matter: from the same model both come to the same one."""
    work = SMALL[key]
    work = replace(work, clients=work.asked, batch=work.examples, epochs=2)
    ours, plain = Coterie(work, workers=1), PlainLoop(work, threads=1, dataloader=dataloader)
    layout = Layout(plain.model)
    before = next(ours.rounds).assignment.models[0].clone()
    layout.load(plain.model, before)
    after = next(ours.rounds).assignment.models[0]
    ours.close()
    plain.seconds()
    moved = (after - before).abs().max()
    assert (layout.row(plain.model) - after).abs().max() < 0.01 * moved


def test_operations_are_counted_as_by_hand() -> None:
    work = SMALL["c100"]
    # Forwards, backwards to the weights, and backwards to the hidden layer; one multiplication and
    # one addition each.
    of_one = 2 * (2 * (784 * 64 + 64 * 10) + 64 * 10)
    assert flops.of_a_round(work) == of_one * work.examples * work.asked
    lstm = SMALL["d"]
    weights, last = 4 * 256 * (128 + 256) + 4 * 256 * (256 + 256), 256 * lstm.classes
    tokens = lstm.shape[0] * lstm.examples * lstm.asked
    assert (
        0.9 < flops.of_a_round(lstm) / (6 * (weights + last) * tokens) < 1
    )  # no gradient before the first words


def test_full_workloads_are_the_ones_the_titles_tell() -> None:
    full = {work.key: work for work in workloads("full")}
    assert [full[key].description()["parameters"] for key in ("a", "b", "c100", "d")] == [
        1_663_370,
        130_826,
        50_890,
        4_771_600,
    ]
    assert set(full) == set(SMALL) == set(speed_tables.TRAINING)
    assert all(f"{work.clients:,} clients" in work.title for work in full.values())
    assert all(f"batch {work.batch}" in work.title for work in full.values())


@pytest.mark.slow
@pytest.mark.skipif(not flower.installed(), reason="Flower's simulation is not installed")
def test_flowers_simulation_goes_on_when_it_is_told_to() -> None:
    with alone():
        one = flower.Flower(SMALL["c100"], workers=1, rounds=2)
        try:
            assert all(0 < one.seconds() < flower.START for _ in range(2))
        finally:
            one.close()


# -- from the command to the tables
# ---------------------------------------------------------------------------------------


@seeded(0)
def test_a_part_is_measured_and_kept_with_the_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(flower, "installed", lambda: False)
    monkeypatch.setattr(
        pfl_research, "installed", lambda: False
    )  # it draws from NumPy's global generator
    assert (
        bench.main(
            ["--scale", "small", "--only", "a,g", "--repetitions", "1", "--out", str(tmp_path)]
        )
        == 0
    )
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.json", "g.json", "tables.md"]
    kept = json.loads((tmp_path / "a.json").read_text())
    assert kept["machine"]["cores"] >= 1
    assert torch.__version__.startswith(
        kept["versions"]["torch"]
    )  # of a CUDA build, the package has the shorter one
    one = kept["measured"]
    ours = {f"Coterie {precision}" for precision in machine.precisions("cpu")}
    assert "Coterie fp32" in ours
    assert {*ours, "plain loop", "plain loop, no DataLoader"} <= set(one["seconds"])
    for row in [*one["seconds"].values(), *one["train_seconds"].values(), *one["gemm"].values()]:
        assert len(row["values"]) == 1
        assert row["min"] > 0
    ours = (
        one["train_seconds"]["Coterie fp32"]["values"][0],
        one["seconds"]["Coterie fp32"]["values"][0],
    )
    assert ours[0] < ours[1]
    assert one["left_out"] == [flower.ABSENT]
    printed = capsys.readouterr().out
    assert flower.ABSENT in printed
    assert "says nothing of speed" in printed
    assert list(json.loads((tmp_path / "g.json").read_text())["measured"]) == [
        "workers",
        "clients",
        "parameters",
    ]


@pytest.mark.slow
def test_clustering_is_measured_by_its_own_script(tmp_path: Path) -> None:
    assert bench.main(["--scale", "small", "--only", "e", "--out", str(tmp_path)]) == 0
    assert json.loads((tmp_path / "clustering.json").read_text())["scale"] == "small"
    assert "HCCT's merge from its definition" in (tmp_path / "tables.md").read_text()


@pytest.mark.slow
def test_nodes_and_many_clients_are_measured_by_their_own_scripts(tmp_path: Path) -> None:
    pytest.importorskip("ray", reason="Ray is not installed")
    with alone():
        assert bench.main(["--scale", "small", "--only", "i,j", "--out", str(tmp_path)]) == 0
    found = json.loads((tmp_path / "ray.json").read_text())
    assert {row["way"] for row in found["rows"]} > {
        "in process, 2 workers",
        "2 nodes with one core",
    }
    assert all(0 < row["least"] <= row["seconds"] <= row["most"] for row in found["rows"])
    many = json.loads((tmp_path / "scale.json").read_text())
    assert (many["scale"], len(many["rows"]), len(many["memory"])) == ("small", 2, 1)


def test_tiny_sizes_are_not_kept_as_measurements(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        bench.main(["--scale", "small", "--only", "a"])
    assert "--scale small needs --out" in capsys.readouterr().err


def test_times_have_three_digits() -> None:
    assert [speed_tables.seconds(value) for value in (0.01234, 1.0, 123.4, 999.6, 1234.5)] == [
        "0.0123 s",
        "1.00 s",
        "123 s",
        "1,000 s",
        "1,234 s",
    ]


@pytest.mark.parametrize(
    "wrong", [["--only", "a,x"], ["--only", "ab"], ["--repetitions", "0"], ["--device", "cuda"]]
)
def test_wrong_calls_are_told_in_a_sentence(
    wrong: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        bench.main([*wrong, "--out", str(tmp_path)])
    assert wrong[0] in capsys.readouterr().err.splitlines()[-1]


@pytest.mark.slow
def test_an_experiments_time_is_told_in_parts(
    data_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COTERIE_DATA", str(data_folder))
    found = experiments.measure("small")
    assert len(found["rows"]) == 2
    for row in found["rows"]:
        parts = [row[name]["median"] for name in ("train", "evaluate", "server", "other")]
        assert min(parts) > 0
        assert sum(parts) == pytest.approx(row["wall"]["median"], rel=1e-4)  # six digits are kept


def test_without_data_the_experiment_on_mnist_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COTERIE_DATA", raising=False)
    times = {"wall": 2.0, "train": 1.0, "evaluate": 0.5, "server": 0.1, "other": 0.4}
    monkeypatch.setattr(experiments, "_run", lambda options: times)
    found = experiments.measure("full")
    assert [row["command"] for row in found["rows"]] == ["coterie run"]
    assert found["left_out"] == [experiments.ABSENT]


def test_an_experiment_that_fails_is_no_measurement() -> None:
    with pytest.raises(RuntimeError, match="nothing-there"):
        experiments._run(("nothing-there.toml",))


def test_workers_are_doubled_up_to_all_cores() -> None:
    assert [scaling._up_to(most) for most in (1, 2, 6, 8)] == [
        [1],
        [1, 2],
        [1, 2, 4, 6],
        [1, 2, 4, 8],
    ]


def row(**seconds: float) -> dict[str, Any]:
    return {
        name.replace("_", " "): {"first": 9.0, **clock.spread([value])}
        for name, value in seconds.items()
    }


def test_tables_compare_with_the_fastest_plain_loop(tmp_path: Path) -> None:
    assert speed_tables.overview(tmp_path) == speed_tables.machine(tmp_path) == speed_tables.NONE
    measured = {
        "workload": {"title": "a net"},
        "flops": 4e9,
        "left_out": ["Somebody is missing."],
        "seconds": row(
            Coterie_fp32=2.5,
            Coterie_bf16=1.25,
            plain_loop=10.0,
            plain_loop_by_index=5.0,
            Flower_simulation=50.0,
        ),
        "train_seconds": row(Coterie_fp32=2.0),
        "gemm": row(fp32=8e9),
    }
    on = {"system": "Linux", "processor": "one", "cores": 2, "bf16": [], "busy": 0.0}
    found = {"scale": "full", "machine": on, "versions": {"torch": "2"}, "measured": measured}
    (tmp_path / "a.json").write_text(json.dumps(found))
    *_, line = speed_tables.overview(tmp_path).splitlines()
    assert (
        line == "| a net | 2.50 s | 1.25 s (0.50 ×) | 5.00 s (2.00 ×) | 50.0 s (20 ×) | - | 25% |"
    )
    assert (
        "| Flower simulation | 50.0 s | 50.0 s to 50.0 s | 20 × | 9.00 s |"
        in speed_tables.training(tmp_path)
    )
    assert "Somebody is missing." in speed_tables.training(tmp_path)
    assert "| a net | fp32 | 4.0 | 2.0 | 8.0 | 25% |" in speed_tables.flops(tmp_path)
    assert (
        speed_tables.machine(tmp_path) == "On Linux, one, 2 cores, no bf16 instructions; torch 2.\n"
    )
    (tmp_path / "a.json").write_text(json.dumps({**found, "machine": {**on, "busy": 0.5}}))
    assert "rough: before a part, others kept 50%" in speed_tables.machine(tmp_path)


def test_a_table_of_experiments_has_shares_of_the_wall_time(tmp_path: Path) -> None:
    spreads = {
        name: clock.spread([value])
        for name, value in {"wall": 10.0, "train": 5.0, "evaluate": 2.5}.items()
    }
    rows = [
        {
            "title": "demo",
            "command": "coterie run",
            **spreads,
            "server": clock.spread([0.5]),
            "other": clock.spread([2.0]),
        }
    ]
    (tmp_path / "f.json").write_text(json.dumps({"measured": {"rows": rows, "left_out": []}}))
    assert (
        "| demo | `coterie run` | 1 | 10.0 s | 50% | 25% | 5% | 20% |"
        in speed_tables.experiments(tmp_path)
    )


def test_a_scaling_table_is_held_against_its_first_row(tmp_path: Path) -> None:
    series = {"clients": {"title": "MLP", "seconds": row(**{"10": 0.5, "1000": 20.0})}}
    (tmp_path / "g.json").write_text(json.dumps({"measured": series}))
    assert "| 1,000 | 20.0 s | 20.0 s to 20.0 s | 40 × |" in speed_tables.scaling(tmp_path)


def test_a_table_of_clustering_has_sizes_memory_and_steps(tmp_path: Path) -> None:
    assert speed_tables.clustering(tmp_path) == speed_tables.NONE
    sizes = {
        "clients": 1000,
        "parameters": 20_000,
        "extra_bytes": 2_000_000,
        "steps": row(cfl=0.1, flhc=0.2, hcct=0.3),
    }
    other = {**sizes, **row(theirs=8.0, ours=2.0, faster=4.0)}
    measured = {
        "exact": [{**sizes, **row(gram=4.0), "over_bare": clock.spread([0.6])}],
        "sketched": [{**sizes, "size": 64, **row(gram=1.0, sketching=2.0)}],
        "pairwise": other,
        "literal": other,
    }
    (tmp_path / "clustering.json").write_text(json.dumps({"measured": measured}))
    shown = speed_tables.clustering(tmp_path)
    assert (
        "| 1,000 | 20,000 | - | 4.00 s | 0.60 × | 2.0 MB | 0.100 s | 0.200 s | 0.300 s |" in shown
    )
    assert "| 1,000 | 20,000 | 64 | 3.00 s | - | 2.0 MB | 0.100 s | 0.200 s | 0.300 s |" in shown
    assert (
        "| HCCT's merge from its definition | 1,000 | 20,000 | 8.00 s | 2.00 s | 4.00 × |" in shown
    )


def test_workloads_share_one_pool_of_data() -> None:
    from speed.workloads import world

    work: Workload = SMALL["a"]
    clients = world(work).clients
    assert len(clients) == work.clients
    assert all(data.train.inputs is clients[0].train.inputs for data in clients.values())
    assert all(len(data.train) == work.examples for data in clients.values())


@pytest.mark.parametrize(("method", "matrices"), [("cfl", 7), ("hcct", 80)])
def test_the_pages_benchmark_draws_runs_that_find_their_groups(
    method: str, matrices: int, tmp_path: Path
) -> None:
    folder = report_page.run(tmp_path / "run", method, n=32, rounds=80)
    lines = Record(folder).lines()
    assert len(lines[-1]["groups"]) == 8
    assert summary(folder)["ari"] == (1.0 if method == "cfl" else pytest.approx(1.0, abs=0.3))
    assert len(list((folder / "similarity").iterdir())) == matrices
    assert len(document([folder])["runs"][0]["nodes"]) == (15 if method == "cfl" else 8)
