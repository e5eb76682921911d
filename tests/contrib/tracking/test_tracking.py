"""A tracker follows a record: every round once, whatever is killed, cut or goes wrong. And the command line's option."""

from __future__ import annotations

import os
import shutil
import threading
import time
from pathlib import Path

import pytest
from tracked import ROUNDS, Kept, append, cut, follow_one

from coterie.cli import main
from coterie.contrib.tracking import Tracking, following, track
from coterie.contrib.tracking import __main__ as process
from coterie.contrib.tracking.__main__ import follow
from coterie.contrib.tracking.trackers import TRACKERS, Tracker
from coterie.extensions import entry_points
from coterie.records.record import Record
from coterie.settings import UserError


def test_rounds_are_tracked_as_they_are_recorded(run: Path) -> None:
    rest = cut(run, 3)
    tracker = Kept(run)
    tracker.catch_up()
    assert tracker.rounds == [1, 2, 3]
    append(run, rest[:100])  # a line that is being written
    tracker.catch_up()
    assert tracker.rounds == [1, 2, 3]
    append(run, rest[100:])
    tracker.catch_up()
    assert tracker.rounds == list(range(1, ROUNDS + 1))
    assert tracker.finished
    splits = [note for line in Record(run).lines() for note in line["notes"] if note["similarity"]]
    assert len(tracker.pictures) == len(splits) > 1


def test_another_process_tracks_no_round_again_and_goes_on_with_the_sums(run: Path) -> None:
    whole, rest = Kept(run), cut(run, 5)
    follow_one(run, lambda folder: whole)
    assert (whole.rounds, whole.closed) == ([1, 2, 3, 4, 5], [False])
    append(run, rest)
    late = cut(run, 4)  # killed, and gone back to a checkpoint: round 5 is made again
    other = Kept(run)
    follow_one(run, lambda folder: other)
    assert (other.rounds, other.round, other.identity) == ([], 5, whole.identity)
    append(run, late)
    last = Kept(run)
    follow_one(run, lambda folder: last)
    assert (last.rounds, last.closed) == ([6, 7, 8], [True])
    assert last.numbers[-1]["traffic/bytes_up"] == sum(
        line["bytes_up"] for line in Record(run).lines()
    )
    assert Kept(run).round == ROUNDS


def test_a_round_in_which_the_tracker_failed_is_tracked_by_the_next(run: Path) -> None:
    failing = Kept(run, fails=4)
    with pytest.raises(RuntimeError, match="the store is full"):
        follow_one(run, lambda folder: failing)
    assert (failing.rounds, failing.closed) == ([1, 2, 3], [False])
    good = Kept(run)
    follow_one(run, lambda folder: good)
    assert good.rounds == [4, 5, 6, 7, 8]


def test_of_several_runs_each_is_read_to_its_end_and_closed_before_the_next(
    whole: Path, run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "READ_EVERY_SECONDS", 0.01)
    (tmp_path / "experiment.toml").touch()
    whole = Path(shutil.copytree(whole, tmp_path / "elsewhere" / "cfl"))
    rest, trackers = cut(run, 4), []
    ours, theirs = os.pipe()

    class Late(Kept):
        def catch_up(self) -> None:
            super().catch_up()
            if self.round == 4:  # the rest is recorded after this look, and the next run begins
                append(run, rest)
                os.write(theirs, os.fsencode(whole) + b"\n\n")

    def make(folder: Path) -> Kept:
        assert all(tracker.closed == [True] for tracker in trackers)
        trackers.append(Late(folder))
        return trackers[-1]

    os.write(theirs, os.fsencode(run) + b"\n")
    with (
        open(ours, "rb", buffering=0) as stream,
        open(theirs, "wb"),
    ):  # open: a forked worker may hold the other end
        follow(stream, make)
    assert [tracker.rounds for tracker in trackers] == [list(range(1, ROUNDS + 1))] * 2
    assert [tracker.home for tracker in trackers] == [tmp_path, whole]


def test_a_record_is_read_again_and_again_until_the_run_s_process_ends(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "READ_EVERY_SECONDS", 0.01)
    rests = [cut(run, 6), cut(run, 3)]
    ours, theirs = os.pipe()

    class Late(Kept):
        def catch_up(self) -> None:
            super().catch_up()
            if rests:
                append(run, rests.pop())
            elif self.finished and not self.closed:
                self.close()
                os.close(theirs)

    tracker = Late(run)
    os.write(theirs, os.fsencode(run) + b"\n")
    with open(ours, "rb", buffering=0) as stream:
        follow(stream, lambda folder: tracker)
    assert (tracker.rounds, tracker.closed) == (list(range(1, ROUNDS + 1)), [True, True])


def test_in_another_store_a_run_is_tracked_from_the_first_round(run: Path) -> None:
    one = Other(run, "")
    one.round = 5
    one.keep()
    assert Other(run, "").round == 5
    other = Other(run, "http://localhost:5000")
    assert other.round == 0
    assert other.identity != one.identity


class Other(Kept):
    """A tracker that may have another store."""

    def __init__(self, folder: Path, where: str) -> None:
        Tracker.__init__(self, folder, where)


@pytest.mark.parametrize("name", ["track", "track/kept", "track/kept/cfl", "track/kept/cfl/events"])
def test_nothing_is_written_through_a_link(run: Path, tmp_path: Path, name: str) -> None:
    (tmp_path / "outside").mkdir()
    shutil.rmtree(run / "track", ignore_errors=True)
    (run / name).parent.mkdir(parents=True, exist_ok=True)
    for target in (tmp_path / "outside", tmp_path / "new", Path("../../../../outside"), run / name):
        (run / name).unlink(missing_ok=True)
        (run / name).symlink_to(target)
        with pytest.raises(UserError, match="is a symbolic link"):
            Kept(run)


