"""The comparison of all methods is true: each is played, and what it asks and sends is held against its row."""

from __future__ import annotations

import re
import sys
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from typing import Any
from unittest import mock

import pytest
from documents import ROOT, load

from coterie.core import Client, needs_of
from coterie.methods import METHODS
from coterie.methods._presets import presets_of
from coterie.testing import THREE, Played, Pull, grouped, play

sys.path.insert(0, str(ROOT / "tools" / "docs"))  # where it finds measured.py
table = load("tools/docs/method_table.py", "method_table_alone")

DRIFT = ("feddrift",)
"""Methods that need data that change."""
PAGE = (ROOT / "docs" / "methods" / "index.md").read_text()
EXCHANGES = 24
STEP = 3


@dataclass
class Seen:
    """What a method asked of clients in a run."""

    method: Any
    needs: set[str] = field(default_factory=set)  # what its plans asked of the engine
    down: set[int] = field(default_factory=set)  # how many models a client got in a round
    up: set[int] = field(default_factory=set)  # how many updates it sent
    partial: bool = False  # whether some layers stayed at the client
    keeps: bool = False  # whether clients kept something for the next round
    chose: bool = False  # whether a client chose the model of its group
    k: int = 1  # the greatest number of models that it was offered
    hidden: bool = False  # whether it hid which one
    groups: int = 1  # the greatest number of groups
    models: int = 1  # the greatest number of models at the server


def method_of(name: str) -> Any:
    """A method with its defaults, or with time steps that end within the run."""
    return METHODS[name](period=STEP) if name in DRIFT else METHODS[name]()


def exchanges(method: Any, world: Pull) -> Iterator[Played]:
    """Those of a run. Where a method is for data that change, they do so, at each time step."""
    if method.name not in DRIFT:
        yield from play(method, world, EXCHANGES)
        return
    state = None
    for step in range(3):
        now = grouped(THREE if step else (sum(THREE, ()),), buffers=2, seed=step)
        for played in play(method, now, EXCHANGES, state=state):
            yield played
            state = played.state
            if state.round == STEP * (step + 1) and played.plan.ends_round:
                break


@cache
def seen(name: str) -> Seen:
    """Play a method; candidates of a race go on to the end, so that all of them send as much as they can."""
    with mock.patch("coterie.methods.race.MIN_REPORTS", 1000):
        return played_to_the_end(name)


def played_to_the_end(name: str) -> Seen:
    """What a method asks for and sends in :data:`EXCHANGES` exchanges."""
    found = Seen(method_of(name))
    world = grouped(THREE, buffers=2)
    received: dict[Client, set[bytes]] = defaultdict(set)
    replied: dict[Client, int] = defaultdict(int)
    for played in exchanges(found.method, world):
        for _, leaf in played.plan.leaves():
            found.needs.add(leaf.need)
            found.hidden |= leaf.private.hides_choices
            for client, task in leaf.tasks.items():
                found.keeps |= bool(task.local_layers) or leaf.need == "sums"
                found.keeps |= task.personal is not None and task.personal.start == "own"
                received[client] |= set()
                replied[client] += 0
                if len(task.local_layers) == len(world.columns):
                    continue  # nothing is sent
                found.partial |= bool(task.local_layers)
                # A client that only measures reports losses, and the server chooses.
                decides = task.trains or leaf.need == "sums"
                found.chose |= decides and task.chooses
                found.k = max(found.k, task.models_offered)
                for place, row in enumerate(task.offered):
                    # A correction is sent besides the model, even if it has the same numbers.
                    kind = b"model" if place < task.models_offered else b"correction"
                    received[client] |= {kind + leaf.models[row].numpy().tobytes()}
                if task.trains and task.private.sends_update:
                    # With sums, the mean of both halves is sent.
                    replied[client] += 2 if task.halves and leaf.need != "sums" else 1
        if played.plan.ends_round:
            found.down |= {len(models) for models in received.values()}
            found.up |= set(replied.values())
            received.clear()
            replied.clear()
        found.groups = max(found.groups, len(played.groups))
        found.models = max(found.models, len(played.assignment.models))
    return found


def numbers(cell: str, k: int) -> tuple[int, int]:
    """The least and the greatest number of a cell: "1", "k", "1 or 2", "1 to 3"."""
    cell = re.sub(r"\bk \+ 1\b", str(k + 1), cell)
    found = [k if text == "k" else int(text) for text in re.findall(r"\bk\b|\d+", cell)]
    return min(found), max(found)


COMPOSED = ("fedopt", "race", "timed", "tuned")
"""Methods whose row refers to the methods that they run."""


