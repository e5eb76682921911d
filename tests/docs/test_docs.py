"""The documents are true: generated parts are up to date, commands are understood, code runs, links lead somewhere."""

import contextlib
import doctest
import io
import json
import re
import shlex
import sys
import tomllib
import types
from collections.abc import Iterator
from pathlib import Path

import pytest
from documents import ROOT, anchors, load

from coterie import METHODS, SCENARIOS
from coterie.cli import main
from coterie.cli.arguments import parse, parser
from coterie.cli.running import options
from coterie.data.datasets import DATASETS
from coterie.data.partition import PARTITIONS
from coterie.data.shift import SHIFTS
from coterie.randomness import seeded
from coterie.records.round_line import line_of_round
from coterie.runs.experiment import Experiment, make, normal, read
from coterie.runs.run import run
from coterie.runs.set_option import assign
from coterie.settings import documented
from papers import SCALES, STUDIES
from papers.command import parser as papers_parser

sys.path.insert(0, str(ROOT / "tools" / "docs"))  # where it finds measured.py
generate = load("tools/docs/generate.py", "docs_generate")
measured = sys.modules["measured"]

PAGES = {str(path.relative_to(ROOT)): path.read_text() for path in generate.documents()}
COMMANDING = {
    **PAGES,
    **{str(p.relative_to(ROOT)): p.read_text() for p in sorted(ROOT.glob("experiments/*.toml"))},
}
FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks(page: str, *kinds: str) -> Iterator[tuple[str, str]]:
    """(kind, content) of a page's fenced blocks, in order."""
    for kind, content in FENCE.findall(COMMANDING[page]):
        if kind in kinds:
            yield kind, content


def test_generated_parts_are_up_to_date() -> None:
    stale = [
        page
        for page, text in PAGES.items()
        if generate.regenerated(text, (ROOT / page).parent) != text
    ]
    assert not stale, "python tools/docs/generate.py makes them anew"


def loosely(printed: str) -> list[str]:
    """The words, without decimals, whose last digits depend on the processor, and without the lines they stand in."""
    return re.sub(r"-?\d+\.\d+|[│├└─]", " ", printed).split()


def test_numbers_in_sentences_are_those_of_the_tables() -> None:
    """The number of methods, and in how many settings the default is close to the best one."""
    # Each method has a card, beside the page that lists them.
    num_methods = len(list((ROOT / "docs/methods").glob("*.md"))) - 1
    claims = {
        "README.md": (f"**{num_methods} methods**",),
        "docs/index.md": (
            f"{num_methods} methods in one table",
            f"next to {num_methods - 1} others",
        ),
        "docs/methods/index.md": (f"{num_methods} methods, each with a card",),
    }
    row = re.search(
        r"^\| `auto` \| [\d.]+ \| (\d+ of \d+) \| (0\.\d+)", generate.PARTS["regret-gaps"](), re.M
    )
    assert row
    for page in ("README.md", "docs/sites/choosing.md"):
        claims[page] = (
            *claims.get(page, ()),
            f"within one point of the best of 19 methods in {row[1]} settings",
        )
    # README says "up to seven points".
    assert round(100 * float(row[2])) == 7
    for page, sentences in claims.items():
        text = " ".join(PAGES[page].split())
        for sentence in sentences:
            assert sentence in text, (page, sentence)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("page", "part"), [("README.md", "demo"), ("docs/sites/explain.md", "explained-demo")]
)
def test_the_demonstration_prints_what_a_page_shows(page: str, part: str) -> None:
    (shown,) = (found[3] for found in generate.MARKER.finditer(PAGES[page]) if found[1] == part)
    assert loosely(generate.PARTS[part]()) == loosely(shown), (
        "python tools/docs/generate.py --demo makes it anew"
    )


def test_what_differs_between_runs_is_left_out_of_the_demonstration() -> None:
    printed = "tree 12.5\r\n\nmethod  seconds \ncfl        12.5\n\nrecorded in runs/20250102-030405-digits-x\n"
    assert (
        generate.normalised(printed)
        == "tree 12.5\n\nmethod  seconds\ncfl           …\n\nrecorded in runs/TIME-digits-x"
    )


