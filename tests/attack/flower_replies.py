"""Replies of hostile clients to a strategy over Flower: whatever they hold, the round goes on and the others are served.

The other clients are scripted: they send small updates of two groups, so that a round takes
milliseconds and every reply goes the whole way, through reading, the method's step, its notes, the
record's line and the log.
"""

from __future__ import annotations

import io
import json
import logging
import math
import random
import string
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from attack import Attempt

POINTS = {
    "a reply to training": "Whatever a client replies to training is taken, or refused with a reason; the round goes on.",
    "a reply to a test": "Whatever a client replies to a test, the round is recorded.",
    "a claimed clip": "An update above the norm that the boundary's clip allows is refused.",
    "a first model": "Under a rotation one node in five cannot give the others a first model of its own.",
    "words of clients": "What a client says in errors and names comes into records and logs as one short, printable line.",
}

HOSTILE, CLIENTS = 1, 5
"""The client that is hostile where nothing else is said, of so many."""

TWO = HOSTILE, 4
"""Those that are hostile in training, for the sake of time: every round has more replies then."""

SECRET = 2**127 + 99
FLOAT32 = 3.4028234663852886e38

SENT = [0]
"""Replies that hostile clients have sent so far."""


# -- what honest clients do
# ---------------------------------------------------------------------------------------------------


def net() -> Any:
    from coterie.randomness import seeded
    from small import mlp

    with seeded(0):
        return mlp()


def a_reply(message: Any, wire: Any, client: int, scale: float = 0.05) -> Any:
    """What an honest client that is asked by ``message`` replies: an update towards its group's direction, losses, choices."""
    import numpy as np
    import torch
    from flwr.app import ArrayRecord, MetricRecord, RecordDict

    from coterie.boundary import update_number
    from coterie.core import HeldOutLosses
    from coterie.engines.flower import boundary_check, messages

    told = {boundary_check.BOUNDARY: boundary_check.stated(wire.boundary)}
    config = message.content["config"]
    if "first" in config:
        row = wire.seal(wire.first_model(int(config["first"]), net))
        return RecordDict({"arrays": messages.packed(row, wire.layout), **told})
    if message.metadata.message_type == "evaluate":
        return RecordDict(
            {"metrics": MetricRecord({"loss": 0.5, "accuracy": 0.8, "num-examples": 9}), **told}
        )
    orders = messages.orders_of(message.content)
    records: dict[str, Any] = {}
    metrics: dict[str, Any] = {"num-examples": 20 + client}
    count = 0
    for place, order in enumerate(orders):
        task, exchange = order.task, order.key[1]
        count += task.holdout.report_losses * (1 + (task.personal is not None))
        keep = wire.layout.mask(task.local_layers) if task.local_layers else None
        gen = torch.Generator().manual_seed(1000 * exchange + client)
        for half in range(2 if task.halves else 1) if task.trains else ():
            toward = torch.linspace(-1, 1, wire.layout.size) * (1 if client % 2 else -1)
            update = scale * (toward + 0.3 * torch.randn(wire.layout.size, generator=gen))
            number = update_number(order.number, half)
            sent = wire.protected(update, client, exchange, keep, number, 7)
            name = messages.updates_of(place)[half]
            if wire.boundary.compress == "none":
                records[name] = messages.packed(sent, wire.layout, without=keep)
            else:
                records[name] = ArrayRecord(wire.pack(sent, client, exchange, number, keep))
        offered = len(task.offered)
        own: dict[str, Any] = {"chosen": [(client + i) % offered for i in range(task.choose)]}
        if task.measure:
            own |= {
                "losses": [0.5 + 0.1 * i for i in range(offered)],
                "accuracies": [0.7] * offered,
            }
        if task.local_layers and task.trains:
            own["kept"] = exchange - 1
        if task.personal is not None:
            own |= {"kept": exchange - 1, "personal": 1}
        metrics |= {messages.of_task(name, place): value for name, value in own.items()}
    if count:
        draw = np.random.default_rng(client)
        held = HeldOutLosses.of(
            [("", i) for i in range(count)],
            draw.exponential(1.0, (1, 8)) + 0.1 * draw.random((count, 8)),
        )
        metrics |= messages.held_out_metrics(held)
    return RecordDict({**records, "metrics": MetricRecord(metrics), **told})


