"""Damage and edits are noticed by every command; ``coterie check`` says all of them; what was killed early can begin again."""

from __future__ import annotations

import json
import re
import resource
import shutil
import time as clock
from collections.abc import Callable
from datetime import date, datetime, time
from pathlib import Path
from typing import Any

import pytest
import torch

import coterie
from attack.run_directory import call, experiment, words
from coterie.core import Note
from coterie.records import checksum, codec
from coterie.records.codec import DamagedError
from coterie.records.record import Record
from coterie.records.store import Checkpoints
from coterie.records.text_files import EDITABLE_ENTRIES, read_toml, to_toml
from coterie.report.summary import summary
from coterie.runs import checking
from coterie.runs.checking import MAX_LISTED_DAMAGE, accept, check
from coterie.runs.experiment import make
from coterie.runs.folders import reopen
from coterie.settings import UserError
from forged import change, change_lines, forge
from page_runs import line, write

READERS = ("report", "compare", "explain", "export", "resume", "plot", "suggest", "check")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("made")
    experiment(folder / "run")
    experiment(folder / "other", seeds=[5])
    return folder


@pytest.fixture
def run(made: Path, tmp_path: Path) -> Path:
    shutil.copytree(made / "run", tmp_path / "run")
    return tmp_path / "run"


def refused(command: str, run: Path) -> str:
    """The one sentence with which a command refuses a run, having written nothing."""
    to = run.parent / f"out-{command}"
    to.mkdir()
    status, out, err = call(*words(command, run, to))
    assert status == (1 if command == "check" else 2), (command, out, err)
    assert not list(to.iterdir())
    text = (
        "".join(line for line in out.splitlines(keepends=True) if line.startswith("damaged:"))
        if command == "check"
        else err
    )
    assert len(text.splitlines()) >= 1
    assert command == "check" or len(text.splitlines()) == 1
    return text


# -- what was found
# -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", READERS)
@pytest.mark.parametrize("text", ["", "# a comment\n", "rounds = 3\n", "schema = 1\n"])
def test_no_default_fills_a_recorded_file(run: Path, command: str, text: str) -> None:
    before = (run / "rounds.jsonl").read_bytes()
    (run / "run.toml").write_text(text)
    assert "run.toml" in refused(command, run)
    assert (run / "rounds.jsonl").read_bytes() == before


def test_an_empty_file_is_no_demonstration(tmp_path: Path) -> None:
    (tmp_path / "run.toml").write_text("")
    assert call("run", str(tmp_path / "run.toml"), "--out", str(tmp_path / "out"))[0] == 2
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("command", READERS)
def test_edited_accuracies_are_noticed(run: Path, command: str) -> None:
    path = run / "rounds.jsonl"
    text = path.read_text()
    edited = text.replace('"accuracy": 0.', '"accuracy": 0.9', 1)
    assert edited != text
    path.write_text(edited)
    assert "line 1 of" in refused(command, run)


@pytest.mark.parametrize("command", READERS)
def test_records_that_were_cut_at_the_end_of_a_line_are_noticed(run: Path, command: str) -> None:
    path = run / "rounds.jsonl"
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:-1]))
    assert "ends at round 2, but there is a checkpoint of round 3" in refused(command, run)


@pytest.mark.parametrize("command", READERS)
@pytest.mark.parametrize("name", ["rounds.jsonl", "run.toml"])
def test_files_of_another_run_do_not_fit(made: Path, run: Path, command: str, name: str) -> None:
    shutil.copy(made / "other" / name, run / name)
    assert re.search("was changed, damaged or moved|belongs to another run", refused(command, run))


@pytest.mark.parametrize("command", ["export", "resume", "suggest", "check"])
def test_checkpoints_of_another_run_do_not_fit(made: Path, run: Path, command: str) -> None:
    shutil.rmtree(run / "state")
    shutil.copytree(made / "other" / "state", run / "state")
    assert "belongs to another run" in refused(command, run)


def test_a_cut_last_state_is_no_silent_round_before(run: Path, tmp_path: Path) -> None:
    path = run / "state" / "000003.json"
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    (one,) = reopen(run)
    assert not one.finished()
    assert "000003.json cannot be read" in refused("export", run)
    assert "000003.json cannot be read" in refused("check", run)
    assert call("resume", str(run), "--workers", "1")[0] == 0
    assert json.loads(path.read_bytes())["value"] == json.loads(whole)["value"]
    assert check(run).damaged == []
    assert call("export", str(run), "--to", str(tmp_path / "models"))[0] == 0


