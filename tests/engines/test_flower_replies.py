"""What clients reply over Flower, whatever it is: taken or refused with a reason, while the others are served."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("flwr", reason="Flower is not installed")

from flwr.app import Array, ArrayRecord, Error, Message, MetricRecord, RecordDict
from torch import Tensor, nn

from attack import flower_replies as hostile
from attack import flower_uploads as uploads
from coterie.boundary import Boundary, Wire
from coterie.contrib.rivals import CLoVE, FedDrift
from coterie.core import Task
from coterie.data.objective import METRICS, REGRESSION, Objective, cross_entropy
from coterie.data.world import Split, World, whole
from coterie.engines.flower import boundary_mod, messages
from coterie.engines.flower.exchange import GridExchanges
from coterie.engines.flower.tolerant_grid import TolerantGrid
from coterie.engines.workers import EngineError
from coterie.methods import IFCA, FedAvg, FedFA, FedPer, Race
from coterie.models.layout import Layout
from coterie.randomness import seeded
from coterie.records.round_line import line_of_round
from coterie.records.text_files import to_json
from flowered import FIRST, Here, app_of, strategy_of
from small import mlp, normed, world

pytestmark = pytest.mark.usefixtures("flower_run")

IDS = (0, 1, 2, 3, 4, 5)
SECRET = 2**127 + 12345


# -- uploads that are no message
# ----------------------------------------------------------------------------------------------


def test_an_upload_that_is_no_message_is_an_error_of_its_node(
    caplog: pytest.LogCaptureFixture,
) -> None:
    link = uploads.Link(random.Random(0))
    grid = uploads.grid_of(link)
    with caplog.at_level("WARNING", "flwr.coterie"):
        assert not uploads.exchange(grid, link)  # they had come together
    assert "from now on answers are fetched one by one" in caplog.text
    found = uploads.exchange(grid, link)
    assert set(found) == {1, 2, 3, 4, 5}
    assert [node for node, reply in found.items() if reply.has_error()] == [uploads.HOSTILE + 1]
    assert found[uploads.HOSTILE + 1].error.reason.startswith(
        "its answer is not a Flower message: "
    )


def test_the_id_of_a_message_cannot_be_computed_by_others() -> None:
    """Anyone who knew it could upload an answer in place of the node that was asked."""
    grid = uploads.grid_of(uploads.Link(random.Random(0)))
    asked = [
        Message(
            RecordDict({"metrics": MetricRecord({"a": 1})}), dst_node_id=7, message_type="train"
        )
        for _ in range(2)
    ]
    asked[1].metadata.__dict__["_created_at"] = asked[0].metadata.created_at
    alike = Message(asked[0].content, dst_node_id=7, message_type="train")
    alike.metadata.__dict__["_created_at"] = asked[0].metadata.created_at
    assert alike.object_id == asked[0].object_id == asked[1].object_id
    assert len({alike.object_id, *grid.push_messages(asked)}) == 3


def test_a_superlink_that_cannot_be_reached_is_no_malformed_answer() -> None:
    class Gone(Exception):
        """As the HTTP client has it."""

    class Broken(Here):
        def pull_messages(self, message_ids: Any) -> Any:
            raise Gone

    grid = TolerantGrid(Broken(app_of(world(IDS)), 1))
    with pytest.raises(Gone):
        grid.pull_messages(["a"])
    assert not grid.fetches_singly


# -- arrays
# -----------------------------------------------------------------------------------------------------------------


def spoiling(
    change: Callable[[RecordDict], RecordDict | Error | None],
    kind: str = "train",
    node: int = FIRST,
) -> Any:
    """A grid's fate: what becomes of the honest reply of a node."""

    def fate(grid: Here) -> None:
        usual = grid._answer

        def answer(message: Message) -> Message | None:
            reply = usual(message)
            if (
                reply is None
                or message.metadata.dst_node_id != node
                or message.metadata.message_type != kind
            ):
                return reply
            changed = change(reply.content)
            return None if changed is None else Message(changed, reply_to=message)

        grid._answer = answer  # type: ignore[method-assign]

    return fate


def with_array(
    change: Callable[[np.ndarray], np.ndarray], name: str | None = None
) -> Callable[[RecordDict], RecordDict]:
    """Another array in place of one of an update."""

    def changed(content: RecordDict) -> RecordDict:
        record = content["update"]
        key = name or next(iter(record))
        record[key] = Array(change(record[key].numpy()))
        return content

    return changed


