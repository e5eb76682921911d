"""Methods over the same clients, compared client by client in the same round of the same seeds.

What noise is, and when a difference is significant, says :mod:`coterie.report.noise`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from coterie.pooling import ErrorSums, pooled
from coterie.records.shown import ClientId
from coterie.report.noise import (
    MAX_INDEPENDENT_TESTERS,
    MIN_SAMPLE,
    NORMAL_95,
    examples_needed,
    half_interval,
    mean_value,
    noise_of_seeds,
    noise_over_few,
    two_areas,
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
        improvement: The difference, positive if it is better, whether greater or smaller values are.
        noise: Differences up to this are not significant; None if it is not known.
    """

    score: float
    rival_score: float
    improvement: float
    noise: float | None

    @property
    def sign(self) -> int | None:
        """1 if it is significantly better, -1 if significantly worse, 0 if neither; None if not known."""
        if self.noise is None:
            return None
        if abs(self.improvement) <= self.noise:
            return 0
        return 1 if self.improvement > 0 else -1


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

    @property
    def labels(self) -> list[str]:
        """The labels of the methods, in their order."""
        return [method.label for method in self.methods]

    def find(self, name: str) -> MethodTrials | None:
        """Return the first entry of a method, or None."""
        return next((method for method in self.methods if method.name == name), None)

    def baselines(self, method: MethodTrials) -> list[MethodTrials]:
        """Return the baselines other than a method, as far as they were run."""
        found_baselines = []
        for baseline_name in BASELINES:
            baseline = self.find(baseline_name)
            if baseline is not None and baseline is not method:
                found_baselines.append(baseline)
        return found_baselines

    @cached_property
    def focus(self) -> MethodTrials:
        """The best method that is no baseline, or else the best: the verdict has its groups."""
        # Methods are ordered, so the first one is the best.
        no_baselines = (method for method in self.methods if method.name not in BASELINES)
        return next(no_baselines, self.methods[0])

    def rivals_of(self, best: MethodTrials) -> list[MethodTrials]:
        """Return the other methods of interest: the baselines, and the one whose groups are shown."""
        rivals = []
        for method in self.methods:
            is_of_interest = method.name in BASELINES or method is self.focus
            if is_of_interest and method is not best:
                rivals.append(method)
        return rivals

    @cached_property
    def clients(self) -> list[ClientId]:
        """The honest clients that were tested with some method in this round."""
        # Clients may be missing with one method or seed.
        tested: set[ClientId] = set()
        for method in self.methods:
            for seed in self.seeds:
                tested.update(self._scores(method, seed))
        return sorted(tested, key=lambda client: (isinstance(client, str), client))

    def clients_better_with(self, method: MethodTrials, than: MethodTrials) -> list[ClientId]:
        """Return the clients for which a method is significantly better than another."""
        gain_of_client = self.client_gains(method, than)
        return [client for client, gain in gain_of_client.items() if gain.sign == 1]

    # ------------------------------------------------------------------------------------------------
    # Scores.

    def _scores(self, method: MethodTrials, seed: int) -> Mapping[ClientId, float]:
        return method.trials[seed].scores.get(self.round or 0, {})

    def _sums(self, method: MethodTrials, seed: int) -> Mapping[ClientId, ErrorSums]:
        return method.trials[seed].sums.get(self.round or 0, {})

    def seed_scores(self, method: MethodTrials, client: ClientId) -> dict[int, float]:
        """Return seed -> a client's main metric with a method, with which it was tested."""
        score_of_seed = {}
        for seed in self.seeds:
            score = self._scores(method, seed).get(client)
            if score is not None:
                score_of_seed[seed] = score
        return score_of_seed

    def seeds_with_personal_model(self, method: MethodTrials, client: ClientId) -> int:
        """Return the number of seeds with which a client's score is that of its personal model."""
        return sum(
            client in method.trials[seed].personal.get(self.round or 0, ()) for seed in self.seeds
        )

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
        # Every client counts the same, whatever the number of its seeds or examples.
        client_scores = [self.client_score(method, client) for client in self.clients]
        known_scores = [score for score in client_scores if score is not None]
        return mean_value(known_scores) if known_scores else None

    @cached_property
    def is_pooled(self) -> bool:
        """Whether the main metric of several clients is that of their test rows together."""
        # Only pooled metrics have sums.
        all_sums: list[Mapping[ClientId, ErrorSums]] = []
        for method in self.methods:
            all_sums += [self._sums(method, seed) for seed in self.seeds]
        return all(all_sums)

    def _pooled_score(
        self, method: MethodTrials, clients: Sequence[ClientId], seeds: Sequence[int] = ()
    ) -> float | None:
        """The main metric of the clients' test rows together, in the mean over seeds; None if undefined."""
        pooled_scores = []
        for seed in seeds or self.seeds:
            sums_of_client = self._sums(method, seed)
            tested = [client for client in clients if client in sums_of_client]
            pooled_scores.append(pooled(sums_of_client[client] for client in tested))
        # A pooled metric such as R2 is undefined if the targets do not vary.
        if not pooled_scores or any(map(math.isnan, pooled_scores)):
            return None
        return mean_value(pooled_scores)

    # ------------------------------------------------------------------------------------------------
    # Test sets and constant predictions.

    @property
    def _data_trials(self) -> list[Trial]:
        """A run with each seed. In their data, the runs of all methods are the same."""
        return [self.methods[0].trials[seed] for seed in self.seeds]

    @property
    def test_unit(self) -> str:
        """What the sizes of the test sets count."""
        return self._data_trials[0].test_unit

    def test_size(self, client: ClientId) -> float | None:
        """Return a client's number of test examples or subjects, the mean over seeds; None if not recorded."""
        test_sizes = []
        for trial in self._data_trials:
            test_size = trial.test_sizes.get(client)
            if not test_size:
                return None
            test_sizes.append(test_size)
        return mean_value(test_sizes) if test_sizes else None

    @cached_property
    def constant(self) -> MethodTrials | None:
        """Always predicting the same, as if it were a method; None if its scores are not recorded."""
        predictions = {trial.reference.predicts for trial in self._data_trials}
        if self.round is None or not all(predictions):
            return None
        label = "always predicting the same"
        if len(predictions) == 1:
            label = f"always predicting {predictions.pop()}"
        constant_trials = {}
        for seed, trial in zip(self.seeds, self._data_trials, strict=True):
            constant_trials[seed] = _as_if_predicted(trial, self.round)
        return MethodTrials(label, constant_trials)

    def beats_constant(self, method: MethodTrials) -> bool | None:
        """Whether a method is significantly better than a constant prediction; None if not known."""
        if self.constant is None:
            return None
        gain = self.mean_gain(method, self.constant)
        if gain is None:
            return None
        if gain.improvement <= 0:
            return False
        if gain.noise is not None:
            return gain.sign == 1
        # Without noise it is sometimes known that a method is not better, but never that it is.
        return False if self._is_within_interval(method, self.constant) else None

    def constant_score(self, client: ClientId) -> float | None:
        """Return the score of the better constant prediction for a client; None if not known.

        One predicts the same for all clients' training data, the other for its own.
        """
        # With each seed, the better of both predictions counts.
        better = max if self.summary["better"] == "greater" else min
        better_scores = []
        for trial in self._data_trials:
            predictions = (trial.reference.values, trial.reference.own_values)
            scores = [prediction[client] for prediction in predictions if client in prediction]
            if not scores:
                return None
            better_scores.append(better(scores))
        return mean_value(better_scores)

    # ------------------------------------------------------------------------------------------------
    # Differences and their noise.

    def client_gain(
        self, method: MethodTrials, rival: MethodTrials, client: ClientId
    ) -> Gain | None:
        """Return how much better a method is than another for one client; None if not tested with both."""
        return self._gain(method, rival, [client])

    def client_gains(self, method: MethodTrials, rival: MethodTrials) -> dict[ClientId, Gain]:
        """Return how much better a method is than another, for each client tested with both."""
        gain_of_client = {}
        for client in self.clients:
            gain = self.client_gain(method, rival, client)
            if gain is not None:
                gain_of_client[client] = gain
        return gain_of_client

    def mean_gain(self, method: MethodTrials, rival: MethodTrials) -> Gain | None:
        """Return how much better a method is than another in the mean over clients tested with both."""
        return self._gain(method, rival, self.clients)

    def _gain(
        self, method: MethodTrials, rival: MethodTrials, clients: Sequence[ClientId]
    ) -> Gain | None:
        # The pooled metric of one client is its own.
        if self.is_pooled and len(clients) > 1:
            return self._pooled_gain(method, rival, clients)
        score_pairs = self._score_pairs(method, rival, clients)
        if not score_pairs:
            return None
        client_means = _means_over_seeds(score_pairs)
        mean_score, mean_rival_score = _mean_pair(client_means.values())
        improvement = self._improvement(mean_score, mean_rival_score)
        # Noise follows from the sizes of the test sets, or else from the seeds or the clients.
        if self.noise_is_of_tests:
            noise: float | None = self.noise_of_shares(client_means)
        elif len(clients) > 1:
            noise = self._noise_of_mean(improvement, score_pairs)
        elif self.repeats_tests:
            noise = None
        else:
            (client_pairs,) = score_pairs.values()
            noise = noise_of_seeds(self._seed_differences(method, rival), len(client_pairs))
        return Gain(mean_score, mean_rival_score, improvement, noise)

    def improvement_of_seed(self, method: MethodTrials, rival: MethodTrials) -> dict[int, float]:
        """Return seed -> how much better a method is than another, in the mean over clients tested with both."""
        improvements = {}
        for seed in self.seeds:
            if self.is_pooled:
                clients = self._clients_with_sums(method, rival, self.clients)
                score = self._pooled_score(method, clients, [seed])
                rival_score = self._pooled_score(rival, clients, [seed])
            else:
                scores = self._scores(method, seed)
                rival_scores = self._scores(rival, seed)
                tested = [client for client in scores if client in rival_scores]
                score = mean_value(scores[client] for client in tested) if tested else None
                rival_score = (
                    mean_value(rival_scores[client] for client in tested) if tested else None
                )
            if score is not None and rival_score is not None:
                improvements[seed] = self._improvement(score, rival_score)
        return improvements

    def _improvement(self, score: float, rival_score: float) -> float:
        return score - rival_score if self.summary["better"] == "greater" else rival_score - score

    def _score_pairs(
        self, method: MethodTrials, rival: MethodTrials, clients: Sequence[ClientId]
    ) -> ScorePairs:
        """The scores of clients with both methods, with each seed; without clients that have none."""
        score_pairs: dict[ClientId, list[tuple[float, float]]] = {}
        for client in clients:
            score_of_seed = self.seed_scores(method, client)
            rival_score_of_seed = self.seed_scores(rival, client)
            pairs_of_client = [
                (score, rival_score_of_seed[seed])
                for seed, score in score_of_seed.items()
                if seed in rival_score_of_seed
            ]
            if pairs_of_client:
                score_pairs[client] = pairs_of_client
        return score_pairs

    def _seed_differences(self, method: MethodTrials, rival: MethodTrials) -> list[list[float]]:
        """The differences of both methods for each client, with each seed."""
        score_pairs = self._score_pairs(method, rival, self.clients)
        return [_differences(pairs_of_client) for pairs_of_client in score_pairs.values()]

    @property
    def averages_shares(self) -> bool:
        """Whether the main metric averages numbers from 0 to 1 over test examples, as an accuracy."""
        return self.methods[0].first.averages_shares

    @cached_property
    def noise_is_of_tests(self) -> bool:
        """Whether noise follows from the numbers of test examples."""
        return bool(self.clients) and all(map(self._deciding_tests, self.clients))

    @property
    def repeats_tests(self) -> bool:
        """Whether seeds test on the same rows: then their spread is that of training alone."""
        return len({trial.test_rows for trial in self._data_trials}) < len(self.seeds)

    @property
    def _num_tests_drawn(self) -> int:
        """The number of seeds over which the noise of a mean may be estimated."""
        return 1 if self.repeats_tests else len(self.seeds)

    def noise_of_shares(self, scores: Mapping[ClientId, tuple[float, float]]) -> float:
        """Return the noise of the mean difference of metrics whose noise follows from the tests.

        Several seeds do not make it smaller, because their test sets may overlap.

        Args:
            scores: Client -> its scores with two methods.
        """
        num_clients = len(scores)
        variance = 0.0
        correction = 0.0
        for client, (score, rival_score) in scores.items():
            # Clients that share test examples have the same errors: their variances add up as if
            # each example counted once.
            testers = min(self._testers(client), num_clients)
            client_variance, step = self._variance(client, (score + rival_score) / 2)
            variance += testers * client_variance
            correction += testers * step / num_clients
        # The bound of the sign test in its normal approximation, corrected for steps.
        return (NORMAL_95 * math.sqrt(variance) + correction) / num_clients

    def test_size_needed(self, client: ClientId, gain: Gain) -> int | None:
        """Return with how many test examples a client's gain would be significant, if it stayed the same.

        None if it is significant, or the sizes of test sets say nothing about noise.
        """
        if gain.sign != 0 or not self.noise_is_of_tests:
            return None
        mean_score = (gain.score + gain.rival_score) / 2
        if self.averages_shares:
            return examples_needed(mean_score, gain.improvement)
        # All classes become more frequent alike. Noise falls with the root of the size, or faster.
        test_size = self.test_size(client)
        if not test_size or not gain.improvement or gain.noise is None:
            return None
        return math.floor(test_size * (gain.noise / gain.improvement) ** 2) + 1

    @property
    def compares_areas(self) -> bool:
        """Whether noise is that of areas under the ROC curve: of two numbers of tests for each client."""
        return self.noise_is_of_tests and len(self._deciding_tests(self.clients[0])) == 2

    def _deciding_tests(self, client: ClientId) -> list[float]:
        """The numbers of a client's test examples on which its noise depends; empty if not known.

        Each is the harmonic mean over the seeds: then the variance is the mean of theirs.
        """
        numbers_of_seeds: list[Sequence[float]] = []
        for trial in self._data_trials:
            if self.averages_shares:
                test_size = trial.test_sizes.get(client)
                if not test_size:
                    return []
                numbers_of_seeds.append([test_size])
            # With some seeds, the test rows of a client may all have one label.
            elif numbers := trial.deciding_tests.get(client):
                numbers_of_seeds.append(numbers)
        if len(set(map(len, numbers_of_seeds))) > 1:
            return []
        deciding_tests = []
        for numbers_of_seed in zip(*numbers_of_seeds, strict=True):
            deciding_tests.append(1 / mean_value(1 / number for number in numbers_of_seed))
        return deciding_tests

    def _variance(self, client: ClientId, mean_score: float) -> tuple[float, float]:
        """The variance of the difference of two models of a client, and the correction for its steps."""
        match self._deciding_tests(client):
            case [size]:
                return two_shares(mean_score, size), 1 / size
            case [with_label, without_label]:
                variance = two_areas(mean_score, with_label, without_label)
                return variance, 0.5 / min(with_label, without_label)
        raise ValueError(f"the noise of client {client} does not follow from its tests")

    def _testers(self, client: ClientId) -> float:
        """How many clients test the examples of a client, the most over the seeds; 1 if not recorded."""
        testers = []
        for trial in self._data_trials:
            if trial.testers is not None:
                testers.append(trial.testers.get(client, 1.0))
        return max(testers, default=1.0)

    @property
    def shares_tests(self) -> bool:
        """Whether clients share so many test examples that their differences are not independent."""
        testers = mean_value(self._testers(client) for client in self.clients)
        return testers > MAX_INDEPENDENT_TESTERS

    def _noise_of_mean(self, improvement: float, score_pairs: ScorePairs) -> float | None:
        """Noise of the mean over clients: over the seeds if there are enough, otherwise over the clients."""
        # An interval over seeds needs the same seeds for all clients.
        seed_counts = {len(pairs_of_client) for pairs_of_client in score_pairs.values()}
        has_all_seeds = len(seed_counts) == 1 and min(seed_counts) == len(self.seeds)
        if has_all_seeds and self._num_tests_drawn >= MIN_SAMPLE:
            pairs_by_seed = zip(*score_pairs.values(), strict=True)
            return half_interval([mean_value(_differences(pairs)) for pairs in pairs_by_seed])
        # An interval over clients needs independent clients.
        if self.shares_tests:
            return None
        return noise_over_few(improvement, _interval_over_clients(score_pairs))

    def _is_within_interval(self, method: MethodTrials, rival: MethodTrials) -> bool:
        """Whether the mean difference of two methods is within its interval over the clients.

        Then it is not significant even if clients share test examples, which makes this interval
        too narrow. False for fewer than :data:`~coterie.report.noise.MIN_SAMPLE` clients.
        """
        if self.is_pooled:
            clients = self._clients_with_sums(method, rival, self.clients)
            # Of a pooled metric, clients have no differences of their own.
            noise = self._jackknife_interval(method, rival, clients)
            difference = self._pooled_difference(method, rival, clients)
        else:
            score_pairs = self._score_pairs(method, rival, self.clients)
            noise = _interval_over_clients(score_pairs)
            difference = mean_value(_differences(_means_over_seeds(score_pairs).values()))
        return noise is not None and difference is not None and abs(difference) <= noise

    # ------------------------------------------------------------------------------------------------
    # Differences of a metric that is pooled over clients.

    def _pooled_gain(
        self, method: MethodTrials, rival: MethodTrials, clients: Sequence[ClientId]
    ) -> Gain | None:
        """The gain of several clients by a metric that is pooled over them.

        Its noise is that of :meth:`_noise_of_mean`: half the 95% interval over the seeds, or, with
        few seeds, over the clients.
        """
        # Both scores must be of the same clients.
        clients = self._clients_with_sums(method, rival, clients)
        score = self._pooled_score(method, clients)
        rival_score = self._pooled_score(rival, clients)
        if score is None or rival_score is None:
            return None
        improvement = self._improvement(score, rival_score)
        noise = None
        # Noise over the seeds, or over the clients where these are independent.
        if self._num_tests_drawn >= MIN_SAMPLE:
            seed_differences = []
            for seed in self.seeds:
                difference = self._pooled_difference(method, rival, clients, [seed])
                if difference is not None:
                    seed_differences.append(difference)
            noise = half_interval(seed_differences)
        elif not self.shares_tests:
            noise = noise_over_few(improvement, self._jackknife_interval(method, rival, clients))
        return Gain(score, rival_score, improvement, noise)

    def _clients_with_sums(
        self, method: MethodTrials, rival: MethodTrials, clients: Sequence[ClientId]
    ) -> list[ClientId]:
        """The clients that have sums of the main metric with both methods and each seed."""
        clients_with_sums = set(clients)
        for seed in self.seeds:
            clients_with_sums &= self._sums(method, seed).keys()
            clients_with_sums &= self._sums(rival, seed).keys()
        return [client for client in clients if client in clients_with_sums]

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
        num_clients = len(clients)
        difference = self._pooled_difference(method, rival, clients)
        if num_clients < MIN_SAMPLE or difference is None:
            return None
        pseudo_values = []
        for left_out in clients:
            remaining = [client for client in clients if client != left_out]
            difference_without = self._pooled_difference(method, rival, remaining)
            # Without this client the metric is not defined.
            if difference_without is None:
                return None
            pseudo_values.append(num_clients * difference - (num_clients - 1) * difference_without)
        return half_interval(pseudo_values)


