"""Worlds of few unequal sites with tables, such as hospitals or banks: each draw has other sites, sizes and rules.

A site has rows of 20 numbers x. The rule of a site is a direction w: a row's score is x·w plus
noise, and its label tells whether the score is above a threshold. In most kinds of worlds, a third
of the sites (at least two) differ from the others. Every site is tested on 400 rows of its own, or
on rows that all sites share, so an accuracy is exact to about 0.02.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from scipy import stats
from torch import nn

from coterie.core import Training
from coterie.data.own import from_lists
from coterie.data.world import World

SILO_KINDS: Mapping[str, str] = {
    "alike": "all sites have the same rule",
    "invert": "a third has the opposite rule",
    "rotate": "a third has another rule",
    "angle": "a third has a rule at an angle of 53 degrees to that of the others",
    "covariate": "a third has shifted inputs, with the same rule",
    "degrees": "every site has a rule of its own, near a common one",
    "rare": "as `invert`, with 5 to 50 % of the labels positive",
    "regression": "as `invert`, with numbers to predict",
    "shared": "as `invert`, with the same test inputs at all sites",
    "noise": "a third has 10 to 40 % wrong labels to train on",
    "minority": "20 sites of equal size, 2 with the opposite rule",
}
"""Kind of world -> how its sites differ."""

OPPOSITE = ("invert", "rare", "regression", "shared", "minority")
"""Kinds in which the sites that differ have the opposite rule."""

REGRESSION_KIND = "regression"
"""The kind in which the targets are numbers, not labels."""

NUM_FEATURES = 20
HIDDEN_UNITS = 32
TEST_ROWS = 400

LEAST_SITES = 4
MOST_SITES = 16
MINORITY_SITES = 20

LEAST_ROWS = 40
MOST_ROWS = 2000
MOST_ROWS_OF_ALL = 4000
"""About as many rows the sites of a world have together at most, so that a run takes seconds."""

SCORE_NOISE = 2.0
"""Standard deviation of the noise in a score. That of x·w is about 4.5."""

LEAST_POSITIVE_SHARE = 0.05
MOST_POSITIVE_SHARE = 0.5

LEAST_WRONG_SHARE = 0.1
MOST_WRONG_SHARE = 0.4

SITE_RULE_SPREAD = 0.5
"""In ``degrees``, the standard deviation of what is added to each weight of the common rule."""


@dataclass(frozen=True)
class Draw:
    """A world of sites, and how it was drawn.

    Attributes:
        world: The sites, by their names.
        sizes: Rows of each site to train on and for validation.
        differing: Numbers of the sites that differ from the others.
        positive_share: The expected share of positive labels.
    """

    world: World
    sizes: tuple[int, ...]
    differing: tuple[int, ...]
    positive_share: float


def draw(kind: str, seed: int) -> Draw:
    """Draw a world.

    Args:
        kind: One of :data:`SILO_KINDS`.
        seed: The number of the draw; the same number draws the same world.

    Returns:
        The world, and how it was drawn.
    """
    # By its name, so that a kind's worlds do not depend on which other kinds there are.
    rng = np.random.default_rng([seed, zlib.crc32(kind.encode())])
    sizes = site_sizes(kind, rng)
    differing = differing_sites(kind, len(sizes), rng)
    positive_share = 0.5
    if kind == "rare":
        positive_share = float(rng.uniform(LEAST_POSITIVE_SHARE, MOST_POSITIVE_SHARE))

    # What all sites have in common, and what those that differ have in common.
    common_rule = rng.normal(size=NUM_FEATURES)
    other_rule = rng.normal(size=NUM_FEATURES)
    input_shift = rng.normal(size=NUM_FEATURES)
    shared_inputs = rng.normal(size=(TEST_ROWS, NUM_FEATURES))
    shared_noise = rng.normal(size=TEST_ROWS)

    sites = {}
    for site, num_rows in enumerate(sizes):
        differs = site in differing
        rule = site_rule(kind, differs, common_rule, other_rule, rng)
        inputs = rng.normal(size=(num_rows + TEST_ROWS, NUM_FEATURES))
        noise = rng.normal(size=num_rows + TEST_ROWS)
        if kind == "covariate" and differs:
            inputs += input_shift
        if kind == "shared":
            inputs[num_rows:] = shared_inputs
            noise[num_rows:] = shared_noise
        targets = targets_of(kind, inputs, rule, noise, positive_share)
        if kind == "noise" and differs:
            wrong_share = rng.uniform(LEAST_WRONG_SHARE, MOST_WRONG_SHARE)
            # Only labels to train on are wrong: tests ask for the rule.
            is_wrong = rng.random(num_rows) < wrong_share
            targets[:num_rows][is_wrong] = 1 - targets[:num_rows][is_wrong]
        inputs = inputs.astype(np.float32)
        sites[f"site{site:02d}"] = {
            "x_train": inputs[:num_rows],
            "y_train": targets[:num_rows],
            "x_test": inputs[num_rows:],
            "y_test": targets[num_rows:],
        }
    return Draw(_world(kind, sites, seed), sizes, differing, positive_share)


def site_sizes(kind: str, rng: np.random.Generator) -> tuple[int, ...]:
    """The rows of each site: log-uniform, and fewer in proportion if there are too many in all."""
    if kind == "minority":
        log_most = np.log(MOST_ROWS_OF_ALL / MINORITY_SITES)
        equal_size = int(np.exp(rng.uniform(np.log(LEAST_ROWS), log_most)))
        return (equal_size,) * MINORITY_SITES
    num_sites = int(rng.integers(LEAST_SITES, MOST_SITES + 1))
    sizes = np.exp(rng.uniform(np.log(LEAST_ROWS), np.log(MOST_ROWS), num_sites))
    sizes *= min(1.0, MOST_ROWS_OF_ALL / sizes.sum())
    return tuple(max(LEAST_ROWS, int(size)) for size in sizes)


def differing_sites(kind: str, num_sites: int, rng: np.random.Generator) -> tuple[int, ...]:
    """The numbers of the sites that differ; none where all sites are alike, or each is different."""
    order = rng.permutation(num_sites)
    if kind in ("alike", "degrees"):
        return ()
    num_differing = 2 if kind == "minority" else max(2, round(num_sites / 3))
    return tuple(sorted(order[:num_differing].tolist()))


def site_rule(
    kind: str,
    differs: bool,
    common_rule: np.ndarray,
    other_rule: np.ndarray,
    rng: np.random.Generator,
) -> np.ndarray:
    """The direction of a site's scores ``(features,)``."""
    if kind == "degrees":
        return common_rule + SITE_RULE_SPREAD * rng.normal(size=NUM_FEATURES)
    if not differs:
        return common_rule
    if kind in OPPOSITE:
        return -common_rule
    if kind == "rotate":
        return other_rule
    if kind == "angle":
        return 0.6 * common_rule + 0.8 * other_rule
    # The sites differ in their inputs or in wrong labels, not in their rule.
    return common_rule


