"""Each tracker's own store, read back by its own library: a run that was tracked in two parts, by two processes."""

from __future__ import annotations

import json
import struct
import warnings
from collections.abc import Iterator, Mapping
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from tracked import ROUNDS, append, cut, follow_one

import page_runs
from coterie.cli import main
from coterie.contrib.tracking import track
from coterie.contrib.tracking.metrics import Metrics, settings
from coterie.contrib.tracking.trackers import TRACKERS, MLflow, Tracker, Wandb
from coterie.records.record import Record
from coterie.records.store import SCHEMA_VERSION
from coterie.settings import UserError

pytestmark = pytest.mark.slow

Numbers = dict[int, dict[str, float]]
"""Round -> name -> number."""


def recorded(run: Path) -> Numbers:
    metrics = Metrics(Record(run).description()["world"])
    return {line["round"]: metrics.of(line) for line in Record(run).lines()}


def in_two_parts(run: Path, tracker: str) -> None:
    """Track a run that is stopped after round 5, gone back to 4, and goes on."""
    rest = cut(run, 5)
    track(run, tracker)
    assert json.loads((run / "track" / f"{tracker}.json").read_text())["round"] == 5
    fifth = cut(run, 4)
    append(run, fifth + rest)
    track(run, tracker)
    assert json.loads((run / "track" / f"{tracker}.json").read_text())["round"] == ROUNDS


def splits(run: Path) -> list[tuple[int, str]]:
    """(round, smallest member of the group) of each matrix."""
    lines = Record(run).lines()
    return [
        (line["round"], f"of-{min(n['clients'])}")
        for line in lines
        for n in line["notes"]
        if n["similarity"]
    ]


def of_tensorboard(folder: Path) -> tuple[Numbers, Any]:
    pytest.importorskip("tensorboard", reason="tensorboard is not installed")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the protocol's library, in some versions
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

        events = EventAccumulator(
            str(folder), size_guidance={"scalars": 0, "images": 0, "tensors": 0}
        )
        events.Reload()
    found: Numbers = {}
    for tag in events.Tags()["scalars"]:
        for event in events.Scalars(tag):
            assert tag not in found.setdefault(event.step, {}), "tracked twice"
            found[event.step][tag] = event.value
    return found, events


def test_tensorboard(run: Path) -> None:
    in_two_parts(run, "tensorboard")
    found, events = of_tensorboard(run / "track" / "tensorboard" / "cfl")
    expected = recorded(run)
    assert found.keys() == expected.keys()
    for round, numbers in expected.items():
        assert found[round] == pytest.approx(numbers, rel=1e-6)  # float32
    seen = [
        (image.step, tag.split("/")[1])
        for tag in events.Tags()["images"]
        for image in events.Images(tag)
    ]
    assert sorted(seen) == splits(run)
    notes = [
        text.tensor_proto.string_val[0].decode() for text in events.Tensors("notes/text_summary")
    ]
    assert len(notes) == ROUNDS
    assert sum(" split: " in note for note in notes) == len({round for round, _ in splits(run)})
    hparams = events.SummaryMetadata("_hparams_/session_start_info").plugin_data.content
    for value in (b"method.gamma_max", b"synthetic/groups"):
        assert value in hparams


@pytest.mark.filterwarnings("ignore")  # of the database's library
def test_mlflow(run: Path) -> None:
    mlflow = pytest.importorskip("mlflow", reason="mlflow is not installed")
    in_two_parts(run, "mlflow")
    client = mlflow.MlflowClient(tracking_uri=f"sqlite:///{run / 'track' / 'mlflow' / 'mlflow.db'}")
    experiment = client.get_experiment_by_name("coterie")
    (found,) = client.search_runs([experiment.experiment_id])
    assert (found.info.run_name, found.info.status) == ("cfl", "FINISHED")
    said = {name: str(value)[:500] for name, value in settings(Record(run).description()).items()}
    assert found.data.params == said
    expected = recorded(run)
    for name in (
        "accuracy/mean",
        "groups/adjusted_rand",
        "client/3/loss",
        "cluster/of-1/size",
        "criteria/of-0/mean_update",
    ):
        history = [
            (metric.step, metric.value)
            for metric in client.get_metric_history(found.info.run_id, name)
        ]
        assert history == [
            (round, numbers[name]) for round, numbers in expected.items() if name in numbers
        ]
        assert history
    assert found.data.metrics == {
        name: value for numbers in expected.values() for name, value in numbers.items()
    }
    notes = [file.path for file in client.list_artifacts(found.info.run_id, "notes")]
    assert sorted(notes) == [f"notes/round-{i}.txt" for i in range(1, ROUNDS + 1)]
    images = [
        file.path
        for file in client.list_artifacts(found.info.run_id, "images")
        if file.path.endswith(".png")
    ]
    assert len(images) == len(splits(run))


