"""The numbers that are tracked of a round, by their definitions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import page_runs
from coterie.contrib.tracking.metrics import MAX_TRACKED_CLIENTS, Metrics, settings, words
from coterie.records.record import Record
from coterie.report.summary import summary


def numbers(run: Path) -> list[dict[str, float]]:
    metrics = Metrics(Record(run).description()["world"])
    return [metrics.of(line) for line in Record(run).lines()]


def test_the_last_round_says_what_the_summary_says(whole: Path) -> None:
    last, said = numbers(whole)[-1], summary(whole)
    for part in ("mean", "std", "worst"):
        assert last[f"accuracy/{part}"] == pytest.approx(said["accuracy"][part], abs=0)
    assert last["loss/mean"] == said["loss"]
    assert last["groups/adjusted_rand"] == said["ari"] == 1.0
    assert last["groups/count"] == len(said["groups"]) == 4
    for name in ("bytes_up", "bytes_down"):
        assert last[f"traffic/{name}"] == said[name]  # of all rounds together
    assert last["seconds/total"] == pytest.approx(said["seconds"])
    assert "groups/isolated" not in last  # nobody means harm


def test_a_cluster_is_named_by_its_smallest_member_and_a_part_keeps_the_name(whole: Path) -> None:
    lines, found = Record(whole).lines(), numbers(whole)
    assert found[0]["cluster/of-0/size"] == 20
    for line, said in zip(lines, found, strict=True):
        names = {f"cluster/of-{min(group)}/size": len(group) for group in line["groups"]}
        assert {name: value for name, value in said.items() if name.endswith("/size")} == names
        assert ("accuracy/mean" in said) == line["tested"] == (line["round"] % 2 == 0)
    for group in lines[-1]["groups"]:
        values = [lines[-1]["clients"][str(c)]["accuracy"] for c in group]
        assert found[-1][f"cluster/of-{min(group)}/accuracy"] == pytest.approx(np.mean(values))
        assert [found[-1][f"client/{c}/accuracy"] for c in group] == values


def test_the_numbers_of_a_note_are_curves_of_its_group(whole: Path) -> None:
    for line, said in zip(Record(whole).lines(), numbers(whole), strict=True):
        for note in line["notes"]:
            for name, value in note["numbers"].items():
                assert said[f"numbers/of-{min(note['clients'])}/{name}"] == value
    split = next(line for line in Record(whole).lines() if len(line["groups"]) > 1)
    assert words(split).startswith(f"round {split['round']} split: stationary")


def test_of_many_clients_none_is_tracked_alone_and_what_is_not_finite_never() -> None:
    clients = {
        str(c): {"group": 0, "accuracy": 0.5, "loss": None} for c in range(MAX_TRACKED_CLIENTS + 1)
    }
    line: dict[str, Any] = {
        "round": 1,
        "tested": True,
        "groups": [list(range(MAX_TRACKED_CLIENTS + 1))],
        "clients": clients,
        "notes": [],
        "asked": 5,
        "answered": 4,
        "bytes_up": 1,
        "bytes_down": 2,
        "seconds": {"train": 0.5},
    }
    found = Metrics({}).of(line)
    assert found["cluster/of-0/accuracy"] == found["accuracy/mean"] == 0.5
    assert not [
        name for name in found if name.startswith("client/") or "loss" in name or "rand" in name
    ]
    line["clients"].popitem()
    line["groups"] = [list(range(MAX_TRACKED_CLIENTS))]
    assert f"client/{MAX_TRACKED_CLIENTS - 1}/accuracy" in Metrics({}).of(line)


def test_adversaries_are_left_out_as_in_the_summary() -> None:
    clients = {
        str(c): {"group": c // 2, "accuracy": 1.0, **({"adversary": True} if c == 3 else {})}
        for c in range(4)
    }
    clients["3"]["accuracy"] = 0.0
    line: dict[str, Any] = {
        "round": 1,
        "tested": True,
        "groups": [[0, 1], [2, 3]],
        "clients": clients,
        "notes": [],
        "asked": 4,
        "answered": 4,
        "bytes_up": 1,
        "bytes_down": 2,
        "seconds": {},
    }
    world = {"true_groups": [[0, 1], [2, 3, 9]], "adversaries": [3]}  # 9 has not come yet
    found = Metrics(world).of(line)
    assert (found["accuracy/mean"], found["groups/adjusted_rand"], found["groups/isolated"]) == (
        1.0,
        1.0,
        0.0,
    )


def test_a_group_s_mean_leaves_adversaries_out_unless_it_has_nobody_else() -> None:
    one = page_runs.line(1, [[0, 1], [2, 3], [4]])
    for client in (3, 4):
        one["clients"][str(client)] |= {"adversary": True, "accuracy": 0.0}
    found = Metrics({"adversaries": [3, 4]}).of(one)
    assert found["cluster/of-2/accuracy"] == one["clients"]["2"]["accuracy"]
    assert found["cluster/of-4/accuracy"] == 0.0
    assert found["cluster/of-2/size"] == 2


def criterion(name: str, value: float | None, bound: float | None) -> dict[str, Any]:
    return {"name": name, "value": value, "sign": "<", "bound": bound, "held": True}


def test_each_criterion_of_a_group_is_a_curve_beside_its_bound() -> None:
    criteria = [
        criterion("mean norm", 0.2, 0.4),
        criterion("α (cross) > p/2", 0.1, None),
        criterion("eps2", None, 0.5),
    ]
    split = page_runs.note(
        "split", [3, 4, 5], [[3], [4, 5]], criteria=criteria, numbers={"peak": 0.7}
    )
    everyone = page_runs.note(
        "keep", [], criteria=criteria, numbers={"peak": 0.8}
    )  # about no group
    found = Metrics({}).of(page_runs.line(1, [[3], [4, 5]], split, everyone))
    assert of_notes(found) == {
        "criteria/of-3/mean_norm": 0.2,
        "criteria/of-3/mean_norm/bound": 0.4,
        "criteria/of-3/α__cross____p_2": 0.1,
        "criteria/of-3/eps2/bound": 0.5,
        "numbers/of-3/peak": 0.7,
    }


def of_notes(found: dict[str, float]) -> dict[str, float]:
    return {
        name: value for name, value in found.items() if name.startswith(("criteria/", "numbers/"))
    }


def test_numbers_of_an_event_do_not_replace_those_of_the_group() -> None:
    notes = [page_runs.note(kind, [0], numbers={"p": 0.1}) for kind in ("walk", "join", "move")]
    keep = page_runs.note(
        "keep", [0, 1, 9], numbers={"p": 0.9}, criteria=[criterion("p", 0.9, 0.05)]
    )
    merge = page_runs.note(
        "merge", [0, 1, 9], numbers={"p": 0.5}, criteria=[criterion("p", 0.5, 0.01)]
    )
    for order in ([*notes, keep, merge], [merge, keep, *notes]):
        assert of_notes(Metrics({}).of(page_runs.line(1, [[0, 1, 9]], *order))) == {
            "numbers/of-0/p": 0.9,
            "numbers/of-0/walk/p": 0.1,
            "numbers/of-0/join/p": 0.1,
            "numbers/of-0/move/p": 0.1,
            "numbers/of-0/merge/p": 0.5,
            "criteria/of-0/p": 0.9,
            "criteria/of-0/p/bound": 0.05,
            "criteria/of-0/merge/p": 0.5,
            "criteria/of-0/merge/p/bound": 0.01,
        }


def test_settings_are_flat(whole: Path) -> None:
    found = settings(Record(whole).description())
    assert (found["method.name"], found["scenario.name"], found["seed"], found["rounds"]) == (
        "cfl",
        "synthetic/groups",
        0,
        8,
    )
    assert found["method.gamma_max"] == Record(whole).description()["methods"][0]["gamma_max"]
    assert found["world.clients"] == 20
    assert "versions.torch" in found
    assert all(isinstance(value, str | int | float | bool) for value in found.values())