def targets_of(
    kind: str, inputs: np.ndarray, rule: np.ndarray, noise: np.ndarray, positive_share: float
) -> np.ndarray:
    """Labels of rows ``(rows,)`` int64, or in ``regression`` their scores, of about unit variance."""
    scores = inputs @ rule + SCORE_NOISE * noise
    # Of inputs that are not shifted, the scores have this standard deviation.
    score_deviation = np.sqrt(rule @ rule + SCORE_NOISE**2)
    if kind == REGRESSION_KIND:
        return np.asarray((scores / score_deviation).astype(np.float32))
    threshold = score_deviation * stats.norm.ppf(1 - positive_share)
    return np.asarray((scores > threshold).astype(np.int64))


def _world(kind: str, sites: Mapping[str, Mapping[str, np.ndarray]], seed: int) -> World:
    if kind == REGRESSION_KIND:
        # With squared errors, the steps of the classifiers are too large.
        training = Training(lr=0.03, batch=20, epochs=2)
        return from_lists(sites, model=_regressor, training=training, seed=seed)
    training = Training(lr=0.1, batch=20, epochs=2)
    return from_lists(sites, model=_classifier, training=training, seed=seed, classes=2)


def _classifier() -> nn.Module:
    return _net(2)


def _regressor() -> nn.Module:
    return _net(1)


def _net(num_outputs: int) -> nn.Module:
    return nn.Sequential(
        nn.Linear(NUM_FEATURES, HIDDEN_UNITS),
        nn.ReLU(),
        nn.Linear(HIDDEN_UNITS, num_outputs),
    )
