"""What is tracked of a round: numbers by their definitions, and pictures of matrices."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors import safe_open

import page_runs
from coterie.records.record import Record
from coterie.report.summary import summary
from coterie.tracking.measures import MAP, MOST, SIDE, Course, coloured, pictures, settings, words


def numbers(run: Path) -> list[dict[str, float]]:
    course = Course(Record(run).description())
    return [course.numbers(line) for line in Record(run).lines()]


def test_the_last_round_says_what_the_summary_says(whole: Path) -> None:
    last, said = numbers(whole)[-1], summary(whole)
    for part in ("mean", "std", "min"):
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


def test_what_the_method_compared_is_a_curve_of_each_group(whole: Path) -> None:
    for line, said in zip(Record(whole).lines(), numbers(whole), strict=True):
        for note in line["notes"]:
            for name, value in note["numbers"].items():
                assert said[f"criteria/of-{min(note['clients'])}/{name}"] == value
    split = next(line for line in Record(whole).lines() if len(line["groups"]) > 1)
    assert words(split).startswith(f"round {split['round']} split: stationary")


def test_of_many_clients_none_is_tracked_alone_and_what_is_not_finite_never() -> None:
    clients = {str(c): {"group": 0, "accuracy": 0.5, "loss": None} for c in range(MOST + 1)}
    line: dict[str, Any] = {
        "round": 1, "tested": True, "groups": [list(range(MOST + 1))], "clients": clients, "notes": [], "asked": 5,
        "answered": 4, "bytes_up": 1, "bytes_down": 2, "seconds": {"train": 0.5},
    }  # fmt: skip
    found = Course({"world": {}}).numbers(line)
    assert found["cluster/of-0/accuracy"] == found["accuracy/mean"] == 0.5
    assert not [name for name in found if name.startswith("client/") or "loss" in name or "rand" in name]
    line["clients"].popitem()
    line["groups"] = [list(range(MOST))]
    assert f"client/{MOST - 1}/accuracy" in Course({"world": {}}).numbers(line)


def test_adversaries_are_left_out_as_in_the_summary() -> None:
    clients = {str(c): {"group": c // 2, "accuracy": 1.0, **({"adversary": True} if c == 3 else {})} for c in range(4)}
    clients["3"]["accuracy"] = 0.0
    line: dict[str, Any] = {
        "round": 1, "tested": True, "groups": [[0, 1], [2, 3]], "clients": clients, "notes": [], "asked": 4, "answered": 4,
        "bytes_up": 1, "bytes_down": 2, "seconds": {},
    }  # fmt: skip
    world = {"true_groups": [[0, 1], [2, 3, 9]], "adversaries": [3]}  # 9 has not come yet
    found = Course({"world": world}).numbers(line)
    assert (found["accuracy/mean"], found["groups/adjusted_rand"], found["groups/isolated"]) == (1.0, 1.0, 0.0)


def test_a_group_s_mean_leaves_adversaries_out_unless_it_has_nobody_else() -> None:
    one = page_runs.line(1, [[0, 1], [2, 3], [4]])
    for client in (3, 4):
        one["clients"][str(client)] |= {"adversary": True, "accuracy": 0.0}
    found = Course({"world": {"adversaries": [3, 4]}}).numbers(one)
    assert found["cluster/of-2/accuracy"] == one["clients"]["2"]["accuracy"]
    assert found["cluster/of-4/accuracy"] == 0.0
    assert found["cluster/of-2/size"] == 2


def test_what_befalls_a_client_does_not_take_the_place_of_its_group_s_numbers() -> None:
    notes = [page_runs.note(kind, [0], numbers={"p": 0.1}) for kind in ("walk", "join", "move")]
    keep = page_runs.note("keep", [0, 1, 9], numbers={"p": 0.9})
    merge = page_runs.note("merge", [0, 1, 9], numbers={"p": 0.5})
    for order in ([*notes, keep, merge], [merge, keep, *notes]):
        found = Course({"world": {}}).numbers(page_runs.line(1, [[0, 1, 9]], *order))
        assert {name: value for name, value in found.items() if name.startswith("criteria/")} == {
            "criteria/of-0/p": 0.9, "criteria/of-0/walk/p": 0.1, "criteria/of-0/join/p": 0.1, "criteria/of-0/move/p": 0.1,
            "criteria/of-0/merge/p": 0.5,
        }  # fmt: skip


def test_settings_are_flat(whole: Path) -> None:
    found = settings(Record(whole).description())
    assert (found["method.name"], found["scenario.name"], found["seed"], found["rounds"]) == ("cfl", "synthetic/groups", 0, 8)
    assert found["method.gamma_max"] == Record(whole).description()["methods"][0]["gamma_max"]
    assert found["world.clients"] == 20
    assert "versions.torch" in found
    assert all(isinstance(value, str | int | float | bool) for value in found.values())


def test_a_picture_shows_the_parts_as_blocks(whole: Path) -> None:
    line = next(line for line in Record(whole).lines() if len(line["groups"]) > 1)
    (picture,) = pictures(whole, line)
    assert picture.name == "similarity/of-0/all"
    with safe_open(whole / f"similarity/round-{line['round']}.safetensors", framework="np") as file:
        matrix = file.get_tensor("all")
    times = SIDE // len(matrix)
    assert picture.pixels.shape == (20 * times, 20 * times, 3)
    seen = picture.pixels[::times, ::times, 1].astype(int)  # green grows with the number
    first = len(line["groups"][0])
    off = ~np.eye(20, dtype=bool)
    block = np.zeros((20, 20), dtype=bool)
    block[:first, :first] = block[first:, first:] = True
    assert seen[block & off].mean() > seen[~block].mean() + 30
    order = [client for group in line["groups"] for client in group]  # ids are 0 to 19, as places
    low, high = matrix[off].min(), matrix[off].max()
    np.testing.assert_array_equal(picture.pixels, coloured(matrix[np.ix_(order, order)], low, high))
    assert f"dark {low:.3g}, light {high:.3g}" in picture.caption


def test_colours() -> None:
    found = coloured(np.array([[0.0, 1.0], [np.nan, 0.5]]), 0.0, 1.0)
    corners = found[[0, 0, -1], [0, -1, 0]]
    np.testing.assert_array_equal(corners, [MAP[0], MAP[-1], [128] * 3])
    assert found.shape == (SIDE, SIDE, 3)
    large = coloured(np.ones((1201, 1201)), 0.0, 1.0)
    assert large.shape == (401, 401, 3)  # the mean of three by three
    assert (large == MAP[-1]).all()
    assert (coloured(np.ones((3, 3)), 1.0, 1.0) == MAP[0]).all()  # one number has no colour of its own
