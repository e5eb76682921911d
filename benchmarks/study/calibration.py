"""Are the p-values of :func:`coterie.clustering.congruence` what they say, those of two probes by
:func:`coterie.clustering.repeated_p` too, and what does it detect? Simulated, no training.

    python benchmarks/study/calibration.py --out benchmarks/results/calibration.json [--scale 0.01]

Noise is drawn in coordinates: of d equal directions, it has effective dimension d. Rates of false
alarms: all signals are equal. Two probes: the whole updates are the same in both, as the data are,
and what sets halves apart is drawn anew; only for Gaussian noise, as of other noise such halves
would not be independent. Power: two groups of equal size; the squared distance of their means is
one of :data:`RATIOS` times the mean squared norm of a whole update's noise. The numbers of draws
are in the file; ``--scale`` takes a share of them. In half an hour on one core.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from coterie.clustering import congruence, repeated_p

LEVELS = (0.05, 0.01, 1e-3, 1e-4)
DIMENSIONS = (10, 100, 1000)
RATIOS = (0.03, 0.1, 0.2, 0.3, 0.5, 1.0, 2.0, 3.0)

Draw = Callable[[np.random.Generator, int, int], np.ndarray]


def _levels(of: Callable[[int], np.ndarray]) -> Draw:
    """Gaussian noise, each client's of its own standard deviation ``(n,)``."""
    return lambda rng, n, d: of(n)[:, None] * rng.standard_normal((2, n, d))


GAUSSIAN = ("equal", "sizes", "one client 3x")

NOISE: Mapping[str, Draw] = {
    "equal": _levels(np.ones),
    "sizes": _levels(lambda n: 1 / np.sqrt(np.linspace(1 / 3, 2, n))),
    "heavy tails": lambda rng, n, d: rng.standard_t(5, size=(2, n, d)),
    "one client 3x": _levels(lambda n: np.array([3.0, *[1.0] * (n - 1)])),
}
"""Name -> two halves ``(2, n, d)`` of nothing but noise. Sizes: its variance is the inverse of
sizes from a third to double. Heavy tails: Student's t with 5 degrees of freedom in each coordinate.
One client 3x: in standard deviations."""


def p_value(halves: np.ndarray) -> float:
    """Of two halves ``(2, n, d)``."""
    rows = halves.reshape(-1, halves.shape[-1])
    return congruence(rows @ rows.T).p


def false_alarms(scale: float) -> Iterator[dict[str, Any]]:
    draws = max(1, round(20_000 * scale))
    for n in (4, 10, 20):
        for dimension in DIMENSIONS:
            for name, noise in NOISE.items():
                rng = np.random.default_rng([n, dimension])
                found = np.array([p_value(noise(rng, n, dimension)) for _ in range(draws)])
                row = {
                    "n": n,
                    "dimension": dimension,
                    "noise": name,
                    "draws": draws,
                    "rates": _rates(found),
                }
                if name in GAUSSIAN:
                    twice = [
                        _of_two_probes(noise, rng, n, dimension) for _ in range(max(1, draws // 2))
                    ]
                    row["twice"] = _rates(np.array(twice))
                yield row


def _rates(found: np.ndarray) -> list[float]:
    return [float((found < level).mean()) for level in LEVELS]


def _of_two_probes(noise: Draw, rng: np.random.Generator, n: int, dimension: int) -> float:
    whole, one, other = *noise(rng, n, dimension), noise(rng, n, dimension)[0]
    return repeated_p(
        *(p_value(np.stack((whole + apart, whole - apart))) for apart in (one, other)), clients=n
    )


def detections(scale: float, level: float = LEVELS[-1]) -> Iterator[dict[str, Any]]:
    for n, most in ((4, 2000), (10, 1000), (20, 1000), (60, 400)):
        draws = max(1, round(scale * most))
        for dimension in DIMENSIONS:
            rates = []
            for ratio in RATIOS:
                rng, signal = np.random.default_rng([n, dimension]), np.zeros((n, dimension))
                signal[: n // 2, 0] = np.sqrt(
                    ratio * dimension / 2
                )  # a whole update's noise is half of a half's
                found = [p_value(signal + NOISE["equal"](rng, n, dimension)) for _ in range(draws)]
                rates.append(float((np.array(found) < level).mean()))
            yield {"n": n, "dimension": dimension, "draws": draws, "rates": rates}


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--scale", type=float, default=1.0)
    asked = parser.parse_args(arguments)
    found: dict[str, Any] = {"levels": LEVELS, "ratios": RATIOS}
    found["power"] = list(detections(asked.scale))
    found["null"] = list(false_alarms(asked.scale))
    asked.out.write_text(json.dumps(found, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
