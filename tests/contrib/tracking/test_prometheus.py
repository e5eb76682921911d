"""The file for Prometheus: its numbers are those of the record, in the text format, whole after each round."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tracked import ROUNDS, append, cut

from coterie.contrib.tracking.metrics import Metrics
from coterie.contrib.tracking.prometheus import FOLDER_VARIABLE, Prometheus, text_format
from coterie.records.record import Record
from coterie.settings import UserError

SAMPLE = re.compile(r'([a-z_]+)\{((?:[a-z]+="(?:[^"\\\n]|\\.)*",?)*)\} (\S+)')


def samples(file: Path) -> dict[tuple[str, str], float]:
    """(family, labels without those of all) -> number."""
    found = {}
    for line in file.read_text().splitlines():
        if line.startswith("#"):
            assert re.fullmatch(r"# (HELP|TYPE) [a-z_]+ .+", line)
            continue
        match = SAMPLE.fullmatch(line)
        assert match, line
        labels = re.sub(r'(run|method|seed)="[^"]*",?', "", match[2])
        found[match[1], labels] = float(match[3])
    return found


def test_the_file_has_the_numbers_of_the_newest_round(run: Path) -> None:
    rest = cut(run, 3)
    tracker = Prometheus(run)
    tracker.catch_up()
    assert samples(tracker.file)["coterie_round", ""] == 3
    append(run, rest)
    tracker.catch_up()
    tracker.close()
    found = samples(tracker.file)
    lines = Record(run).lines()
    metrics = Metrics(Record(run).description()["world"])
    numbers = [metrics.of(line) for line in lines][-1]
    assert found["coterie_round", ""] == ROUNDS == lines[-1]["round"]
    assert found["coterie_finished", ""] == 1
    assert found["coterie_groups", ""] == len(lines[-1]["groups"])
    assert found["coterie_seconds_total", ""] == numbers["seconds/total"]
    assert found["coterie_tasks", 'state="answered"'] == lines[-1]["answered"]
    assert found["coterie_tasks", 'state="refused"'] == 0
    assert found["coterie_bytes_total", 'direction="up"'] == sum(line["bytes_up"] for line in lines)
    mean = found["coterie_score", 'metric="accuracy",statistic="mean"']
    assert mean == numbers["accuracy/mean"]


def test_refused_and_silent_clients_are_counted(run: Path) -> None:
    line = dict(Record(run).lines()[0])
    line["refused"] = {"3": "its update is not finite"}
    line["silent"] = [1, 2]
    numbers = Metrics(Record(run).description()["world"]).of(line)
    text = text_format(numbers, {"run": "cfl"})
    assert 'coterie_tasks{run="cfl",state="refused"} 1.0' in text
    assert 'coterie_tasks{run="cfl",state="silent"} 2.0' in text


def test_the_folder_of_the_collector(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "collector"
    monkeypatch.setenv(FOLDER_VARIABLE, str(folder))
    with pytest.raises(UserError, match="must name a folder"):
        Prometheus(run)
    folder.mkdir()
    tracker = Prometheus(run)
    tracker.catch_up()
    tracker.close()
    assert [file.name for file in folder.iterdir()] == ["coterie-cfl.prom"]


def test_labels_are_escaped() -> None:
    text = text_format({"round": 1}, {"run": 'a"b\\c\nd'})
    assert r'coterie_round{run="a\"b\\c\nd"} 1' in text.splitlines()