class Scripted:
    """Makes a grid of honest clients, but for one. hostile: (message, its honest reply) -> what it replies in its place: None
    for nothing, a RecordDict, an Error or a whole Message."""

    def __init__(
        self, boundary: Any, hostile: Callable[[Any, Any], Any], who: Sequence[int] = (HOSTILE,)
    ) -> None:
        from coterie.boundary import Wire
        from coterie.models.layout import Layout
        from coterie.randomness import seeded

        with seeded(0):
            self.wire = Wire(boundary, Layout(net()), 0)
        self.hostile, self.who = hostile, who

    def grid(self) -> Any:
        from flwr.app import Message, MetricRecord, RecordDict

        from flowered import FIRST, Here

        script = self

        class Grid(Here):
            def _answer(self, message: Any) -> Any:
                client = (message.metadata.dst_node_id - FIRST) // 7
                if message.metadata.message_type not in ("train", "evaluate"):
                    who = MetricRecord({"client": client})  # older versions look into the metrics
                    return Message(RecordDict({"coterie": who, "metrics": who}), reply_to=message)
                reply = a_reply(message, script.wire, client)
                if client in script.who:
                    reply = script.hostile(message, reply)
                    SENT[0] += 1
                return (
                    reply
                    if reply is None or isinstance(reply, Message)
                    else Message(reply, reply_to=message)
                )

        return Grid(None, CLIENTS)  # type: ignore[arg-type]


def strategy_of(method: Any, boundary: Any, **how: Any) -> Any:
    from dataclasses import replace

    from coterie.core import Training
    from coterie.engines.flower import MethodStrategy
    from flowered import a_run

    with a_run():
        return MethodStrategy(
            method,
            net,
            nodes=CLIENTS,
            wait=1.0,
            training=Training(),
            boundary=replace(boundary, secret=None),
            **how,
        )


# -- what hostile clients do
# --------------------------------------------------------------------------------------------------

DTYPES = (
    ">f4", ">f8", ">f2", "<f2", "<f8", "longdouble", ">i2", "<i2", "i1", "u1", "<u2", ">u4", "<i8", "<u8", "c8", ">c16", "?",
    "S5", "U3", ">U2", "M8[s]", "m8[us]", "V3", "(2,)<f4", "<f4,<i4",
)  # fmt: skip
DESCRS = (
    "'|O'", "[('a', '<f4')]", "('<f4', (3,))", "'<f4', 'x': 1", "'f' * 10", "'<f16'", "'<q9'", "None", "3", "[]",
    "'|V2'", "'<f4\\x00'", "'<m8[999999999999999999999s]'", "(" * 90 + ")" * 90,
)  # fmt: skip
SHAPES = (
    (), (0,), (0, 10**30), (-1,), (-8, -5), (8, 5), (5, 8), (40,), (1, 8, 5), (2**31, 2), (10**15,), (10**300,), (1,) * 70,
    (0, -1), (3, 8), (8,), (True, 40), (2**63,),
)  # fmt: skip
NUMBERS = (
    math.nan, math.inf, -math.inf, 1e308, -1e308, 1e300, FLOAT32, 1e39, -0.0, 0.0, 5e-324, -1.0, 1.5, 0.7, 2**62, 2**63 - 1,
    -(2**63), 2**53 + 1, 0, 1, 5, -1, 10**18,
)  # fmt: skip
WORDS = (
    "\x1b[2J\x1b[31mred", "line\nline\r\nline", "\x00\x07\x08", "‮sdrawkcab‬", "\u2028\u2029\x85", "\x1b]0;title\x07",
    "<script>alert(1)</script>", "\ud800", "A" * 10**6, "\N{ZERO WIDTH SPACE}" * 50, "", " ", "%s%n{0}", "../../etc/passwd",
    "\x9b31m", "é" * 3000, "\u2066\u2067\u2068",
)  # fmt: skip


