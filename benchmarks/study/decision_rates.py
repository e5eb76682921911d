"""How often does the default decide wrongly? Its decisions on simulated losses, without any training.

    python benchmarks/study/decision_rates.py --out benchmarks/results/decision-rates.jsonl
        [--only null,fences] [--scale 0.1]

Losses are drawn; the decisions are those of the library: each round, clients' sums of held-out losses
go to :meth:`~coterie.methods.race.Race.step` of a race of two arms that train nothing, or to
:meth:`~coterie.methods.tuned.Tuned.step`. The arms are one model, and groups of clients. A round's
differences of their losses are

    difference of the true losses + client + example + example's noise of this round + noise of this round.

The held-out examples are the same in all rounds, and so are the parts by client and by example. Noise
of training goes on from round to round, and its round's part is common to all examples. What
:data:`SHAPE` was chosen by is measured by ``--only shape``, which trains a few federations. A quarter
of an hour on one core; ``--scale`` takes a share of the simulated runs.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar
from unittest import mock

import numpy as np
import scipy
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from result_file import append_result

from coterie import SCENARIOS, World, run
from coterie.contrib.bench import silos as silos_worlds
from coterie.contrib.bench.silos import draw as draw_site_world
from coterie.core import (
    Assignment,
    Averaging,
    Client,
    Cohort,
    Federation,
    Groups,
    HeldOutLosses,
    Note,
    Plan,
    Replies,
    Task,
)
from coterie.engines import exchange
from coterie.methods import FedAvg, Independent, Race, SplitHalf, Tuned
from coterie.methods._half_steps import Probing
from coterie.methods._race_evidence import Difference, Reports, over_rounds, pooled
from coterie.methods.race import RaceState
from coterie.methods.tuned import TunedState, shrunk

ROUNDS = 40
CLIENT_COUNTS = (3, 5, 12, 20, 60)
ROW_COUNTS = (3, 10, 30, 100, 500)
"""Held-out rows of each client."""

COMPARED_SIZES = ((3, 10), (12, 30), (60, 100))
"""Numbers of clients and rows for differences other than 0."""

SIMPLE = "one"
COMPLEX = "groups"
"""The two arms."""

ARMS_OF_DEFAULT = 3
"""The default compares three arms in pairs, and shares the level among the pairs."""


@dataclass(frozen=True)
class Shape:
    """What differences of losses look like; standard deviations are in those of the part by example.

    Attributes:
        tail: Standard deviation of the logarithm of an example's scale: an example's part is normal
            with a scale of its own, so its tails are heavy.
        skew: Factor of the parts on one side of 0, drawn anew for each run: a few examples are much
            better with one of the arms.
        client_scale: Standard deviation of the logarithm of a client's scale.
        client: Standard deviation of the part by client.
        example_noise: Standard deviation of an example's noise of training.
        round_noise: Standard deviation of a round's noise of training.
        persistence: Correlation of the noise of two rounds in a row.
        unit: Standard deviation of the part by example, where the loss of a model is 1.
    """

    tail: float = 0.8
    skew: float = 1.5
    client_scale: float = 0.4
    client: float = 0.15
    example_noise: float = 0.35
    round_noise: float = 0.01
    persistence: float = 0.4
    unit: float = 0.4


SHAPE = Shape()


# -- losses
# -----------------------------------------------------------------------------------------------------------------


@dataclass
class SimulatedLosses:
    """Differences of the losses of two models at n clients on the same held-out rows, round after round.

    Attributes:
        sizes: Held-out rows of each client ``(n,)``.
        scales: Standard deviation of the part by example at each client ``(n,)``.
        fixed: The part of all rounds by client and example, one value per row, for all clients in a row.
        example_noise: Each row's noise of training in the last round.
        round_noise: The last round's noise.
    """

    sizes: np.ndarray
    scales: np.ndarray
    fixed: np.ndarray
    example_noise: np.ndarray
    round_noise: float
    shape: Shape
    rng: np.random.Generator

    @classmethod
    def drawn(
        cls, rng: np.random.Generator, sizes: np.ndarray, shape: Shape = SHAPE
    ) -> SimulatedLosses:
        """Draw what stays the same in all rounds, and the noise before the first one."""
        row_count = int(sizes.sum())
        scales = shape.unit * scale_factors(rng, len(sizes), shape.client_scale)
        scale_of_row = np.repeat(scales, sizes)
        by_client = shape.client * shape.unit * rng.standard_normal(len(sizes))
        # The true difference is that over all rows: the parts by client have no mean.
        by_client -= sizes @ by_client / row_count
        fixed = np.repeat(by_client, sizes) + scale_of_row * example_parts(rng, row_count, shape)
        return cls(
            sizes=sizes,
            scales=scales,
            fixed=fixed,
            example_noise=rng.standard_normal(row_count),
            round_noise=float(rng.standard_normal()),
            shape=shape,
            rng=rng,
        )

    @property
    def error(self) -> float:
        """The true standard error of the mean difference over all rows, by their draw."""
        return math.sqrt(self.sizes @ self.scales**2) / float(self.sizes.sum())

    def next_round(self) -> np.ndarray:
        """The next round's differences for a true difference of 0, one value per row."""
        before = self.shape.persistence
        new = math.sqrt(1 - before**2)
        fresh_noise = self.rng.standard_normal(len(self.fixed))
        self.example_noise = before * self.example_noise + new * fresh_noise
        self.round_noise = before * self.round_noise + new * float(self.rng.standard_normal())
        noise_scales = self.shape.example_noise * np.repeat(self.scales, self.sizes)
        common = self.shape.round_noise * self.shape.unit * self.round_noise
        return np.asarray(self.fixed + noise_scales * self.example_noise + common)


