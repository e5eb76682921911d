"""Uploads of a node that are no message of Flower's, fetched by Flower's own grid from a SuperLink that stands in for one.

A SuperLink looks at the head of what a node uploads, and at its hash; what the body holds is seen
where the server fetches it.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from attack import Attempt

POINTS = {
    "an upload": "An upload that is no message is a failure of its node; the others' answers are taken, but those that came "
    "with the first such upload."
}

NODES, HOSTILE = 5, 2


class Link:
    """What a SuperLink does for a ServerApp: it gives out each answer once."""

    def __init__(self, rng: random.Random) -> None:
        self.rng, self.objects, self.answers = rng, dict[str, bytes](), dict[str, Any]()

    def answer(self, messages: list[Any]) -> None:
        """An answer to each message; the hostile node's has an object whose body is something else."""
        import numpy as np
        from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
        from flwr.common.serde import message_to_proto
        from flwr.supercore.inflatable.inflatable_object import (
            get_all_nested_objects,
            get_object_tree,
        )

        for node, message in enumerate(messages):
            told = {
                "arrays": ArrayRecord([np.full(3, node, np.float32)]),
                "metrics": MetricRecord({"num-examples": node}),
            }
            reply = Message(RecordDict(told), reply_to=message)
            found = {id: one.deflate() for id, one in get_all_nested_objects(reply).items()}
            proto, tree = message_to_proto(reply), get_object_tree(reply)
            proto.metadata.message_id = reply.object_id
            proto.ClearField("content")
            if node == HOSTILE:
                at = self.rng.choice(list(found))
                found[at] = spoiled(self.rng, found[at])
            self.objects.update(found)
            self.answers[message.metadata.message_id] = proto, tree

    def PushMessages(self, request: Any) -> Any:
        from flwr.superlink.grid.http_grid import PushAppMessagesResponse

        return PushAppMessagesResponse(
            message_ids=[message.metadata.message_id for message in request.messages_list]
        )

    def PullMessages(self, request: Any) -> Any:
        from flwr.superlink.grid.http_grid import PullAppMessagesResponse

        out = [self.answers.pop(id) for id in request.message_ids if id in self.answers]
        protos, trees = [proto for proto, _ in out], [tree for _, tree in out]
        return PullAppMessagesResponse(messages_list=protos, message_object_trees=trees)

    def PushObject(self, request: Any) -> None:
        raise AssertionError("every object is there already")

    def PullObject(self, request: Any) -> Any:
        from flwr.supercore.inflatable.inflatable_protobuf_utils import PullObjectResponse

        content = self.objects[request.object_id]
        return PullObjectResponse(object_found=True, object_available=True, object_content=content)

    def ConfirmMessageReceived(self, request: Any) -> None:
        return None


def spoiled(rng: random.Random, content: bytes) -> bytes:
    """An object with another body, or of another kind, that a SuperLink takes."""
    from flwr.supercore.inflatable.inflatable_utils import validate_object_content

    head, _, body = content.partition(b"\x00")
    kind, children, _ = head.decode().split(" ")
    texts = (
        "null",
        "[]",
        "3",
        '"x"',
        "{}",
        '{"metrics": 3}',
        "[" * 5000,
        '{"dtype": 1}',
        '{"metrics": "x", "a": []}',
    )
    odd = rng.choice(
        (
            rng.randbytes(rng.randint(0, 60)),
            rng.choice(texts).encode(),
            body[: len(body) // 2],
            body + b"\xff",
        )
    )
    if rng.random() < 0.3:
        kind = rng.choice(
            (
                "Message",
                "RecordDict",
                "ArrayRecord",
                "MetricRecord",
                "ConfigRecord",
                "Array",
                "ArrayChunk",
            )
        )
    if rng.random() < 0.2:
        children = rng.choice(("", "0" * 64, children))
    made = f"{kind} {children} {len(odd)}".encode() + b"\x00" + odd
    validate_object_content(made)
    return made


def grid_of(link: Link) -> Any:
    """Flower's grid as a strategy uses it."""
    from flwr.superlink.grid.http_grid import HttpGrid

    grid = HttpGrid(token="any")
    grid._client = link  # type: ignore[assignment]
    grid._run = SimpleNamespace(run_id=1)  # type: ignore[assignment]
    try:
        from coterie.engines.flower.tolerant_grid import TolerantGrid
    except ImportError:
        return grid
    return TolerantGrid(grid)


def exchange(grid: Any, link: Link) -> dict[int, Any]:
    """What the nodes answer to a message each."""
    from flwr.app import ConfigRecord, Message, RecordDict

    messages = [
        Message(
            RecordDict({"config": ConfigRecord({"number": link.rng.random()})}),
            dst_node_id=node,
            message_type="train",
        )
        for node in range(1, NODES + 1)
    ]
    ids = list(grid.push_messages(messages))
    link.answer(messages)
    replies = [reply for _ in range(3) for reply in grid.pull_messages(ids)]
    return {reply.metadata.src_node_id: reply for reply in replies if hasattr(reply, "metadata")}


def attempts(rng: random.Random, folder: Path) -> Iterator[Attempt]:
    while True:
        seed = rng.getrandbits(64)

        def run(seed: int = seed) -> str | None:
            from attack.flower_replies import listening
            from flowered import a_run

            link = Link(random.Random(seed))
            with a_run(), listening():
                grid, honest = grid_of(link), set(range(1, NODES + 1)) - {HOSTILE + 1}
                heard = [exchange(grid, link) for _ in range(4)]
            lost = [
                sorted(n for n in honest if n not in each or each[n].has_error()) for each in heard
            ]
            return (
                f"nodes were not heard in several exchanges: {lost}"
                if sum(map(bool, lost)) > 1
                else None
            )

        yield Attempt("an upload", f"seed {seed}", run)
