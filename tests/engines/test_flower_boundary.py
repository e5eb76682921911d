"""A boundary over Flower: what leaves a client is what the boundary lets out, and the server needs no secret."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

pytest.importorskip("flwr", reason="Flower is not installed")

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from torch import Tensor

from coterie.boundary import Boundary, Wire
from coterie.boundary.compress import packed_bytes
from coterie.core import Task, Training
from coterie.data.world import World
from coterie.engines import rounds
from coterie.engines.flower import MethodStrategy, boundary_check, boundary_mod
from coterie.engines.flower.messages import METRICS_RECORD, Order, config_of, unpacked
from coterie.engines.workers import EngineError
from coterie.methods import CFL, IFCA, FedAvg, FedPer
from coterie.models.layout import Layout
from coterie.randomness import seeded
from coterie.settings import SettingError
from flowered import FIRST, Here, app_of, foreign, over_flower, strategy_of
from small import mlp, world

pytestmark = pytest.mark.usefixtures("flower_run")

IDS = (0, 1, 2, 3, 4, 5)
SECRET = 2**127 + 12345


def agree(found: list[rounds.Round], expected: list[rounds.Round]) -> None:
    for one, other in zip(found, expected, strict=True):
        assert one.assignment.groups == other.assignment.groups
        torch.testing.assert_close(
            one.assignment.models, other.assignment.models, rtol=1e-4, atol=1e-6
        )
        assert (one.bytes_up, one.bytes_down) == (other.bytes_up, other.bytes_down)


@pytest.mark.parametrize(
    ("method", "boundary"),
    [
        (CFL(), Boundary(rotation="permute", secret=SECRET)),
        (CFL(), Boundary(rotation="blocks", secret=5, clip=0.3, noise=0.01)),
        (IFCA(models=3), Boundary(rotation="permute", secret=SECRET)),
        (FedPer(), Boundary(rotation="permute-tensors", secret=SECRET, compress="8bit")),
        (FedPer(), Boundary(compress="topk", share=0.3)),
        (CFL(), Boundary(clip=0.3, compress="sign")),
        (FedAvg(), Boundary(clip=0.3, noise=0.5)),
    ],
    ids=str,
)
def test_over_flower_a_boundary_does_what_it_does_in_one_process(
    method: Any, boundary: Boundary
) -> None:
    tried = world(IDS)
    mods = [boundary_mod(boundary, tried.model, simulated=0)]
    found = over_flower(method, tried, 3, mods=mods, boundary=replace(boundary, secret=None))
    agree(found, list(rounds.rounds(method, tried, rounds=3, workers=1, boundary=boundary)))


def first_row(tried: World, secret: int) -> Tensor:
    return Wire(Boundary(rotation="permute", secret=secret), Layout(tried.model()), 0).first_model(
        0, tried.model
    )


def test_a_mod_can_be_pickled_as_flowers_simulation_does() -> None:
    cloudpickle = pytest.importorskip("cloudpickle")
    assert callable(cloudpickle.loads(cloudpickle.dumps(boundary_mod(Boundary(clip=1.0), mlp))))


@seeded(0)
def test_the_server_sees_no_row_that_is_not_sealed() -> None:
    tried, boundary = world(IDS), Boundary(rotation="permute", secret=SECRET)
    grid = Here(app_of(tried, [boundary_mod(boundary, tried.model)]), 6)
    layout, rows = Layout(tried.model()), []
    grid.fate = lambda message: rows.extend(
        unpacked(record, layout) for record in message.content.array_records.values()
    )
    list(strategy_of(FedAvg(), tried, boundary=Boundary(rotation="permute")).rounds(grid, 2))
    plain = first_row(tried, SECRET)
    sealed = Wire(boundary, layout, 0).seal(plain)
    for _, reply in grid.messages:
        rows += [
            unpacked(record, layout)
            for record in (reply.content.array_records.values() if reply else ())
        ]
    # The model of the query for a client id, which is the server's own; the first model, by five
    # clients; models and updates of two rounds, and models to test.
    assert len(rows) == 6 + 5 + 2 * 3 * 6
    assert any(torch.equal(row, sealed) for row in rows)
    # Not one value stands where it stands in a plain model, but by chance.
    assert all(
        (row[: layout.trainable] == plain[: layout.trainable]).float().mean() < 0.2 for row in rows
    )
    assert str(SECRET) not in repr([message.content for message, _ in grid.messages])


def test_a_rotation_without_a_secret_is_for_simulations() -> None:
    with pytest.raises(
        SettingError,
        match=r"rotation permute needs Boundary.secret >= 2\^64 at a real node, got none",
    ):
        boundary_mod(Boundary(rotation="permute"), mlp)
    with pytest.raises(
        SettingError, match=r"at a real node, got a smaller one: the server has its digest"
    ) as told:
        boundary_mod(Boundary(rotation="permute", secret=2**63 + 12345), mlp)
    assert str(2**63 + 12345) not in str(told.value)
    with pytest.raises(
        SettingError, match=r"Boundary.secret must be none in the server's strategy"
    ):
        MethodStrategy(CFL(), mlp, boundary=Boundary(rotation="permute", secret=3))


@seeded(0)
def test_under_a_rotation_no_first_model_is_given() -> None:
    tried, boundary = world(IDS), Boundary(rotation="permute", secret=SECRET)
    strategy = strategy_of(FedAvg(), tried, boundary=Boundary(rotation="permute"))
    with pytest.raises(
        SettingError,
        match=r"Boundary.rotation permute hides the first model too.*load it in the function",
    ):
        strategy.start(
            Here(app_of(tried, [boundary_mod(boundary, tried.model)]), 6),
            ArrayRecord(tried.model().state_dict()),
            num_rounds=1,
        )


def test_noise_at_a_real_node_cannot_be_drawn_again() -> None:
    """Neither by the run's seed, which the server knows, nor by asking for the same exchange twice."""
    tried, boundary = world(IDS), Boundary(clip=0.1, noise=1.0)
    mods = [boundary_mod(boundary, tried.model)]
    one, other = (
        over_flower(FedAvg(), tried, 1, mods=mods, boundary=boundary)[0] for _ in range(2)
    )
    repeated = next(rounds.rounds(FedAvg(), tried, rounds=1, workers=1, boundary=boundary))
    models = [done.assignment.models[0] for done in (one, other, repeated)]
    expected = (
        0.1 / 6**0.5 * 2**0.5
    )  # the standard deviation of the difference of two means of six clients' noise
    for a, b in ((0, 1), (0, 2)):
        # Nobody can seed this noise: a tolerance of six times what the standard deviation of so few
        # numbers varies by.
        assert (models[a] - models[b]).std() == pytest.approx(
            expected, rel=6 / (2 * len(models[a])) ** 0.5
        )


