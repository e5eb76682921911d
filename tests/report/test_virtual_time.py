"""Virtual time of runs: numbers against the records, and the table that runs and comparisons show."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

import coterie
from coterie.cli import main
from coterie.report.compared import same_but_seed
from coterie.report.gathered import gather
from coterie.report.page import document
from coterie.report.summary import summary
from coterie.report.virtual_time import VirtualTime, table_rows, virtual_times


def line(round: int, scores: dict[str, float], **numbers: float) -> dict[str, Any]:
    """A recorded round with one note."""
    notes = [{"numbers": numbers}] if numbers else [{"numbers": {"p": 0.5}}]
    return {"round": round, "clients": scores, "notes": notes}


def timed_run(curve: list[tuple[float, float]], seconds: float = 8.0) -> dict[str, Any]:
    return {"seconds": seconds, "idle": 0.25, "lost": 0.5, "joules": 1234.4, "curve": curve}


def test_numbers_are_the_sums_of_the_notes(monkeypatch: pytest.MonkeyPatch) -> None:
    module = "coterie.report.virtual_time.spread"
    monkeypatch.setattr(
        module,
        lambda line, metric, weights: {
            "mean": sum(line["clients"].values()) / len(line["clients"])
        },
    )
    lines = [
        line(
            1,
            {"0": 0.2, "1": 0.4},
            **{"virtual seconds": 2.0, "idle device seconds": 1.0, "joules": 3.0},
        ),
        line(
            2,
            {},
            **{
                "virtual seconds": 3.0,
                "idle device seconds": 0.5,
                "lost device seconds": 1.5,
                "joules": 4.0,
            },
        ),
        line(3, {"0": 0.5, "1": 0.7}, **{"virtual seconds": 5.0, "joules": 0.5}),
    ]
    assert virtual_times(lines) == {1: 2.0, 2: 3.0, 3: 5.0}
    found = VirtualTime.of_lines(lines, 2, "")
    assert found is not None
    # Two devices for five seconds.
    assert (found.seconds, found.joules) == (5.0, 7.5)
    assert (found.idle, found.lost) == (pytest.approx(0.15), pytest.approx(0.15))
    assert found.curve == ((2.0, pytest.approx(0.3)), (5.0, pytest.approx(0.6)))
    assert VirtualTime.of_lines([line(1, {"0": 0.2})], 2, "") is None
    # A round in which the metric has no value is left out of the curve.
    lines[2]["clients"]["0"] = math.nan
    found = VirtualTime.of_lines(lines, 2, "")
    assert found is not None
    assert [seconds for seconds, _ in found.curve] == [2.0]


@pytest.mark.parametrize(
    ("better", "target", "times"), [("greater", 0.6, (2.0, 3.0)), ("less", 0.4, (4.0, 3.0))]
)
def test_the_target_is_what_all_runs_reach(
    better: str, target: float, times: tuple[float, ...]
) -> None:
    falling = better == "less"
    first = [(2.0, 0.7), (4.0, 0.4 if falling else 0.65)]
    second = [(1.0, 0.5), (3.0, 0.3 if falling else 0.6)]
    entries = [{"metric": "score", "better": better}] * 3
    rows = table_rows(
        ["timed 1", "fedavg", "timed 2"], entries, [[timed_run(first)], [None], [timed_run(second)]]
    )
    # The run without virtual time has no row.
    assert [dict(row)["virtual time"] for row in rows] == ["timed 1", "timed 2"]
    heading = f"score {target:.3f} after"
    assert [dict(row)[heading] for row in rows] == [f"{seconds:.3g}" for seconds in times]
    assert rows[0][-3:] == [("idle", "25%"), ("lost", "50%"), ("energy", "1,234 J")]


def test_a_single_entry_and_unlike_metrics_have_no_target() -> None:
    run = [timed_run([(1.0, 0.5)])]
    entry = {"metric": "score", "better": "greater"}
    short_run = {**timed_run([]), "seconds": 0.00123, "joules": 0.0456}
    (row,) = table_rows(["timed"], [entry], [[short_run]])
    assert (dict(row)["seconds"], dict(row)["energy"]) == ("0.00123", "0.0456 J")
    (row,) = table_rows(["timed"], [entry], [run])
    assert [heading for heading, _ in row] == ["virtual time", "seconds", "idle", "lost", "energy"]
    rows = table_rows(["a", "b"], [entry, {**entry, "metric": "loss"}], [run, run])
    assert all(len(row) == 5 for row in rows)
    # Never tested: there is no curve.
    rows = table_rows(["a", "b"], [entry, entry], [run, [timed_run([])]])
    assert all(len(row) == 5 for row in rows)


def test_a_run_and_a_comparison_show_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    experiment = tmp_path / "phones.toml"
    experiment.write_text(
        'scenario = "digits/iid"\nrounds = 2\nmethods = [{ name = "timed" }, '
        '{ name = "timed", mode = "buffered", buffer = 5 }, { name = "fedavg" }]\n'
    )
    assert main(["run", str(experiment), "--out", str(tmp_path / "runs")]) == 0
    printed = capsys.readouterr().out
    assert "timed 1: mode rounds, buffer 10" in printed
    table = printed[printed.index("virtual time") :].splitlines()
    assert [words.split()[:2] for words in table[1:3]] == [["timed", "1"], ["timed", "2"]]
    assert main(["compare", str(tmp_path / "runs")]) == 0
    assert "\n".join(table[:3]) in capsys.readouterr().out
    entries = coterie.compare(tmp_path / "runs")
    virtual = {entry["run_dirs"][0].rpartition("/")[2]: entry["virtual"] for entry in entries}
    assert virtual["fedavg-seed0"] == [None]
    found = summary(tmp_path / "runs" / "timed-1-seed0")["virtual"]
    assert virtual["timed-1-seed0"] == [found]
    assert [len(point) for point in found["curve"]] == [2, 2]
    # The page has it of each run, and names methods with several settings as the verdict does.
    told = document([tmp_path / "runs"])
    assert {entry["label"] for entry in told["compared"]} == {"timed 1", "timed 2", "fedavg"}
    assert [line.partition(":")[0] for line in told["settings"]] == ["timed 1", "timed 2"]
    for entry in told["compared"]:
        is_timed = entry["method"] == "timed"
        assert (entry["virtual"] != [None]) == is_timed
    page_of_run = {run["name"]: run for run in told["runs"]}
    assert page_of_run["timed-1-seed0"]["virtual"] == found


def test_figures_have_room_for_long_settings(tmp_path: Path) -> None:
    matplotlib = pytest.importorskip("matplotlib")
    from coterie.report.figures import clients, several, style

    experiment = tmp_path / "phones.toml"
    devices = "nexus-6=18820", "redmi-note-8=16428", "galaxy-note-10=159"
    experiment.write_text(
        'scenario = "digits/iid"\nrounds = 2\nmethods = [{ name = "timed", mode = "buffered" }, '
        f'{{ name = "timed", devices = {list(devices)} }}]\n'
    )
    assert main(["run", str(experiment), "--out", str(tmp_path / "runs")]) == 0
    runs = [tmp_path / "runs" / f"timed-{number}-seed0" for number in (1, 2)]
    style.load()
    with matplotlib.rc_context(style.STYLE):
        by_time = several.figure([gather(run) for run in runs], "time")
        strips = clients.figure(same_but_seed(map(summary, runs)))
        by_time.draw_without_rendering()
        strips.draw_without_rendering()
    legend = by_time.legends[0].get_window_extent()
    assert legend.x0 >= 0
    assert legend.x1 <= by_time.bbox.width
    first, second = (label.get_window_extent() for label in strips.axes[0].yaxis.get_ticklabels())
    # The first strip is at the top.
    assert first.y0 >= second.y1
    assert strips.axes[0].xaxis.label.get_window_extent().x1 <= strips.bbox.width
