"""Layers that stay at clients over Flower: what is kept where, and what a server that goes on finds."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("flwr", reason="Flower is not installed")

from flwr.app import Context, Message, RecordDict

from coterie.core import Training
from coterie.data.world import World
from coterie.engines import rounds as inprocess
from coterie.engines.flower.client import ClientMemory
from coterie.methods import Ditto, FedAvg, FedPer
from coterie.models.layout import Layout
from coterie.randomness import seeded
from coterie.settings import SettingError
from flowered import FIRST, Here, app_of, strategy_of
from small import mlp, world

pytestmark = pytest.mark.usefixtures("flower_run")

IDS = (0, 1, 2, 3)
RUN = "ab" * 16


def keeping(
    folder: Path | None, run: str = RUN, client: int = 3, state: RecordDict | None = None
) -> ClientMemory:
    config: Any = {} if folder is None else {"keep-dir": str(folder)}
    made = state if state is not None else RecordDict()
    context = Context(run_id=1, node_id=1, node_config=config, state=made, run_config={})
    return ClientMemory(context, Layout(mlp()), run, client)


def row(value: float) -> torch.Tensor:
    layout = Layout(mlp())
    out = torch.full((layout.size,), torch.nan)
    start, stop = layout.columns["2"]
    out[start:stop] = value
    return out


@pytest.mark.parametrize("files", [True, False])
@seeded(0)
def test_what_is_kept_is_what_it_was_before_an_exchange(files: bool, tmp_path: Path) -> None:
    state = RecordDict()
    here = lambda **how: keeping(tmp_path if files else None, state=state, **how)  # noqa: E731
    assert here().own_values_before(5) is None
    for exchange in range(12):
        here().store_own_values(exchange, row(exchange))
    for exchange in (7, 11, 12, 40):
        torch.testing.assert_close(
            here().own_values_before(exchange), row(min(exchange, 12) - 1), equal_nan=True
        )
    assert here().own_values_before(4) is None  # no more than the last eight
    here().store_own_values(6, row(66))  # the server has gone back: what came later is undone
    torch.testing.assert_close(here().own_values_before(40), row(66), equal_nan=True)
    assert here(run="cd" * 16).own_values_before(40) is None
    assert not files or here(client=4).own_values_before(40) is None


@seeded(0)
def test_going_back_beyond_all_that_is_kept_keeps_what_is_new() -> None:
    state = RecordDict()
    for exchange in (*range(10, 18), 3):
        keeping(None, state=state).store_own_values(exchange, row(exchange))
    torch.testing.assert_close(
        keeping(None, state=state).own_values_before(100), row(3), equal_nan=True
    )


@pytest.mark.parametrize("run", ["../../etc", "AB", "a" * 33, "/tmp"])
@seeded(0)
def test_the_name_of_a_run_leads_nowhere_else(run: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="a run's name must be up to 32 hexadecimal digits"):
        keeping(tmp_path, run=run)


def nodes(tried: World, folder: Path | None) -> Here:
    """Nodes that have just been started."""
    grid = Here(app_of(tried), len(tried.clients))
    for context in grid.contexts.values():
        context.node_config |= {} if folder is None else {"keep-dir": str(folder)}
    return grid


def test_a_run_that_goes_on_finds_the_layers_in_the_nodes_files(tmp_path: Path) -> None:
    tried = world(IDS)
    whole = list(inprocess.rounds(FedPer(), tried, rounds=5, workers=1))
    for rounds in (2, 3, 5):  # each time all processes are new
        strategy = strategy_of(FedPer(), tried, out=tmp_path / "run")
        strategy.start(nodes(tried, tmp_path / "kept"), num_rounds=rounds)
        assert strategy.last is not None
        assert [note.text for note in strategy.last.notes if note.kind == "node"] == []
        torch.testing.assert_close(
            strategy.last.assignment.models,
            whole[rounds - 1].assignment.models,
            rtol=1e-4,
            atol=1e-6,
        )
    assert strategy.last.scores is not None
    for client, score in (whole[-1].scores or {}).items():
        assert strategy.last.scores[client]["loss"] == pytest.approx(score["loss"], rel=1e-3)


def test_layers_that_are_lost_are_told_of_and_begin_anew(tmp_path: Path) -> None:
    tried = world(IDS)
    strategy_of(FedPer(), tried, out=tmp_path / "run").start(nodes(tried, None), num_rounds=2)
    again = strategy_of(FedPer(), tried, out=tmp_path / "run")
    again.start(nodes(tried, None), num_rounds=3)
    assert again.last is not None
    assert again.last.answered == 4
    assert [note.text for note in again.last.notes if note.kind == "node"] == [
        f"client {client} has lost its own layers of exchange 1, and starts anew "
        "(keep-dir at the node keeps such values)"
        for client in IDS
    ]


def test_a_client_whose_answer_was_lost_continues_with_what_it_has_trained(tmp_path: Path) -> None:
    tried = world(IDS)
    grid = nodes(tried, tmp_path / "kept")
    strategy = strategy_of(FedPer(), tried)
    rounds = strategy.rounds(grid, 3)
    next(rounds)
    # The second training of the first client reaches its node, and its answer is lost.
    answer = grid._answer

    def losing(message: Message) -> Message | None:
        reply = answer(message)
        return None if message.metadata.dst_node_id == FIRST else reply

    grid._answer = losing  # type: ignore[method-assign]
    assert next(rounds).silent == (IDS[0],)
    grid._answer = answer  # type: ignore[method-assign]
    done = next(rounds)
    (note,) = (note for note in done.notes if "its own layers" in note.text)
    assert note.text == (
        f"client {IDS[0]} continues with its own layers from a training whose answer did not count "
        "(exchange 1): nothing is lost"
    )
    assert note.effect == "info"


def test_an_update_that_is_refused_changes_no_layer(tmp_path: Path) -> None:
    tried = world(IDS)
    data = tried.clients[2]
    broken = replace(data, train=replace(data.train, inputs=data.train.inputs * torch.nan))
    grid = nodes(replace(tried, clients={**tried.clients, 2: broken}), None)
    done = next(strategy_of(FedPer(), tried).rounds(grid, 1))
    assert set(done.refused) == {2}
    assert not [name for name in grid.contexts[FIRST + 14].state if name.startswith("coterie-kept")]


def test_a_run_that_has_all_its_rounds_waits_for_nobody(tmp_path: Path) -> None:
    tried = world(IDS)
    first = strategy_of(FedPer(), tried, out=tmp_path / "run")
    result = first.start(nodes(tried, None), num_rounds=2)
    again = strategy_of(FedPer(), tried, out=tmp_path / "run")
    same = again.start(Here(app_of(tried), 0), num_rounds=2)
    assert again.assignment is not None
    assert first.assignment is not None
    assert torch.equal(again.assignment.models, first.assignment.models)
    assert set(same.arrays) == set(result.arrays)


def test_a_run_stopped_in_its_first_round_can_be_begun_again(tmp_path: Path) -> None:
    tried = world(IDS)
    (tmp_path / "run").mkdir()
    for name in ("lock", "nodes.json"):
        (tmp_path / "run" / name).write_bytes(b"")
    strategy_of(FedPer(), tried, out=tmp_path / "run").start(nodes(tried, None), num_rounds=1)


@pytest.mark.parametrize("with_files", [True, False])
def test_states_of_optimizers_stay_at_nodes_and_give_the_numbers_of_one_process(
    with_files: bool, tmp_path: Path
) -> None:
    training = Training(optimizer="adam", keep_optimizer=True, lr=0.02, batch=4)
    tried = replace(world(IDS), training=training)
    whole = list(inprocess.rounds(FedAvg(), tried, rounds=4, workers=1))
    reset = replace(tried, training=replace(training, keep_optimizer=False))
    *_, others = inprocess.rounds(FedAvg(), reset, rounds=4, workers=1)
    # The server begins anew after two rounds; the nodes go on, or begin anew with their files.
    grid = nodes(tried, tmp_path / "kept" if with_files else None)
    strategy_of(FedAvg(), tried, out=tmp_path / "run").start(grid, num_rounds=2)
    strategy = strategy_of(FedAvg(), tried, out=tmp_path / "run")
    again = nodes(tried, tmp_path / "kept") if with_files else grid
    strategy.start(again, num_rounds=4)
    assert strategy.last is not None
    models = strategy.last.assignment.models
    torch.testing.assert_close(models, whole[-1].assignment.models, rtol=1e-4, atol=1e-6)
    assert (models - others.assignment.models).abs().max() > 1e-3
    # The server has none of them.
    assert strategy.last.position.kept == {}


def test_a_method_whose_tasks_have_several_trainings_is_refused(tmp_path: Path) -> None:
    training = Training(optimizer="adam", keep_optimizer=True)
    tried = replace(world(IDS), training=training)
    with pytest.raises(SettingError, match="keep_optimizer must be false with ditto"):
        strategy_of(Ditto(), tried, out=tmp_path / "run")