def text(rng: random.Random) -> str:
    """Words of a hostile client."""
    parts = [rng.choice(WORDS) for _ in range(rng.randint(1, 3))]
    return "".join([*parts, *rng.choices(string.printable, k=rng.randint(0, 9))])


def npy(values: Any) -> bytes:
    import numpy as np

    stream = io.BytesIO()
    np.save(stream, values, allow_pickle=False)
    return stream.getvalue()


def header(descr: str, shape: str, order: str, version: bytes, body: bytes) -> bytes:
    """An ``.npy`` file whose header says so."""
    told = f"{{'descr': {descr}, 'fortran_order': {order}, 'shape': {shape}, }}".encode(
        "latin1", "replace"
    )
    size = len(told).to_bytes(2 if version == b"\x01\x00" else 4, "little")
    return b"\x93NUMPY" + version + size + told + body


def an_array(rng: random.Random, was: Any) -> Any:
    """An array in place of ``was``."""
    import numpy as np
    from flwr.app import Array

    try:
        values = was.numpy()
    except Exception:  # it has been spoiled before
        values = np.zeros((8, 5), np.float32)
    kind = rng.randrange(9)
    if kind == 0:
        count = rng.choice((values.size, 3, 0))
        data = npy(np.zeros(count, np.dtype(rng.choice(DTYPES))))
    elif kind == 1:
        with np.errstate(all="ignore"):
            dtype = np.dtype(
                rng.choice((">f4", "<f8", ">f8", "<f2", "longdouble", ">i2", ">i4", "<i8", ">u2"))
            )
            data = npy(
                np.asfortranarray(values.astype(dtype))
                if rng.random() < 0.5
                else values.astype(dtype)
            )
    elif kind == 2:
        version = rng.choice((b"\x01\x00", b"\x02\x00", b"\x03\x00", b"\x09\x09"))
        shape = rng.choice(
            (repr(rng.choice(SHAPES)), "(8L, 5L)", "[8, 5]", "8", "None", "(8.0, 5)", "()" * 40)
        )
        order = rng.choice(("True", "False", "None"))
        data = header(rng.choice((repr("<f4"), *DESCRS)), shape, order, version, values.tobytes())
    elif kind == 3:
        whole = npy(values)
        data = (
            whole[: rng.randrange(len(whole))]
            if rng.random() < 0.7
            else whole + rng.randbytes(rng.randint(1, 9))
        )
    elif kind == 4:
        data = rng.choice(
            (rng.randbytes(rng.randint(0, 300)), b"\x80\x04N.", b"PK\x03\x04", b"\x93NUMPY", b"")
        )
    elif kind == 5:
        whole = bytearray(npy(values))
        for _ in range(rng.randint(1, 6)):
            whole[rng.randrange(len(whole))] = rng.randrange(256)
        data = bytes(whole)
    else:  # numbers of the right kind, but odd ones
        odd = np.array(values, dtype=values.dtype)
        at = rng.randrange(max(1, odd.size)) if rng.random() < 0.5 else slice(None)
        if odd.size and odd.dtype.kind in "fiu":  # it may have been spoiled before
            choices = (math.nan, math.inf, -math.inf, FLOAT32, 1e30, -1e18, 1e17, 0.0, -0.0, 1e-45)
            odd.reshape(-1)[at] = (
                rng.choice(choices) if odd.dtype.kind == "f" else rng.choice((0, 1, 127, 99))
            )
        data = npy(odd)
    shape = tuple(int(s) for s in rng.choice(SHAPES)) if rng.random() < 0.2 else tuple(values.shape)
    named = rng.choice(("float32", "bfloat16", "\x1b[0m"))
    return Array(dtype=named, shape=shape, stype=rng.choice(("numpy.ndarray", "x")), data=data)