def one_round(
    method: Any,
    change: Any,
    boundary: Boundary | None = None,
    tried: World | None = None,
    **how: Any,
) -> Any:
    tried, boundary = tried or replace(world(IDS), model=mlp), boundary or Boundary()
    grid = Here(app_of(tried, [boundary_mod(boundary, mlp)] if boundary != Boundary() else []), 6)
    spoiling(change, **how)(grid)
    return next(strategy_of(method, tried, boundary=replace(boundary, secret=None)).rounds(grid, 1))


@pytest.mark.parametrize(
    ("compress", "name", "dtype", "says"),
    [
        ("topk", "values", "longdouble", "is not compressed by topk"),
        ("topk", "indices", ">i2", "its indices are (6,) of torch.int16"),
        ("sign", "scale", ">f8", "its scale are (1,) of torch.float64"),
        ("8bit", "codes", ">i2", "its codes are"),
        ("8bit", "codes", "complex64", "cannot be read"),
        ("8bit", "others", "datetime64[s]", "cannot be read"),
        ("none", None, "<i4", "not of floating-point numbers"),
        ("none", None, "complex128", "not of floating-point numbers"),
    ],
)
def test_arrays_of_other_types_are_refused(
    compress: str, name: str | None, dtype: str, says: str
) -> None:
    boundary = Boundary(compress=compress, share=0.08)
    done = one_round(FedAvg(), with_array(lambda a: a.astype(dtype), name), boundary)
    assert set(done.refused) == {0}
    assert says in done.refused[0]
    assert (done.asked, done.answered) == (6, 5)


@pytest.mark.parametrize(
    ("compress", "name"), [("none", None), ("topk", "values"), ("8bit", "scale")]
)
def test_another_byte_order_means_the_same(compress: str, name: str | None) -> None:
    """A machine with the other byte order is no attacker."""
    boundary = Boundary(compress=compress)
    found = one_round(
        FedAvg(), with_array(lambda a: np.asfortranarray(a.astype(">f4")), name), boundary
    )
    usual = one_round(FedAvg(), lambda content: content, boundary)
    assert not found.refused
    assert torch.equal(found.assignment.models, usual.assignment.models)


@given(
    dtype=st.sampled_from([d for d in hostile.DTYPES if "," not in d]), order=st.sampled_from("CF"),
    shape=st.lists(st.integers(0, 3), max_size=4),
)  # fmt: skip
@settings(max_examples=200)
def test_an_array_is_read_as_numpy_reads_it_or_refused(
    dtype: str, order: Any, shape: list[int]
) -> None:
    values = np.zeros(shape, np.dtype(dtype), order=order)
    if values.dtype.kind in "fiu":
        values += np.arange(values.size).reshape(values.shape).astype(values.dtype)
    record = ArrayRecord({"x": Array(values)})
    if values.dtype.kind not in "fiu":
        with pytest.raises(messages.Unfit, match="its array 'x' cannot be read"):
            messages.array_of(record, "x")
        return
    found = messages.array_of(record, "x")
    assert found.shape == values.shape
    assert found.dtype == values.dtype.newbyteorder("=")
    assert np.array_equal(found, values)


@given(data=st.binary(max_size=40), at=st.integers(0, 127), cut=st.integers(0, 60))
@settings(max_examples=200)
def test_bytes_that_are_no_array_are_refused(data: bytes, at: int, cut: int) -> None:
    whole = hostile.npy(np.ones((8, 5), np.float32))
    for spoiled in (
        data,
        whole[:at] + data + whole[at + len(data) :],
        whole[: len(whole) - 1 - cut],
        whole + data + b"\0",
    ):
        record = ArrayRecord(
            {"x": Array(dtype="float32", shape=(8, 5), stype="numpy.ndarray", data=spoiled)}
        )
        try:
            found = messages.array_of(record, "x", (8, 5))
        except messages.Unfit:
            continue
        assert found.shape == (8, 5)
        assert found.dtype.kind == "f"


# -- numbers
# ----------------------------------------------------------------------------------------------------------------


def with_metrics(**values: Any) -> Callable[[RecordDict], RecordDict]:
    def changed(content: RecordDict) -> RecordDict:
        content["metrics"] = MetricRecord({**content["metrics"], **values})
        return content

    return changed


