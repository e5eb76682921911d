"""A round as a line of ``rounds.jsonl``, and the matrices of its notes as files of their own."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.numpy
import torch
from safetensors import SafetensorError

from coterie.core import Client, Note, Round
from coterie.files import read_within
from coterie.records import checksum
from coterie.records.codec import DamagedError, safetensors_of
from coterie.records.shown import ClientId, Line, shown_as
from coterie.records.text_files import finite, to_json

MATRICES_FOLDER = "similarity"


_MATRIX_FILE_NAME = re.compile(r"similarity/[\w-]+\.safetensors", re.ASCII)


def line_of_round(round: Round) -> Line:
    """A round as one JSON object.

    ``round`` and ``exchange`` are the numbers of completed rounds and exchanges. ``clients`` maps
    each id to ``group`` (its place in ``groups``) and, in a tested round, ``loss``, ``accuracy``
    and the other metrics on its test data; hostile clients have ``adversary``. ``sums`` maps ids to
    the ``ErrorSums`` of the metrics that have some. ``notes`` hold the reasons why the method did
    or did not act; ``similarity`` is the file of a note's matrices, or None.

    Args:
        round: The completed round.

    Returns:
        The object.
    """
    # What every line has; numbers that are not finite become None at the end.
    groups = [list(group) for group in round.assignment.groups]
    clients = _client_entries(round)
    file_of_note = {id(note): entry_name for entry_name, note in matrices(round).items()}
    recorded_line: Line = {
        "round": round.number,
        "exchange": round.position.exchange,
        "exchanges": round.exchanges,
        "tested": round.scores is not None,
        "groups": groups,
        "clients": clients,
        "notes": [note_entry(note, file_of_note.get(id(note))) for note in round.notes],
        "asked": round.asked,
        "answered": round.answered,
        "refused": {str(client): reason for client, reason in round.refused.items()},
        "silent": list(round.silent),
        "bytes_up": round.bytes_up,
        "bytes_down": round.bytes_down,
        "evaluations": round.evaluations,
        "seconds": dict(round.seconds),
    }
    # The other entries are in the lines to which they apply.
    if round.sums:
        recorded_line["sums"] = {
            str(client): dict(sums)
            for client, sums in sorted(round.sums.items())
            if str(client) in clients
        }
    for entry_name in ("scaled", "claimed", "counted", "released"):
        values: Mapping[Client, float] = getattr(round, entry_name)
        if values:
            recorded_line[entry_name] = {
                str(client): value for client, value in sorted(values.items())
            }
    # JSON has neither NaN nor infinity.
    result = finite(recorded_line)
    assert isinstance(result, dict)
    return result


def _client_entries(round: Round) -> dict[str, dict[str, Any]]:
    """Client's id as a key -> its group, its scores in a tested round, and whether it is hostile."""
    # Each client with the number of its group, in the order of their ids.
    group_of_client: dict[Client, int] = {}
    for number, group in enumerate(round.assignment.groups):
        group_of_client |= dict.fromkeys(group, number)
    entries: dict[str, dict[str, Any]] = {}
    for client, number in sorted(group_of_client.items()):
        scores = {} if round.scores is None else round.scores[client]
        entries[str(client)] = {"group": number, **scores}
    for client in round.adversaries:
        # It may not have joined yet.
        if str(client) in entries:
            entries[str(client)]["adversary"] = True
    return entries


def note_entry(note: Note, file: str | None) -> dict[str, Any]:
    """The entry of a note in a round's line.

    Args:
        note: The note.
        file: The file of its matrices, if it has any.

    Returns:
        The entry, in which numbers may still be NaN or infinite.
    """
    return {
        "kind": note.kind,
        "effect": note.effect,
        "clients": list(note.clients),
        "parts": [list(group) for group in note.parts],
        "text": note.text,
        "criteria": [{**asdict(criterion), "held": criterion.held} for criterion in note.criteria],
        "otherwise": note.otherwise,
        "numbers": dict(note.numbers),
        "labels": dict(note.labels),
        "values": {
            value_name: dict(sorted(values.items())) for value_name, values in note.values.items()
        },
        "similarity": file,
    }


def matrices(round: Round) -> dict[str, Note]:
    """File in the run directory -> the note whose matrices it holds."""
    # The first note with matrices has the plain name, further ones a number.
    notes = [note for note in round.notes if note.similarity]
    note_of_file = {}
    for number, note in enumerate(notes, start=1):
        suffix = f"-{number}" if number > 1 else ""
        note_of_file[f"{MATRICES_FOLDER}/round-{round.number}{suffix}.safetensors"] = note
    return note_of_file


def matrix_file(note: Note, round: int) -> bytes:
    """The file of a note's matrices.

    The metadata has one key, ``note``, which names the clients of the rows. There is only one key
    because safetensors writes several in no fixed order, and a file that is made again must be the
    same.

    Args:
        note: The note, with matrices ``(n, n)`` by name.
        round: The number of the round.

    Returns:
        The matrices as float32 in safetensors.
    """
    about = {"round": round, "kind": note.kind, "clients": list(note.order)}
    tensors = {
        matrix_name: matrix.detach().to("cpu", torch.float32).contiguous()
        for matrix_name, matrix in note.similarity.items()
    }
    return safetensors_of(tensors, {"note": to_json(about)})


def load_matrices(
    folder: Path, line: Line, note: Mapping[str, Any]
) -> tuple[list[ClientId], dict[str, np.ndarray]]:
    """Read the matrices of a note.

    Args:
        folder: The run directory.
        line: The record of the round.
        note: The note in this record.

    Returns:
        The clients of the rows, and the matrices ``(n, n)`` by name.

    Raises:
        DamagedError: The file is missing, or has been changed or damaged.
        UserError: The file is a link.
    """
    file_name = note["similarity"]
    if not _MATRIX_FILE_NAME.fullmatch(file_name):
        raise DamagedError(
            f"round {line['round']} of {folder} names a file of matrices {file_name!r:.80}, which is not part of a run"
        )
    try:
        file_bytes = read_within(folder, file_name)
        checksum.check(file_bytes, folder / file_name, line.get("files", {}).get(file_name))
        # A safetensors file begins with the length of its header, 8 bytes, and the header as JSON.
        header = json.loads(file_bytes[8 : 8 + int.from_bytes(file_bytes[:8], "little")])
        about = json.loads(header["__metadata__"]["note"])
        clients = [int(client) for client in about["clients"]]
        matrices_by_name = safetensors.numpy.load(file_bytes)
    except (
        OSError,
        SafetensorError,
        ValueError,
        LookupError,
        TypeError,
        AttributeError,
        RuntimeError,
    ) as error:
        raise DamagedError(
            f"{folder / file_name} cannot be read; it is damaged or missing"
        ) from error
    for matrix in matrices_by_name.values():
        if matrix.shape != (len(clients), len(clients)) or matrix.dtype.kind != "f":
            raise DamagedError(
                f"{folder / file_name} has a matrix that does not match its {len(clients)} clients"
            )
    # With the names by which the line shows clients.
    naming = shown_as(line)
    return [naming.client(client) for client in clients], matrices_by_name
