"""What leaves a client over Flower under noise, and how often: noised updates, as many as its budget allows."""

from __future__ import annotations

import json
import logging
import re
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr", reason="Flower is not installed")

from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict

import coterie
from coterie.boundary import Boundary, spent
from coterie.cli import main
from coterie.core import Task, Training
from coterie.data.described import described
from coterie.engines.flower import boundary_mod
from coterie.engines.flower.messages import FUNCTIONS, NO_TEST, QUERY, SCHEMA, WHO, Order, config_of
from coterie.engines.flower.mods import FAILED, Budget, _epsilon
from coterie.engines.flower.schemas import Stated, record_of
from coterie.methods import CFL, FedAvg, FedPer
from coterie.randomness import seeded
from coterie.records.record import Record
from coterie.records.text_files import to_json
from coterie.settings import SettingError
from flowered import FIRST, Here, app_of, foreign, over_flower, strategy_of
from small import mlp, world

pytestmark = pytest.mark.usefixtures("flower_run")

IDS = (0, 1, 2, 3, 4, 5)
NOISE = Boundary(clip=0.5, noise=10.0)


# -- tests
# ------------------------------------------------------------------------------------------------------------------


def evaluations(grid: Here) -> list[RecordDict]:
    return [
        reply.content
        for message, reply in grid.messages
        if reply and message.metadata.message_type == "evaluate"
    ]


@pytest.mark.parametrize("named", [True, False], ids=["coterie's app", "another app"])
def test_under_noise_no_test_result_leaves_a_client(named: bool) -> None:
    tried = world(IDS)
    app = (app_of if named else foreign)(tried, [boundary_mod(NOISE, tried.model)])
    grid = Here(app, 6, named=named)
    list(strategy_of(FedAvg(), tried, boundary=NOISE).rounds(grid, 2))
    replies = evaluations(grid)
    assert len(replies) == 12
    assert all(
        dict(content["metrics"]) == {} and set(content) == {"metrics", "coterie.boundary"}
        for content in replies
    )