def arrays(rng: random.Random, reply: Any) -> None:
    """Spoil an array, its name, or its record."""
    from flwr.app import ArrayRecord

    names = list(reply.array_records)
    if not names:
        return
    record = reply[rng.choice(names)]
    key = rng.choice(list(record) or [""])
    kind = rng.randrange(5)
    if kind <= 2 and key:
        record[key] = an_array(rng, record[key])
    elif kind == 3 and key:
        if rng.random() < 0.6:
            del record[key]
        else:
            record[text(rng)[:2000]] = record[key]
    else:
        reply[rng.choice(names)] = ArrayRecord(
            {text(rng)[:2000]: record[key]} if key and rng.random() < 0.5 else {}
        )


def a_number(rng: random.Random) -> Any:
    kind = rng.randrange(6)
    if kind < 3:
        return rng.choice(NUMBERS)
    if kind == 3:
        return []
    one = rng.choice(NUMBERS)
    like = [n for n in NUMBERS if type(n) is type(one)]
    return [rng.choice(like) for _ in range(rng.choice((1, 2, 3, 4, 5, 2000)))]


def metrics(rng: random.Random, reply: Any) -> None:
    """Spoil a metric."""
    from flwr.app import MetricRecord

    if not isinstance(reply.get("metrics"), MetricRecord):
        return
    names = [
        "num-examples",
        "losses",
        "accuracies",
        "chosen",
        "kept",
        "loss",
        "accuracy",
        "eval_acc",
        text(rng)[:500],
    ]
    names += [
        "held-out",
        "held-out-sums",
        "held-out-products",
        "personal",
        "chosen-1",
        "kept-1",
        "personal-1",
        "losses-1",
    ]
    told = dict(reply["metrics"])
    for _ in range(rng.randint(1, 3)):
        name = rng.choice(names)
        if rng.random() < 0.15:
            told.pop(name, None)
        elif rng.random() < 0.3 and isinstance(told.get(name), list):
            told[name] = [float(rng.choice(NUMBERS)) for _ in told[name]]
        else:
            told[name] = a_number(rng)
    reply["metrics"] = MetricRecord(told)


def records(rng: random.Random, reply: Any) -> None:
    """Drop, rename, add or change the kind of a record."""
    from flwr.app import ArrayRecord, ConfigRecord, MetricRecord

    name = rng.choice([*reply, "update-1", "update-2", "metrics", "arrays"])
    kind = rng.randrange(5)
    if kind == 0:
        reply.pop(name, None)
    elif kind == 1 and name in reply:
        reply[text(rng)[:500]] = reply.pop(name)
    elif kind == 2:
        reply[text(rng)[:500]] = rng.choice(
            (MetricRecord({"num-examples": 5}), ArrayRecord(), ConfigRecord({"a": text(rng)}))
        )
    else:
        reply.pop(name, None)
        reply[name] = rng.choice(
            (
                MetricRecord({"num-examples": 5.0}),
                ArrayRecord(),
                ConfigRecord({"a": "b"}),
                ConfigRecord(),
            )
        )


def claims(rng: random.Random, reply: Any) -> None:
    """Say something else of the boundary."""
    from flwr.app import ConfigRecord

    said = rng.choice(
        (
            text(rng),
            "[" * 3000,
            '{"clip": ' + "9" * 5000 + "}",
            "[1, 2]",
            "null",
            json.dumps({"clip": text(rng)[:300]}),
            b"\xff",
            7,
            [text(rng)[:50]],
            [],
        )
    )
    reply["coterie.boundary"] = ConfigRecord(
        {rng.choice(("settings", "secret")): said, "secret": text(rng)[:99]}
    )


CHANGES = (arrays, arrays, arrays, metrics, metrics, metrics, records, claims)


def spoiled(rng: random.Random, message: Any, reply: Any) -> Any:
    """What a hostile client replies where an honest one would send ``reply``."""
    from flwr.app import Error, Message, RecordDict

    kind = rng.random()
    if kind < 0.02:
        return None
    if kind < 0.1:
        return Error(
            code=rng.choice((0, 2, 7, 8, 9, 11, -1, 2**31 - 1)),
            reason=rng.choice((None, text(rng), text(rng))),
        )
    if kind < 0.13:
        return RecordDict()
    if kind < 0.15:
        empty = Message(RecordDict(), reply_to=message)
        empty.__dict__["_content"] = None
        return empty
    if kind < 0.17:
        return message.content  # what it was asked
    if kind < 0.19:
        other = Message(reply, reply_to=message)
        other.metadata.__dict__["_src_node_id"] = rng.choice((0, -1, 2**63, 12345))
        return other
    for _ in range(rng.randint(1, 3)):
        rng.choice(CHANGES)(rng, reply)
    return reply