def test_a_blob_that_is_damaged_is_made_again(run: Path) -> None:
    (one,) = reopen(run)
    state = json.loads((run / "state" / "000003.json").read_text())["value"]
    before = json.loads((run / "state" / "000002.json").read_text())["value"]
    own = sorted(
        set(coterie.records.codec.blobs(state)) - set(coterie.records.codec.blobs(before))
    )[0]
    path = run / "state" / "blobs" / f"{own}.safetensors"
    whole = path.read_bytes()
    path.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    assert not one.finished()
    assert call("resume", str(run), "--workers", "1")[0] == 0
    assert path.read_bytes() == whole
    assert reopen(run)[0].finished()


def test_an_export_says_that_the_records_go_on(run: Path, tmp_path: Path) -> None:
    (run / "state" / "000003.json").unlink()  # as if it had been killed before the last checkpoint
    status, _, err = call("export", str(run), "--to", str(tmp_path / "models"))
    assert status == 0
    assert "has records up to round 3, but models only of round 2" in err
    about = json.loads((tmp_path / "models" / "models.json").read_text())
    assert (about["round"], about["finished"]) == (2, False)
    with pytest.warns(UserWarning, match="models only of round 2"):
        coterie.save(run, tmp_path / "again")


def test_a_run_whose_state_is_gone_is_not_begun_anew(run: Path) -> None:
    before = (run / "rounds.jsonl").read_bytes()
    shutil.rmtree(run / "state")
    (run / "run.toml").write_text(
        (run / "run.toml").read_text().replace("rounds = 3", "rounds = 4")
    )
    accept(run)
    assert "3 recorded rounds and no checkpoint to resume from" in refused("resume", run)
    assert (run / "rounds.jsonl").read_bytes() == before
    assert call("compare", str(run))[0] == 0  # it needs the records alone


@pytest.mark.parametrize("left", [["run.toml.part"], ["experiment.toml.part", "lock"], ["lock"]])
def test_a_folder_of_a_run_that_was_killed_before_it_began_is_as_good_as_empty(
    tmp_path: Path, left: list[str]
) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    for name in left:
        (folder / name).write_text("sche")
    status, _, err = call("resume", str(folder))
    assert status == 2
    assert (
        f"it was stopped before it started: to start it there, use coterie run --out {folder}"
        in err
    )
    experiment(folder, "fedavg")
    assert check(folder).damaged == []
    assert not (folder / "run.toml.part").exists()


def test_something_else_in_the_folder_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "run.toml.part").write_text("")
    (tmp_path / "thesis.txt").write_text("mine")
    with pytest.raises(UserError, match="exists and is not an empty folder"):
        experiment(tmp_path)


# -- checksums
# ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("strip", ["run.toml", "rounds.jsonl", "state/000003.json"])
def test_a_checksum_that_is_gone_is_damage(run: Path, strip: str) -> None:
    path = run / strip
    of = checksum.of_toml if strip == "run.toml" else checksum.of_json
    lines = (
        path.read_bytes().splitlines(keepends=True)
        if strip == "rounds.jsonl"
        else [path.read_bytes()]
    )
    ends = b"" if strip == "run.toml" else b"}\n"
    path.write_bytes(b"".join(of(one.rstrip())[0] + ends for one in lines))
    assert "checksum" in " ".join(check(run).damaged)
    assert refused("export", run)


@pytest.mark.parametrize("record", [{}, {"run": None}, {"run": ""}, {"run": []}])
def test_a_state_that_does_not_say_which_run_it_belongs_to_is_damage(
    run: Path, record: dict[str, Any]
) -> None:
    path = run / "state" / "000003.json"
    document = json.loads(path.read_text())
    del document["checksum"], document["run"]
    path.write_bytes(checksum.sealed_json(json.dumps({**document, **record}).encode()))
    assert "000003.json cannot be read" in refused("export", run)


