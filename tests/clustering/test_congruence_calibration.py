"""How often the split-half test is wrong where all clients are the same, and how often right where they are not.

Noise is drawn in coordinates: a model of d equal directions has effective dimension d. Rates are
over so many draws that a bound is several standard errors above the nominal level; seeds are fixed,
so the tests either pass or do not.
"""

import numpy as np
import pytest

from coterie.clustering import congruence, contrast, halves_gram, repeated_p
from coterie.clustering.congruence import MIN_HALF_TEST_CLIENTS
from method_examples import slow

LEVELS = (0.05, 0.01, 0.001)


def noise(
    rng: np.random.Generator, n: int, spectrum: np.ndarray, levels: np.ndarray | float = 1.0
) -> np.ndarray:
    """Two halves ``(2, n, d)``."""
    scale = np.sqrt(np.multiply.outer(np.broadcast_to(levels, n), spectrum))
    return scale * rng.normal(size=(2, n, len(spectrum)))


def rates(ps: list[float]) -> list[float]:
    return [float((np.array(ps) < level).mean()) for level in LEVELS]


def false_alarms(draw, draws: int) -> list[float]:
    return rates([congruence(halves_gram(*draw())).p for _ in range(draws)])


def assert_level(found: list[float], draws: int, factor: float = 1.0) -> None:
    """Not more than ``factor`` times the nominal level and three standard errors of it."""
    for rate, level in zip(found, LEVELS, strict=True):
        assert rate <= factor * level + 3 * np.sqrt(factor * level / draws), (found, level)


@pytest.mark.parametrize(
    ("n", "dimension"),
    [
        (2, 20),
        (4, 2),
        *(
            pytest.param(*shape, marks=pytest.mark.slow)
            for shape in ((3, 50), (4, 50), (10, 5), (20, 50))
        ),
    ],
)
def test_false_alarms_in_any_effective_dimension(n, dimension):
    rng = np.random.default_rng(n * dimension)
    assert_level(false_alarms(lambda: noise(rng, n, np.ones(dimension)), 1200), 1200, factor=1.1)


@pytest.mark.parametrize("n", [4, *slow(12)])
@pytest.mark.parametrize("kind", ["ten times", *slow("sizes", "power law", "heavy tails")])
def test_false_alarms_in_noise_that_is_unequal_uneven_or_heavy_tailed(n, kind):
    rng = np.random.default_rng(n)
    sizes, one_of_ten = 1 / np.linspace(1 / 3, 2, n), np.array([100.0] + [1.0] * (n - 1))
    draw = {
        "sizes": lambda: noise(
            rng, n, np.ones(60), sizes
        ),  # variance by the inverse of sizes from a third to double
        "ten times": lambda: noise(
            rng, n, np.ones(200), one_of_ten
        ),  # one client's noise is ten times the others'
        "power law": lambda: noise(rng, n, 1 / np.arange(1, 201)),
        "heavy tails": lambda: rng.standard_t(3, size=(2, n, 100)),
    }[kind]
    assert_level(false_alarms(draw, 800), 800, factor=1.5)


@pytest.mark.parametrize("sides", [(1, 8), *slow((1, 1), (4, 6))])
def test_false_alarms_of_contrasts(sides):
    rng = np.random.default_rng(sum(sides))
    left, right = range(sides[0]), range(sides[0], sum(sides))
    ps = [
        contrast(halves_gram(*noise(rng, sum(sides), np.ones(50))), left, right).p
        for _ in range(1200)
    ]
    assert_level(rates(ps), 1200, factor=1.2)


