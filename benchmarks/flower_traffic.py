"""What Flower's messages take beside what Coterie records: every method over a federation in this process.

    python benchmarks/flower_traffic.py [ROUNDS] [CLIENTS]      writes
    benchmarks/results/flower-traffic.json

A row per net and method: the bytes that the rounds recorded, and those of the messages as a
SuperNode receives and sends them, both ways. A message is an object tree and, one by one, its
objects: an array and its bytes, records, the message itself. Counted are Flower's own protobuf
messages; not counted are what HTTP adds to each of them, which flower_link.py measures, requests
and acknowledgements the other way, heartbeats, queries who a node is, and tests, which are in no
record either. notes/flower.md quotes the table.
"""

import json
import sys
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, replace
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import torch
from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.common.serde import message_to_proto
from flwr.proto.fleet_pb2 import PullMessagesResponse, PushMessagesRequest
from flwr.proto.message_pb2 import ObjectTree, PullObjectResponse, PushObjectRequest
from flwr.proto.node_pb2 import Node
from flwr.serverapp import Grid
from flwr.supercore.task_identity import TaskIdentity

from coterie import METHODS, SCENARIOS
from coterie.data.world import World
from coterie.engines.flower import MethodStrategy, Participant, client_app
from coterie.records.record import versions

OUT = Path(__file__).parent / "results" / "flower-traffic.json"
SCENARIO = "digits/label-permutation"
NETS = ("mlp", "acfl-cnn")
FIRST = 1 << 62  # Flower's node ids take as many bytes
SETTINGS: dict[str, dict[str, Any]] = {"flhc": {"warmup": 2}}
"""Of methods whose first rounds would otherwise be all that is seen; the others have their
defaults."""


@dataclass
class Sent:
    """One way: messages, the objects they were sent as, the arrays in them, the bytes of these arrays' numbers alone, and
    the bytes of all."""

    messages: int = 0
    objects: int = 0
    arrays: int = 0
    numbers: int = 0
    bytes: int = 0

    def add(self, message: Message, requests: list[Any]) -> None:
        arrays = [
            array.numpy()
            for record in message.content.array_records.values()
            for array in record.values()
        ]
        self.messages += 1
        self.objects += len(requests) - 1
        self.arrays += len(arrays)
        self.numbers += sum(array.nbytes for array in arrays)
        self.bytes += sum(request.ByteSize() for request in requests)


def objects(whole: Any, found: dict[str, Any]) -> ObjectTree:
    """The tree of what a message consists of; each object once in ``found``, as Flower sends it once."""
    tree = ObjectTree(
        object_id=whole.object_id,
        children=[objects(part, found) for part in (whole.children or {}).values()],
    )
    found[whole.object_id] = whole.deflate()
    return tree


def bare(message: Message) -> Any:
    """The message as it goes ahead of its objects."""
    proto = message_to_proto(message)
    proto.ClearField("content")
    return proto


def received(message: Message) -> list[Any]:
    """What a SuperNode receives for a message."""
    found: dict[str, bytes] = {}
    tree = objects(message, found)
    head = PullMessagesResponse(messages_list=[bare(message)], message_object_trees=[tree])
    return [
        head,
        *(
            PullObjectResponse(object_found=True, object_available=True, object_content=o)
            for o in found.values()
        ),
    ]


def sent(message: Message) -> list[Any]:
    """What a SuperNode sends for a reply."""
    found: dict[str, bytes] = {}
    tree, node = objects(message, found), Node(node_id=message.metadata.src_node_id)
    head = PushMessagesRequest(
        node=node,
        messages_list=[bare(message)],
        message_object_trees=[tree],
        clientapp_runtime_list=[1.0],
    )
    about: dict[str, Any] = {
        "node": node,
        "run_id": message.metadata.run_id,
        "session_id": "0" * 32,
    }
    return [
        head,
        *(
            PushObjectRequest(object_id=name, object_content=o, **about)
            for name, o in found.items()
        ),
    ]


