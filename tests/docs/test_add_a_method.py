"""The worked example of a method keeps the contract as the built-in methods do, and its page shows what it is."""

from __future__ import annotations

import inspect
import re
import textwrap
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from documents import ROOT, load

import coterie
from coterie.core import Needs, Note, as_groups, group_means, row_of
from coterie.report.explain import words
from coterie.report.gathered import gather
from coterie.report.page.charts import charts
from coterie.runs.experiment import make
from coterie.settings import SettingError, UserError
from coterie.testing import check_method, draws_only_seeded_random_numbers
from method_examples import EXAMPLES
from worlds import THREE, Pull, grouped

example = load("examples/add_a_method.py", "add_a_method_example")
METHOD = example.KMeansFL(groups=3)

NOT_ITS = {
    "test_every_method_has_an_example_here": "it is not built in",
    "test_keeps_the_law": "check_method has these laws, below",
    "test_plans_and_replies_are_told_apart_by_type": "is about the contract alone",
    "test_leaves_one_congruent_group_whole": "is for methods that decide how many groups there are",
}


def laws() -> Iterator[Any]:
    """Every test of the contract, with what each of its arguments may be here."""
    for path in ("tests/methods/test_contract.py", "tests/methods/test_coming_and_going.py"):
        module = load(path, f"laws_of_{Path(path).stem}")
        for name, law in vars(module).items():
            if name.startswith("test_") and name not in NOT_ITS:
                takes = inspect.signature(law).parameters
                for speaks in (None, 8) if "speaks" in takes else (0,):
                    yield pytest.param(
                        law, {"speaks": speaks} if "speaks" in takes else {}, id=f"{name}-{speaks}"
                    )


def world() -> Pull:
    return grouped(THREE, examples={2: 5, 17: 1, 3: 7, 99: 2}, buffers=2)


