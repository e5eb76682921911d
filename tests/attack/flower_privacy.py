"""A server, or an app, that would learn more of a client's data over Flower than its noised updates tell."""

from __future__ import annotations

import logging
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from attack import Attempt

POINTS = {
    "what leaves under noise": "Whatever the server asks and the app answers, a client's noised updates leave it, and nothing "
    "else of its data: no count, loss, accuracy, choice or reason of a failure.",
    "the budget": "However often, in which run and as whom a client is asked, its updates spend no more than its budget.",
    "the secret": "A boundary's secret is in no error and no representation, and a real node takes none that can be guessed.",
}

WORDS = "label 7 of patient Ada"
"""What an app may say that would tell of its data."""

PRIVATE = 0.73125
"""A number that only the client knows."""


def net() -> Any:
    from coterie.randomness import seeded
    from small import mlp

    with seeded(0):
        return mlp()


# -- a client with an app of somebody's
# --------------------------------------------------------------


def chatty(rng: random.Random) -> Any:
    """An app that tells what it can, and fails as it likes."""
    from flwr.app import ArrayRecord, ConfigRecord, Error, Message, MetricRecord, RecordDict
    from flwr.clientapp import ClientApp

    app, kind, more = ClientApp(), rng.randrange(8), rng.random() < 0.5

    def answer(message: Any, context: Any) -> Any:
        import torch

        if kind == 0:
            raise ValueError(WORDS)
        if kind == 1:
            return Message(Error(code=2, reason=WORDS), reply_to=message)
        net_ = net()
        rows = {name: torch.full_like(value, PRIVATE) for name, value in net_.state_dict().items()}
        records: dict[str, Any] = {"update" if kind < 5 else "arrays": ArrayRecord(rows)}
        if kind == 2:
            records |= {f"update-{i}": ArrayRecord(rows) for i in range(1, 9)}
        if kind == 3:
            records = {}
        if more:
            records[WORDS] = ConfigRecord({"labels": WORDS})
            records["more"] = MetricRecord({"mean": PRIVATE})
        told = {
            "losses": [PRIVATE],
            "accuracies": [PRIVATE],
            "chosen": [0],
            "kept": 3,
            "accuracy": PRIVATE,
            "personal": 0,
        }
        told |= {
            "held-out": 4,
            "held-out-sums": [PRIVATE],
            "held-out-products": [PRIVATE],
            "losses-1": [PRIVATE],
        }
        records["metrics"] = MetricRecord({"num-examples": 4711, **told})
        return Message(RecordDict(records), reply_to=message)

    app.train()(answer)
    app.evaluate()(answer)
    return app


def a_task(rng: random.Random) -> Any:
    """Any task that a server may ask for."""
    from coterie.core import Holdout, Personal, Stage, Task

    task: dict[str, Any] = {"offered": (0,)}
    if rng.random() < 0.2:
        task["measure"] = rng.choice(("train", "validation"))
    if rng.random() < 0.1:
        task["holdout"] = Holdout(share=rng.choice((0.0, 0.2)), report_losses=True)
    if rng.random() < 0.3:
        task["epochs"] = rng.choice((0, 1, 3))
    if rng.random() < 0.2:
        task["stages"] = (Stage(layers=("2",), epochs=rng.choice((None, 2))),)
    if rng.random() < 0.3:
        task["gradient"] = True
    elif rng.random() < 0.3 and task.get("epochs") != 0:
        task["halves"] = True
    if rng.random() < 0.2:
        task["local_layers"] = rng.choice((("0",), ("2",), ("0", "2")))
    elif rng.random() < 0.4 and "gradient" not in task:
        task["personal"] = rng.choice(
            (Personal(), Personal(start="own", mixture=0.5), Personal(start="offered", pull=1.0))
        )
    if "gradient" in task or ("personal" in task and task["personal"].mixture is not None):
        task.pop("stages", None)  # no task has both
    return Task(**task)


