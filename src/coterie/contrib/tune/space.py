"""The values among which a method's settings are searched: from the limits of the settings, or given by the user."""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from coterie.methods._named import class_of_table
from coterie.runs.experiment import Spec, make
from coterie.runs.set_option import assign
from coterie.settings import SettingError, UserError, parse

NOT_SEARCHED = ("fraction", "quorum", "sketch", "edge_sketch")
"""Settings that say what a round costs: all methods keep theirs, so that their budgets stay equal."""

FACTOR_AROUND_DEFAULT = {float: 10, int: 4}
"""A number without two limits is searched from its default over this factor to its default times it."""

MAX_LINEAR_RATIO = 20
"""Between two limits, values are searched evenly unless the default is more than this factor below the upper one."""

OPEN_END = 0.01
"""How far from a limit that is not allowed itself the search ends, as a share of the distance between both limits."""

MAX_CHECKED_COMBINATIONS = 1000
"""Combinations of values up to which all are checked before the first trial."""

LOG_RATIO = 10
"""A range that the user gives is searched by orders of magnitude from this ratio of its ends on."""

Settings = Mapping[str, Any]
"""Key, as ``--set`` takes it -> value."""


@dataclass(frozen=True)
class Between:
    """Numbers from ``low`` to ``high``, both included.

    Attributes:
        low: The least value.
        high: The greatest value.
        log: Whether equal ratios are equally likely, in place of equal differences.
        whole: Whether only whole numbers are searched.
    """

    low: float
    high: float
    log: bool = False
    whole: bool = False

    def __str__(self) -> str:
        scale = ", logarithmic" if self.log else ""
        return f"{self.low:g} to {self.high:g}{scale}"


@dataclass(frozen=True)
class Among:
    """Some values.

    Attributes:
        values: The values: numbers, texts, true or false.
    """

    values: tuple[Any, ...]

    def __str__(self) -> str:
        return ", ".join(map(str, self.values))


Range = Between | Among


def ends_of(values: Range) -> tuple[Any, Any]:
    """The first and the last of the values of a setting.

    Example:
        >>> ends_of(Between(1.0, 8.0, whole=True)), ends_of(Among(("l1", "l2", "cosine")))
        ((1, 8), ('l1', 'cosine'))
    """
    if isinstance(values, Among):
        return values.values[0], values.values[-1]
    number = int if values.whole else float
    return number(values.low), number(values.high)


Space = Mapping[str, Range]
"""Key, as ``--set`` takes it -> the values to search."""


def own_space(method_type: type[Any]) -> dict[str, Range]:
    """The space of a method from the limits and defaults of its settings.

    Advanced settings, lists, settings that are off by default (None), and those in
    :data:`NOT_SEARCHED` are left out.

    Args:
        method_type: The class of the method.

    Returns:
        Key -> its values; empty if the method has nothing to search.
    """
    space: dict[str, Range] = {}
    for field in dataclasses.fields(method_type):
        is_setting = "limits" in field.metadata and not field.metadata["advanced"]
        if not is_setting or field.name in NOT_SEARCHED:
            continue
        setting_range = _own_range(field.default, field.metadata["limits"])
        if setting_range is not None:
            space[f"{method_type.name}.{field.name}"] = setting_range
    return space


def _own_range(default: Any, limits: Mapping[str, Any]) -> Range | None:
    """The values of one setting; None if its limits and its default do not say which."""
    if "choices" in limits:
        return Among(tuple(limits["choices"]))
    if isinstance(default, bool):
        return Among((False, True))
    if not isinstance(default, int | float) or "multiple" in limits:
        return None
    low = limits.get("ge", limits.get("gt"))
    high = limits.get("le", limits.get("lt"))
    whole = isinstance(default, int)
    # Two near limits: all values between them.
    if not whole and low is not None and high is not None and default >= high / MAX_LINEAR_RATIO:
        margin = OPEN_END * (high - low)
        range_low = low if "ge" in limits else low + margin
        range_high = high if "le" in limits else high - margin
        return Between(range_low, range_high)
    # Otherwise orders of magnitude around the default, within the limits.
    if default <= 0:
        return None
    factor = FACTOR_AROUND_DEFAULT[int if whole else float]
    range_low = max(default / factor, low or 0.0)
    range_high = default * factor
    if high is not None:
        range_high = min(range_high, high if "le" in limits else high * (1 - OPEN_END))
    if whole:
        range_low = max(round(range_low), 1)
    return Between(range_low, range_high, log=True, whole=whole)


def given_range(text: str) -> tuple[str, Between]:
    """The key and the range of ``--range KEY=LOW:HIGH``.

    Two whole numbers are a range of whole numbers, if the setting is one. Ends whose ratio is ten or more are searched by
    orders of magnitude.

    Raises:
        SettingError: It is no such text.

    Example:
        >>> given_range("training.lr=0.01:1")
        ('training.lr', Between(low=0.01, high=1.0, log=True, whole=False))
    """
    key, _, ends = map(str.strip, text.partition("="))
    low_text, colon, high_text = map(str.strip, ends.partition(":"))
    try:
        low, high = float(low_text), float(high_text)
    except ValueError:
        low = high = 0.0
    if not key or not colon or not low < high or high - low == float("inf"):
        raise SettingError(f"--range takes KEY=LOW:HIGH, two numbers with LOW < HIGH, got {text!r}")
    whole = all(re.fullmatch(r"[+-]?\d+", end) for end in (low_text, high_text))
    return key, Between(low, high, log=low > 0 and high / low >= LOG_RATIO, whole=whole)


