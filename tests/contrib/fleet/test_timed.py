"""Virtual time: rounds of equal devices are the method itself; FedBuff by hand; deadlines; probes freeze a version."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.flop_counter import FlopCounterMode

import coterie
from coterie.cli import main
from coterie.contrib.fleet import Device, Rhythm, Timed, timed
from coterie.contrib.fleet.devices import (
    DEVICE_CLASSES,
    OPERATIONS_OF_MEASURED_BATCH,
    SECONDS_OF_DAY,
    TaskWork,
    drawn,
    shares_of_classes,
    work_of,
)
from coterie.contrib.fleet.timed import bears_old_updates
from coterie.core import Cohort, Plan, Replies, Round, Task, Training
from coterie.methods import CFL, FedAvg, SplitHalf
from coterie.runs.unused_settings import unused_settings
from coterie.settings import SettingError, UserError
from small import world

EQUAL: dict[str, Any] = {"devices": ("middle=1",), "spread": 0.0}


def made_rounds(method: Any, count: int, seed: int = 0) -> list[Round]:
    """The rounds of a small world of four clients."""
    return list(coterie.run(method, world(), rounds=count, seed=seed, workers=1, eval_every=count))


def clock(done: Round) -> dict[str, float]:
    """The numbers of a round's clock; of an exchange that asked for sizes there is none."""
    (note,) = [note for note in done.notes if note.kind == "clock"]
    return dict(note.numbers)


# -- devices
# -------------------------------------------------------------------------------------------------


def test_a_task_takes_its_bytes_and_its_operations() -> None:
    device = Device(name="middle", operations=1e6, down=1e3, up=500.0, phase=0.0)
    # One epoch of 10 examples on 50 parameters, 6 operations each; 4 bytes a number.
    work = work_of(Task(offered=(0,)), Training(), 10, 50, 0, 6.0)
    assert work == TaskWork(operations=3_000.0, bytes_down=200.0, bytes_up=200.0)
    assert device.seconds(work) == pytest.approx(0.2 + 0.003 + 0.4)


def test_what_a_task_asks_of_a_device() -> None:
    def operations(task: Task, **training: Any) -> float:
        return work_of(task, Training(**training), 10, 1, 0, 1.0).operations

    assert operations(Task(offered=(0,)), epochs=3) == 30
    assert operations(Task(offered=(0,)), steps=7, batch=4) == 28
    assert operations(Task(offered=(0,)), steps=7, batch=0) == 70
    assert operations(Task(offered=(0,), epochs=0)) == 0
    assert operations(Task(offered=(0,), gradient=True)) == 10
    # Three models are measured by forward passes, a third of the work of training.
    assert operations(Task(offered=(0, 1, 2))) == pytest.approx(10 + 10)
    halves = work_of(Task(offered=(0,), halves=True), Training(), 10, 50, 20, 1.0)
    assert (halves.bytes_down, halves.bytes_up) == (4 * 30, 2 * 4 * 30)


@given(st.floats(0.05, 1.0), st.floats(0, 3 * SECONDS_OF_DAY), st.floats(0, SECONDS_OF_DAY))
def test_after_the_wait_a_client_is_available(share: float, now: float, phase: float) -> None:
    device = Device(name="slow", operations=1.0, down=1.0, up=1.0, phase=phase)
    rhythm = Rhythm(share)
    wait = rhythm.wait(device, now)
    assert 0 <= wait <= (1 - share) * SECONDS_OF_DAY + 1e-6
    # A millisecond later than the wait, for rounding.
    assert rhythm.wait(device, now + wait + 1e-3 * (wait > 0)) == 0


def test_devices_are_drawn_by_client_and_seed() -> None:
    shares = shares_of_classes(("fast=1", "slow=3"), "timed.devices")
    assert shares == {"fast": 0.25, "slow": 0.75}
    devices = [drawn(client, shares, 0.0, 7) for client in range(2_000)]
    num_slow = sum(device.name == "slow" for device in devices)
    # Three standard deviations of a binomial.
    assert abs(num_slow - 1_500) < 3 * math.sqrt(2_000 * 0.25 * 0.75)
    assert {device.operations for device in devices} == {
        DEVICE_CLASSES["fast"].operations,
        DEVICE_CLASSES["slow"].operations,
    }
    assert devices[5] == drawn(5, shares, 0.0, 7)
    assert drawn(5, shares, 0.5, 7) != drawn(5, shares, 0.5, 8)