def orders_of(rng: random.Random, kind: str) -> Any:
    """What a server may ask: any tasks, as anybody, in any run, seed and exchange."""
    from flwr.app import ArrayRecord, Message, RecordDict

    from coterie.core import Training
    from coterie.engines.flower.messages import Order, config_of, name_of

    key, client = (
        (rng.getrandbits(40), rng.randrange(10**6), rng.randrange(10**6)),
        rng.randrange(1000),
    )
    run, count = f"{rng.getrandbits(100):x}", rng.choice((1, 1, 2, 3))
    orders = [
        Order(
            task=a_task(rng), training=Training(), lr=0.1, key=key, client=client, run=run, part=str(i),
            number=rng.choice((0, i)),
        )
        for i in range(count)
    ]  # fmt: skip
    models = {name_of(i): ArrayRecord(net().state_dict()) for i in range(count)}
    content = RecordDict({**models, "config": config_of(*orders)})
    return Message(content, dst_node_id=rng.randrange(1, 2**60), message_type=kind), orders


def a_context(rng: random.Random, config: dict[str, Any]) -> Any:
    """A node as Flower starts it: its state is new in every run."""
    from flwr.app import Context, RecordDict

    return Context(
        run_id=rng.randrange(10**9),
        node_id=rng.randrange(10**9),
        node_config=dict(config),
        state=RecordDict(),
        run_config={},
    )


def through(mod: Any, app: Any, message: Any, context: Any) -> Any:
    """The reply as it leaves the node; for an exception the reason that Flower tells the server."""
    try:
        return mod(message, context, app)
    except Exception as error:
        return f"{type(error).__name__}:<'{error}'>"


def row_of(record: Any) -> Any:
    import torch

    return torch.cat(
        [torch.from_numpy(array.numpy().copy()).reshape(-1) for array in record.values()]
    )


def tells(reply: Any, boundary: Any, most: int) -> str | None:
    """What of the client's data a reply tells besides ``most`` noised updates; None for nothing."""
    if isinstance(reply, str) or reply.has_error():
        reason = reply if isinstance(reply, str) else str(reply.error.reason)
        return f"the failure says {reason!r}" if WORDS in reason else None
    updates = {name: record for name, record in reply.content.array_records.items() if len(record)}
    if len(updates) > most:
        return f"{len(updates)} updates left, and {most} were asked for"
    for name, record in updates.items():
        row = row_of(record)
        spread = float((row - row.mean()).std()) if len(row) > 1 else 1.0
        if (
            name.partition("-")[0] != "update"
            or not 0.4 < spread / (boundary.noise * boundary.clip) < 2
        ):
            return f"{name} left with spread {spread:.3g}, and the noise has {boundary.noise * boundary.clip:g}"
    if set(reply.content.config_records) - {"coterie.boundary"} or set(
        reply.content.metric_records
    ) - {"metrics"}:
        return f"records left: {sorted(reply.content)}"
    found = dict(reply.content.metric_records.get("metrics", {}))
    return f"it told {found}" if found not in ({}, {"num-examples": 1}) else None


def leaving(rng: random.Random) -> Iterator[Attempt]:
    while True:
        seed, kind = (
            rng.getrandbits(64),
            rng.choice(("train", "train", "evaluate", "evaluate.final")),
        )

        def run(seed: int = seed, kind: str = kind) -> str | None:
            from coterie.boundary import Boundary
            from coterie.engines.flower import boundary_mod
            from flowered import a_run

            own, boundary = random.Random(seed), Boundary(clip=0.5, noise=2.0)
            with a_run(), quiet():
                message, orders = orders_of(own, kind)
                mod = boundary_mod(boundary, net)
                reply = through(mod, chatty(own), message, a_context(own, {"partition-id": 0}))
            tasks = [order.task for order in orders]
            none = kind.startswith("evaluate") or any(
                task.measure or task.holdout.report_losses for task in tasks
            )
            return tells(
                reply,
                boundary,
                0 if none else sum(task.trains * (2 if task.halves else 1) for task in tasks),
            )

        yield Attempt("what leaves under noise", f"{kind}, seed {seed}", run)


# -- a server that asks too often --------------------------------------------------------------