def scale_factors(rng: np.random.Generator, count: int, spread: float) -> np.ndarray:
    """Log-normal factors ``(count,)`` whose squares have the mean 1."""
    return np.exp(spread * rng.standard_normal(count) - spread**2)


def example_parts(rng: np.random.Generator, count: int, shape: Shape) -> np.ndarray:
    """Parts by example ``(count,)``, of mean 0 and variance 1, with heavy tails and one side longer."""
    values = rng.standard_normal(count) * scale_factors(rng, count, shape.tail)
    # The mean of one side's excess is that of half a normal variable with these scales.
    half_mean = math.exp(-(shape.tail**2) / 2) / math.sqrt(2 * math.pi)
    mean = (shape.skew - 1) * half_mean
    variance = (shape.skew**2 + 1) / 2 - mean**2
    values[values > 0] *= shape.skew
    longer_side = rng.choice([-1, 1])
    return np.asarray(longer_side * (values - mean) / math.sqrt(variance))


def sums_of_losses(
    differences: np.ndarray, sizes: np.ndarray, models: Sequence[tuple[str, int]]
) -> dict[Client, HeldOutLosses]:
    """What clients report of two models whose losses are 1 plus and less half of the differences.

    Args:
        differences: The first model's loss less that of the second, one value per row.
        sizes: Rows of each client ``(n,)``.
        models: The two models.
    """
    starts = np.cumsum(sizes) - sizes
    sums = np.add.reduceat(differences, starts)
    squares = np.add.reduceat(differences**2, starts)
    reports = {}
    for client, count in enumerate(map(int, sizes)):
        half_sum = sums[client] / 2
        quarter = squares[client] / 4
        first_squared = count + 2 * half_sum + quarter
        second_squared = count - 2 * half_sum + quarter
        product = count - quarter
        reports[client] = HeldOutLosses(
            models=tuple(models),
            count=count,
            sums=np.array([count + half_sum, count - half_sum]),
            products=np.array([[first_squared, product], [product, second_squared]]),
        )
    return reports