def test_a_measured_phone_takes_the_time_that_was_measured() -> None:
    """Ten images on the CNN of the measurement: 3,136 · 2,048 and other products, see there."""
    batch = TaskWork(operations=OPERATIONS_OF_MEASURED_BATCH, bytes_down=0.0, bytes_up=0.0)
    for name, seconds in (("nexus-6", 1.642), ("redmi-note-8", 0.588), ("galaxy-note-10", 0.179)):
        device = drawn(0, {name: 1.0}, 0.0, 0)
        assert device.name == name
        assert device.seconds(batch) == pytest.approx(seconds)
    # The forward pass of the network, from PyTorch's own count: two operations for a product.
    with torch.device("meta"):
        network = torch.nn.Sequential(
            torch.nn.Conv2d(1, 32, 5, padding="same"),
            torch.nn.MaxPool2d(2),
            torch.nn.Conv2d(32, 64, 5, padding="same"),
            torch.nn.MaxPool2d(2),
            torch.nn.Flatten(),
            torch.nn.Linear(3136, 2048),
            torch.nn.Linear(2048, 62),
        )
        with FlopCounterMode(display=False) as counter:
            network(torch.zeros(10, 1, 28, 28))
    assert 3 * counter.get_total_flops() == OPERATIONS_OF_MEASURED_BATCH


def test_energy_is_power_times_seconds() -> None:
    device = Device(name="server", operations=1e6, down=1e3, up=500.0, phase=0.0)
    work = TaskWork(operations=3e6, bytes_down=2e3, bytes_up=500.0)
    # 200 W for three seconds of training, 10 W for two of receiving and one of sending.
    assert device.joules(work) == pytest.approx(200 * 3 + 10 * (2 + 1))


def test_few_time_zones_have_the_same_night() -> None:
    phases = [drawn(client, {"slow": 1.0}, 0.0, 0, time_zones=2.0).phase for client in range(200)]
    assert 0 <= min(phases) < max(phases) <= SECONDS_OF_DAY / 12
    whole_day = [drawn(client, {"slow": 1.0}, 0.0, 0).phase for client in range(200)]
    assert np.allclose(np.array(whole_day) / 12, phases)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"memory": 16.0}, "timed.memory must be at most 8, what a class of timed.devices has"),
        ({"time_zones": 25.0}, "time_zones"),
        ({"devices": ("quick=1",)}, "quick"),
        ({"devices": ("fast",)}, "such as fast=0.25"),
        ({"devices": ("fast=-1",)}, "fast=-1"),
        ({"devices": ()}, "must name a class"),
        ({"mode": "asynchronous"}, "rounds, buffered"),
        ({"method": FedAvg(fraction=0.5), "mode": "buffered"}, "timed.concurrency"),
    ],
)
def test_mistakes_are_told(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingError, match=message):
        Timed(**settings)


# -- rounds
# -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", [FedAvg(), FedAvg(weighting="uniform"), CFL()])
def test_rounds_that_wait_for_all_are_those_of_the_method(method: Any) -> None:
    # The question for sizes is an exchange of its own, so batches would be in another order.
    few = world(training=Training(lr=0.1, batch=0))
    alone = list(coterie.run(method, few, rounds=4, seed=0, workers=1))
    timed = list(coterie.run(Timed(method=method), few, rounds=4, seed=0, workers=1))
    for own, other in zip(alone, timed, strict=True):
        assert own.groups == other.groups
        torch.testing.assert_close(own.assignment.models, other.assignment.models)


def test_a_round_takes_as_long_as_its_slowest_client() -> None:
    method = Timed(devices=("fast=0.5", "slow=0.5"))
    times = [clock(done) for done in made_rounds(method, 3)]
    assert all(numbers["replies"] == 4 for numbers in times)
    # Every round has the same tasks, so it takes the same time.
    seconds = [numbers["seconds of the step"] for numbers in times]
    assert seconds == pytest.approx([seconds[0]] * 3)
    assert times[-1]["virtual seconds"] == pytest.approx(3 * seconds[0])


def test_a_deadline_leaves_the_slow_clients_out_and_costs_their_work() -> None:
    slowest = clock(made_rounds(Timed(), 1)[0])["seconds of the step"]
    done = made_rounds(Timed(deadline=0.8 * slowest), 1)[0]
    numbers = clock(done)
    assert numbers["seconds of the step"] == pytest.approx(0.8 * slowest)
    assert numbers["replies"] < 4
    num_late = 4 - numbers["replies"]
    # They worked until the deadline.
    assert numbers["lost device seconds"] == pytest.approx(num_late * 0.8 * slowest)


