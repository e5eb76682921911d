"""Plans with parts, personal models, stages and held-out losses over Flower: the same as in one process."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch

pytest.importorskip("flwr", reason="Flower is not installed")

from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from test_flower_functions import own as own_functions
from torch import Tensor

from coterie.boundary import Boundary
from coterie.core import (
    FEATURES,
    Assignment,
    Cohort,
    Federation,
    HeldOutLosses,
    Holdout,
    Needs,
    Note,
    Personal,
    Plan,
    Position,
    Replies,
    Round,
    Stage,
    Task,
    Training,
)
from coterie.data.world import World
from coterie.engines import rounds as inprocess
from coterie.engines.flower import MethodStrategy, boundary_mod, messages
from coterie.engines.flower.client import ClientMemory
from coterie.engines.flower.messages import QUERY, Order, Unfit, order_from_json, order_to_json
from coterie.engines.flower.run_directory import read_memory
from coterie.models.layout import Layout
from coterie.randomness import seeded
from coterie.records import checksum
from coterie.records.record import NODES_FILE
from coterie.robust import AS_PUBLISHED
from coterie.settings import SettingError
from flowered import FIRST, Here, app_of, foreign, strategy_of
from scripted import Script
from small import client as a_client
from small import mlp, normed, world

pytestmark = pytest.mark.usefixtures("flower_run")

IDS = (0, 1, 2, 3)
Say = Callable[[int, Tensor], Plan]


@dataclass(frozen=True)
class Told:
    """Each exchange is the plan that ``say`` makes of two fixed models, and a round. Clients are served as ``serve`` says."""

    name: ClassVar[str] = "told"
    needs: ClassVar[Needs] = Needs(occasional=FEATURES, unchanged_by="rotation")

    say: Say
    serve: Mapping[str, Any] = field(default_factory=dict)
    seen: list[Replies] = field(default_factory=list)

    def init(self, federation: Federation) -> Script:
        return Script(
            clients=federation.clients, models=torch.stack([federation.draw(i) for i in range(2)])
        )

    def plan(self, state: Script, cohort: Cohort) -> Plan:
        return self.say(state.exchange, state.models)

    def step(self, state: Script, replies: Replies) -> Script:
        self.seen.append(owned(replies))
        return replace(state, exchange=state.exchange + 1)

    def assignment(self, state: Script) -> Assignment:
        return Assignment(
            models=state.models,
            row=dict.fromkeys(state.clients, 0),
            groups=(state.clients,),
            **self.serve,
        )

    def explain(self, state: Script) -> tuple[Note, ...]:
        return ()


def owned(replies: Replies) -> Replies:
    """With copies of the updates, whose memory the engine uses again."""
    updates = None if replies.updates is None else replies.updates.clone()
    return replace(
        replies, updates=updates, parts={name: owned(part) for name, part in replies.parts.items()}
    )


def all_do(task: Task, models: Tensor, clients: Sequence[int] = IDS, **plan: Any) -> Plan:
    return Plan(models=models, tasks=dict.fromkeys(clients, task), **plan)


def always(task: Task, **plan: Any) -> Say:
    return lambda exchange, models: all_do(task, models, **plan)


def of_parts(**parts: Plan) -> Plan:
    return Plan(models=torch.empty(0, 0), tasks={}, parts=parts)


def some_without(ids: Sequence[int] = IDS) -> World:
    """Clients 1 and 3 have no validation examples."""
    clients = {c: a_client(c, train=20 + c, validation=0 if c % 2 else 6) for c in ids}
    return world(ids, clients=clients)


def tight(found: Any, expected: Any) -> None:
    torch.testing.assert_close(
        torch.as_tensor(found), torch.as_tensor(expected), rtol=1e-5, atol=1e-6, equal_nan=True
    )


def _part(replies: Replies, name: str) -> Any:
    value: Any = replies
    for attribute in name.split("."):
        value = None if value is None else getattr(value, attribute)
    return value


def agree(found: Replies, expected: Replies) -> None:
    assert (found.clients, found.chosen) == (expected.clients, expected.chosen)
    assert dict(found.refused) == dict(expected.refused)
    for name in (
        "examples",
        "losses",
        "accuracies",
        "means",
        "mean_counts",
        "gram",
        "updates",
        "halves.gram",
        "halves.second",
    ):
        one, other = (_part(replies, name) for replies in (found, expected))
        assert (one is None) == (other is None)
        if other is not None:
            tight(one, other)
    assert list(found.held_out_losses) == list(expected.held_out_losses)
    for client, other in expected.held_out_losses.items():
        one = found.held_out_losses[client]
        assert (one.models, one.count) == (other.models, other.count)
        tight(one.sums, other.sums)
        tight(one.products, other.products)
    assert list(found.parts) == list(expected.parts)
    for name, part in expected.parts.items():
        agree(found.parts[name], part)


def both(
    say: Say,
    tried: World,
    rounds: int = 3,
    serve: Mapping[str, Any] | None = None,
    boundary: Boundary | None = None,
) -> tuple[Here, MethodStrategy, list[Round], list[Round]]:
    """The same method over Flower and in one process, which agree in all that is shown to it, in tests and in bytes."""
    over, here = Told(say, serve or {}), Told(say, serve or {})
    bound = boundary or Boundary()
    mods = [boundary_mod(bound, tried.model, simulated=0)] if boundary else []
    grid = Here(app_of(tried, mods), len(tried.clients))
    strategy = strategy_of(over, tried, boundary=bound)
    found = list(strategy.rounds(grid, rounds))
    expected = list(
        inprocess.rounds(here, tried, rounds=rounds, workers=1, robust=AS_PUBLISHED, boundary=bound)
    )
    assert len(over.seen) == rounds
    for one, other in zip(over.seen, here.seen, strict=True):
        agree(one, other)
    for done, other in zip(found, expected, strict=True):
        assert (done.bytes_up, done.bytes_down) == (other.bytes_up, other.bytes_down)
        assert (done.evaluations, done.asked, done.answered) == (
            other.evaluations,
            other.asked,
            other.answered,
        )
        assert not [note.text for note in done.notes if note.kind == "node"]
        assert done.scores is not None
        assert other.scores is not None
        for client, score in other.scores.items():
            assert done.scores[client] == pytest.approx(score, rel=1e-5, abs=1e-6)
    return grid, strategy, found, expected


def stored(
    grid: Here, strategy: MethodStrategy, tried: World, client: int, part: str = "", since: int = 0
) -> Tensor | None:
    assert strategy._federated_run is not None
    with seeded(0):
        layout = Layout(tried.model())
    run = strategy._federated_run.exchanges.own_values.run
    return ClientMemory(
        grid.contexts[FIRST + 7 * client], layout, run, client, part, since
    ).own_values_before(1000)


PERSONAL = {
    "trained": Personal(start="trained", epochs=2),
    "a copy": Personal(start="trained", epochs=0),
    "offered": Personal(start="offered", pull=0.5),
    "own": Personal(start="own", pull=0.7, epochs=1),
    "mixture": Personal(start="own", mixture=0.25),
    "mixture that adapts": Personal(start="own", mixture=0.5, adapt=True),
}


@pytest.mark.parametrize(
    ("kind", "model"),
    [*((kind, mlp) for kind in PERSONAL), ("trained", normed), ("mixture", normed)],
)
@seeded(0)
def test_personal_models_are_those_of_one_process(kind: str, model: Any) -> None:
    tried = world(IDS, model=model, training=Training(lr=0.2, batch=7, epochs=2))
    says = always(Task(offered=(1,), personal=PERSONAL[kind]))
    grid, strategy, _, expected = both(says, tried, rounds=2)
    kept = expected[-1].position.kept[""]
    for client in IDS:
        tight(stored(grid, strategy, tried, client), kept[client])
    assert (
        len(kept[0]) == Layout(mlp()).size + (PERSONAL[kind].mixture is not None) or model is normed
    )


@seeded(0)
def test_a_personal_model_costs_no_bytes_and_none_is_sent() -> None:
    tried = world(IDS)
    grid, _, found, _ = both(always(Task(offered=(0,), personal=Personal())), tried, rounds=1)
    assert found[0].bytes_up == len(IDS) * (Layout(mlp()).size + 1) * 4
    replies = [
        reply.content
        for message, reply in grid.messages
        if reply and message.metadata.message_type == "train"
    ]
    assert {name for content in replies for name in content} == {"update", "metrics"}


TASKS = {
    "stages": Task(offered=(0,), stages=(Stage(layers=("2",), epochs=2), Stage(layers=("0",)))),
    "one stage": Task(offered=(0,), stages=(Stage(layers=("0",)),)),
    "stages and layers that stay": Task(
        offered=(1,), local_layers=("2",), stages=(Stage(layers=("2",)), Stage(layers=("0",)))
    ),
    "stages and a personal model": Task(
        offered=(1,), stages=(Stage(layers=("2",)),), personal=Personal(epochs=1)
    ),
    "held out": Task(offered=(1,), holdout=Holdout(report_losses=True)),
    "held out of training": Task(offered=(1,), holdout=Holdout(share=0.2, report_losses=True)),
    "held out and not measured": Task(offered=(1,), holdout=Holdout(share=0.3)),
    "held out of a choice": Task(
        offered=(0, 1), choose=1, holdout=Holdout(share=0.2, report_losses=True)
    ),
    "held out and personal": Task(
        offered=(0,), holdout=Holdout(share=0.2, report_losses=True), personal=PERSONAL["own"]
    ),
    "held out and mixed": Task(
        offered=(0,), holdout=Holdout(share=0.2, report_losses=True), personal=PERSONAL["mixture"]
    ),
    "only measured": Task(offered=(0,), epochs=0, holdout=Holdout(share=0.2, report_losses=True)),
    "halves": Task(
        offered=(0,),
        halves=True,
        holdout=Holdout(share=0.2, report_losses=True),
        personal=Personal(start="trained", epochs=1),
    ),
    "halves and a pull": Task(offered=(0,), halves=True, personal=PERSONAL["offered"]),
    "halves and a mixture": Task(
        offered=(0,), halves=True, holdout=Holdout(report_losses=True), personal=PERSONAL["mixture"]
    ),
    "only personal": Task(offered=(0,), epochs=0, personal=Personal(start="own", epochs=1)),
}


@pytest.mark.parametrize("name", TASKS)
def test_tasks_do_what_they_do_in_one_process(name: str) -> None:
    both(always(TASKS[name]), some_without(), rounds=2)


def test_held_out_losses_are_no_single_losses() -> None:
    """Of six examples and two models: their number, two sums and three products."""
    tried = world(IDS)
    task = Task(offered=(0,), holdout=Holdout(report_losses=True), personal=Personal())
    grid, _, _, _ = both(always(task), tried, rounds=1)
    for message, reply in grid.messages:
        if message.metadata.message_type == "train":
            assert reply is not None
            metrics = reply.content["metrics"]
            sizes = {
                name: len(value) if isinstance(value, list) else 1
                for name, value in metrics.items()
            }
            numbers = dict.fromkeys(("num-examples", "chosen", "kept", "personal"), 1)
            assert sizes == {**numbers, "held-out": 1, "held-out-sums": 2, "held-out-products": 3}


def race(exchange: int, models: Tensor) -> Plan:
    """Two methods, one of which has two parts, and clients that take part in some of them only."""
    task = Task(offered=(0,), holdout=Holdout(share=0.2, report_losses=True))
    inner = of_parts(
        shared=all_do(replace(task, personal=PERSONAL["own"]), models, need="mean"),
        mixed=all_do(
            replace(task, offered=(1,), personal=PERSONAL["mixture"]), models, IDS[1:], need="gram"
        ),
    )
    return of_parts(
        outer=inner,
        halves=all_do(replace(task, halves=True), models.flip(0), IDS[:3], second_halves=True),
    )


@pytest.mark.parametrize("part", ["", "outer/shared", "outer/mixed", "halves"])
def test_parts_of_a_plan_are_carried_out_in_one_message(part: str) -> None:
    tried = some_without()
    grid, strategy, _, expected = both(race, tried, serve={"part": part, "plain": (2,)})
    sent = [message for message, _ in grid.messages if message.metadata.message_type == "train"]
    assert len(sent) == 3 * len(IDS)
    for client in IDS:
        for name in ("outer/shared", "outer/mixed"):
            own = expected[-1].position.kept[name].get(client)
            its = stored(grid, strategy, tried, client, name)
            assert (own is None) == (its is None) == (client == 0 and name == "outer/mixed")
            if own is not None:
                tight(its, own)


def test_all_models_of_a_client_are_compared_on_the_same_examples() -> None:
    over = Told(race)
    tried = some_without()
    list(strategy_of(over, tried).rounds(Here(app_of(tried), 4), 1))
    shared, mixed, halves = ("outer/shared", 0), ("outer/mixed", 0), ("halves", 0)
    assert over.seen[0].held_out_losses[1].models == (
        shared,
        ("outer/shared", 1),
        mixed,
        ("outer/mixed", 1),
        halves,
    )
    found = over.seen[0].held_out_losses[1].difference(shared, halves)
    assert found is not None
    assert found[0] != 0
    assert over.seen[0].parts["outer"].parts["mixed"].held_out_losses[1].models == (
        ("", 0),
        ("", 1),
    )


@pytest.mark.parametrize(
    "boundary",
    [
        Boundary(rotation="permute-tensors", secret=2**127 + 5),
        Boundary(clip=0.3, compress="8bit"),
        Boundary(rotation="blocks", secret=2**127 + 5, compress="topk", share=0.3),
    ],
    ids=str,
)
def test_behind_a_boundary_it_is_the_same(boundary: Boundary) -> None:
    def say(exchange: int, models: Tensor) -> Plan:
        return of_parts(
            a=all_do(Task(offered=(0,), personal=PERSONAL["own"]), models),
            b=all_do(TASKS["held out"], models),
        )

    tried = some_without()
    over, here = Told(say, {"part": "a"}), Told(say, {"part": "a"})
    grid = Here(app_of(tried, [boundary_mod(boundary, tried.model, simulated=0)]), len(IDS))
    found = list(strategy_of(over, tried, boundary=replace(boundary, secret=None)).rounds(grid, 2))
    expected = list(
        inprocess.rounds(here, tried, rounds=2, workers=1, robust=AS_PUBLISHED, boundary=boundary)
    )
    for one, other in zip(over.seen, here.seen, strict=True):
        agree(one, other)
    assert found[-1].bytes_up == expected[-1].bytes_up


def test_updates_of_several_parts_have_noise_of_their_own() -> None:
    """A server could otherwise subtract it."""
    boundary = Boundary(clip=0.1, noise=1.0)

    def say(exchange: int, models: Tensor) -> Plan:
        return of_parts(**{name: all_do(Task(offered=(0,), epochs=1), models) for name in "ab"})

    both(say, world(IDS), rounds=1, boundary=boundary)
    for real in (False, True):
        told = Told(say)
        tried = world(IDS)
        if real:
            grid = Here(app_of(tried, [boundary_mod(boundary, tried.model)]), len(IDS))
            list(strategy_of(told, tried, boundary=boundary).rounds(grid, 1))
        else:
            list(inprocess.rounds(told, tried, rounds=1, workers=1, boundary=boundary))
        one, other = (told.seen[0].parts[name].all_updates for name in "ab")
        assert (one - other).std() == pytest.approx(0.1 * 2**0.5, rel=0.4)


def test_a_personal_model_under_noise_tells_nothing() -> None:
    boundary, tried = Boundary(clip=0.1, noise=1.0), world(IDS)
    for epochs in (None, 0):  # also a task that trains this model alone
        task = Task(offered=(0,), epochs=epochs, personal=PERSONAL["own"])
        grid, _, _, _ = both(always(task), tried, rounds=2, boundary=boundary)
        for message, reply in grid.messages:
            if message.metadata.message_type == "train":
                assert reply is not None
                assert dict(reply.content["metrics"]) == {"num-examples": 1}
                assert set(reply.content.array_records) == ({"update"} if epochs is None else set())


def test_under_noise_no_held_out_losses_leave() -> None:
    boundary, tried = Boundary(clip=0.1, noise=1.0), world(IDS)
    order = Order(task=TASKS["only measured"], training=Training(), lr=0.1, key=(0, 0, 0), client=0)
    with pytest.raises(ValueError, match="with noise, this client only trains"):
        answered(tried, [order], mods=[boundary_mod(boundary, tried.model)])


class Summed(Told):
    """The same, for which sums are enough."""

    needs: ClassVar[Needs] = replace(Told.needs, sums_only=True)


def test_masked_numbers_that_cannot_be_used_refuse_one_part_of_a_reply() -> None:
    """As in a reply without masks, the other part counts, in the sum and among those who answered."""
    boundary = Boundary(masks=True)
    task = Task(offered=(0,))

    def two_parts(exchange: int, models: Tensor) -> Plan:
        return of_parts(a=all_do(task, models, need="mean"), b=all_do(task, models, need="mean"))

    method = Summed(two_parts)
    tried = world(IDS)
    app = app_of(tried, [boundary_mod(boundary, tried.model, simulated=0)])

    def short_in_part_b(message: Message, context: Context) -> Message:
        reply = app(message, context)
        is_client_2 = reply.metadata.src_node_id == grid.get_node_ids()[2]
        if is_client_2 and reply.has_content() and "masked.b" in reply.content:
            reply.content["masked.b"] = ArrayRecord({"masked": Array(np.zeros(3, dtype=np.uint32))})
        return reply

    grid = Here(short_in_part_b, len(IDS))  # type: ignore[arg-type]
    (done,) = strategy_of(method, tried, boundary=boundary).rounds(grid, 1)
    parts = method.seen[0].parts
    others = tuple(client for client in IDS if client != 2)
    assert (parts["a"].clients, dict(parts["a"].refused)) == (IDS, {})
    assert parts["a"].mean_counts[0] == len(IDS)
    assert parts["b"].clients == others
    assert parts["b"].mean_counts[0] == len(others)
    assert list(parts["b"].refused) == [2]
    assert "are not wanted: shape" in parts["b"].refused[2]
    assert list(done.refused) == [2]


# -- values that a client keeps
# ---------------------------------------------------------------------------------------------


def answered(
    tried: World, orders: Sequence[Order], context: Context | None = None, mods: Any = ()
) -> RecordDict:
    """What client 0 replies to these tasks, all from the same model."""
    from flwr.app import ArrayRecord, Message

    with seeded(0):
        state = ArrayRecord(tried.model().state_dict())
    names = [messages.name_of(i) for i in range(sum(len(order.task.offered) for order in orders))]
    content = RecordDict(
        {
            **{name: ArrayRecord(dict(state)) for name in names},
            "config": messages.config_of(*orders),
        }
    )
    grid = Here(app_of(tried, mods), 1)
    return grid.app(
        Message(content, dst_node_id=FIRST, message_type="train"), context or grid.contexts[FIRST]
    ).content


def ending(exchange: int, models: Tensor) -> Plan:
    """Part a ends in exchange 2, and begins anew in exchange 3; part b of c ends with c."""
    personal = all_do(Task(offered=(0,), personal=PERSONAL["own"]), models)
    nested = all_do(Task(offered=(1,), local_layers=("2",)), models)
    if exchange < 2:
        return of_parts(a=personal, c=of_parts(b=nested), d=personal)
    if exchange == 2:
        return replace(of_parts(d=personal), ended_parts=("a", "c"))
    return of_parts(a=personal, d=personal)


@pytest.mark.parametrize("files", [True, False])
def test_values_of_parts_that_ended_are_forgotten(files: bool, tmp_path: Path) -> None:
    tried = world(IDS)
    over, here = Told(ending, {"part": "a"}), Told(ending, {"part": "a"})
    grid = Here(app_of(tried), len(IDS))
    for context in grid.contexts.values():
        context.node_config |= {"keep-dir": str(tmp_path)} if files else {}
    strategy = strategy_of(over, tried)
    found, there = [], []
    for done in strategy.rounds(grid, 5):
        found.append(done)
        there.append(
            [stored(grid, strategy, tried, 1, name) is not None for name in ("a", "c/b", "d")]
        )
    expected = list(inprocess.rounds(here, tried, rounds=5, workers=1, robust=AS_PUBLISHED))
    for one, other in zip(over.seen, here.seen, strict=True):
        agree(one, other)
    for done, other in zip(found, expected, strict=True):
        assert done.scores is not None
        assert other.scores is not None
        for client, score in other.scores.items():
            assert done.scores[client] == pytest.approx(score, rel=1e-5, abs=1e-6)
        assert not [note.text for note in done.notes if note.kind == "node"]
    # They are deleted once the round in which they ended is recorded: a server that goes on may
    # need them.
    assert there == [[True, True, True]] * 3 + [[True, False, True]] * 2
    for client in IDS:
        tight(stored(grid, strategy, tried, client, "a"), expected[-1].position.kept["a"][client])
        since = stored(grid, strategy, tried, client, "a", since=3)
        assert since is not None
    if files:
        assert len([*tmp_path.rglob("*.safetensors")]) == len(IDS) * (2 + 5)


def test_a_name_that_is_no_part_ends_alone() -> None:
    """Plans without parts are followed by plans with parts, whose values stay."""

    def say(exchange: int, models: Tensor) -> Plan:
        personal = all_do(Task(offered=(0,), personal=PERSONAL["own"]), models)
        return personal if not exchange else replace(of_parts(a=personal), ended_parts=("",))

    tried = world(IDS)
    grid, strategy, _, expected = both(say, tried, rounds=4, serve={"part": "a"})
    assert set(expected[-1].position.kept) == {"a"}
    assert stored(grid, strategy, tried, 0) is None
    tight(stored(grid, strategy, tried, 0, "a"), expected[-1].position.kept["a"][0])


def gone_on(
    folder: Path, grid: Here, tried: World, rounds: int, start: Position | None
) -> tuple[Round, list[Replies]]:
    """One round more of a server that has been started again, as its journal has it."""
    told = Told(ending)
    strategy = strategy_of(told, tried)
    memory = None if start is None else read_memory(folder)
    (done,) = strategy.rounds(grid, rounds, start=start, memory=memory)
    assert strategy._federated_run is not None
    kept = json.dumps(asdict(strategy._federated_run.memory)).encode()
    (folder / NODES_FILE).write_bytes(checksum.sealed_json(kept))
    return done, told.seen


@pytest.mark.slow
def test_a_server_that_goes_on_finds_them_and_tells_of_those_that_are_lost(tmp_path: Path) -> None:
    tried, whole = world(IDS), Told(ending)
    list(inprocess.rounds(whole, tried, rounds=5, workers=1, robust=AS_PUBLISHED))
    position = None
    for number in range(1, 6):  # each time all processes are new
        grid = Here(app_of(tried), len(IDS))
        for context in grid.contexts.values():
            context.node_config["keep-dir"] = str(tmp_path / "kept")
        done, seen = gone_on(tmp_path, grid, tried, number, position)
        position = done.position
        assert [note.text for note in done.notes if note.kind == "node"] == []
        agree(seen[0], whole.seen[number - 1])
    done, _ = gone_on(
        tmp_path, Here(app_of(tried), len(IDS)), tried, 6, position
    )  # nodes that have lost their files
    lost = "has lost its personal model of exchange 4, and starts anew "
    lost += "(keep-dir at the node keeps such values)"
    assert [note.text for note in done.notes if note.kind == "node"] == [
        f"client {client} {lost}" for client in IDS
    ]
    assert done.answered == len(IDS)


def test_no_values_are_stored_if_a_task_of_the_message_fails() -> None:
    """A client answers all of its tasks or none."""
    tried = world(IDS)
    context = Here(app_of(tried), 1).contexts[FIRST]
    training = Training()
    orders = [
        Order(task=task, training=training, lr=0.1, key=(0, 0, 0), client=0, part=part, number=i)
        for i, (part, task) in enumerate(
            {"a": Task(offered=(0,), personal=Personal()), "b": Task(offered=(0,))}.items()
        )
    ]
    answered(tried, orders, context)
    assert [name for name in context.state if name.startswith("coterie-kept")]
    for name in list(context.state):
        del context.state[name]
    wrong = replace(orders[1], task=Task(offered=(0,), stages=(Stage(layers=("nowhere",)),)))
    with pytest.raises(ValueError, match="the model has no layer 'nowhere'"):
        answered(tried, [orders[0], wrong], context)
    assert not context.state


def test_a_personal_model_that_is_not_finite_is_refused_in_its_part_alone() -> None:
    def say(exchange: int, models: Tensor) -> Plan:
        wild = Task(offered=(0,), personal=Personal(start="offered", pull=1e30))
        return of_parts(a=all_do(wild, models), b=all_do(Task(offered=(0,)), models))

    tried = world(IDS)
    over, here = Told(say), Told(say)
    grid = Here(app_of(tried), len(IDS))
    (done,) = strategy_of(over, tried).rounds(grid, 1)
    list(inprocess.rounds(here, tried, rounds=1, workers=1, robust=AS_PUBLISHED))
    agree(over.seen[0], here.seen[0])
    assert set(over.seen[0].parts["a"].refused) == set(IDS)
    assert "its personal model has a NaN or infinite entry" in done.refused[0]
    assert over.seen[0].parts["b"].clients == IDS
    assert not grid.contexts[FIRST].state


# -- apps that cannot do such tasks
# -------------------------------------------------------------------------------------------


def several(exchange: int, models: Tensor) -> Plan:
    return of_parts(a=all_do(Task(offered=(0,)), models), b=all_do(Task(offered=(0,)), models))


@pytest.mark.parametrize(
    ("say", "says"),
    [
        (always(TASKS["one stage"]), "to train its layers in stages"),
        (always(Task(offered=(0,), personal=Personal())), "to train a personal model"),
        (always(TASKS["held out"]), "for the losses of single held-out examples"),
        (always(TASKS["held out and not measured"]), "to hold examples out of training"),
        (several, "to do several tasks at once"),
    ],
    ids=["stages", "personal", "held out", "holdout", "parts"],
)
def test_a_plain_app_is_told_before_anybody_trains(say: Say, says: str) -> None:
    tried = world(IDS)
    grid = Here(foreign(tried), len(IDS), named=False)
    with pytest.raises(
        SettingError,
        match=f"^told asks a client {says}, which client 0's app does not support; make the app",
    ):
        next(strategy_of(Told(say), tried).rounds(grid, 1))
    assert {message.metadata.message_type for message, _ in grid.messages} == {QUERY}


@pytest.mark.parametrize(
    ("task", "says"),
    [
        (TASKS["one stage"], "to train its layers in stages"),
        (
            Task(offered=(0,), personal=PERSONAL["mixture"]),
            "to mix a personal model with the shared one",
        ),
        (
            Task(offered=(0,), personal=PERSONAL["own"]),
            "to pull a personal model to the shared one",
        ),
        (TASKS["held out"], "for the losses of single held-out examples"),
    ],
    ids=["stages", "mixture", "pull", "held out"],
)
def test_an_app_with_functions_of_its_own_is_told_before_anybody_trains(
    task: Task, says: str
) -> None:
    tried = world(IDS)
    grid = Here(own_functions(tried), len(IDS))
    lacks = f"told asks a client {says}, which client 0's app does not support, because it trains by a function of its own"
    with pytest.raises(SettingError, match=f"^{lacks}$"):
        next(strategy_of(Told(always(task)), tried).rounds(grid, 1))
    assert {message.metadata.message_type for message, _ in grid.messages} == {QUERY}


def test_such_an_app_trains_personal_models_and_several_parts() -> None:
    tried = replace(world(IDS), training=Training(batch=0, lr=0.2))
    task = Task(offered=(0,), holdout=Holdout(share=0.3), personal=Personal(start="own", epochs=2))

    def say(exchange: int, models: Tensor) -> Plan:
        return of_parts(
            a=all_do(task, models), b=all_do(Task(offered=(1,), holdout=Holdout(share=0.3)), models)
        )

    tried = replace(
        tried,
        clients={
            c: replace(data, validation=a_client(c, validation=0).validation)
            for c, data in tried.clients.items()
        },
    )
    over, here = Told(say, {"part": "a"}), Told(say, {"part": "a"})
    list(strategy_of(over, tried).rounds(Here(own_functions(tried), len(IDS)), 2))
    list(inprocess.rounds(here, tried, rounds=2, workers=1, robust=AS_PUBLISHED))
    for one, other in zip(over.seen, here.seen, strict=True):
        agree(one, other)


def test_only_the_apps_that_can_are_asked() -> None:
    tried = world(IDS)
    knowing, plain = app_of(tried), foreign(tried)
    grid = Here(knowing, len(IDS))
    grid.app = lambda m, c: (plain if c.node_id == FIRST else knowing)(m, c)  # type: ignore[assignment]
    grid.contexts[FIRST].node_config["place"] = 0
    over = Told(several)
    (done,) = strategy_of(over, tried).rounds(grid, 1)
    assert over.seen[0].clients == over.seen[0].parts["b"].clients == (1, 2, 3)
    assert "told asks a client to do several tasks at once" in done.refused[0]
    assert (done.asked, done.answered) == (4, 3)


def test_the_result_says_that_personal_models_stay() -> None:
    tried = world(IDS)
    for serve, says in (({}, True), ({"plain": IDS}, False)):
        told = Told(always(Task(offered=(0,), personal=Personal())), serve)
        result = strategy_of(told, tried).start(Here(app_of(tried), len(IDS)), num_rounds=1)
        assert ("personal models stay at the clients" in repr(result)) is says


# -- what comes from the network
# ----------------------------------------------------------------------------------------------


HONEST = HeldOutLosses.of([("", 0), ("", 1)], np.array([[1.0, 2.0, 0.5], [1.0, 4.0, 0.25]]))


def told_held(**changes: Any) -> MetricRecord:
    return MetricRecord({**messages.held_out_metrics(HONEST), **changes})


def test_held_out_losses_are_read_as_they_were_reported() -> None:
    found = messages.held_out_losses_of(told_held(), HONEST.models, 10)
    assert (found.models, found.count) == (HONEST.models, HONEST.count)
    assert np.array_equal(found.sums, HONEST.sums)
    assert np.array_equal(found.products, HONEST.products)
    nothing = HeldOutLosses.of([("", 0)], np.zeros((1, 0)))
    assert (
        messages.held_out_losses_of(
            MetricRecord(messages.held_out_metrics(nothing)), nothing.models, 10
        ).count
        == 0
    )


@pytest.mark.parametrize("losses", ["equal", "random", "worst", "zero"])
def test_losses_that_are_possible_are_taken(losses: str) -> None:
    draw = np.random.default_rng(3)
    for m in (1, 2, 17):
        for count in (1, 2, 1000):
            rows = {
                "equal": np.full((m, count), 0.1), "zero": np.zeros((m, count)), "worst": np.full((m, count), np.inf),
                "random": draw.exponential(2.0, (1, count)) + 1e-6 * draw.normal(size=(m, count)),
            }[losses]  # fmt: skip
            held = HeldOutLosses.of([("", i) for i in range(m)], rows)
            messages.held_out_losses_of(
                MetricRecord(messages.held_out_metrics(held)), held.models, 1000
            )


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"held-out": 11}, "it claims 11 held-out examples, more than 10"),
        ({"held-out": -1}, r"its number of held-out examples \(held-out\) must be a whole number .* got -1"),
        ({"held-out": 1.5}, r"its number of held-out examples \(held-out\) must be a whole number .* got 1.5"),
        ({"held-out": 0}, "not finite, or of more than"),
        ({"held-out": 1}, "no held-out losses have"),
        ({"held-out-sums": [1.0]}, "1 sums and 3 products for 2 models"),
        ({"held-out-sums": []}, "0 sums and 3 products for 2 models"),
        ({"held-out-sums": [1.0] * 5000}, "5000 sums and 3 products for 2 models"),
        ({"held-out-sums": [float("nan"), 1.0]}, "not finite, or of more than"),
        ({"held-out-sums": [float("inf"), 1.0]}, "not finite, or of more than"),
        ({"held-out-sums": [1e5, 1.0]}, "not finite, or of more than"),
        ({"held-out-sums": [4.0, 5.25]}, "no held-out losses have"),
        ({"held-out-products": [5.25, 9.125]}, "2 sums and 2 products for 2 models"),
        ({"held-out-products": [5.25, float("nan"), 17.0625]}, "not finite, or of more than"),
        ({"held-out-products": [5.25, 1e12, 17.0625]}, "not finite, or of more than"),
        ({"held-out-products": [-5.25, 9.125, 17.0625]}, "no held-out losses have"),
        ({"held-out-products": [4.0, 9.125, 17.0625]}, "no held-out losses have"),  # below sums^2 / count
        ({"held-out-products": [5.25, 20.0, 17.0625]}, "no held-out losses have"),
        ({"held-out-products": [5.25, -9.125, 17.0625]}, "no held-out losses have"),
        ({"held-out-products": [0.0, 9.125, 17.0625]}, "no held-out losses have"),
    ],
    ids=str,
)  # fmt: skip
def test_held_out_losses_that_are_not_possible_are_refused(
    changes: dict[str, Any], says: str
) -> None:
    with pytest.raises(Unfit, match=says):
        messages.held_out_losses_of(told_held(**changes), HONEST.models, 10)
    for name in changes:
        with pytest.raises(Unfit):
            messages.held_out_losses_of(
                MetricRecord({n: v for n, v in told_held().items() if n != name}), HONEST.models, 10
            )


def a_task(**changes: Any) -> dict[str, Any]:
    task = Task(
        offered=(0,),
        stages=(Stage(layers=("0",)),),
        personal=Personal(start="own", pull=0.5, layers=("0",)),
        holdout=Holdout(report_losses=True),
    )
    order = Order(
        task=task,
        training=Training(),
        lr=0.1,
        key=(1, 2, 3),
        client=4,
        part="a/b",
        number=1,
        ended={"c": 2},
    )
    assert order_from_json(json.loads(json.dumps(order_to_json(order)))) == order
    found: dict[str, Any] = json.loads(json.dumps(order_to_json(order)))
    for name, value in changes.items():
        inner, _, last = name.rpartition("__")
        at = found
        for key in inner.split("__") if inner else ():
            at = at[int(key)] if isinstance(at, list) else at[key]
        at[last] = value
    return found


NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize(
    "changes",
    [
        {"task__holdout__share": value} for value in (-0.1, 1.0, 1e9, NAN, "0.1", None, True, [0.1])
    ] + [
        {"task__personal__start": value} for value in ("theirs", None, 3, ["own"])
    ] + [
        {"task__personal__epochs": value} for value in (-1, 1.5, "1", True, 1e9)
    ] + [
        {"task__personal__pull": value} for value in (-1.0, NAN, INF, 1e39, "1", None, True)
    ] + [
        {"task__personal__mixture": value} for value in (-0.1, 1.1, NAN, "0.5", True)
    ] + [
        {"task__personal__adapt": value} for value in (1, None, "yes")
    ] + [
        {"task__personal__layers": [3]}, {"task__personal__layers": None},
        {"task__personal__more": 1}, {"task__personal": "own"}, {"task__personal": [1]}, {"task__more": 1},
        {"task__holdout__report_losses": 1}, {"task__holdout__report_losses": "yes"},
        {"task__stages": 3}, {"task__stages": [3]}, {"task__stages": [{}]},
        {"task__stages__0__epochs": -1}, {"task__stages__0__epochs": 0.5}, {"task__stages__0__epochs": True},
        {"task__stages__0__layers": [3]}, {"task__stages__0__layers": None},
        {"number": -1}, {"number": 2**63}, {"since": -1}, {"since": "x"}, {"part": "x" * 1001}, {"ended": {"a": -1}},
        {"ended": {"a" * 1001: 3}}, {"ended": [1]}, {"ended": None}, {"number": None},
    ],
    ids=str,
)  # fmt: skip
def test_an_order_with_another_value_is_no_order(changes: dict[str, Any]) -> None:
    with pytest.raises((ValueError, TypeError, KeyError, AttributeError)):
        order_from_json(a_task(**changes))


@pytest.mark.parametrize("name", ["stages", "personal", "holdout", "private"])
def test_an_order_without_an_entry_is_no_order(name: str) -> None:
    found = a_task()
    del found["task"][name]
    with pytest.raises(KeyError):
        order_from_json(found)


def test_tasks_of_one_message_are_of_one_client_and_of_different_parts() -> None:
    order = Order(task=Task(offered=(0,)), training=Training(), lr=0.1, key=(1, 2, 3), client=4)
    others = {"client": 5, "key": (1, 2, 4), "run": "ab"}
    for one, other in [
        (order, order),
        *((order, replace(order, part="b", **{n: v})) for n, v in others.items()),
    ]:
        with pytest.raises(ValueError, match="the tasks of a message must be of one client"):
            messages.orders_of(RecordDict({"config": messages.config_of(one, other)}))
    config = messages.config_of(order)
    config["coterie"] = "[]"
    with pytest.raises(ValueError, match="the tasks of a message must be"):
        messages.orders_of(RecordDict({"config": config}))


@pytest.mark.parametrize(
    "part",
    [
        "../../..",
        "/etc",
        "a/../../b",
        "..",
        "a//b",
        "\x00",
        "x" * 1000,
        "ü/\u2028",
        "-3",
        ".mixture",
    ],
)
@pytest.mark.parametrize("files", [True, False])
def test_the_name_of_a_part_leads_nowhere_else(part: str, files: bool, tmp_path: Path) -> None:
    tried, inside = world(IDS), tmp_path / "deep" / "inside"
    context = Here(app_of(tried), 1).contexts[FIRST]
    context.node_config |= {"keep-dir": str(inside)} if files else {}
    (tmp_path / "deep").mkdir()
    task = Task(offered=(0,), personal=Personal(start="own"))
    first = Order(
        task=task, training=Training(), lr=0.1, key=(0, 0, 0), client=0, run="ab", part="mine"
    )
    answered(tried, [first], context)
    answered(tried, [replace(first, part=part)], context)
    (tmp_path / "deep" / "3.safetensors").write_bytes(b"")
    last = replace(first, key=(0, 1, 1), part="another", ended={part: 10})
    answered(tried, [last], context)
    with seeded(0):
        layout = Layout(mlp())
    kept = lambda name: ClientMemory(context, layout, "ab", 0, name).own_values_before(100)  # noqa: E731
    assert kept("mine") is not None
    assert kept("another") is not None
    assert kept(part) is None
    assert (tmp_path / "deep" / "3.safetensors").exists()
    outside = [
        path for path in tmp_path.rglob("*") if path.is_file() and inside not in path.parents
    ]
    assert outside == [tmp_path / "deep" / "3.safetensors"]


@pytest.mark.parametrize("weight", [NAN, -0.5, 1.5, INF])
def test_a_stored_weight_that_is_none_is_one_sentence(weight: float) -> None:
    tried = world(IDS)
    context = Here(app_of(tried), 1).contexts[FIRST]
    with seeded(0):
        keeping = ClientMemory(context, Layout(mlp()), "ab", 0)
    keeping.store_own_values(
        0, torch.cat([torch.zeros(keeping.layout.size), torch.tensor([weight])])
    )
    task = Task(offered=(0,), personal=PERSONAL["mixture"])
    order = Order(task=task, training=Training(), lr=0.1, key=(0, 1, 1), client=0, run="ab")
    with pytest.raises(ValueError, match="the stored weight of a mixture must be from 0 to 1"):
        answered(tried, [order], context)
