"""The table of Flower's traffic, of what ``benchmarks/flower_traffic.py`` measured; :mod:`generate` puts it in."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from measured import table

from coterie.report.terminal import size

TRAFFIC = Path(__file__).resolve().parents[2] / "benchmarks" / "results" / "flower-traffic.json"
WAYS = ("up", "down")

Found = Mapping[str, Any]


def traffic() -> str:
    """A row per method, two columns per net; before it what a message costs besides numbers."""
    if not TRAFFIC.is_file():
        return (
            "The table has not been measured yet: `python benchmarks/flower_traffic.py` makes it.\n"
        )
    found = json.loads(TRAFFIC.read_text())
    nets, rows = found["nets"], {(row["method"], row["net"]): row for row in found["rows"]}
    methods = list(dict.fromkeys(row["method"] for row in found["rows"]))
    lines = [
        (
            f"`{method}`",
            str(rows[method, next(iter(nets))]["down"]["messages"]),
            *(_cell(rows[method, net], way) for net in nets for way in WAYS),
        )
        for method in methods
    ]
    head = ("method", "messages each way", *(f"`{net}`, {way}" for net in nets for way in WAYS))
    about = (
        f"{found['clients']} clients, {found['rounds']} rounds, `flwr` {found['versions']['flwr']}; "
        f"{' and '.join(_net(net, nets[net]) for net in nets)}. What rounds recorded, and how many times as many bytes were "
        f"sent for it{_changed(found['settings'])}:"
    )
    after = f"{_fixed(list(nets), rows)}{_beyond(rows, nets)}{_http(found, rows)}"
    return f"{_filled(about)}\n\n{table(head, lines, 'l' + 'r' * (1 + 2 * len(nets)))}\n{_filled(after)}\n"


def _filled(text: str) -> str:
    return textwrap.fill(text, 125, break_on_hyphens=False)


def _changed(settings: Mapping[str, Found]) -> str:
    """Which methods had other settings than their defaults."""
    told = [
        f"`{method}` with {key} {value}"
        for method, own in settings.items()
        for key, value in own.items()
    ]
    return f" ({', '.join(told)})" if told else ""


def _net(name: str, about: Found) -> str:
    return f"`{name}` has {about['parameters']:,} parameters in {about['tensors']} arrays"


def _cell(row: Found, way: str) -> str:
    recorded, sent = row[f"recorded_{way}"], row[way]["bytes"]
    return (
        f"{size(recorded)}, {sent / recorded:.2f} ×" if recorded else f"nothing, sent {size(sent)}"
    )


def _fixed(nets: Sequence[str], rows: Mapping[tuple[str, str], Found]) -> str:
    """What a message and an array in it cost besides numbers: the line through FedAvg's messages of the first and last net."""
    costs = {}
    for way in WAYS:
        first, last = (rows["fedavg", net][way] for net in (nets[0], nets[-1]))
        each = (_extra(last) - _extra(first)) / (_arrays(last) - _arrays(first))
        costs[way] = (
            f"{round(_extra(first) - _arrays(first) * each):,} bytes, and {round(each):,} for each array in it"
        )
    return f"Besides numbers, a message takes {costs['down']}, on its way down; {costs['up']}, on its way up."


def _arrays(sent: Found) -> float:
    return float(sent["arrays"] / sent["messages"])


def _extra(sent: Found) -> float:
    """Bytes of a message that are not its arrays' numbers."""
    return float((sent["bytes"] - sent["numbers"]) / sent["messages"])


def _beyond(rows: Mapping[tuple[str, str], Found], nets: Mapping[str, Any]) -> str:
    """Who is sent numbers that no record counts."""
    more = [
        m
        for (m, net), row in rows.items()
        if net == next(iter(nets)) and row["down"]["numbers"] > row["recorded_down"]
    ]
    if not more:
        return ""
    names = ", ".join(f"`{name}`" for name in more)
    return f" Layers that stay at a client are sent down once to each node ({names}), which no record counts."


def _http(found: Found, rows: Mapping[tuple[str, str], Found]) -> str:
    """What a SuperLink's HTTP adds, by ``benchmarks/flower_link.py``, and what FedAvg's messages come to with it."""
    if "http" not in found:
        return ""
    pull, push = (_mean(found["http"]["paths"][path]) for path in ("pull-object", "push-object"))
    became = []
    for net in found["nets"]:
        row = rows["fedavg", net]
        up, down = (row[way]["objects"] for way in ("up", "down"))
        more = up * push["request_heads"] + down * (pull["request_heads"] + pull["request_bodies"])
        before, after = (
            total / row["recorded_up"] for total in (row["up"]["bytes"], row["up"]["bytes"] + more)
        )
        became.append(f"{before:.2f} × of `{net}` to {after:.2f} ×")
    return (
        f" HTTP, without TLS, adds a header of {round(push['request_heads'])} bytes to each object on its way up. An object on "
        f"its way down is asked for with {round(pull['request_heads'] + pull['request_bodies'])} bytes, and has a header of "
        f"{round(pull['response_heads'])}. With that FedAvg's way up comes from {' and from '.join(became)}."
    )


def _mean(path: Found) -> dict[str, float]:
    """Bytes of one request."""
    return {name: value / path["requests"] for name, value in path.items()}