# -- what is promised
# ---------------------------------------------------------------------------------------------------------


class Heard(logging.Handler):
    """What the server logs."""

    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


@contextmanager
def listening() -> Iterator[list[str]]:
    """What the server logs, which goes nowhere else."""
    log, heard = logging.getLogger("flwr.coterie"), Heard()
    before, log.propagate = log.propagate, False
    level = log.level
    log.addHandler(heard)
    log.setLevel(logging.DEBUG)
    try:
        yield heard.lines
    finally:
        log.removeHandler(heard)
        log.propagate = before
        log.setLevel(level)


def steers(said: str) -> bool:
    """Whether a line could steer a terminal, break into several, or cannot be written."""
    return not said.isprintable() or len(said) > 2000


def broken(done: Any, who: Sequence[int] = (HOSTILE,)) -> str | None:
    """What is wrong with a round in which the clients ``who`` were hostile."""
    import torch

    from coterie.records.round_line import line_of_round
    from coterie.records.text_files import to_json

    if not torch.isfinite(done.assignment.models).all():
        return "a model is not finite"
    wronged = set(done.refused) - set(who)
    if wronged:
        return f"client {min(wronged)} was refused: {done.refused[min(wronged)][:200]!r}"
    recorded = line_of_round(done)
    json.loads(to_json(recorded), parse_constant=lambda name: 1 / 0)
    return None


def unfit(done: Any, lines: Sequence[str]) -> str | None:
    """What is wrong with the words of a round and its log."""
    said = [*done.refused.values(), *(note.text for note in done.notes), *lines]
    odd = next((each for each in said if steers(each)), None)
    return f"{odd[:200]!r} is no printable line" if odd is not None else None


def play(
    method: Any, boundary: Any, hostile: Callable[[Any, Any], Any], rounds: int = 2, words: bool = False,
    who: Sequence[int] = (HOSTILE,),
) -> str | None:  # fmt: skip
    """Some rounds with hostile clients; None if they were as they ought to be. words: and what was said of them."""
    from flwr.serverapp.strategy import Result

    from flowered import a_run

    strategy = strategy_of(method, boundary)
    with listening() as lines, a_run():
        for done in strategy.rounds(Scripted(boundary, hostile, who).grid(), rounds):
            strategy._store_metrics(done, Result())
            strategy._log_round(done)
            if why := broken(done, who) or (unfit(done, lines) if words else None):
                return why
    return None


def boundaries() -> list[Any]:
    from coterie.boundary import Boundary

    return [
        Boundary(),
        Boundary(clip=1.0),
        Boundary(compress="topk", share=0.3),
        Boundary(compress="sign"),
        Boundary(compress="8bit"),
        Boundary(rotation="permute-tensors", secret=SECRET),
        Boundary(clip=0.5, noise=0.1),
        Boundary(rotation="permute-tensors", secret=SECRET, clip=0.5, compress="8bit"),
    ]


def goes(method: Any, boundary: Any) -> bool:
    """Whether a method runs behind a boundary."""
    from coterie.settings import UserError

    try:
        return play(method, boundary, lambda message, reply: reply, rounds=1) is None
    except UserError:
        return False


def methods() -> dict[str, Any]:
    """The methods that are tried: the examples, and methods with several tasks in a message and personal models."""
    from coterie.methods import CFL, FedAvg, FedPer, Race, Tuned
    from method_examples import EXAMPLES

    arms = FedAvg(), FedPer(), CFL(eps1=10.0, eps2=0.0, gamma_max=0.0, persistence=1)
    several = {
        "race": Race(methods=arms),
        "race of tuned": Race(methods=(FedAvg(), Tuned(method=FedAvg(), start="own"))),
    }
    return {**EXAMPLES, **several, "tuned": Tuned(method=arms[2], start="own", pull=0.1)}