def test_generation_rewrites_what_is_stale_and_nothing_else(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    page = tmp_path / "README.md"
    page.write_text(
        "before\n<!-- settings fedavg -->\nold\n<!-- /settings -->\nafter\n<!-- demo -->\nkept\n<!-- /demo -->\n"
    )
    monkeypatch.setattr(generate, "ROOT", tmp_path)
    assert generate.main(["--check"]) == 1
    assert "old" in page.read_text()
    assert generate.main([]) == 0
    text = page.read_text()
    assert text.startswith("before\n<!-- settings fedavg -->\n| setting |")
    assert text.endswith("<!-- /settings -->\nafter\n<!-- demo -->\nkept\n<!-- /demo -->\n")
    assert generate.main(["--check"]) == 0


def test_results_are_means_over_seeds(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(measured, "RESULTS", tmp_path)
    assert measured.results() == "No results have been recorded yet.\n"
    runs = [
        {
            "method": "cfl",
            "scenario": "digits/iid",
            "settings": {},
            "training": {},
            "rounds": 40,
            "ari": None,
            "groups": [[0], [1, 2]],
            "accuracy": {"mean": mean, "worst": 0.5, "per_client": {"0": 1, "1": 1, "2": 1}},
        }
        for mean in (0.8, 0.9, 1.0)
    ]
    (tmp_path / "digits.json").write_text(json.dumps([*runs, {**runs[0], "method": "fedavg"}]))
    _, _, cfl, fedavg = measured.results().splitlines()
    # The mean of 0.8, 0.9 and 1 is 0.9; half of its interval is 4.3027 * 0.1 / sqrt(3) = 0.248.
    assert "| 3 | `cfl` | 3 | 40 | 0.900 ± 0.248 | 0.500 ± 0.000 | 2.0 ± 0.0 | - |" in cfl
    assert "| `fedavg` | 1 | 40 | 0.800 | 0.500 | 2.0 | - |" in fedavg


def test_the_comparison_is_in_the_order_of_accuracy_and_counts_exact_groups(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(measured, "RESULTS", tmp_path)
    assert "not been measured" in measured.compared("all-methods-digits")
    one = {"mean": 0.5, "low": 0.4, "high": 0.6}
    names = (
        "accuracy",
        "worst",
        "std",
        "ari",
        "groups",
        "exchanges",
        "bytes_up",
        "bytes_down",
        "evaluations",
    )
    row = {
        "method": "cfl",
        "settings": {},
        "seeds": [0, 1, 2],
        "exact": 2,
        **dict.fromkeys(names, one),
    }
    better = {
        **row,
        "method": "flsc",
        "settings": {"overlap": 2},
        "accuracy": {"mean": 0.9, "low": 0.8, "high": 1.0},
    }
    (tmp_path / "all-methods-digits.json").write_text(
        json.dumps([row, better, {**better, "settings": {"overlap": 1}}])
    )
    quiet = [
        {**row, "exact": 1},
        {**better, "exact": 3},
        {**better, "settings": {"overlap": 1}, "exact": 0},
    ]
    (tmp_path / "all-methods-digits-silent.json").write_text(json.dumps(quiet))
    _, _, *lines = measured.compared("all-methods-digits").splitlines()
    assert [line.split(" | ")[0] for line in lines] == ["| `flsc 1`", "| `flsc 2`", "| `cfl`"]
    assert [line.split(" | ")[5:7] for line in lines] == [
        ["2 of 3", "3 of 3"],
        ["2 of 3", "0 of 3"],
        ["2 of 3", "1 of 3"],
    ]


def test_the_table_of_defaults_says_how_often_they_were_right(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(measured, "DEFAULTS", tmp_path / "cfl-defaults.json")
    assert "not been measured" in measured.cfl_defaults()
    row = {"world": "IID", "runs": 2, "exact": 1, "ari": 0.5, "groups": [1, 3], "last_split": 40}
    found = {
        "method": "cfl",
        "rounds": 80,
        "rows": [row, {**row, "groups": [1, 1], "last_split": 0}],
    }
    (tmp_path / "cfl-defaults.json").write_text(json.dumps(found))
    assert (
        "| IID | 1 of 2 | 0.500 | 1 to 3 | 40 |\n| IID | 1 of 2 | 0.500 | 1 | - |"
        in measured.cfl_defaults()
    )


def test_a_table_of_hcct_by_signals(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measured, "SIGNALS", tmp_path / "signals.json")
    assert "not been measured" in measured.hcct_signals("groups")
    row = {"world": "iid", "size": "many", "way": "updates", "runs": 2}
    row |= {"ari": 0.5, "exact": 1, "accuracy": 0.9, "bytes_up": 2e6}
    rows = [{**row, "tradeoff": tradeoff} for tradeoff in (0.5, 0.7, 1.0)]
    rows.append({**row, "tradeoff": 0.7, "size": "few", "exact": 0})
    (tmp_path / "signals.json").write_text(json.dumps({"rows": rows}))
    assert (
        measured.hcct_signals("groups").splitlines()[2]
        == "| `iid` | 0.50, 1 of 2 | 0.50, 1 of 2 | 0.50, 1 of 2 |"
    )
    head, _, many, few = measured.hcct_signals("costs").splitlines()
    assert head == "| world | updates, 2.0 MB |"
    assert (many, few) == (
        "| `iid` | 0.50, 1 of 2; 0.900 |",
        "| `iid`, few | 0.50, 0 of 2; 0.900 |",
    )


def test_the_table_of_adversaries_has_a_column_per_attack(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(measured, "ADVERSARIES", tmp_path / "adversaries.json")
    assert "not been measured" in measured.adversaries()
    rows = [
        {"method": "cfl", "attack": attack, "hostile": 1, "defence": defence, "accuracy": accuracy}
        for attack, defence, accuracy in (
            ("none", "defaults", 0.9),
            ("scale", "defaults", 0.8),
            ("scale", "none", 0.5),
        )
    ]
    found = {"scenario": "digits/iid", "clients": 20, "rounds": 9, "seeds": 2, "rows": rows[:2]}
    (tmp_path / "adversaries-methods.json").write_text(json.dumps(found))
    assert "`digits/iid`, 20 clients, 9 rounds, means of 2 seeds" in measured.adversaries()
    assert "| `cfl` | 0.900 | +0.100 |" in measured.adversaries()
    assert "not been measured" in measured.robust_means()
    rows.append({**rows[0], "defence": "none"})
    (tmp_path / "adversaries-means.json").write_text(json.dumps({**found, "rows": rows}))
    assert (
        "| `cfl` | none | 0 | 0.900 | 0.900 |\n| `cfl` | scale | 1 | +0.100 | +0.400 |"
        in measured.robust_means()
    )


def test_the_table_of_boundaries_tells_what_was_spent(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(measured, "BOUNDARY", tmp_path / "boundary.json")
    assert "not been measured" in measured.boundary_results()
    row = {
        "method": "cfl",
        "boundary": "clip 1",
        "runs": 3,
        "exact": 2,
        "ari": 0.75,
        "accuracy": 0.9,
        "bytes_up": 2000,
    }
    rows = [{**row, "epsilon": None}, {**row, "epsilon": 5.76}]
    (tmp_path / "boundary.json").write_text(json.dumps({"rounds": 40, "delta": 1e-5, "rows": rows}))
    plain, noised = measured.boundary_results().splitlines()[-2:]
    assert plain == "| `cfl` | clip 1 | 2 of 3 | 0.750 | 0.900 | 2.0 kB | - |"
    assert noised.endswith("| 5.76 |")


# -- commands
# -------------------------------------------------------------------------------------------------------------


def commands(text: str) -> list[str]:
    """Every call of coterie in a text: lines of code and `quoted` ones that have an argument."""
    lines = re.findall(r"^(?:    |#.*  )?((?:\.venv/bin/)?coterie [\w-].*)$", text, re.MULTILINE)
    quoted = re.findall(r"`((?:\.venv/bin/)?coterie [^`]+)`", text)
    called = [
        command.partition(" > ")[0].replace("\\|", "|").strip() for command in [*lines, *quoted]
    ]
    return [command for command in called if not command.endswith(("--help", "--version"))]


def calls() -> list[tuple[str, str]]:
    return [(page, command) for page, text in COMMANDING.items() for command in commands(text)]


def test_commands_are_found() -> None:
    assert ("docs/start/quickstart.md", "coterie compare runs/swap runs/slow") in calls()
    assert len({page for page, _ in calls()}) > 8


PLACEHOLDERS = {
    "FILE.toml": "experiments/digits.toml",
    "run.toml": "experiments/digits.toml",
    "NAME": "digits/iid",
}
PLACEHOLDERS["runs/first/auto-seed0/run.toml"] = "experiments/digits.toml"
PLACEHOLDERS["mysites:sites"] = "digits/iid"  # the page's own code, which another test runs
# Methods that are not installed here; tests of methods by their places and of extensions run such commands.
PLACEHOLDERS["k_means:KMeansFL"] = "ifca"
PLACEHOLDERS["k_means.groups=3"] = "ifca.models=3"
PLACEHOLDERS["mymethod:Damped"] = PLACEHOLDERS["damped"] = "fedavg"
PLACEHOLDERS["mymethod.damping=.5"] = "fedavg.fraction=.5"
PLACEHOLDERS["mypackage.mymodule:MyMethod"] = "fedavg"
PLACEHOLDERS["tuning/tuned.toml"] = "experiments/digits.toml"
for _name in ("fedavg", "ditto", "fedper", "damped"):
    PLACEHOLDERS[f"runs/tuning/tuned-{_name}.toml"] = "experiments/digits.toml"
PLACEHOLDERS["damped"] = "fedavg"
PLACEHOLDERS["damped.damping=0.5"] = "fedavg.fraction=0.5"


@pytest.mark.parametrize(("page", "command"), sorted(set(calls())), ids=lambda text: text)
def test_every_command_is_understood(page: str, command: str) -> None:
    words = [PLACEHOLDERS.get(word, word) for word in shlex.split(command)[1:]]
    arguments = parse(words)
    if arguments.command in ("methods", "scenarios") and arguments.name:
        assert arguments.name in {"methods": METHODS, "scenarios": SCENARIOS}[arguments.command]
    if arguments.command == "run":
        spec = normal({})
        if arguments.file:
            shown = [
                text for _, text in blocks(page, "toml") if text.startswith(f"# {arguments.file}\n")
            ]
            spec = normal(tomllib.loads(shown[0])) if shown else read(ROOT / arguments.file)
        spec = options(arguments, spec)
        for text in arguments.set:
            spec = assign(spec, text)
        assert isinstance(make(spec), Experiment)


@pytest.mark.parametrize(
    "page", sorted(page for page, text in COMMANDING.items() if "python -m papers" in text)
)
def test_every_command_of_the_papers_is_understood(page: str) -> None:
    text = COMMANDING[page]
    lines = re.findall(r"^python -m papers .*$", text, re.MULTILINE)
    quoted = [" ".join(call.split()) for call in re.findall(r"`(python\s-m\spapers[^`]+)`", text)]
    assert lines or quoted
    for command in (*lines, *quoted):
        arguments = parse(shlex.split(command)[3:], papers_parser())
        if arguments.command == "run":
            assert set(arguments.names) <= {*STUDIES, "all", "NAME"}
            assert arguments.scale in SCALES


# -- code
# -----------------------------------------------------------------------------------------------------------------

QUICK = ("--rounds", "2", "--workers", "1", "--set", "training.epochs=1")


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> types.ModuleType:
    """An empty module to run a page's code in, in an empty folder, from which modules are imported."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "mymethod", raising=False)
    monkeypatch.delenv("COTERIE_DATA", raising=False)
    made = types.ModuleType("a_page_of_the_documents")
    monkeypatch.setitem(sys.modules, made.__name__, made)
    return made


def play(page: str, module: types.ModuleType) -> list[str]:
    """Run a page in order: its Python, its TOML files, and its ``sh`` commands, runs with few rounds. What was called."""
    called = []
    for kind, content in blocks(page, "python", "toml", "sh"):
        first_line = content.partition("\n")[0]
        if kind == "toml" or (first_line.startswith("# ") and first_line.endswith(".py")):
            Path(first_line.removeprefix("# ")).write_text(content)
        elif kind == "python":
            python(page, content, module)
        else:
            for command in content.splitlines():
                words = shlex.split(command)[1:]
                if "DIR" not in words:
                    quick = QUICK if words[0] == "run" else ()
                    assert main([*words, *quick]) == 0, command
                    called.append(words[0])
    return called


@seeded(0)  # a page's nets are drawn as its readers' are
def python(page: str, content: str, module: types.ModuleType) -> None:
    if content.startswith(">>>"):
        test = doctest.DocTestParser().get_doctest(content, vars(module), page, page, 0)
        report = io.StringIO()
        failed = (
            doctest.DocTestRunner(verbose=False)
            .run(test, out=report.write, clear_globs=False)
            .failed
        )
        assert not failed, report.getvalue()
        vars(module).update(test.globs)
    else:
        with contextlib.redirect_stdout(io.StringIO()):
            exec(compile(content, page, "exec"), vars(module))


LONG = ("docs/research/tracking.md",)
"""Pages whose blocks take more than a few seconds."""


CODE = [page for page in PAGES if any(blocks(page, "python", "toml", "sh"))]


@pytest.mark.parametrize(
    "page", [pytest.param(page, marks=[pytest.mark.slow] * (page in LONG)) for page in CODE]
)
def test_every_block_of_code_runs(
    page: str, module: types.ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    called = play(page, module)
    if page == "docs/start/quickstart.md":
        assert {"run", "resume", "compare", "export", "methods", "scenarios"} == set(called)


# -- what the pages name
# --------------------------------------------------------------------------------------------------


def leads_somewhere(page: str, target: str) -> bool:
    """Whether a link of a page is to a file of the repository and, if it names one, to a heading in it."""
    path, _, anchor = target.partition("#")
    file = ((ROOT / page).parent / path).resolve() if path else ROOT / page
    return (
        file.exists()
        and file.is_relative_to(ROOT)
        and (not anchor or anchor in anchors(file.read_text()))
    )


def test_every_link_leads_somewhere() -> None:
    pages = [*PAGES, "CONTRIBUTING.md"]
    links = [
        (page, target)
        for page in pages
        for target in re.findall(r"\]\(([^)\s]+)\)", (ROOT / page).read_text())
    ]
    inside = [link for link in links if not link[1].startswith("https://")]
    assert len(inside) > 500
    assert [link for link in inside if not leads_somewhere(*link)] == []


DETAILED = [page for page in PAGES if page.startswith("docs/")]
"""Pages that link to their notes."""


def test_every_page_is_linked_from_the_index_or_the_readme() -> None:
    linked = set()
    notes = [page for page in PAGES if page.startswith("notes/")]
    for page in ("README.md", "docs/index.md", *notes, *DETAILED):
        for target in re.findall(r"\]\(([^)\s#]+)", PAGES[page]):
            linked.add(str(((ROOT / page).parent / target).resolve()))
    assert not [page for page in PAGES if page != "README.md" and str(ROOT / page) not in linked]


SECTIONS = (
    "What it does",
    "When to use it",
    "Settings",
    "Source",
)
AS_ANOTHER = {"hcct-e": "hcct", "hcct-p": "hcct"}
"""Methods whose cards have only the settings that differ from those of another card."""


@pytest.mark.parametrize("method", METHODS)
def test_every_method_has_a_card_with_every_setting(method: str) -> None:
    card = PAGES[f"docs/methods/{method}.md"]
    elsewhere = documented(METHODS[AS_ANOTHER[method]]) if method in AS_ANOTHER else []
    for setting in documented(METHODS[method]):
        name, _, _, sentence = setting
        if setting in elsewhere:
            continue
        assert f"| `{name}` |" in card
        assert sentence.removesuffix(generate.ADVANCED).replace("|", "\\|") in card
    if elsewhere:
        assert f"{AS_ANOTHER[method]}.md#settings" in card
    for title in SECTIONS:
        assert f"\n## {title}\n" in card
    assert f"](../figures/method-{method}.svg)" in card
    # Where there is a paper, the card says what differs from it.
    own = "Coterie's own" in card.partition("\n## Source\n")[2]
    assert own != ("\n## Differences from the paper\n" in card)
    # The card names the papers that the file's header names.
    for number in re.findall(
        r"\b\d{4}\.\d{5}\b", sys.modules[METHODS[method].__module__].__doc__ or ""
    ):
        assert number in card


def test_the_table_of_methods_has_each_and_their_presets() -> None:
    facts = sys.modules["method_table"].FACTS
    assert set(facts) == set(METHODS)
    page = PAGES["docs/methods/index.md"]
    for name, cls in METHODS.items():
        assert f"| [`{name}`]({name}.md) |" in page
        for preset_name in getattr(cls, "presets", {}):
            assert f"| `{name}` | `{preset_name}` |" in page


def test_settings_of_a_card_are_all_in_one_of_its_two_tables() -> None:
    basic, advanced = generate.settings("cfl", "basic"), generate.settings("cfl", "advanced")
    assert "| `eps1` |" in basic
    assert "| `warmup` |" in advanced
    assert (
        len(basic.splitlines()) + len(advanced.splitlines()) == len(documented(METHODS["cfl"])) + 4
    )
    assert re.findall(
        r"^\| `(\w+)`", generate.settings("hcct-p", "unlike", "hcct"), re.MULTILINE
    ) == ["personal"]


def test_every_scenario_data_set_partition_and_shift_is_listed() -> None:
    scenarios = PAGES["docs/reference/scenarios.md"]
    for name in (*SCENARIOS, *PARTITIONS, *SHIFTS):
        assert f"`{name}`" in scenarios, name
    for name in DATASETS:
        assert f"| `{name}` |" in PAGES["docs/reference/data-sets.md"], name


def test_every_scenario_that_is_named_exists() -> None:
    sets = {name.partition("/")[0] for name in SCENARIOS}
    for page, text in PAGES.items():
        for name in re.findall(r"(?<![\w/.-])([a-z0-9_]+/[a-z-]+)(?![\w/.-])", text):
            if name.partition("/")[0] in sets:
                assert name in SCENARIOS, (page, name)


def test_every_field_of_a_recorded_round_is_explained() -> None:
    (done,) = run("cfl", "synthetic/groups", rounds=1, workers=1)
    for field in line_of_round(done):
        assert f"`{field}`" in PAGES["docs/reference/runs.md"], field


def test_every_command_and_option_is_listed() -> None:
    page = PAGES["docs/reference/commands.md"]
    for name, own in parser()[1].items():
        assert f"\n## coterie {name}\n" in page
        for option in own.options():
            if option.startswith("--"):
                assert f"`{option}" in page, option


def test_no_path_of_one_machine() -> None:
    results = {
        str(path.relative_to(ROOT)): path.read_text()
        for path in (ROOT / "docs/results").glob("*.json")
    }
    known = re.compile(r"(?<![\w./:-])/(?:home|tmp|work|root|usr|mnt|Users|opt|data)\b\S*")
    assert results
    assert [
        (name, path) for name, text in (PAGES | results).items() for path in known.findall(text)
    ] == []


LINK_TARGET = re.compile(r"\]\([^)\s]*\)")


def test_lines_are_not_too_long() -> None:
    """Where links lead to does not count."""
    long_lines = []
    for page, text in PAGES.items():
        for line in generate.MARKER.sub("", text).splitlines():
            if len(LINK_TARGET.sub("]", line)) > 125 and not line.startswith("|"):
                long_lines.append((page, line))
    assert long_lines == []
