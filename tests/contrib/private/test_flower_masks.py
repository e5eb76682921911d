"""Masked sums over Flower: the same rounds as in one process, and nothing of a single client at the server."""

from __future__ import annotations

import gc
import json
import os
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("flwr", reason="Flower is not installed")

from flwr.app import ConfigRecord, Context, Message, RecordDict

from coterie.boundary import Boundary
from coterie.contrib.private import SplitHalfPrivate, SplitHalfSums
from coterie.contrib.private.cells import CellQuestion
from coterie.contrib.private.flower.mod import MAX_MARK_SECONDS, reply_to_step
from coterie.contrib.private.flower.questions import question_from_json, question_to_json
from coterie.contrib.private.flower.steps import MASKED, MASKS, step_message
from coterie.contrib.private.flower.sum_layout import SumLayout
from coterie.contrib.private.masks import MaskedSum, Masker, ProtocolError
from coterie.contrib.private.sums import COUNT_WEIGHT, NoiseShare
from coterie.data.world import Split, World
from coterie.engines.flower import boundary_mod
from coterie.engines.refusals import RefusedError
from coterie.methods import CFL, FLHC, IFCA, FedAvg, FedPer
from coterie.settings import SettingError
from flowered import Here, app_of, over_flower, strategy_of
from scripted import play
from small import client, mlp, world

pytestmark = pytest.mark.usefixtures("flower_run")

MASKED_ = Boundary(masks=True)
QUICK = SplitHalfSums(level=0.9, probe_every=1, review_every=3, smallest=3, sketch=8)


def two_groups(count: int = 8) -> World:
    """Clients whose class is the greatest of three features, and as many whose class is the least."""

    def labelled(data: Split, sign: int) -> Split:
        assert isinstance(data.inputs, torch.Tensor)
        return replace(data, targets=(sign * data.inputs[data.index][:, :3]).argmax(1))

    clients = {}
    for c in range(count):
        data, sign = client(c, train=60), 1 if c % 2 else -1
        parts = {
            part: labelled(getattr(data, part), sign) for part in ("train", "validation", "test")
        }
        clients[c] = replace(data, **parts)
    return world(clients=clients, model=mlp)


def mods(boundary: Boundary = MASKED_, seed: int | None = 0) -> list[Any]:
    return [boundary_mod(boundary, mlp, simulated=seed)]


@pytest.mark.parametrize(
    ("method", "rounds"),
    [(FedAvg(), 2), (FedPer(), 2), (QUICK, 5)],
    ids=["fedavg", "fedper", "split-half-sums"],
)
def test_masked_rounds_are_those_of_one_process(method: Any, rounds: int) -> None:
    tried = two_groups()
    found = over_flower(method, tried, rounds, mods=mods(), boundary=MASKED_)
    expected = play(method, tried, rounds, boundary=MASKED_)
    for one, other in zip(found, expected, strict=True):
        assert one.groups == other.groups
        torch.testing.assert_close(
            one.assignment.models, other.assignment.models, rtol=1e-4, atol=1e-5
        )
        assert (one.asked, one.answered, one.exchanges) == (
            other.asked,
            other.answered,
            other.exchanges,
        )


HIDDEN = SplitHalfPrivate(level=0.9, first_probe=1, levels=1, sketch=8)


def test_masked_rounds_of_a_hidden_plan_are_those_of_one_process() -> None:
    tried = two_groups()
    grid = Here(app_of(tried, mods()), 8)
    found = list(strategy_of(HIDDEN, tried, boundary=MASKED_).rounds(grid, 6))
    expected = play(HIDDEN, tried, 6, boundary=MASKED_)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(
            one.assignment.models, other.assignment.models, rtol=1e-4, atol=1e-5
        )
        assert one.groups == (tuple(range(8)),)  # the server does not know them
    assert len(found[-1].assignment.models) > 1
    assert expected[-1].groups == ((0, 2, 4, 6), (1, 3, 5, 7))
    said = {
        key
        for asked, reply in grid.messages
        if reply is not None and reply.has_content() and asked.metadata.message_type == "train"
        for record in reply.content.metric_records.values()
        for key in record
    }
    assert said == {"num-examples"}


