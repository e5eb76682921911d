"""SCAFFOLD against Algorithm 1, written out with the clients' own control variates."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import coterie
from coterie.core import Training
from coterie.data.adversaries import Attack
from coterie.data.objective import cross_entropy
from coterie.methods import FedOpt, Race, Scaffold, Tuned
from coterie.methods.scaffold import clients_beyond, plain_steps
from coterie.models.layout import Layout
from coterie.randomness import Purpose, generator
from coterie.settings import SettingError
from small import made, mlp, normed, world

SEED, LR = 5, 0.1
TRAINING = Training(lr=LR, batch=8, epochs=2, lr_decay=0.9)


def written_out(few, first, layout, asked, eta_g):  # type: ignore[no-untyped-def]
    """Algorithm 1, option II: x, c, and the c_i at the clients, round by round."""
    params = slice(0, layout.trainable)
    x = first.clone()
    c = torch.zeros(layout.trainable)
    own = {client: torch.zeros(layout.trainable) for client in few.clients}
    for round, clients in enumerate(asked):
        rate = LR * 0.9**round
        changes, controls = [], []
        for client in clients:
            y = x.clone()
            data = few.clients[client].train
            draws = generator(SEED, Purpose.TRAIN, round, client)
            steps = 0
            for _ in range(TRAINING.epochs):
                order = torch.randperm(len(data), generator=draws)
                for start in range(0, len(data), 8):
                    at = order[start : start + 8]
                    module = made(mlp)
                    module.load_state_dict(layout.state_dict(y), strict=False)
                    loss = cross_entropy(module(data.inputs[data.index[at]]), data.targets[at])
                    gradient = torch.cat(
                        [g.reshape(-1) for g in torch.autograd.grad(loss, module.parameters())]
                    )
                    # line 10: y ← y - η (g(y) - c_i + c)
                    y[params] -= rate * (gradient - own[client] + c)
                    steps += 1
            # line 12, option II
            new = own[client] - c + (x - y)[params] / (steps * rate)
            changes.append(y - x)
            controls.append(new - own[client])
            own[client] = new
        # lines 16 and 17
        x = x + eta_g * torch.stack(changes).mean(0)
        c = c + len(clients) / len(few.clients) * torch.stack(controls).mean(0)
        yield x, c, own


@pytest.mark.parametrize("width", [1, 4])
@pytest.mark.parametrize(("fraction", "eta_g"), [(1.0, 1.0), (0.5, 0.5)])
def test_it_is_algorithm_1(width: int, fraction: float, eta_g: float) -> None:
    # Clients of different sizes make different numbers of steps.
    few = world(sizes=(20, 17, 8, 31), model=mlp, training=TRAINING)
    method = Scaffold(fraction=fraction, server_lr=eta_g)
    rounds = list(coterie.run(method, few, rounds=4, seed=SEED, workers=1, width=width))
    still = replace(few, training=replace(TRAINING, lr=1e-30))
    first = next(coterie.run("fedavg", still, rounds=1, seed=SEED, workers=1)).assignment.models[0]
    asked, known = [], {}
    for found in rounds:
        controls = found.position.state.controls
        asked.append(
            [c for c in controls if c not in known or not torch.equal(known[c], controls[c])]
        )
        known = controls
    assert len(asked[0]) == 4 * fraction
    layout = Layout(made(mlp))
    expected = written_out(few, first, layout, asked, eta_g)
    for found, (x, c, own) in zip(rounds, expected, strict=True):
        state = found.position.state
        torch.testing.assert_close(found.assignment.models[0], x, rtol=1e-3, atol=1e-4)
        torch.testing.assert_close(state.control, c, rtol=1e-2, atol=1e-3)
        for client, control in state.controls.items():
            torch.testing.assert_close(control, own[client], rtol=1e-2, atol=1e-3)
    # Controls are there, and change what clients train.
    plain = list(coterie.run("fedavg", few, rounds=4, seed=SEED, workers=1))
    assert not torch.allclose(plain[-1].assignment.models, rounds[-1].assignment.models, atol=1e-3)


def test_equal_clients_have_equal_controls_and_train_as_with_fedavg() -> None:
    # c - c_i is zero where all clients have the same data, and batches are all examples.
    few = world(model=mlp, training=Training(lr=LR, batch=0, epochs=3))
    one = next(iter(few.clients.values()))
    few = replace(few, clients=dict.fromkeys(few.clients, one))
    scaffold = list(coterie.run(Scaffold(), few, rounds=3, workers=1))
    fedavg = list(coterie.run("fedavg", few, rounds=3, workers=1))
    torch.testing.assert_close(
        scaffold[-1].assignment.models, fedavg[-1].assignment.models, rtol=1e-4, atol=1e-5
    )
    assert scaffold[-1].bytes_down == 2 * fedavg[-1].bytes_down
    assert scaffold[-1].bytes_up == fedavg[-1].bytes_up


def test_batchnorm_is_averaged_and_has_no_control() -> None:
    few = world(sizes=(20, 17, 9, 12), model=normed, training=Training(lr=LR, batch=8))
    *_, last = coterie.run(Scaffold(), few, rounds=2, workers=1)
    layout = Layout(made(normed))
    assert (last.position.state.control[layout.trainable :] == 0).all()
    assert last.assignment.models.isfinite().all()


def test_clients_that_join_and_leave_change_the_mean_of_controls() -> None:
    few = world(model=mlp, training=Training(lr=LR, batch=8))
    method = Scaffold()
    *_, last = coterie.run(method, few, rounds=2, workers=1)
    state = last.position.state

    def mean(state: object) -> torch.Tensor:
        return sum(state.controls.values()) / len(state.clients)  # type: ignore[attr-defined]

    for changed in (
        method.admit(state, (100, 101)),
        method.retire(state, (3,)),
        method.retire(method.admit(state, (100,)), (100, 2)),
    ):
        torch.testing.assert_close(changed.control, mean(changed), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("momentum", [0.0, 0.5, 0.9])
@pytest.mark.parametrize("steps", [1, 2, 7])
def test_momentum_moves_as_far_as_more_plain_steps(momentum: float, steps: int) -> None:
    value = torch.zeros(1)
    optimizer = torch.optim.SGD([value], lr=1.0, momentum=momentum)
    for _ in range(steps):
        value.grad = -torch.ones(1)
        optimizer.step()
    assert plain_steps(steps, momentum) == pytest.approx(float(value), rel=1e-5)


def test_it_needs_sgd() -> None:
    few = world(model=mlp, training=Training(optimizer="adam"))
    with pytest.raises(SettingError, match=r"scaffold needs Training\.optimizer sgd, got adam"):
        next(coterie.run("scaffold", few, rounds=1, workers=1))


def test_it_races_with_fedavg_and_takes_personal_models_around_it() -> None:
    # In its first round both ask the same clients with the same model, and still not for the same.
    few = world(model=mlp, training=Training(lr=LR, batch=8))
    for method in (Race(methods=("scaffold", "fedavg"), patience=3), Tuned(method="scaffold")):
        *_, last = coterie.run(method, few, rounds=3, workers=1)
        assert last.assignment.models.isfinite().all()


def test_the_server_may_have_an_optimizer_too() -> None:
    few = world(model=mlp, training=Training(lr=LR, batch=8))
    *_, last = coterie.run(FedOpt(method="scaffold", lr=0.01), few, rounds=2, workers=1)
    assert last.assignment.models.isfinite().all()


def test_a_control_far_longer_than_the_others_is_forgotten_where_reports_are_limited() -> None:
    """Each sign-flipped update doubles its client's c_i: it was .96 without, and .40 with one of 20 such clients."""
    honest = {client: torch.full((4,), 1.0 + client / 10) for client in range(9)}
    assert clients_beyond(honest) == []
    assert clients_beyond({**honest, 9: torch.full((4,), 300.0)}) == [9]

    few = replace(
        coterie.SCENARIOS["digits/iid"].build(0), attacks={3: Attack(kind="sign-flip", scale=1.0)}
    )
    rounds = list(coterie.run("scaffold", few, rounds=12, seed=0, workers=1, eval_every=12))
    forgotten = {note.clients for done in rounds for note in done.notes if note.kind == "bound"}
    assert forgotten == {(3,)}
    scores = rounds[-1].scores or {}
    honest_accuracy = [score["accuracy"] for client, score in scores.items() if client != 3]
    assert sum(honest_accuracy) / len(honest_accuracy) > 0.9