def test_a_file_without_its_checksum_is_damage(tmp_path: Path) -> None:
    data = checksum.sealed_json(b'{"a": 1}')
    checksum.check_json(data, tmp_path)
    for wrong in (b'{"a": 1}', data.replace(b"1,", b"2,"), data[:-2] + b"}"):
        with pytest.raises(DamagedError):
            checksum.check_json(wrong, tmp_path)
    checksum.check(b"data", tmp_path, checksum.digest(b"data"))
    for known in (None, checksum.digest(b"other")):
        with pytest.raises(DamagedError):
            checksum.check(b"data", tmp_path, known)


def test_a_line_of_another_run_or_another_place_is_noticed(made: Path, run: Path) -> None:
    path = run / "rounds.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    other_lines = (made / "other" / "rounds.jsonl").read_bytes().splitlines(keepends=True)
    for damaged in (
        [lines[0], other_lines[1], lines[2]],
        [lines[0], lines[2], lines[1]],
        [lines[0], lines[2]],
        [lines[0], lines[1], lines[1], lines[2]],
        [lines[0], lines[1], lines[2][:-20] + b"\n"],
    ):
        path.write_bytes(b"".join(damaged))
        with pytest.raises(DamagedError, match=r"rounds\.jsonl"):
            Record(run).lines()


@pytest.mark.parametrize("text", ["a = 1\n", "a = 'ü'\n", ""])
def test_a_sealed_toml_stays_one(text: str, tmp_path: Path) -> None:
    import tomllib

    data = checksum.sealed_toml(text)
    assert tomllib.loads(data.decode()) == tomllib.loads(text)
    checksum.check_toml(data, tmp_path)
    with pytest.raises(DamagedError, match="does not match"):
        checksum.check_toml(b"b = 2\n" + data, tmp_path)


def test_a_round_is_recorded_without_reading_what_was_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = write(tmp_path / "run", [line(number, [[0, 1]]) for number in range(1, 4)])
    record = Record(run)
    record.append(line(4, [[0, 1]]))
    with monkeypatch.context() as patched:
        for name in ("entries", "description"):
            patched.delattr(Record, name)
        record.append(line(5, [[0, 1]]))
    assert len(record.lines()) == 5


# -- check and accept
# -----------------------------------------------------------------------------------------------------


def test_check_says_everything_that_is_wrong(run: Path) -> None:
    sound = check(run)
    assert (sound.damaged, len(sound.intact)) == ([], 1)
    (run / "notes.txt").write_text("mine")
    again = check(run)
    assert again.digest == sound.digest
    assert again.unchecked == [f"{run} has other files: notes.txt"]
    path = run / "rounds.jsonl"
    text = path.read_text()
    path.write_text(text.replace('"exchanges": 1', '"exchanges": 2'))
    (next((run / "similarity").iterdir())).write_bytes(b"nothing")
    (run / "state" / "000002.json").write_text("{}")
    found = check(run)
    assert sum("rounds.jsonl" in told for told in found.damaged) == text.count('"exchanges": 1') > 1
    assert sum("000002.json" in text for text in found.damaged) == 1
    assert found.digest != sound.digest
    assert call("check", str(run))[0] == 1


def test_check_of_matrices_experiments_and_exports(made: Path, run: Path, tmp_path: Path) -> None:
    (matrix,) = (run / "similarity").iterdir()
    data = matrix.read_bytes()
    matrix.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    assert check(run).damaged == [f"{matrix} was changed or damaged: its checksum does not match"]
    assert (
        "cannot be read; coterie check says why"
        in call("report", str(run), "-o", str(tmp_path / "page.html"))[2]
    )
    coterie.save(made / "run", tmp_path / "models")
    assert check(tmp_path / "models").damaged == []
    file = next((tmp_path / "models").glob("*.safetensors"))
    file.write_bytes(file.read_bytes() + b"\0")
    assert check(tmp_path / "models").damaged == [
        f"{file} was changed or damaged: its checksum does not match"
    ]
    experiment(tmp_path / "several", "fedavg", seeds=[0, 1], rounds=1)
    assert len(check(tmp_path / "several").intact) == 2
    one, two = tmp_path / "several" / "fedavg-seed0", tmp_path / "several" / "fedavg-seed1"
    one.rename(tmp_path / "between")
    two.rename(one)
    (tmp_path / "between").rename(two)
    assert "does not have the run that" in check(tmp_path / "several").damaged[0]
    with pytest.raises(
        UserError, match="is not a run directory, and contains neither runs nor exported models"
    ):
        check(tmp_path / "between")


