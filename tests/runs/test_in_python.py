"""Coterie in Python and notebooks: names, short texts, tables, data frames, progress, and nets of clients."""

from __future__ import annotations

import builtins
import pickle
import re
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import coterie
import small
from coterie.core import Assignment, Federation, Note, Replies
from coterie.methods import CFL, FedAvg, FedPer
from coterie.records.record import RUN_FILE
from coterie.settings import UserError

NAMES = ("north", "<b>south</b>", "east", "west")
HOSTILE = '<script>alert("1")</script>\u202e'


def named(names: tuple[str, ...] = NAMES, **more: Any) -> coterie.World:
    clients = {name: small.client(seed) for seed, name in enumerate(names)}
    return small.world(clients=clients, **more)


def last(
    method: Any = "fedavg", world: coterie.World | None = None, rounds: int = 1, **more: Any
) -> coterie.Round:
    (*_, done) = coterie.run(method, world or named(), rounds=rounds, workers=1, **more)
    return done


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("python") / "runs"
    return coterie.begin(
        named(), folder, ["fedavg", "split-half"], rounds=3, eval_every=2, workers=1
    ).finish()


# ----------------------------------------------------------------------------------------------------
# Names and texts.


def test_the_names_of_the_package_are_what_users_need() -> None:
    found = dir(coterie)
    assert found == sorted(coterie.__all__)
    assert not [
        name
        for name in found
        if isinstance(getattr(coterie, name), ModuleType) or name in ("Any", "TYPE_CHECKING")
    ]
    assert {
        "Objective",
        "Metric",
        "METRICS",
        "REGRESSION",
        "MULTILABEL",
        "CLASSIFICATION",
        "ClientData",
        "whole",
    } <= set(found)


def shown() -> Iterator[Any]:
    world = coterie.SCENARIOS["digits/label-permutation"].build(seed=0)
    many = small.world(clients={f"client {number}": small.client(number) for number in range(60)})
    federation = Federation(
        clients=tuple(range(500)), draw=lambda i: torch.zeros(4), columns={"all": (0, 4)}
    )
    replies = Replies(
        clients=tuple(range(500)), examples=np.ones(500, dtype=int), updates=torch.zeros(500, 4)
    )
    note = Note(
        kind="keep",
        effect="keeps",
        clients=tuple(range(500)),
        text="all alike " * 90,
        similarity={"all": torch.eye(500)},
    )
    done = last(world=many)
    yield from (world, many, world.clients[0], world.clients[0].train, federation, replies, note)
    yield from (done, done.assignment, done.position)


def test_texts_are_a_line_and_tables_are_a_screen() -> None:
    for one in shown():
        assert len(repr(one)) < 400, type(one)
        assert "\n" not in repr(one)
        if hasattr(one, "_repr_html_"):
            assert one._repr_html_().count("<tr>") <= 21


@pytest.mark.parametrize(
    ("of", "text"),
    [
        (lambda world, done: world, "<World of 4 clients: north, <b>south</b>, east, west; 80 train, 24 validation and 36 test "
                                    "examples; metric accuracy>"),
        (lambda world, done: world.clients[2], "<ClientData east: 20 train, 6 validation, 9 test examples>"),
        (lambda world, done: world.clients[2].test, "<Split: 9 examples, inputs of shape (5,), targets of shape ()>"),
        (lambda world, done: done.assignment, "<Assignment: 1 group of 4 clients, models of shape (1, 75)>"),
        (lambda world, done: done.position, "<Position after round 1 (1 exchange): 4 members>"),
        (lambda world, done: replace(done, scores={0: {"loss": 1.0, "accuracy": 0.25}}),
         "<Round 1: 1 group of 4; accuracy 0.250; 4 of 4 replies>"),
        (lambda world, done: replace(done, scores=None), "<Round 1: 1 group of 4; 4 of 4 replies>"),
    ],
)  # fmt: skip
def test_what_texts_say(of: Any, text: str) -> None:
    world = named()
    assert repr(of(world, last(world=world))) == text


def test_texts_of_runs(runs: Any) -> None:
    assert repr(runs) == "<2 runs: fedavg seed 0, split-half seed 0>"
    assert repr(runs[0]) == f"<Run fedavg seed 0, 3 rounds, in {runs[0].folder}>"
    assert repr(runs[0].experiment) == "<Experiment: fedavg over own; seeds 0; 3 rounds>"