NOISY = Boundary(masks=True, clip=0.5, noise=2.0, honest=0.75)


@pytest.mark.parametrize("method", [FedAvg(), HIDDEN], ids=lambda method: method.name)
def test_clients_add_as_much_noise_as_one_process_says(method: Any) -> None:
    """The mean of eight updates has noise of z C / sqrt(8 honest) / 8 sqrt(8) on each number, and more in slots."""
    tried, quiet = two_groups(), replace(NOISY, noise=1e-6)
    over = [
        over_flower(method, tried, 1, mods=mods(one), boundary=one)[0] for one in (NOISY, quiet)
    ]
    here = [play(method, tried, 1, boundary=one)[0] for one in (NOISY, quiet)]
    slots = 1.0 if method.name == "fedavg" else (1 + COUNT_WEIGHT**2) ** 0.5
    clip = here[0].position.state.clip if method is HIDDEN else 0.5
    expected = 2.0 * clip / (8 * 0.75) ** 0.5 * 8**0.5 / 8 * slots
    for noisy, plain in (over, here):
        models = [one.assignment.models[0][:75] for one in (noisy, plain)]
        deviation = float((models[0] - models[1]).std())
        assert 0.75 * expected < deviation < 1.3 * expected
        assert noisy.released == dict.fromkeys(range(8), 1 if method.name == "fedavg" else 2)


@pytest.mark.parametrize(
    ("method", "change", "said"),
    [
        (
            FedAvg(),
            {"clip": 1e-9},
            r"boundary\.bound is 1, and must be at most [\d.]+ with boundary\.noise 2, updates of norm 1e-09",
        ),
        (
            HIDDEN,
            {"noise": 1e-9, "bound": 1e-3},
            r"boundary\.noise is 1e-09, too small for 8 clients in a masked sum",
        ),
    ],
    ids=["bound", "noise"],
)
def test_noise_that_would_be_rounded_away_is_refused_before_the_first_message(
    method: Any, change: dict[str, float], said: str
) -> None:
    tried, boundary = two_groups(), replace(NOISY, **change)
    grid = Here(app_of(tried, mods(boundary)), 8)
    with pytest.raises(SettingError, match=said):
        list(strategy_of(method, tried, boundary=boundary).rounds(grid, 1))
    assert not any(asked.metadata.message_type == "train" for asked, _ in grid.messages)


def test_the_largest_bound_that_is_named_is_allowed_and_a_larger_one_is_not() -> None:
    noise = NoiseShare(update=1e-6, count=0.0, answer=0.0)
    widest = SumLayout(d=5, answer_size=0, max_clients=40, bound=1.0, noise=noise).max_bound
    bounds = (0.999 * widest, 1.001 * widest)
    assert [
        SumLayout(d=5, answer_size=0, max_clients=40, bound=bound, noise=noise).drowned_by
        for bound in bounds
    ] == ["", "bound"]


def test_a_sum_with_the_noise_of_too_few_is_not_read() -> None:
    tried = two_groups()
    grid = Here(app_of(tried, mods(NOISY)), 8)
    gone = grid.get_node_ids()[:3]

    def fate(message: Message) -> Any:
        step = '"step"' in str(message.content.config_records["config"].get(MASKS))
        task = message.metadata.message_type == "train" and not step
        return "silent" if task and message.metadata.dst_node_id in gone else None

    grid.fate = fate
    (done,) = strategy_of(FedAvg(), tried, boundary=NOISY).rounds(grid, 1)
    assert any(
        "5 of 8 clients have added noise, which is too few" in note.text for note in done.notes
    )