def test_a_round_with_more_clients_than_needed_ends_with_the_first() -> None:
    done = made_rounds(Timed(over_selection=2.0), 1)[0]
    assert clock(done)["replies"] == 2
    assert (
        clock(done)["seconds of the step"]
        < clock(made_rounds(Timed(), 1)[0])["seconds of the step"]
    )


@pytest.mark.parametrize("settings", [{}, {"mode": "buffered", "buffer": 1}])
def test_devices_without_enough_memory_never_take_part(settings: dict[str, Any]) -> None:
    method = Timed(devices=("fast=0.5", "slow=0.5"), memory=4.0, **settings)
    state = method.init(_federation())
    able = {client for client in state.clients if method.device(state, client).name == "fast"}
    assert 0 < len(able) < 4, "the test needs devices of both classes"
    for done in made_rounds(method, 6)[1:]:
        assert set(done.notes[-1].clients) <= able
        assert clock(done)["replies"] == (1 if settings else len(able))


def test_idle_time_and_energy_of_a_round() -> None:
    method = Timed(devices=("fast=0.5", "slow=0.5"))
    state = method.init(_federation())
    numbers = clock(made_rounds(method, 1)[0])
    training = world().training
    seconds, joules = [], []
    for client, client_data in world().clients.items():
        device = method.device(state, client)
        work = work_of(
            Task(offered=(0,)), training, len(client_data.train), state.parameters, 0, method.work
        )
        seconds.append(device.seconds(work))
        joules.append(device.joules(work))
    # All wait for the slowest.
    assert numbers["idle device seconds"] == pytest.approx(4 * max(seconds) - sum(seconds))
    assert numbers["joules"] == pytest.approx(sum(joules))
    # With a deadline, those that are late have spent the part of their energy until then.
    deadline = 0.8 * max(seconds)
    late = clock(made_rounds(replace(method, deadline=deadline), 1)[0])
    shares = [min(1.0, deadline / client_seconds) for client_seconds in seconds]
    expected = sum(share * energy for share, energy in zip(shares, joules, strict=True))
    assert late["joules"] == pytest.approx(expected)


def test_nobody_answers_if_all_tasks_fail() -> None:
    done = made_rounds(Timed(failures=0.999999), 2)[-1]
    assert clock(done)["replies"] == 0
    assert clock(done)["virtual seconds"] > 0


# -- without rounds
# -------------------------------------------------------------------------------------------------


def test_clients_that_arrive_start_anew_while_the_others_go_on() -> None:
    first, second, third = made_rounds(Timed(mode="buffered", buffer=2), 3)
    # All four are asked for their sizes before the first step.
    assert (first.asked, second.asked, third.asked) == (6, 2, 2)
    assert clock(first)["age of updates"] == 0
    assert max(clock(second)["age of updates"], clock(third)["age of updates"]) > 0


def test_the_first_step_averages_those_that_arrive_first() -> None:
    """One of four clients, of half the weight: half of what FedAvg makes of this client alone."""
    whole_step = made_rounds(Timed(mode="buffered", buffer=1), 1)[0].assignment.models[0]
    half_step = made_rounds(Timed(mode="buffered", buffer=1, server_lr=0.5), 1)[
        0
    ].assignment.models[0]
    start = FedAvg().init(_federation()).model
    torch.testing.assert_close(half_step - start, 0.5 * (whole_step - start))


def test_old_updates_count_less_and_move_the_model_of_now() -> None:
    """The replies that the method sees: means of updates times ``η_g (1 + τ)^-a``."""
    method = Timed(mode="buffered", buffer=1, staleness=2.0, server_lr=0.5)
    federation = _federation()
    timed_state = method.init(federation)
    sizes = dict.fromkeys(federation.clients, 20)
    timed_state = method._scheduled(replace(timed_state, sizes=sizes))
    cohort = Cohort(present=federation.clients, exchange=1, seed=0)
    ages = []
    for step in range(8):
        plan = method.plan(timed_state, cohort)
        (client,) = plan.tasks
        work = timed_state.progress[client]
        # The client trains from the model that it was sent.
        assert torch.equal(plan.models[0], timed_state.versions[work.version][0])
        update = torch.full((1, federation.parameters.stop), float(step + 1))
        replies = Replies(clients=(client,), examples=np.array([20]), updates=update)
        age = timed_state.server_step - work.version
        ages.append(age)
        before = timed_state.inner.model
        timed_state = method.step(timed_state, replies)
        expected = before + 0.5 * (1 + age) ** -2.0 * (step + 1)
        torch.testing.assert_close(timed_state.inner.model, expected)
        # Only models that some client has are kept.
        assert set(timed_state.versions) == {work.version for work in timed_state.progress.values()}
    assert ages[0] == 0
    assert max(ages) >= 2