def test_a_run_can_be_made_longer_if_that_is_said(run: Path) -> None:
    path = run / "run.toml"
    path.write_text(path.read_text().replace("rounds = 3", "rounds = 4"))
    edits = "rounds, target, stop_after, eval_every, checkpoint_every, checkpoints_kept, workers or data"
    assert (
        f"if you edited only its {edits}, accept it with coterie check {run} --accept"
        in refused("resume", run)
    )
    assert call("check", str(run), "--accept")[0] == 0
    assert call("resume", str(run), "--workers", "1")[0] == 0
    assert len(Record(run).lines()) == 4
    assert check(run).damaged == []


def test_what_was_run_cannot_be_accepted_otherwise(run: Path) -> None:
    path = run / "run.toml"
    edited = path.read_text().replace("lr = ", "lr = 1")
    path.write_text(edited)
    with pytest.raises(UserError, match="cannot be accepted: line 1"):
        accept(run)
    assert path.read_text() == edited


# -- hostile, with checksums that fit
# --------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["silent", "evaluations", "notes", "seconds"])
def test_a_line_without_an_entry_is_damage(run: Path, name: str) -> None:
    change_lines(run, lambda line: line.pop(name))
    assert f"missing required field `{name}`" in refused("report", run)


@pytest.mark.parametrize("name", ["boundary", "robust", "eval_every", "world", "versions"])
def test_a_description_without_an_entry_is_damage(run: Path, name: str) -> None:
    document = read_toml(run / "run.toml")
    del document[name]
    (run / "run.toml").write_bytes(checksum.sealed_toml(to_toml(document)))
    assert re.search(f"run.toml .*{name}", refused("report", run))


def test_a_matrix_without_a_recorded_checksum_is_damage(run: Path) -> None:
    change_lines(run, lambda line: line.pop("files", None))
    (damaged,) = check(run).damaged
    assert damaged.endswith(".safetensors has lost its checksum: it was changed or damaged")


ODD = (
    None,
    True,
    -1,
    2**70,
    0.5,
    "text",
    [],
    {},
    [["x"]],
    {"0": "x"},
    {"x": {}},
    {"0": {"group": "a"}},
)


@pytest.mark.parametrize(
    "field",
    ["round", "groups", "clients", "notes", "refused", "seconds", "bytes_up", "tested", "silent"],
)
def test_a_forged_line_of_another_form_is_one_sentence(run: Path, field: str) -> None:
    for number, odd in enumerate(ODD):
        copy = shutil.copytree(run, run.parent / f"copy-{field}-{number}")
        change_lines(copy, lambda line, odd=odd: line.__setitem__(field, odd))  # type: ignore[misc]
        status, _, err = call("compare", str(copy))
        assert status == 0 or (status == 2 and len(err.splitlines()) == 1), (odd, err)


EDITS: list[Callable[[str], str]] = [
    lambda text: text.replace("true_groups = [", "true_groups = [7, "),
    lambda text: text.replace("[[methods]]", "[[others]]"),
    lambda text: text.replace("seeds = [\n    0,\n]", 'seeds = "0"'),
    lambda text: text.replace("rounds = 3", 'rounds = "3"'),
]


@pytest.mark.parametrize("edit", EDITS)
def test_a_forged_description_of_another_form_is_one_sentence(
    run: Path, edit: Callable[[str], str]
) -> None:
    before = (run / "run.toml").read_text()
    with pytest.raises(DamagedError, match=r"run\.toml"):
        change(run, edit)
    assert (run / "run.toml").read_text() != before
    for command in ("report", "compare", "resume", "export"):
        assert "run.toml" in refused(command, run)


SETTINGS: list[tuple[tuple[Any, ...], Any]] = [
    (("scenario", "about"), date(1979, 5, 27)), (("methods", 0, "threshold"), time(7, 32)), (("training", "lr"), [date.min]),
    (("boundary", "block"), datetime(1979, 5, 27)), (("boundary", "noise"), "x"), (("boundary", "noise"), [1]),
    (("boundary", "delta"), "q"), (("robust", "norms"), {}), (("checkpoint_every",), "x"), (("eval_every",), []),
    (("world",), ""), (("world", "net"), -1), (("world", "net"), ["others"]), (("world", "net"), {"others": 1}),
    (("world", "model"), "linear"), (("methods", 0, "threshold"), {"a": {"b": 1}}), (("scenario",), {}),
]  # fmt: skip


