"""The boundary in experiment files, on the command line, in records and summaries."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from coterie import begin, run, summary
from coterie.boundary import Boundary, spent
from coterie.cli import main
from coterie.records.record import Record
from coterie.records.text_files import to_toml
from coterie.runs.experiment import make, normal
from coterie.runs.set_option import assign
from coterie.settings import SettingError, UserError

SMALL: dict[str, Any] = {
    "scenario": {"name": "synthetic/groups", "clients": 4, "groups": 2}, "rounds": 3, "workers": 1, "methods": ["fedavg"],
}  # fmt: skip
NOISE = {"clip": 0.5, "noise": 4.0}


def test_a_table_of_an_experiment() -> None:
    import tomllib

    experiment = make(
        {**SMALL, "boundary": {"rotation": "blocks", "block": 8, "secret": 3, **NOISE}}
    )
    assert experiment.boundary == Boundary(
        rotation="blocks", block=8, secret=3, clip=0.5, noise=4.0
    )
    again = make(tomllib.loads(to_toml(experiment.spec())))
    assert again == replace(
        experiment, boundary=replace(experiment.boundary, secret=None)
    )  # which is never written
    assert make(SMALL).boundary == Boundary()


@pytest.mark.parametrize(
    ("table", "sentence"),
    [
        ({"rotate": "permute"}, "boundary has no setting 'rotate'; did you mean rotation?"),
        ({"noise": 1}, "Boundary.noise 1 needs Boundary.clip"),
        (3, "boundary must be a table of settings; the value is not shown: it may be a secret"),
    ],
)
def test_mistakes_in_the_table(table: Any, sentence: str) -> None:
    with pytest.raises(SettingError, match=sentence):
        make({**SMALL, "boundary": table})


def test_settings_on_the_command_line_name_their_table() -> None:
    spec = assign(assign(normal(SMALL), "boundary.clip=1.0"), "boundary.compress=sign")
    assert make(spec).boundary == Boundary(clip=1.0, compress="sign")
    assert make(assign(normal(SMALL), "clip=1.0")).training.clip == 1.0
    assert make(assign(normal(SMALL), "boundary.rotation=none")).boundary == Boundary()
    with pytest.raises(SettingError, match=r"--set noise: write boundary\.noise"):
        assign(normal(SMALL), "noise=1")
    with pytest.raises(SettingError, match="boundary has no setting 'clipp'; did you mean clip"):
        assign(normal(SMALL), "boundary.clipp=1")


def test_what_does_not_go_together_leaves_no_folder(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    call = [
        "run",
        "--scenario",
        "synthetic/groups",
        "--method",
        "fedfa",
        "--out",
        str(out),
        "--rounds",
        "1",
    ]
    assert main([*call, "--set", "boundary.clip=1", "--set", "boundary.noise=1"]) == 2
    told = capsys.readouterr().err
    assert "Boundary.noise 1 cannot be used with fedfa" in told
    assert told.count("\n") == 1
    assert not out.exists()
    methods = [{"name": "flhc", "metric": "l1", "linkage": "single"}]
    experiment = make({**SMALL, "methods": methods, "boundary": {"rotation": "blocks"}})
    with pytest.raises(UserError, match="rotation must be none or permute or permute-tensors"):
        begin(experiment, out)
    assert not out.exists()


def test_a_summary_has_the_privacy_spent(tmp_path: Path) -> None:
    (one,) = begin(make({**SMALL, "boundary": {**NOISE, "delta": 1e-3}}), tmp_path / "run")
    list(one.rounds())
    lines = Record(tmp_path / "run").lines()
    assert [line["released"] for line in lines] == [{"0": 1, "1": 1, "2": 1, "3": 1}] * 3
    found = summary(tmp_path / "run")
    assert (
        found["privacy"].items()
        >= {"epsilon": spent(4.0, 3, 1e-3), "delta": 1e-3, "updates": 3}.items()
    )
    assert found["boundary"]["noise"] == 4.0
    json.dumps(found)


def test_the_command_line_prints_the_privacy_spent(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    call = [
        "run",
        "--scenario",
        "synthetic/groups",
        "--method",
        "fedavg",
        "--rounds",
        "1",
        "--out",
        str(tmp_path / "run"),
    ]
    assert (
        main([*call, "--workers", "1", "--set", "boundary.clip=1", "--set", "boundary.noise=10"])
        == 0
    )
    assert (
        "run: ε = 0.726 at δ = 1e-05 after 1 updates of the client that sent the most"
        in capsys.readouterr().out
    )
    assert (
        main([*call[:-1], str(tmp_path / "other"), "--workers", "1", "--set", "boundary.clip=1"])
        == 0
    )
    assert "ε" not in capsys.readouterr().out


def test_the_client_that_sent_most_counts(tmp_path: Path) -> None:
    half = {"methods": [{"name": "fedavg", "fraction": 0.5}], "rounds": 5}
    (one,) = begin(make({**SMALL, **half, "boundary": NOISE}), tmp_path / "run")
    sent = [client for done in one.rounds() for client in done.released]
    most = max(sent.count(client) for client in set(sent))
    assert 3 <= most <= 5
    assert summary(tmp_path / "run")["privacy"]["updates"] == most


def test_without_noise_a_summary_has_no_privacy(tmp_path: Path) -> None:
    (one,) = begin(
        make({**SMALL, "rounds": 1, "boundary": {"rotation": "permute"}}), tmp_path / "run"
    )
    list(one.rounds())
    assert summary(tmp_path / "run")["privacy"] is None
    assert "released" not in Record(tmp_path / "run").lines()[0]


def test_an_interrupted_run_with_noise_goes_on_with_the_same_bits(tmp_path: Path) -> None:
    spec = {
        **SMALL,
        "methods": [{"name": "cfl"}],
        "boundary": {"rotation": "blocks", "compress": "8bit", **NOISE},
    }
    ends = []
    for name, stop in (("whole", None), ("halved", 1)):
        (one,) = begin(make(spec), tmp_path / name)
        for done in one.rounds():
            if done.number == stop:
                break
        list(one.rounds())  # goes on, where there is something left
        ends.append(
            [
                {k: v for k, v in line.items() if k != "seconds"}
                for line in Record(tmp_path / name).lines()
            ]
        )
        assert len(ends[-1]) == 3
    assert ends[0] == ends[1]


def test_run_in_python_takes_a_boundary() -> None:
    (done,) = run(
        "fedavg", make(SMALL).world(0), rounds=1, workers=1, boundary=Boundary(compress="sign")
    )
    (plain,) = run("fedavg", make(SMALL).world(0), rounds=1, workers=1)
    assert done.bytes_up < plain.bytes_up / 8
    assert done.bytes_down == plain.bytes_down