@seeded(0)
def test_with_noise_nothing_is_told_of_the_training() -> None:
    tried, boundary = world(IDS), Boundary(clip=0.1, noise=1.0)
    grid = Here(foreign(tried, [boundary_mod(boundary, tried.model)]), 6, named=False)
    list(strategy_of(FedAvg(), tried, boundary=boundary).rounds(grid, 1))
    replies = [
        reply.content
        for message, reply in grid.messages
        if reply and message.metadata.message_type == "train"
    ]
    assert len(replies) == 6
    assert all(
        dict(content[METRICS_RECORD]) == {"num-examples": 1} and len(content.metric_records) == 1
        for content in replies
    )


@pytest.mark.parametrize(
    "task", [{"measure": "train", "epochs": 0}, {"measure": "train"}, {"epochs": 0}], ids=str
)
@seeded(0)
def test_under_noise_a_client_measures_nothing_whoever_asks(task: dict[str, Any]) -> None:
    tried, boundary = world(IDS), Boundary(clip=0.1, noise=1.0)
    grid = Here(app_of(tried, [boundary_mod(boundary, tried.model)]), 1)
    order = Order(
        task=Task(offered=(0,), **task), training=Training(), lr=0.1, key=(0, 0, 0), client=0
    )
    content = RecordDict(
        {"arrays": ArrayRecord(tried.model().state_dict()), "config": config_of(order)}
    )
    with pytest.raises(ValueError, match="with noise, this client only trains"):
        grid.app(Message(content, dst_node_id=FIRST, message_type="train"), grid.contexts[FIRST])


