"""Settings: what is allowed, what is converted, and that every message names the setting, its value and what is allowed."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from coterie.core import Training
from coterie.data.scenario import SCENARIO_PARTS, SCENARIOS, Scenario
from coterie.methods import CFL, METHODS
from coterie.runs.experiment import make
from coterie.settings import (
    SettingError,
    UserError,
    build,
    check,
    describe,
    documented,
    nearest,
    parse,
    plain,
    setting,
    toml,
)


@dataclass(frozen=True, kw_only=True)
class Knobs:
    """One field of each kind."""

    at_least: int = setting(1, "an integer", ge=1)
    inside: float = setting(0.5, "a share", gt=0, lt=1)
    up_to: float = setting(1.0, "no limit below", le=1)
    kind: str = setting("a", "one of two", choices=("a", "b"))
    flag: bool = setting(False, "on or off")
    maybe: float | None = setting(None, "may be none", ge=0)
    wanted: int | None = setting(3, "none turns it off", ge=1)
    rounds: tuple[int, ...] = setting((), "several", ge=1)
    pairs: tuple[tuple[int, ...], ...] = setting((), "several of several")
    free: float = setting(0.0, "any number")
    plain: Any = "no setting of ours"

    def __post_init__(self) -> None:
        check(self)


def test_limits_hold_at_their_edges() -> None:
    Knobs(at_least=1, inside=1e-9, up_to=1.0, maybe=0, rounds=(1,))  # each on the allowed side
    refused = {
        "at_least": 0,
        "inside": 0.0,
        "up_to": 1.0000001,
        "maybe": -1e-9,
        "rounds": (2, 0),
        "kind": "c",
    }
    for name, value in refused.items():
        with pytest.raises(SettingError, match=rf"Knobs\.{name} must be"):
            Knobs(**{name: value})
    with pytest.raises(SettingError):
        Knobs(inside=1.0)


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ({"at_least": 0}, "Knobs.at_least must be >= 1, got 0"),
        ({"inside": 1.0}, "Knobs.inside must be > 0 and < 1, got 1.0"),
        ({"inside": "wide"}, "Knobs.inside must be a number, got 'wide'"),
        ({"at_least": 2.0}, "Knobs.at_least must be an integer, got 2.0; write 2"),
        ({"at_least": True}, "Knobs.at_least must be an integer, got True"),
        ({"free": False}, "Knobs.free must be a number, got False"),
        ({"free": math.nan}, "Knobs.free must be a number, got nan"),
        ({"flag": 1}, "Knobs.flag must be true or false, got 1"),
        ({"kind": "B"}, "Knobs.kind must be one of a, b, got 'B'; did you mean b?"),
        ({"kind": "aa"}, "Knobs.kind must be one of a, b, got 'aa'; did you mean a?"),
        ({"maybe": "some"}, "Knobs.maybe must be a number or none, got 'some'"),
        ({"at_least": None}, "Knobs.at_least must be an integer, got None"),
        ({"rounds": (3, "x")}, "Knobs.rounds[1] must be an integer, got 'x'"),
        ({"rounds": 3}, "Knobs.rounds must be a list (an integer each), got 3"),
        ({"pairs": ((1, 2), (3, None))}, "Knobs.pairs[1][1] must be an integer, got None"),
    ],
)
def test_a_refusal_is_one_sentence(values: dict[str, Any], text: str) -> None:
    with pytest.raises(SettingError) as caught:
        Knobs(**values)
    assert str(caught.value) == text
    assert isinstance(caught.value, UserError)
    assert isinstance(caught.value, ValueError)


def test_whole_numbers_pass_as_numbers_and_lists_as_tuples() -> None:
    knobs = Knobs(
        inside=np.float32(0.25),
        free=2,
        at_least=np.int64(4),
        rounds=[1, np.int32(2)],
        pairs=[[1, 2], [3]],
    )
    assert [type(v) for v in (knobs.inside, knobs.free, knobs.at_least, *knobs.rounds)] == [
        float,
        float,
        int,
        int,
        int,
    ]
    assert (knobs.rounds, knobs.pairs) == ((1, 2), ((1, 2), (3,)))
    assert knobs == Knobs(inside=0.25, free=2.0, at_least=4, rounds=(1, 2), pairs=((1, 2), (3,)))


@pytest.mark.parametrize("nothing", [None, "none"])
def test_none_is_said_in_two_ways(nothing: str | None) -> None:
    knobs = Knobs(maybe=nothing, wanted=nothing)
    assert knobs.maybe is None
    assert knobs.wanted is None


def test_fields_that_are_no_settings_are_left_alone() -> None:
    assert Knobs(plain=[1]).plain == [1]


def test_a_default_cannot_be_changed_by_accident() -> None:
    with pytest.raises(TypeError, match="immutable"):
        setting([], "a list")


# -- from text, and by name
# -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("3", 3), ("0.5", 0.5), ("1e-3", 0.001), ("true", True), ("[1, 2]", [1, 2]), ('"3"', "3"),
        ("none", None), ("None", None), ("ward", "ward"), ("digits/iid", "digits/iid"), ("True", "True"), ("", ""),
    ],
)  # fmt: skip
def test_parse(text: str, value: Any) -> None:
    parsed = parse(text)
    assert parsed == value
    assert type(parsed) is type(value)


@given(
    st.one_of(
        st.integers(-(2**63), 2**63 - 1),
        st.booleans(),
        st.floats(allow_nan=False, allow_infinity=False),
    )
)
def test_parse_reads_what_toml_would_write(value: float) -> None:
    text = str(value).lower() if isinstance(value, bool) else repr(value)
    assert parse(text) == value


def test_nearest() -> None:
    assert nearest("eps", ["eps1", "gamma"]) == "; did you mean eps1?"
    assert nearest("quux", ["eps1", "gamma"]) == ""
    assert nearest(7, ["eps1"]) == ""


def test_build_refuses_an_unknown_name_with_the_nearest() -> None:
    with pytest.raises(SettingError) as caught:
        build(Training, {"lr": 0.1, "momentun": 0.9})
    known = ", ".join(f.name for f in dataclasses.fields(Training))
    assert (
        str(caught.value)
        == f"Training has no setting 'momentun'; did you mean momentum? (got 0.9; known: {known})"
    )


def test_plain_says_only_what_toml_can_hold() -> None:
    knobs = Knobs(wanted=None, rounds=(1, 2), pairs=((1, 2), (3,)))
    written = plain(knobs)
    assert (written["maybe"], written["wanted"]) == ("none", "none")
    assert written["rounds"] == [1, 2]
    assert written["pairs"] == [[1, 2], [3]]
    assert build(Knobs, written) == knobs
    assert plain(Scenario())["training"] == plain(Training())


TRAININGS = [
    Training(),
    Training(steps=7, clip=1.0, optimizer="adam", lr=1),
    Training(epochs=0, proximal=0.1, batch=0),
]


@pytest.mark.parametrize(
    "settings", [*TRAININGS, *(cls() for cls in METHODS.values())], ids=lambda s: type(s).__name__
)
def test_settings_survive_a_round_trip(settings: Any) -> None:
    assert build(type(settings), plain(settings)) == settings


@pytest.mark.parametrize("cls", [Training, *SCENARIO_PARTS.values(), *METHODS.values()])
def test_every_setting_has_a_sentence_a_type_and_an_allowed_default(cls: type[Any]) -> None:
    check(cls())
    assert sorted(name for name, *_ in documented(cls)) == sorted(
        f.name for f in dataclasses.fields(cls)
    )
    for _, kind, _, sentence in documented(cls):
        assert len(sentence) > 5
        assert "typing" not in kind
        assert "[" not in kind


def test_types_in_words() -> None:
    assert describe(tuple[int, ...] | None) == "a list (an integer each) or none"
    assert describe(tuple[tuple[int, ...], ...]) == "a list (a list (an integer each) each)"
    assert [describe(t) for t in (int, float, bool, str)] == [
        "an integer",
        "a number",
        "true or false",
        "a string",
    ]


@pytest.mark.parametrize(
    "values",
    [{"lr": 0}, {"lr": math.nan}, {"lr_decay": 0}, {"epochs": -1}, {"steps": 0}, {"batch": -1}, {"optimizer": "rmsprop"},
     {"momentum": 1.0}, {"weight_decay": -0.1}, {"clip": 0}, {"proximal": -1}],
)  # fmt: skip
def test_training_refuses(values: dict[str, Any]) -> None:
    with pytest.raises(SettingError, match=f"Training.{next(iter(values))} must be"):
        Training(**values)


def test_a_table_of_nested_settings_is_built_too() -> None:
    scenario = SCENARIOS["digits/label-swap"]
    assert build(type(scenario), plain(scenario)) == scenario
    with pytest.raises(SettingError, match="Training has no setting 'lrr'; did you mean lr"):
        build(type(scenario), {"training": {"lrr": 1}})


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (f"a = {'9' * 5000}", "a number of too many digits"),
        (f"a = 0x{'f' * 17}", "more than 64 bits"),
        (f"a = [{2**63 + 1}]", "it has an integer of more than 64 bits"),
        (f"[boundary]\nsecret = {2**63}", "give a longer secret with --secret-file FILE"),
        ("a = [{b = 1979-05-27}]", "a date or a time, which no setting takes"),
        ("a = 07:32:00", "a date or a time, which no setting takes"),
        (f"b = {{{'.'.join(['a'] * 80_000)} = 1}}", "more than 16 deep"),
        (f"a = {'[' * 3000}{']' * 3000}", "more than 16 deep"),
        (f"a = {'{a = ' * 3000}1{'}' * 3000}", "more than 16 deep"),
        (f"a = {'[' * 17}{']' * 17}", "more than 16 deep"),
        (f"{'.'.join(['a'] * 80_000)} = 1", "more than 16 deep"),
        (f"[{'.'.join(['a'] * 20)}]", "more than 16 deep"),
        ("[" + " . ".join(["'a.b'", '"c\\"d"'] * 40_000) + "]", "more than 16 deep"),
    ],
    ids=range(13),
)
def test_toml_that_would_take_too_much(text: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        toml(text)


def test_toml_that_is_deep_or_dotted_enough() -> None:
    assert toml(f"a = {'[' * 15}{']' * 15}")
    assert toml(f"{'.'.join('abcdefghijklmno')} = {2**63 - 1}")
    path = ".".join(["x"] * 50)
    assert toml(f'a = "{path}"\nb = "1.2.3"\nd = {-(2**63)}')["a"] == path
    long = ".".join(["x"] * 90)
    assert toml(f'# {long}\na = "{long} = 1"  # {long}\n["{long}"]') == {
        "a": f"{long} = 1",
        long: {},
    }


@pytest.mark.parametrize("number", [2**63 + 1, -(10**400), 10**5000], ids=range(3))
def test_whole_numbers_have_64_bits(number: int) -> None:
    for name in ("rounds", "target"):
        with pytest.raises(SettingError, match=f"Experiment.{name} must be below 2.63"):
            make({"scenario": "synthetic/groups", "methods": ["fedavg"], name: number})


@pytest.mark.parametrize("text", ["a\x00b", "\udcff", "\x1b[2J", "a\nb"], ids=range(4))
def test_texts_are_such_that_a_file_can_hold_them(text: str) -> None:
    with pytest.raises(SettingError, match="must be a UTF-8 string without control characters"):
        make({"scenario": "synthetic/groups", "methods": ["fedavg"], "data": text})


def test_a_number_of_seeds_has_an_end() -> None:
    with pytest.raises(
        SettingError, match="seeds must be a list, or a number of at most 10,000, got 1000000000000"
    ):
        make({"scenario": "synthetic/groups", "methods": ["fedavg"], "seeds": 10**12})


def test_advanced_settings_are_listed_last_and_marked() -> None:
    @dataclass(frozen=True)
    class Some:
        rare: int = setting(1, "rarely changed", advanced=True)
        usual: int = setting(2, "often changed")

    assert [(name, about) for name, _, _, about in documented(Some)] == [
        ("usual", "often changed"),
        ("rare", "rarely changed (advanced)"),
    ]
    assert {name for name, _, _, about in documented(CFL) if "(advanced)" not in about} == {
        "eps1",
        "eps2",
        "gamma_max",
        "persistence",
        "fraction",
    }