def _as_if_predicted(trial: Trial, number: int) -> Trial:
    """Return a run that scored in a round what constant predictions score."""
    return replace(
        trial,
        scores={number: trial.reference.values},
        sums={number: trial.reference.sums},
    )


def _means_over_seeds(score_pairs: ScorePairs) -> dict[ClientId, tuple[float, float]]:
    """Return client -> the means over seeds of its scores with two methods."""
    means: dict[ClientId, tuple[float, float]] = {}
    for client, pairs_of_client in score_pairs.items():
        means[client] = _mean_pair(pairs_of_client)
    return means


def _mean_pair(pairs: Iterable[tuple[float, float]]) -> tuple[float, float]:
    """Return the means of the first and of the second score of some pairs."""
    scores, rival_scores = zip(*pairs, strict=True)
    return mean_value(scores), mean_value(rival_scores)


def _differences(pairs: Iterable[tuple[float, float]]) -> list[float]:
    """Return how much greater the first score of each pair is than the second."""
    return [score - rival_score for score, rival_score in pairs]


def _interval_over_clients(score_pairs: ScorePairs) -> float | None:
    """Return half the interval over clients of their differences; None for few clients."""
    if len(score_pairs) < MIN_SAMPLE:
        return None
    return half_interval(_differences(_means_over_seeds(score_pairs).values()))