# -- arms that train nothing
# -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Arm:
    """A method whose models are nothing but their losses. Its state is its groups."""

    name: ClassVar[str] = SIMPLE
    group_count: ClassVar[int] = 1

    def init(self, federation: Federation) -> Groups:
        clients = federation.clients
        size = math.ceil(len(clients) / self.group_count)
        return tuple(clients[start : start + size] for start in range(0, len(clients), size))

    def plan(self, state: Groups, cohort: Cohort) -> Plan:
        raise NotImplementedError("the replies of this arm are simulated")

    def step(self, state: Groups, replies: Replies) -> Groups:
        return state

    def assignment(self, state: Groups) -> Assignment:
        row = {client: number for number, group in enumerate(state) for client in group}
        return Assignment(models=torch.zeros(len(state), 1), row=row, groups=state)

    def explain(self, state: Groups) -> tuple[Note, ...]:
        return ()

    def admit(self, state: Groups, clients: tuple[Client, ...]) -> Groups:
        return state

    def retire(self, state: Groups, clients: tuple[Client, ...]) -> Groups:
        return state


@dataclass(frozen=True, kw_only=True)
class UntestedGroups(Arm):
    """Groups that no test has found, as those of HCCT."""

    name: ClassVar[str] = COMPLEX
    group_count: ClassVar[int] = 2


@dataclass(frozen=True, kw_only=True)
class TestedGroups(UntestedGroups, Probing):
    """Groups that the method's own test has found, as those of split-half."""


GROUPS: Mapping[str, UntestedGroups] = {"tested": TestedGroups(), "untested": UntestedGroups()}

NO_HYSTERESIS = "no hysteresis"
"""Untested groups in a race whose leader is always the arm that is ahead."""


class RaceWithoutHysteresis(Race):
    """A race in which an arm takes the lead if its loss is lower at all."""

    def _min_lead(self, arm_name: str, leader: str) -> float:
        return 0.0


def federation(client_count: int) -> Federation:
    """A federation of models with one value."""
    return Federation(
        clients=tuple(range(client_count)),
        draw=lambda _: torch.zeros(1),
        columns={"all": (0, 1)},
    )


def race_of(kind: str) -> Race:
    """A race of two arms with the settings and the level of a pair that the default has.

    Args:
        kind: The complex arm, one of :data:`GROUPS`, or :data:`NO_HYSTERESIS`.
    """
    level = Race().level / math.comb(ARMS_OF_DEFAULT, 2)
    if kind == NO_HYSTERESIS:
        return RaceWithoutHysteresis(methods=(Arm(), GROUPS["untested"]), level=level)
    return Race(methods=(Arm(), GROUPS[kind]), level=level)


# -- races
# ------------------------------------------------------------------------------------------------------------------

Curve = Callable[[int], float]
"""Round -> true loss of the simple arm less that of the complex one, in standard errors."""


@dataclass
class RaceOutcome:
    """What a race decided in :data:`ROUNDS` rounds.

    Attributes:
        leader: The arm that is delivered.
        changes: How often the clients were given the models of another arm.
        ended: The arm that was ended, if one was.
        ended_round: In this round.
        ended_by: The criterion: ``held_out_loss``, the test of significance; ``expected_loss``; or
            ``reports``, the end of the contest.
        limited: Share of all clients' reports that were limited.
    """

    leader: str
    changes: int
    ended: str = ""
    ended_round: int = ROUNDS
    ended_by: str = ""
    limited: float = 0.0


