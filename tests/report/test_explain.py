"""``coterie explain``: words and values from records by hand, frozen records, and real runs of every method."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch

from coterie.cli import main
from coterie.core import Criterion, Note
from coterie.methods import METHODS
from coterie.records.text_files import to_json
from coterie.report.explain import explain, words
from coterie.settings import UserError, plain
from method_examples import of_each_kind
from told_runs import ran, recorded, square

OLD = Path(__file__).parent.parent / "old_runs" / "schema-1"
EVERYONE, LEFT, RIGHT = (0, 1, 2, 3), (0, 1), (2, 3)
COSINES = square(
    [[1.0, 0.9, 0.1, 0.0], [0.9, 1.0, 0.2, 0.1], [0.1, 0.2, 1.0, 0.8], [0.0, 0.1, 0.8, 1.0]]
)


def cfl(**settings: Any) -> dict[str, Any]:
    return {"name": "cfl", **plain(METHODS["cfl"](**settings))}


def criteria(mean: float, most: float, noise: float | None = None) -> tuple[Criterion, ...]:
    """The criteria of CFL by hand."""
    tests = [Criterion("mean update", mean, "<", 0.5, "eps1", "stationary", "not stationary")]
    tests.append(Criterion("largest update", most, ">=", 0.4, "eps2", "incongruent", "congruent"))
    if noise is not None:
        tests.append(
            Criterion("noise allowed", noise, ">", 0.68, "gamma_max", "separable", "not separable")
        )
    return tuple(tests)


def split(**more: Any) -> Note:
    fields: dict[str, Any] = {
        "parts": (LEFT, RIGHT),
        "similarity": {"all": COSINES},
        "criteria": criteria(0.31, 0.5, 0.7),
        "otherwise": "it would not have split in this round",
        **more,
    }
    return Note(
        kind="split", effect="divides", clients=EVERYONE, text="stationary and separable", **fields
    )


def keep(clients: tuple[int, ...], *tests: float) -> Note:
    then = "it would have split in this round"
    return Note(
        kind="keep",
        effect="keeps",
        clients=clients,
        text="not stationary",
        criteria=criteria(*tests),
        otherwise=then,
    )


def by_hand(folder: Path, **more: Any) -> Path:
    """Four clients who split in round 2 of 3."""
    rounds = [
        ((EVERYONE,), [keep(EVERYONE, 0.9, 0.5, 0.7)]),
        ((LEFT, RIGHT), [split()]),
        ((LEFT, RIGHT), [keep(LEFT, 0.6, 0.5, 1.0), keep(RIGHT, 0.571, 0.35)]),
    ]
    return recorded(folder, cfl(persistence=1), rounds, **more)


def test_a_decision_has_its_criteria_their_margins_and_what_would_have_changed_it(
    tmp_path: Path,
) -> None:
    run = by_hand(tmp_path / "run", truth=(LEFT, RIGHT))
    found = explain(run)
    (decision,) = found["decisions"]
    assert (decision["round"], decision["parts"]) == (2, [[0, 1], [2, 3]])
    assert [(c["value"], c["sign"], c["bound"], c["held"]) for c in decision["criteria"]] == [
        (0.31, "<", 0.5, True),
        (0.5, ">=", 0.4, True),
        (0.7, ">", 0.68, True),
    ]
    text = words(run)
    assert (
        "Round 2: clients 0-3 (4 clients) split into clients 0, 1 (2 clients) | clients 2, 3 (2 clients)."
        in flat(text)
    )
    assert (
        "With eps1 at or below 0.31 (it was 0.5), it would not have split in this round."
        in flat(text)
    )
    assert "They are the same as the true groups, which are hidden from all methods" in flat(text)
    left, right = found["standing"]["groups"]
    assert [
        (c["setting"], c["sign"], round(c["value"], 6))
        for c in left["decision"]["would_change"][0]["changes"]
    ] == [
        ("eps1", ">", 0.6),
    ]
    assert right["decision"]["would_change"] == [
        {
            "changes": [
                {"setting": "eps1", "sign": ">", "value": 0.571, "was": 0.5},
                {"setting": "eps2", "sign": "<=", "value": 0.35, "was": 0.4},
            ],
            "then": "it would have split in this round",
        },
    ]
    assert (
        "How close: mean update 0.31, a factor of 1.61 below eps1 0.5; largest update 0.5, 25 % above eps2 0.4"
        in flat(text)
    )
    assert found["unchanged"] == {"keep": 3}
    assert found["unexplained"] == []


def flat(text: str) -> str:
    return " ".join(text.split())


def test_a_client_has_its_nearest_client_in_its_group_and_in_another(tmp_path: Path) -> None:
    run = by_hand(
        tmp_path / "run",
        truth=((0, 2), (1, 3)),
        silent={1: [2], 3: [2]},
        refused={2: {"2": "a NaN in it"}},
    )
    found = explain(run, client=2)
    (step,) = found["steps"]
    nearest = step["client"]["nearest"]
    assert [(where, one["client"], one["measure"]) for where, one in nearest.items()] == [
        ("in its part", 3, "cosine"),
        ("in another", 1, "cosine"),
    ]
    assert [one["value"] for one in nearest.values()] == pytest.approx([0.8, 0.2])
    assert step["score_before"] == {
        "round": 1,
        "metric": "accuracy",
        "value": pytest.approx(0.1),
        "personal": False,
    }
    assert (step["score_after"]["round"], found["score"]["round"]) == (2, 3)
    assert found["truth"] == {"group": [0, 2], "with": [3], "without": [0]}
    assert [(p["clients"], p["first"], p["last"]) for p in found["path"]] == [
        ([0, 1, 2, 3], 1, 1),
        ([2, 3], 2, 3),
    ]
    text = flat(words(run, client=2))
    for said in (
        "Nearest to it: client 3 in its part (cosine 0.8) and client 1 in another (cosine 0.2).",
        "This is not its true group: it is with client 3; it lacks client 0.",
        "It did not answer in rounds 1, 3.",
        "Its reply of round 2 was refused: a NaN in it.",
    ):
        assert said in text


def test_an_explanation_may_be_of_an_earlier_round(tmp_path: Path) -> None:
    run = by_hand(tmp_path / "run")
    early = explain(run, round=1)
    assert (early["round"], early["rounds"], early["decisions"]) == (1, 3, [])
    assert "the groups are those of the first round" in flat(words(run, round=1))
    (one,) = early["standing"]["groups"]
    (flip,) = one["decision"]["would_change"]
    assert flip["then"] == "it would have split in this round"
    assert explain(run, client=0, round=1)["group"] == [0, 1, 2, 3]
    assert explain(run, round=3) == explain(run)


def test_a_change_without_a_note_is_said_to_have_no_recorded_reason(tmp_path: Path) -> None:
    run = recorded(tmp_path / "run", {"name": "mine"}, [((EVERYONE,), []), ((LEFT, RIGHT), [])])
    assert explain(run)["unexplained"] == [{"round": 2, "groups": [[0, 1], [2, 3]]}]
    assert "no reason was recorded" in flat(words(run))


def test_a_users_method_is_explained_by_its_notes(tmp_path: Path) -> None:
    note = Note(
        kind="cluster",
        effect="divides",
        clients=EVERYONE,
        parts=(LEFT, RIGHT),
        text="two means, 3.2 apart",
        numbers={"apart": 3.2},
        values={"distance": {0: 0.5, 1: 0.25, 2: 0.125, 3: 0.75}},
    )
    run = recorded(tmp_path / "run", {"name": "mine"}, [((LEFT, RIGHT), [note])])
    assert "Two means, 3.2 apart." in words(run)
    text = flat(words(run, client=1))
    assert "Its distance: 0.25." in text


def test_of_many_decisions_the_words_have_the_first_and_the_last_and_the_values_all(
    tmp_path: Path,
) -> None:
    rounds = [((LEFT, RIGHT) if i % 2 else ((0, 2), (1, 3)), []) for i in range(30)]
    rounds = [
        (
            groups,
            [
                Note(
                    kind="cluster",
                    effect="divides",
                    clients=EVERYONE,
                    parts=groups,
                    text="made anew",
                )
            ],
        )
        for groups, _ in rounds
    ]
    run = recorded(tmp_path / "run", {"name": "mine"}, rounds)
    assert len(explain(run)["decisions"]) == 30
    assert "18 further decisions" in words(run)
    assert len(explain(run, client=3)["steps"]) == 30
    assert "20 further steps" in words(run, client=3)


def test_a_users_method_is_explained_by_its_criteria(tmp_path: Path) -> None:
    """No setting of a method that is not installed here is known; its bound is then that of the note."""
    test = Criterion("apart", 3.2, ">", 2.0, setting="least", met="two groups")
    note = Note(
        kind="cluster",
        effect="divides",
        clients=EVERYONE,
        parts=(LEFT, RIGHT),
        text=test.text,
        criteria=(test,),
        otherwise="one group",
        similarity={"all": 1 - COSINES - torch.diag(1 - COSINES.diagonal())},
    )
    run = recorded(tmp_path / "run", {"name": "mine"}, [((LEFT, RIGHT), [note])])
    text = flat(words(run, client=1))
    assert (
        "Two groups: apart 3.2 > least 2. How close: apart 3.2, a factor of 1.6 above least 2."
        in text
    )
    assert "With least at or above 3.2 (it was 2), one group." in text
    assert (
        "Nearest to it: client 0 in its part (distance 0.1) and client 2 in another (distance 0.8)."
        in text
    )


def test_losses_with_each_model_are_ordered(tmp_path: Path) -> None:
    values = {
        "model": {0: 1.0, 1: 0.0},
        "loss": {0: 0.5, 1: 0.25},
        "loss of model 0": {0: 0.75, 1: 0.25},
        "loss of model 1": {0: 0.5, 1: 0.375},
    }
    note = Note(
        kind="cluster",
        effect="divides",
        clients=(0, 1),
        parts=((0,), (1,)),
        text="",
        numbers={"moved": 0.0},
        values=values,
    )
    run = recorded(tmp_path / "run", {"name": "ifca", "models": 2}, [(((0,), (1,)), [note])])
    assert "Its loss of model 1: 0.5; 0: 0.75." in flat(words(run, client=0))


def test_a_newcomer_found_its_group(tmp_path: Path) -> None:
    made = Note(kind="split", effect="divides", clients=EVERYONE, parts=(LEFT, RIGHT), text="")
    here = Note(kind="arrive", effect="arrives", clients=(7,), text="1 client joined in round 2")
    test = Criterion("similarity", 0.75, ">", 0.5, "threshold", met="it joins that group")
    came = Note(
        kind="join",
        effect="joins",
        clients=(7,),
        text="client 7 joins",
        criteria=(test,),
        otherwise="it would have been alone",
    )
    rounds = [((LEFT, RIGHT), [made]), ((LEFT, RIGHT, (7,)), [here]), ((LEFT, (2, 3, 7)), [came])]
    run = recorded(tmp_path / "run", {"name": "acfl", "threshold": 0.5}, rounds)
    assert "With threshold at or above 0.75 (it was 0.5), it would have been alone." in flat(
        words(run, client=7)
    )
    assert [d["round"] for d in explain(run)["decisions"]] == [1, 3]
    assert "Round 2: client 7 arrived." in flat(words(run))
    assert "Round 3: client 7 joined clients 2, 3 (2 clients)." in flat(words(run))


def test_an_infinite_bound_is_that_of_the_setting(tmp_path: Path) -> None:
    test = Criterion("largest update", 1.0, ">=", math.inf, "eps2", "incongruent", "congruent")
    note = Note(
        kind="keep",
        effect="keeps",
        clients=EVERYONE,
        text=test.text,
        criteria=(test,),
        otherwise="it would have split",
    )
    run = recorded(tmp_path / "run", cfl(eps2=math.inf), [((EVERYONE,), [note])])
    (standing,) = explain(run)["standing"]["groups"]
    assert (
        standing["decision"]["would_change"][0]["changes"][0]["was"] is None
    )  # JSON has no infinity
    assert "With eps2 at or below 1 (it was inf)" in flat(words(run))


# -- errors
# ---------------------------------------------------------------------------------------------------------------


def test_errors_are_one_sentence_and_exit_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = by_hand(tmp_path / "runs" / "one")
    by_hand(tmp_path / "runs" / "two")
    empty = recorded(tmp_path / "empty", cfl(), [])
    for arguments, says in (
        (
            [str(run), "--client", "9"],
            "client 9 is not one of the run's clients; after round 3 these are 0-3 (4 clients)",
        ),
        ([str(run), "--round", "4"], "--round 4 is not among the 3 recorded rounds"),
        ([str(run), "--round", "0"], "1 to 3"),
        ([str(tmp_path / "runs")], "has 2 runs inside; explain takes one of them: one, two"),
        ([str(empty)], "has no completed round yet"),
        ([str(tmp_path / "none")], "is not a run directory"),
    ):
        assert main(["explain", *arguments]) == 2
        said = capsys.readouterr()
        assert said.out == ""
        assert says in said.err
        assert said.err.count("\n") == 1


def test_the_command_prints_words_or_json(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = by_hand(tmp_path / "run")
    assert main(["explain", str(run), "--client", "2"]) == 0
    text = capsys.readouterr().out
    assert text.startswith("Client 2.")
    assert max(map(len, text.splitlines())) <= 100
    assert main(["explain", str(run), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == [json.loads(to_json(explain(run)))]


# -- frozen records and real runs
# -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", sorted(path.parent.name for path in OLD.glob("*/run.toml")))
def test_frozen_run_directories_are_explained(name: str) -> None:
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


@pytest.mark.parametrize("name", of_each_kind(METHODS))
def test_every_method_explains_every_client_and_round(tmp_path: Path, name: str) -> None:
    run = ran(
        tmp_path / "run",
        {"name": name, **REAL.get(name, {})},
        newcomers=1,
        join_round=5,
        silent=0.2,
    )
    found = explain(run)
    assert found["unexplained"] == []
    clients = sorted(c for group in found["groups"] for c in group)
    assert len(clients) == 8
    for client in clients:
        text = words(run, client=client)
        assert text
        json.dumps(explain(run, client=client), allow_nan=False)
    for number in range(1, 9):
        assert words(run, round=number)
    if name in ("cfl", "flhc", "acfl", "hcct", "ifca", "split-half"):
        assert found["decisions"]


def test_no_change_to_an_invalid_value_is_suggested(tmp_path: Path) -> None:
    note = split(criteria=criteria(0.31, 0.5, 1.0))  # gamma_max is below 1
    run = recorded(tmp_path / "run", cfl(persistence=1), [((LEFT, RIGHT), [note])])
    settings = {
        c["setting"]
        for flip in explain(run)["decisions"][0]["would_change"]
        for c in flip["changes"]
    }
    assert settings == {"eps1", "eps2"}


def test_for_a_client_that_left_the_last_round_is_named(tmp_path: Path) -> None:
    run = recorded(tmp_path / "run", {"name": "fedavg"}, [(((1, 2, 5),), []), (((1, 2),), [])])
    with pytest.raises(
        UserError,
        match=r"client 5 was last present in round 1; after round 2 these are 1, 2 \(2 clients\)",
    ):
        explain(run, client=5)
    assert "Round 2: client 5 left." in flat(words(run))