def training(rng: random.Random) -> Iterator[Attempt]:
    possible: dict[Any, bool] = {}
    tried = methods()
    while True:
        name, number, seed = (
            rng.choice([*sorted(tried), "race", "race of tuned"]),
            rng.randrange(len(boundaries())),
            rng.getrandbits(64),
        )
        boundary = boundaries()[number]
        if (name, number) not in possible:
            possible[name, number] = goes(tried[name], boundary)
        if not possible[name, number]:
            continue

        def run(name: str = name, boundary: Any = boundary, seed: int = seed) -> str | None:
            own = random.Random(seed)

            def hostile(message: Any, reply: Any) -> Any:
                return (
                    spoiled(own, message, reply)
                    if message.metadata.message_type == "train"
                    else reply
                )

            return play(tried[name], boundary, hostile, who=TWO)

        yield Attempt(
            "a reply to training",
            f"{name} under {boundary.compress}/{boundary.rotation}, seed {seed}",
            run,
        )


def testing(rng: random.Random, folder: Path) -> Iterator[Attempt]:
    """Replies to tests; some of the runs are recorded, and summed up."""
    from method_examples import EXAMPLES

    number = 0
    while True:
        name, seed, number = (
            rng.choice(("fedavg", "cfl", "fedper", "hcct")),
            rng.getrandbits(64),
            number + 1,
        )

        def run(name: str = name, seed: int = seed, number: int = number) -> str | None:
            import coterie

            own = random.Random(seed)

            def hostile(message: Any, reply: Any) -> Any:
                return (
                    spoiled(own, message, reply)
                    if message.metadata.message_type == "evaluate"
                    else reply
                )

            if number % 10:
                return play(EXAMPLES[name], boundaries()[0], hostile, rounds=1)
            from flowered import a_run

            with a_run(), listening():
                out = folder / f"run{number}"
                strategy = strategy_of(EXAMPLES[name], boundaries()[0], out=out)
                strategy.start(Scripted(boundaries()[0], hostile).grid(), num_rounds=2)
            found = coterie.summary(out)
            return (
                None if found["rounds"] == 2 else f"the summary knows of {found['rounds']} rounds"
            )

        yield Attempt("a reply to a test", f"{name}, seed {seed}", run)


def clipping(rng: random.Random) -> Iterator[Attempt]:
    """Updates of a norm that no honest client's has."""
    while True:
        compress, rotation = (
            rng.choice(("none", "topk", "sign", "8bit")),
            rng.choice(("none", "permute", "blocks")),
        )
        noise, times, peak = (
            rng.choice((0.0, 0.0, 0.3)),
            math.exp(rng.uniform(0.3, 30)),
            rng.random() < 0.5,
        )

        def run(
            compress: str = compress,
            rotation: str = rotation,
            noise: float = noise,
            times: float = times,
            peak: bool = peak,
        ) -> str | None:
            import torch
            from flwr.app import ArrayRecord

            from coterie.boundary import Boundary
            from coterie.engines.flower import messages
            from coterie.methods import FedAvg
            from flowered import a_run

            secret = None if rotation == "none" else SECRET
            boundary = Boundary(
                clip=0.7, noise=noise, compress=compress, rotation=rotation, secret=secret
            )
            script = Scripted(boundary, lambda message, reply: reply)
            wire, size = script.wire, script.wire.layout.trainable
            row = torch.zeros(wire.layout.size)
            row[: 1 if peak and compress != "sign" else size] = 1.0
            limit = 0.7 * (1 + noise * (math.sqrt(size) + 8))
            # of sign and of 8bit's rounding no norm is larger than that of the row; topk's is of
            # some of the entries
            row *= limit * times / float(row.norm())
            if compress == "topk":
                row *= math.sqrt(10)

            def hostile(message: Any, reply: Any) -> Any:
                if "update" in reply:
                    plain = compress == "none"
                    reply["update"] = (
                        messages.packed(row, wire.layout)
                        if plain
                        else ArrayRecord(wire.pack(row, HOSTILE, 0, 0))
                    )
                return reply

            script.hostile = hostile
            with a_run():
                done = next(strategy_of(FedAvg(), boundary).rounds(script.grid(), 1))
            if set(done.refused) != {HOSTILE}:
                return f"refused were {dict(done.refused)}, and the update of {times:.3g} times the greatest norm was not"
            return broken(done)

        yield Attempt(
            "a claimed clip",
            f"{compress}/{rotation}, noise {noise}, {times:.3g} times, peak {peak}",
            run,
        )


