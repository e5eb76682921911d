"""The document of a page says what the records say; the page is one file that asks the network for nothing."""

import base64
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from coterie.cli import main
from coterie.methods import METHODS
from coterie.records.record import Record
from coterie.records.text_files import to_json
from coterie.report.explain import explain
from coterie.report.page import document, page
from coterie.report.page.charts import (
    MAX_MATRICES,
    MAX_MATRIX_ROWS,
    block_means,
    real,
    square,
    squares,
    whole,
)
from coterie.report.summary import summary
from forged import change
from page_runs import OLD, cosines, line, matrices, note, split_run, write


def unpacked(packed: dict[str, Any]) -> np.ndarray:
    """What the page's script makes of a packed array."""
    raw = base64.b64decode(packed["data"])
    codes = np.frombuffer(raw, {"i32": "<i4", "u16": "<u2", "u8": "<u1"}[packed["type"]]).reshape(
        packed["shape"]
    )
    if packed["type"] == "i32":
        return codes
    missing = np.iinfo(codes.dtype).max
    step = (packed["high"] - packed["low"]) / (missing - 1)
    return np.where(codes == missing, np.nan, packed["low"] + step * codes)


finite = st.floats(-1e6, 1e6, allow_subnormal=False)


@given(
    npst.arrays(
        np.float64, npst.array_shapes(max_dims=2, max_side=6), elements=finite | st.just(np.nan)
    )
)
def test_packed_numbers_come_back_to_half_a_step(values: np.ndarray) -> None:
    packed = json.loads(to_json(real(values)))
    back = unpacked(packed)
    assert (np.isnan(back) == np.isnan(values)).all()
    reach = (packed["high"] - packed["low"]) / 65534
    assert (np.abs(back - values)[~np.isnan(values)] <= 0.5001 * reach + 1e-9).all()


def test_packed_ids_are_exact() -> None:
    assert (unpacked(whole([[0, -1], [70_000, 3]])) == [[0, -1], [70_000, 3]]).all()


