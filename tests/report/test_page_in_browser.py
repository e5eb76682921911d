"""The page in a real browser: it loads without errors or requests, and slider, sorting, hover and keys do what they say."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from coterie.report.page import document, page
from page_runs import OLD, cosines, criterion, line, matrices, note, split_run, write

pytestmark = pytest.mark.slow


class Opened:
    """A page in a tab, with what went wrong in it."""

    def __init__(self, browser: Any, path: Path, **options: Any) -> None:
        self.wrong: list[str] = []
        self.tab = browser.new_page(viewport={"width": 1200, "height": 900}, **options)
        self.tab.on("console", lambda message: self.wrong.append(message.text))
        self.tab.on("pageerror", lambda error: self.wrong.append(str(error)))
        self.tab.on(
            "request",
            lambda request: request.url == path.as_uri() or self.wrong.append(request.url),
        )
        self.tab.goto(path.as_uri())
        self.tab.wait_for_selector("section.run canvas")

    def tip(self) -> str:
        shown = self.tab.locator("#tip")
        return str(shown.text_content()) if shown.is_visible() else ""

    def first_cells(self, column: int) -> list[str]:
        return [
            str(text)
            for text in self.tab.locator(
                f"section.run [aria-label='Table of clients'] tbody td:nth-child({column})"
            ).all_text_contents()
        ]


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = split_run(tmp_path_factory.mktemp("page") / "run")
    path = folder.parent / "one.html"
    path.write_text(page(document([folder])), encoding="utf-8")
    return path


@pytest.fixture
def one(browser: Any, file: Path) -> Iterator[Opened]:
    opened = Opened(browser, file)
    yield opened
    opened.tab.close()
    assert opened.wrong == []


def test_it_says_what_became_of_the_run(one: Opened) -> None:
    text = one.tab.inner_text("main")
    for words in (
        "cfl on synthetic/groups, seed 0",
        "adjusted Rand",
        "why it is a split",
        "Mean update",
    ):
        assert words in text
    assert "G1 rounds 2–4 · 4 clients: 0–3" in re.sub(r"\s+", " ", text)


def test_pointing_at_a_block_tells_who_when_and_why(one: Opened) -> None:
    canvas = one.tab.locator("section.run canvas").first
    box = canvas.bounding_box()
    canvas.hover(position={"x": box["width"] * 0.6, "y": 10})
    assert "in G1, rounds 2 to 4, 4 clients (0–3)" in one.tip()
    assert "since round 2: why it is a split" in one.tip()
    one.tab.mouse.move(1, 1)
    assert one.tip() == ""


def test_arrow_keys_read_the_groups_and_the_charts(one: Opened) -> None:
    one.tab.locator("section.run canvas").first.focus()
    one.tab.keyboard.press("ArrowRight")
    assert "round 1, client 0, true group A" in one.tip()
    one.tab.keyboard.press("ArrowRight")
    one.tab.keyboard.press("ArrowDown")
    assert "round 2, client 1" in one.tip()
    assert "round 2, client 1" in str(
        one.tab.locator("section.run .plot .spoken").first.text_content()
    )
    one.tab.keyboard.press("Escape")
    assert one.tip() == ""
    one.tab.locator("figure.chart svg[tabindex]").first.focus()
    one.tab.keyboard.press("ArrowRight")
    assert one.tip().startswith("round 1\nall (6 clients): 0.")


def test_columns_sort_up_and_down(one: Opened) -> None:
    assert one.first_cells(1) == ["0", "1", "2", "3", "4", "5", "9"]
    heads = one.tab.locator("section.run [aria-label='Table of clients'] th")
    one.tab.get_by_role("button", name="accuracy", exact=True).last.click()
    assert one.first_cells(1) == ["9", "5", "4", "3", "2", "1", "0"]
    assert heads.nth(4).get_attribute("aria-sort") == "descending"
    one.tab.get_by_role("button", name="accuracy ▾").click()
    assert one.first_cells(1) == ["0", "1", "2", "3", "4", "5", "9"]
    assert heads.nth(4).get_attribute("aria-sort") == "ascending"
    assert heads.nth(0).get_attribute("aria-sort") == "none"


def test_the_table_shows_one_group_and_a_client_gets_its_line(one: Opened) -> None:
    one.tab.get_by_label("Show only this client or group").fill("g2")
    assert one.first_cells(1) == ["4", "5", "9"]
    one.tab.get_by_role("button", name="9", exact=True).click()
    assert one.tab.locator(".legend button", has_text="client 9").count() == 1
    assert one.tab.locator("tr[aria-selected=true]").count() == 1


def test_layers_and_legends_switch(one: Opened) -> None:
    one.tab.locator("label:has-text('layer') select").select_option("fc1")
    matrix = one.tab.locator("section.run canvas").nth(1)
    box = matrix.bounding_box()
    matrix.hover(position={"x": 60, "y": 60})
    assert "client 0, true group A (1st group)" in one.tip()
    assert box["height"] > 200
    before = one.tab.locator("figure.chart").first.locator("path[stroke-width='3']").count()
    one.tab.locator("figure.chart").first.locator(".legend button").first.click()
    assert (
        one.tab.locator("figure.chart").first.locator("path[stroke-width='3']").count()
        == before - 1
    )


@pytest.fixture
def crowd(browser: Any, tmp_path: Path) -> Iterator[Opened]:
    """A page of twelve groups of two clients."""
    groups = [[i, i + 12] for i in range(12)]
    notes = [note("keep", group, criteria=[criterion(0.6)]) for group in groups]
    path = tmp_path / "crowd.html"
    run = write(tmp_path / "run", [line(number, groups, *notes) for number in (1, 2, 3)])
    path.write_text(page(document([run])), encoding="utf-8")
    opened = Opened(browser, path)
    yield opened
    opened.tab.close()
    assert opened.wrong == []


def test_a_crowd_of_lines_is_shown_group_by_group(crowd: Opened) -> None:
    norms = crowd.tab.locator("figure.chart", has_text="Mean update")
    assert norms.locator(".legend button").count() == 1
    norms.get_by_role("button", name="all").click()
    assert norms.locator(".legend button").count() == 12


def test_a_chart_without_lines_has_nothing_to_say(one: Opened) -> None:
    figure = one.tab.locator("figure.chart", has_text="Mean update")
    for button in figure.locator(".legend button").all():
        button.click()
    figure.locator("svg[tabindex]").focus()
    one.tab.keyboard.press("ArrowRight")
    assert one.tip() == ""


def test_dark_and_light_and_print(browser: Any, file: Path) -> None:
    grounds = {}
    for scheme in ("light", "dark"):
        opened = Opened(browser, file, color_scheme=scheme)
        grounds[scheme] = opened.tab.evaluate("getComputedStyle(document.body).backgroundColor")
        opened.tab.locator("#theme").click()  # auto -> light
        assert (
            opened.tab.evaluate("getComputedStyle(document.body).backgroundColor")
            == grounds["light"]
        )
        assert opened.tab.pdf(format="A4", print_background=True).startswith(b"%PDF")
        assert opened.wrong == []
        opened.tab.close()
    assert grounds["light"] != grounds["dark"]


def test_the_slider_goes_over_the_clusterings(browser: Any, tmp_path: Path) -> None:
    parts = [[0, 1], [2, 3]], [[0], [1], [2, 3]], [[0], [1], [2], [3]]
    named = [f"similarity/round-{number}.safetensors" for number in (1, 2, 3)]
    lines = [
        line(
            number,
            groups,
            note("partition", range(4), groups, text=f"as in round {number}", similarity=name),
        )
        for number, (groups, name) in enumerate(zip(parts, named, strict=True), start=1)
    ]
    folder = write(tmp_path / "run", lines, method="hcct")
    for name in named:
        matrices(folder, Path(name).name, range(4), all=cosines([0, 0, 1, 1]))
    path = tmp_path / "hcct.html"
    path.write_text(page(document([folder])), encoding="utf-8")
    opened = Opened(browser, path)
    figure = opened.tab.locator("figure", has=opened.tab.get_by_label("Clustering round"))
    for key, number in (("End", 3), ("Home", 1), ("ArrowRight", 2)):
        opened.tab.get_by_label("Clustering round").focus()
        opened.tab.keyboard.press(key)
        assert f"round {number} ({number} of 3)" in figure.inner_text()
        assert f"as in round {number}" in figure.inner_text()
    assert opened.wrong == []
    opened.tab.close()


def test_several_runs_side_by_side(browser: Any, tmp_path: Path) -> None:
    path = tmp_path / "all.html"
    folders = sorted(OLD.iterdir())
    path.write_text(page(document(folders)), encoding="utf-8")
    opened = Opened(browser, path)
    assert opened.tab.locator("#compared tbody tr").count() == len(folders)
    opened.tab.get_by_role("button", name="method", exact=True).click()
    methods = opened.tab.locator("#compared tbody td:first-child").all_text_contents()
    assert methods == sorted(methods)
    assert opened.tab.locator("nav a").count() == len(folders) + 2
    assert opened.wrong == []
    opened.tab.close()


def test_text_of_a_record_stays_text(browser: Any, tmp_path: Path) -> None:
    bad = "</script><img src=x onerror='document.title=1'><b>bold</b>{{style}}"
    folder = write(
        tmp_path / "run",
        [line(1, [[0, 1]]), line(2, [[0], [1]], note("split", [0, 1], [[0], [1]], text=bad))],
    )
    path = tmp_path / "bad.html"
    path.write_text(page(document([folder])), encoding="utf-8")
    opened = Opened(browser, path)
    assert bad in opened.tab.inner_text(".tree")
    assert opened.tab.locator("img").count() == 0
    assert opened.wrong == []
    opened.tab.close()


@pytest.fixture
def hospitals(browser: Any, tmp_path: Path) -> Iterator[Opened]:
    """A page on a phone: FedAvg, and two methods that find the same groups of clients with names, in another order."""
    names = ["north", "<b>south</b>", "east", "west"]
    for method, groups in (
        ("fedavg", [[0, 1, 2, 3]]),
        ("cfl", [[0, 1], [2, 3]]),
        ("hcct", [[2, 3], [0, 1]]),
    ):
        lines = [line(number, groups) for number in (1, 2)]
        for client, entry in lines[1]["clients"].items():
            entry["accuracy"] = 0.1 if method == "fedavg" else 0.6 + int(client) / 10
        write(tmp_path / "runs" / method, lines, method, names=names, tests=[100] * 4)
    path = tmp_path / "all.html"
    path.write_text(page(document([tmp_path / "runs"])), encoding="utf-8")
    opened = Opened(browser, path)
    opened.tab.set_viewport_size({"width": 360, "height": 740})
    yield opened
    opened.tab.close()
    assert opened.wrong == []


def test_the_page_begins_with_the_verdict(hospitals: Opened) -> None:
    text = hospitals.tab.locator("main > section").first.inner_text()
    for words in (
        "Use cfl for all clients",
        "2 clients: <b>south</b>, north",
        "4 of 4 clients",
        "alone (independent)",
    ):
        assert words in text


def test_the_worst_client_is_on_the_screen_of_a_phone(hospitals: Opened) -> None:
    assert hospitals.tab.evaluate("document.documentElement.scrollWidth") == 360
    row = hospitals.tab.get_by_role("region", name="Clients by method").locator("tbody tr").first
    assert row.locator("td").first.inner_text() == "north"
    box = row.locator("td").nth(2).bounding_box()
    assert box["x"] + box["width"] <= 360
    assert row.locator("td").nth(2).inner_text().split() == ["0.600", "▲", "+0.500"]
    tile = hospitals.tab.locator(".tiles li", has_text="worst client").first
    assert tile.inner_text().split() == ["0.600", "worst", "client:", "north"]


def test_a_group_has_one_colour_in_all_sections(hospitals: Opened) -> None:
    swatch = "section.run tr:has(td button:text-is('{}')) td:nth-child(2) .swatch"
    colours = {
        name: [
            one.evaluate("(box) => box.style.background")
            for one in hospitals.tab.locator(swatch.format(name)).all()
        ]
        for name in ("north", "<b>south</b>", "east", "west")
    }
    assert colours["north"] == colours["<b>south</b>"]
    assert colours["east"] == colours["west"]
    for name in ("north", "east"):
        assert len(colours[name]) == 3
        assert len(set(colours[name])) == 2
    assert not set(colours["north"][:2]) & set(colours["east"])
