"""ε and δ: against the integral they are defined by, and against another accountant."""

from __future__ import annotations

import math
import sys

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.integrate import quad
from scipy.stats import norm

from coterie.boundary import Boundary, Wire, noise_for, spent
from coterie.boundary.privacy import leak
from coterie.models.layout import Layout
from coterie.randomness import seeded
from coterie.settings import SettingError, UserError
from small import mlp


def delta_by_definition(epsilon: float, separation: float) -> float:
    """∫ max(0, p - e^ε q) of two unit Gaussians so far apart: the greatest of P(S) - e^ε Q(S) over all events S."""
    excess = lambda x: max(norm.pdf(x, separation) - math.exp(epsilon) * norm.pdf(x), 0.0)  # noqa: E731
    edge = epsilon / separation + separation / 2  # where p = e^ε q
    return float(quad(excess, edge, edge + 40, limit=200)[0])


@pytest.mark.parametrize("separation", [0.2, 1.0, 3.0])
@pytest.mark.parametrize("epsilon", [0.0, 0.5, 2.0])
def test_the_closed_form_is_the_integral(separation: float, epsilon: float) -> None:
    assert math.exp(leak(epsilon, separation)) == pytest.approx(
        delta_by_definition(epsilon, separation), rel=1e-6
    )


@given(noise=st.floats(0.05, 500), updates=st.integers(1, 2000), delta=st.floats(1e-12, 0.5))
def test_what_was_spent_is_enough_and_no_more_than_enough(
    noise: float, updates: int, delta: float
) -> None:
    epsilon, separation = spent(noise, updates, delta), 2 * math.sqrt(updates) / noise
    assert leak(epsilon, separation) <= math.log(delta)
    if epsilon:
        assert leak(epsilon * (1 - 1e-6), separation) > math.log(delta)
    assert spent(noise, updates + 1, delta) >= epsilon
    assert spent(noise * 1.1, updates, delta) <= epsilon
    # Four releases tell as much as one with half the noise.
    assert spent(noise, 4 * updates, delta) == pytest.approx(
        spent(noise / 2, updates, delta), rel=1e-8, abs=1e-8
    )


def test_limits() -> None:
    assert spent(1.0, 0) == 0.0
    assert spent(0.0, 3) == math.inf
    assert spent(1e5, 1, delta=0.1) == 0.0  # so much noise that δ alone covers it
    for wrong in ({"delta": 0.0}, {"delta": 1.0}, {"updates": -1}, {"noise": -1.0}):
        with pytest.raises(SettingError):
            spent(**{"noise": 1.0, "updates": 1, **wrong})
    with pytest.raises(SettingError):
        noise_for(0.0, 1)


@pytest.mark.parametrize(("epsilon", "updates"), [(0.1, 1), (2.0, 40), (50.0, 7)])
def test_noise_for_an_epsilon_spends_it(epsilon: float, updates: int) -> None:
    noise = noise_for(epsilon, updates)
    assert spent(noise, updates) <= epsilon
    assert spent(noise * (1 - 1e-6), updates) > epsilon


@pytest.mark.parametrize(
    ("noise", "updates", "delta"),
    [(2.0, 1, 1e-9), (50.0, 1, 1e-2), (10.0, 40, 1e-5), (50.0, 400, 1e-5)],
)
def test_another_accountant_agrees(noise: float, updates: int, delta: float) -> None:
    dp = pytest.importorskip("dp_accounting")
    epsilon = spent(noise, updates, delta)
    assert epsilon == pytest.approx(spent(noise, updates, delta, "pld"), rel=1e-6, abs=1e-6)
    assert epsilon <= spent(noise, updates, delta, "rdp")  # a bound, and a looser one
    if updates == 1:
        assert epsilon == pytest.approx(dp.get_epsilon_gaussian(noise / 2, delta), rel=1e-6)


def test_accountants_have_names_and_may_be_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SettingError, match="accountant must be one of exact, rdp, pld, got 'rdb'"):
        spent(1.0, 1, accountant="rdb")
    monkeypatch.setitem(sys.modules, "dp_accounting", None)
    with pytest.raises(
        UserError, match=r"the accountant rdp needs dp-accounting: pip install 'coterie\[dp\]'"
    ):
        spent(1.0, 1, accountant="rdp")


@seeded(0)
def test_layers_that_stay_do_not_count_for_the_clip() -> None:
    layout = Layout(mlp())
    keep = layout.mask(["2"])
    row = torch.where(keep, 100.0, 0.01)
    assert torch.equal(Wire(Boundary(clip=1.0), layout, 0).send(row, 1, 0, keep), row)


@seeded(0)
def test_clipped_updates_of_any_two_data_sets_are_twice_the_clip_apart_at_most() -> None:
    layout = Layout(mlp())
    wire = Wire(Boundary(clip=0.5), layout, 0)
    for seed in range(20):
        row = torch.randn(layout.size, generator=torch.Generator().manual_seed(seed)) * 10.0 ** (
            seed % 7 - 3
        )
        here, there = wire.send(row, 1, 0).double(), wire.send(-row, 1, 0).double()
        assert (here - there).norm() <= 1.0
        assert here.norm() == pytest.approx(min(0.5, float(row.double().norm())), rel=1e-5)
        assert torch.cosine_similarity(here, row.double(), dim=0) > 1 - 1e-9