def test_a_test_that_fails_under_noise_is_not_reported_to_the_server(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def failing(message: Message, context: Context) -> Message:
        raise ValueError("label 7")

    mod = boundary_mod(NOISE, mlp)
    with caplog.at_level(logging.WARNING, "flwr.coterie"):
        reply = mod(asked(kind="evaluate"), a_context(), failing)
    assert dict(reply.content["metrics"]) == {}
    assert "label 7" in caplog.text  # on the client's own machine


@pytest.mark.parametrize("named", [True, False], ids=["coterie's app", "another app"])
def test_under_noise_only_the_client_id_answers_the_query_for_it(named: bool) -> None:
    tried = world(IDS)
    app = (app_of if named else foreign)(tried, [boundary_mod(NOISE, tried.model)])
    grid = Here(app, 6, named=named)
    next(strategy_of(FedAvg(), tried, boundary=NOISE).rounds(grid, 1))
    replies = [
        reply.content
        for message, reply in grid.messages
        if reply and message.metadata.message_type == QUERY
    ]
    stated = Stated.of(
        described(tried.clients[0], tried.objective), "digest"
    )  # of the data, only digests
    whose = [
        RecordDict({WHO: MetricRecord({"client": client, FUNCTIONS: 0}), SCHEMA: record_of(stated)})
        for client in IDS
    ]
    assert replies == (whose if named else [RecordDict()] * 6)


@pytest.mark.parametrize("boundary", [NOISE, Boundary(masks=True)], ids=["noise", "masks"])
@pytest.mark.parametrize(("error", "sent"), [("label 7", FAILED), (NO_TEST, NO_TEST)])
def test_under_noise_or_masks_a_failing_query_does_not_tell_why(
    error: str, sent: str, boundary: Boundary
) -> None:
    def failing(message: Message, context: Context) -> Message:
        raise ValueError(error)

    with pytest.raises((RuntimeError, ValueError), match=f"^{re.escape(sent)}$"):
        boundary_mod(boundary, mlp)(asked(kind=QUERY), a_context(), failing)


def test_in_a_simulation_the_experimenter_sees_test_results() -> None:
    tried = world(IDS)
    done = over_flower(
        FedAvg(), tried, 1, mods=[boundary_mod(NOISE, tried.model, simulated=0)], boundary=NOISE
    )[0]
    assert done.scores is not None
    assert all(0 <= score["accuracy"] <= 1 for score in done.scores.values())


@pytest.mark.filterwarnings("error")
def test_a_run_without_scores_is_recorded_and_reported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tried, out = world(IDS), tmp_path / "run"
    grid = Here(app_of(tried, [boundary_mod(NOISE, tried.model)]), 6)
    strategy_of(CFL(), tried, boundary=NOISE, out=out).start(grid, num_rounds=2)
    lines = Record(out).lines()
    assert [line["tested"] for line in lines] == [True, True]
    assert all(
        client["accuracy"] is None and client["loss"] is None
        for line in lines
        for client in line["clients"].values()
    )
    found = coterie.summary(out)
    assert found["privacy"]["epsilon"] == pytest.approx(spent(10.0, 2))
    assert '"mean": null' in to_json(found)
    assert main(["report", str(out)]) == 0
    assert main(["explain", str(out)]) == 0
    assert "nan" not in capsys.readouterr().out.lower().split()


# -- the budget
# -------------------------------------------------------------------------------------------------------------


def a_context(folder: Path | None = None, **config: Any) -> Context:
    told = config if folder is None else {"keep-dir": str(folder), **config}
    return Context(run_id=1, node_id=FIRST, node_config=told, state=RecordDict(), run_config={})


@seeded(0)
def asked(
    kind: str = "train",
    client: int = 0,
    key: tuple[int, int, int] = (0, 0, 0),
    run: str = "",
    **task: Any,
) -> Message:
    order = Order(
        task=Task(offered=(0,), **task),
        training=Training(),
        lr=0.1,
        key=key,
        client=client,
        run=run,
    )
    content = RecordDict({"arrays": ArrayRecord(mlp().state_dict()), "config": config_of(order)})
    return Message(content, dst_node_id=FIRST, message_type=kind)


def answer(message: Message, context: Context) -> Message:
    """An app of somebody's: what it was sent, and both halves where it is asked for them."""
    arrays = ArrayRecord(dict(message.content["arrays"]))
    told = {"update": arrays, "update-1": arrays, "metrics": MetricRecord({"num-examples": 3})}
    return Message(RecordDict(told), reply_to=message)


def allowed(mod: Any, messages: list[Message], context: Context) -> int:
    """How many updates leave."""
    left = 0
    for message in messages:
        try:
            left += len(mod(message, context, answer).content.array_records)
        except ValueError as error:
            if (
                "this client's privacy budget is spent: one more answer would raise ε to "
                not in str(error)
            ):
                raise
    return left


def test_a_budget_allows_so_many_updates_and_no_more(tmp_path: Path) -> None:
    mod = boundary_mod(NOISE, mlp, budget=spent(10.0, 7))
    assert allowed(mod, [asked() for _ in range(20)], a_context(tmp_path)) == 7
    assert json.loads((tmp_path / "budget-node.json").read_bytes()) == {
        "updates": {"10.0": 7},
        "sums": {},
    }


def test_nothing_that_a_server_says_begins_a_new_count(tmp_path: Path) -> None:
    left = 0
    for i in range(9):  # another run, seed, exchange, client and node, and the app started again
        mod = boundary_mod(NOISE, mlp, budget=spent(10.0, 4))
        context = a_context(tmp_path, **{"partition-id": 2})
        context.node_id, context.run_id = FIRST + i, 100 + i
        left += allowed(mod, [asked(client=i, key=(i, 7 * i, i), run=f"{i:x}")], context)
    assert left == 4
    other = a_context(
        tmp_path, **{"partition-id": 3}
    )  # by its operator another client, in the same folder
    assert (
        allowed(boundary_mod(NOISE, mlp, budget=spent(10.0, 4)), [asked() for _ in range(5)], other)
        == 4
    )


@pytest.mark.parametrize(
    ("task", "each"),
    [({"halves": True}, 2), ({"gradient": True}, 1), ({"local_layers": ("0",)}, 1), ({}, 1)],
    ids=str,
)
def test_what_a_task_lets_out_is_what_is_counted(
    task: dict[str, Any], each: int, tmp_path: Path
) -> None:
    mod, context = boundary_mod(NOISE, mlp, budget=spent(10.0, 5)), a_context(tmp_path)
    assert allowed(mod, [asked(**task) for _ in range(9)], context) == 5 // each * each
    mod(asked(kind="evaluate"), context, answer)  # costs nothing, and goes on


def test_layers_that_all_stay_cost_nothing(tmp_path: Path) -> None:
    mod = boundary_mod(NOISE, mlp, budget=spent(10.0, 1))
    for _ in range(5):
        reply = mod(asked(local_layers=("0", "2")), a_context(tmp_path), answer)
        assert not any(len(record) for record in reply.content.array_records.values())
    assert not (tmp_path / "budget-node.json").exists()


def test_an_app_that_fails_has_been_counted(tmp_path: Path) -> None:
    def failing(message: Message, context: Context) -> Message:
        raise ValueError("label 7")

    mod, context = boundary_mod(NOISE, mlp, budget=spent(10.0, 2)), a_context(tmp_path)
    for _ in range(2):
        with pytest.raises(
            RuntimeError, match=r"^the app failed; with noise or masks, it does not send the reason"
        ):
            mod(asked(), context, failing)
    with pytest.raises(ValueError, match="budget is spent"):
        mod(asked(), context, failing)


def test_two_messages_at_once_are_counted_one_after_the_other(tmp_path: Path) -> None:
    budget = Budget(spent(10.0, 30), NOISE)

    def spend(_: int) -> bool:
        try:
            budget.spend(a_context(tmp_path), 1)
        except ValueError:
            return False
        return True

    with ThreadPoolExecutor(16) as pool:
        assert sum(pool.map(spend, range(60))) == 30


def test_updates_of_several_noises_add_up() -> None:
    # Four releases of twice the noise tell as much as one: their μ² are a quarter each.
    def epsilon(single: dict[str, int], sums: dict[str, int] | None = None) -> float:
        return _epsilon({"updates": single, "sums": sums or {}}, 1e-5)

    assert epsilon({"10.0": 4}) == pytest.approx(epsilon({"5.0": 1}), rel=1e-9)
    assert epsilon({"10.0": 4, "5.0": 3}) == pytest.approx(spent(5.0, 4), rel=1e-9)
    for count in (1, 40, 1000):
        assert epsilon({"10.0": count}) == pytest.approx(spent(10.0, count), rel=1e-9)
        assert epsilon({}, {"10.0": count}) == pytest.approx(
            spent(10.0, count, sums=True), rel=1e-9
        )
    # A number in a sum changes by half as much, so it counts as a single update with twice the
    # noise.
    assert epsilon({"10.0": 3}, {"5.0": 5}) == pytest.approx(spent(10.0, 8), rel=1e-9)


def test_single_updates_still_count_as_such_when_the_client_changes_to_sums(tmp_path: Path) -> None:
    full = spent(10.0, 8)
    Budget(full, NOISE).spend(a_context(tmp_path), 6)
    sums = Budget(full, Boundary(masks=True, clip=1.0, noise=10.0))
    sums.spend(a_context(tmp_path), 8)  # a sum costs a quarter: two single updates were left
    with pytest.raises(ValueError, match="this client's privacy budget is spent"):
        sums.spend(a_context(tmp_path), 1)
    with pytest.raises(ValueError, match="this client's privacy budget is spent"):
        Budget(full, NOISE).spend(a_context(tmp_path), 1)


def test_a_count_of_single_updates_alone_is_read(tmp_path: Path) -> None:
    """As files had it before sums were counted apart: what was in sums counts as more than it is, and not as less."""
    (tmp_path / "budget-node.json").write_text('{"updates": {"10.0": 7}}')
    budget = Budget(spent(10.0, 8), NOISE)
    budget.spend(a_context(tmp_path), 1)
    with pytest.raises(ValueError, match="this client's privacy budget is spent"):
        budget.spend(a_context(tmp_path), 1)


def test_another_noise_goes_on_with_the_same_count(tmp_path: Path) -> None:
    context = a_context(tmp_path)
    assert (
        allowed(
            boundary_mod(NOISE, mlp, budget=spent(10.0, 8)), [asked() for _ in range(4)], context
        )
        == 4
    )
    louder = boundary_mod(replace(NOISE, noise=5.0), mlp, budget=spent(10.0, 8))
    assert (
        allowed(louder, [asked() for _ in range(5)], context) == 1
    )  # tells as much as the four that were left


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"updates": 3}', '{"updates": {"10.0": -1}}', '{"updates": {"x": 1}}', '{"updates": {"0.0": 1}}',
             '{"updates": {"10.0": 1.5}}', "[" * 10**5, '{"updates": {"nan": 1}}', "\xff",
             '{"sums": {}}', '{"updates": {}, "sums": {"x": 1}}', '{"updates": {}, "more": {}}'],
    ids=lambda text: text[:20],
)  # fmt: skip
def test_a_count_that_is_damaged_lets_nothing_out(text: str, tmp_path: Path) -> None:
    (tmp_path / "budget-node.json").write_text(text, encoding="latin1")
    with pytest.raises(ValueError, match=r"^the count of this client's privacy budget is damaged"):
        boundary_mod(NOISE, mlp, budget=9.0)(asked(), a_context(tmp_path), answer)