def test_the_names_of_clients_are_untrusted(tmp_path: Path) -> None:
    world = named((HOSTILE, "a", "b", "c"))
    (run,) = coterie.begin(world, tmp_path / "run", "fedavg", rounds=1, workers=1)
    (done,) = run.rounds()
    for one in (world, done, run):
        page = one._repr_html_()
        assert "<script" not in page
        assert "&lt;script&gt;" in page
        assert "\u202e" not in page + repr(one)


def test_a_run_in_a_notebook(runs: Any, tmp_path: Path) -> None:
    (page, _) = (one._repr_html_() for one in runs)
    mean = coterie.summary(runs[0])["accuracy"]["mean"]
    assert f"fedavg seed 0, {runs[0].folder}: round 3 of 3, accuracy {mean:.3f}" in page
    assert "&lt;b&gt;south&lt;/b&gt;, east, north, west" in page
    (fresh,) = coterie.begin(named(), tmp_path / "fresh", "fedavg", rounds=1, workers=1)
    assert "no round has been made yet" in fresh._repr_html_()
    (fresh.folder / RUN_FILE).write_text("schema = 1\n")
    assert "damaged" in fresh._repr_html_()


# ----------------------------------------------------------------------------------------------------
# Groups, means and nets of a round.


@pytest.mark.parametrize(
    ("names", "groups"),
    [
        (NAMES, (("<b>south</b>", "east", "north", "west"),)),
        (("30", "20", "10", "5"), ((5, 10, 20, 30),)),
    ],
    ids=["words", "numbers"],
)
def test_groups_have_the_names_of_clients(names: tuple[str, ...], groups: Any) -> None:
    assert last(world=named(names)).groups == groups


def test_groups_of_clients_without_names_have_ids() -> None:
    done = last(world=small.world())
    assert done.groups == done.assignment.groups == ((2, 3, 7, 11),)


def test_the_mean_is_over_honest_clients_with_a_value() -> None:
    scores = {
        0: {"loss": 1.0, "accuracy": 0.5}, 1: {"loss": 2.0, "accuracy": float("nan")}, 2: {"loss": 9.0, "accuracy": 0.0},
        3: {"loss": 3.0, "accuracy": 1.0},
    }  # fmt: skip
    done = replace(last(), scores=scores, adversaries=(2,))
    assert (done.mean(), done.mean("loss")) == (0.75, 2.0)
    assert replace(done, scores=None).mean() is None
    assert np.isnan(replace(done, scores={**scores, 1: {"loss": float("nan")}}).mean("loss"))
    with pytest.raises(UserError, match="no metric 'acuracy'; did you mean accuracy"):
        done.mean("acuracy")


class Two(coterie.methods.FedAvg):
    """FedAvg, whose clients are served by the ensemble of its model and of the opposite one."""

    def assignment(self, state: Any) -> Assignment:
        one = super().assignment(state)
        return replace(
            one,
            models=torch.cat([one.models, -0.5 * one.models]),
            path=dict.fromkeys(one.row, (0, 1)),
            ensemble=True,
        )


SEALED = coterie.Boundary(rotation="permute", secret=2**70)


@pytest.mark.parametrize(
    ("method", "model", "more"),
    [
        ("fedavg", small.mlp, {}),
        ("independent", small.mlp, {}),
        ("fedavg", small.normed, {}),
        ("fedavg", small.dropped, {"boundary": SEALED}),
        (FedPer(), small.mlp, {}),
        (Two(), small.mlp, {}),
        (Two(), small.mlp, {"boundary": SEALED}),
    ],
    ids=[
        "fedavg",
        "independent",
        "BatchNorm",
        "sealed",
        "own layers",
        "ensemble",
        "sealed ensemble",
    ],
)
def test_the_net_of_a_client_is_the_one_that_was_tested(method: Any, model: Any, more: Any) -> None:
    world = named(model=model)
    done = last(method, world, rounds=2, **more)
    assert done.scores is not None
    for client, name in enumerate(NAMES):
        for who in (name, client):
            net = done.model(who)
            assert not net.training
            inputs, targets = world.clients[client].test.batch(torch.arange(9))
            outputs = net(inputs)
            assert float((outputs.argmax(1) == targets).double().mean()) == pytest.approx(
                done.scores[client]["accuracy"]
            )
            loss = nn.functional.cross_entropy(outputs, targets).item()
            assert loss == pytest.approx(done.scores[client]["loss"], rel=1e-5)
    if isinstance(method, FedPer):
        states = [
            torch.cat([p.flatten() for p in done.model(name).parameters()]) for name in NAMES[:2]
        ]
        assert not torch.equal(*states)