@pytest.mark.parametrize(
    ("method", "values"),
    [
        (FedFA(), {"accuracies": [1e308]}), (FedFA(), {"losses": [1e39]}), (FedFA(), {"losses": [-1e300]}),
        (FedFA(), {"accuracies": 10**40}), (FedFA(), {"accuracies": []}), (FedFA(), {"losses": [0.1] * 1000}),
        (FedFA(), {"accuracies": [math.nan]}), (FedFA(), {"losses": [math.inf]}),
        (IFCA(models=3), {"chosen": []}), (IFCA(models=3), {"chosen": [3]}), (IFCA(models=3), {"chosen": [0] * 10**5}),
        (FedAvg(), {"chosen": [2**63]}), (FedAvg(), {"num-examples": 2**64 - 1}), (FedAvg(), {"num-examples": math.inf}),
        (FedAvg(), {"chosen": [0.7]}), (FedAvg(), {"chosen": [math.nan]}), (FedAvg(), {"chosen": [0, 0]}),
        (FedAvg(), {"chosen": [1]}),
        (FedFA(), {"losses": [-1e30]}), (IFCA(models=3), {"losses": [-1e30, 0.5, 0.5]}),
        (CLoVE(models=2, first="losses"), {"losses": [0.5, -1.0]}),
        (FedFA(), {"accuracies": [1e37]}), (FedFA(), {"accuracies": [-0.1]}),
    ],
    ids=lambda value: str(value)[:40],
)  # fmt: skip
def test_impossible_numbers_are_refused(method: Any, values: dict[str, Any]) -> None:
    done = one_round(method, with_metrics(**values))
    assert set(done.refused) == {0}
    assert done.answered >= 5


@pytest.mark.parametrize(
    ("stated", "got"),
    [
        (10.5, "10.5"),
        (0, "0"),
        (-3, "-3"),
        (math.nan, "nan"),
        ([5], "[5]"),
        (2.0**64, "1.8446744073709552e+19"),
    ],
)
def test_a_number_of_examples_that_is_not_whole_is_named(stated: Any, got: str) -> None:
    (why,) = one_round(FedAvg(), with_metrics(**{"num-examples": stated})).refused.values()
    assert (
        why
        == f"its number of examples (num-examples) must be a whole number from 1 to 2^63 - 1, got {got}"
    )


def own_loss(outputs: Any, targets: Any) -> torch.Tensor:
    """A user's loss, which may be negative."""
    return cross_entropy(outputs, targets) - 5.0


@pytest.mark.parametrize(
    "method", [IFCA(models=2), CLoVE(models=2, first="losses")], ids=["ifca", "clove"]
)
@pytest.mark.parametrize("name", ["cross_entropy", "torch's", "a module"])
def test_losses_below_zero_are_refused_where_the_objective_has_none(method: Any, name: str) -> None:
    losses = {
        "cross_entropy": cross_entropy,
        "torch's": torch.nn.functional.cross_entropy,
        "a module": nn.CrossEntropyLoss(),
    }
    tried = replace(world(IDS), objective=Objective(loss=losses[name]))
    (why,) = one_round(method, with_metrics(losses=[-1e30, 0.5]), tried=tried).refused.values()
    assert (
        why
        == "it measured a loss of -1e+30 on its train data, and the objective's loss is never negative"
    )


def test_losses_below_zero_are_taken_where_the_objective_may_have_them() -> None:
    done = one_round(
        IFCA(models=2),
        with_metrics(),
        tried=replace(world(IDS), objective=Objective(loss=own_loss)),
    )
    assert done.refused == {}
    assert (
        max(next(note for note in done.notes if "loss" in note.values).values["loss"].values()) < 0
    )


def test_a_loss_below_zero_in_a_test_is_recorded_as_none() -> None:
    done = one_round(FedAvg(), with_metrics(loss=-1e30), kind="evaluate")
    assert '"loss": null' in to_json(line_of_round(done)["clients"]["0"])
    assert '"loss": null' not in to_json(line_of_round(done)["clients"]["1"])


@pytest.mark.parametrize(
    "method", [IFCA(models=2), FedDrift(period=1), Race()], ids=["ifca", "feddrift", "race"]
)
def test_clients_that_predict_numbers_have_no_accuracy_and_take_part(method: Any) -> None:
    def numbers(split: Split) -> Split:
        return whole(split.inputs, split.inputs.sum(1, keepdim=True))

    tried = world(IDS, model=lambda: nn.Linear(5, 1), objective=REGRESSION)
    parts = ("train", "validation", "test")
    clients = {
        c: replace(d, **{name: numbers(getattr(d, name)) for name in parts})
        for c, d in tried.clients.items()
    }
    done = one_round(method, with_metrics(), tried=replace(tried, clients=clients))
    assert (done.refused, done.answered) == ({}, done.asked)