def test_a_client_with_noise_says_nothing_that_no_noise_covers() -> None:
    """Such a plan is refused before the first round; a server without noise, which sends it, gets nothing."""
    with pytest.raises(SettingError, match="cannot be used with split-half-sums"):
        play(QUICK, two_groups(), 1, boundary=NOISY)
    tried = two_groups()
    grid = Here(app_of(tried, mods(NOISY)), 8)
    with pytest.raises(RefusedError):
        list(strategy_of(QUICK, tried, boundary=MASKED_).rounds(grid, 1))
    asked = [
        (str(a.content.config_records["config"].get("coterie", "")), r) for a, r in grid.messages
    ]
    assert asked
    replies = [
        r
        for a, r in grid.messages
        if r is not None and r.has_content() and a.metadata.message_type == "train"
    ]
    assert not any(MASKED in name for reply in replies for name in reply.content.array_records)


def test_a_client_does_not_unmask_a_sum_without_the_noise_of_its_neighbours() -> None:
    masker, name = Masker(0, b"sum"), b"sum".hex()
    others = {c: Masker(c, b"sum") for c in range(1, 6)}
    keys = {0: masker.keys(), **{c: each.keys() for c, each in others.items()}}
    own = masker.shares(keys, 4)
    assert len(own) == 5
    masker.masked(
        {c: each.shares(keys, 4)[0] for c, each in others.items()}, np.zeros(3, dtype=np.uint32)
    )
    context = Context(
        0, 0, {}, RecordDict({f"{MASKS}-{name}": ConfigRecord({"masker": masker.saved()})}), {}
    )
    step = step_message("unmask", 0, {name: [0, 1, 2, 3]})
    with pytest.raises(ProtocolError, match="too few neighbours have added noise"):
        reply_to_step(step, context, NOISY, answers_once=False)
    assert reply_to_step(
        step, context, MASKED_, answers_once=False
    )  # four of six can unmask a sum without noise


def test_a_client_does_not_count_noise_of_neighbours_whose_shares_it_was_not_given() -> None:
    masker, name = Masker(0, b"sum"), b"sum".hex()
    others = {c: Masker(c, b"sum") for c in range(1, 5)}
    keys = {0: masker.keys(), **{c: each.keys() for c, each in others.items()}}
    masker.shares(keys, 3)
    masker.masked({c: others[c].shares(keys, 3)[0] for c in (1, 2)}, np.zeros(3, dtype=np.uint32))
    context = Context(
        0, 0, {}, RecordDict({f"{MASKS}-{name}": ConfigRecord({"masker": masker.saved()})}), {}
    )
    step = step_message("unmask", 0, {name: [0, 1, 2, 3, 4]})
    with pytest.raises(ProtocolError, match="too few neighbours have added noise"):
        reply_to_step(step, context, NOISY, answers_once=False)
    assert reply_to_step(step, context, MASKED_, answers_once=False)