@seeded(0)
def test_of_what_an_app_replies_only_the_update_and_metrics_leave() -> None:
    tried, boundary = world(IDS), Boundary(rotation="permute", secret=SECRET)
    usual = foreign(tried)

    def chatty(message: Message, context: Any, call_next: Any) -> Message:
        reply = call_next(message, context)
        reply.content["arrays-as-they-are"] = ArrayRecord(tried.model().state_dict())
        reply.content["notes"] = ConfigRecord({"labels": "0 1 1 0"})
        return reply  # type: ignore[no-any-return]

    app = foreign(tried, [boundary_mod(boundary, tried.model), chatty])
    for kind in ("train", "evaluate"):
        order = Order(task=Task(offered=(0,)), training=Training(), lr=0.1, key=(0, 0, 0), client=0)
        content = RecordDict(
            {"arrays": ArrayRecord(tried.model().state_dict()), "config": config_of(order)}
        )
        context = Here(usual, 1, named=False).contexts[FIRST]
        reply = app(Message(content, dst_node_id=FIRST, message_type=kind), context).content
        assert set(reply) == {METRICS_RECORD, boundary_check.BOUNDARY} | (
            {"update"} if kind == "train" else set()
        )


@seeded(0)
def test_under_noise_an_app_that_fails_does_not_say_why() -> None:
    tried, boundary = world(IDS), Boundary(clip=0.1, noise=1.0)
    data = tried.clients[2]
    wide = replace(data, train=replace(data.train, inputs=torch.randn(len(data.train.inputs), 99)))
    broken = replace(tried, clients={**tried.clients, 2: wide})
    grid = Here(app_of(broken, [boundary_mod(boundary, tried.model)]), 6)
    for context in grid.contexts.values():
        context.node_config["schema"] = "none"  # else it would be refused before it trains
    done = next(strategy_of(FedAvg(), tried, boundary=boundary).rounds(grid, 1))
    assert done.refused == {
        2: "its app failed: the app failed; with noise or masks, it does not send the reason, which may reveal its data"
    }


@pytest.mark.parametrize("compress", ["topk", "sign", "8bit"])
@seeded(0)
def test_compressed_updates_are_compressed_on_the_wire(compress: str) -> None:
    tried, boundary = world(IDS), Boundary(compress=compress)
    grid = Here(foreign(tried, [boundary_mod(boundary, tried.model)]), 6, named=False)
    done = next(strategy_of(FedAvg(), tried, boundary=boundary).rounds(grid, 1))
    replies = [
        reply.content
        for message, reply in grid.messages
        if reply and message.metadata.message_type == "train"
    ]
    layout = Layout(tried.model())
    for content in replies:
        values = [
            array.numpy().nbytes
            for record in content.array_records.values()
            for array in record.values()
        ]
        assert sum(values) == packed_bytes(compress, layout.trainable, 0.1) < 4 * layout.trainable
    assert done.bytes_up == sum(values) * 6 + 6 * 4


