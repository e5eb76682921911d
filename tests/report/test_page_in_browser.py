"""The page in a real browser: it loads without errors or requests, and slider, sorting, hover and keys do what they say."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
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


@contextmanager
def opened_page(browser: Any, path: Path) -> Iterator[Opened]:
    """A page in a tab, in which nothing may have gone wrong when it is closed."""
    opened = Opened(browser, path)
    yield opened
    opened.tab.close()
    assert opened.wrong == []


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = split_run(tmp_path_factory.mktemp("page") / "run")
    path = folder.parent / "one.html"
    path.write_text(page(document([folder])), encoding="utf-8")
    return path


@pytest.fixture
def one(browser: Any, file: Path) -> Iterator[Opened]:
    with opened_page(browser, file) as opened:
        yield opened


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
    with opened_page(browser, path) as opened:
        yield opened


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
    with opened_page(browser, path) as opened:
        opened.tab.set_viewport_size({"width": 360, "height": 740})
        yield opened


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


@pytest.fixture(scope="module")
def demonstration(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file of a page of 20 clients: one model, training alone, and four groups that one note made."""
    folder = tmp_path_factory.mktemp("twenty")
    everybody = list(range(20))
    groups = [everybody[first::4] for first in range(4)]
    split = note("split", everybody, groups, text="they differ")
    for method, found in (
        ("fedavg", [everybody]),
        ("independent", [[client] for client in everybody]),
        ("cfl", groups),
    ):
        notes = (split,) if method == "cfl" else ()
        lines = [line(1, [everybody]), line(2, found, *notes), line(3, found)]
        for client, entry in lines[2]["clients"].items():
            entry["accuracy"] = {"fedavg": 0.3, "independent": 0.7}.get(method, 0.9)
            entry["accuracy"] += int(client) / 1000
        write(folder / "runs" / method, lines, method, tests=[9] * 20)
    path = folder / "page.html"
    path.write_text(page(document([folder / "runs"])), encoding="utf-8")
    return path


@pytest.fixture
def twenty(browser: Any, demonstration: Path) -> Iterator[Opened]:
    with opened_page(browser, demonstration) as opened:
        yield opened


def test_two_numbers_and_all_clients_come_before_any_table(twenty: Opened) -> None:
    numbers = twenty.tab.locator(".hero .big b").all_inner_texts()
    assert [number.split() for number in numbers] == [["31%"], ["91%"]]
    strip = twenty.tab.locator("figure.strip")
    assert strip.locator(".plot circle.dot-shared").count() == 20
    assert strip.locator(".plot circle.dot-alone").count() == 20
    assert strip.locator(".plot circle[fill]").count() == 20
    box = strip.bounding_box()
    table = twenty.tab.locator("table").first.bounding_box()
    assert box["y"] + box["height"] <= table["y"]
    assert twenty.tab.locator("h1").first.inner_text().startswith("Use cfl")


def test_the_strip_is_read_by_pointer_and_keys(twenty: Opened) -> None:
    drawing = twenty.tab.locator("figure.strip .plot svg")
    drawing.hover(position={"x": 200, "y": 12})
    assert re.fullmatch(
        r"client \d+, G\d\none model for all \(fedavg\): 3\d\.\d %\n"
        r"training alone \(independent\): 7\d\.\d %\ncfl: 9\d\.\d %",
        twenty.tip(),
    )
    drawing.focus()
    twenty.tab.keyboard.press("ArrowDown")
    twenty.tab.keyboard.press("ArrowDown")
    assert twenty.tip().startswith("client ")


@pytest.mark.parametrize("width", [360, 768, 1280, 1440, 1920])
def test_no_width_scrolls_sideways_and_no_table_scrolls_inside(twenty: Opened, width: int) -> None:
    twenty.tab.set_viewport_size({"width": width, "height": 900})
    assert twenty.tab.evaluate("document.documentElement.scrollWidth") == width
    for label in ("Clients by method", "Table of clients"):
        table = twenty.tab.get_by_role("region", name=label).first
        assert table.locator("tbody tr").count() == 20
        hidden_rows = table.evaluate("(box) => box.scrollHeight - box.clientHeight")
        hidden_columns = table.evaluate("(box) => box.scrollWidth - box.clientWidth")
        assert (hidden_rows, hidden_columns) == (0, 0)


def test_baselines_are_folded_until_a_link_leads_there(twenty: Opened) -> None:
    assert twenty.tab.locator("section.run > details.folded").count() == 2
    assert twenty.tab.locator("section.run > details.folded[open]").count() == 0
    twenty.tab.locator("nav a", has_text="fedavg").click()
    opened = twenty.tab.locator("section.run > details.folded[open]")
    opened.wait_for()
    assert "All 20 clients were one group in every round." in opened.inner_text()
    assert opened.locator("canvas").count() == 0


def test_a_reason_of_four_groups_is_in_the_tree_once(twenty: Opened) -> None:
    tree = twenty.tab.locator(".tree").first
    assert tree.inner_text().count("they differ") == 1
    assert "all rounds 1–1" in re.sub(r"\s+", " ", tree.inner_text())


def test_words_are_explained_where_they_first_appear(twenty: Opened) -> None:
    links = twenty.tab.locator("a.word")
    targets = [link.get_attribute("href") for link in links.all()]
    assert len(targets) == len(set(targets)) > 3
    for target in targets:
        assert twenty.tab.locator(str(target)).count() == 1


def test_a_client_on_few_examples_is_told_how_many_it_needs(twenty: Opened) -> None:
    unsure = twenty.tab.locator(".verdict td .gain.same").first
    assert "needs about" in str(unsure.get_attribute("title"))
    assert twenty.tab.locator(".verdict td", has_text="needs ~").count() > 0


def test_what_has_no_bound_is_folded(browser: Any, tmp_path: Path) -> None:
    lines = []
    for number in (1, 2, 3):
        keep = note("keep", [0, 1], criteria=[criterion(0.6)], numbers={"own": number})
        lines.append(line(number, [[0, 1]], keep))
    path = tmp_path / "more.html"
    path.write_text(page(document([write(tmp_path / "run", lines)])), encoding="utf-8")
    tab = browser.new_page()
    tab.goto(path.as_uri())
    more = tab.locator("details", has_text="More numbers (1)")
    assert more.get_attribute("open") is None
    assert more.locator("h3").text_content() == "Clients that use their personal models"
    shown = tab.locator("#decisions-0 ~ .columns, #decisions-0 ~ div figure.chart h3").first
    assert "Mean update" in str(shown.text_content())
    assert "Round 3: 0.6, not below 0.5." in tab.inner_text("main")
    tab.close()


def test_print_keeps_to_the_paper(browser: Any, demonstration: Path) -> None:
    tab = browser.new_page(viewport={"width": 688, "height": 970})
    tab.emulate_media(media="print")
    tab.goto(demonstration.as_uri())
    tab.wait_for_selector("figure.strip svg circle")
    assert tab.evaluate("document.documentElement.scrollWidth") == 688
    assert tab.locator("header").is_hidden()
    # What is folded is not printed, and neither are its headings.
    assert tab.locator("section.run:visible").count() == 2
    assert tab.locator("h2", has_text="Settings").first.is_hidden()
    tab.close()
