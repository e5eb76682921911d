"""A round as a line of ``rounds.jsonl``, and the matrices of its notes as files of their own."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.numpy
import torch
from safetensors import SafetensorError

from coterie.core import Client, Note, Round, among
from coterie.files import read_within
from coterie.records import checksum
from coterie.records.codec import DamagedError, safetensors_of
from coterie.records.shown import ClientId, Line, shown_as
from coterie.records.text_files import finite, to_json

MATRICES_FOLDER = "similarity"
"""Folder of a run directory with the matrices of its notes."""

_MATRIX_FILE_NAME = re.compile(r"similarity/[\w-]+\.safetensors", re.ASCII)


def line_of_round(finished_round: Round, listed: Collection[Client] | None = None) -> Line:
    """A round as one JSON object.

    ``round`` and ``exchange`` are the numbers of completed rounds and exchanges. ``clients`` maps
    each id to ``group`` (its place in ``groups``) and, in a tested round, ``loss``, ``accuracy``
    and the other metrics on its test data; hostile clients have ``adversary``. ``sums`` maps ids to
    the ``ErrorSums`` of the metrics that have some. ``personal`` are the clients
    that a personal model serves. ``notes`` hold the reasons why the method did or did not act;
    ``similarity`` is the file of a note's matrices, or None.

    Where only some clients are listed, ``groups`` and ``clients`` have these alone, and notes
    also those of whom they have values. ``sizes`` then counts all members of the groups: of those
    in ``groups``, in their order, then of those in which nobody is listed.

    Args:
        finished_round: The completed round.
        listed: The clients that are listed; None for all.

    Returns:
        The object.
    """
    groups = finished_round.assignment.groups
    group_sizes: list[int] | None = None
    if listed is not None:
        finished_round, group_sizes = _of_listed(finished_round, frozenset(listed))
        groups = finished_round.assignment.groups
    client_entries = _client_entries(finished_round)
    # A note is not hashable, so its identity stands for it.
    file_of_note = {id(note): file_name for file_name, note in matrices(finished_round).items()}
    # What every line has. At the end, keys become texts and tuples become lists.
    recorded_line: Line = {
        "round": finished_round.number,
        "exchange": finished_round.position.exchange,
        "exchanges": finished_round.exchanges,
        "tested": finished_round.scores is not None,
        "groups": groups,
        "clients": client_entries,
        "notes": [note_entry(note, file_of_note.get(id(note))) for note in finished_round.notes],
        "asked": finished_round.asked,
        "answered": finished_round.answered,
        "refused": finished_round.refused,
        "silent": finished_round.silent,
        "bytes_up": finished_round.bytes_up,
        "bytes_down": finished_round.bytes_down,
        "evaluations": finished_round.evaluations,
        "seconds": finished_round.seconds,
    }
    # The other entries are in the lines to which they apply.
    if group_sizes is not None:
        recorded_line["sizes"] = group_sizes
    if finished_round.personal:
        recorded_line["personal"] = finished_round.personal
    if finished_round.sums:
        recorded_line["sums"] = {
            client: sums
            for client, sums in sorted(finished_round.sums.items())
            if str(client) in client_entries
        }
    for entry_name in ("absent", "scaled", "claimed", "counted", "released", "rows"):
        value_of_client: Mapping[Client, float] = getattr(finished_round, entry_name)
        if value_of_client:
            recorded_line[entry_name] = dict(sorted(value_of_client.items()))
    # JSON has neither NaN nor infinity.
    finite_line = finite(recorded_line)
    assert isinstance(finite_line, dict)
    return finite_line


def _of_listed(finished_round: Round, listed: frozenset[Client]) -> tuple[Round, list[int]]:
    """A round with the listed clients alone, and the sizes of its groups: first of those that it still has."""
    kept_groups = []
    other_sizes = []
    for group in finished_round.assignment.groups:
        kept_clients = [client for client in group if client in listed]
        if kept_clients:
            kept_groups.append((tuple(kept_clients), len(group)))
        else:
            other_sizes.append(len(group))
    # Groups are in the order of their first members, which may be others now.
    kept_groups.sort()
    kept_sizes = [size for _, size in kept_groups]
    assignment = replace(
        finished_round.assignment, groups=tuple(clients for clients, _ in kept_groups)
    )
    tables: dict[str, Any] = {}
    for entry_name in ("absent", "claimed", "counted", "released"):
        values: Mapping[Client, Any] = getattr(finished_round, entry_name)
        tables[entry_name] = {client: values[client] for client in values if client in listed}
    return replace(
        finished_round,
        assignment=assignment,
        notes=tuple(_notes_of_listed(finished_round, listed)),
        personal=tuple(among(listed, sorted(finished_round.personal))),
        **tables,
    ), kept_sizes + sorted(other_sizes, reverse=True)


def _notes_of_listed(finished_round: Round, listed: frozenset[Client]) -> Iterator[Note]:
    """The notes about the listed clients, and about those that took part in the round.

    Values of more clients than a round asks, such as those of all that ever trained, are of the
    listed ones alone. A note about a single client is of no interest if it is not listed.
    """
    for note in finished_round.notes:
        if len(note.clients) == 1 and note.clients[0] not in listed:
            continue
        involved_clients = {*listed, *note.heard}
        values = {}
        for value_name, value_of_client in note.values.items():
            if len(value_of_client) > finished_round.asked:
                kept_clients = listed.intersection(value_of_client)
                value_of_client = {client: value_of_client[client] for client in kept_clients}
            values[value_name] = value_of_client
            involved_clients.update(value_of_client)
        # The rows of matrices are clients of the note.
        clients = note.clients
        if not note.similarity or note.heard:
            clients = tuple(among(involved_clients, sorted(clients)))
        parts = [tuple(among(involved_clients, part)) for part in note.parts]
        yield replace(note, clients=clients, parts=tuple(filter(None, parts)), values=values)


def _client_entries(finished_round: Round) -> dict[str, dict[str, Any]]:
    """Client's id as a key -> its group, its scores in a tested round, and whether it is hostile."""
    # Each client with the number of its group, in the order of their ids.
    group_of_client: dict[Client, int] = {}
    for group_number, group in enumerate(finished_round.assignment.groups):
        group_of_client |= dict.fromkeys(group, group_number)
    # The scores are in the lines of tested rounds alone.
    client_entries: dict[str, dict[str, Any]] = {}
    for client, group_number in sorted(group_of_client.items()):
        scores = {} if finished_round.scores is None else finished_round.scores[client]
        client_entries[str(client)] = {"group": group_number, **scores}
    for client in finished_round.adversaries:
        # It may not have joined yet.
        if str(client) in client_entries:
            client_entries[str(client)]["adversary"] = True
    return client_entries


