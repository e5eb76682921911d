"""The command line: what it prints, how it exits, and that a mistake costs one sentence."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import coterie
from coterie.boundary import secret_of_file
from coterie.cli import main
from coterie.cli.arguments import parser
from coterie.engines import rounds as inprocess
from coterie.engines.workers import EngineError
from coterie.records.store import SCHEMA_VERSION
from coterie.report.summary import summary
from coterie.runs.experiment import read
from forged import change

SMALL = (
    "--set",
    "scenario.clients=4",
    "--set",
    "scenario.groups=2",
    "--set",
    "training.epochs=1",
    "--workers",
    "1",
)

Call = Callable[..., tuple[int, str, str]]


@pytest.fixture
def call(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Call:
    """Calls the command line in an empty folder: (exit status, stdout, stderr)."""
    monkeypatch.chdir(tmp_path)

    def call(*arguments: str) -> tuple[int, str, str]:
        status = main(arguments)
        out, err = capsys.readouterr()
        return status, out, err

    return call


def run_small(call: Call, *more: str) -> tuple[int, str, str]:
    return call("run", "--rounds", "2", *SMALL, *more)


# -- results
# --------------------------------------------------------------------------------------------------------------


def test_a_bare_run_is_the_demonstration_recorded_and_drawn(call: Call) -> None:
    status, out, err = run_small(call)
    assert (status, err) == (0, "")
    assert "fedavg seed 0" in out
    assert "0-3 (4 clients)  accuracy" in out
    assert "ARI" in out
    (folder,) = Path("runs").iterdir()
    assert out.endswith(f"recorded in {folder}\n")
    assert folder.name.endswith("-digits-label-permutation")
    assert sorted(path.name for path in folder.iterdir()) == [
        "auto-seed0",
        "experiment.toml",
        "fedavg-seed0",
    ]
    assert sorted(path.name for path in (folder / "auto-seed0").iterdir()) == [
        "rounds.jsonl",
        "run.toml",
        "state",
    ]


def test_one_run_in_json(call: Call) -> None:
    status, out, err = run_small(call, "--method", "cfl", "--out", "here", "--json")
    assert (status, err) == (0, "")
    (found,) = json.loads(out, parse_constant=pytest.fail)  # a list for one run too
    assert found == summary("here")
    assert set(found) >= {
        "method",
        "scenario",
        "seed",
        "rounds",
        "groups",
        "true_groups",
        "ari",
        "metric",
        "better",
        "score",
        "accuracy",
        "loss",
        "bytes_up",
        "bytes_down",
        "exchanges",
        "seconds",
        "run_dir",
    }
    assert set(found["accuracy"]) == {"mean", "std", "worst", "per_client"}
    assert found["run_dir"] == "here"


def test_several_runs_in_json_are_one_list(call: Call) -> None:
    _, out, _ = run_small(call, "--method", "independent", "--seeds", "2", "--json")
    found = json.loads(out)
    assert [(one["method"], one["seed"]) for one in found] == [
        ("independent", 0),
        ("independent", 1),
    ]


def test_a_file_and_options_that_change_it(call: Call) -> None:
    Path("study.toml").write_text("""
        methods = [{name = "cfl", eps1 = 0.25}, "fedavg"]
        rounds = 9
        seed = 5
        [scenario]
        name = "digits/label-permutation"
        clients = 4
        groups = 2
    """)
    _, out, err = call(
        "run",
        "study.toml",
        "--method",
        "cfl",
        "--rounds",
        "1",
        "--set",
        "eps2=0.75",
        "--json",
        *SMALL[4:],
    )
    assert err == ""
    (found,) = json.loads(out)
    assert (found["settings"]["eps1"], found["settings"]["eps2"]) == (0.25, 0.75)
    assert (found["rounds"], found["seed"], len(found["accuracy"]["per_client"])) == (1, 5, 4)


def test_a_method_named_again_keeps_all_its_tables_in_the_file(call: Call) -> None:
    Path("study.toml").write_text("""
        methods = [{name = "cfl", eps1 = 0.25}, "fedavg", {name = "cfl", eps1 = 0.75}]
        scenario = "synthetic/groups"
    """)
    _, out, _ = call(
        "run",
        "study.toml",
        "--method",
        "cfl",
        "--method",
        "independent",
        "--rounds",
        "1",
        "--json",
        *SMALL,
    )
    found = [(one["method"], one["settings"].get("eps1")) for one in json.loads(out)]
    assert found == [("cfl", 0.25), ("cfl", 0.75), ("independent", None)]


@pytest.mark.slow
def test_a_terminal_without_greek_letters() -> None:
    code = "import sys; from coterie.cli import main; sys.exit(main(['methods', 'cfl']))"
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "(?1)" in done.stdout  # ε1


def test_resume_of_what_is_finished_changes_nothing(call: Call) -> None:
    run_small(call, "--method", "cfl", "--out", "here")
    before = Path("here/rounds.jsonl").read_bytes()
    assert call("resume", "here") == (
        0,
        "here is finished (2 rounds); there is nothing to do\n",
        "",
    )
    status, out, _ = call("resume", "here", "--json")
    assert status == 0
    assert json.loads(out) == [summary("here")]
    assert Path("here/rounds.jsonl").read_bytes() == before


def test_resume_tells_of_other_versions(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    interrupted(call, monkeypatch, 1)
    change(
        Path("here"),
        lambda text: text.replace(f'coterie = "{coterie.__version__}"', 'coterie = "0.0.1"'),
    )
    status, _, err = call("resume", "here")
    assert status == 0
    assert err.startswith(
        f"coterie: the run began with coterie 0.0.1, this is {coterie.__version__}; the last digits"
    )


@pytest.mark.slow
def test_compare(call: Call) -> None:
    run_small(call, "--seeds", "2", "--out", "all")
    status, out, _ = call("compare", "all")
    assert status == 0
    assert "(sd " in out  # an interval of two seeds says nothing
    _, out, _ = call("compare", "all/auto-seed0", "all/auto-seed1", "--json")
    (found,) = json.loads(out)
    assert found["seeds"] == [0, 1]


@pytest.mark.slow
def test_several_seeds_end_in_a_comparison(call: Call) -> None:
    _, out, _ = run_small(call, "--seeds", "3")
    assert "±" in out
    assert "└" not in out  # six trees would bury it


# -- lists and help
# -------------------------------------------------------------------------------------------------------


def test_lists(call: Call) -> None:
    status, out, _ = call("methods")
    assert status == 0
    assert {text.split()[0] for text in out.splitlines()} == set(coterie.METHODS)
    _, out, _ = call("scenarios")
    assert set(coterie.SCENARIOS) <= set(out.split())
    for name in coterie.METHODS:
        status, out, _ = call("methods", name)
        assert status == 0
        assert out.startswith(f"{name}: ")
    status, out, _ = call("scenarios", "digits/label-swap")
    assert status == 0
    assert "label-swap" in out
    assert "learning rate" in out


@pytest.mark.parametrize("command", sorted(parser()[1]))
def test_every_command_has_help(
    call: Call, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    with pytest.raises(SystemExit, match="0"):
        main([command, "--help"])
    out = capsys.readouterr().out
    assert out.startswith(f"usage: coterie {command}")
    own = parser()[1][command]
    assert all(action.help for action in own._actions)
    assert own.description


def test_help_and_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    assert "COMMAND" in capsys.readouterr().out
    with pytest.raises(SystemExit, match="0"):
        main(["--version"])
    assert capsys.readouterr().out.startswith(f"coterie {coterie.__version__}, Python ")


@pytest.mark.slow
def test_a_closed_pipe_is_no_error() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run(
        [sys.executable, "-m", "coterie", "scenarios"],
        stdout=writing,
        stderr=subprocess.PIPE,
        text=True,
    )
    os.close(writing)
    assert (done.returncode, done.stderr) == (0, "")


# -- mistakes
# -------------------------------------------------------------------------------------------------------------

MISTAKES = [
    (("rn",), "there is no command 'rn'; did you mean run?"),
    (("run", "--metod", "cfl"), "coterie run has no option --metod; did you mean --method?"),
    (("run", "--rounds"), "--rounds: expected one argument"),
    (("run", "--rounds", "many"), "--rounds: must be an integer, got 'many'"),
    (("run", "--rounds", "0"), "--rounds must be at least 1, got 0"),
    (("run", "--workers", "-2"), "--workers must be at least 1, got -2"),
    (("run", "--seed", "1", "--seeds", "2"), "use only one of --seed and --seeds"),
    (("run", "--seed", "-1"), "Experiment.seeds must be >= 0, got -1"),
    (("run", "--target", "high"), "--target: must be a number, got 'high'"),
    (("run", "--target", "0"), "Experiment.target must be > 0, got 0.0"),
    (("run", "a.toml", "b.toml"), "coterie run does not take 'b.toml' here"),
    (("run", "absent.toml"), "absent.toml cannot be read: no such file or directory"),
    (
        ("run", "--scenario", "digits/idd"),
        "there is no scenario 'digits/idd'; did you mean digits/iid?",
    ),
    (("run", "--method", "cf1"), "there is no method 'cf1'; did you mean cfl?"),
    (("run", "--method", "cfl", "--set", "esp1=1"), "has a setting 'esp1'; did you mean eps1?"),
    (("run", "--method", "cfl", "--set", "eps1=high"), "CFL.eps1 must be a number, got 'high'"),
    (("run", "--set", "eps1"), "--set takes key=value, got 'eps1'"),
    (
        ("run", "--set", "data=1979-05-27"),
        "--set data: the value cannot be read: it has a date or a time",
    ),
    (("run", "--set", "boundary.secret:7319991"), "--set takes key=value; the value is not shown"),
    (
        ("run", "--set", "boundary.secret:7319991=1"),
        "--set takes key=value; the value is not shown",
    ),
    (
        ("run", "--secret-file", "7319991"),
        "its name is a number and not shown: did you pass the secret itself?",
    ),
    (("run", "--set", "method.fraction=2"), "FedAvg.fraction must be > 0 and <= 1, got 2.0"),
    (("run", "--scenario", "mnist/iid", "--data", "absent"), "absent"),
    (("resume",), "the following arguments are required: RUN"),
    (("resume", "absent"), "absent does not exist"),
    (("resume", "."), ". is not a run directory"),
    (("compare", "absent"), "absent is not a run directory and contains none"),
    (("methods", "clf"), "there is no method 'clf'; did you mean cfl?"),
    (("scenarios", "digits/idd"), "there is no scenario 'digits/idd'; did you mean digits/iid?"),
    (("--verison",), "coterie has no option --verison; did you mean --version?"),
]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    MISTAKES,
    ids=lambda value: " ".join(value) if type(value) is tuple else "",
)
def test_a_mistake_costs_one_sentence_and_leaves_nothing(
    call: Call, arguments: tuple[str, ...], sentence: str
) -> None:
    status, out, err = call(*arguments)
    assert (status, out) == (2, "")
    assert err.startswith("coterie: ")
    assert sentence in err
    assert err.count("\n") == 1
    assert "7319991" not in err
    assert list(Path().iterdir()) == []


@pytest.mark.parametrize("more", [(), ("--estimate",)])
@pytest.mark.parametrize(
    ("name", "value", "features"),
    [("examples", 10**9, 1000), ("classes", 10**6, 10**7), ("features", 10**7, 10**7)],
)
def test_drawn_data_fit_into_half_of_the_memory(
    call: Call, name: str, value: int, features: int, more: tuple[str, ...]
) -> None:
    settings = ["--set", f"scenario.features={features}", "--set", f"scenario.{name}={value}"]
    status, out, err = call(
        "run", "--scenario", "synthetic/groups", "--method", "cfl", *settings, "--out", "a", *more
    )
    assert (status, out, err.count("\n")) == (2, "", 1)
    assert f"{name} {value:,}" in err
    assert "and half of the free memory is" in err


def test_a_task_that_fails_in_an_estimate_is_one_sentence(
    call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))
    Path("net_of_three_inputs.py").write_text(
        "from torch import nn\n\n\ndef Net(shape, classes):\n    return nn.Linear(3, classes)\n"
    )
    status, out, err = call(
        "run", "--estimate", "--method", "fedavg", "--set", "model=net_of_three_inputs:Net"
    )
    assert (status, out, err.count("\n")) == (1, "", 1)
    assert "failed in its task" in err


def test_a_memory_that_is_not_enough_is_one_sentence(
    call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fill(*_: object, **__: object) -> None:
        raise MemoryError

    monkeypatch.setattr("coterie.runs.folders.begin_new", fill)
    status, _, err = call("run", "--out", "here")
    assert (status, err.count("\n")) == (2, 1)
    assert "not enough memory" in err


def test_a_secret_in_place_of_a_table_is_not_shown(call: Call) -> None:
    Path("a.toml").write_text('boundary = "7319991"')
    status, _, err = call("run", "a.toml", "--out", "here")
    assert status == 2
    assert "boundary must be a table of settings; the value is not shown" in err
    assert "7319991" not in err


def test_a_byte_order_mark_is_no_part_of_a_file(call: Call) -> None:
    Path("a.toml").write_bytes(b"\xef\xbb\xbfrounds = 7")
    Path("secret").write_bytes(b"\xef\xbb\xbf7319991\n")
    assert read("a.toml")["rounds"] == 7
    assert secret_of_file("secret") == 7319991


def test_a_run_directory_of_a_newer_version_is_refused(call: Call) -> None:
    run_small(call, "--method", "cfl", "--out", "here")
    path = Path("here/run.toml")
    path.write_text(path.read_text().replace(f"schema = {SCHEMA_VERSION}", "schema = 99"))
    for command in ("resume", "compare"):
        status, _, err = call(command, "here")
        assert status == 2
        assert f"schema version 99, this version of Coterie reads up to {SCHEMA_VERSION}" in err


# -- runs that do not end
# -------------------------------------------------------------------------------------------------


def interrupted(
    call: Call, monkeypatch: pytest.MonkeyPatch, after: int, error: BaseException | None = None
) -> Any:
    """A run of two rounds in ``here`` that meets ``error``, or Ctrl-C, after some rounds."""
    original = inprocess.rounds

    def rounds(*args: Any, **named: Any) -> Iterator[inprocess.Round]:
        for done in original(*args, **named):
            if done.number > after:
                raise error or KeyboardInterrupt
            yield done

    with monkeypatch.context() as patch:
        patch.setattr(inprocess, "rounds", rounds)
        return run_small(call, "--method", "cfl", "--out", "here")


@pytest.mark.parametrize("after", [0, 1])
def test_ctrl_c_says_how_to_go_on(call: Call, monkeypatch: pytest.MonkeyPatch, after: int) -> None:
    status, out, err = interrupted(call, monkeypatch, after)
    assert (status, out) == (130, "")
    assert err == "coterie: interrupted; to continue, run coterie resume here\n"
    status, out, _ = call("resume", "here", "--json")
    assert status == 0
    run_small(call, "--method", "cfl", "--out", "whole")
    assert [one["accuracy"] for one in json.loads(out)] == [summary("whole")["accuracy"]]


def test_a_run_that_fails_keeps_printable_details(
    call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    status, out, err = interrupted(
        call, monkeypatch, 1, EngineError("client 2 failed: no", "Traceback\n \x1b[2J\udcff")
    )
    assert (status, out) == (1, "")
    assert err == "coterie: here: client 2 failed: no; details in here/failure.txt\n"
    assert Path("here/failure.txt").read_bytes() == b"Traceback\n \\u001b[2J\\udcff"


def test_a_full_disk_is_a_run_that_failed(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    status, _, err = interrupted(call, monkeypatch, 1, OSError(28, "No space left on device"))
    assert status == 1
    assert err == "coterie: here: no space left on device; to continue, run coterie resume here\n"


# -- paths, streams and variables that are odd
# ----------------------------------------------------------------------------


def test_every_command_works_on_a_path_that_is_not_utf8(
    call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = os.fsdecode(b"run\xff\xed\xa0\x80")
    assert run_small(call, "--method", "fedavg", "--out", name)[0] == 0
    status, out, _ = call("report", name)
    assert (status, out) == (0, "report written to run\\udcff\\udced\\udca0\\udc80/report.html\n")
    assert r"run\udcff" in Path(name, "report.html").read_text(encoding="utf-8")
    for words in (
        ("compare", name),
        ("explain", name),
        ("resume", name),
        ("plot", name, "groups", "-o", f"{name}/x.svg"),
    ):
        assert call(*words)[0] == 0
    for words in (
        ("explain", name, "--json"),
        ("compare", name, "--json"),
        ("resume", name, "--json"),
    ):
        json.loads(call(*words)[1])
    status, _, err = call("run", "--scenario", "folder/clients", "--data", name, "--out", "no")
    assert status == 2
    assert err.startswith(
        "coterie: Experiment.data must be a UTF-8 string without control characters, got '"
    )
    assert not Path("no").exists()


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--rounds", "9" * 5000], "--rounds: must be an integer, got '999"),
        (["--seed", "1" + "0" * 20], "--seed: must be an integer of at most 64 bits, got '1000"),
        (["--seeds", "1000000000000"], "--seeds must be at most 10,000, got 1000000000000"),
        (
            ["--set", f"rounds={'9' * 5000}"],
            "--set rounds: the value cannot be read: it has a number of too many digits",
        ),
        (
            ["--set", f"rounds={'[' * 3000}"],
            "--set rounds: the value cannot be read: its tables and lists are more than 16",
        ),
        (["--data", "~nosuchuser/x"], "~nosuchuser/x: there is no such user"),
    ],
    ids=range(6),
)
def test_enormous_numbers_and_odd_values_are_one_sentence(
    call: Call, words: list[str], sentence: str
) -> None:
    status, out, err = call("run", *words, "--out", "here")
    assert (status, out) == (2, "")
    assert err.startswith(f"coterie: {sentence}")
    assert err.count("\n") == 1
    assert not Path("here").exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("command", "status", "said"),
    [
        ("methods >/dev/full", 2, b"coterie: the disk: no space left on device\n"),
        ("--help >/dev/full", 2, b"coterie: the disk: no space left on device\n"),
        ("methods >&-", 0, b""),
        ("methods >&- 2>&-", 0, b""),
        ("nothing 2>/dev/full", 2, b""),
        ("nothing 2>&-", 2, b""),
        ("methods | head -c 1 >/dev/null", 0, b""),
    ],
)
def test_a_full_or_closed_output(command: str, status: int, said: bytes) -> None:
    line = f"{sys.executable} -m coterie {command}"
    done = subprocess.run(["bash", "-o", "pipefail", "-c", line], capture_output=True, timeout=300)
    assert (done.returncode, done.stderr) == (status, said)