def raced(rng: np.random.Generator, sizes: np.ndarray, kind: str, curve: Curve) -> RaceOutcome:
    """Let two arms race until the choice is settled, or to the last round.

    Args:
        rng: Draws the losses.
        sizes: Held-out rows of each client ``(n,)``.
        kind: The complex arm, see :func:`race_of`.
        curve: The true difference by round, in standard errors.
    """
    race = race_of(kind)
    state: RaceState = race.init(federation(len(sizes)))
    losses = SimulatedLosses.drawn(rng, sizes)
    outcome = RaceOutcome(leader=state.leader, changes=0)
    limited_count = 0
    rounds_open = 0
    for round_number in range(1, ROUNDS + 1):
        # Once the choice is settled, nothing changes any more.
        if not race.is_open(state) or len(state.arms) == 1:
            break
        differences = losses.next_round() + losses.error * curve(round_number)
        state = race.step(state, race_replies(differences, sizes))
        rounds_open += 1
        outcome.changes += state.leader != outcome.leader
        outcome.leader = state.leader
        for note in state.notes:
            if note.kind == "bound":
                limited_count += len(note.clients)
            if note.kind == "drop":
                (outcome.ended,) = state.dropped
                outcome.ended_round = round_number
                outcome.ended_by = note.criteria[0].key
    outcome.limited = limited_count / (rounds_open * len(sizes))
    return outcome


def race_replies(differences: np.ndarray, sizes: np.ndarray) -> Replies:
    """The replies of all clients that end a round of a race."""
    arm_replies = Replies(clients=tuple(range(len(sizes))), examples=sizes)
    return replace(
        arm_replies,
        held_out_losses=sums_of_losses(differences, sizes, ((SIMPLE, 0), (COMPLEX, 0))),
        parts={SIMPLE: arm_replies, COMPLEX: arm_replies},
    )


def rates(outcomes: Sequence[RaceOutcome]) -> dict[str, float]:
    """Shares of the races, by what they decided."""
    last_report = 2 * Race().patience

    def share(condition: Callable[[RaceOutcome], bool]) -> float:
        return round(sum(map(condition, outcomes)) / len(outcomes), 4)

    return {
        "delivered": share(lambda race: race.leader == COMPLEX),
        "changed": share(lambda race: race.changes > 0),
        "changes": round(sum(race.changes for race in outcomes) / len(outcomes), 3),
        "simple ended by test": share(
            lambda race: race.ended == SIMPLE and race.ended_by == "held_out_loss"
        ),
        "complex hopeless": share(
            lambda race: race.ended == COMPLEX and race.ended_by == "held_out_loss"
        ),
        "simple ended early": share(
            lambda race: race.ended == SIMPLE and race.ended_round < last_report
        ),
        "complex ended early": share(
            lambda race: race.ended == COMPLEX and race.ended_round < last_report
        ),
        "limited": round(sum(race.limited for race in outcomes) / len(outcomes), 4),
    }


def constant(difference: float) -> Curve:
    """The same true difference in all rounds."""
    return lambda round_number: difference


def late(gain: float, crossing: float, rounds_to_learn: float = 10.0) -> Curve:
    """The complex arm is behind at first, even in round ``crossing``, and ahead by ``gain`` at last.

    What it lacks shrinks by the factor e in ``rounds_to_learn`` rounds.
    """
    return lambda round_number: gain * (1 - math.exp((crossing - round_number) / rounds_to_learn))


def null_rows(scale: float) -> Iterator[dict[str, Any]]:
    """Races of arms that are as good, for all numbers of clients and rows."""
    for client_count in CLIENT_COUNTS:
        for row_count in ROW_COUNTS:
            for kind in GROUPS:
                yield race_row("null", client_count, row_count, kind, (0.0,), 120 * scale)
    for client_count, row_count in COMPARED_SIZES:
        yield race_row("null", client_count, row_count, NO_HYSTERESIS, (0.0,), 120 * scale)


def constant_rows(scale: float) -> Iterator[dict[str, Any]]:
    """Races of arms with the same true difference in all rounds."""
    for client_count, row_count in COMPARED_SIZES:
        for kind in GROUPS:
            for difference in (-4.0, -3.0, -2.0, -1.0, -0.5, 0.5, 1.0, 2.0, 3.0, 4.0):
                yield race_row("constant", client_count, row_count, kind, (difference,), 80 * scale)