def test_links_to_a_tracker_s_own_files_are_left_alone(run: Path) -> None:
    (run / "track" / "wandb" / "first").mkdir(parents=True)
    (run / "track" / "wandb" / "latest").symlink_to("first")
    Kept(run)


@pytest.mark.parametrize(
    ("name", "said"),
    [("mlfow", "no tracker 'mlfow'; did you mean mlflow? (known: mlflow, prometheus, tensorboard, wandb)"),
     ("wandb", "tracking with wandb needs the module wandb: pip install 'coterie[track]'")],
)  # fmt: skip
@pytest.mark.parametrize("command", ["run --out new", "resume old"])
def test_a_mistake_costs_one_sentence_before_anything_is_written(
    name: str,
    said: str,
    command: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "wandb").mkdir()  # such as it leaves behind: no module
    monkeypatch.chdir(tmp_path)
    trackers = list(entry_points("coterie.trackers").values())
    site = tmp_path.parent / f"{tmp_path.name}-site" / "coterie-0.dist-info"
    site.mkdir(parents=True)
    (site / "entry_points.txt").write_text(
        "[coterie.hooks]\ntracking = coterie.contrib.tracking:Tracking\n[coterie.trackers]\n"
        + "".join(f"{point.name} = {point.target}\n" for point in trackers)
    )
    monkeypatch.setattr("sys.path", [str(tmp_path), str(site.parent)])
    monkeypatch.delitem(__import__("sys").modules, "wandb", raising=False)
    assert main([*command.split(), "--track", name]) == 2
    out, errors = capsys.readouterr()
    assert (out, len(errors.splitlines())) == ("", 1)
    assert said in errors
    assert sorted(path.name for path in tmp_path.iterdir()) == ["wandb"]


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Trackers of no packages: their process is this text."""
    package = tmp_path / "stand_in"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "__main__.py").write_text(
        "import sys, time\nname = sys.argv[1]\n"
        "for line in sys.stdin:\n"
        "    if name == 'fails': raise ValueError('no room left')\n"
        "    if name == 'hangs': time.sleep(60)\n"
        "    if not line.strip(): break\n"
        "    for i in range(5 * (name == 'slow')): time.sleep(0.5); open(line.strip() + '/track/slow.json', 'w')\n"
        "    print(line, file=open(line.strip() + '/seen', 'w'))\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(following, "__package__", "stand_in")
    monkeypatch.setattr(
        TRACKERS, "built_in", dict.fromkeys(("fails", "hangs", "slow", "works"), Tracker)
    )


def test_one_that_fails_is_told_of_and_the_others_go_on(run: Path, stand_in: None) -> None:
    said: list[str] = []
    before = threading.active_count()
    with Tracking(["fails", "works"], said.append) as tracking:
        deadline = time.monotonic() + 60
        while not said and time.monotonic() < deadline:
            tracking.follow(run)
            assert threading.active_count() == before  # workers are forked while this goes on
            time.sleep(0.05)
        assert said == [
            f"tracking with fails is off: no room left; details in {run / 'track' / 'fails.log'}"
        ]
        tracking.follow(run)
    assert len(said) == 1
    assert (run / "seen").is_file()
    assert "Traceback" in (run / "track" / "fails.log").read_text()
    with pytest.warns(UserWarning, match="tracking with fails is off: no room left"):
        track(run, "fails")


def test_a_tracker_imports_nothing_from_the_current_folder(
    run: Path, stand_in: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (run / "stand_in").mkdir()  # as of a stranger, who named it as Coterie's own
    (run / "stand_in" / "__main__.py").write_text("open('imported', 'w')")
    monkeypatch.chdir(run)
    with Tracking(["works"]) as tracking:
        tracking.follow(run)
    assert (run / "seen").is_file()
    assert not (run / "imported").exists()


def test_one_that_hangs_is_waited_for_and_then_stopped(
    run: Path, stand_in: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(following, "MAX_WAIT_SECONDS", 0.4)
    monkeypatch.setattr(following, "ANNOUNCE_SECONDS", 0.2)
    said: list[str] = []
    with Tracking(["hangs"], said.append, wait=said.append) as tracking:
        tracking.follow(run)
    behind, off = said
    assert behind == "waiting for hangs to track the last rounds"
    assert off == "tracking with hangs is off: it took more than 0 s for a round"


def test_one_that_makes_progress_is_waited_for_whichever_run_it_tracks(
    run: Path, stand_in: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(following, "MAX_WAIT_SECONDS", 1.5)
    monkeypatch.setattr(following, "ANNOUNCE_SECONDS", 0.2)
    (run / "track").mkdir()
    last = Path(shutil.copytree(run, run.parent / "last"))
    said: list[str] = []
    with Tracking(["slow"], said.append) as tracking:
        tracking.follow(run)
        tracking.follow(last)
    assert said == []
    assert (last / "seen").is_file()


def test_that_single_clients_are_left_out_is_told_once(
    run: Path, stand_in: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(following, "MAX_TRACKED_CLIENTS", 19)
    said: list[str] = []
    with Tracking(["works"], said.append) as tracking:
        tracking.follow(run)
        tracking.follow(run)
    assert said == [
        "of 20 clients, which are more than 19, only the clusters are tracked and not each client"
    ]