def first_models(rng: random.Random) -> Iterator[Attempt]:
    """A witness that offers another first model."""
    while True:
        rotation, seed = rng.choice(("permute", "permute-tensors", "blocks")), rng.getrandbits(64)

        def run(rotation: str = rotation, seed: int = seed) -> str | None:
            from coterie.boundary import Boundary
            from coterie.methods import FedAvg
            from flowered import a_run

            own, boundary = random.Random(seed), Boundary(rotation=rotation, secret=SECRET)

            def hostile(message: Any, reply: Any) -> Any:
                if "first" not in message.content["config"]:
                    return reply
                return _other_model(own, message, reply)

            script = Scripted(
                boundary, hostile, (own.choice((0, 0, 1, 4)),)
            )  # the first that answers, or another
            right = script.wire.seal(script.wire.first_model(0, net))
            with a_run():
                done = next(strategy_of(FedAvg(), boundary).rounds(script.grid(), 1))
            apart = float((done.assignment.models[0] - right).norm())
            return broken(done, who=script.who) or (
                f"the model is {apart:.3g} away" if apart > 1 else None
            )

        yield Attempt("a first model", f"{rotation}, seed {seed}", run)


def _other_model(rng: random.Random, message: Any, reply: Any) -> Any:
    """A first model that is not the others'."""
    import numpy as np
    from flwr.app import Array

    kind, factor = (
        rng.randrange(6),
        rng.choice((0.0, -1.0, 3.0, 100.0, 1e6, 1e30, math.nan, math.inf)),
    )
    if kind == 0:
        return spoiled(rng, message, reply)
    record = reply["arrays"]
    for name in list(record):
        values = record[name].numpy()
        draw = np.random.default_rng(rng.getrandbits(32))
        with np.errstate(all="ignore"):
            odd = (
                values * np.float32(factor)
                if kind < 4
                else draw.normal(0, 1 + abs(values).max(), values.shape)
            )
        record[name] = Array(odd.astype(np.float32))
    return reply


def words(rng: random.Random) -> Iterator[Attempt]:
    """Errors, names and claims of the boundary that are meant for a terminal."""
    from method_examples import EXAMPLES

    while True:
        name, seed = rng.choice(("fedavg", "cfl", "ifca", "split-half")), rng.getrandbits(64)

        def run(name: str = name, seed: int = seed) -> str | None:
            own = random.Random(seed)

            def hostile(message: Any, reply: Any) -> Any:
                from flwr.app import ArrayRecord, Error

                if own.random() < 0.4:
                    return Error(code=2, reason=text(own))
                if own.random() < 0.5:
                    claims(own, reply)
                for key in list(reply.array_records):
                    reply[key] = ArrayRecord(
                        {text(own)[:3000]: array for array in reply[key].values()}
                    )
                return reply

            return play(EXAMPLES[name], own.choice(boundaries()[:5]), hostile, rounds=1, words=True)

        yield Attempt("words of clients", f"{name}, seed {seed}", run)


def attempts(rng: random.Random, folder: Path) -> Iterator[Attempt]:
    train, test, clip, first, said = (
        training(rng),
        testing(rng, folder),
        clipping(rng),
        first_models(rng),
        words(rng),
    )
    while True:
        yield from (next(train), next(train), next(train), next(test), next(train), next(clip))
        yield from (next(train), next(first), next(said))