@dataclass
class Counting(Grid):
    """A grid whose nodes live in this process. down, up: what was sent in training messages and their replies."""

    app: ClientApp
    count: int
    down: Sent = field(default_factory=Sent)
    up: Sent = field(default_factory=Sent)
    replies: dict[str, Message] = field(default_factory=dict)

    def __post_init__(self) -> None:
        TaskIdentity.task_id = TaskIdentity.run_id = (
            FIRST  # what Flower sets for the process of a ServerApp
        )
        TaskIdentity.node_id = 1
        self.contexts = {
            FIRST + i: Context(
                run_id=FIRST,
                node_id=FIRST + i,
                node_config={"partition-id": i},
                state=RecordDict(),
                run_config={},
            )
            for i in range(self.count)
        }

    def get_node_ids(self) -> Iterable[int]:
        return list(self.contexts)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        replies = [self._answer(message) for message in messages]
        self.replies.update({reply.metadata.reply_to_message_id: reply for reply in replies})
        return [reply.metadata.reply_to_message_id for reply in replies]

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        return [self.replies.pop(id) for id in message_ids if id in self.replies]

    def _answer(self, message: Message) -> Message:
        message.metadata.__dict__["_message_id"] = message.object_id  # as HttpGrid does
        trains = message.metadata.message_type == "train"
        if trains:  # before the app, which may change it
            self.down.add(message, received(message))
        reply = self.app(message, self.contexts[message.metadata.dst_node_id])
        reply.metadata.__dict__["_message_id"] = reply.object_id
        if trains:
            self.up.add(reply, sent(reply))
        return reply

    def set_run(self, run: Any) -> None:
        raise NotImplementedError

    @property
    def run(self) -> Any:
        raise NotImplementedError

    def create_message(self, *arguments: Any, **named: Any) -> Message:
        raise NotImplementedError

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        raise NotImplementedError


def world_of(net: str, clients: int) -> World:
    """How long clients train changes no byte, so they train briefly."""
    made = replace(SCENARIOS[SCENARIO], model=net, clients=clients, groups=2).build(0)
    return replace(made, training=replace(made.training, batch=0, epochs=1, steps=None))


def row(name: str, net: str, world: World, rounds: int) -> dict[str, Any]:
    """What a method recorded, and what its messages took."""
    app = client_app(
        participant=lambda context: Participant(
            world.clients[int(context.node_config["partition-id"])], world.model
        )
    )
    grid = Counting(app, len(world.clients))
    method = METHODS[name](**SETTINGS.get(name, {}))
    strategy = MethodStrategy(
        method,
        world.model,
        training=world.training,
        nodes=len(world.clients),
        wait=1.0,
        eval_every=rounds,
    )
    recorded = np.sum(
        [(done.bytes_up, done.bytes_down) for done in strategy.rounds(grid, rounds)], 0
    )
    return {
        "method": name,
        "net": net,
        "recorded_up": int(recorded[0]),
        "recorded_down": int(recorded[1]),
        "up": asdict(grid.up),
        "down": asdict(grid.down),
    }


def main(rounds: int = 6, clients: int = 8) -> None:
    torch.set_num_threads(1)
    rows, nets = [], {}
    for net in NETS:
        world = world_of(net, clients)
        parameters = sum(p.numel() for p in world.model().parameters())
        nets[net] = {"parameters": parameters, "tensors": len(world.model().state_dict())}
        for name in METHODS:
            rows.append(row(name, net, world, rounds))
            print(json.dumps(rows[-1]), flush=True)
    OUT.parent.mkdir(exist_ok=True)
    about = {
        "scenario": SCENARIO,
        "clients": clients,
        "rounds": rounds,
        "settings": SETTINGS,
        "nets": nets,
        "versions": {**versions(), "flwr": metadata.version("flwr")},
    }
    before = json.loads(OUT.read_text()) if OUT.is_file() else {}  # flower_link.py's part stays
    OUT.write_text(json.dumps({**before, **about, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