@pytest.mark.parametrize("shared", [0.5, *slow(0.0, 1.0)])
def test_false_alarms_of_two_probes_whatever_they_share(shared):
    """Two probes of 6 clients: the same data give whole updates the same noise; halves are drawn anew."""
    rng = np.random.default_rng(int(10 * shared))
    ps, scores = [], []
    for _ in range(1000):
        kept = rng.normal(size=(6, 200))
        probes = []
        for _ in range(2):
            whole = np.sqrt(shared) * kept + np.sqrt(1 - shared) * rng.normal(size=(6, 200))
            halved = rng.normal(size=(6, 200))
            probes.append(congruence(halves_gram(whole + halved, whole - halved)))
        ps.append(repeated_p(probes[0].p, probes[1].p, 6))
        scores.append([found.z for found in probes])
    assert_level(rates(ps), 1000, factor=1.2)
    assert np.corrcoef(np.array(scores).T)[0, 1] == pytest.approx(shared**2 * 6 / 11, abs=0.08)


def detected(ps: list[float]) -> float:
    return float((np.array(ps) < 1e-3).mean())


def test_power_grows_with_the_signal():
    rng = np.random.default_rng(0)
    found = []
    for apart in (0.0, 3.0, 4.0, 5.0, 10.0):
        signal = np.zeros((10, 50))
        signal[:5, 0] = apart
        found.append(
            detected(
                [
                    congruence(halves_gram(*(signal + noise(rng, 10, np.ones(50))))).p
                    for _ in range(100)
                ]
            )
        )
    assert found == sorted(found)
    assert found[0] <= 0.02
    assert found[-1] == 1.0


@pytest.mark.parametrize("odd", [False, True])
def test_the_further_tests_see_what_the_spread_does_not(odd):
    """20 clients in 200 dimensions, of which half or one differ by the same sum of squares."""
    rng = np.random.default_rng(1)
    signal = np.zeros((20, 200))
    signal[: 1 if odd else 10, 0] = 1.0
    signal *= np.sqrt(12 * np.sqrt(200) / ((signal - signal.mean(axis=0)) ** 2).sum())
    tests = [congruence(halves_gram(*(signal + noise(rng, 20, np.ones(200))))) for _ in range(150)]
    spread = detected([test.p_spread for test in tests])
    assert detected([test.p for test in tests]) > spread + 0.3
    assert detected([(test.p_odd if odd else test.p_direction) for test in tests]) > spread + 0.4


@pytest.mark.slow
@pytest.mark.parametrize(("n", "dimension"), [(2, 200), (4, 50), (6, 100), (10, 50), (20, 100)])
def test_false_alarms_far_out(n, dimension):
    rng = np.random.default_rng(7)
    found = false_alarms(lambda: noise(rng, n, np.ones(dimension)), 20_000)
    assert found[2] <= 0.002, found
    assert found[1] <= 0.0125, found


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["sizes", "power law"])
def test_false_alarms_far_out_in_uneven_noise(kind):
    rng = np.random.default_rng(8)
    n = MIN_HALF_TEST_CLIENTS + 4
    spectrum, levels = (
        (np.ones(60), 1 / np.linspace(1 / 3, 2, n))
        if kind == "sizes"
        else (1 / np.arange(1, 201), 1.0)
    )
    found = false_alarms(lambda: noise(rng, n, spectrum, levels), 12_000)
    assert found[2] <= 0.002, found


@pytest.mark.slow
@pytest.mark.parametrize(
    "kind", ["one of forty has ten times the noise", "half in one direction", "heavy tails"]
)
def test_where_the_level_is_missed_it_is_so_by_less_than_ten_times(kind):
    rng = np.random.default_rng(9)
    n = {"one of forty has ten times the noise": 40, "half in one direction": 4, "heavy tails": 20}[
        kind
    ]
    draw = {
        "one of forty has ten times the noise": lambda: noise(
            rng, n, np.ones(20), np.array([100.0] + [1.0] * (n - 1))
        ),
        "half in one direction": lambda: noise(rng, n, np.array([1.0] + [1 / 200] * 200)),
        "heavy tails": lambda: rng.standard_t(3, size=(2, n, 200)),
    }[kind]
    assert false_alarms(draw, 3000)[2] <= 0.008
