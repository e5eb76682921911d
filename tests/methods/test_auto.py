"""Auto: clients that leave or are silent, tiny federations and clients, held-out data, another start; and the command line."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import coterie
import small
from coterie.cli import main
from coterie.core import Cohort, Holdout, Note, Round
from coterie.data.attendance import Attendance
from coterie.data.scenario import SCENARIOS
from coterie.data.world import World, whole
from coterie.engines.rounds import rounds
from coterie.methods import Auto, FedAvg
from coterie.records.record import Record
from coterie.training.blocks import Block
from coterie.training.learner import Learner
from scripted import bits
from worlds import THREE, grouped, last

FEDAVG, HALVES, ALONE = "tuned-fedavg", "tuned-split-half", "independent"


def digits(name: str = "iid", clients: int = 6, **how: Any) -> World:
    shares = {"train": 0.6, "validation": 0.2, **how}
    return replace(SCENARIOS[f"digits/{name}"], clients=clients, groups=2, **shares).build(0)


def run(method: Any, world: World, count: int, **how: Any) -> list[Round]:
    return list(rounds(method, world, rounds=count, **{"workers": 1, **how}))


def notes(done: Sequence[Round], kind: str) -> list[tuple[int, Note]]:
    return [(one.number, note) for one in done for note in one.notes if note.kind == kind]


# -- clients that leave or are silent
# -----------------------------------------------------------------------------------------


def test_all_may_leave() -> None:
    method, world = Auto(), grouped(THREE)
    state = method.retire(last(method, world, 2).state, world.clients)
    end = last(method, world, 1, state=method.admit(state, (2, 17)), first=2)
    assert set(end.state.arms) == {FEDAVG, HALVES, ALONE}


def test_nobody_answers_and_all_goes_on() -> None:
    done = run(
        Auto(patience=1),
        small.world(attendance=Attendance(away={c: [(1, 5)] for c in (2, 3, 7, 11)})),
        7,
    )
    assert done[4].answered == 0
    assert done[6].answered == 4


# -- tiny federations and clients
# ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ids", [(7,), (2, 7)])
@pytest.mark.parametrize("validation", [0, 6])
def test_one_or_two_clients(ids: tuple[int, ...], validation: int) -> None:
    world = small.world(ids=ids, clients={c: small.client(c, validation=validation) for c in ids})
    done = run(Auto(patience=2), world, 10)
    for one in done:
        assert sorted(one.assignment.row) == list(ids)
        assert one.scores is not None
        assert torch.isfinite(one.assignment.models).all()
    assert bits(done[-1].position)


@pytest.mark.parametrize("count", [1, 2, 3])
def test_clients_of_few_examples(count: int) -> None:
    """Nothing can be held out of one example; one of two or three says nothing of its own noise."""
    ids = (2, 3, 7, 11)
    world = small.world(ids, clients={c: small.client(c, train=count, validation=0) for c in ids})
    done = run(Auto(patience=20), world, 8)
    state = done[-1].position.state
    seen = [reports for reports in state.seen.values() if reports]
    if count == 1:
        assert not seen
        assert not state.losses
        assert state.leader == FEDAVG  # without evidence the simplest serves
        assert done[-1].assignment.plain == ids
    else:
        assert set(state.losses) == set(ids)
    assert bits(done[-1].position)


def test_one_client_with_few_examples_beside_others() -> None:
    ids = (2, 3, 7, 11)
    clients = {c: small.client(c, train=1 if c == 7 else 20, validation=0) for c in ids}
    state = run(Auto(), small.world(ids, clients=clients), 4)[-1].position.state
    assert {client for reports in state.seen.values() for client in reports} == {2, 3, 11}


# -- held-out examples
# --------------------------------------------------------------------------------------------------------


def test_held_out_examples_are_in_no_training(monkeypatch: pytest.MonkeyPatch) -> None:
    used: dict[str, dict[int, set[int]]] = {"trained": defaultdict(set), "held": defaultdict(set)}

    def note(kind: str, *splits: Any) -> None:
        for split in splits:
            used[kind][id(split.inputs)] |= set(split.index.tolist())

    train, block, losses = Learner.train, Block.train, Learner.losses
    block_outputs = Block.outputs

    def spied(self: Any, row: Any, data: Any, *rest: Any, **more: Any) -> Any:
        note("trained", data)
        return train(self, row, data, *rest, **more)

    def spied_block(self: Any, splits: Any, *rest: Any, **more: Any) -> Any:
        note("trained", *splits)
        return block(self, splits, *rest, **more)

    def spied_losses(self: Any, row: Any, data: Any) -> Any:
        note("held", data)
        return losses(self, row, data)

    def spied_outputs(self: Any, splits: Any) -> Any:
        note("held", *splits)
        return block_outputs(self, splits)

    monkeypatch.setattr(Learner, "train", spied)
    monkeypatch.setattr(Block, "outputs", spied_outputs)
    monkeypatch.setattr(Block, "train", spied_block)
    monkeypatch.setattr(Learner, "losses", spied_losses)
    ids = (2, 3, 7, 11)
    world = small.world(ids, clients={c: small.client(c, train=20, validation=0) for c in ids})
    run(Auto(patience=20), world, 12)  # with probes on halves, walks, personal models
    for data in world.clients.values():
        held, trained = (used[kind][id(data.train.inputs)] for kind in ("held", "trained"))
        assert len(held) == 3  # the same ones in all rounds
        assert not held & trained
        assert held | trained == set(range(20))


def test_once_the_choice_is_settled_clients_train_on_all_their_examples() -> None:
    ids = (2, 3, 7, 11)
    world = small.world(ids, clients={c: small.client(c, train=20, validation=0) for c in ids})
    done = run(Auto(patience=2), world, 12)
    settled = [
        one.number for one in done for note in one.notes if "the choice is settled" in note.text
    ]
    # With a patience of 2, after four rounds at the earliest.
    assert settled[0] >= 4
    method = Auto(patience=2)
    for one in done[: settled[0]]:
        cohort = Cohort(present=ids, exchange=one.position.exchange, seed=0)
        holdouts = {
            task.holdout
            for _, part in method.plan(one.position.state, cohort).leaves()
            for task in part.tasks.values()
        }
        # The plan of the next round.
        expected = Holdout(share=0.15, report_losses=True)
        if one.number == settled[0]:
            expected = Holdout()
        assert holdouts == {expected}
    # In the next round nothing is reported.
    states = [one.position.state for one in done]
    assert states[settled[0]].reports == states[settled[0] - 1].reports


def test_with_validation_data_every_training_example_is_trained_on() -> None:
    world = small.world()
    ours, alone = (run(method, world, 1)[-1] for method in (Auto(), FedAvg(weighting="uniform")))
    torch.testing.assert_close(
        ours.assignment.models[0], alone.assignment.models[0], rtol=0, atol=1e-6
    )


# -- another start
# ------------------------------------------------------------------------------------------------------------


def turned(world: World) -> World:
    """The same clients, half of whom now mean other classes."""
    clients = dict(world.clients)
    for c in list(clients)[::2]:
        splits: dict[str, Any] = {
            part: getattr(clients[c], part) for part in ("train", "validation", "test")
        }
        shifted: dict[str, Any] = {
            k: whole(s.inputs[s.index], (s.targets + 3) % 10) for k, s in splits.items()
        }
        clients[c] = replace(clients[c], **shifted)
    return replace(world, clients=clients)


@pytest.mark.slow
def test_a_drift_starts_dropped_arms_again_and_finds_its_groups() -> None:
    method, world = Auto(patience=4), digits("label-permutation", clients=8)
    calm = run(method, world, 12)
    assert calm[-1].assignment.groups == world.truth
    assert set(calm[-1].position.state.dropped) == {FEDAVG, ALONE}
    changed = run(method, turned(world), 24, start=calm[-1].position)
    ((number, note),) = notes(changed, "arms")
    assert number == 13
    assert "data may have changed, as the training losses of 4 clients rose" in note.text
    assert ": clients train one model (fedavg) and local models (independent) again" in note.text
    assert len(changed[-1].groups) == 4


@pytest.mark.slow
def test_newcomers_start_dropped_arms_again() -> None:
    world = digits("label-permutation", clients=8)
    method, world = Auto(patience=4), replace(world, attendance=Attendance(joins={6: 12, 7: 12}))
    done = run(method, world, 13)
    assert set(done[10].position.state.dropped) == {FEDAVG, ALONE}
    ((number, note),) = notes(done, "arms")
    assert number == 12
    again = "one model (fedavg) and local models (independent)"
    assert note.text.startswith(f"many clients have joined: clients train {again} again")
    assert set(done[-1].assignment.row) == set(range(8))
    assert done[11].position.state.leader == done[12].position.state.leader == HALVES


# -- recorded, saved, loaded, and from the command line
# -----------------------------------------------------------------------

SMALL = (
    "--set",
    "scenario.clients=4",
    "--set",
    "scenario.groups=2",
    "--rounds",
    "3",
    "--workers",
    "1",
)


@pytest.mark.slow
def test_a_saved_model_is_the_one_that_serves(tmp_path: Path) -> None:
    settings = {
        "clients": 4,
        "groups": 2,
        "shift": "label-permutation",
        "name": "digits/label-permutation",
    }
    world = replace(SCENARIOS["digits/label-permutation"], clients=4, groups=2).build(0)
    assert (
        main(
            (
                "run",
                "--method",
                "auto",
                "--set",
                "auto.tuning=5",
                "--out",
                str(tmp_path / "run"),
                *SMALL,
            )
        )
        == 0
    )
    position = Record(tmp_path / "run").lines()[-1]
    models = coterie.save(tmp_path / "run", tmp_path / "models")
    entries = json.loads((models / "models.json").read_text())["clients"]
    files = [entry["file"] for entry in entries.values()]
    done = run(Auto(tuning=5), world, 3)[-1]
    assert done.assignment.plain != (0, 1, 2, 3)
    for client in range(4):
        plain = done.position.own(done.assignment, client) is None
        assert (files.count(entries[str(client)]["file"]) == 1) or plain
        net = coterie.load(models, client)
        test = world.clients[client].test
        with torch.no_grad():
            classes = net(test.inputs[test.index]).argmax(1)
        accuracy = float((classes == test.targets).double().mean())
        assert accuracy == pytest.approx(position["clients"][str(client)]["accuracy"]), settings
        served = torch.nn.utils.parameters_to_vector(done.model(client).parameters())
        torch.testing.assert_close(torch.nn.utils.parameters_to_vector(net.parameters()), served)


@pytest.mark.slow
def test_methods_within_methods_are_recorded_and_run_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    inner = 'tuned.method={name = "race", methods = ["fedavg", {name = "ifca", models = 3}], patience = 2}'
    assert (
        main(("run", "--method", "tuned", "--set", inner, "--out", str(tmp_path / "one"), *SMALL))
        == 0
    )
    text = (tmp_path / "one" / "run.toml").read_text()
    assert "[methods.method]" in text
    assert "models = 3" in text
    assert main(("run", str(tmp_path / "one" / "run.toml"), "--out", str(tmp_path / "two"))) == 0
    capsys.readouterr()
    lines = [Record(tmp_path / name).lines() for name in ("one", "two")]
    assert [line["clients"] for line in lines[0]] == [line["clients"] for line in lines[1]]
    assert main(("methods", "race")) == 0
    out = capsys.readouterr().out
    assert "[fedavg, split-half, hcct]" in out
    assert "from simple to complex" in out


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ('["fedavg","splithalf"]', "there is no method 'splithalf'; did you mean split-half?"),
        ('["fedavg",{name="ifca",modles=3}]', "IFCA has no setting 'modles'; did you mean models?"),
        ('["fedavg",{name="ifca",models=-3}]', "IFCA.models must be >= "),
        ('["fedavg",{models=3}]', "a method's table needs a name"),
        (
            "[1]",
            "a method is a name, a table with a name, or an object with the five functions, got 1",
        ),
        ("[]", "race.methods must name at least one method"),
    ],
)
def test_a_mistake_within_a_method_is_one_sentence_and_writes_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], value: str, said: str
) -> None:
    call = (
        "run",
        "--method",
        "race",
        "--set",
        f"race.methods={value}",
        "--out",
        str(tmp_path / "run"),
        *SMALL,
    )
    assert main(call) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("coterie: " + said)
    assert err.count("\n") == 1
    assert not list(tmp_path.iterdir())