def test_a_count_that_cannot_be_kept_lets_nothing_out_and_names_no_folder(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(
        ValueError,
        match=r"^the count of this client's privacy budget cannot be saved; see its log$",
    ):
        boundary_mod(NOISE, mlp, budget=9.0)(asked(), a_context(tmp_path / "file"), answer)
    with pytest.raises(ValueError, match="needs a folder in the node's config, keep-dir"):
        boundary_mod(NOISE, mlp, budget=9.0)(asked(), a_context(), answer)


@pytest.mark.parametrize("budget", [0, -1.0, float("nan"), float("inf"), True, "3"], ids=str)
def test_an_invalid_budget_is_refused(budget: Any) -> None:
    with pytest.raises(SettingError, match="budget must be a number"):
        boundary_mod(NOISE, mlp, budget=budget)
    with pytest.raises(SettingError, match=r"budget 3 needs Boundary\.noise, got 0"):
        boundary_mod(Boundary(clip=1.0), mlp, budget=3)


def test_a_client_that_spent_its_budget_is_refused_and_the_others_go_on(tmp_path: Path) -> None:
    tried = world(IDS)
    usual = app_of(tried, [boundary_mod(NOISE, tried.model)])
    careful = app_of(tried, [boundary_mod(NOISE, tried.model, budget=spent(10.0, 2))])
    grid = Here(usual, 6)
    grid.contexts[FIRST].node_config["keep-dir"] = str(tmp_path)
    grid.app = lambda m, c: (careful if c.node_id == FIRST else usual)(m, c)  # type: ignore[assignment]
    found = list(strategy_of(FedAvg(), tried, boundary=NOISE, patience=2).rounds(grid, 4))
    assert [done.answered for done in found] == [6, 6, 5, 5]
    assert set(found[2].refused) == {0}
    assert (
        "its app failed: this client's privacy budget is spent: one more answer would raise ε to "
        in found[2].refused[0]
    )
    assert [(note.kind, note.clients) for note in found[3].notes] == [("leave", (0,))]


def test_the_server_counts_no_less_than_has_left(tmp_path: Path) -> None:
    """Of a client that always answers both counts are the same."""
    tried, out = world(IDS), tmp_path / "run"
    app = app_of(tried, [boundary_mod(NOISE, tried.model, budget=100.0)])
    grid = Here(app, 6)
    for context in grid.contexts.values():
        context.node_config["keep-dir"] = str(tmp_path / "kept")
    strategy_of(FedPer(), tried, boundary=NOISE, out=out).start(grid, num_rounds=3)
    counted = [
        json.loads(path.read_bytes())["updates"]
        for path in (tmp_path / "kept").glob("budget-*.json")
    ]
    assert counted == [{"10.0": 3}] * 6
    assert coterie.summary(out)["privacy"]["updates"] == 3