def test_updates_of_one_age_are_scaled_by_the_formula() -> None:
    """With a buffer of all clients and equal devices nothing is old: FedBuff is FedAvg with η_g."""
    whole = made_rounds(Timed(mode="buffered", buffer=4, **EQUAL), 3)[-1]
    rounds = made_rounds(Timed(**EQUAL), 3)[-1]
    torch.testing.assert_close(whole.assignment.models, rounds.assignment.models)
    halved = made_rounds(Timed(mode="buffered", buffer=4, server_lr=0.5, **EQUAL), 1)[-1]
    full = made_rounds(Timed(mode="buffered", buffer=4, **EQUAL), 1)[-1]
    start = FedAvg().init(_federation()).model
    torch.testing.assert_close(
        halved.assignment.models[0] - start, 0.5 * (full.assignment.models[0] - start)
    )


def _federation() -> Any:
    from coterie.boundary import Boundary
    from coterie.engines.rounds import setup

    return setup(FedAvg(), world(), 0, Boundary())[1]


def test_probes_are_rounds_and_groups_train_between_them() -> None:
    method = Timed(method=SplitHalf(level=1e-3, probe_every=3), mode="buffered", buffer=2, **EQUAL)
    num_replies = [clock(done)["replies"] for done in made_rounds(method, 8)]
    assert set(num_replies) == {2, 4}


def test_which_plans_bear_old_updates() -> None:
    models = torch.zeros(2, 3)

    def plan(need: Any = "mean", **task: Any) -> Plan:
        return Plan(models=models, tasks={0: Task(**{"offered": (0,), **task})}, need=need)

    assert bears_old_updates(plan())
    assert not bears_old_updates(plan(need="rows"))
    assert not bears_old_updates(plan(offered=(0, 1)))
    assert not bears_old_updates(plan(halves=True))
    assert not bears_old_updates(plan(measure="train"))
    assert not bears_old_updates(Plan(models=models, tasks={}, need="mean"))
    assert not bears_old_updates(Plan(models=models[:0], tasks={}, parts={"a": plan()}))


def test_without_rounds_the_model_learns_as_much_in_less_time() -> None:
    scenario = coterie.SCENARIOS["digits/iid"].build(0)

    def last(timed: Timed, rounds: int) -> tuple[float, float]:
        *_, done = coterie.run(timed, scenario, rounds=rounds, seed=0, workers=1, eval_every=rounds)
        scores = [score["accuracy"] for score in (done.scores or {}).values()]
        return sum(scores) / len(scores), clock(done)["virtual seconds"]

    devices = ("fast=0.5", "slow=0.5")
    accuracy, seconds = last(Timed(devices=devices), 6)
    buffered_accuracy, buffered_seconds = last(
        Timed(mode="buffered", buffer=5, devices=devices), 24
    )
    assert buffered_accuracy > accuracy - 0.02
    assert buffered_seconds < 0.7 * seconds


# -- figures and records
# -------------------------------------------------------------------------------------------------