def late_rows(scale: float) -> Iterator[dict[str, Any]]:
    """Races of one model with groups that are better late."""
    for kind in GROUPS:
        for crossing in (0.0, 5.0, 10.0, 15.0, 20.0):
            for gain in (1.0, 2.0, 4.0):
                yield race_row("late", 12, 30, kind, (gain, crossing), 80 * scale)


def race_row(
    part: str,
    client_count: int,
    row_count: int,
    kind: str,
    curve_numbers: tuple[float, ...],
    runs: float,
) -> dict[str, Any]:
    """The rates of races of one kind."""
    curve = late(*curve_numbers) if part == "late" else constant(*curve_numbers)
    numbers = [round(10 * number) + 100 for number in curve_numbers]
    rng = np.random.default_rng([client_count, row_count, *kind.encode(), *numbers])
    sizes = np.full(client_count, row_count)
    outcomes = [raced(rng, sizes, kind, curve) for _ in range(max(1, round(runs)))]
    return {
        "part": part,
        "clients": client_count,
        "rows": row_count,
        "groups": kind,
        "curve": curve_numbers,
        "runs": len(outcomes),
        **rates(outcomes),
    }


# -- fences
# -----------------------------------------------------------------------------------------------------------------

TEST_LEVELS = (0.1, 0.01, 0.001)


def fence_rows(scale: float) -> Iterator[dict[str, Any]]:
    """Tests of a difference of 0 with and without fences, in one look."""
    for client_count in CLIENT_COUNTS:
        for row_count in ROW_COUNTS:
            yield fence_row("fences", client_count, row_count, False, 0.0, 1000 * scale)
    # Unequal clients: rows from a third to three times as many, and one client that differs.
    for client_count in (3, 5, 12):
        for row_count in (10, 100):
            for apart in (0.0, 0.5, 1.0, 2.0, 4.0):
                yield fence_row(
                    "unequal fences", client_count, row_count, True, apart, 1000 * scale
                )


def fence_row(
    part: str, client_count: int, row_count: int, unequal: bool, apart: float, runs: float
) -> dict[str, Any]:
    """How often honest clients are limited, and tests reject a difference of 0.

    Args:
        part: The part of the study.
        client_count: Number of clients.
        row_count: Their rows, or the geometric mean of these.
        unequal: Whether clients have unequal numbers of rows.
        apart: By how many standard deviations of an example the difference of the first client is
            greater than that of the others. The mean over all rows is 0.
        runs: Number of draws.
    """
    rng = np.random.default_rng([client_count, row_count, unequal, round(10 * apart)])
    draw_count = max(1, round(runs))
    rejected = {False: np.zeros(len(TEST_LEVELS)), True: np.zeros(len(TEST_LEVELS))}
    limited_draws = 0
    squared_shift = 0.0
    shift = 0.0
    for _ in range(draw_count):
        sizes = np.full(client_count, row_count)
        if unequal:
            factors = np.exp(math.log(3) * rng.uniform(-1, 1, client_count))
            sizes = np.maximum(np.round(row_count * factors), 2).astype(int)
        losses = SimulatedLosses.drawn(rng, sizes)
        by_client = np.zeros(client_count)
        by_client[0] = apart * losses.shape.unit
        # Shares are bounded, and the true difference is the mean with these shares.
        shares = Averaging().bounded(sizes)
        reports = reports_of(losses.next_round() + np.repeat(by_client, sizes), sizes)
        truth = float(shares @ by_client / shares.sum())
        plain = pooled(1, reports, limited=False)
        fenced = pooled(1, reports, limited=True)
        is_limited = not math.isclose(plain.mean, fenced.mean) or not math.isclose(
            plain.error, fenced.error
        )
        limited_draws += is_limited
        shift += (fenced.mean - plain.mean) / losses.error
        squared_shift += ((fenced.mean - plain.mean) / losses.error) ** 2
        for limited, difference in ((False, plain), (True, fenced)):
            z = (difference.mean - truth) / difference.error
            p_value = 2 * scipy.special.stdtr(difference.degrees, -abs(z))
            rejected[limited] += p_value < np.array(TEST_LEVELS)
    return {
        "part": part,
        "clients": client_count,
        "rows": row_count,
        "apart": apart,
        "runs": draw_count,
        "draws with limits": round(limited_draws / draw_count, 4),
        "mean shift": round(shift / draw_count, 3),
        "shift": round(math.sqrt(squared_shift / draw_count), 3),
        "levels": TEST_LEVELS,
        "rejected": np.round(rejected[False] / draw_count, 4).tolist(),
        "rejected within fences": np.round(rejected[True] / draw_count, 4).tolist(),
    }