def note_entry(note: Note, matrix_file_name: str | None) -> dict[str, Any]:
    """The entry of a note in a round's line.

    Args:
        note: The note.
        matrix_file_name: The file of its matrices, if it has any.

    Returns:
        The entry, in which numbers may still be NaN or infinite.
    """
    criteria = []
    for criterion in note.criteria:
        # Readers need not compare the value with the bound again.
        criteria.append({**asdict(criterion), "held": criterion.held})
    return {
        "kind": note.kind,
        "effect": note.effect,
        "clients": list(note.clients),
        "parts": [list(group) for group in note.parts],
        "text": note.text,
        "criteria": criteria,
        "otherwise": note.otherwise,
        "numbers": dict(note.numbers),
        "labels": dict(note.labels),
        "values": {
            value_name: dict(sorted(values.items())) for value_name, values in note.values.items()
        },
        "similarity": matrix_file_name,
    }


def matrices(finished_round: Round) -> dict[str, Note]:
    """File in the run directory -> the note whose matrices it holds."""
    # The first note with matrices has the plain name, further ones a number.
    notes_with_matrices = [note for note in finished_round.notes if note.similarity]
    note_of_file = {}
    for note_number, note in enumerate(notes_with_matrices, start=1):
        suffix = f"-{note_number}" if note_number > 1 else ""
        note_of_file[f"{MATRICES_FOLDER}/round-{finished_round.number}{suffix}.safetensors"] = note
    return note_of_file


def matrix_file(note: Note, round_number: int) -> bytes:
    """The file of a note's matrices.

    The metadata has one key, ``note``, which names the clients of the rows. There is only one key
    because safetensors writes several in no fixed order, and a file that is made again must be the
    same.

    Args:
        note: The note, with matrices ``(n, n)`` by name.
        round_number: The number of the round.

    Returns:
        The matrices as float32 in safetensors.
    """
    row_labels = {"round": round_number, "kind": note.kind, "clients": list(note.order)}
    tensors = {
        matrix_name: matrix.detach().to("cpu", torch.float32).contiguous()
        for matrix_name, matrix in note.similarity.items()
    }
    return safetensors_of(tensors, {"note": to_json(row_labels)})


def load_matrices(
    run_folder: Path, recorded_line: Line, recorded_note: Mapping[str, Any]
) -> tuple[list[ClientId], dict[str, np.ndarray]]:
    """Read the matrices of a note.

    Args:
        run_folder: The run directory.
        recorded_line: The record of the round.
        recorded_note: The note in this record.

    Returns:
        The clients of the rows, and the matrices ``(n, n)`` by name.

    Raises:
        DamagedError: The file is missing, or has been changed or damaged.
        UserError: The file is a link.
    """
    file_name = recorded_note["similarity"]
    if not _MATRIX_FILE_NAME.fullmatch(file_name):
        raise DamagedError(
            f"round {recorded_line['round']} of {run_folder} names a file of matrices "
            f"{file_name!r:.80}, which is not part of a run"
        )
    try:
        file_bytes = read_within(run_folder, file_name)
        checksum.check(
            file_bytes, run_folder / file_name, recorded_line.get("files", {}).get(file_name)
        )
        # A safetensors file begins with the length of its header, 8 bytes, and the header as JSON.
        file_header = json.loads(file_bytes[8 : 8 + int.from_bytes(file_bytes[:8], "little")])
        row_labels = json.loads(file_header["__metadata__"]["note"])
        row_clients = [int(client) for client in row_labels["clients"]]
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
            f"{run_folder / file_name} cannot be read; it is damaged or missing"
        ) from error
    for matrix in matrices_by_name.values():
        if matrix.shape != (len(row_clients), len(row_clients)) or matrix.dtype.kind != "f":
            raise DamagedError(
                f"{run_folder / file_name} has a matrix that does not match its {len(row_clients)} clients"
            )
    # With the names by which the line shows clients.
    naming = shown_as(recorded_line)
    return [naming.client(client) for client in row_clients], matrices_by_name
