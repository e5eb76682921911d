"""The drawings of the documents: made by their generator, legible in light and dark, and described in words."""

from __future__ import annotations

import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

import coterie
from tools.docs.charts import all_charts
from tools.docs.drawings import choose, concepts, idea
from tools.docs.drawings.all_drawings import FIGURES, drawn
from tools.docs.drawings.methods import METHOD_DRAWINGS

ROOT = Path(__file__).parents[2]
SVG = "{http://www.w3.org/2000/svg}"
FILES = drawn() | all_charts.drawn()
SMALLEST_TEXT = 14


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_the_file_is_what_the_generator_draws(path: Path) -> None:
    assert path.read_text() == FILES[path], (
        "python -m tools.docs.drawings (or tools.docs.charts) makes it anew"
    )


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_it_has_words_for_who_cannot_see_it(path: Path) -> None:
    picture = ElementTree.fromstring(path.read_text())
    assert picture.get("role") == "img"
    words = {tag: picture.find(SVG + tag) for tag in ("title", "desc")}
    assert all(element is not None and element.text for element in words.values())
    named = {element.get("id") for element in words.values() if element is not None}
    assert named == set(picture.get("aria-labelledby", "").split())


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_it_needs_nothing_from_elsewhere_and_no_text_is_small(path: Path) -> None:
    text = path.read_text()
    assert not re.search(r"<script|<image|<use|href|@import|url\(", text)
    assert min(int(size) for size in re.findall(r'font-size="(\d+)"', text)) >= SMALLEST_TEXT


@pytest.mark.parametrize(
    "path", [path for path in FILES if path.parent == FIGURES], ids=lambda path: path.stem
)
def test_every_colour_has_another_in_the_dark_and_all_is_on_the_sheet(path: Path) -> None:
    text = path.read_text()
    light, dark = (
        dict(re.findall(r"\.([\w-]+) \{ (?:fill|stroke): (#\w+)", part))
        for part in text.split("prefers-color-scheme: dark")
    )
    assert light.keys() == dark.keys()
    assert all(light[name] != dark[name] for name in light)
    picture = ElementTree.fromstring(text)
    width, height = (int(picture.get(name, "")) for name in ("width", "height"))
    for element in picture.iter():
        x, y = (float(element.get(name, 1)) for name in ("x", "y"))
        right, bottom = x + float(element.get("width", 0)), y + float(element.get("height", 0))
        if element is not picture:
            assert min(x, y) >= 0, element.attrib
            assert right <= width, element.attrib
            assert bottom <= height, element.attrib


def test_the_idea_has_the_numbers_of_the_readme() -> None:
    (table,) = re.findall(r"^fedavg  .*\nauto  .*$", (ROOT / "README.md").read_text(), re.MULTILINE)
    fedavg, auto = (float(line.split()[2]) for line in table.splitlines())
    assert (fedavg, auto) == (idea.SHARED_ACCURACY, idea.GROUPS_ACCURACY)


@pytest.mark.slow
def test_the_idea_has_the_number_of_training_alone() -> None:
    *_, last = coterie.run("independent", "digits/label-permutation", rounds=40, seed=0)
    assert last.scores is not None
    accuracies = [scores["accuracy"] for scores in last.scores.values()]
    mean = sum(accuracies) / len(accuracies)
    assert round(mean, 3) == idea.ALONE_ACCURACY


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "losses"),
    [
        ("fedavg", concepts.ONE_MODEL),
        ("split-half", concepts.GROUPS_LOSS),
        ("independent", concepts.ALONE),
    ],
)
def test_autos_picture_has_measured_losses(method: str, losses: tuple[float, ...]) -> None:
    rounds = coterie.run(method, "digits/label-permutation", rounds=len(losses), seed=0)
    measured = []
    for done in rounds:
        assert done.scores is not None
        measured.append(sum(scores["loss"] for scores in done.scores.values()) / len(done.scores))
    assert measured == pytest.approx(losses, abs=0.02)


@pytest.mark.slow
def test_autos_picture_has_the_rounds_of_its_notes() -> None:
    rounds = list(coterie.run("auto", "digits/label-permutation", rounds=concepts.DROP_ROUND))
    kinds = {(done.number, note.kind) for done in rounds for note in done.notes}
    assert {number for number, kind in kinds if kind == "lead"} == {concepts.LEAD_ROUND}
    drops = {number for number, kind in kinds if kind == "drop"}
    # Training alone is dropped soon after the groups take over, and one model later.
    assert drops == {concepts.ALONE_DROP_ROUND, concepts.DROP_ROUND}
    found = [
        done.number
        for done in rounds
        if any("p of two probes" in note.text and "<" in note.text for note in done.notes)
    ]
    assert found[0] == concepts.FOUND_ROUND


def test_every_method_has_a_picture() -> None:
    cards = {path.stem for path in (ROOT / "docs" / "methods").glob("*.md")}
    assert set(METHOD_DRAWINGS) == cards - {"index"}


def test_the_choice_asks_at_most_eight_questions_and_names_methods_that_exist() -> None:
    assert len(choose.QUESTIONS) <= 8
    names = {card_title(name) for name in METHOD_DRAWINGS}
    answers = [line for _, answer in choose.QUESTIONS for line in answer]
    for line in [*answers, choose.LAST]:
        for words, colour in line:
            if colour == choose.METHOD:
                assert set(words.split(", ")) <= names


def card_title(name: str) -> str:
    """The name of a method as the heading of its card has it."""
    title = (ROOT / "docs" / "methods" / f"{name}.md").read_text().partition("\n")[0].lstrip("# ")
    return title.partition(":")[0]
