"""``coterie explain``: words and values from records by hand, old records, and real runs of every method."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from coterie.cli import main
from coterie.core import Note
from coterie.methods import METHODS
from coterie.records.record import to_json
from coterie.report.explain import explain, words
from coterie.settings import UserError, as_dict
from told_runs import ran, recorded, square

OLD = Path(__file__).parent.parent / "old_runs" / "schema-2"
EVERYONE, LEFT, RIGHT = (0, 1, 2, 3), (0, 1), (2, 3)
COSINES = square([[1.0, 0.9, 0.1, 0.0], [0.9, 1.0, 0.2, 0.1], [0.1, 0.2, 1.0, 0.8], [0.0, 0.1, 0.8, 1.0]])
NORMS = {"node": 0.0, "heard": 4.0, "mean_norm": 0.31, "client_norm": 1.0, "peak": 2.0, "eps1": 0.5, "eps2": 0.8}


def cfl(**settings: Any) -> dict[str, Any]:
    return {"name": "cfl", **as_dict(METHODS["cfl"](**settings))}


def split(**more: Any) -> Note:
    numbers = {**NORMS, "alpha_cross": 0.2, "gamma_bound": 0.7, "smaller_side": 2.0, "held": 1.0}
    fields: dict[str, Any] = {"parts": (LEFT, RIGHT), "numbers": numbers, "similarity": {"all": COSINES}, **more}
    return Note(kind="split", clients=EVERYONE, text="stationary and separable", **fields)


def keep(clients: tuple[int, ...], **numbers: float) -> Note:
    return Note(kind="keep", clients=clients, text="not stationary", numbers={**NORMS, "heard": len(clients), **numbers})


def by_hand(folder: Path, **more: Any) -> Path:
    """Four clients who split in round 2 of 3."""
    rounds = [
        ((EVERYONE,), [keep(EVERYONE, mean_norm=0.9, alpha_cross=0.3)]),
        ((LEFT, RIGHT), [split()]),
        ((LEFT, RIGHT), [keep(LEFT, mean_norm=0.6, alpha_cross=-1.0), keep(RIGHT, mean_norm=0.4, client_norm=0.7)]),
    ]
    return recorded(folder, cfl(persistence=1), rounds, **more)


def test_a_run_tells_what_was_compared_how_close_it_was_and_what_would_have_changed_it(tmp_path: Path) -> None:
    run = by_hand(tmp_path / "run", truth=(LEFT, RIGHT))
    found = explain(run)
    (decision,) = found["decisions"]
    assert (decision["round"], decision["parts"]) == (2, [[0, 1], [2, 3]])
    assert [(c["value"], c["sign"], c["bound"], c["holds"]) for c in decision["criteria"]] == [
        (0.31, "<", 0.5, True), (0.5, ">=", 0.4, True), (0.7, ">", 0.68, True),
    ]  # fmt: skip
    text = words(run)
    assert "Round 2: clients 0-3 (4 clients) split into clients 0, 1 (2 clients) | clients 2, 3 (2 clients)." in flat(text)
    assert "With eps1 at or below 0.31 (it was 0.5), it would not have split in this round." in flat(text)
    assert "They are the same as the true groups, which no method was told" in flat(text)
    left, right = found["standing"]["groups"]
    assert [(c["setting"], c["sign"], round(c["value"], 6)) for c in left["decision"]["would_change"][0]["changes"]] == [
        ("eps1", ">", 0.6),
    ]  # fmt: skip
    assert right["decision"]["would_change"] == [
        {"changes": [{"setting": "eps1", "sign": ">", "value": pytest.approx(0.4 / 0.7), "was": 0.5},
                     {"setting": "eps2", "sign": "<=", "value": 0.35, "was": 0.4}],
         "then": "it would have come down to whether its sides can be told apart, which was not recorded"},
    ]  # fmt: skip
    assert found["unchanged"] == {"keep": 3}
    assert found["unexplained"] == []


def flat(text: str) -> str:
    return " ".join(text.split())


def test_a_client_is_told_with_whom_it_is_most_alike_on_both_sides(tmp_path: Path) -> None:
    run = by_hand(tmp_path / "run", truth=((0, 2), (1, 3)), silent={1: [2], 3: [2]}, refused={2: {"2": "a NaN in it"}})
    found = explain(run, client=2)
    (step,) = found["steps"]
    numbers = step["client"]["numbers"]
    assert (numbers["nearest_own"], numbers["nearest_other"], numbers["across"]) == (3, 1, [1, 2])
    assert numbers["together_above"] == pytest.approx(0.8)  # the weakest link that is left, that of 2 and 3
    assert step["accuracy_before"] == {"round": 1, "accuracy": pytest.approx(0.1)}
    assert (step["accuracy_after"]["round"], found["accuracy"]["round"]) == (2, 3)
    assert found["truth"] == {"group": [0, 2], "with": [3], "without": [0]}
    assert [(p["clients"], p["first"], p["last"]) for p in found["path"]] == [([0, 1, 2, 3], 1, 1), ([2, 3], 2, 3)]
    text = flat(words(run, client=2))
    for said in (
        "On its own side it was most alike with client 3: cosine 0.8.",
        "the greatest cosine across it (alpha_cross) is 0.2, between clients 1 and 2.",
        "This is not its true group: it is with client 3; it lacks client 0.",
        "It was asked and did not answer in rounds 1, 3.", "Its reply of round 2 was turned away: a NaN in it.",
    ):  # fmt: skip
        assert said in text


def test_as_things_stood_after_a_round(tmp_path: Path) -> None:
    run = by_hand(tmp_path / "run")
    early = explain(run, round=1)
    assert (early["round"], early["rounds"], early["decisions"]) == (1, 3, [])
    assert "the groups are those of the first round" in flat(words(run, round=1))
    (one,) = early["standing"]["groups"]
    (flip,) = one["decision"]["would_change"]
    assert flip["then"] == "it would have split in this round"
    assert explain(run, client=0, round=1)["group"] == [0, 1, 2, 3]
    assert explain(run, round=3) == explain(run)


def test_a_change_that_no_note_tells_is_said_to_be_without_a_reason(tmp_path: Path) -> None:
    run = recorded(tmp_path / "run", {"name": "mine"}, [((EVERYONE,), []), ((LEFT, RIGHT), [])])
    assert explain(run)["unexplained"] == [{"round": 2, "groups": [[0, 1], [2, 3]]}]
    assert "no reason was recorded" in flat(words(run))


def test_a_method_of_ones_own_explains_itself_by_its_notes(tmp_path: Path) -> None:
    note = Note(kind="cluster", clients=EVERYONE, parts=(LEFT, RIGHT), text="two means, 3.2 apart", numbers={"apart": 3.2},
                values={"distance": {0: 0.5, 1: 0.25, 2: 0.125, 3: 0.75}})  # fmt: skip
    run = recorded(tmp_path / "run", {"name": "mine"}, [((LEFT, RIGHT), [note])])
    assert "Two means, 3.2 apart." in words(run)
    text = flat(words(run, client=1))
    assert "Its distance: 0.25." in text
    assert "It came to clients 0, 1 (2 clients)." in text


def test_of_many_decisions_the_first_and_the_last_are_told_and_all_are_in_the_values(tmp_path: Path) -> None:
    rounds = [((LEFT, RIGHT) if i % 2 else ((0, 2), (1, 3)), []) for i in range(30)]
    rounds = [(groups, [Note(kind="cluster", clients=EVERYONE, parts=groups, text="made anew")]) for groups, _ in rounds]
    run = recorded(tmp_path / "run", {"name": "mine"}, rounds)
    assert len(explain(run)["decisions"]) == 30
    assert "18 further decisions" in words(run)
    assert len(explain(run, client=3)["steps"]) == 30
    assert "20 further steps" in words(run, client=3)


def test_losses_with_each_model_and_the_margin_to_the_second(tmp_path: Path) -> None:
    values = {"model": {0: 1.0, 1: 0.0}, "loss": {0: 0.5, 1: 0.25},
              "loss 0": {0: 0.75, 1: 0.25}, "loss 1": {0: 0.5, 1: 0.375}}  # fmt: skip
    note = Note(kind="cluster", clients=(0, 1), parts=((0,), (1,)), text="", numbers={"moved": 0.0}, values=values)
    run = recorded(tmp_path / "run", {"name": "ifca", "models": 2}, [(((0,), (1,)), [note])])
    (step,) = explain(run, client=0)["steps"]
    assert step["client"]["numbers"] == {"model": 1, "losses": {"0": 0.75, "1": 0.5}, "margin": 0.25, "second": 0}
    assert "had its loss with model 0 been below 0.5, it would have taken that first." in flat(words(run, client=0))
    assert "client 1 (0.125), client 0 (0.25)" in flat(words(run))


@pytest.mark.parametrize(
    ("method", "numbers", "says"),
    [
        ({"name": "cfl"}, {"at": 0, "node": 2, "node_1": 0.25, "node_2": 0.75},
         "0.75 for branch 2 (clients 2, 3 (2 clients)); 0.25 for branch 1 (clients 0, 1 (2 clients))."),
        ({"name": "flhc", "threshold": 3.0, "metric": "l2"}, {"at": 0, "node": 1, "node_1": 2.0, "node_2": 2.5},
         "With threshold at or below 2 (it was 3.0), it would have been a group of its own."),
        ({"name": "flhc", "threshold": 0.4, "metric": "cosine", "linkage": "average"},
         {"at": 0, "node": 3, "node_1": 0.5, "node_2": 0.25},
         "With threshold above 0.5 (it was 0.4), it would have joined the nearest branch."),
        ({"name": "split-half", "level": 1e-4}, {"at": 0, "node": 1, "node_1": 0.1, "node_2": 2.0, "p_1": 0.25, "p_2": 1e-9},
         "With level above 0.25 (it was 0.0001), it would have been a group of its own."),
        ({"name": "acfl", "threshold": 0.5}, {"similarity": 0.75, "like": 3},
         "With threshold at or above 0.75 (it was 0.5), it would have been a group of its own."),
        ({"name": "hcct", "tradeoff": 0.7}, {"gain": 0.5}, "was 0.5, above 0 (0.5 above): it joined that group."),
    ],
)  # fmt: skip
def test_how_a_newcomer_found_its_group(tmp_path: Path, method: dict[str, Any], numbers: dict[str, float], says: str) -> None:
    made = Note(kind="split", clients=EVERYONE, parts=(LEFT, RIGHT), text="", numbers={"node": 0.0, "first_part": 1.0})
    here = Note(kind="join", clients=(7,), text="1 client joined in round 2")
    came = Note(kind="join", clients=(7,), text="client 7 joins", numbers=numbers)
    rounds = [((LEFT, RIGHT), [made]), ((LEFT, RIGHT, (7,)), [here]), ((LEFT, (2, 3, 7)), [came])]
    run = recorded(tmp_path / "run", method, rounds)
    assert says.replace("it was 3.0", "it was 3") in flat(words(run, client=7))
    assert [d["round"] for d in explain(run)["decisions"]] == [1, 3]
    assert "Round 2: client 7 came." in flat(words(run))


# -- errors ---------------------------------------------------------------------------------------------------------------


def test_errors_are_one_sentence_and_exit_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = by_hand(tmp_path / "runs" / "one")
    by_hand(tmp_path / "runs" / "two")
    empty = recorded(tmp_path / "empty", cfl(), [])
    for arguments, says in (
        ([str(run), "--client", "9"], "client 9 is not one of the run's clients: after round 3 there are 4 clients, 0 to 3"),
        ([str(run), "--round", "4"], "--round 4 is not among the 3 recorded rounds"),
        ([str(run), "--round", "0"], "1 to 3"),
        ([str(tmp_path / "runs")], "has 2 runs inside, and explain tells of one: one, two"),
        ([str(empty)], "has no completed round yet"),
        ([str(tmp_path / "none")], "is not a run directory"),
    ):
        assert main(["explain", *arguments]) == 2
        said = capsys.readouterr()
        assert said.out == ""
        assert says in said.err
        assert said.err.count("\n") == 1


def test_the_command_prints_words_or_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = by_hand(tmp_path / "run")
    assert main(["explain", str(run), "--client", "2"]) == 0
    text = capsys.readouterr().out
    assert text.startswith("Client 2.")
    assert max(map(len, text.splitlines())) <= 100
    assert main(["explain", str(run), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == json.loads(to_json(explain(run)))


# -- old records and real runs --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", sorted(path.parent.name for path in OLD.glob("*/run.toml")))
def test_old_run_directories_are_explained(name: str) -> None:
    found = explain(OLD / name)
    assert found["decisions"]
    for client in {c for group in found["groups"] for c in group}:
        assert explain(OLD / name, client=client)["steps"]
        assert words(OLD / name, client=client)


REAL = {
    "cfl": {"persistence": 1}, "flhc": {"warmup": 1, "threshold": 2.0, "fraction": 1.0}, "acfl": {"threshold": 0.7},
    "maxfl": {"pretrain_epochs": 1}, "split-half": {"probe_every": 2, "review_every": 2},
    "ifca": {"initial": "kmeans++"},
}  # fmt: skip


@pytest.mark.parametrize("name", METHODS)
def test_every_method_explains_every_client_and_round(tmp_path: Path, name: str) -> None:
    run = ran(tmp_path / "run", {"name": name, **REAL.get(name, {})}, newcomers=1, join_round=5, silent=0.2)
    found = explain(run)
    assert found["unexplained"] == []
    assert found["not_recorded"] == []
    clients = sorted(c for group in found["groups"] for c in group)
    assert len(clients) == 8
    for client in clients:
        text = words(run, client=client)
        assert "not recorded" not in text
        json.dumps(explain(run, client=client), allow_nan=False)
    for number in range(1, 9):
        assert words(run, round=number)
    if name in ("cfl", "flhc", "acfl", "hcct", "ifca", "split-half"):
        assert found["decisions"]


def test_what_is_told_of_a_group_is_told_with_its_limits(tmp_path: Path) -> None:
    """No setting is told to be what it cannot be: a level of 1, a gamma_max of 1."""
    numbers = {**NORMS, "alpha_cross": -1.0, "gamma_bound": 1.0, "held": 1.0}
    run = recorded(tmp_path / "run", cfl(persistence=1), [((LEFT, RIGHT), [split(numbers=numbers)])])
    settings = {c["setting"] for flip in explain(run)["decisions"][0]["would_change"] for c in flip["changes"]}
    assert settings == {"eps1", "eps2", "persistence"}


def test_a_client_that_left_is_told_when_it_was_last_there(tmp_path: Path) -> None:
    run = recorded(tmp_path / "run", {"name": "fedavg"}, [(((1, 2, 5),), []), (((1, 2),), [])])
    with pytest.raises(UserError, match=r"client 5 was last there in round 1: .* the nearest is 2"):
        explain(run, client=5)
    assert "Round 2: client 5 left." in flat(words(run))
