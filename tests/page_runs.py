"""Run directories for tests of the page: written by hand as a run would, with nothing trained."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.numpy

import coterie
from coterie.core import Criterion
from coterie.records.checksum import digest
from coterie.records.record import Record
from coterie.runs.experiment import make
from forged import change_lines

OLD = Path(__file__).parent / "old_runs" / "schema-1"


EFFECTS = {
    "split": "divides",
    "cluster": "divides",
    "partition": "regroups",
    "merge": "merges",
    "join": "joins",
    "move": "moves",
    "walk": "waits",
    "wait": "waits",
    "arrive": "arrives",
    "leave": "leaves",
    "arms": "serves",
    "lead": "serves",
    "drop": "serves",
    "node": "warns",
    "bound": "limits",
    "arm": "info",
    "tune": "info",
    "layer": "info",
}
"""What the usual kinds of notes do to groups; other kinds keep them."""


def note(
    kind: str, clients: Sequence[int], parts: Sequence[Sequence[int]] = (), **more: Any
) -> dict[str, Any]:
    """A note as a line has it."""
    plain = {
        "text": f"why it is a {kind}",
        "criteria": [],
        "otherwise": "",
        "numbers": {},
        "labels": {},
        "values": {},
        "similarity": None,
    }
    return {
        "kind": kind,
        "effect": EFFECTS.get(kind, "keeps"),
        "clients": list(clients),
        "parts": [list(part) for part in parts],
        **plain,
        **more,
    }


def criterion(value: float) -> dict[str, Any]:
    """CFL's first criterion as a line has it."""
    test = Criterion(
        "mean update", value, "<", 0.5, "eps1", "stationary", "not stationary", "mean_norm"
    )
    return {**asdict(test), "held": test.held}


def line(
    round: int,
    groups: Sequence[Sequence[int]],
    *notes: Mapping[str, Any],
    tested: bool = True,
    **more: Any,
) -> dict[str, Any]:
    """A round in which client ``c`` has accuracy ``1 - 1 / (c + round + 1)``."""
    clients: dict[str, dict[str, Any]] = {}
    for place, group in enumerate(groups):
        for client in group:
            scores = (
                {"accuracy": 1 - 1 / (client + round + 1), "loss": 1 / (client + round + 1)}
                if tested
                else {}
            )
            clients[str(client)] = {"group": place, **scores}
    count = len(clients)
    return {
        "round": round,
        "exchange": round,
        "exchanges": 1,
        "tested": tested,
        "groups": [list(g) for g in groups],
        "clients": clients,
        "notes": list(notes),
        "asked": count,
        "answered": count,
        "refused": {},
        "silent": [],
        "bytes_up": 1000 * count,
        "bytes_down": 2000 * count,
        "evaluations": 0,
        "seconds": {"train": 0.1, "server": 0.01, "evaluate": 0.02},
        **more,
    }


def write(
    folder: Path,
    lines: Sequence[Mapping[str, Any]],
    method: str = "cfl",
    truth: Any = None,
    seed: int = 0,
    rounds: int | None = None,
    **world_: Any,
) -> Path:
    """A run directory of ``method`` with these rounds; ``world_`` are further entries about the world."""
    clients = sorted({client for one in lines for group in one["groups"] for client in group})
    settings = {
        "scenario": "synthetic/groups",
        "methods": [method],
        "rounds": max(len(lines), 1) if rounds is None else rounds,
        "workers": 1,
    }
    spec = make({**settings, "seeds": [seed]}).spec()
    world: dict[str, Any] = {
        "clients": clients,
        "examples": [10 + c for c in clients],
        "data": f"drawn with seed {seed}",
        **world_,
    }
    if truth is not None:
        world["true_groups"] = truth
    folder.mkdir(parents=True)
    record = Record(folder)
    record.describe({**spec, "world": world, "versions": {"coterie": coterie.__version__}})
    for one in lines:
        record.append(dict(one))
    return folder


def matrices(folder: Path, name: str, clients: Sequence[int], **layers: np.ndarray) -> str:
    """A file of matrices in a run directory, with its checksum in the rounds that name it; returns its name for a note."""
    path = folder / "similarity" / name
    path.parent.mkdir(exist_ok=True)
    about = {"note": json.dumps({"round": 1, "kind": "split", "clients": list(clients)})}
    safetensors.numpy.save_file(
        {key: matrix.astype(np.float32) for key, matrix in layers.items()}, path, about
    )
    file, known = f"similarity/{name}", digest(path.read_bytes())
    if (folder / "rounds.jsonl").exists():
        change_lines(
            folder,
            lambda line: named(line, file) and line.setdefault("files", {}).update({file: known}),
        )
    return file


def named(line: Mapping[str, Any], file: str) -> bool:
    """Whether a note of a round names a file of matrices."""
    return any(note["similarity"] == file for note in line["notes"])


def cosines(labels: Sequence[int]) -> np.ndarray:
    """0.8 between clients of one label, -0.2 between others."""
    same = np.equal.outer(labels, labels)
    return np.where(same, 0.8, -0.2) + 0.2 * np.eye(len(labels))


def split_run(folder: Path) -> Path:
    """Six clients who split 4 | 2 in round 2, and a newcomer who walks in round 3; matrices of two layers."""
    everyone, parts, now = [0, 1, 2, 3, 4, 5], [[0, 1, 2, 3], [4, 5]], [[0, 1, 2, 3], [4, 5, 9]]
    told = {"numbers": {"alpha_cross": -0.1}, "criteria": [criterion(0.2)]}
    split = note("split", everyone, parts, **told, similarity="similarity/round-2.safetensors")
    keeps = [note("keep", group, **{**told, "criteria": [criterion(0.6)]}) for group in parts]
    lines = [
        line(1, [everyone], note("keep", everyone, **told)),
        line(2, parts, split),
        line(3, now, note("join", [9], text="client 9 at node 0: joins node 2"), *keeps),
        line(4, now, *keeps, silent=[9], answered=6),
    ]
    write(folder, lines, truth=[[0, 1, 2, 3], [4, 5, 9]])
    square = cosines([0, 0, 0, 0, 1, 1])
    matrices(folder, "round-2.safetensors", everyone, all=square, fc1=square / 2)
    return folder