def reports_of(differences: np.ndarray, sizes: np.ndarray) -> Reports:
    """The reports of the clients: mean difference, variance of this mean, number of rows."""
    first, second = ("", 0), ("", 1)
    reports = {}
    for client, losses in sums_of_losses(differences, sizes, (first, second)).items():
        difference = losses.difference(first, second)
        assert difference is not None
        reports[client] = (*difference, losses.count)
    return reports


# -- standard errors
# --------------------------------------------------------------------------------------------------------

ERROR_ROUNDS = 20
ERROR_SIZES = ((3, 10), (12, 30), (20, 100), (60, 100), (60, 500))


def error_rows(scale: float) -> Iterator[dict[str, Any]]:
    """How far a difference of 0 is from 0 in standard errors: of the last round, and over the later half of the rounds."""
    for client_count, row_count in ERROR_SIZES:
        rng = np.random.default_rng([client_count, row_count])
        sizes = np.full(client_count, row_count)
        last_round = []
        later_half = []
        for _ in range(max(2, round(200 * scale))):
            losses = SimulatedLosses.drawn(rng, sizes)
            history: tuple[Difference, ...] = ()
            for round_number in range(1, ERROR_ROUNDS + 1):
                reports = reports_of(losses.next_round(), sizes)
                history = (*history, pooled(round_number, reports, limited=True))
            last_round.append(history[-1].z)
            later_half.append(over_rounds(history).z)
        yield {
            "part": "errors",
            "clients": client_count,
            "rows": row_count,
            "runs": len(last_round),
            "last round": round(float(np.std(last_round)), 3),
            "later half": round(float(np.std(later_half)), 3),
        }


# -- personal models
# --------------------------------------------------------------------------------------------------------

PERSONAL_ROUNDS = 20
"""Rounds after which it is counted who uses a personal model."""

TRUE_GAINS: Mapping[str, tuple[float, float]] = {
    "equal": (0.0, 0.0),
    "worse": (1.0, 0.0),
    "better": (-1.0, 0.0),
    "mixed": (0.0, 1.0),
}
"""Name -> what a personal model adds to the loss of all clients, and the standard deviation between
clients, in standard errors of a client's mean difference."""


def personal_rows(scale: float) -> Iterator[dict[str, Any]]:
    """Who uses a personal model that is as good, worse, better, or better at some clients."""
    for gain_name in TRUE_GAINS:
        for client_count in (3, 12, 60):
            for row_count in (3, 10, 30, 100):
                yield personal_row(gain_name, client_count, row_count, 60 * scale)