@pytest.mark.parametrize("name", ["held-out-sums", "held-out-products"])
def test_held_out_losses_below_zero_are_refused(name: str) -> None:
    def below(content: RecordDict) -> RecordDict:
        values = content["metrics"]
        if name in values:
            content["metrics"] = MetricRecord(
                {**values, name: [-abs(value) - 1.0 for value in values[name]]}
            )
        return content

    done = one_round(Race(), below)
    assert set(done.refused) == {0}
    assert (
        done.refused[0]
        in (
            "its held-out losses have sums below zero, and the objective's loss is never negative",
            "no held-out losses have the sums and products that it reports",  # the square of a loss is never negative either
        )
    )


def test_an_app_with_its_own_accuracy_has_no_weight_beyond_one() -> None:
    tried = replace(world(IDS), objective=Objective(metrics={"mine": METRICS["accuracy"]}))
    done = one_round(FedFA(), with_metrics(accuracies=[1e37]), tried=tried)
    assert not done.refused
    assert "client 0 (1e+37)" in done.notes[-1].text
    silent = one_round(FedFA(), lambda content: None, tried=tried)
    torch.testing.assert_close(done.assignment.models, silent.assignment.models)


@pytest.mark.parametrize(
    "value", [1e308, 1e39, float("nan"), -float("inf"), 10**40, [0.5], []], ids=str
)
def test_an_invalid_test_result_is_recorded_as_none(value: Any) -> None:
    done = one_round(FedAvg(), with_metrics(accuracy=value), kind="evaluate")
    assert line_of_round(done)["tested"]
    assert '"0": {"group": 0, "loss": ' in to_json(line_of_round(done))
    assert '"accuracy": null' in to_json(line_of_round(done)["clients"]["0"])
    assert '"accuracy": null' not in to_json(line_of_round(done)["clients"]["1"])


