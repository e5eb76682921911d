"""What a record says was sent is what Flower's serialised messages hold, within so much for each message and array."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr", reason="Flower is not installed")

from flwr.app import ArrayRecord, Message, RecordDict
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_tree

from coterie.boundary import NUMBER_BYTES
from coterie.core import Training
from coterie.methods import METHODS
from coterie.randomness import seeded
from flowered import a_run
from small import mlp, world

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "benchmarks"), str(ROOT / "tools" / "docs")]

import flower_link  # noqa: E402
import flower_traffic  # noqa: E402
import traffic_table  # noqa: E402

CLIENTS, ROUNDS = 4, 3
PARAMETERS, TENSORS = 75, 4

PER_MESSAGE, PER_ARRAY = 2000, 900
"""Bytes besides an array's numbers, at most: benchmarks/results/flower-traffic.json has 1,541 and
844 of FedAvg's replies, where a session's and an object's name go along; losses, choices and a
longer task come on top."""

KEEPING = ("fedper", "fedrep", "hcct-p")
"""Methods whose clients have some layers of their own."""

ALONE = ("auto", "independent")
"""Methods whose clients have a whole model of their own, which they train alone."""

HELD = {"tuned": 2, "race": 3, "auto": 6}
"""Method -> models of which a reply has held-out losses: their number, sums, and products of two.
"""


@pytest.fixture(autouse=True)
def run() -> Iterator[None]:
    with a_run():
        yield


def measured(name: str) -> dict[str, Any]:
    small = world(range(CLIENTS), training=Training(lr=0.1, batch=0))
    return flower_traffic.row(name, "mlp", small, ROUNDS)


@pytest.mark.parametrize("name", METHODS)
def test_recorded_bytes_are_those_of_the_messages_but_for_headers(name: str) -> None:
    """Tests (``eval_every``) are messages of their own, in no record, and not counted here either."""
    found = measured(name)
    up, down = found["up"], found["down"]
    assert up["messages"] == down["messages"] > 0
    for sent in (up, down):
        assert (
            sent["bytes"]
            <= sent["numbers"] + PER_MESSAGE * sent["messages"] + PER_ARRAY * sent["arrays"]
        )
    if name in ALONE:  # the first model goes down once to each node; no record counts it
        assert down["numbers"] == found["recorded_down"] + CLIENTS * PARAMETERS * NUMBER_BYTES
    elif name in KEEPING:  # layers that stay may go down for nothing; no record counts them
        assert (
            found["recorded_down"]
            <= down["numbers"]
            <= down["messages"] * PARAMETERS * NUMBER_BYTES
        )
    else:
        assert found["recorded_down"] == down["numbers"]
    # Besides the arrays a reply tells its number of examples; a choice, and a loss and an accuracy
    # of each model offered.
    models = HELD.get(name, 0)
    told = (
        1
        + 3 * down["arrays"] // TENSORS // down["messages"]
        + (models > 0)
        + models
        + models * (models + 1) // 2
    )
    assert 0 <= found["recorded_up"] - up["numbers"] <= told * NUMBER_BYTES * up["messages"]


@seeded(0)
def test_a_message_is_counted_as_a_supernode_receives_it() -> None:
    """Nothing but the objects' contents, names and the metadata, against Flower's own walk over a message."""
    state = mlp().state_dict()
    message = Message(
        RecordDict({"arrays": ArrayRecord(state)}), dst_node_id=7, message_type="train"
    )
    head, *parts = flower_traffic.received(message)
    assert [part.object_content for part in parts] == [
        o.deflate() for o in get_all_nested_objects(message).values()
    ]
    assert head.message_object_trees[0] == get_object_tree(message)
    assert not head.messages_list[0].HasField("content")
    # A message, its record of records, the arrays' record, and an object and a chunk of each array.
    assert len(parts) == 3 + 2 * len(state)


def test_the_table_tells_what_was_recorded_and_what_was_sent(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    path = tmp_path / "flower-traffic.json"
    monkeypatch.setattr(traffic_table, "TRAFFIC", path)
    assert "not been measured" in traffic_table.traffic()

    def row(method: str, net: str, arrays: int, recorded: int) -> dict[str, Any]:
        sent = {
            "messages": 10,
            "objects": 10,
            "arrays": 10 * arrays,
            "numbers": 4000,
            "bytes": 4000 + 10 * (100 + 50 * arrays),
        }
        return {
            "method": method,
            "net": net,
            "recorded_up": 4000,
            "recorded_down": recorded,
            "up": sent,
            "down": sent,
        }

    rows = [
        row(m, net, arrays, kept)
        for net, arrays in (("a", 2), ("b", 6))
        for m, kept in (("fedavg", 4000), ("fedper", 0))
    ]
    nets = {net: {"parameters": 1000, "tensors": arrays} for net, arrays in (("a", 2), ("b", 6))}
    about = {
        "clients": 5,
        "rounds": 2,
        "settings": {"flhc": {"warmup": 2}},
        "versions": {"flwr": "1"},
        "nets": nets,
    }
    path.write_text(json.dumps({**about, "rows": rows}))
    shown = traffic_table.traffic()
    assert (
        "| `fedavg` | 10 | 4.0 kB, 1.50 × | 4.0 kB, 1.50 × | 4.0 kB, 2.00 × | 4.0 kB, 2.00 × |"
        in shown
    )
    assert "| `fedper` | 10 | 4.0 kB, 1.50 × | nothing, sent 6.0 kB |" in shown
    said = " ".join(shown.split())
    assert "(`flhc` with warmup 2):" in said
    assert (
        "100 bytes, and 50 for each array in it, on its way down; 100 bytes, and 50 for each array in it, on its way up"
        in said
    )
    assert "sent down once to each node (`fedper`)" in said
    assert "HTTP" not in said

    heads = {
        "requests": 2,
        "request_heads": 16,
        "request_bodies": 2,
        "response_heads": 6,
        "response_bodies": 0,
    }
    path.write_text(
        json.dumps(
            {**about, "rows": rows, "http": {"paths": {"pull-object": heads, "push-object": heads}}}
        )
    )
    said = " ".join(traffic_table.traffic().split())
    assert "a header of 8 bytes to each object on its way up." in said
    assert "is asked for with 9 bytes, and has a header of 3." in said
    # Ten objects each way in rows of 4,000 recorded bytes: (8 + 9) * 10 / 4000 is 0.04.
    assert "from 1.50 × of `a` to 1.54 × and from 2.00 × of `b` to 2.04 ×" in said


def test_the_headers_and_bodies_of_a_connection_are_counted_by_path() -> None:
    def sent(first: str, body: bytes, **fields: str) -> bytes:
        head = [
            first,
            f"Content-Length: {len(body)}",
            *(f"{name}: {value}" for name, value in fields.items()),
        ]
        return "\r\n".join(head).encode() + b"\r\n\r\n" + body

    ask, reply = (
        sent("POST /v1/fleet/pull-object HTTP/1.1", b"\r\n\r\nabc", host="x"),
        sent("HTTP/1.1 200 OK", b"12345"),
    )
    up, down = (
        bytearray(ask * 2 + ask[:-1]),
        bytearray(reply * 2),
    )  # the third is not there as a whole
    found = flower_link.counted([(up, down)])
    assert found == {
        "pull-object": {
            "requests": 2,
            "request_heads": 2 * (len(ask) - 7),
            "request_bodies": 14,
            "response_heads": 2 * (len(reply) - 5),
            "response_bodies": 10,
        }
    }
    with pytest.raises(ValueError, match="without a content length"):
        list(flower_link.messages(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"))