def test_runs_are_drawn_by_virtual_time_and_go_on_after_a_stop(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    methods = [Timed(), Timed(mode="buffered", buffer=2)]
    runs = coterie.begin(world(), tmp_path / "runs", methods=methods, rounds=4, seeds=[0, 1])
    for run in runs:
        for _ in zip(run.rounds(), range(2), strict=False):
            pass
    # The work in progress is in the checkpoint.
    runs.finish()
    again = coterie.begin(world(), tmp_path / "whole", methods=methods, rounds=4, seeds=[0, 1])
    again.finish()
    assert (
        coterie.compare(tmp_path / "runs")[0]["accuracy"]
        == coterie.compare(tmp_path / "whole")[0]["accuracy"]
    )
    drawn_file = coterie.plot(tmp_path / "runs", "time", tmp_path / "time.svg")
    assert "virtual time in seconds" in drawn_file.read_text()


def test_a_run_without_virtual_time_is_told(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    coterie.begin(world(), tmp_path / "runs", methods=["fedavg"], rounds=1).finish()
    with pytest.raises(UserError, match="only the method timed records: draw score"):
        coterie.plot(tmp_path / "runs", "time", tmp_path / "time.svg")


def test_curves_of_seeds_are_read_at_the_same_moments() -> None:
    from coterie.report.figures.several import _at_moments

    curves = _at_moments([{1: 0.1, 2: 0.2}, {1: 0.5, 2: 0.7}], [{1: 1.0, 2: 4.0}, {1: 2.0, 2: 3.0}])
    # Seed 0 is tested at 1 and 4 s, seed 1 at 2 and 3 s; both have a value from 2 s to 3 s.
    assert curves == [{2.0: 0.1, 3.0: 0.1}, {2.0: 0.5, 3.0: 0.7}]


TOO_SHORT = (
    r"timed\.deadline .* is too short: the fastest of 4 clients needs .* seconds for its task"
)


def test_a_deadline_that_no_client_can_meet_is_refused_before_the_first_round(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It ran to the end without a reply, and only the verdict said so."""
    seconds = [
        clock(done)["seconds of the step"] for done in made_rounds(Timed(over_selection=4), 1)
    ]
    for deadline in (1e-9, 0.99 * seconds[0]):
        with pytest.raises(SettingError, match=TOO_SHORT):
            next(coterie.run(Timed(deadline=deadline), world(), rounds=3, workers=1))
    # No file is written, and no other method runs before.
    with pytest.raises(SettingError, match=TOO_SHORT):
        coterie.begin(world(), tmp_path / "begun", [FedAvg(), Timed(deadline=0.99 * seconds[0])])
    words = ["run", "--scenario=synthetic/groups", "--method=fedavg", "--method=timed"]
    words += ["--set=timed.deadline=1e-6", "--rounds=3", f"--out={tmp_path / 'run'}"]
    assert main(words) == 2
    printed = capsys.readouterr()
    assert printed.err.startswith("coterie: timed.deadline 1e-06 is too short: the fastest of ")
    assert printed.out == ""
    assert not list(tmp_path.iterdir())


def test_memory_that_no_device_has_is_refused_before_the_first_round() -> None:
    """A class has it, and none of the four clients has a device of this class."""
    method = Timed(devices=("fast=0.0001", "slow=1"), memory=4.0)
    with pytest.raises(SettingError, match=r"timed\.memory 4 is more than .* of 4 clients has"):
        next(coterie.run(method, world(), rounds=3, workers=1))


def test_some_of_very_many_clients_cannot_show_that_none_takes_part(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of more than ten thousand clients, those that were asked first stood for all."""
    monkeypatch.setattr(timed, "MAX_EXAMINED", 2)
    method = Timed(devices=("fast=0.0001", "slow=1"), memory=4.0)
    rounds = made_rounds(method, 2)
    texts = [note.text for done in rounds for note in done.notes if note.effect == "warns"]
    assert texts[0].startswith("4 of 4 clients examined never take part")


def test_clients_that_never_reply_in_time_are_named_once(tmp_path: Path) -> None:
    equal_sizes = made_rounds(Timed(spread=0.0, over_selection=4), 1)[0]
    fastest = clock(equal_sizes)["seconds of the step"]
    method = Timed(spread=0.0, deadline=1.01 * fastest)
    rounds = made_rounds(method, 3)
    (warning,) = [note for done in rounds for note in done.notes if note.effect == "warns"]
    replied = {
        client for note in rounds[2].notes if note.kind == "clock" for client in note.clients
    }
    assert set(warning.clients) == set(world().clients) - replied
    assert 0 < len(replied) < 4
    assert "cannot meet timed.deadline" in warning.text
    # Who reads the verdict sees it, too.
    runs = coterie.begin(world(), tmp_path / "run", [method], rounds=3, workers=1).finish()
    assert f"With timed, {warning.text}." in coterie.compare(runs).verdict()
    # A client that has to wait until it is available may be in time on another day.
    sleepy = made_rounds(Timed(deadline=10.0, available=0.2), 2)
    assert not [note for done in sleepy for note in done.notes if note.effect == "warns"]


def test_a_deadline_counts_in_buffered_mode_where_versions_are_frozen() -> None:
    """A sentence said that it had no effect."""
    buffered = Timed(method=SplitHalf(first_probe=2), mode="buffered", deadline=100.0)
    assert not [text for text in unused_settings(None, [buffered], 9) if "deadline" in text]
    with pytest.raises(SettingError, match=TOO_SHORT):
        next(coterie.run(Timed(method=CFL(), mode="buffered", deadline=1e-9), world(), rounds=1))


def test_rounds_without_a_reply_are_said_by_the_verdict(tmp_path: Path) -> None:
    runs = coterie.begin(
        "synthetic/groups",
        tmp_path / "run",
        [Timed(failures=0.999999), FedAvg()],
        rounds=3,
        workers=1,
    ).finish()
    verdict = coterie.compare(runs).verdict()
    assert "With timed, no reply arrived in 2 of 3 rounds, in which nothing was learned." in verdict
    assert "With fedavg, no reply" not in verdict