@pytest.mark.parametrize("name", METHODS)
def test_what_the_server_sees_is_what_plans_ask_for(name: str) -> None:
    found, needs = seen(name), needs_of(METHODS[name]())
    cell = table.FACTS[name].server_sees
    assert ("held-out losses" in cell) == ("held-out-losses" in needs.features)
    if name in COMPOSED:
        assert cell.startswith("as its method")
        return
    # The page: with sums, or means alone, secure aggregation is possible.
    assert (cell in ("nothing", "means") or cell.startswith("sums")) == needs.sums_only
    assert cell.startswith(("nothing", "means")) == (found.needs == {"mean"})
    assert ("each update" in cell) == bool(found.needs & {"rows", "gram"})
    assert ("sketch" in cell) == (
        isinstance(getattr(found.method, "sketch", None), int) and not needs.sums_only
    )
    assert (cell == "nothing") == (found.up == {0})
    assert cell.startswith("sums") == (found.needs == {"sums"})
    # Secure aggregation hides losses too.
    single = "losses" in needs.features and not needs.sums_only
    assert ("losses" in cell.replace("held-out losses", "")) == single
    assert ("choices" in cell) == (found.chose and not found.hidden)


@pytest.mark.parametrize("name", [name for name in METHODS if name not in COMPOSED])
def test_what_is_sent_is_what_was_played(name: str) -> None:
    found, facts = seen(name), table.FACTS[name]
    least, most = numbers(facts.down, found.k)
    assert most == max(found.down)
    assert ("k" in facts.down) == (found.k > 1)
    assert least == min(found.down) or facts.down == "k"  # k may be 1 at first
    if facts.up == "k slots":
        assert found.hidden
    else:
        assert numbers(facts.up, found.k) == (min(found.up - {0} or {0}), max(found.up))
    for cell in (facts.down, facts.up):
        assert ("no head" in cell or "no BatchNorm" in cell) == found.partial


@pytest.mark.parametrize("name", [name for name in METHODS if name not in COMPOSED])
def test_what_clients_use_is_what_was_played(name: str) -> None:
    found, use = seen(name), table.FACTS[name].use
    features = needs_of(METHODS[name]()).features
    clients = sum(map(len, THREE))
    assert ("own head" in use or "own BatchNorm" in use) == found.partial
    if use.startswith("groups") or "in groups" in use:
        assert found.groups > 1
    elif use == "alone":
        assert found.groups == clients
    elif use.startswith(("own", "one model")) and "alone" not in use:
        assert found.groups == 1
    # Where data change, models that nobody uses are kept.
    many = found.models > clients and name not in DRIFT
    owned = many or {"personal-model", "holdout"} & set(features)
    assert use.startswith(("own models", "own predictions", "what is best")) == bool(owned)


@pytest.mark.parametrize("name", METHODS)
def test_what_sets_the_number_of_groups_is_a_setting(name: str) -> None:
    cell = table.FACTS[name].groups
    settings = METHODS[name].__dataclass_fields__
    if cell.startswith("`"):
        assert cell.strip("`") in settings
    elif cell == "found":
        assert not {"models", "threshold", "tradeoff", "delta", "groups"} & set(settings)
    elif cell == "–":
        assert table.FACTS[name].use != "groups"


def test_the_papers_are_those_that_the_headers_name() -> None:
    for name, method in METHODS.items():
        header = sys.modules[method.__module__].__doc__ or ""
        card = (ROOT / "docs" / "methods" / f"{name}.md").read_text()
        assert ("\nCoterie's own" in card) == (table.paper(name) == "–")
        for number in re.findall(r"^\[(\d{4}\.\d{5})\]", table.paper(name)):
            assert number in header


def row(question: str) -> str:
    """The answer to a question that holds for all methods."""
    (found,) = re.findall(rf"^\| {question} \| (.*) \|$", PAGE, re.MULTILINE)
    return str(found)


def test_the_methods_that_hold_examples_out_are_named() -> None:
    shares = {
        name: method.holdout
        for name in METHODS
        if "holdout" in needs_of(method := METHODS[name]()).features
    }
    answer = row("Held-out examples")
    assert set(re.findall(r"`([\w-]+)`", answer)) == set(shares)
    for share, named in re.findall(r"(\d+) % by ((?:`[\w-]+`(?:, | and )?)+)", answer):
        for name in re.findall(r"`([\w-]+)`", named):
            assert shares.pop(name) == int(share) / 100
    assert not shares


def test_the_methods_whose_clients_keep_something_are_named() -> None:
    named = set(re.findall(r"`([\w-]+)`", row("Clients that keep a state")))
    assert named == {name for name in METHODS if seen(name).keeps}


def test_the_number_of_methods_with_presets_is_that_of_the_table() -> None:
    (made,) = re.findall(r"<!-- presets -->\n(.*?)<!-- /presets -->", PAGE, re.DOTALL)
    assert made.count("\n") - 2 == sum(len(presets_of(method)) for method in METHODS.values())
