"""What an export of a federation says about its models beyond their weights, from sums that the clients reported."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from coterie.core import Client
from coterie.records.codec import DamagedError
from coterie.records.record import CALIBRATION_FILE, read_calibration
from coterie.runs.calibration import calibrated_by_sums
from coterie.runs.served_facts import ServedFacts
from coterie.training.calibration_sums import CalibrationSums

NO_DATA = "the clients' data never were on the server"

MAX_SUMMED_ROWS = 2**62
"""Most rows of all clients together."""


def reported_facts(
    folder: Path, round_number: int, files_of_client: Mapping[Client, tuple[str, ...]]
) -> ServedFacts:
    """Return what the clients of a federation have reported of the models of a round.

    Args:
        folder: The run directory.
        round_number: The round whose models are exported.
        files_of_client: Client -> the files of its net.

    Returns:
        The facts: the numbers of rows, and the calibration. Nothing places new sites. Without
        reports of this round there is neither.

    Raises:
        DamagedError: The file with the sums is damaged.
    """
    document = read_calibration(folder)
    if document is None or document.get("round") != round_number:
        return ServedFacts(why_none=NO_DATA)
    sums_of_net: dict[str, CalibrationSums] = {}
    rows: dict[Client, dict[str, int]] = {}
    kind = ""
    try:
        for entry in document["models"]:
            sums = CalibrationSums.of_numbers(entry, MAX_SUMMED_ROWS)
            kind = sums.kind
            clients = []
            for client_text, rows_of_client in entry["clients"].items():
                rows[int(client_text)] = {
                    split_name: int(rows_of_client[split_name])
                    for split_name in ("train", "validation", "test")
                }
                clients.append(int(client_text))
            # All clients of an entry have the same net.
            net_name = "+".join(files_of_client[clients[0]])
            if net_name in sums_of_net:
                sums = sums_of_net[net_name] + sums
            sums_of_net[net_name] = sums
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        raise DamagedError(f"{folder / CALIBRATION_FILE} is damaged ({error})") from error
    return ServedFacts(kind, NO_DATA, rows, calibrated_by_sums(sums_of_net))