@pytest.mark.parametrize(("path", "odd"), SETTINGS, ids=range(len(SETTINGS)))
def test_a_forged_setting_of_another_type_is_one_sentence(
    run: Path, path: tuple[Any, ...], odd: Any
) -> None:
    document = read_toml(run / "run.toml")
    table: Any = document
    for key in path[:-1]:
        table = table[key]
    table[path[-1]] = odd
    (run / "run.toml").write_text(to_toml(document))
    with pytest.raises(UserError, match=r"run\.toml"):
        forge(run)
    for command in READERS:
        assert "run.toml" in refused(command, run)


@pytest.mark.parametrize("delta", [True, False])
def test_hardly_any_noise_in_a_forged_run_spends_everything(run: Path, delta: bool) -> None:
    def noised(text: str) -> str:
        text = text.replace("noise = 0.0", "noise = 5e-324").replace(
            'clip = "none"\nnoise', "clip = 1.0\nnoise"
        )
        return text if delta else text.replace("delta = 1e-05\n", "")

    change(run, noised)
    change_lines(run, lambda line: line.__setitem__("released", {"0": 1}))
    assert summary(run)["privacy"].items() >= {"epsilon": None, "delta": 1e-5, "updates": 3}.items()
    for command in ("compare", "report"):
        assert call(command, str(run))[0] == 0


# -- checkpoints, with checksums that fit
# ----------------------------------------------------------------------------------

STATES: list[tuple[tuple[Any, ...], Any]] = [
    (("state", "leaves"), ""), (("state", "leaves"), [7]), (("members",), "x"), (("members",), [0, 77]), (("members",), []),
    (("kept",), 2**62), (("missed",), None), (("exchange",), -1), (("state", "tree", "nodes", 0, "parent"), [1, 2]),
    (("state", "tree", "nodes", 0, "parent"), 77), (("state", "tree", "nodes"), []), (("state", "models"), 0.5),
    (("state", "tree", "parameters"), 2**62), (("state", "walkers"), {"is": "mapping", "items": [[0, 77]]}),
]  # fmt: skip


@pytest.mark.parametrize(("path", "odd"), STATES, ids=range(len(STATES)))
def test_a_forged_checkpoint_is_one_sentence_or_a_result(
    run: Path, path: tuple[Any, ...], odd: Any
) -> None:
    (run / "state" / "000003.json").unlink()
    checkpoint = run / "state" / "000002.json"
    document = json.loads(checkpoint.read_text())
    del document["checksum"]
    table = document["value"]
    for key in path[:-1]:
        table = table[key] if isinstance(table, list) else table["fields"][key]
    (table if isinstance(table, list) else table["fields"])[path[-1]] = odd
    checkpoint.write_bytes(checksum.sealed_json(json.dumps(document).encode()))
    for command in ("export", "suggest", "resume"):
        (run.parent / command).mkdir()
        status, out, err = call(*words(command, run, run.parent / command))
        told = [line for line in err.splitlines() if "has records up to round 3" not in line]
        assert (status, len(told)) in ((0, 0), (2, 1)), (command, out, err)


def test_a_stored_field_is_what_its_annotation_says() -> None:
    note = codec.encode(Note(kind="split", effect="divides", clients=(1, 2), text="so"), str)
    for name, odd in (
        ("kind", 1),
        ("clients", "x"),
        ("clients", [1, "x"]),
        ("parts", [1]),
        ("numbers", []),
        ("text", None),
    ):
        forged = {**note, "fields": {**note["fields"], name: odd}}
        with pytest.raises(DamagedError, match=f"a stored note is damaged .its {name} is"):
            codec.decode(forged, bytes)


# -- files that are made to fill the memory
# --------------------------------------------------------------------------------