def given_values(text: str) -> tuple[str, Among] | None:
    """The key and the values of ``--set KEY=A,B,C``; None if there is one value, such as a list in brackets.

    Example:
        >>> given_values("cfl.eps1=0.3,0.4"), given_values("scenario.sizes=[10, 20]")
        (('cfl.eps1', Among(values=(0.3, 0.4))), None)
    """
    key, _, value_text = map(str.strip, text.partition("="))
    value_texts = list(_parts(value_text))
    if len(value_texts) < 2:
        return None
    try:
        values = tuple(map(parse, value_texts))
    except ValueError as error:
        raise SettingError(f"--set {key}: a value cannot be read: {error}") from error
    if len(set(map(repr, values))) < len(values):
        raise SettingError(f"--set {key}: the values must be different, got {value_text}")
    return key, Among(values)


def _parts(text: str) -> Iterator[str]:
    """The parts of a text between commas that are in no brackets and no quotes."""
    part = ""
    depth = 0
    quote = ""
    for character in text:
        if quote:
            quote = "" if character == quote else quote
        elif character in "\"'":
            quote = character
        elif character in "[{":
            depth += 1
        elif character in "]}":
            depth -= 1
        if character == "," and not depth and not quote:
            yield part.strip()
            part = ""
        else:
            part += character
    yield part.strip()


def with_settings(spec: Spec, settings: Settings) -> Spec:
    """An experiment with the settings of a trial.

    Args:
        spec: The experiment's tables; they stay as they are.
        settings: The settings.

    Raises:
        SettingError: The experiment has no such setting.
    """
    for key, value in settings.items():
        written = "none" if value is None else json.dumps(value)
        spec = assign(spec, f"{key}={written}")
    return spec


def spaces(spec: Spec, searched: Space) -> dict[str, dict[str, Range]]:
    """The space of each method of an experiment.

    Args:
        spec: The experiment's tables.
        searched: What the user asks to search. If it is empty, every method has its own space.

    Returns:
        Method -> its space.

    Raises:
        SettingError: No method takes a key that is given.
    """
    if not searched:
        return {table["name"]: own_space(class_of_table(table)) for table in spec["methods"]}
    names = [table["name"] for table in spec["methods"]]
    spaces_of_methods: dict[str, dict[str, Range]] = {name: {} for name in names}
    for key, values in searched.items():
        example = values.low if isinstance(values, Between) else values.values[0]
        if isinstance(values, Between) and values.whole:
            example = int(example)
        refusals = []
        for name, space in spaces_of_methods.items():
            method_spec = of_method(spec, name)
            try:
                with_settings(method_spec, {key: example})
            except SettingError as error:
                refusals.append(error)
            else:
                space[key] = _as_numbers(method_spec, key, values)
        # A key may be of some of the methods; one of none is a mistake.
        if len(refusals) == len(names):
            raise refusals[0]
    for name, space in spaces_of_methods.items():
        _check_values(of_method(spec, name), space)
    return spaces_of_methods


def _as_numbers(spec: Spec, key: str, values: Range) -> Range:
    """A range of whole numbers as one of all numbers, if the setting takes these: 0:1 may be either."""
    if (
        isinstance(values, Between)
        and values.whole
        and _refusal(spec, {key: values.low + 0.5}) is None
    ):
        return replace(values, whole=False)
    return values


def _check_values(spec: Spec, space: Space) -> None:
    """Refuse a value that fails with all values of the others: no trial could have it.

    Raises:
        SettingError: There is such a value.
    """
    choices = {key: values.values for key, values in space.items() if isinstance(values, Among)}
    if math.prod(map(len, choices.values())) > MAX_CHECKED_COMBINATIONS:
        return
    refusals: dict[tuple[str, str], str] = {}
    accepted: set[tuple[str, str]] = set()
    for combination in itertools.product(*choices.values()):
        settings = dict(zip(choices, combination, strict=True))
        refusal = _refusal(spec, settings)
        for key, value in settings.items():
            if refusal is None:
                accepted.add((key, repr(value)))
            else:
                refusals[key, repr(value)] = refusal
    for (key, value_text), refusal in refusals.items():
        # With one wrong value, all values of other keys that were only tried with it fail as well.
        if (key, value_text) not in accepted and any(name == key for name, _ in accepted):
            raise SettingError(f"--set {key}={','.join(map(str, choices[key]))}: {refusal}")
    if refusals and not accepted:
        key = next(iter(choices))
        raise SettingError(f"--set {key}={','.join(map(str, choices[key]))}: {refusal}")


def _refusal(spec: Spec, settings: Settings) -> str | None:
    """Why an experiment cannot have some settings; None if it can."""
    try:
        make(with_settings(spec, settings))
    except SettingError as error:
        return str(error)
    return None


def of_method(spec: Spec, method_name: str) -> Spec:
    """The experiment of one of its methods alone."""
    return {**spec, "methods": [t for t in spec["methods"] if t["name"] == method_name]}


def grid(space: Space) -> list[Settings]:
    """All combinations of the values of a space, the first values first.

    Raises:
        UserError: A key has a range in place of values.
    """
    for key, values in space.items():
        if isinstance(values, Between):
            raise UserError(f"--range {key} needs --trials N: a range has no last value")
    combinations: Iterable[Sequence[Any]] = itertools.product(
        *(values.values for values in space.values() if isinstance(values, Among))
    )
    return [dict(zip(space, combination, strict=True)) for combination in combinations]