def test_nets_of_a_recorded_run(tmp_path: Path) -> None:
    (run,) = coterie.begin(named(), tmp_path / "run", "fedper", rounds=2, workers=1)
    first = next(rounds := run.rounds())
    rounds.close()  # type: ignore[attr-defined]
    assert first.number == 1
    (again,) = coterie.reopen(run, world=named())
    (done,) = again.rounds()
    inputs, _ = named().clients[2].test.batch(torch.arange(9))
    straight = last("fedper", named(), rounds=2)
    torch.testing.assert_close(
        done.model("east")(inputs), straight.model("east")(inputs), rtol=0, atol=0
    )


def test_an_unknown_client_is_one_sentence() -> None:
    done = last()
    with pytest.raises(
        UserError, match=r"^round 1 has no client 'nroth'; did you mean north\? \(clients: north, "
    ):
        done.model("nroth")
    with pytest.raises(UserError, match="no client 4 "):
        done.model(4)
    numbers = last(world=named(("3", "2", "1", "4")))
    assert torch.equal(*(next(iter(numbers.model(who).parameters())) for who in (3, "3")))
    with pytest.raises(UserError, match="no client 0"):  # an id, where names are numbers
        numbers.model(0)


def test_a_pickled_round_has_no_nets() -> None:
    done = last()  # whose nets hold functions that cannot be pickled
    again = pickle.loads(pickle.dumps(replace(done, notes=())))
    assert (again.groups, again.scores) == (done.groups, done.scores)
    with pytest.raises(
        UserError,
        match=r"^round 1 cannot make the net of a client: it is of Flower's server or was pickled",
    ):
        again.model("north")


# ----------------------------------------------------------------------------------------------------
# Data frames.


def test_data_frames(runs: Any) -> None:
    pytest.importorskip("pandas")
    one = runs[0].to_pandas()
    assert list(one.columns) == ["round", "client", "group", "loss", "accuracy"]
    assert list(one["client"]) == list(NAMES) * 3
    assert one[one["round"] == 1]["accuracy"].isna().all()  # it was not tested
    final = one[one["round"] == 3].set_index("client")["accuracy"]
    assert final.mean() == pytest.approx(coterie.summary(runs[0])["accuracy"]["mean"])
    assert final.to_dict() == coterie.summary(runs[0])["accuracy"]["per_client"]
    both = runs.to_pandas()
    assert list(both.groupby("run").size()) == [12, 12]
    done = last()
    assert done.to_pandas().to_dict("records")[2] == {
        "round": 1,
        "client": "east",
        "group": 0,
        **(done.scores or {})[2],
    }


def test_a_comparison_is_a_list_a_frame_and_a_table(runs: Any) -> None:
    pytest.importorskip("pandas")
    found = coterie.compare(runs)
    assert isinstance(found, list)
    assert [one["method"] for one in found] == ["fedavg", "split-half"]
    frame = found.to_pandas()
    assert list(frame["accuracy"]) == [one["accuracy"]["mean"] for one in found]
    assert frame["accuracy low"].isna().all()  # one seed has no interval
    assert found._repr_html_().count("<tr>") == 3
    means = [one["score"]["mean"] for one in found]
    assert (
        repr(found)
        == f"<Comparison of 2 methods: fedavg {means[0]:.3f}, split-half {means[1]:.3f}>"
    )


@pytest.mark.parametrize("round", ["3", 0, 10**9, 1.0])
def test_a_round_that_is_not_recorded_is_one_sentence(runs: Any, round: Any) -> None:
    with pytest.raises(UserError, match=r"is not among the|must be an integer"):
        coterie.explain(runs[0], round=round)


def test_a_comparison_has_every_metric(tmp_path: Path) -> None:
    world = named(objective=coterie.Objective(metrics=("accuracy", "F1Score")))
    runs = coterie.begin(
        lambda seed: world, tmp_path / "runs", ["fedavg"], rounds=1, seeds=2, workers=1
    ).finish()
    (one,) = coterie.compare(runs)
    each = [coterie.summary(run)["F1Score"] for run in runs]
    assert one["others"] == ["F1Score"]
    assert one["F1Score"]["mean"] == pytest.approx(sum(each) / 2)
    assert coterie.compare(runs).to_pandas()["F1Score"][0] == pytest.approx(sum(each) / 2)