@pytest.mark.slow
@given(st.integers(2, 9), st.integers(1, 5), st.randoms(use_true_random=False))
def test_blocks_are_means_without_clients_beside_themselves(
    n: int, count: int, random: Any
) -> None:
    matrix = np.array([[random.random() for _ in range(n)] for _ in range(n)])
    edges = [n * i // min(count, n) for i in range(min(count, n) + 1)]
    found = block_means(matrix, edges)
    for i in range(len(edges) - 1):
        for j in range(len(edges) - 1):
            cell = [
                matrix[a, b]
                for a in range(edges[i], edges[i + 1])
                for b in range(edges[j], edges[j + 1])
                if a != b
            ]
            assert (
                np.isnan(found[i, j]) if not cell else found[i, j] == pytest.approx(np.mean(cell))
            )


def test_the_document_has_what_was_recorded(tmp_path: Path) -> None:
    (run,) = document([split_run(tmp_path / "run")])["runs"]
    assert [
        (n["id"], n["first"], n["last"], list(n["parents"]), list(n["clients"]))
        for n in run["nodes"]
    ] == [
        (0, 1, 1, [], [0, 1, 2, 3, 4, 5]),
        (1, 2, 4, [0], [0, 1, 2, 3]),
        (2, 2, 4, [0], [4, 5, 9]),
    ]
    by_id = {client["id"]: client for client in run["clients"]}
    assert [client["id"] for client in run["clients"]] == [0, 1, 2, 3, 4, 5, 9]
    nine = by_id[9]
    assert (nine["node"], nine["truth"], nine["silent"], nine["examples"]) == (2, 1, 1, 19)
    assert nine["path"] == [[2, 4, pytest.approx(1 - 1 / 14)]]
    assert nine["best"] == 2
    # The model of the node that split is what served its clients in the round before.
    assert by_id[0]["path"] == [[0, 1, 0.5], [1, 4, pytest.approx(1 - 1 / 5)]]
    assert (
        unpacked(run["members"]) == [[0, 1, 1, 1]] * 4 + [[0, 2, 2, 2]] * 2 + [[-1, -1, 2, 2]]
    ).all()
    assert run["nodes"][0]["score"] == pytest.approx(np.mean([1 - 1 / (c + 2) for c in range(6)]))
    scores = unpacked(run["scores"]["metrics"]["accuracy"])
    assert np.isnan(scores[6, :2]).all()
    assert scores[0] == pytest.approx([1 - 1 / (r + 1) for r in (1, 2, 3, 4)], abs=1e-4)
    assert run["rounds"]["groups"] == [1, 2, 2, 2]
    first = run["charts"][0]
    assert first["levels"] == [{"name": "eps1", "value": 0.5}]
    assert {(one["name"], one["node"]) for one in first["series"]} == {
        ("mean update", node) for node in (0, 1, 2)
    }
    root = next(one for one in first["series"] if one["node"] == 0)
    assert root["points"] == [[1, 0.2], [2, 0.2]]  # a note is about the group as it was before it


def test_matrices_are_ordered_by_group_and_layers_kept(tmp_path: Path) -> None:
    (run,) = document([split_run(tmp_path / "run")])["runs"]
    (one,) = run["squares"]
    assert one["clients"] == [0, 1, 2, 3, 4, 5]
    assert one["groups"] == [0, 0, 0, 0, 1, 1]
    assert list(one["layers"]) == ["all", "fc1"]
    assert unpacked(one["layers"]["all"])[0, 5] == pytest.approx(-0.2, abs=0.01)


@pytest.mark.slow
def test_many_matrices_are_thinned_out_and_large_ones_coarser(tmp_path: Path) -> None:
    n = 2 * MAX_MATRIX_ROWS
    clients, labels = list(range(n)), [i % 2 for i in range(n)]
    groups = [clients[::2], clients[1::2]]
    lines = [
        line(r, groups, note("partition", clients, groups, similarity="similarity/m.safetensors"))
        for r in range(1, MAX_MATRICES + 11)
    ]
    folder = write(tmp_path / "run", lines, method="hcct")
    matrices(folder, "m.safetensors", clients, all=cosines(labels))
    lines = Record(folder).lines()
    found, count, lost = squares(folder, lines, clients)
    assert (len(found), count, lost) == (MAX_MATRICES, MAX_MATRICES + 10, 0)
    assert [found[0]["round"], found[-1]["round"]] == [1, MAX_MATRICES + 10]
    one = square(folder, lines[0], lines[0]["notes"][0], clients)
    assert one["layers"]["all"]["shape"] == [MAX_MATRIX_ROWS, MAX_MATRIX_ROWS]
    assert one["edges"][:2] == [0, 2]
    shown = unpacked(one["layers"]["all"])
    assert shown[0, 0] == pytest.approx(0.8, abs=0.01)
    assert shown[0, -1] == pytest.approx(-0.2, abs=0.01)


def test_a_page_is_one_file_without_addresses_and_nothing_ends_its_elements(tmp_path: Path) -> None:
    bad = "</script><img src=x onerror=alert(1)><!--<script>{{script}}"
    lines = [line(1, [[0, 1]], note("keep", [0, 1], text=bad))]
    text = page(document([write(tmp_path / "run", lines)]))
    assert text.count("<script") == 2 == text.count("</script>")
    assert "<img" not in text
    assert (
        bad
        in json.loads(re.findall(r'id="document">(.*?)</script>', text)[0])["runs"][0]["events"][0][
            "text"
        ]
    )
    addresses = set(re.findall(r"https?://[^\s\"'<)]+", text))
    assert addresses <= {"http://www.w3.org/2000/svg"}
    assert not re.search(r'(src|href)="(?!#)', text)


def test_a_page_is_the_same_whenever_it_is_made(tmp_path: Path) -> None:
    folder = split_run(tmp_path / "run")
    assert page(document([folder])) == page(document([folder]))


@pytest.mark.slow
def test_a_thousand_clients_and_200_rounds_are_a_small_page(tmp_path: Path) -> None:
    folder = write(tmp_path / "run", *thousand())
    assert len(page(document([folder])).encode()) < 5e6


def thousand(n: int = 1000, rounds: int = 200) -> tuple[list[dict[str, Any]], str, list[list[int]]]:
    """Rounds of many clients who move between ten groups, as HCCT's do."""
    truth = [list(range(g, n, 10)) for g in range(10)]
    lines = []
    for number in range(1, rounds + 1):
        moved = {c: (c + (c % 97 == number % 97)) % 10 for c in range(n)}
        groups = [[c for c in range(n) if moved[c] == g] for g in range(10)]
        lines.append(
            line(
                number,
                groups,
                note("partition", range(n), groups, numbers={"utility": number / 10}),
            )
        )
    return lines, "hcct", truth


@pytest.mark.parametrize("folder", sorted(path.name for path in OLD.iterdir()))
def test_frozen_records_make_a_page(folder: str) -> None:
    (run,) = document([OLD / folder])["runs"]
    assert run["clients"]
    assert run["nodes"]
    assert run["squares_in_all"] == len(run["squares"])


def test_adversaries_count_in_no_mean(tmp_path: Path) -> None:
    one = line(1, [[0, 1], [2, 3]])
    one["clients"]["3"] = {**one["clients"]["3"], "adversary": True, "accuracy": 0.0}
    folder = write(tmp_path / "run", [one], truth=[[0, 1], [2, 3]])
    (run,) = document([folder])["runs"]
    assert run["nodes"][1]["score"] == one["clients"]["2"]["accuracy"]
    shown = explain(folder)["standing"]["groups"]
    assert [group["score"] for group in shown] == [node["score"] for node in run["nodes"]]


def test_agreement_leaves_out_adversaries(tmp_path: Path) -> None:
    folder = write(tmp_path / "run", [line(1, [[0, 1], [2], [3]])], truth=[[0, 1], [2, 3]])
    change(folder, lambda text: text.replace("[world]\n", "[world]\nadversaries = [3]\n"))
    assert summary(folder)["ari"] == 1.0 == explain(folder)["agreement"]


def test_a_refused_client_is_not_counted_as_silent(tmp_path: Path) -> None:
    lines = [
        line(1, [[0, 1, 2]], silent=[2]),
        line(2, [[0, 1, 2]], silent=[0, 2], refused={"2": "a NaN"}),
    ]
    (run,) = document([write(tmp_path / "run", lines)])["runs"]
    assert [(client["silent"], client["refused"]) for client in run["clients"]] == [
        (1, 0),
        (0, 0),
        (1, 1),
    ]


def test_a_lost_matrix_is_counted_and_the_rest_is_shown(tmp_path: Path) -> None:
    folder = split_run(tmp_path / "run")
    (folder / "similarity" / "round-2.safetensors").write_bytes(b"\x10")
    (run,) = document([folder])["runs"]
    assert (run["squares"], run["squares_in_all"], run["squares_lost"]) == ([], 1, 1)


def test_a_run_is_shown_once_whatever_it_is_called(tmp_path: Path) -> None:
    folder = split_run(tmp_path / "run")
    (tmp_path / "again").symlink_to(folder)
    assert len(document([folder, tmp_path / "again"])["runs"]) == 1


def test_a_users_method_has_a_page(tmp_path: Path) -> None:
    folder = split_run(tmp_path / "run")
    change(folder, lambda text: text.replace('name = "cfl"', 'name = "mine"'))
    (run,) = document([folder])["runs"]
    assert (run["method"], run["about"]) == ("mine", "")
    assert [chart["title"] for chart in run["charts"]] == ["Mean update", "Alpha cross"]


@pytest.mark.parametrize("method", ["flhc", "acfl"])
def test_a_dendrogram_is_of_what_was_compared(method: str, tmp_path: Path) -> None:
    name = "similarity/m.safetensors"
    lines = [
        line(1, [[0, 1], [2, 3]], note("cluster", range(4), [[0, 1], [2, 3]], similarity=name))
    ]
    folder = write(tmp_path / "run", lines, method=method)
    matrices(
        folder,
        "m.safetensors",
        range(4),
        all=1 - cosines([0, 0, 1, 1]),
        compared=cosines([0, 0, 1, 1]),
    )
    (chart,) = document([folder])["runs"][0]["charts"]
    assert sorted(link[1][1] for link in chart["links"])[:2] == pytest.approx([0.2, 0.2])
    assert sorted(chart["leaves"]) == [0, 1, 2, 3]


@pytest.mark.slow
def test_every_method_makes_a_page(tmp_path: Path) -> None:
    names = [f"--method={name}" for name in METHODS]
    out = tmp_path / "runs"
    options = ["--rounds=4", "--workers=1", "--set=scenario.silent=0.2", f"--out={out}"]
    assert main(["run", "--scenario=synthetic/groups", *names, *options, "--json"]) == 0
    told = document([out])
    assert len(told["runs"]) == len(METHODS) == len(told["compared"])
    for run in told["runs"]:
        lines = Record(next(path for path in out.iterdir() if path.name == run["name"])).lines()
        assert sum(client["silent"] for client in run["clients"]) == sum(
            len(one["silent"]) for one in lines
        )
        json.loads(to_json(run))
    assert len(page(told)) < 3e6


def test_the_command_writes_beside_the_run_or_to_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = split_run(tmp_path / "run")
    assert main(["report", str(folder)]) == 0
    assert (folder / "report.html").is_file()
    assert str(folder / "report.html") in capsys.readouterr().out
    other = tmp_path / "new" / "both.html"
    assert main(["report", str(folder), str(OLD / "hcct"), "-o", str(other)]) == 0
    assert other.read_text().startswith("<!doctype html>")


@pytest.mark.parametrize(("arguments", "said"), [
    (["nowhere"], "nowhere is not a run directory"), (["RUN", "-o", "x.pdf"], "--out must end in .html, got x.pdf"),
    (["EMPTY"], "has no completed round yet"),
])  # fmt: skip
def test_a_mistake_is_one_sentence(
    arguments: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    places = {"RUN": split_run(tmp_path / "run"), "EMPTY": write(tmp_path / "empty", [])}
    assert main(["report", *(str(places.get(word, word)) for word in arguments)]) == 2
    told = capsys.readouterr().err
    assert said in told
    assert told.count("\n") == 1