def personal_row(gain_name: str, client_count: int, row_count: int, runs: float) -> dict[str, Any]:
    """The shares of clients with personal models, and what these add to the loss."""
    rng = np.random.default_rng([*gain_name.encode(), client_count, row_count])
    sizes = np.full(client_count, row_count)
    mean_added, spread = TRUE_GAINS[gain_name]
    run_count = max(1, round(runs))
    client_error = SHAPE.unit / math.sqrt(row_count)
    method = Tuned(method=Arm())
    uses = 0
    differ = 0
    added = 0.0
    best = 0.0
    for _ in range(run_count):
        state: TunedState = method.init(federation(client_count))
        # No part by client: what clients differ by is what they truly gain.
        losses = SimulatedLosses.drawn(rng, sizes, replace(SHAPE, client=0.0))
        added_losses = client_error * (mean_added + spread * rng.standard_normal(client_count))
        for _ in range(PERSONAL_ROUNDS):
            # The first of the two models is the personal one.
            differences = losses.next_round() + np.repeat(added_losses, sizes)
            replies = Replies(
                clients=tuple(range(client_count)),
                examples=sizes,
                held_out_losses=sums_of_losses(differences, sizes, (("", 1), ("", 0))),
            )
            state = method.step(state, replies)
        expected = shrunk(state.gains, range(client_count), limited=True)
        differ += len(set(expected.values())) > 1
        uses += len(state.own)
        added += float(added_losses[list(state.own)].sum())
        best += float(np.minimum(added_losses, 0).sum())
    all_clients = run_count * client_count
    return {
        "part": "personal",
        "gains": gain_name,
        "clients": client_count,
        "rows": row_count,
        "runs": run_count,
        "use": round(uses / all_clients, 4),
        "differ": round(differ / run_count, 4),
        "added": round(added / all_clients / client_error, 4),
        "best": round(best / all_clients / client_error, 4),
    }


# -- the shape of real differences
# ----------------------------------------------------------------------------------------------

SITE_KINDS = ("invert", "angle", "degrees", "alike")
LARGE_SITE_KINDS = ("degrees", "alike", "angle")
"""Kinds of sites, see :mod:`coterie.contrib.bench.silos`."""

LARGE_SITES: Mapping[str, Any] = {"LEAST_ROWS": 1500, "MOST_ROWS": 3000, "MOST_ROWS_OF_ALL": 60_000}
"""Sizes of large sites, where noise of training shows next to the draw of the rows."""


def recorded(world: World, rounds: int = ROUNDS) -> list[dict[str, list[np.ndarray]]]:
    """Train one model, groups and local models side by side: in each round, arm -> losses at each client.

    Each client's losses are those of its held-out examples. No arm is dropped.
    """
    methods = (FedAvg(weighting="uniform"), SplitHalf(weighting="uniform"), Independent())
    race = Race(methods=methods, patience=rounds, level=1e-300)
    losses_of_rounds: list[dict[str, list[np.ndarray]]] = []
    summed = exchange.held_losses

    def seen(
        losses_of_parts: Mapping[str, Mapping[Client, np.ndarray]],
        tasks_of_parts: Mapping[str, Mapping[Client, Task]],
    ) -> dict[Client, HeldOutLosses]:
        losses_of_arm = {}
        for part_name, losses_of_client in losses_of_parts.items():
            losses = [losses_of_client[client][0] for client in sorted(losses_of_client)]
            losses_of_arm.update(dict.fromkeys(part_name.split("+"), losses))
        if len(losses_of_arm) == len(methods):
            losses_of_rounds.append(losses_of_arm)
        return summed(losses_of_parts, tasks_of_parts)

    with mock.patch.object(exchange, "held_losses", seen):
        for _ in run(race, world, rounds=rounds, seed=0, workers=1, eval_every=rounds):
            pass
    return losses_of_rounds