# -- whose reply it is
# ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["incoming", "scores"])
def test_second_replies_and_replies_of_other_nodes_are_ignored(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried = world(IDS)
    usual = getattr(GridExchanges, name)

    def more(carrier: GridExchanges, asked: Any, replies: Any, *exchange: int) -> Any:
        replies = list(replies)
        for reply in list(replies):
            told = {"num-examples": 10**9, "loss": 7.0, "accuracy": 7.0}
            again = RecordDict({"metrics": MetricRecord(told)})
            for content, node in ((again, reply.metadata.src_node_id), (reply.content, 4)):
                another = Message(content, reply_to=reply)
                another.metadata.__dict__["_src_node_id"] = node
                replies.append(another)
        return usual(carrier, asked, replies, *exchange)

    expected = next(strategy_of(FedAvg(), tried).rounds(Here(app_of(tried), 6), 1))
    monkeypatch.setattr(GridExchanges, name, more)
    done = next(strategy_of(FedAvg(), tried).rounds(Here(app_of(tried), 6), 1))
    assert (done.answered, done.refused) == (6, {})
    assert torch.equal(done.assignment.models, expected.assignment.models)
    assert done.scores == expected.scores


def test_of_two_nodes_of_one_client_the_reply_of_the_one_asked_counts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tried = world(IDS)
    usual, grid = GridExchanges.incoming, Here(app_of(tried), 6)
    grid.join(3, node=77)

    def late(carrier: GridExchanges, plan: Any, replies: Any, exchange: int) -> Any:
        early = Message(RecordDict({"metrics": MetricRecord({})}), reply_to=next(iter(replies)))
        early.metadata.__dict__["_src_node_id"] = (
            {77, FIRST + 7 * 3} - {carrier.nodes.node(3)}
        ).pop()
        return usual(carrier, plan, [early, *replies], exchange)

    monkeypatch.setattr(GridExchanges, "incoming", late)
    done = next(strategy_of(FedAvg(), tried).rounds(grid, 1))
    assert (done.answered, done.refused) == (6, {})


def _trains(message: Message) -> bool:
    return message.metadata.message_type == "train"


def test_a_resumed_run_does_not_take_the_secret_of_the_first_client_to_answer() -> None:
    """Its boundary's digest is not stored, so it is that of most, all exchanges taken together."""
    tried, right = world(IDS), Boundary(rotation="permute", secret=SECRET)
    wrong = Boundary(rotation="permute", secret=SECRET + 1)
    apps = {
        boundary.secret: app_of(tried, [boundary_mod(boundary, tried.model)])
        for boundary in (right, wrong)
    }
    grid = Here(app_of(tried), 6)
    alone = [False]
    grid.app = lambda m, c: apps[SECRET + (c.node_id == FIRST)](m, c)  # type: ignore[assignment]
    grid.fate = lambda m: (
        "silent" if alone[0] and _trains(m) and m.metadata.dst_node_id != FIRST else None
    )
    begun = next(strategy_of(FedAvg(), tried, boundary=replace(right, secret=None)).rounds(grid, 1))
    assert set(begun.refused) == {0}
    alone[0] = True
    rounds = strategy_of(FedAvg(), tried, boundary=replace(right, secret=None)).rounds(
        grid, 4, start=begun.position
    )
    assert (next(rounds).answered, alone) == (1, [True])  # there is nobody to compare it with
    alone[0] = False
    done = next(rounds)
    assert done.refused == {0: "its boundary's secret differs from the other clients'"}
    assert done.answered == 5


# -- words
# ------------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@given(st.text(max_size=400))
@settings(max_examples=200)
def test_words_of_clients_are_one_printable_line(words: str) -> None:
    said = messages.brief(words)
    assert said.isprintable()
    assert len(said) <= messages.MAX_TEXT_LENGTH
    if words.isprintable() and len(words) < messages.MAX_TEXT_LENGTH:
        assert said == " ".join(words.split())


def test_of_a_traceback_the_last_line_says_why() -> None:
    lines = [f"  File 'app.py', line {number}" for number in range(300)]
    reason = "\n".join(
        [
            "<class 'RayTaskError'>: Traceback (most recent call last):",
            *lines,
            "KeyError: 'age'",
            "",
        ]
    )
    done = one_round(FedAvg(), lambda content: Error(code=2, reason=reason))
    assert done.refused[0] == "its app failed: KeyError: 'age'"


def test_in_a_simulation_the_message_of_the_app_says_why() -> None:
    files = "\n".join(f'  File "app.py", line {number}' for number in range(300))
    reason = (
        f"<class 'ray.exceptions.RayTaskError(ClientAppException)'>:<'ray::actor()\n{files}\n"
        "flwr.clientapp.client_app.ClientAppException: \n"
        "Exception ClientAppException occurred. Message: no such folder: /data'>"
    )
    done = one_round(FedAvg(), lambda content: Error(code=2, reason=reason))
    assert done.refused[0] == "its app failed: no such folder: /data"


def test_a_failure_says_nothing_to_a_terminal_and_keeps_the_end() -> None:
    reason = "x" * 10**6 + "\x1b[2J\x1b]0;mine\x07\u202eoops\nno rows'>"
    done = one_round(FedAvg(), lambda content: Error(code=2, reason=reason))
    assert done.refused[0].startswith("its app failed: ...xxx")
    assert done.refused[0].endswith("xxx [2J ]0;mine oops no rows'>")
    assert done.refused[0].isprintable()
    assert len(done.refused[0]) == messages.MAX_TEXT_LENGTH


# -- a claimed clip
# ---------------------------------------------------------------------------------------------------------

BOUNDARIES = [
    Boundary(clip=0.5, compress=compress, share=0.3, rotation=rotation, noise=noise)
    for compress in ("none", "topk", "sign", "8bit")
    for rotation in ("none", "permute-tensors", "blocks")
    for noise in (0.0, 0.2)
]


@pytest.mark.parametrize("boundary", BOUNDARIES, ids=str)
@given(
    st.integers(0, 10**6), st.floats(-9, 9), st.sampled_from(["even", "peak", "heavy", "coarse"])
)
@settings(max_examples=10)
@seeded(0)
def test_no_honest_update_is_taken_for_one_that_was_not_clipped(
    boundary: Boundary, seed: int, size: float, shape: str
) -> None:
    layout = Layout(nn.Linear(70, 9))
    wire, gen = Wire(boundary, layout, seed), torch.Generator().manual_seed(seed)
    row = torch.randn(layout.size, generator=gen)
    if shape == "peak":
        row[torch.randperm(layout.size, generator=gen)[1:]] *= 1e-3
    if shape == "heavy":
        row = row**5
    if shape == "coarse":  # entries that rounding makes larger: just above half a step
        row = torch.full((layout.size,), 0.51 / 127)
        row[0] = 1.0
    for keep in (None,) if boundary.rotation == "blocks" else (None, layout.mask([""])):
        sent = wire.send(row * 10**size, 3, 5, keep)
        sent = sent if keep is None else sent.masked_fill(keep, 0.0)
        assert (
            wire.unclipped(sent, Task(offered=(0,), local_layers=() if keep is None else ("",)))
            is None
        )


@pytest.mark.parametrize("boundary", BOUNDARIES, ids=str)
@seeded(0)
def test_an_update_above_the_clip_is_detected(boundary: Boundary) -> None:
    layout = Layout(nn.Linear(70, 9))
    wire, row = Wire(boundary, layout, 0), torch.ones(layout.size)
    limit = 0.5 * (1 + boundary.noise * (layout.size**0.5 + 8))
    for factor, known in ((0.99, False), (1.02, True)):
        sent = row * factor * limit / float(row.norm())
        assert bool(wire.unclipped(sent, Task(offered=(0,)))) == known


def test_a_client_that_does_not_clip_is_refused() -> None:
    tried, boundary = world(IDS), Boundary(clip=0.01)
    grid = Here(app_of(tried, [boundary_mod(boundary, tried.model)]), 6)
    spoiling(with_array(lambda a: a + np.float32(1.0)))(grid)
    done = next(strategy_of(FedAvg(), tried, boundary=boundary).rounds(grid, 1))
    assert set(done.refused) == {0}
    assert done.refused[0].endswith("more than 0.01, the maximum under the boundary's clip 0.01")


# -- first models
# -----------------------------------------------------------------------------------------------------------


@seeded(0)
def offers(changes: dict[int, Callable[[Tensor], Tensor]], model: Any = mlp, count: int = 6) -> Any:
    """The first round where witnesses have changed the first model; and what it began with."""
    tried, boundary = (
        replace(world(range(count)), model=model),
        Boundary(rotation="permute", secret=SECRET),
    )
    grid, layout = Here(app_of(tried, [boundary_mod(boundary, model)]), count), Layout(model())
    usual = grid._answer

    def answer(message: Message) -> Message | None:
        reply, change = usual(message), changes.get((message.metadata.dst_node_id - FIRST) // 7)
        if (
            change
            and reply
            and message.content.config_records.get("config", {}).get("first") is not None
        ):
            row = change(messages.unpacked(reply.content["arrays"], layout))
            reply.content["arrays"] = messages.packed(row, layout)
        return reply

    grid._answer = answer  # type: ignore[method-assign]
    strategy = strategy_of(FedAvg(), tried, boundary=replace(boundary, secret=None))
    wire = Wire(boundary, layout, 0)
    done = next(strategy.rounds(grid, 1))
    return done, float((done.assignment.models[0] - wire.seal(wire.first_model(0, model))).norm())


@pytest.mark.parametrize(
    ("change", "model"),
    [
        (lambda row: row * 1e6, mlp),
        (lambda row: row * 0, mlp),
        (lambda row: row.flip(0), mlp),
        (lambda row: row * torch.nan, mlp),
        (lambda row: -row, mlp),
        (lambda row: row * 1e6, normed),
    ],
    ids=["huge", "zero", "another", "nan", "negative", "huge-normed"],
)
def test_two_witnesses_of_five_cannot_choose_the_first_model(change: Any, model: Any) -> None:
    done, apart = offers({0: change, 3: change}, model)
    assert apart < 1
    assert not done.refused


@pytest.mark.parametrize("factor", [1e3, 1e30, 1e-4])
def test_a_first_model_that_no_initialiser_draws_is_no_offer_even_of_most(factor: float) -> None:
    done, apart = offers(dict.fromkeys(range(4), lambda row: row * factor))
    assert apart < 1
    assert done.answered == 6


def test_where_witnesses_do_not_agree_nothing_begins() -> None:
    with pytest.raises(
        EngineError, match="only 1 of 2 clients drew the same first model under rotation permute; "
    ):
        offers({0: lambda row: row.flip(0)}, count=2)


def test_layers_kept_under_noise_are_not_taken_for_lost() -> None:
    tried, boundary = world(IDS), Boundary(clip=0.5, noise=0.1)
    grid = Here(app_of(tried, [boundary_mod(boundary, tried.model)]), 6)
    found = list(strategy_of(FedPer(), tried, boundary=boundary).rounds(grid, 3))
    assert [done.answered for done in found] == [6, 6, 6]
    assert not [note for done in found for note in done.notes if note.kind == "node"]
