"""A run directory from somebody else imports nothing, follows no link, waits for no pipe; and a secret is written nowhere."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import pytest

import coterie
from attack.run_directory import call, contents, experiment, words
from coterie.boundary import Boundary, Wire, known_by, secret_of_file, unlike_secret
from coterie.core import Position
from coterie.files import descriptor, read_within, within
from coterie.models.layout import Layout
from coterie.randomness import seeded
from coterie.records.checksum import sealed_toml
from coterie.records.record import Record
from coterie.records.store import Checkpoints, locked, write_whole
from coterie.records.text_files import read_toml, to_toml
from coterie.runs.experiment import make, read
from coterie.runs.folders import reopen
from coterie.settings import SettingError, UserError
from forged import forge
from page_runs import line, write
from scripted import bits
from small import mlp

SECRET = 90210441223
NET = "from torch import nn\n\n\ndef Net(shape, classes):\n    return nn.Linear(*shape, classes)\n"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("made")
    experiment(folder / "run")
    return folder / "run"


@pytest.fixture
def run(made: Path, tmp_path: Path) -> Path:
    shutil.copytree(made, tmp_path / "run")
    return tmp_path / "run"


# -- code
# -----------------------------------------------------------------------------------------------------------------


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run of the user's own net, which lies in the current folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(
        sys, "path", list(sys.path)
    )  # to which the command adds the current folder, in this process
    monkeypatch.delitem(sys.modules, "users_net_of_trust", raising=False)
    (tmp_path / "users_net_of_trust.py").write_text(NET)
    scenario = {
        "name": "synthetic/groups",
        "clients": 4,
        "groups": 2,
        "examples": 200,
        "model": "users_net_of_trust:Net",
    }
    spec = {"scenario": scenario, "methods": ["fedavg"], "rounds": 2, "workers": 1}
    (tmp_path / "mine.toml").write_text(to_toml(spec))
    assert (
        call("run", "mine.toml", "--out", "mine")[0] == 0
    )  # an experiment file is the user's word
    return tmp_path / "mine"


def test_a_recorded_model_is_imported_with_consent_alone(own: Path) -> None:
    for arguments in (
        ("export", "mine", "--to", "models"),
        ("suggest", "mine", "--workers", "1"),
        ("run", "mine/run.toml", "--out", "again"),
        ("run", "mine/run.toml", "--estimate"),
    ):
        status, _, err = call(*arguments)
        assert status == 2
        assert (
            "run.toml names the model 'users_net_of_trust:Net', which is code: Coterie would import"
            in err
        )
        assert (
            f"from {own.parent / 'users_net_of_trust.py'}; if you trust it, pass --trust-code"
            in err
        )
        assert not Path("models").exists()
        assert not Path("again").exists()
    for command in ("report", "compare", "explain", "resume", "check"):
        assert call(command, "mine")[0] == 0  # they need no net
    assert call("export", "mine", "--to", "models", "--trust-code")[0] == 0
    assert (
        call(
            "run",
            "mine/run.toml",
            "--set",
            "scenario.model=users_net_of_trust:Net",
            "--out",
            "again",
        )[0]
        == 0
    )
    assert call("run", "mine/run.toml", "--out", "third", "--trust-code")[0] == 0


def test_an_unfinished_run_goes_on_with_consent_alone(own: Path) -> None:
    (own / "state" / "000002.json").unlink()
    before = contents(own)
    status, _, err = call("resume", "mine")
    assert (status, len(err.splitlines())) == (2, 1)
    assert contents(own) == before
    assert call("resume", "mine", "--trust-code")[0] == 0
    assert not coterie.check(own).damaged


def test_consent_in_python(own: Path) -> None:
    from users_net_of_trust import Net  # type: ignore[import-not-found]

    with pytest.raises(UserError, match="trust_code=True"):
        coterie.save(own, "models")
    with pytest.raises(UserError, match="trust_code=True"):
        reopen(own)[0].experiment.world(0)
    with pytest.raises(UserError, match="trust_code=True"):
        make(read(own / "run.toml")).world(0)
    assert make(read(own / "run.toml", trust_code=True)).world(0)
    coterie.save(own, "models", trust_code=True)
    with pytest.raises(UserError, match=r"models\.json names the model"):
        coterie.load("models", 0)
    assert coterie.load("models", 0, trust_code=True)
    assert coterie.load("models", 0, model=lambda: Net((20,), 4))


@pytest.mark.slow
def test_the_experiment_of_several_runs_without_a_schema_is_not_trusted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    call(
        "run",
        "--scenario",
        "synthetic/groups",
        "--method",
        "fedavg",
        "--seeds",
        "2",
        "--rounds",
        "1",
        "--out",
        "theirs",
    )
    assert Path("theirs/experiment.toml").is_file()
    Path("evil_net_of_trust.py").write_text("open('imported', 'w')")
    scenario = {"name": "synthetic/groups", "model": "evil_net_of_trust:Net"}
    text = to_toml({"scenario": scenario, "methods": ["fedavg"], "rounds": 1})
    Path("theirs/experiment.toml").write_text(text)
    status, _, err = call("run", "theirs/experiment.toml", "--out", "mine")
    assert (status, len(err.splitlines())) == (2, 1)
    assert "experiment.toml has no schema version, so Coterie did not record it" in err
    assert not Path("imported").exists()
    Path("experiment.toml").write_text(
        to_toml({"scenario": "synthetic/groups", "methods": ["fedavg"], "rounds": 1})
    )
    assert (
        call("run", "experiment.toml", "--out", "mine")[0] == 0
    )  # the user's own file may have this name
    assert call("run", "experiment.toml", "--out", "again")[0] == 0


@pytest.mark.parametrize("training", [{}, {"lr": 0.1}], ids=["no training", "a part of it"])
def test_a_recorded_scenario_is_not_imported_for_the_training_that_the_record_lacks(
    training: dict[str, float], run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "evil_world_of_trust", raising=False)
    (tmp_path / "evil_world_of_trust.py").write_text(
        "open('imported', 'w').close()\n\n\ndef world(seed):\n    raise KeyError\n"
    )
    document = read_toml(run / "run.toml")
    changed = {**document, "scenario": {"name": "evil_world_of_trust:world"}, "training": training}
    (run / "run.toml").write_text(to_toml(changed))
    forge(run)
    for arguments in (
        ("export", "run", "--to", "models"),
        ("resume", "run"),
        ("suggest", "run"),
        ("run", "run/run.toml", "--out", "again"),
        ("run", "run/run.toml", "--estimate"),
    ):
        status, _, err = call(*arguments)
        assert (status, len(err.splitlines())) == (2, 1)
        assert "names the scenario 'evil_world_of_trust:world', which is code" in err
        assert "--trust-code" in err
    call("check", "run")
    assert not (tmp_path / "imported").exists()
    call("resume", "run", "--trust-code")
    assert (tmp_path / "imported").exists()


@pytest.mark.parametrize(
    "name", ["a..b:Net", ":Net", "../x:Net", "no_such_module_at_all:Net", "os.path:Net"]
)
def test_any_name_with_code_is_asked_for(run: Path, name: str) -> None:
    document = read_toml(run / "run.toml")
    document["world"]["model"]["name"] = name
    (run / "run.toml").write_text(to_toml(document))
    forge(run)
    with pytest.raises(UserError, match="which is code: Coterie would import"):
        coterie.save(run, run.parent / "models")


@pytest.mark.parametrize("name", ["run.toml", "mine.toml"])
def test_a_file_without_a_schema_in_a_run_directory_is_not_trusted(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    (run / "evil_net_of_trust.py").write_text("open('imported', 'w')")
    document = read_toml(run / "run.toml")
    scenario = {**document["scenario"], "model": "evil_net_of_trust:Net"}
    (run / name).write_text(to_toml({"scenario": scenario, "methods": ["fedavg"], "rounds": 1}))
    monkeypatch.chdir(run)
    status, _, err = call("run", name, "--out", str(tmp_path / "out"))
    assert (status, len(err.splitlines())) == (2, 1)
    assert f"{name} has no schema version, so Coterie did not record it" in err
    assert not (run / "imported").exists()
    assert not (tmp_path / "out").exists()


# -- links, pipes, names
# --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["../x", "/etc/passwd", "a/../../x", "", "a\0b", ".."])
def test_a_name_stays_within(tmp_path: Path, name: str) -> None:
    with pytest.raises(UserError, match="outside the folder"):
        within(tmp_path, name)


def test_no_link_on_the_way_is_followed(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "file").write_text("theirs")
    (tmp_path / "run" / "state").symlink_to(tmp_path / "outside")
    with pytest.raises(UserError, match="state is a symbolic link"):
        read_within(tmp_path / "run", "state/file")
    for action in (
        Checkpoints(tmp_path / "run" / "state").rounds,
        Checkpoints(tmp_path / "run" / "state").prune,
    ):
        with pytest.raises(UserError, match="state is a symbolic link"):
            action()
    (tmp_path / "named").symlink_to(tmp_path / "run")  # the user's own
    (tmp_path / "run" / "file").write_text("ours")
    assert read_within(tmp_path / "named", "file") == b"ours"


def test_no_linked_run_inside_a_folder_is_followed(run: Path, tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    shutil.copytree(run, tmp_path / "folder" / "a")
    (tmp_path / "folder" / "b").symlink_to("../run")
    (run / "run.toml").write_text((run / "run.toml").read_text() + "# edited\n")
    (tmp_path / "named").symlink_to("folder")  # the user's own
    before, inside = contents(run), contents(tmp_path / "folder" / "a")
    out = str(tmp_path / "page.html")
    for words_ in (("check", "--accept"), ("compare",), ("report", "-o", out)):
        status, told, err = call(words_[0], str(tmp_path / "named"), *words_[1:])
        assert (status, told) == (2, "")
        assert (
            f"{tmp_path / 'named' / 'b'} is a symbolic link, which Coterie does not follow here"
            in err
        )
    assert (contents(run), contents(tmp_path / "folder" / "a")) == (before, inside)
    assert not Path(out).exists()


def test_no_linked_export_inside_a_folder_is_checked(run: Path, tmp_path: Path) -> None:
    coterie.save(run, tmp_path / "models")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "b").symlink_to("../models")
    found = coterie.check(tmp_path / "folder")
    assert (found.intact, found.damaged) == (
        [],
        [
            f"{tmp_path / 'folder' / 'b'} is a symbolic link, which Coterie does not follow here",
        ],
    )


def test_a_second_name_is_not_written_in_place(tmp_path: Path) -> None:
    run = write(tmp_path / "run", [line(1, [[0, 1]])])
    os.link(run / "rounds.jsonl", tmp_path / "theirs")
    with pytest.raises(UserError, match=r"is one file with 2 names \(hard links\)"):
        Record(run).append(line(2, [[0, 1]]))
    assert os.read(descriptor(run / "rounds.jsonl", os.O_RDONLY), 9) == b'{"round":'


def test_a_lock_that_is_a_link_is_refused(tmp_path: Path) -> None:
    (tmp_path / "theirs").write_text("thesis")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "lock").symlink_to(tmp_path / "theirs")
    with pytest.raises(UserError, match="lock is a symbolic link"), locked(tmp_path / "run"):
        pass
    assert (tmp_path / "theirs").read_text() == "thesis"


def test_a_part_that_is_a_link_is_in_the_way(tmp_path: Path) -> None:
    (tmp_path / "theirs").write_text("thesis")
    (tmp_path / "file.part").symlink_to(tmp_path / "theirs")
    with pytest.raises(UserError, match="cannot be replaced"):
        write_whole(tmp_path / "file", b"ours")
    (tmp_path / "file.part").unlink()
    (tmp_path / "file").symlink_to(tmp_path / "theirs")
    write_whole(tmp_path / "file", b"ours")
    assert not (tmp_path / "file").is_symlink()
    assert (tmp_path / "theirs").read_text() == "thesis"


def test_only_files_named_by_coterie_are_removed(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path / "state")
    checkpoints.save(1, 1)
    theirs = ["thesis.safetensors", "thesis.safetensors.part", "notes.txt"]
    for name in theirs:
        (checkpoints.blobs / name).write_text("theirs")
    (tmp_path / "state" / "7.json").write_text("theirs")
    for round in (2, 3, 4):
        checkpoints.save(round, round)
    assert sorted(path.name for path in checkpoints.blobs.iterdir()) == sorted(theirs)
    assert (tmp_path / "state" / "7.json").read_text() == "theirs"
    assert checkpoints.rounds() == [3, 4]


# -- secrets
# --------------------------------------------------------------------------------------------------------------


@pytest.fixture
def sealed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv("COTERIE_SECRET", raising=False)
    (tmp_path / "secret").write_text(f"{SECRET}\n")
    experiment(tmp_path / "run", "fedavg", boundary={"rotation": "permute", "secret": SECRET})
    return tmp_path / "run"


def test_a_secret_is_given_again(
    sealed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert str(SECRET).encode() not in b"".join(contents(sealed).values())
    assert Record(sealed).description()["boundary"]["secret"] == "hidden"
    assert call("resume", str(sealed))[0] == 0  # it is finished
    status, _, err = call("export", str(sealed), "--to", str(tmp_path / "none"))
    assert status == 2
    assert "was recorded with a boundary secret, which was not given" in err
    with pytest.raises(UserError, match="and a different one was given"):
        coterie.save(sealed, tmp_path / "none", secret=SECRET + 1)
    assert (
        call(
            "export",
            str(sealed),
            "--to",
            str(tmp_path / "one"),
            "--secret-file",
            str(tmp_path / "secret"),
        )[0]
        == 0
    )
    monkeypatch.setenv("COTERIE_SECRET", str(SECRET))
    coterie.save(sealed, tmp_path / "two")
    one, two = contents(tmp_path / "one"), contents(tmp_path / "two")
    assert one == two
    assert str(SECRET).encode() not in b"".join(one.values())


def test_a_run_with_a_secret_goes_on_as_it_began(sealed: Path, tmp_path: Path) -> None:
    whole = Record(sealed).stored(Position)
    (sealed / "state" / "000003.json").unlink()
    status, _, err = call(*words("resume", sealed, tmp_path))
    assert (status, len(err.splitlines())) == (2, 1)
    assert (
        call("resume", str(sealed), "--workers", "1", "--secret-file", str(tmp_path / "secret"))[0]
        == 0
    )
    again = Record(sealed).stored(Position)
    assert whole is not None
    assert again is not None
    assert bits(whole[1]) == bits(again[1])
    assert not coterie.check(sealed).damaged


def test_a_recorded_file_is_run_again_with_its_secret(sealed: Path, tmp_path: Path) -> None:
    file = str(sealed / "run.toml")
    assert call("run", file, "--out", str(tmp_path / "a"))[0] == 2
    assert not (tmp_path / "a").exists()
    assert (
        call("run", file, "--out", str(tmp_path / "a"), "--secret-file", str(tmp_path / "secret"))[
            0
        ]
        == 0
    )
    first, again = Record(sealed).lines(), Record(tmp_path / "a").lines()
    assert [line["clients"] for line in first] == [line["clients"] for line in again]


def test_a_recorded_file_with_a_secret_in_plain_text_is_refused_and_not_shown(
    sealed: Path, tmp_path: Path
) -> None:
    document = read_toml(sealed / "run.toml")
    document["boundary"]["secret"] = SECRET
    (sealed / "run.toml").write_bytes(sealed_toml(to_toml(document)))
    for command in ("report", "compare", "explain", "resume", "check"):
        status, out, err = call(*words(command, sealed, tmp_path))
        assert status == (1 if command == "check" else 2)
        assert "has the boundary's secret in plain text" in out + err
        assert str(SECRET) not in out + err
    assert not (tmp_path / "page.html").exists()


@seeded(0)
def test_a_boundary_does_not_show_its_secret() -> None:
    boundary = Boundary(rotation="permute", secret=SECRET)
    wire = Wire(boundary, Layout(mlp()), 0)
    assert str(SECRET) not in repr(boundary) + str(boundary) + repr(wire) + repr([boundary])
    assert "hidden" in repr(boundary)
    assert "secret" not in repr(Boundary())
    assert boundary != Boundary(rotation="permute", secret=SECRET + 1)
    for wrong in (
        {"secret": -SECRET},
        {"secret": SECRET},
        {"secret": str(SECRET)},
        {"secret": float(SECRET)},
    ):
        with pytest.raises(SettingError) as told:
            Boundary(**wrong)  # type: ignore[arg-type]
        assert str(SECRET) not in str(told.value)


def test_what_a_record_keeps_of_a_secret() -> None:
    one, two = known_by(SECRET), known_by(SECRET)
    assert one != two
    assert unlike_secret(SECRET, one) is None is unlike_secret(SECRET, two)
    for wrong in (SECRET + 1, 0, None):
        assert unlike_secret(wrong, one)
    for odd in ("", "scrypt", "scrypt:x:y", "md5:00:00", one[:-2]):
        assert unlike_secret(SECRET, odd)


@pytest.mark.parametrize("text", ["", "word", "-3", "1 2", "9" * 2000, "²"])
def test_an_invalid_secret_file_is_refused_and_not_shown(tmp_path: Path, text: str) -> None:
    (tmp_path / "secret").write_text(text)
    with pytest.raises(UserError, match="its content is not shown"):
        secret_of_file(tmp_path / "secret")