@pytest.mark.parametrize("command", ["compare", "check"])
def test_records_without_an_end_are_not_read_to_it(run: Path, command: str) -> None:
    with open(run / "rounds.jsonl", "r+b") as file:
        file.truncate(2_500_000_000)
    begun, before = clock.monotonic(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert "rounds.jsonl" in refused(command, run)
    assert clock.monotonic() - begun < 20
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 1_500_000  # kilobytes


def test_a_check_tells_so_many_damaged_lines_and_no_more(run: Path) -> None:
    with open(run / "rounds.jsonl", "ab") as file:
        file.write(b"\n" * 100_000)
    damaged = check(run).damaged
    assert len(damaged) == MAX_LISTED_DAMAGE + 1
    assert "has more damaged lines" in damaged[-1]


def test_a_file_of_a_users_own_is_small(tmp_path: Path) -> None:
    file = tmp_path / "experiment.toml"
    file.write_text("rounds = 1\n" + "#" * 2**20)
    assert (
        "more than the limit of 1,048,576"
        in call("run", str(file), "--out", str(tmp_path / "out"))[2]
    )
    file.write_text("rounds = 1\n" + "#" * 1000)
    assert coterie.runs.experiment.read(file)["rounds"] == 1


def test_a_checkpoint_of_a_blob_elsewhere_is_damaged(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path / "state")
    checkpoints.save(1, torch.ones(2))
    path = checkpoints.path(1)
    document = json.loads(path.read_text())
    del document["checksum"]
    document["value"]["blob"] = "../../thesis"
    path.write_bytes(checksum.sealed_json(json.dumps(document).encode()))
    with pytest.raises(DamagedError, match="is not a blob name"):
        checkpoints.load()


# -- a run that goes on, planted files, edits of what was run
# --------------------------------------------------------------


@pytest.mark.parametrize(
    ("was", "now"),
    [('precision = "fp32"', 'precision = "bf16"'), ('device = "cpu"', 'device = "cuda"'), ('mean = "mean"', 'mean = "median"'),
     ('engine = "inprocess"', 'engine = "flower"'), ("true_groups = [", "true_groups = [[],"),
     ("examples = [", "examples = [1, "), ('name = "linear"', 'name = "mlp"'), ("torch = ", "torch_ = "),
     ("schema = 1", "schema = 2"), ("rounds = 3", "rounds = -3")],
)  # fmt: skip
def test_an_edit_of_what_was_run_is_not_accepted(run: Path, was: str, now: str) -> None:
    path = run / "run.toml"
    text = path.read_text()
    assert was in text
    path.write_text(text.replace(was, now))
    status, out, err = call("check", str(run), "--accept")
    assert (status, out, len(err.splitlines())) == (2, "", 1)
    assert "run.toml cannot be accepted: " in err
    assert path.read_text() == text.replace(was, now)


# This run has no validation scores, which stop_after needs: see test_stop_after.py.
@pytest.mark.parametrize("name", [name for name in EDITABLE_ENTRIES if name != "stop_after"])
def test_when_a_run_ends_and_what_changes_no_result_is_accepted(run: Path, name: str) -> None:
    document = read_toml(run / "run.toml")
    document[name] = {"target": 0.99, "data": "elsewhere"}.get(name, 5)
    (run / "run.toml").write_text(to_toml(document))
    accept(run)
    assert check(run).damaged == []


def test_an_experiment_s_file_is_accepted_where_its_runs_are_of_it(tmp_path: Path) -> None:
    experiment(tmp_path / "several", "fedavg", seeds=[0, 1], rounds=1)
    path = tmp_path / "several" / "experiment.toml"
    text = path.read_text()
    path.write_text(text.replace('mean = "mean"', 'mean = "median"'))
    with pytest.raises(
        UserError, match=r"experiment\.toml cannot be accepted: .* does not have the run that"
    ):
        accept(tmp_path / "several")
    path.write_text(text.replace("rounds = 1", "rounds = 2"))
    accept(tmp_path / "several")
    assert call("resume", str(tmp_path / "several"), "--workers", "1")[0] == 0
    assert [len(Record(path.parent / f"fedavg-seed{seed}").lines()) for seed in (0, 1)] == [2, 2]


def test_while_a_run_goes_on_it_is_intact_and_can_be_exported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rounds are made, and checkpoints dropped, while the files are read."""
    scenario = {
        "name": "synthetic/groups",
        "clients": 4,
        "groups": 2,
        "examples": 200,
        "features": 4,
    }
    spec = {
        "scenario": scenario,
        "methods": ["cfl"],
        "rounds": 400,
        "workers": 1,
        "checkpoints_kept": 4,
    }
    (one,) = coterie.begin(make(spec), tmp_path / "run")
    rounds = one.rounds()
    for _ in range(2):
        next(rounds)
    monkeypatch.setattr(checking, "LOOK_PAUSE_SECONDS", 0.0)
    entries, document, left = Record.entries, Checkpoints.document, [0]

    def growing(self: Record) -> object:
        next(rounds)
        found = list(entries(self))
        next(rounds)
        return found

    def dropped(self: Checkpoints, *about: Any) -> object:
        more, left[0] = left[0], 0
        for _ in range(more):
            next(rounds)
        return document(self, *about)

    with monkeypatch.context() as patched:
        patched.setattr(Record, "entries", growing)
        assert check(tmp_path / "run").damaged == []
        coterie.save(tmp_path / "run", tmp_path / "models", warn=lambda text: None)
    monkeypatch.setattr(Checkpoints, "document", dropped)
    left[0] = 5
    coterie.save(tmp_path / "run", tmp_path / "again", warn=lambda text: None)
    left[0] = 5
    assert check(tmp_path / "run").damaged == []
    assert left == [0]
    rounds.close()  # type: ignore[attr-defined]


def test_a_blob_of_that_name_that_is_damaged_is_written_again(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path / "state")
    value = torch.arange(100.0)
    checkpoints.save(1, value)
    (blob,) = checkpoints.blobs.iterdir()
    whole = blob.read_bytes()
    for damage in (whole[:-1], whole[:-1] + b"\xff"):
        blob.write_bytes(damage)
        checkpoints.save(2, value)
        assert blob.read_bytes() == whole
        checkpoints.check(2)


def test_a_damaged_checkpoint_that_is_not_needed_may_be_deleted(run: Path) -> None:
    path = run / "state" / "000002.json"
    path.write_bytes(path.read_bytes() + b"x")
    (damaged,) = check(run).damaged
    assert damaged.endswith(
        "; that of round 3 is intact, so 000002.json is not needed and may be deleted"
    )
    path.unlink()
    assert check(run).damaged == []


def test_check_names_planted_files_and_none_of_coterie_s(run: Path) -> None:
    (run / "track").mkdir()
    for name in ("failure.txt", "report.html", "run.toml.part"):
        (run / name).write_text("")
    assert check(run).unchecked == []
    planted = [
        "similarity/round-9.safetensors",
        "state/blobs/" + 40 * "a" + ".safetensors",
        "state/notes",
    ]
    for name in ("other", *planted):
        (run / name).write_text("")
    assert check(run).unchecked == [f"{run} has other files: {', '.join(['other', *planted])}"]
    (run / "lock").write_text("1")
    assert (
        check(run)
        .unchecked[0]
        .startswith(f"{run} has other files: {', '.join(['other', *planted])} (some may be")
    )


def test_check_says_what_becomes_of_what_comes_after_the_last_line(run: Path) -> None:
    with open(run / "rounds.jsonl", "a") as file:
        file.write('{"round": 4, "ex')
    (told,) = check(run).unchecked
    assert (
        told
        == f"{run / 'rounds.jsonl'} has data after the last round, which no command reads; they may be deleted"
    )
    path = run / "run.toml"
    path.write_text(path.read_text().replace("rounds = 3", "rounds = 4"))
    accept(run)
    (told,) = check(run).unchecked
    assert told.endswith("has an incomplete last line; resuming repeats that round")


def test_check_without_a_file_or_checkpoints_says_what_that_means(run: Path) -> None:
    shutil.rmtree(run / "state")
    rows = (run / "rounds.jsonl").read_bytes().splitlines(keepends=True)
    (run / "rounds.jsonl").write_bytes(b"".join(rows[:2]))
    assert any("missing last rounds cannot be detected" in told for told in check(run).unchecked)
    (run / "run.toml").unlink()
    assert check(run).damaged == [f"{run / 'run.toml'} cannot be read: no such file or directory"]


def test_an_export_of_an_experiment_says_which_run_is_not_there(tmp_path: Path) -> None:
    experiment(tmp_path / "several", "fedavg", seeds=[0, 1], rounds=1)
    (tmp_path / "several" / "fedavg-seed0").rename(tmp_path / "several" / "first")
    with pytest.raises(
        UserError,
        match="fedavg-seed0 has no run: it was renamed, or it has not started; to start it, run coterie resume",
    ):
        coterie.save(tmp_path / "several", tmp_path / "models")