def shape_of(differences: Sequence[Sequence[np.ndarray]]) -> dict[str, float]:
    """The numbers of a :class:`Shape`, of rounds of clients' differences."""
    by_client = [np.stack(rounds) for rounds in zip(*differences, strict=True)]
    all_rows = np.concatenate(by_client, axis=1)
    fixed = np.concatenate([rows.mean(0) - rows.mean() for rows in by_client])
    unit = float(fixed.std())
    noise = np.concatenate([rows - rows.mean(0) for rows in by_client], axis=1)
    quartile_range = float(np.subtract(*np.quantile(fixed, [0.75, 0.25])))
    client_scales = [rows.mean(0).std() for rows in by_client if rows.shape[1] >= 8]
    # The spread of the clients' means beyond that by the draw of their examples.
    sizes = np.array([rows.shape[1] for rows in by_client])
    client_means = np.array([rows.mean() for rows in by_client])
    mean = float(sizes @ client_means / sizes.sum())
    excess = float(sizes @ (client_means - mean) ** 2) - len(sizes) * unit**2
    shape = {
        "unit": unit,
        "kurtosis": float((fixed**4).mean()) / unit**4,
        "skewness": float((fixed**3).mean()) / unit**3,
        "quartiles": quartile_range / 1.349 / unit,
        "client scale": float(np.log(client_scales).std()),
        "client": math.sqrt(max(excess, 0.0) / sizes.sum()) / unit,
        "example noise": float(noise.std()) / unit,
        "round noise": float(all_rows.mean(1).std(ddof=1)) / unit,
        "persistence": float((noise[1:] * noise[:-1]).sum() / (noise**2).sum()),
    }
    return {name: round(value, 3) for name, value in shape.items()}


def shape_rows(scale: float) -> Iterator[dict[str, Any]]:
    """The shape of the differences of each pair of arms over the later half of the rounds, and of simulated ones.

    Args:
        scale: Of no effect: the worlds are few.
    """
    worlds = {f"{kind}, small": draw_site_world(kind, 0).world for kind in SITE_KINDS}
    worlds["digits/dirichlet"] = SCENARIOS["digits/dirichlet"].build(0)
    with mock.patch.multiple(silos_worlds, **LARGE_SITES):
        worlds.update(
            {f"{kind}, large": draw_site_world(kind, 1).world for kind in LARGE_SITE_KINDS}
        )
    for name, world in worlds.items():
        losses_of_rounds = recorded(world, rounds=30 if "large" in name else ROUNDS)
        later_rounds = losses_of_rounds[len(losses_of_rounds) // 2 :]
        for simple_arm, complex_arm in pairwise(("fedavg", "split-half", "independent")):
            differences = []
            for losses in later_rounds:
                pairs = zip(losses[simple_arm], losses[complex_arm], strict=True)
                differences.append([first - second for first, second in pairs])
            # Until groups are found, both arms have the same models.
            if any(rows.any() for rows in differences[0]):
                yield {
                    "part": "shape",
                    "world": name,
                    "pair": f"{simple_arm} {complex_arm}",
                    **shape_of(differences),
                }
    sizes = np.full(12, 33)
    simulated = SimulatedLosses.drawn(np.random.default_rng(0), sizes)
    splits = np.cumsum(sizes)[:-1]
    rounds = [np.split(simulated.next_round(), splits) for _ in range(ROUNDS // 2)]
    yield {"part": "shape", "world": "simulated", "pair": "", **shape_of(rounds)}


# -- command
# --------------------------------------------------------------------------------------------------------------

STUDIES: Mapping[str, Callable[[float], Iterator[dict[str, Any]]]] = {
    "shape": shape_rows,
    "errors": error_rows,
    "null": null_rows,
    "constant": constant_rows,
    "late": late_rows,
    "fences": fence_rows,
    "personal": personal_rows,
}
"""Name -> its rows, for a share of the runs."""


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--out", type=Path, required=True, help="append to this file")
    parser.add_argument("--only", default=",".join(STUDIES), help="studies, by their names")
    parser.add_argument("--scale", type=float, default=1.0, help="share of the runs")
    asked = parser.parse_args(arguments)
    torch.set_num_threads(1)
    for name in asked.only.split(","):
        for row in STUDIES[name](asked.scale):
            append_result(asked.out, row)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
