"""Parts of sentences about a run: groups, counts, rounds and numbers."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from coterie.data.scenario import FEDERATION, OWN_DATA, OWN_WORLD, flattened
from coterie.printable import printable
from coterie.records.shown import ClientId

MAX_RUNS_NAMED = 6
"""The greatest number of runs that an error message names."""


TINY_COMPARED = re.compile(
    r"\d(?:\.\d+)?e-(?:1[7-9]|[2-9]\d|\d{3,}) (?:<=?|>=?) (?P<setting>[A-Za-z_]\w* )?(?P<bound>[\d.e-]*\d)"
)
"""A number below 1e-16 that a note compared with a bound: only p-values are so small."""


def readable(text: str) -> str:
    """Return a note's text with p-values below 1e-16 written as such.

    Example:
        >>> readable("p of two probes 2.63e-151 < level 0.0001")
        'p of two probes < 1e-16 (level 0.0001)'
        >>> readable("all groups differ: p of one group 7.8e-48 <= 0.01")
        'all groups differ: p of one group < 1e-16 (bound 0.01)'
    """
    return TINY_COMPARED.sub(
        lambda found: f"< 1e-16 ({found['setting'] or 'bound '}{found['bound']})", text
    )


def sentence(text: str) -> str:
    """Return a note's text as a sentence, and :func:`readable`.

    Example:
        >>> sentence("a group of one cannot split")
        'A group of one cannot split.'
    """
    return f"{text[:1].upper()}{readable(text)[1:].rstrip('.')}." if text else ""


def short(value: float) -> str:
    """Return a number with three significant digits.

    Example:
        >>> short(0.123456), short(1234567.0), short(3.0)
        ('0.123', '1.23e+06', '3')
    """
    return f"{value:.3g}"


MIN_P_VALUE = 1e-16
"""Smaller p-values are not written out: they are below what the arithmetic can tell from 0."""


def readable_number(name: str, value: float) -> str:
    """Return a number with three significant digits; a p-value below :data:`MIN_P_VALUE` as "< 1e-16".

    Args:
        name: What the number is; that of a p-value begins with "p".
        value: The number.

    Example:
        >>> readable_number("p of two probes", 2.6e-151), readable_number("mean update", 0.25)
        ('< 1e-16', '0.25')
    """
    if is_p_value(name) and value < MIN_P_VALUE:
        return "< 1e-16"
    return short(value)


def is_p_value(name: str) -> bool:
    """Return whether a number with this name is a p-value."""
    return name == "p" or name.startswith("p ")


def number(value: float) -> str:
    """Return a metric with three decimal places, or three significant digits if it is large or small.

    Example:
        >>> number(0.5), number(0.00012), number(123.456)
        ('0.500', '0.00012', '123')
    """
    return f"{value:.3f}" if 0.001 <= abs(value) < 100 or value == 0 else short(value)


def members(clients: Iterable[ClientId], max_spans: int = 12) -> str:
    """Return a list of clients in words: consecutive numbers are joined, and long lists are cut.

    Names that contain a comma are in quotes.

    Args:
        clients: The clients, all numbers or all names.
        max_spans: The greatest number of single clients and ranges to show.

    Example:
        >>> members(["north", "south"])
        'north, south (2 clients)'
        >>> members(["Bern, east", "south"])
        '"Bern, east", south (2 clients)'
        >>> members([0, 1, 2, 3, 4, 7, 9])
        '0-4, 7, 9 (7 clients)'
        >>> members(range(0, 100, 2), max_spans=3)
        '0, 2, 4, ... 98 (50 clients)'
    """
    sorted_clients: list[Any] = sorted(clients)
    spans: list[list[Any]] = []  # first and last client of each
    for client in sorted_clients:
        if spans and not isinstance(client, str) and client == spans[-1][-1] + 1:
            spans[-1][-1] = client
        else:
            spans.append([client, client])
    span_names = [_span(first, last) for first, last in spans]
    # A long list shows its first spans and the last one.
    if len(span_names) > max_spans:
        span_names = [*span_names[:max_spans], f"... {span_names[-1]}"]
    return f"{', '.join(span_names)} ({count(len(sorted_clients), 'client')})"


def _span(first: Any, last: Any) -> str:
    """Return consecutive clients in words."""
    if first == last:
        is_ambiguous = isinstance(first, str) and "," in first
        return f'"{first}"' if is_ambiguous else str(first)
    # Two adjacent numbers are no range.
    return f"{first}-{last}" if last > first + 1 else f"{first}, {last}"


def who(clients: Iterable[ClientId]) -> str:
    """Return a group in words.

    Example:
        >>> who([3]), who([0, 1, 2])
        ('client 3', 'clients 0-2 (3 clients)')
    """
    listed = list(clients)
    if len(listed) == 1:
        return f"client {listed[0]}"
    return f"clients {members(listed, max_spans=6)}"


def names(clients: Iterable[ClientId]) -> str:
    """Return clients in words, without their number.

    Example:
        >>> names([0, 1, 2, 5]), names(["north", "south"])
        ('0-2, 5', 'north, south')
    """
    return members(clients, max_spans=6).rpartition(" (")[0]


def count(quantity: int, noun: str) -> str:
    """Return a number with its noun.

    Example:
        >>> count(1, "group"), count(3, "group")
        ('1 group', '3 groups')
    """
    return f"{quantity} {noun}{'' if quantity == 1 else 's'}"


MAX_TARGETS_IN_TITLE = 3
"""The greatest number of targets that name a world."""


def data_title(description: Mapping[str, Any]) -> str:
    """Return what a run's data are called: by a file's or its targets' name and the number of clients; else the scenario.

    Args:
        description: The content of ``run.toml``.

    Example:
        >>> world = {"clients": [0, 1], "about": {"targets": ["readmitted"]}}
        >>> data_title({"scenario": {"name": "own"}, "world": world})
        'readmitted, 2 clients'
        >>> data_title({"scenario": {"name": "digits/iid"}, "world": {"clients": [0, 1]}})
        'digits/iid'
    """
    scenario = flattened(description["scenario"])
    world = description["world"]
    is_own_table = scenario.get("dataset") in OWN_DATA and "data" in description
    if scenario["name"] not in (OWN_WORLD, FEDERATION) and not is_own_table:
        return str(scenario["name"])
    parts = []
    if is_own_table:
        parts.append(Path(str(description["data"])).stem)
    # Records may be of another version, so their types are checked.
    about = world.get("about")
    targets = about.get("targets") if isinstance(about, Mapping) else None
    if isinstance(targets, list) and targets:
        more = "" if len(targets) <= MAX_TARGETS_IN_TITLE else ", ..."
        parts.append(f"{', '.join(map(str, targets[:MAX_TARGETS_IN_TITLE]))}{more}")
    if not parts:
        return str(scenario["name"])
    return printable(f"{': '.join(parts)}, {count(len(world['clients']), 'client')}")


def by_time(world: Mapping[str, Any]) -> str:
    """Return how test examples follow the others in time, as a sentence; empty if they are random ones.

    Args:
        world: The table ``world`` of ``run.toml``.

    Example:
        >>> by_time({"about": {"order": {"by": "day", "gap": "7D", "test": 0.104, "left_out": 12}}})
        "Tested on the last 10% of each client's examples by day, with a gap of 7D; 12 examples before the cuts are left out."
    """
    # Records may be of another version, so their types are checked.
    about = world.get("about")
    order = about.get("order") if isinstance(about, Mapping) else None
    if not isinstance(order, Mapping) or not isinstance(order.get("test"), float):
        return ""
    # Parts of the sentence that depend on the record.
    gap = f", with a gap of {order['gap']}" if "gap" in order else ""
    left_out = ""
    num_left_out = order.get("left_out")
    if num_left_out:
        verb = "is" if num_left_out == 1 else "are"
        left_out = f"; {count(num_left_out, 'example')} before the cuts {verb} left out"
    return (
        f"Tested on the last {order['test']:.0%} of each client's examples "
        f"by {order.get('by', 'time')}{gap}{left_out}."
    )


def rounds(numbers: Sequence[int], max_spans: int = 8) -> str:
    """Return rounds in words.

    Example:
        >>> rounds([4]), rounds([1, 2, 3, 7])
        ('round 4', 'rounds 1-3, 7')
    """
    text = members(numbers, max_spans=max_spans).rpartition(" (")[0]
    return f"round{'' if len(numbers) == 1 else 's'} {text}"


def numbered(names: Sequence[str]) -> list[str]:
    """Return the names, with a number added to each name that occurs more than once.

    Example:
        >>> numbered(["cfl", "fedavg", "cfl"])
        ['cfl 1', 'fedavg', 'cfl 2']
    """
    labels = []
    for position, name in enumerate(names):
        if names.count(name) == 1:
            labels.append(name)
        else:
            labels.append(f"{name} {names[: position + 1].count(name)}")
    return labels


def plus_minus(value: Mapping[str, float | None], digits: int = 3, spread: str = "interval") -> str:
    """Return a mean in words, with half its interval, or with the standard deviation over seeds.

    The standard deviation is shown, and named, where the interval says nothing: with two seeds, or
    if it goes beyond what the number can be.

    Args:
        value: mean, low and high, and sd.
        digits: The number of decimal places.
        spread: ``interval``, or ``sd`` for the standard deviation in any case.

    Example:
        >>> plus_minus({"mean": 0.5, "low": None, "high": None, "sd": 0.35})
        '0.500 (sd 0.350)'
        >>> plus_minus({"mean": 0.9, "low": 0.7, "high": 1.0, "sd": 0.08})  # 0.9 ± 0.2 ends at 1
        '0.900 (sd 0.080)'
        >>> plus_minus({"mean": 0.9, "low": 0.85, "high": 0.95}), plus_minus({"mean": 0.9, "low": None, "high": None})
        ('0.900 ± 0.050', '0.900')
    """
    mean = value["mean"]
    standard_deviation = value.get("sd")
    half_interval = _half_interval(value)
    if mean is not None and spread == "interval" and half_interval is not None:
        return f"{mean:.{digits}f} ± {half_interval:.{digits}f}"
    if mean is None or standard_deviation is None:
        return decimals(mean, digits)
    return f"{mean:.{digits}f} (sd {standard_deviation:.{digits}f})"


def _half_interval(value: Mapping[str, float | None]) -> float | None:
    """Half the interval of a mean; None if there is none, or if it was cut at a limit of the metric."""
    mean = value["mean"]
    low = value["low"]
    high = value["high"]
    if mean is None or low is None or high is None:
        return None
    # An interval that was not cut is symmetric, so one end says all.
    is_whole = math.isclose(high - mean, mean - low, rel_tol=1e-6, abs_tol=1e-9)
    return high - mean if is_whole else None


def decimals(value: float | None, digits: int = 3) -> str:
    """Return a number in words, or a dash for None."""
    return "-" if value is None else f"{value:.{digits}f}"
