"""Methods over the same clients, compared client by client in the same round of the same seeds.

What noise is, and when a difference is significant, says :mod:`coterie.report.noise`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from coterie.pooling import ErrorSums, pooled
from coterie.records.shown import ClientId
from coterie.report.noise import (
    MAX_INDEPENDENT_TESTERS,
    MIN_SAMPLE,
    NORMAL_95,
    half_interval,
    mean_value,
    noise_of_seeds,
    noise_over_few,
    two_shares,
)
from coterie.report.summary import Summary
from coterie.report.trials import MethodTrials, Trial

BASELINES: Mapping[str, str] = {"fedavg": "one model for all", "independent": "training alone"}
"""Methods with which others are compared, and what they are."""

ScorePairs = Mapping[ClientId, Sequence[tuple[float, float]]]
"""Client -> its main metric with two methods, with each seed."""


@dataclass(frozen=True)
class Gain:
    """How much better one method is than another.

    Attributes:
        score: Its main metric.
        rival_score: The main metric of the other method.
        by: The difference, positive if it is better, whether greater or smaller values are.
        noise: Differences up to this are not significant; None if it is not known.
    """

    score: float
    rival_score: float
    by: float
    noise: float | None

    @property
    def sign(self) -> int | None:
        """1 if it is significantly better, -1 if significantly worse, 0 if neither; None if not known."""
        if self.noise is None:
            return None
        if abs(self.by) <= self.noise:
            return 0
        return 1 if self.by > 0 else -1


@dataclass(frozen=True)
class Contest:
    """Methods over the same clients, in one round of the same seeds.

    Attributes:
        methods: The methods; those of :func:`coterie.report.ranking.contests` have the recommended
            one first.
        seeds: The seeds that all of them have.
        round: The last round that all of them have tested, or None.
        left_out: Labels of methods that have no seed, tested round or data in common with the
            others.
    """

    methods: Sequence[MethodTrials]
    seeds: Sequence[int]
    round: int | None
    left_out: Sequence[str] = ()

    # ------------------------------------------------------------------------------------------------
    # The methods and clients.

    @property
    def summary(self) -> Summary:
        """The summary of one of the runs, for what they have in common."""
        return self.methods[0].first.summary

    @property
    def metric(self) -> str:
        """The name of the main metric."""
        return str(self.summary["metric"])

    @property
    def mean_name(self) -> str:
        """What the score of all clients together is called: the mean or the pooled main metric."""
        return f"{'pooled' if self.is_pooled else 'mean'} {self.metric}"

    def find(self, name: str) -> MethodTrials | None:
        """Return the first entry of a method, or None."""
        return next((method for method in self.methods if method.name == name), None)

    @cached_property
    def focus(self) -> MethodTrials:
        """The best method that is no baseline, or else the best: the verdict has its groups."""
        no_baselines = (method for method in self.methods if method.name not in BASELINES)
        return next(no_baselines, self.methods[0])

    def rivals_of(self, best: MethodTrials) -> list[MethodTrials]:
        """Return the other methods of interest: the baselines, and the one whose groups are shown."""
        return [
            method
            for method in self.methods
            if method is not best and (method.name in BASELINES or method is self.focus)
        ]

    @cached_property
    def clients(self) -> list[ClientId]:
        """The honest clients that were tested with some method in this round."""
        tested: set[ClientId] = set()
        for method in self.methods:
            for seed in self.seeds:
                tested.update(self._scores(method, seed))
        return sorted(tested, key=lambda client: (isinstance(client, str), client))

    def clients_better_with(self, method: MethodTrials, than: MethodTrials) -> list[ClientId]:
        """Return the clients for which a method is significantly better than another."""
        gains = self.client_gains(method, than)
        return [client for client, gain in gains.items() if gain.sign == 1]

    # ------------------------------------------------------------------------------------------------
    # Scores.

    def _scores(self, method: MethodTrials, seed: int) -> Mapping[ClientId, float]:
        return method.trials[seed].scores.get(self.round or 0, {})

    def _sums(self, method: MethodTrials, seed: int) -> Mapping[ClientId, ErrorSums]:
        return method.trials[seed].sums.get(self.round or 0, {})

    def seed_scores(self, method: MethodTrials, client: ClientId) -> dict[int, float]:
        """Return seed -> a client's main metric with a method, with which it was tested."""
        scores = {seed: self._scores(method, seed).get(client) for seed in self.seeds}
        return {seed: score for seed, score in scores.items() if score is not None}

    def client_score(self, method: MethodTrials, client: ClientId) -> float | None:
        """Return a client's main metric with a method, the mean over seeds; None without a test."""
        scores = self.seed_scores(method, client)
        return mean_value(scores.values()) if scores else None

    def mean_score(self, method: MethodTrials) -> float | None:
        """Return the mean over clients of their main metric; None without a test.

        A metric such as R2 is that of the clients' test rows together, in the mean over the seeds.
        """
        if self.is_pooled:
            return self._pooled_score(method, self.clients)
        scores = [self.client_score(method, client) for client in self.clients]
        tested = [score for score in scores if score is not None]
        return mean_value(tested) if tested else None

    @cached_property
    def is_pooled(self) -> bool:
        """Whether the main metric of several clients is that of their test rows together."""
        return all(self._sums(method, seed) for method in self.methods for seed in self.seeds)

    def _pooled_score(
        self, method: MethodTrials, clients: Sequence[ClientId], seeds: Sequence[int] = ()
    ) -> float | None:
        """The main metric of the clients' test rows together, in the mean over seeds; None if undefined."""
        scores = []
        for seed in seeds or self.seeds:
            sums = self._sums(method, seed)
            scores.append(pooled(sums[client] for client in clients if client in sums))
        if not scores or any(map(math.isnan, scores)):
            return None
        return mean_value(scores)

    # ------------------------------------------------------------------------------------------------
    # Test sets and constant predictions.

    @property
    def test_unit(self) -> str:
        """What the sizes of the test sets count."""
        return self.methods[0].trials[self.seeds[0]].test_unit

    def test_size(self, client: ClientId) -> float | None:
        """Return a client's number of test examples or subjects, the mean over seeds; None if not recorded."""
        sizes = []
        for seed in self.seeds:
            size = self.methods[0].trials[seed].test_sizes.get(client)
            if not size:
                return None
            sizes.append(size)
        return mean_value(sizes) if sizes else None

    @cached_property
    def constant(self) -> MethodTrials | None:
        """Always predicting the same, as if it were a method; None if its scores are not recorded."""
        trials = {seed: self.methods[0].trials[seed] for seed in self.seeds}
        predictions = {trial.reference.predicts for trial in trials.values()}
        if self.round is None or not all(predictions):
            return None
        label = "always predicting the same"
        if len(predictions) == 1:
            label = f"always predicting {predictions.pop()}"
        return MethodTrials(
            label,
            {seed: _as_if_predicted(trial, self.round) for seed, trial in trials.items()},
        )

    def beats_constant(self, method: MethodTrials) -> bool | None:
        """Whether a method is significantly better than a constant prediction; None if not known."""
        if self.constant is None:
            return None
        gain = self.mean_gain(method, self.constant)
        if gain is None:
            return None
        if gain.by <= 0:
            return False
        if gain.noise is None:
            return False if self._is_within_interval(method, self.constant) else None
        return gain.sign == 1

    def constant_score(self, client: ClientId) -> float | None:
        """Return the score of the better constant prediction for a client; None if not known.

        One predicts the same for all clients' training data, the other for its own.
        """
        better = max if self.summary["better"] == "greater" else min
        over_seeds = []
        for seed in self.seeds:
            reference = self.methods[0].trials[seed].reference
            tables = (reference.values, reference.own_values)
            scores = [table[client] for table in tables if client in table]
            if not scores:
                return None
            over_seeds.append(better(scores))
        return mean_value(over_seeds)

    # ------------------------------------------------------------------------------------------------
    # Differences and their noise.

    def client_gain(
        self, method: MethodTrials, rival: MethodTrials, client: ClientId
    ) -> Gain | None:
        """Return how much better a method is than another for one client; None if not tested with both."""
        return self._gain(method, rival, [client])

    def client_gains(self, method: MethodTrials, rival: MethodTrials) -> dict[ClientId, Gain]:
        """Return how much better a method is than another, for each client tested with both."""
        gains = {client: self.client_gain(method, rival, client) for client in self.clients}
        return {client: gain for client, gain in gains.items() if gain is not None}

    def mean_gain(self, method: MethodTrials, rival: MethodTrials) -> Gain | None:
        """Return how much better a method is than another in the mean over clients tested with both."""
        return self._gain(method, rival, self.clients)

    def _gain(
        self, method: MethodTrials, rival: MethodTrials, clients: Sequence[ClientId]
    ) -> Gain | None:
        if self.is_pooled and len(clients) > 1:
            return self._pooled_gain(method, rival, clients)
        pairs = self._score_pairs(method, rival, clients)
        if not pairs:
            return None
        client_means = _over_seeds(pairs)
        score = mean_value(mine for mine, _ in client_means.values())
        rival_score = mean_value(theirs for _, theirs in client_means.values())
        by = self._improvement(score, rival_score)
        if self.noise_is_of_tests:
            noise: float | None = self.noise_of_shares(client_means)
        elif len(clients) > 1:
            noise = self._noise_of_mean(by, pairs)
        else:
            (client_pairs,) = pairs.values()
            noise = noise_of_seeds(self._seed_differences(method, rival), len(client_pairs))
        return Gain(score, rival_score, by, noise)

    def _improvement(self, score: float, rival_score: float) -> float:
        return score - rival_score if self.summary["better"] == "greater" else rival_score - score

    def _score_pairs(
        self, method: MethodTrials, rival: MethodTrials, clients: Sequence[ClientId]
    ) -> ScorePairs:
        """The scores of clients with both methods, with each seed; without clients that have none."""
        pairs: dict[ClientId, list[tuple[float, float]]] = {}
        for client in clients:
            scores = self.seed_scores(method, client)
            rival_scores = self.seed_scores(rival, client)
            common_seeds = [seed for seed in scores if seed in rival_scores]
            if common_seeds:
                pairs[client] = [(scores[seed], rival_scores[seed]) for seed in common_seeds]
        return pairs

    def _seed_differences(self, method: MethodTrials, rival: MethodTrials) -> list[list[float]]:
        pairs = self._score_pairs(method, rival, self.clients)
        return [[mine - theirs for mine, theirs in both] for both in pairs.values()]

    @property
    def averages_shares(self) -> bool:
        """Whether the main metric averages numbers from 0 to 1 over test examples, as an accuracy."""
        return self.methods[0].first.averages_shares

    @cached_property
    def noise_is_of_tests(self) -> bool:
        """Whether noise follows from the numbers of test examples."""
        return self.averages_shares and all(self.test_size(client) for client in self.clients)

    def noise_of_shares(self, scores: Mapping[ClientId, tuple[float, float]]) -> float:
        """Return the noise of the mean difference of metrics that average numbers from 0 to 1.

        Several seeds do not make it smaller, because their test sets may overlap.

        Args:
            scores: Client -> its scores with two methods.
        """
        variance = 0.0
        step = 0.0
        for client, (score, rival_score) in scores.items():
            size = self._size_for_noise(client)
            # Clients that share test examples have the same errors: their variances add up as if
            # each example counted once.
            testers = min(self._testers(client), len(scores))
            variance += testers * two_shares((score + rival_score) / 2, size)
            step += testers / size / len(scores)
        return (NORMAL_95 * math.sqrt(variance) + step) / len(scores)

    def _size_for_noise(self, client: ClientId) -> float:
        """The harmonic mean of a client's test sizes over the seeds: its variance is the mean of theirs."""
        trials = self.methods[0].trials
        return 1 / mean_value(1 / trials[seed].test_sizes[client] for seed in self.seeds)

    def _testers(self, client: ClientId) -> float:
        """How many clients test the examples of a client, the most over the seeds; 1 if not recorded."""
        tables = [self.methods[0].trials[seed].testers for seed in self.seeds]
        return max((table.get(client, 1.0) for table in tables if table is not None), default=1.0)

    @property
    def shares_tests(self) -> bool:
        """Whether clients share so many test examples that their differences are not independent."""
        testers = mean_value(self._testers(client) for client in self.clients)
        return testers > MAX_INDEPENDENT_TESTERS

    def _noise_of_mean(self, by: float, pairs: ScorePairs) -> float | None:
        """Noise of the mean over clients: over the seeds if there are enough, otherwise over the clients."""
        seed_counts = {len(both) for both in pairs.values()}
        if len(seed_counts) == 1 and min(seed_counts) >= MIN_SAMPLE:
            return half_interval(
                [
                    mean_value(mine - theirs for mine, theirs in pairs_of_seed)
                    for pairs_of_seed in zip(*pairs.values(), strict=True)
                ]
            )
        if self.shares_tests:
            return None
        return noise_over_few(by, _interval_over_clients(pairs))

    def _is_within_interval(self, method: MethodTrials, rival: MethodTrials) -> bool:
        """Whether the mean difference of two methods is within its interval over the clients.

        Then it is not significant even if clients share test examples, which makes this interval
        too narrow. False for fewer than :data:`~coterie.report.noise.MIN_SAMPLE` clients.
        """
        if self.is_pooled:
            clients = self._clients_with_sums(method, rival, self.clients)
            half = self._jackknife_interval(method, rival, clients)
            difference = self._pooled_difference(method, rival, clients)
        else:
            pairs = self._score_pairs(method, rival, self.clients)
            half = _interval_over_clients(pairs)
            difference = mean_value(mine - theirs for mine, theirs in _over_seeds(pairs).values())
        return half is not None and difference is not None and abs(difference) <= half

    # ------------------------------------------------------------------------------------------------
    # Differences of a metric that is pooled over clients.

    def _pooled_gain(
        self, method: MethodTrials, rival: MethodTrials, clients: Sequence[ClientId]
    ) -> Gain | None:
        """The gain of several clients by a metric that is pooled over them.

        Its noise is that of :meth:`_noise_of_mean`: half the 95% interval over the seeds, or, with
        few seeds, over the clients.
        """
        clients = self._clients_with_sums(method, rival, clients)
        score = self._pooled_score(method, clients)
        rival_score = self._pooled_score(rival, clients)
        if score is None or rival_score is None:
            return None
        by = self._improvement(score, rival_score)
        noise = None
        if len(self.seeds) >= MIN_SAMPLE:
            differences = [
                self._pooled_difference(method, rival, clients, [seed]) for seed in self.seeds
            ]
            noise = half_interval([value for value in differences if value is not None])
        elif not self.shares_tests:
            noise = noise_over_few(by, self._jackknife_interval(method, rival, clients))
        return Gain(score, rival_score, by, noise)

    def _clients_with_sums(
        self, method: MethodTrials, rival: MethodTrials, clients: Sequence[ClientId]
    ) -> list[ClientId]:
        """The clients that have sums of the main metric with both methods and each seed."""
        tables = [self._sums(each, seed) for each in (method, rival) for seed in self.seeds]
        return [client for client in clients if all(client in table for table in tables)]

    def _pooled_difference(
        self,
        method: MethodTrials,
        rival: MethodTrials,
        clients: Sequence[ClientId],
        seeds: Sequence[int] = (),
    ) -> float | None:
        score = self._pooled_score(method, clients, seeds)
        rival_score = self._pooled_score(rival, clients, seeds)
        if score is None or rival_score is None:
            return None
        return score - rival_score

    def _jackknife_interval(
        self, method: MethodTrials, rival: MethodTrials, clients: Sequence[ClientId]
    ) -> float | None:
        """Half the interval over clients of a difference of pooled metrics; None for few clients.

        Each client stands for its jackknife pseudo-value, n times the difference over all clients
        minus n - 1 times that without the client (J. Tukey, Annals of Mathematical Statistics 29,
        1958). Of a mean, this is the client's own difference.
        """
        n = len(clients)
        over_all = self._pooled_difference(method, rival, clients)
        if n < MIN_SAMPLE or over_all is None:
            return None
        pseudo_values = []
        for left_out in clients:
            remaining = [client for client in clients if client != left_out]
            over_remaining = self._pooled_difference(method, rival, remaining)
            if over_remaining is None:
                return None
            pseudo_values.append(n * over_all - (n - 1) * over_remaining)
        return half_interval(pseudo_values)


def _as_if_predicted(trial: Trial, number: int) -> Trial:
    """Return a run that scored in a round what constant predictions score."""
    return replace(
        trial,
        scores={number: trial.reference.values},
        sums={number: trial.reference.sums},
    )


def _over_seeds(pairs: ScorePairs) -> dict[ClientId, tuple[float, float]]:
    """Return client -> the means over seeds of its scores with two methods."""
    means: dict[ClientId, tuple[float, float]] = {}
    for client, score_pairs in pairs.items():
        score = mean_value(score for score, _ in score_pairs)
        rival_score = mean_value(rival_score for _, rival_score in score_pairs)
        means[client] = (score, rival_score)
    return means


def _interval_over_clients(pairs: ScorePairs) -> float | None:
    """Return half the interval over clients of their differences; None for few clients."""
    if len(pairs) < MIN_SAMPLE:
        return None
    return half_interval([mine - theirs for mine, theirs in _over_seeds(pairs).values()])
