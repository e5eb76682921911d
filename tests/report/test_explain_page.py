"""The page on explaining and its notes show what the command prints and name all that ``--json`` has; notes/events.md names
all that notes tell."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from coterie.methods import METHODS
from coterie.records.record import Record
from coterie.report.explain import explain, words
from method_examples import ONE_OF_EACH_KIND
from told_runs import ran

ROOT = Path(__file__).parents[2]
RUN = ROOT / "tests" / "report" / "explained"
PAGE = "".join((ROOT / page).read_text() for page in ("docs/sites/explain.md", "notes/explain.md"))
NOTES = (ROOT / "notes" / "events.md").read_text()
SHOWN = re.findall(r"<!-- explained: (.*?)-->\n```text\n(.*?)```", PAGE, re.DOTALL)


def test_the_page_shows_what_is_printed() -> None:
    assert len(SHOWN) == 2
    for options, text in SHOWN:
        client = re.search(r"--client (\d+)", options)
        assert text == words(RUN, client=int(client[1]) if client else None) + "\n"


def test_the_page_names_every_field() -> None:
    for found in (explain(RUN), explain(RUN, client=5)):
        for name in fields(found):
            assert f"`{name}`" in PAGE, name


def fields(found: Any) -> Iterator[str]:
    """Names of fields, but not of numbers, of kinds of notes, and of rounds."""
    if isinstance(found, list):
        for one in found:
            yield from fields(one)
    elif isinstance(found, dict):
        for name, value in found.items():
            yield name
            if name not in ("numbers", "labels", "unchanged", "refused"):
                yield from fields(value)


SETTINGS: dict[str, list[dict[str, Any]]] = {
    "cfl": [{"persistence": 1}, {"gamma_max": "none"}, {"split_rounds": [2]}],
    "flhc": [{"warmup": 1, "threshold": 2.0}], "acfl": [{"threshold": 0.7}], "hcct": [{"cosines": "signals"}, {}],
    "maxfl": [{"pretrain_epochs": 1}, {"rule": "cho"}], "split-half": [{"probe_every": 2, "review_every": 2}],
    "auto": [{}, {"patience": 2}], "race": [{}, {"patience": 2}],
    "ifca": [{"initial": "kmeans++"}, {"restarts": 2, "restart_rounds": 1}],
}  # fmt: skip
EACH = [
    pytest.param(name, settings, marks=() if name in ONE_OF_EACH_KIND else pytest.mark.slow)
    for name in METHODS
    for settings in SETTINGS.get(name, [{}])
]


@pytest.mark.parametrize(
    ("name", "settings"),
    EACH,
    ids=lambda value: value if isinstance(value, str) else "-".join(value),
)
def test_whatever_a_note_tells_has_a_meaning_in_the_documents(
    tmp_path: Path, name: str, settings: dict[str, Any]
) -> None:
    run = ran(
        tmp_path / "run",
        {"name": name, **settings},
        rounds=7,
        newcomers=1,
        join_round=5,
        silent=0.2,
    )
    for line in Record(run).lines():
        for note in line["notes"]:
            if note["kind"] == "layer":  # its numbers are the layers
                continue
            for told in (
                *(one["name"] for one in note["criteria"]),
                *note["numbers"],
                *note["labels"],
                *note["values"],
            ):
                general = re.sub(
                    r"^(node_|p_|distance to part |loss of model |singular value |start)\d+$",
                    r"\1…",
                    told,
                )
                general = re.sub(
                    r" of .+ less [^,]+", " of … less …", general
                )  # two arms of a race
                assert f"`{general}`" in NOTES, (note["kind"], told)
