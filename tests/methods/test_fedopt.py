"""FedOpt against its algorithm written out, for one model and for groups."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from coterie.core import Cohort, Federation, Replies
from coterie.methods import CFL, FLHC, IFCA, FedAvg, FedOpt, FedProx, SplitHalf
from coterie.methods._group_models import group_models_of
from coterie.methods._presets import built
from coterie.settings import SettingError
from worlds import grouped, play

GROUPS = ((1, 4, 6, 8), (2, 3, 5, 7))


def written_out(
    method: FedOpt, models: list[np.ndarray], deltas: list[np.ndarray]
) -> list[np.ndarray]:
    """Algorithm 2 of Reddi et al., or FedAvgM of Hsu et al., a round a line of it, in float64."""
    x, m, v = models[0], np.zeros_like(models[0]), np.full_like(models[0], method.tau**2)
    trajectory = [x]
    for delta in deltas:
        if method.optimizer == "momentum":
            m = method.beta1 * m + delta
            x = x + (method.lr or 1.0) * m
        else:
            m = method.beta1 * m + (1 - method.beta1) * delta
            if method.optimizer == "adagrad":
                v = v + delta**2
            elif method.optimizer == "yogi":
                v = v - (1 - method.beta2) * delta**2 * np.sign(v - delta**2)
            else:
                v = method.beta2 * v + (1 - method.beta2) * delta**2
            x = x + (method.lr or 0.03) * m / (np.sqrt(v) + method.tau)
        trajectory.append(x)
    return trajectory


def fed(method: Any, deltas: list[np.ndarray]) -> list[np.ndarray]:
    """The models of a method with one client, whose updates are given."""
    width = len(deltas[0])
    first = torch.linspace(-1, 1, width)
    state = method.init(Federation(clients=(3,), draw=lambda _: first, columns={"all": (0, width)}))
    trajectory = [first.double().numpy()]
    for exchange, delta in enumerate(deltas):
        method.plan(state, Cohort(present=(3,), exchange=exchange, seed=0))
        replies = Replies(
            clients=(3,),
            examples=np.array([10]),
            chosen=((0,),),
            means=torch.tensor(delta, dtype=torch.float32)[None],
        )
        state = method.step(state, replies)
        trajectory.append(method.assignment(state).models[0].double().numpy())
    return trajectory


@pytest.mark.parametrize("preset", ["fedavgm", "fedadagrad", "fedadam", "fedyogi"])
@pytest.mark.parametrize("settings", [{}, {"lr": 0.3, "beta1": 0.5, "beta2": 0.7, "tau": 0.1}])
def test_it_is_the_algorithm(preset: str, settings: dict[str, float]) -> None:
    method = built(FedOpt, {"preset": preset, **settings})
    draws = np.random.default_rng(4)
    deltas = [draws.normal(size=6).astype(np.float32) * scale for scale in (1, 0.1, 2, 0.5, 1e-3)]
    moved = fed(method, deltas)
    for ours, expected in zip(moved, written_out(method, moved[:1], deltas), strict=True):
        np.testing.assert_allclose(ours, expected, rtol=2e-4, atol=2e-4)


def test_without_momentum_it_is_fedavg() -> None:
    deltas = [np.arange(4.0) - 1.5] * 3
    plain = fed(FedAvg(), deltas)
    for ours, expected in zip(
        fed(FedOpt(optimizer="momentum", beta1=0.0), deltas), plain, strict=True
    ):
        np.testing.assert_allclose(ours, expected, atol=1e-6)


@pytest.mark.parametrize(
    "inner",
    [
        IFCA(models=2, initial="distinct"),
        SplitHalf(level=1e-3, probe_every=2, review_every=6),
        CFL(),
        FLHC(warmup=2),
    ],
    ids=lambda method: method.name,
)
@pytest.mark.parametrize("optimizer", ["momentum", "adam"])
def test_every_group_has_an_optimizer_of_its_own(inner: Any, optimizer: str) -> None:
    # Replays the method inside alone, exchange by exchange, and the algorithm for each group.
    method = FedOpt(method=inner, optimizer=optimizer, lr=0.2)
    world = grouped(GROUPS, noise=0.05)
    models = group_models_of(inner)
    assert models is not None
    state = method.init(world.federation())
    moments: dict[int, tuple[np.ndarray, np.ndarray]] = {}
    num_splits = 0
    for played in play(method, world, 12):
        before, after = models.of(state.inner), models.of(played.state.inner)
        alone = models.of(inner.step(state.inner, played.replies))
        trained = models.trains(state.inner)
        new_moments = dict(moments) if not trained else {}
        for group in after if trained else ():
            origin = group if group in before else models.origin(played.state.inner, group, before)
            num_splits += origin != group
            if origin is None or torch.equal(alone[group], before[origin]):
                torch.testing.assert_close(after[group], alone[group], rtol=0, atol=0)
                if origin in moments:
                    new_moments[group] = moments[origin]
                continue
            delta = (alone[group] - before[origin]).double().numpy()
            m, v = moments.get(origin, (np.zeros_like(delta), np.full_like(delta, 1e-6)))
            if optimizer == "momentum":
                m = 0.9 * m + delta
                change = 0.2 * m
            else:
                m, v = 0.9 * m + 0.1 * delta, 0.99 * v + 0.01 * delta**2
                change = 0.2 * m / (np.sqrt(v) + 1e-3)
            expected = before[origin].double().numpy() + change
            np.testing.assert_allclose(after[group].numpy(), expected, rtol=1e-3, atol=1e-3)
            new_moments[group] = m, v
        moments, state = new_moments, played.state
    # Each group that was found has begun with the moments of the group before it.
    assert num_splits or inner.name == "ifca"
    assert len(models.of(state.inner)) == 2


def test_a_silent_group_stays() -> None:
    method = FedOpt(method=IFCA(models=2, initial="distinct"))
    world = grouped(GROUPS)
    *_, last = play(method, world, 3)
    played = next(iter(play(method, world, 1)))
    nobody = Replies(
        clients=(), examples=np.zeros(0, int), means=torch.zeros_like(played.plan.models)
    )
    state = method.step(last.state, nobody)
    torch.testing.assert_close(
        method.assignment(state).models, method.assignment(last.state).models, rtol=0, atol=0
    )
    assert state.moments.keys() == last.state.moments.keys()


@pytest.mark.parametrize("name", ["hcct", "flsc", "acfl", "fedfa", "maxfl", "tuned", "race"])
def test_it_says_where_the_mathematics_does_not_allow_it(name: str) -> None:
    with pytest.raises(SettingError, match=r"fedopt\.method must be a method that adds mean"):
        FedOpt(method=name)
    with pytest.raises(SettingError, match="fedopt"):
        FedOpt(method=IFCA(restarts=2))


def test_it_moves_the_model_of_fedprox() -> None:
    method = FedOpt(method={"name": "fedprox", "mu": 0.3})
    assert method.method == FedProx(mu=0.3)
    assert method.needs.features == ("training",)