@pytest.mark.parametrize(("law", "chosen"), list(laws()))
def test_the_example_keeps_the_contract(
    law: Callable[..., None], chosen: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(EXAMPLES, METHOD.name, METHOD)
    known = {"method": METHOD, "name": METHOD.name, "world": world(), **chosen}
    law(**{name: known[name] for name in inspect.signature(law).parameters})


def test_the_example_passes_check_method() -> None:
    (done,) = check_method(METHOD)
    assert done.startswith("round 4: cluster: k-means of 12 updates: clear groups")


def test_a_method_that_does_nothing_in_25_rounds_shows_it() -> None:
    assert check_method(replace(METHOD, warmup=60)) == ()


@dataclass(frozen=True, kw_only=True)
class Careless(example.KMeansFL):  # type: ignore[misc, name-defined]
    """It does not expect that nobody replies."""

    name: ClassVar[str] = "careless"

    def step(self, state: Any, replies: Any) -> Any:
        replies.clients[0]
        return super().step(state, replies)


def test_a_method_that_fails_is_told_in_which_law() -> None:
    with pytest.raises(AssertionError) as caught:
        check_method(Careless(groups=3))
    words = str(caught.value)
    # The law in words, the error, and the line of the method with what it got.
    assert words.startswith("careless fails in bears_silent_clients (Any clients may be silent")
    assert "IndexError: tuple index out of range, at " in words
    assert "test_add_a_method.py, line " in words
    assert words.endswith("in step: replies.clients[0]; in exchange 1, without any reply")


@dataclass(frozen=True, kw_only=True)
class Unseeded(example.KMeansFL):  # type: ignore[misc, name-defined]
    """Its groups begin with a draw from a generator; ``own`` is one of its own, without a seed."""

    name: ClassVar[str] = "unseeded"
    own: bool = False

    def cluster(self, state: Any, replies: Any) -> Any:
        draws = np.random.default_rng() if self.own else np.random
        sides = draws.choice(2, len(replies.clients))
        groups = [
            [client for client, side in zip(replies.clients, sides, strict=True) if side == half]
            for half in set(sides.tolist())
        ]
        models = state.models + group_means(replies, as_groups(groups))[0]
        return replace(
            state, round=state.round + 1, models=models, group=row_of(as_groups(groups)), notes=()
        )


@pytest.mark.parametrize("own", [False, True])
def test_a_method_that_draws_without_a_seed_fails(own: bool) -> None:
    words = "global generator of numpy" if not own else "a random number has no seed"
    with pytest.raises(AssertionError, match=words):
        draws_only_seeded_random_numbers(Unseeded(groups=3, own=own))


@dataclass(frozen=True, kw_only=True)
class OfSigns(example.KMeansFL):  # type: ignore[misc, name-defined]
    """k-means of the signs of updates, which a rotation changes."""

    name: ClassVar[str] = "of-signs"
    needs: ClassVar[Needs] = replace(example.KMeansFL.needs, unchanged_by="rotation")

    def cluster(self, state: Any, replies: Any) -> Any:
        return super().cluster(state, replace(replies, updates=replies.updates.sign()))


def test_a_false_declaration_of_what_changes_nothing_fails() -> None:
    with pytest.raises(
        AssertionError, match=r"of-signs breaks .*unchanged_by='rotation', and after"
    ):
        check_method(OfSigns(groups=3))


def test_a_note_needs_an_effect_that_there_is_and_a_kind() -> None:
    about: dict[str, Any] = {"clients": (1,), "text": "because"}
    with pytest.raises(ValueError, match=r"Note.effect must be one of .*got 'splits'"):
        Note(kind="split", effect="splits", **about)

    @dataclass(frozen=True, kw_only=True)
    class WithoutKind(example.KMeansFL):  # type: ignore[misc, name-defined]
        """Its notes have no kind."""

        def explain(self, state: Any) -> Any:
            return tuple(replace(note, kind="") for note in state.notes)

    with pytest.raises(AssertionError, match="a note has no kind"):
        check_method(WithoutKind(groups=3))


@dataclass(frozen=True, kw_only=True)
class ByParity(example.KMeansFL):  # type: ignore[misc, name-defined]
    """Groups by id, which says nothing about a client."""

    name: ClassVar[str] = "parity"

    def cluster(self, state: Any, replies: Any) -> Any:
        groups = as_groups([c for c in replies.clients if c % 2 == side] for side in (0, 1))
        models = state.models + group_means(replies, groups)[0]
        return replace(state, round=state.round + 1, models=models, group=row_of(groups), notes=())


def test_a_method_whose_groups_depend_on_ids_fails() -> None:
    with pytest.raises(AssertionError, match="breaks has_groups_that_do_not_depend_on_ids"):
        check_method(ByParity())


def test_a_method_that_does_not_declare_what_it_asks_fails() -> None:
    with pytest.raises(SettingError, match="k-means asks a client to choose among several models"):
        check_method(Undeclared(groups=3))


class Undeclared(example.KMeansFL):  # type: ignore[misc]
    """The example without its needs."""

    needs = Needs()


def without_numbers(text: str) -> str:
    """Without shares, whose last digits depend on the processor."""
    return re.sub(r"\d+%|0\.\d+", "#", text)


def test_the_example_prints_what_its_page_shows(capsys: pytest.CaptureFixture[str]) -> None:
    example.main()
    printed = capsys.readouterr().out
    assert (
        "groups ((0, 5, 6, 10, 17), (1, 3, 12, 13, 14), (2, 4, 9, 11, 16), (7, 8, 15, 18, 19))"
        in printed
    )
    page = (ROOT / "docs" / "research" / "add-a-method.md").read_text()
    assert without_numbers(f"$ python examples/add_a_method.py\n{printed}```\n") in without_numbers(
        page
    )


def test_a_recorded_run_is_explained_and_drawn_by_its_criteria(tmp_path: Path) -> None:
    settings = {"scenario": "digits/label-permutation", "rounds": 6, "workers": 1}
    experiment = replace(make(settings), methods=(example.KMeansFL(),))
    (run,) = coterie.begin(experiment, tmp_path / "run")
    for _ in run.rounds():
        pass
    shown = (
        (ROOT / "docs" / "research" / "add-a-method.md")
        .read_text()
        .partition("explain` prints:")[2]
        .split("```")[1]
    )
    printed = words(tmp_path / "run")
    assert without_numbers(shown.partition("text\n")[2]) in without_numbers(printed)
    assert "Nearest to it: client" in words(tmp_path / "run", client=3)
    found = gather(tmp_path / "run")
    names = [
        chart["title"]
        for chart in charts({"name": "k-means"}, found.folder, found.lines, found.notes)
    ]
    assert names == ["Variance inside groups"]


def test_the_page_shows_the_whole_method() -> None:
    page = (ROOT / "docs" / "research" / "add-a-method.md").read_text()
    for name, function in inspect.getmembers(example.KMeansFL, inspect.isfunction):
        if not name.startswith("__"):
            assert textwrap.dedent(inspect.getsource(function)) in page, name


def test_a_wrong_setting_is_told_as_the_page_says() -> None:
    page = (ROOT / "docs" / "research" / "add-a-method.md").read_text()
    with pytest.raises(UserError) as told:
        example.KMeansFL(groups=0)
    assert f"*{told.value}*" in page


def test_pieces_of_a_file_are_as_they_stand() -> None:
    pieces = load("tools/docs/example_source.py", "example_source").pieces_of
    found = pieces(
        "import a\nfrom b import c\n\n@d\nclass E:\n    x = 1\n\n    def f(self):\n        return 2\n"
    )
    assert found["imports"] == "import a\nfrom b import c"
    assert found["E/head"] == "@d\nclass E:\n    x = 1"
    assert found["E/f"] == "def f(self):\n    return 2"
    assert found["E"].endswith("        return 2")


def test_its_method_is_short() -> None:
    lines = inspect.getsource(example.KMeansFL).splitlines()
    told = lines.index(next(line for line in lines if "def explain" in line)) + 2
    assert sum(bool(line.strip()) for line in lines[:told]) < 120  # as its page says


def test_what_readme_shows_is_found_by_its_first_word(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    module = load("tools/docs/example_source.py", "example_source_of_readme")
    monkeypatch.setattr(module, "README", tmp_path / "README.md")
    module.README.write_text(
        "cfl before\n\n<!-- demo -->\n```text\n$ coterie run\ncfl seed 0\n0-3\n\nmethod  rounds\ncfl  40\n\nrecorded\n"
    )
    assert module.shown("method") == "```text\nmethod  rounds\ncfl  40\n```\n"
    with pytest.raises(ValueError, match="nothing that begins with 'fedavg'"):
        module.shown("fedavg")
