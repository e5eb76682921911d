"""The top of a page: two numbers and the clients, colours and names of groups, and what is enough to be sure."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from coterie.report.colours import PALETTE, SLATE, group_colours
from coterie.report.gathered import gather
from coterie.report.noise import NORMAL_95, examples_needed, two_shares
from coterie.report.page import document
from coterie.report.page.document import asset
from page_runs import criterion, line, note, write

GROUPS = [[2, 3], [0, 1]]


def run(folder: Path, method: str, scores: dict[int, float], groups: list[list[int]]) -> Path:
    """A run of two rounds that ends with these accuracies, on 20 test examples each."""
    lines = [line(number, groups) for number in (1, 2)]
    for client, score in scores.items():
        lines[1]["clients"][str(client)]["accuracy"] = score
    return write(folder / method, lines, method, tests=[20] * 4)


def headline_of(folder: Path) -> dict[str, object]:
    (said,) = document([folder])["verdicts"]
    found: dict[str, object] = said["headline"]
    return found


@pytest.fixture
def three(tmp_path: Path) -> Path:
    run(tmp_path, "fedavg", {0: 0.2, 1: 0.3, 2: 0.3, 3: 0.4}, [[0, 1, 2, 3]])
    run(tmp_path, "independent", {0: 0.6, 1: 0.6, 2: 0.6, 3: 0.6}, [[0], [1], [2], [3]])
    run(tmp_path, "cfl", {0: 0.9, 1: 1.0, 2: 1.0, 3: 0.9}, GROUPS)
    return tmp_path


def test_a_page_begins_with_one_model_and_what_is_recommended(three: Path) -> None:
    headline = headline_of(three)
    first, second = headline["numbers"]  # type: ignore[misc]
    assert (first["label"], first["about"], first["worst"]) == (
        "one model for all",
        "fedavg",
        0.2,
    )
    assert (second["label"], second["about"], second["worst"]) == ("cfl", "2 groups", 0.9)
    assert [first["value"], second["value"]] == pytest.approx([0.3, 0.95])
    assert headline["gains"] == {"better": 4, "worse": 0, "of": 4}
    assert headline["caption"] == "mean accuracy of 4 clients in round 2"
    assert headline["is_share"] is True


def test_every_client_has_a_dot_for_each_way_that_was_measured(three: Path) -> None:
    headline = headline_of(three)
    roles = [(series["role"], series["name"]) for series in headline["series"]]  # type: ignore[attr-defined]
    assert roles == [("shared", "fedavg"), ("alone", "independent"), ("groups", "cfl")]
    assert headline["rows"][0] == [0, [0.2, 0.6, 0.9]]  # type: ignore[index]
    assert len(headline["rows"]) == 4  # type: ignore[arg-type]


def test_a_single_method_has_its_mean_and_its_worst_client(tmp_path: Path) -> None:
    run(tmp_path, "cfl", {0: 0.9, 1: 1.0, 2: 0.4, 3: 0.9}, GROUPS)
    headline = headline_of(tmp_path)
    mean, worst = headline["numbers"]  # type: ignore[misc]
    assert mean["value"] == pytest.approx(0.8)
    assert (worst["label"], worst["about"], worst["value"]) == ("worst client", "client 2", 0.4)
    assert headline["gains"] is None
    assert [series["role"] for series in headline["series"]] == ["groups"]  # type: ignore[attr-defined]


def test_if_one_model_is_enough_the_second_number_is_that_of_the_groups(tmp_path: Path) -> None:
    run(tmp_path, "fedavg", {0: 0.9, 1: 0.9, 2: 0.9, 3: 0.9}, [[0, 1, 2, 3]])
    run(tmp_path, "cfl", {0: 0.9, 1: 0.9, 2: 0.9, 3: 0.85}, GROUPS)
    labels = [number["label"] for number in headline_of(tmp_path)["numbers"]]  # type: ignore[attr-defined]
    assert labels == ["one model for all", "cfl"]


def test_without_a_test_there_is_no_headline(tmp_path: Path) -> None:
    write(tmp_path / "run", [line(1, GROUPS, tested=False)])
    assert headline_of(tmp_path) is None


@pytest.mark.parametrize("p", [0.05, 0.5, 0.9, 1.0])
@pytest.mark.parametrize("difference", [0.01, 0.1, 1 / 3, 0.9, -0.2])
def test_the_number_of_examples_is_the_least_whose_noise_is_below_the_difference(
    p: float, difference: float
) -> None:
    def noise(n: int) -> float:
        return float(NORMAL_95 * two_shares(p, n) ** 0.5 + 1 / n)

    needed = examples_needed(p, difference)
    assert needed is not None
    assert noise(needed) <= abs(difference) + 1e-12
    assert noise(needed - 1) >= abs(difference) - 1e-12


def test_a_difference_that_may_be_chance_says_how_many_examples_it_needs(tmp_path: Path) -> None:
    run(tmp_path, "fedavg", {0: 0.5, 1: 0.2, 2: 0.2, 3: 0.2}, [[0, 1, 2, 3]])
    run(tmp_path, "cfl", {0: 0.7, 1: 0.9, 2: 0.9, 3: 0.9}, GROUPS)
    (said,) = document([tmp_path])["verdicts"]
    column = said["table"]["methods"].index("cfl")
    by_client = {row["client"]: row["gains"][column] for row in said["table"]["rows"]}
    assert by_client[0][2:] == [0, examples_needed(0.6, 0.2)]
    assert by_client[1][2:] == [1, None]


def test_the_style_sheet_has_the_colours_of_the_figures() -> None:
    light = asset("page.css").partition("}")[0]
    colours = dict(re.findall(r"--(c\d|all): (#[0-9a-f]{6})", light))
    assert colours == {
        **{f"c{number}": colour.lower() for number, colour in enumerate(PALETTE)},
        "all": SLATE.lower(),
    }


def test_the_same_groups_have_the_same_colours_in_every_run(tmp_path: Path) -> None:
    numbers = []
    for order in (GROUPS, GROUPS[::-1]):
        folder = write(tmp_path / str(len(numbers)), [line(1, [[0, 1, 2, 3]]), line(2, order)])
        gathered = gather(folder)
        of_node = group_colours(gathered).of_node
        by_client = {}
        for client, nodes in zip(gathered.clients, gathered.members, strict=True):
            by_client[client] = of_node[nodes[-1]]
        numbers.append(by_client)
        page_nodes = document([folder])["runs"][0]["nodes"]
        assert {node["id"]: node["colour"] for node in page_nodes} == {0: None, **of_node}
    assert numbers == [{0: 0, 1: 0, 2: 1, 3: 1}] * 2


def test_a_group_of_all_clients_is_called_all(tmp_path: Path) -> None:
    folder = write(tmp_path / "run", [line(1, [[0, 1, 2, 3]]), line(2, GROUPS)])
    assert [node["name"] for node in document([folder])["runs"][0]["nodes"]] == ["all", "G1", "G2"]
    # A group that goes on after others have left it is one of several.
    grown = write(tmp_path / "grown", [line(1, [[0, 1, 2]]), line(2, [[0, 1], [2]])])
    assert gather(grown).group_name(0) == "G0"


def test_charts_of_decisions_say_how_they_ended_and_others_have_no_outcome(tmp_path: Path) -> None:
    lines = []
    for number, value in ((1, 0.9), (2, 0.6), (3, 0.4)):
        keep = note("keep", [0, 1], criteria=[criterion(value)], numbers={"gain": value})
        lines.append(line(number, [[0, 1]], keep))
    mean_update, gain = document([write(tmp_path / "run", lines)])["runs"][0]["charts"]
    assert mean_update["about"] == "Needed: below eps1 0.5. Then: stationary."
    assert mean_update["rounds"] == 3
    assert mean_update["outcomes"] == [
        {"text": "Round 2: 0.6, not below 0.5.", "held": "none"},
        {"text": "Round 3: 0.4, below 0.5.", "held": "all"},
    ]
    assert gain["title"] == "Gain"
    assert "outcomes" not in gain


def test_a_p_value_that_counts_as_zero_is_not_written_out(tmp_path: Path) -> None:
    tiny = {
        **criterion(1e-40),
        "name": "p of two probes",
        "bound": 1e-4,
        "setting": "level",
        "key": "p_value",
    }
    text = "2 clients differ beyond chance: p of two probes 1e-40 < level 0.0001"
    split = note("split", [0, 1], [[0], [1]], text=text, criteria=[tiny])
    folder = write(tmp_path / "run", [line(1, [[0, 1]]), line(2, [[0], [1]], split)])
    page_run = document([folder])["runs"][0]
    written = "2 clients differ beyond chance: p of two probes < 1e-16 (level 0.0001)"
    assert page_run["reasons"] == [written]
    assert page_run["events"][0]["text"] == written
    chart = page_run["charts"][0]
    assert (chart["title"], chart["outcomes"][0]["text"]) == (
        "p of two probes",
        "Round 2: < 1e-16, below 0.0001.",
    )
