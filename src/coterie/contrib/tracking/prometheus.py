"""Numbers of a run for Prometheus, in its text format: a file that a node_exporter's textfile collector reads.

It needs no package and opens no port. The file is in ``track/prometheus`` of the run's output
folder, or in the folder that ``COTERIE_PROMETHEUS`` names (node_exporter's
``--collector.textfile.directory``). It is written anew, as a whole, after each round.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from coterie.contrib.tracking.pictures import Picture
from coterie.contrib.tracking.trackers import TRACK, Tracker
from coterie.records.store import write_whole
from coterie.settings import UserError

FOLDER_VARIABLE = "COTERIE_PROMETHEUS"
"""Environment variable that names the folder of the files."""

Labels = Mapping[str, str]


class Prometheus(Tracker):
    """Writes the newest round as ``coterie-RUN.prom``."""

    name = "prometheus"

    def __init__(self, folder: Path) -> None:
        given_folder = os.environ.get(FOLDER_VARIABLE, "")
        super().__init__(folder, store=given_folder)
        if given_folder and not Path(given_folder).is_dir():
            raise UserError(f"{FOLDER_VARIABLE} must name a folder, got {given_folder!r}")
        self.file_folder = Path(given_folder) if given_folder else self.home / TRACK / self.name
        # Of a run that is tracked already, the file is there.
        self.numbers: Mapping[str, float] = {}

    @property
    def file(self) -> Path:
        """The file."""
        safe_name = re.sub(r"[^\w.-]", "_", self.folder.name)
        return self.file_folder / f"coterie-{safe_name}.prom"

    def write(
        self, round: int, numbers: Mapping[str, float], text: str, pictures: Sequence[Picture]
    ) -> None:
        self.numbers = {**numbers, "round": round}
        self._write_file()

    def close(self) -> None:
        # Whether the run has ended is known after its last round was written.
        if self.numbers:
            self._write_file()

    def _write_file(self) -> None:
        labels = {
            "run": self.folder.name,
            "method": str(self.settings.get("method.name", "")),
            "seed": str(self.settings.get("seed", "")),
        }
        numbers = {
            **self.numbers,
            "finished": float(self.finished),
            "timestamp": time.time(),
        }
        self.file_folder.mkdir(parents=True, exist_ok=True)
        write_whole(self.file, text_format(numbers, labels).encode())


METRIC_FAMILIES: Sequence[tuple[str, str, str, Mapping[str, Labels]]] = (
    ("coterie_round", "gauge", "Number of the last recorded round.", {"round": {}}),
    ("coterie_finished", "gauge", "1 if the run has ended, else 0.", {"finished": {}}),
    (
        "coterie_last_round_timestamp_seconds",
        "gauge",
        "When the last round was read from the record.",
        {"timestamp": {}},
    ),
    (
        "coterie_round_seconds",
        "gauge",
        "Seconds of the last round.",
        {
            "seconds/train": {"part": "train"},
            "seconds/server": {"part": "server"},
            "seconds/evaluate": {"part": "evaluate"},
        },
    ),
    ("coterie_seconds_total", "counter", "Seconds of all rounds.", {"seconds/total": {}}),
    (
        "coterie_tasks",
        "gauge",
        "Tasks of the last round, by what became of them; refused and silent are clients.",
        {
            "traffic/asked": {"state": "asked"},
            "traffic/answered": {"state": "answered"},
            "traffic/refused": {"state": "refused"},
            "traffic/silent": {"state": "silent"},
        },
    ),
    ("coterie_groups", "gauge", "Groups of clients.", {"groups/count": {}}),
    (
        "coterie_bytes_total",
        "counter",
        "Bytes sent in all rounds.",
        {
            "traffic/bytes_up": {"direction": "up"},
            "traffic/bytes_down": {"direction": "down"},
        },
    ),
)
"""Name, type and meaning of each family of metrics, and its numbers with their labels."""


def text_format(numbers: Mapping[str, float], labels: Labels) -> str:
    """Return numbers of a round in Prometheus's text format.

    Args:
        numbers: Name -> number, as trackers get them, with ``round``, ``finished`` and ``timestamp``.
        labels: The labels of all of them.

    Example:
        >>> print(text_format({"round": 3, "accuracy/mean": 0.5}, {"run": "cfl"}), end="")
        # HELP coterie_round Number of the last recorded round.
        # TYPE coterie_round gauge
        coterie_round{run="cfl"} 3
        # HELP coterie_score Metrics over clients, in the last tested round.
        # TYPE coterie_score gauge
        coterie_score{run="cfl",metric="accuracy",statistic="mean"} 0.5
    """
    lines: list[str] = []
    for family, kind, meaning, members in METRIC_FAMILIES:
        samples = []
        for number_name, member_labels in members.items():
            if number_name in numbers:
                samples.append(_sample(family, {**labels, **member_labels}, numbers[number_name]))
        lines += _family(family, kind, meaning, samples)
    # The metrics of a tested round: accuracy/mean, accuracy/worst, loss/mean, ...
    scores = []
    for number_name, number in numbers.items():
        metric, _, statistic = number_name.partition("/")
        if statistic in ("mean", "worst"):
            score_labels = {**labels, "metric": metric, "statistic": statistic}
            scores.append(_sample("coterie_score", score_labels, number))
    lines += _family(
        "coterie_score", "gauge", "Metrics over clients, in the last tested round.", scores
    )
    return "".join(f"{line}\n" for line in lines)


def _family(family: str, kind: str, meaning: str, samples: Sequence[str]) -> list[str]:
    """A family's lines; none without samples."""
    if not samples:
        return []
    return [f"# HELP {family} {meaning}", f"# TYPE {family} {kind}", *samples]


def _sample(family: str, labels: Labels, number: float) -> str:
    shown_labels = ",".join(f'{name}="{_escaped(value)}"' for name, value in labels.items())
    return f"{family}{{{shown_labels}}} {number!r}"


def _escaped(value: str) -> str:
    """A label's value: backslashes, quotes and line ends are escaped."""
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