@pytest.mark.parametrize(
    "kept", [True, False], ids=["in the node's folder", "in the system's folder"]
)
def test_a_step_of_a_sum_is_answered_once_even_by_copies_of_the_nodes_state(
    kept: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Flower hands messages that arrive at the same time a copy of the state each."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    name, members = b"sum".hex(), range(3)
    config = {"keep-dir": str(tmp_path / "node")} if kept else {}
    contexts = {c: Context(0, c, dict(config), RecordDict(), {}) for c in members}

    def copied(context: Context) -> Context:
        records = {
            key: ConfigRecord(dict(record)) for key, record in context.state.config_records.items()
        }
        return Context(0, 0, dict(context.node_config), RecordDict(records), {})

    def said(c: int, step: str, told: Any, context: Context | None = None) -> Any:
        content = reply_to_step(step_message(step, c, told), context or contexts[c], MASKED_)
        return json.loads(str(content[MASKS][MASKS]))[name]

    keys = {c: said(c, "keys", [name]) for c in members}
    earlier = copied(contexts[0])
    shares = {
        c: said(c, "shares", {name: [{o: keys[o] for o in members if o != c}, 2]}) for c in members
    }
    with pytest.raises(ProtocolError, match="has answered this step"):
        said(0, "shares", {name: [{1: keys[1], 9: keys[2]}, 2]}, earlier)
    for c in members:
        masker = Masker.restored(contexts[c].state[f"{MASKS}-{name}"]["masker"])  # type: ignore[arg-type]
        masker.masked(
            {o: bytes.fromhex(shares[o][str(c)]) for o in members if o != c},
            np.zeros(2, dtype=np.uint32),
        )
        contexts[c].state[f"{MASKS}-{name}"] = ConfigRecord({"masker": masker.saved()})
    earlier = copied(contexts[0])
    assert said(0, "unmask", {name: [0, 1, 2]})
    with pytest.raises(ProtocolError, match="has answered this step"):
        said(0, "unmask", {name: [0, 1, 2]}, earlier)


def test_a_client_that_cannot_save_that_it_answers_sends_nothing(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    context, name = (
        Context(0, 0, {"keep-dir": str(tmp_path / "file")}, RecordDict(), {}),
        b"sum".hex(),
    )
    reply_to_step(step_message("keys", 0, [name]), context, MASKED_)
    with pytest.raises(
        ProtocolError, match="this client cannot save that it answers; a folder keep-dir"
    ) as found:
        reply_to_step(step_message("shares", 0, {name: [{}, 1]}), context, MASKED_)
    assert str(tmp_path) not in str(found.value)


def test_old_marks_are_removed(tmp_path: Path) -> None:
    folder = tmp_path / "masked-sums"
    folder.mkdir()
    for mark, age in (("old", 2 * MAX_MARK_SECONDS), ("new", 60.0)):
        (folder / mark).write_text("")
        os.utime(folder / mark, (time.time() - age,) * 2)
    context = Context(0, 0, {"keep-dir": str(tmp_path)}, RecordDict(), {})
    reply_to_step(step_message("keys", 0, [b"sum".hex()]), context, MASKED_)
    assert [path.name for path in folder.iterdir()] == ["new"]


def test_an_update_that_is_not_finite_makes_no_client_fail_under_noise() -> None:
    """Its failure would say that its data are odd."""
    data = client(3)
    assert isinstance(data.train.inputs, torch.Tensor)
    broken = replace(data, train=replace(data.train, inputs=data.train.inputs * torch.inf))
    sound = {c: client(c) for c in range(8)}
    found, expected = (
        over_flower(
            SplitHalfPrivate(first_probe=1),
            world(clients=each, model=mlp),
            2,
            mods=mods(NOISY),
            boundary=NOISY,
        )
        for each in ({**sound, 3: broken}, sound)
    )
    assert all(not done.refused for done in found)
    assert [done.answered / done.exchanges for done in found] == [
        done.answered / done.exchanges for done in expected
    ]


def test_a_run_under_masks_divides_and_merges() -> None:
    """What the test above compares has groups: otherwise it would show nothing."""
    done = play(QUICK, two_groups(), 5, boundary=MASKED_)
    assert done[-1].groups == ((0, 2, 4, 6), (1, 3, 5, 7))
    assert any(one.exchanges > 3 for one in done)


def test_the_server_receives_no_number_of_a_single_client() -> None:
    """Every array of a reply is uniform, whatever the update is, and every metric the same for all."""
    tried = two_groups()
    grid = Here(app_of(tried, mods()), 8)
    list(strategy_of(QUICK, tried, boundary=MASKED_).rounds(grid, 5))
    arrays, metrics = [], set()
    for asked, reply in grid.messages:
        if reply is None or not reply.has_content() or asked.metadata.message_type != "train":
            continue
        for name, record in reply.content.array_records.items():
            assert name.startswith(MASKED)
            arrays.append(record[MASKED].numpy())
        for record in reply.content.metric_records.values():
            metrics |= {
                (key, value if key == "num-examples" else None)
                for key, value in ((k, str(v)) for k, v in record.items())
            }
    assert {name for name, _ in metrics} <= {"num-examples", "chosen", "cell"}
    assert ("num-examples", "1") in metrics
    numbers = np.concatenate(arrays)
    assert numbers.dtype == np.uint32
    assert len(numbers) > 3000
    shares = np.histogram(numbers, bins=16, range=(0, 2**32))[0] / len(numbers)
    assert abs(shares - 1 / 16).max() < 5 * (1 / 16 / len(numbers)) ** 0.5


def reachable(root: Any, without: Any) -> Iterator[Any]:
    """All tensors and arrays that an object refers to, but through ``without``, classes, modules and functions."""
    seen, left = {id(without)}, [root]
    while left:
        one = left.pop()
        if id(one) in seen or isinstance(one, (type, ModuleType, FunctionType)):
            continue
        seen.add(id(one))
        if type(one) in (torch.Tensor, np.ndarray):
            yield one
        left += gc.get_referents(one)


def test_nothing_of_a_single_client_is_in_the_servers_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whatever the server holds, after each reply and each round, has no client's update, plain or encoded."""
    plain: list[np.ndarray] = []
    encode, add, checked = SumLayout.encode, MaskedSum.add, []

    def noted(self: SumLayout, update: Any, weight: float, *more: Any) -> np.ndarray:
        numbers = encode(self, update, weight, *more)
        plain.extend([numbers, numbers[: self.d], update.numpy().copy(), weight * update.numpy()])
        return numbers

    def look() -> None:
        for held in reachable(strategy, grid):
            values = np.asarray(held).ravel()
            for row in plain:
                assert not (
                    values.size == row.size and np.allclose(values.astype(float), row.astype(float))
                ), values
            checked.append(values.size)

    def added(self: MaskedSum, client: int, masked: np.ndarray) -> None:
        add(self, client, masked)
        look()

    monkeypatch.setattr(SumLayout, "encode", noted)
    monkeypatch.setattr(MaskedSum, "add", added)
    tried = world(ids=range(5), model=mlp)
    strategy, grid = strategy_of(FedAvg(), tried, boundary=MASKED_), Here(app_of(tried, mods()), 5)
    for _ in strategy.rounds(grid, 2):
        look()
    assert len(plain) == 4 * 10
    assert {75, 77} <= set(checked)  # models, and totals
    plain.append(strategy.last.position.state.model.numpy())  # type: ignore[attr-defined]
    with pytest.raises(AssertionError):
        look()  # it finds what is there


@pytest.mark.parametrize("step", ["keys", "shares", "task", "unmask"])
def test_a_client_that_falls_silent_at_any_step_spoils_nothing(step: str) -> None:
    tried = world(ids=range(6), model=mlp)
    grid = Here(app_of(tried, mods()), 6)
    gone = grid.get_node_ids()[2]

    def fate(message: Message) -> Any:
        if message.metadata.dst_node_id != gone or message.metadata.message_type != "train":
            return None
        text = str(message.content.config_records["config"].get(MASKS, ""))
        at = next(
            (name for name in ("keys", "shares", "unmask") if f'"step": "{name}"' in text), "task"
        )
        return "silent" if at == step else None

    grid.fate = fate
    (done,) = strategy_of(FedAvg(), tried, boundary=MASKED_).rounds(grid, 1)
    expected = play(FedAvg(), tried, 1, boundary=MASKED_)[0]
    if step == "unmask":  # its numbers have arrived
        torch.testing.assert_close(
            done.assignment.models, expected.assignment.models, rtol=1e-4, atol=1e-5
        )
        return
    others = world(ids=range(6), model=mlp)
    others.clients.pop(2)
    assert done.answered == 5
    assert not torch.allclose(
        done.assignment.models, expected.assignment.models, rtol=1e-4, atol=1e-5
    )
    assert torch.isfinite(done.assignment.models).all()
    assert done.assignment.models.abs().max() < 2


def test_two_clients_are_too_few_and_the_record_says_so() -> None:
    tried = world(ids=range(2), model=mlp)
    found = over_flower(FedAvg(), tried, 1, mods=mods(), boundary=MASKED_)
    assert "a masked sum was not formed: a masked sum needs three clients or more, got 2" in [
        n.text for n in found[0].notes
    ]
    assert found[0].answered == 0


@pytest.mark.parametrize("method", [CFL(), FLHC(), IFCA()], ids=lambda method: method.name)
def test_a_method_that_needs_single_updates_is_refused_before_the_first_round(method: Any) -> None:
    with pytest.raises(
        SettingError, match=f"Boundary.masks must be false for {method.name}, got true"
    ):
        play(method, world(model=mlp), 1, boundary=MASKED_)


def test_a_client_sends_no_plain_update_to_a_server_that_forgets_the_masks() -> None:
    tried = world(ids=range(4), model=mlp)
    grid = Here(app_of(tried, mods()), 4)
    with pytest.raises(RefusedError):
        list(strategy_of(FedAvg(), tried).rounds(grid, 1))
    replies = [
        reply
        for asked, reply in grid.messages
        if reply is not None and asked.metadata.message_type == "train"
    ]
    assert replies
    assert not any(reply.has_content() and reply.content.array_records for reply in replies)


@pytest.mark.parametrize(
    "lie", ["no update", "no question", "another size", "more slots", "a clip below the steps"]
)
def test_a_client_sends_no_more_in_a_sum_than_it_has_counted(lie: str, tmp_path: Path) -> None:
    """A server that asks for an update in the form of the sum, and for none in the task, gets nothing."""
    tried = world(ids=range(8), model=mlp)
    app = app_of(tried, [boundary_mod(NOISY, mlp, simulated=0, budget=100.0)])

    def changed(message: Message) -> Message:
        config = message.content.get("config")
        if isinstance(config, ConfigRecord) and "coterie" in config and MASKS in config:
            (order,), told = json.loads(str(config["coterie"])), json.loads(str(config[MASKS]))
            (about,) = told.values()
            if lie == "no update":
                order["task"]["private"]["sends_update"] = order["sums"] = False
            elif lie == "no question":
                about["form"][1] = 5
            elif lie == "more slots":
                about["form"][3] = 2
            elif lie == "a clip below the steps":
                order["clip"] = 1e-9
            else:
                about["form"][0] -= 1
            config["coterie"], config[MASKS] = json.dumps([order]), json.dumps(told)
        return message

    grid = Here(lambda m, c: app(changed(m), c), 8)  # type: ignore[arg-type]
    for context in grid.contexts.values():
        context.node_config["keep-dir"] = str(tmp_path)
    with pytest.raises(RefusedError):
        list(strategy_of(FedAvg(), tried, boundary=NOISY).rounds(grid, 1))
    replies = [
        r
        for a, r in grid.messages
        if r is not None and r.has_content() and a.metadata.message_type == "train"
    ]
    assert not any(MASKED in name for reply in replies for name in reply.content.array_records)


def test_changes_beyond_the_bound_are_cut_and_said() -> None:
    boundary = Boundary(masks=True, bound=1e-4)
    tried = world(ids=range(4), model=mlp)
    found = over_flower(FedAvg(), tried, 1, mods=mods(boundary), boundary=boundary)
    expected = play(FedAvg(), tried, 1, boundary=boundary)
    torch.testing.assert_close(
        found[0].assignment.models, expected[0].assignment.models, rtol=1e-4, atol=1e-7
    )
    # A simulation said nothing of it.
    for done in (found[0], expected[0]):
        assert "4 of 4 updates were cut: they had changes beyond boundary.bound 0.0001" in [
            note.text for note in done.notes if note.effect == "warns"
        ]
    wide_bound = replace(boundary, bound=10.0)
    assert not play(FedAvg(), tried, 1, boundary=wide_bound)[0].notes


@pytest.mark.parametrize("settings", [{"rotation": "permute"}, {"compress": "8bit"}], ids=str)
def test_masks_do_not_go_with_other_operations(settings: dict[str, Any]) -> None:
    with pytest.raises(SettingError, match=r"Boundary\.masks true needs Boundary"):
        Boundary(masks=True, **settings)


def test_weights_updates_and_answers_add_up() -> None:
    form, rng = SumLayout(d=5, answer_size=3, max_clients=4, bound=2.0), np.random.default_rng(0)
    updates, weights, answers = (
        rng.normal(size=(4, 5)),
        rng.random(4),
        rng.uniform(-1, 1, size=(4, 3)),
    )
    total = np.zeros(form.size, dtype=np.uint32)
    for update, weight, answer in zip(updates, weights, answers, strict=True):
        total += form.encode(torch.from_numpy(update), weight, answer)
    rows, weight, cut, answer = form.decode(total)
    np.testing.assert_allclose(rows[0], (weights[:, None] * updates.clip(-2, 2)).sum(0), atol=1e-7)
    np.testing.assert_allclose(answer, answers.sum(0), atol=1e-7)
    assert weight[0] == pytest.approx(weights.sum(), abs=1e-7)
    assert cut == (abs(updates) > 2).any(axis=1).sum()


def test_slots_of_clients_add_up_and_noise_is_as_large_as_it_says() -> None:
    boundary, n, d = Boundary(masks=True, clip=1.0, noise=3.0, honest=1.0), 200, 40
    noise = NoiseShare.of(boundary, n, True, 1.0, 4)
    assert noise is not None
    form, rng = (
        SumLayout(d=d, answer_size=50, max_clients=n, bound=1.0, slots=3, noise=noise),
        np.random.default_rng(1),
    )
    total, slots = np.zeros(form.size, dtype=np.uint32), rng.integers(0, 3, n)
    for slot in slots:
        update = torch.zeros(d)
        update[0] = 1.0
        total += form.encode(update, 1.0, np.zeros(50), int(slot), rng.standard_normal)
    rows, counts, _, answer = form.decode(total)
    both = (1 + COUNT_WEIGHT**2) ** 0.5
    expected = np.bincount(slots, minlength=3)
    assert abs(rows[:, 0] - expected).max() < 5 * 3 * both
    assert abs(counts - expected).max() < 5 * 3 * both / COUNT_WEIGHT
    assert rows[:, 1:].std() == pytest.approx(3 * both, rel=0.3)
    assert answer.std() == pytest.approx(3 / 2, rel=0.5)  # a question that costs four updates


def test_layers_that_stay_at_a_client_have_no_noise() -> None:
    tried = two_groups()
    noisy = [
        over_flower(FedPer(), tried, 1, mods=mods(NOISY), boundary=NOISY)[0],
        play(FedPer(), tried, 1, boundary=NOISY)[0],
    ]
    still = play(FedPer(), tried, 1, boundary=replace(NOISY, noise=1e-9))[0]
    for one in noisy:
        same = one.assignment.models[0] == still.assignment.models[0]
        assert 0 < int(same.sum()) < len(same)


@pytest.mark.parametrize(
    "change", [{"scale": 1e-31}, {"scale": 1e31}, {"low": 1.0}, {"cost": 0}], ids=str
)
def test_a_question_whose_answer_may_overflow_is_refused(change: dict[str, float]) -> None:
    """An overflow at some clients alone would say something of each."""
    stated = question_to_json(CellQuestion(ask="norms"))
    assert stated
    assert question_from_json(stated) is not None
    with pytest.raises(ValueError, match="CellQuestion needs something to ask, finite numbers"):
        question_from_json({**stated, **change})
