"""Run directories by hand for the tests of explanations: lines with notes whose numbers are known, and real small runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

import coterie
from coterie.core import Note
from coterie.records.checksum import digest
from coterie.records.record import Record
from coterie.records.round_line import matrix_file, note_entry
from coterie.records.text_files import finite
from coterie.runs.experiment import make

Groups = Sequence[Sequence[int]]


def line(
    number: int, groups: Groups, notes: Sequence[Note] = (), accuracy: float = 0.5, **more: Any
) -> dict[str, Any]:
    """A round as it is recorded; everybody's accuracy is the same."""
    clients = {
        str(c): {"group": i, "accuracy": accuracy} for i, group in enumerate(groups) for c in group
    }
    files = {
        id(note): f"similarity/round-{number}-{i}.safetensors"
        for i, note in enumerate(notes)
        if note.similarity
    }
    plain: dict[str, Any] = {
        "round": number,
        "exchange": number,
        "exchanges": 1,
        "tested": True,
        "groups": [list(g) for g in groups],
        "clients": clients,
        "asked": len(clients),
        "answered": len(clients),
        "refused": {},
        "silent": [],
        "bytes_up": 0,
        "bytes_down": 0,
        "evaluations": 0,
        "seconds": {},
        "notes": [note_entry(note, files.get(id(note))) for note in notes],
    }
    result: dict[str, Any] = finite({**plain, **more})
    return result


def recorded(
    folder: Path, method: Mapping[str, Any], rounds: Sequence[tuple[Groups, Sequence[Note]]], truth: Groups | None = None,
    **more: Mapping[int, Any],
) -> Path:  # fmt: skip
    """A run directory of these rounds: (groups after it, its notes). more: field of a line -> round -> its value."""
    record = Record(folder)
    folder.mkdir(parents=True, exist_ok=True)
    clients = sorted({client for groups, _ in rounds for group in groups for client in group})
    known: dict[str, Any] = (
        {"true_groups": [list(g) for g in truth]} if truth else {"adversaries": []}
    )
    record.describe(
        {
            "rounds": len(rounds),
            "seeds": [0],
            "scenario": {"name": "by-hand"},
            "methods": [dict(method)],
            "eval_every": 1,
            "training": {},
            "boundary": {},
            "robust": {},
            "world": {"clients": clients, **known},
            "versions": {},
        }
    )
    for number, (groups, notes) in enumerate(rounds, start=1):
        files = {}
        for i, note in enumerate(notes):
            if note.similarity:
                (folder / "similarity").mkdir(exist_ok=True)
                name = f"similarity/round-{number}-{i}.safetensors"
                (folder / name).write_bytes(matrix_file(note, number))
                files[name] = digest((folder / name).read_bytes())
        fields = {name: values[number] for name, values in more.items() if number in values}
        if files:
            fields["files"] = files
        record.append(line(number, groups, notes, accuracy=0.1 * number, **fields))
    return folder


def ran(folder: Path, method: Mapping[str, Any], rounds: int = 8, **scenario: Any) -> Path:
    """A real small run of a method."""
    spec = {"name": "synthetic/groups", "clients": 8, "groups": 2, **scenario}
    experiment = make({"scenario": spec, "methods": [dict(method)], "rounds": rounds, "workers": 1})
    for one in coterie.begin(experiment, folder):
        for _ in one.rounds():
            pass
    return folder


def square(rows: Sequence[Sequence[float]]) -> torch.Tensor:
    return torch.tensor(rows, dtype=torch.float64)
