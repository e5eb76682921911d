"""What a decision rested on is kept: matrices of the clients heard in notes, and as files that a round's line names."""

import itertools
import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import safe_open

from coterie.core import Client, Note, Round
from coterie.engines import rounds
from coterie.methods import CFL, FLHC, FedAvg
from coterie.records.record import Record
from coterie.records.round_line import matrices, matrix_file
from coterie.runs.experiment import make
from coterie.runs.folders import begin
from page_runs import line, write
from small import world
from worlds import Played, Pull, grouped, last, play

ROWS = {4: [3.0, 0.0], 9: [-1.0, 0.0], 11: [0.0, 2.0], 30: [-2.0, -2.0]}
"""The first updates of four clients, by hand."""

PULLS = Pull(targets={client: torch.tensor(row) for client, row in ROWS.items()}, rate=1.0)


def cosine(a: list[float], b: list[float]) -> float:
    return sum(x * y for x, y in zip(a, b, strict=True)) / (math.hypot(*a) * math.hypot(*b))


def far(metric: str, a: list[float], b: list[float]) -> float:
    if metric == "cosine":
        return 1 - cosine(a, b)
    return sum(abs(x - y) for x, y in zip(a, b, strict=True)) if metric == "l1" else math.dist(a, b)


def without(client: Client) -> Any:
    return lambda exchange, asked: asked == client


def check(note: Note, heard: list[Client], measure: Any) -> None:
    assert note.order == tuple(heard)
    matrix = note.similarity["all"]
    assert (matrix.dtype, matrix.shape) == (torch.float32, (len(heard), len(heard)))
    for (i, a), (j, b) in itertools.product(enumerate(heard), repeat=2):
        assert matrix[i, j].item() == pytest.approx(measure(ROWS[a], ROWS[b]), abs=1e-6)


@pytest.mark.parametrize("silent", [9, 1000])
def test_cfl_keeps_the_cosines_of_those_heard_at_a_split_and_only_then(silent: Client) -> None:
    heard = [client for client in ROWS if client != silent]
    settings: dict[str, Any] = {"scale": "absolute", "eps1": 99.0, "eps2": 0.0, "gamma_max": 0.0}
    notes = [
        p.notes[0] for p in play(CFL(persistence=2, **settings), PULLS, 2, silent=without(silent))
    ]
    assert [note.kind for note in notes] == ["hold", "split"]
    assert not notes[0].similarity
    one = last(CFL(persistence=1, **settings), PULLS, 1, silent=without(silent)).notes[0]
    check(one, heard, cosine)
    scheduled = last(CFL(split_rounds=(1,)), PULLS, 1, silent=without(silent)).notes[0]
    check(scheduled, heard, cosine)


def test_cfl_keeps_the_cosines_of_gradients_where_these_split() -> None:
    method = CFL(
        scale="absolute",
        persistence=1,
        eps1=99.0,
        eps2=0.0,
        gamma_max=0.0,
        similarity="gradients",
        post_split="parent-mean",
    )
    first, second = play(method, PULLS, 2)
    assert not first.notes[0].similarity
    moved = second.plan.models[0]
    rows = {c: (moved - torch.tensor(row)).tolist() for c, row in ROWS.items()}
    matrix = second.notes[0].similarity["all"]
    assert matrix[0, 3].item() == pytest.approx(cosine(rows[4], rows[30]), abs=1e-6)


@pytest.mark.parametrize("metric", ["l1", "l2", "cosine"])
@pytest.mark.parametrize("silent", [9, 1000])
def test_flhc_keeps_the_distances_that_it_clustered_by(metric: str, silent: Client) -> None:
    method = FLHC(warmup=0, metric=metric, linkage="average", threshold=None, groups=2)
    end: Played = last(method, PULLS, 1, silent=without(silent))
    check(end.notes[0], [c for c in ROWS if c != silent], lambda a, b: far(metric, a, b))


def test_one_client_heard_alone_is_a_matrix_of_one() -> None:
    for metric in ("l1", "l2", "cosine"):
        method = FLHC(warmup=0, metric=metric, linkage="single", quorum=0.1, threshold=1.0)
        note = last(method, grouped(((3,), (8,))), 1, silent=without(3)).notes[0]
        assert note.order == (8,)
        assert note.similarity["all"].shape == (1, 1)


def test_a_matrix_has_a_row_for_everyone_heard() -> None:
    with pytest.raises(ValueError, match=r"'all' has shape \(2, 2\), but 3 clients replied"):
        Note(
            kind="split",
            effect="divides",
            clients=(1, 2, 3),
            text="",
            similarity={"all": torch.zeros(2, 2)},
        )
    note = Note(
        kind="split",
        effect="divides",
        clients=(1, 2, 3),
        text="",
        similarity={"all": torch.zeros(2, 2)},
        heard=(1, 3),
    )
    assert note.order == (1, 3)


# -- files
# ----------------------------------------------------------------------------------------------------------------


def done(*notes: Note) -> Round:
    (first,) = rounds.rounds(FedAvg(), world(), rounds=1, workers=1)
    return replace(first, number=12, notes=notes)


def test_files_hold_what_the_notes_hold_and_the_line_names_them(tmp_path: Path) -> None:
    matrix = torch.tensor([[0.0, 0.1], [0.1, math.nan]], dtype=torch.float64)
    notes = (
        Note(
            kind="keep",
            effect="keeps",
            clients=(7,),
            text="",
            values={"gain": {11: math.inf, 2: 0.5}},
        ),
        Note(
            kind="split",
            effect="divides",
            clients=(2, 3, 7),
            text="",
            similarity={"all": matrix, "fc": matrix * 2},
            heard=(2, 7),
        ),
        Note(
            kind="split",
            effect="divides",
            clients=(11,),
            text="",
            similarity={"all": torch.ones(1, 1)},
        ),
    )
    run = write(tmp_path / "run", [line(1, [[2, 3, 7, 11]])])
    record = Record(run)
    path = run / "rounds.jsonl"
    record.keep(done(*notes))
    written = json.loads(path.read_text().splitlines()[1])["notes"]
    names = [None, "similarity/round-12.safetensors", "similarity/round-12-2.safetensors"]
    assert [note["similarity"] for note in written] == names
    assert written[0]["values"] == {"gain": {"2": 0.5, "11": None}}
    for name, note in zip(names[1:], notes[1:], strict=True):
        with safe_open(run / str(name), framework="np") as file:
            about = json.loads(file.metadata()["note"])
            assert about == {"round": 12, "kind": "split", "clients": list(note.order)}
            assert set(file.keys()) == set(note.similarity)
            for layer in file.keys():  # noqa: SIM118  (no mapping)
                np.testing.assert_array_equal(
                    file.get_tensor(layer), note.similarity[layer].float().numpy()
                )
    assert len(list((run / "similarity").iterdir())) == 2


def test_a_file_made_again_is_the_same() -> None:
    note = Note(
        kind="split",
        effect="divides",
        clients=(2, 3),
        text="",
        similarity={k: torch.ones(2, 2) for k in ("b", "all", "a")},
    )
    assert len({matrix_file(note, 3) for _ in range(20)}) == 1


def test_a_round_without_matrices_has_no_files(tmp_path: Path) -> None:
    (one,) = begin(
        make({"scenario": "synthetic/groups", "methods": ["cfl"], "rounds": 1, "workers": 1}),
        tmp_path / "run",
    )
    assert [matrices(round) for round in one.rounds()] == [{}]
    assert not (tmp_path / "run" / "similarity").exists()