def test_wandb_takes_no_settings_of_a_stranger_s(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("wandb", reason="wandb is not installed")
    (run / "wandb").mkdir()
    (run / "wandb" / "settings").write_text("[default]\nbase_url = https://theirs.example\n")
    monkeypatch.chdir(run)
    with pytest.raises(
        UserError, match="came with the run and would be settings of Weights & Biases"
    ):
        Wandb(run)


@pytest.mark.filterwarnings("ignore")  # of the database's library
@pytest.mark.parametrize("kept", [False, True])
def test_mlflow_writes_nothing_where_a_stranger_s_database_says(
    run: Path, tmp_path: Path, kept: bool
) -> None:
    mlflow = pytest.importorskip("mlflow", reason="mlflow is not installed")
    (run / "track" / "mlflow").mkdir(parents=True)
    client = mlflow.MlflowClient(tracking_uri=f"sqlite:///{run / 'track' / 'mlflow' / 'mlflow.db'}")
    there = client.create_experiment("coterie", artifact_location=(tmp_path / "outside").as_uri())
    if kept:  # they sent what marks the store, too
        theirs = {
            "schema": SCHEMA_VERSION,
            "where": "",
            "run": client.create_run(there, run_name="cfl").info.run_id,
            "round": 0,
        }
        (run / "track" / "mlflow.json").write_text(json.dumps(theirs))
    with pytest.raises(UserError, match="keeps the run's files elsewhere; remove"):
        MLflow(run)
    assert not (tmp_path / "outside").exists()


@pytest.mark.filterwarnings("ignore")  # of the database's library
def test_mlflow_takes_every_name_of_a_criterion(run: Path) -> None:
    pytest.importorskip("mlflow", reason="mlflow is not installed")
    criterion = {
        "name": "mean norm: ‖Δ‖/n < ../ε²",
        "value": 0.5,
        "sign": "<",
        "bound": 0.4,
        "held": False,
    }
    note = page_runs.note("keep", [0], criteria=[criterion])
    numbers = Metrics({}).of(page_runs.line(1, [[0]], note))
    tracker = MLflow(run)
    tracker.write(1, numbers, "", [])
    assert tracker.client.get_run(tracker.identity).data.metrics == numbers
    tracker.close()


def killed(run: Path, tracker: str, in_round: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Track a run by a process that is killed when ``in_round`` is written, and before that is kept; then by another."""
    keep = Tracker.keep

    def fatal(self: Tracker) -> None:
        if self.round == in_round:
            raise KeyboardInterrupt
        keep(self)

    with monkeypatch.context() as patched:
        patched.setattr(Tracker, "keep", fatal)
        with pytest.raises(KeyboardInterrupt):
            follow_one(run, TRACKERS[tracker])
    follow_one(run, TRACKERS[tracker])


@pytest.mark.parametrize("in_round", [1, 3])
@pytest.mark.filterwarnings("ignore")  # of the database's library
def test_mlflow_has_each_round_once_where_a_process_was_killed(
    in_round: int, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mlflow = pytest.importorskip("mlflow", reason="mlflow is not installed")
    MLflow(run)  # and killed before the first round
    killed(run, "mlflow", in_round, monkeypatch)
    client = mlflow.MlflowClient(tracking_uri=f"sqlite:///{run / 'track' / 'mlflow' / 'mlflow.db'}")
    (found,) = client.search_runs([client.get_experiment_by_name("coterie").experiment_id])
    for name in ("groups/count", "seconds/total"):
        history = client.get_metric_history(found.info.run_id, name)
        assert [metric.step for metric in history] == list(range(1, ROUNDS + 1))


@pytest.mark.parametrize("in_round", [1, 3])
def test_tensorboard_shows_each_round_once_where_a_process_was_killed(
    in_round: int, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    of_tensorboard(run)  # or skip
    clock = count(1_700_000_000)
    monkeypatch.setattr(
        "time.time", lambda: float(next(clock))
    )  # which names the files, by the second
    killed(run, "tensorboard", in_round, monkeypatch)
    found, _ = of_tensorboard(run / "track" / "tensorboard" / "cfl")
    assert sorted(found) == list(range(1, ROUNDS + 1))


def records_of_wandb(path: Path) -> Iterator[Any]:
    """The records of a ``.wandb`` file: LevelDB's log format, each a message of wandb's own protocol."""
    from wandb.proto import wandb_internal_pb2

    data, at, whole = path.read_bytes(), 7, b""
    assert data[:4] == b":W&B"
    while at + 7 <= len(data):
        if (left := 32768 - at % 32768) < 7:  # no header fits into the rest of a block
            at += left
            continue
        _, size, kind = struct.unpack("<IHB", data[at : at + 7])
        whole, at = whole + data[at + 7 : at + 7 + size], at + 7 + size
        if kind in (1, 4):  # whole, or the last part
            record = wandb_internal_pb2.Record()
            record.ParseFromString(whole)
            yield record
            whole = b""


def of_wandb(files: list[Path]) -> tuple[dict[int, Mapping[str, Any]], dict[str, Any], set[str]]:
    """Step -> what was logged; the settings; the runs' ids."""
    logged: dict[int, Mapping[str, Any]] = {}
    config: dict[str, Any] = {}
    ids = set()
    for record in (record for path in files for record in records_of_wandb(path)):
        if record.WhichOneof("record_type") == "history":
            items = record.history.item
            said = {
                item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in items
            }
            assert said["_step"] not in logged, "tracked twice"
            logged[said["_step"]] = said
        elif record.WhichOneof("record_type") == "run":
            ids.add(record.run.run_id)
            config |= {item.key: json.loads(item.value_json) for item in record.run.config.update}
    return logged, config, ids


@pytest.mark.filterwarnings("ignore")  # of the protocol's library
def test_wandb_is_offline_unless_it_is_told(run: Path) -> None:
    pytest.importorskip("wandb", reason="wandb is not installed")
    in_two_parts(run, "wandb")
    folder = run / "track" / "wandb"
    logged, config, ids = of_wandb(sorted(folder.glob("offline-run-*/*.wandb")))
    assert len(ids) == 1  # two files, one run
    assert sorted(logged) == list(range(1, ROUNDS + 1))
    for round, numbers in recorded(run).items():
        assert {name: logged[round][name] for name in numbers} == pytest.approx(numbers, abs=0)
        assert logged[round]["notes"].startswith(f"round {round} ")
    seen = [
        (round, name.split("/")[1])
        for round, said in logged.items()
        for name in said
        if name.endswith("/_type")
    ]
    assert sorted(seen) == splits(run)
    assert len(list(folder.glob("offline-run-*/files/media/images/**/*.png"))) == len(splits(run))
    assert {name: config[name] for name in settings(Record(run).description())} == settings(
        Record(run).description()
    )


def test_a_run_with_workers_is_tracked_while_it_goes_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    of_tensorboard(tmp_path)  # or skip
    out = tmp_path / "run"
    call = [
        "--method",
        "cfl",
        "--method",
        "fedavg",
        "--rounds",
        "4",
        "--workers",
        "2",
        "--out",
        str(out),
    ]
    assert main(["run", "--scenario", "synthetic/groups", *call, "--track", "tensorboard"]) == 0
    assert capsys.readouterr().err == ""
    for name in ("cfl-seed0", "fedavg-seed0"):
        found, _ = of_tensorboard(out / "track" / "tensorboard" / name)
        assert found.keys() == {1, 2, 3, 4}
    assert main(["resume", str(out), "--track", "tensorboard"]) == 0  # finished and tracked
    assert of_tensorboard(out / "track" / "tensorboard" / "cfl-seed0")[0].keys() == {1, 2, 3, 4}