def spoil(change: Callable[[dict[str, Any]], dict[str, Any]]) -> Callable[[Message], Any]:
    boundary = Boundary(compress="topk")

    def fate(message: Message) -> Any:
        if message.metadata.dst_node_id != FIRST or message.metadata.message_type != "train":
            return None
        layout = Layout(mlp())
        packed = change(Wire(boundary, layout, 0).pack(torch.ones(layout.size), 0, 0, 0))
        told = {
            METRICS_RECORD: MetricRecord({"num-examples": 3}),
            boundary_check.BOUNDARY: boundary_check.stated(boundary),
        }
        return RecordDict({"update": ArrayRecord(packed), **told})

    return fate


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda s: {**s, "indices": s["indices"] + 10**6}, "indices must be from 0 to"),
        (lambda s: {**s, "indices": s["indices"] - 10**6}, "indices must be from 0 to"),
        (lambda s: {**s, "values": s["values"][:3]}, "its values are"),
        (lambda s: {**s, "values": s["values"].double()}, "of torch.float64 where topk has"),
        (lambda s: {**s, "values": s["values"] * torch.nan}, "NaN, infinite"),
        (lambda s: {"others": s["others"]}, "it holds nothing where topk has indices, values"),
        (lambda s: {**s, "others": torch.zeros(7)}, "its others must be the"),
    ],
    ids=["beyond", "below", "too few", "type", "nan", "nothing", "others"],
)
@seeded(0)
def test_what_is_not_compressed_as_agreed_is_refused(change: Any, says: str) -> None:
    tried, boundary = replace(world(IDS), model=mlp), Boundary(compress="topk")
    grid = Here(app_of(tried, [boundary_mod(boundary, mlp)]), 6)
    grid.fate = spoil(change)
    done = next(strategy_of(FedAvg(), tried, boundary=boundary).rounds(grid, 1))
    assert set(done.refused) == {0}
    assert says in done.refused[0]


# -- who has another boundary
# -----------------------------------------------------------------------------------------------


def with_one_of(other: Boundary | None, boundary: Boundary, tried: World) -> Here:
    """Six nodes, the last of which has another boundary."""
    grid = Here(app_of(tried, [boundary_mod(boundary, tried.model)]), 6)
    strange = app_of(tried, [] if other is None else [boundary_mod(other, tried.model)])
    usual = grid.app
    grid.app = lambda message, context: (strange if context.node_id == FIRST + 7 * 5 else usual)(
        message, context
    )  # type: ignore[assignment]
    return grid


@pytest.mark.parametrize(
    ("other", "says"),
    [
        (
            Boundary(rotation="permute", secret=SECRET + 1),
            "its boundary's secret differs from the other clients'",
        ),
        (
            Boundary(rotation="blocks", secret=SECRET),
            "its boundary is rotation blocks, and the server's is rotation permute",
        ),
        (
            None,
            "it has no boundary, but the server's strategy has one; its app needs the mod boundary_mod",
        ),
    ],
    ids=["secret", "settings", "none"],
)
def test_replies_under_another_boundary_are_refused(other: Boundary | None, says: str) -> None:
    tried, boundary = world(IDS), Boundary(rotation="permute", secret=SECRET)
    strategy = strategy_of(FedAvg(), tried, boundary=Boundary(rotation="permute"))
    done = next(strategy.rounds(with_one_of(other, boundary, tried), 1))
    assert done.refused == {5: says}
    position = done.position  # a server that goes on has drawn no first model
    done = next(strategy.rounds(with_one_of(other, boundary, tried), 2, start=position))
    assert done.refused == {5: says}


def test_a_boundary_that_the_server_does_not_know_of_is_not_overlooked() -> None:
    tried = world(IDS)
    done = next(
        strategy_of(FedAvg(), tried).rounds(with_one_of(Boundary(clip=1.0), Boundary(), tried), 1)
    )
    assert done.refused == {5: "its boundary is clip 1.0, and the server's is none"}


@seeded(0)
def test_where_no_client_has_the_mod_no_first_model_can_be_had() -> None:
    tried = world(IDS)
    grid = Here(foreign(tried), 6, named=False)
    with pytest.raises(
        EngineError,
        match="no client drew the first model under rotation permute: their apps need the mod",
    ):
        next(strategy_of(FedAvg(), tried, boundary=Boundary(rotation="permute")).rounds(grid, 1))


def test_a_secret_is_told_apart_and_not_told() -> None:
    told = boundary_check.stated(Boundary(rotation="permute", secret=SECRET))
    assert json.loads(str(told["settings"]))["secret"] is None
    assert str(SECRET) not in repr(told)
    assert told != boundary_check.stated(Boundary(rotation="permute", secret=SECRET + 1))