def test_entries_of_one_method_are_told_apart(tmp_path: Path) -> None:
    pytest.importorskip("pandas")
    methods = [CFL(eps1=0.5), CFL(eps1=0.25)]
    found = coterie.compare(
        coterie.begin(named(), tmp_path / "runs", methods, rounds=1, workers=1).finish()
    )
    assert list(found.to_pandas()["settings"]) == ["eps1 0.5", "eps1 0.25"]


def test_without_pandas_it_says_what_to_install(runs: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    for one in (runs, runs[0], last(), coterie.compare(runs)):
        with pytest.raises(
            UserError, match=r"^to_pandas needs pandas: pip install 'coterie\[notebook\]'$"
        ):
            one.to_pandas()


# ----------------------------------------------------------------------------------------------------
# Runs on disk.


def test_one_path_or_run_is_enough(runs: Any, tmp_path: Path) -> None:
    folder = runs[0].folder.parent
    for given in (folder, str(folder), [folder], runs):
        assert len(coterie.compare(given)) == 2
        assert "split-half" in coterie.write_report(given, tmp_path / "page.html").read_text()
    assert len(coterie.compare(runs[0])) == 1
    assert coterie.summary(runs[0])["run_dir"] == str(runs[0].folder)
    assert coterie.explain(runs[0]) == coterie.explain(runs[0].folder)


def test_runs_are_finished_in_one_call_and_in_a_loop(tmp_path: Path) -> None:
    runs = coterie.begin(named(), tmp_path / "runs", ["fedavg", "cfl"], rounds=2, workers=1)
    assert isinstance(runs, tuple)
    assert [done.number for done in runs[0].rounds()] == [1, 2]
    assert runs.finish() is runs
    assert all(one.finished() for one in coterie.reopen(tmp_path / "runs"))


# ----------------------------------------------------------------------------------------------------
# Progress.


def followed(**more: Any) -> list[int]:
    return [done.number for done in coterie.run("fedavg", named(), rounds=3, workers=1, **more)]


def test_no_progress_is_shown_unless_asked(capsys: pytest.CaptureFixture[str]) -> None:
    assert followed() == [1, 2, 3]
    assert capsys.readouterr().err == ""


def test_progress_is_a_bar_that_starts_no_thread(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("tqdm")
    monkeypatch.setattr("coterie.notebook.progress._is_watched", lambda: True)
    before = set(threading.enumerate())
    made = []
    for done in coterie.run("fedavg", named(), rounds=3, workers=1, progress=True):
        assert set(threading.enumerate()) == before
        made.append(done)
    said = capsys.readouterr().err
    assert f"accuracy {made[-1].mean():.3f}" in said
    assert re.search(r"fedavg: 100%.*3/3", said)


def test_without_tqdm_progress_is_a_line_per_round(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    original = builtins.__import__

    def without(name: str, *rest: Any) -> Any:
        if name.startswith("tqdm"):
            raise ImportError(name)
        return original(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without)
    monkeypatch.setattr("coterie.notebook.progress._is_watched", lambda: True)
    assert followed(progress=True) == [1, 2, 3]
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 3
    assert re.fullmatch(
        r"fedavg: round 2 of 3: 1 group of 4; accuracy 0\.\d{3}; 4 of 4 replies", lines[1]
    )


def test_the_bar_of_a_run_that_goes_on_begins_where_it_stopped(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("tqdm")
    monkeypatch.setattr("coterie.notebook.progress._is_watched", lambda: True)
    (run,) = coterie.begin(named(), tmp_path / "run", "fedavg", rounds=3, workers=1)
    rounds = run.rounds()
    next(rounds)
    rounds.close()  # type: ignore[attr-defined]
    assert [done.number for done in run.rounds(progress=True)] == [2, 3]
    assert "3/3" in capsys.readouterr().err


def test_stopping_early_stops_the_workers() -> None:
    import multiprocessing

    rounds = coterie.run("fedavg", named(), rounds=3, workers=2, progress=True)
    next(rounds)
    rounds.close()  # type: ignore[attr-defined]
    assert not multiprocessing.active_children()


def test_mistakes_are_told_before_the_first_round_with_progress_too() -> None:
    with pytest.raises(UserError, match="rounds must be an integer"):
        coterie.run("fedavg", named(), rounds=0, progress=True)


# ----------------------------------------------------------------------------------------------------
# Runs that continue.


def extended(names: tuple[str, ...], **more: Any) -> coterie.World:
    """A world of clients by name; a client has the same data in every world."""
    data = {
        name: (small.examples(20, seed).inputs, small.examples(20, seed).targets)
        for seed, name in enumerate(names)
    }
    given = {name: data[name] for name in sorted(names)}
    return coterie.from_lists(
        given, model=small.mlp, classes=small.CLASSES, standardize="pooled", **more
    )


def test_a_client_can_be_added_to_a_run() -> None:
    world = extended(("b", "c", "d"))
    start = last(FedPer(), world, rounds=2).position
    later = extended(("b", "c", "d", "a"), after=world)
    assert later.client_names == {0: "b", 1: "c", 2: "d", 3: "a"}
    assert later.about["means"] == world.about["means"]
    for client, data in world.clients.items():
        assert torch.equal(
            data.train.inputs[data.train.index],
            later.clients[client].train.inputs[data.train.index],
        )
    done = last(FedPer(), later, rounds=3, start=start)
    assert done.position.members == (0, 1, 2, 3)
    assert [note.kind for note in done.notes if note.clients == (3,)]
    fewer = extended(("b", "d"), after=world)
    assert fewer.client_names == {0: "b", 2: "d"}


@pytest.mark.parametrize(
    ("method", "world", "sentence"),
    [
        (
            "fedavg",
            extended(("b", "c", "d", "a")),
            "start has b as client 0, and the world has a: make the world with after=",
        ),
        ("fedavg", extended(("b", "c")), "start has the client d, and the world does not"),
        (
            "cfl",
            extended(("b", "c", "d")),
            "start is the position of another method: cfl has a CFLState, and it has a",
        ),
        (
            "fedavg",
            replace(extended(("b", "c", "d")), model=small.linear),
            "start is the position of a model with",
        ),
    ],
)
def test_a_position_of_another_run_is_refused(
    method: str, world: coterie.World, sentence: str
) -> None:
    start = last("fedavg", extended(("b", "c", "d"))).position
    with pytest.raises(UserError, match=re.escape(sentence)):
        last(method, world, rounds=2, start=start)


def test_after_needs_a_world_with_some_of_the_clients() -> None:
    with pytest.raises(
        UserError,
        match="after must be a world with some of these clients, by their names; it has none",
    ):
        extended(("a", "b"), after=named())


def test_clients_join_and_leave_by_their_names() -> None:
    attendance = coterie.Attendance(joins={"c": 2}, away={"a": [(2, 2)]})
    world = extended(("a", "b", "c"), attendance=attendance)
    assert (world.attendance.joins, world.attendance.away) == ({2: 2}, {0: [(2, 2)]})
    assert [
        done.position.members for done in coterie.run("fedavg", world, rounds=2, workers=1)
    ] == [(0, 1), (0, 1, 2)]
    with pytest.raises(UserError, match=r"World\.attendance has client 'cc', which does not exist"):
        extended(("a", "b", "c"), attendance=coterie.Attendance(joins={"cc": 2}))


def test_runs_of_an_own_method_continue_with_it(tmp_path: Path) -> None:
    class OwnFedAvg(FedAvg):
        """A method of a user, which cannot be imported."""

        name = "mine"

    folder = tmp_path / "runs"
    runs = coterie.begin(
        "digits/iid", folder, ["fedavg", OwnFedAvg(fraction=0.5)], rounds=2, workers=1
    )
    next(iter(runs[1].rounds()))
    with pytest.raises(
        UserError,
        match=r"has the method 'mine', which is not one of Coterie's; if it is yours, use Python",
    ):
        coterie.reopen(folder)
    assert not coterie.check(folder).damaged
    again = coterie.reopen(folder, methods=[OwnFedAvg()])
    assert again[1].method == OwnFedAvg(fraction=0.5)
    again.finish()
    coterie.save(again[1], tmp_path / "models")
    assert coterie.load(tmp_path / "models", 0)
    assert coterie.reopen(again[1].folder, methods=[OwnFedAvg()])[0].method == OwnFedAvg(
        fraction=0.5
    )


def test_in_a_log_progress_is_a_line_every_few_seconds(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # stderr is no terminal here, and three rounds take less than five seconds.
    assert followed(progress=True) == [1, 2, 3]
    (last_line,) = capsys.readouterr().err.splitlines()
    assert last_line.startswith("fedavg: round 3 of 3: ")
    # If time flies, each round has a line.
    monkeypatch.setattr("coterie.notebook.progress.MIN_SECONDS_BETWEEN_LINES", 0.0)
    assert followed(progress=True) == [1, 2, 3]
    assert len(capsys.readouterr().err.splitlines()) == 3