def spending(rng: random.Random, folder: Path) -> Iterator[Attempt]:
    number = 0
    while True:
        seed, number = rng.getrandbits(64), number + 1

        def run(seed: int = seed, number: int = number) -> str | None:
            from coterie.boundary import Boundary, spent
            from flowered import a_run

            own = random.Random(seed)
            noise, most = own.choice((5.0, 10.0, 30.0)), own.randint(1, 6)
            boundary, budget = Boundary(clip=0.5, noise=noise), spent(noise, most)
            config: dict[str, Any] = {"keep-dir": str(folder / f"kept{number}")}
            config |= own.choice(({}, {"client-id": 3}, {"partition-id": 0}))
            left = 0
            with a_run(), quiet():
                mod = mod_of(boundary, budget)
                for _ in range(3 * most + 2):
                    message, _ = orders_of(own, "train")
                    if own.random() < 0.3:  # the node is started again
                        mod = mod_of(boundary, budget)
                    reply = through(mod, chatty(own), message, a_context(own, config))
                    if not isinstance(reply, str) and reply.has_content():
                        left += sum(
                            bool(len(record)) for record in reply.content.array_records.values()
                        )
            return f"{left} updates left, of {most} that the budget allows" if left > most else None

        yield Attempt("the budget", f"seed {seed}", run)


def mod_of(boundary: Any, budget: float) -> Any:
    """The mod with a budget; without one where this version of Coterie has none."""
    from coterie.engines.flower import boundary_mod

    try:
        return boundary_mod(boundary, net, budget=budget)
    except TypeError:
        return boundary_mod(boundary, net)


# -- a secret in the wrong place --------------------------------------------------------------


def hiding(rng: random.Random) -> Iterator[Attempt]:
    while True:
        secret = rng.randrange(10**7, 10 ** rng.randint(8, 40))
        kind = rng.choice(
            ("rotation none", "repr", "negative", "text", "fraction", "server", "wire")
        )

        def run(secret: int = secret, kind: str = kind) -> str | None:
            return (
                f"it says {told[:200]!r}" if str(secret) in (told := said(kind, secret)) else None
            )

        yield Attempt("the secret", f"{kind}, {secret}", run)
        short = rng.randrange(2 ** rng.randint(4, 16))

        def guess(short: int = short) -> str | None:
            return "the server has found it by its digest" if guessed(short) == short else None

        yield Attempt("the secret", f"guessed, {short}", guess)


def said(kind: str, secret: int) -> str:
    """What Coterie says where a secret is part of a mistake, or of something that is shown."""
    from coterie.boundary import Boundary, Wire
    from coterie.engines.flower import MethodStrategy
    from coterie.methods import FedAvg
    from coterie.models.layout import Layout

    values: dict[str, Any] = {
        "rotation none": {"secret": secret},
        "negative": {"rotation": "permute", "secret": -secret},
        "text": {"rotation": "permute", "secret": str(secret)},
        "fraction": {"rotation": "permute", "secret": f"{secret}.5"},
    }
    try:
        boundary = Boundary(**values.get(kind, {"rotation": "permute", "secret": secret}))
        if kind == "server":
            MethodStrategy(FedAvg(), net, boundary=boundary)
        return (
            repr(Wire(boundary, Layout(net()), 0)) if kind == "wire" else f"{boundary!r} {boundary}"
        )
    except ValueError as error:
        return str(error)


def guessed(secret: int) -> int | None:
    """The secret that a server finds by trying out short ones against the digest that it is sent; None where there is none."""
    import hashlib

    from coterie.boundary import Boundary
    from coterie.engines.flower import boundary_mod
    from flowered import a_run

    boundary = Boundary(rotation="permute", secret=secret)
    with a_run():
        message, _ = orders_of(random.Random(secret), "evaluate")
        message.content["config"]["first"] = 0
        message.content["config"]["seed"] = 0
        try:
            reply = boundary_mod(boundary, net)(message, None, None)  # type: ignore[arg-type]
        except ValueError:
            return None
    digest = reply.content["coterie.boundary"]["secret"]
    tries = (hashlib.sha256(f"coterie boundary {i}".encode()).hexdigest() for i in range(1 << 16))
    return next((i for i, found in enumerate(tries) if found == digest), None)


class quiet:
    """Without the log of what clients note for themselves."""

    def __enter__(self) -> None:
        self.before = logging.root.manager.disable
        logging.disable(logging.CRITICAL)

    def __exit__(self, *_: object) -> None:
        logging.disable(self.before)


def attempts(rng: random.Random, folder: Path) -> Iterator[Attempt]:
    leave, spend, hide = leaving(rng), spending(rng, folder), hiding(rng)
    while True:
        yield from (next(leave), next(leave), next(spend), next(hide), next(hide))
