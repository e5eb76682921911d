"""Runs of several methods, compared client by client in the same round of the same seeds, and the noise of a difference.

A difference counts if it is beyond noise:

- If the main metric is a share of right answers, noise is that of a test set: the difference of two
  shares of n examples is within noise below 1.96 * sqrt(2 * min(p, 1 - p) / n) + 1 / n, with p
  their mean. Both models are tested on the same examples. They can differ in at most 2 * min(p, 1 -
  p) * n of them, and if the models are equally good, each of these favours either with probability
  1/2: the bound is that of the sign test for the largest number of such examples, in its normal
  approximation with the correction 1 / n for steps. So it holds however the errors of both models
  are related. In a mean over clients, an example that several clients test counts once, see
  :mod:`coterie.data.shared_tests`.
- Otherwise, with three seeds or more, noise of the mean over clients is half the 95% interval of
  its difference over the seeds (Student's t). With fewer, the interval over the clients is a bound
  on it. It also has what makes clients different, as groups do; so a difference beyond it is beyond
  noise, and of any other it is not known. Noise of a single client is half the 95% interval over
  the seeds, with the variance over seeds pooled over all clients; with one seed it is not known.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import scipy

from coterie.files import within
from coterie.pooling import ErrorSums, pooled
from coterie.records.record import RUN, Line, Record
from coterie.records.shown import ClientId, shown_as, sums_of
from coterie.report.gathered import aside
from coterie.report.learning import Losses
from coterie.report.limits import limit_sentences
from coterie.report.reference import Evidence, Reference, strongest_evidence
from coterie.report.summary import ALIKE, Summary, interval, summarised
from coterie.report.terminal import numbered
from coterie.report.words import by_time, sentence
from coterie.settings import UserError

BASELINES: Mapping[str, str] = {"fedavg": "one model for all", "independent": "training alone"}
"""Methods with which others are compared, and what they are."""

SHARES = ("accuracy", "ExactMatch")
"""Metrics that are a share of right answers."""

Z = 1.96
"""Half the 95% interval of a normal distribution, in standard deviations."""

FEW = 3
"""The smallest number of clients, or of seeds, over which the noise of a mean is estimated."""

SHARED = 1.1
"""Clients per test example, in the mean, from which on the differences of clients are no
independent observations."""


# ----------------------------------------------------------------------------------------------------
# Runs, and the methods over their seeds.


@dataclass(frozen=True)
class Trial:
    """A run as a comparison needs it.

    Attributes:
        said: The summary of the run.
        tested: Round -> honest client -> its value of the main metric, of the tested rounds.
        sums: Round -> client -> its sums of the main metric, if that is pooled over clients; see
            ``coterie.pooling``.
        sizes: Client -> its number of test examples, or of the subjects that they are of, where the
            record has it.
        unit: What the sizes count.
        data: The digest of the data, or empty.
        reason: The last decision on the groups, as a sentence with its round, or empty.
        losses: Round -> honest client -> its loss on test data, of the tested rounds; empty where
            data drift.
        reference: The scores of constant predictions.
        testers: Client -> the mean number of clients that test an example of its test part; None if
            it is not recorded.
        cautions: What the data warn of, as sentences.
        evidence: The strongest evidence for groups, or None.
        limited: What limits on single clients changed, as sentences.
        by_time: How test examples follow the others in time, as a sentence; empty if they are
            random ones.
    """

    said: Summary
    tested: Mapping[int, Mapping[ClientId, float]]
    sums: Mapping[int, Mapping[ClientId, ErrorSums]]
    sizes: Mapping[ClientId, int]
    unit: str
    data: str
    reason: str
    losses: Losses = field(default_factory=dict)
    reference: Reference = field(default_factory=Reference)
    testers: Mapping[ClientId, float] | None = None
    cautions: Sequence[str] = ()
    evidence: Evidence | None = None
    limited: Sequence[str] = ()
    by_time: str = ""

    def losses_until(self, round: int | None) -> Losses:
        """The losses up to a round."""
        return {
            number: each for number, each in self.losses.items() if round is None or number <= round
        }


def trial(said: Summary, description: Mapping[str, Any], lines: Sequence[Line]) -> Trial:
    """Return what a comparison needs of a run.

    Args:
        said: Its summary.
        description: The content of ``run.toml``, as shown.
        lines: The completed rounds, as shown.
    """
    facts, tested, losses = description["world"], {}, {}
    sums: dict[int, dict[ClientId, ErrorSums]] = {}
    for line in lines:
        id, main = shown_as(line).key, shown_as(line).main
        honest = {
            id(key): entry for key, entry in line["clients"].items() if not entry.get("adversary")
        }
        values = {
            client: float(entry[main])
            for client, entry in honest.items()
            if entry.get(main) is not None
        }
        if line["tested"] and values:
            tested[line["round"]] = values
            sums[line["round"]] = {
                id(key): each for key, each in sums_of(line, main).items() if id(key) in honest
            }
            losses[line["round"]] = {
                c: float(one["loss"]) for c, one in honest.items() if one.get("loss") is not None
            }
    subjects = facts.get("test_subjects")
    unit, counts = (
        ("test examples", facts.get("tests", ()))
        if subjects is None
        else ("test subjects", subjects)
    )
    sizes = dict(zip(facts["clients"], counts, strict=False))
    shared = facts.get("testers")
    return Trial(
        said,
        tested,
        sums,
        sizes,
        unit,
        facts.get("data", ""),
        reason(lines),
        losses={} if "drift" in facts else losses,
        reference=Reference.of(facts),
        testers=None if shared is None else dict(zip(facts["clients"], shared, strict=False)),
        cautions=facts.get("cautions", ()),
        evidence=strongest_evidence(list(lines)),
        limited=limit_sentences(lines),
        by_time=by_time(facts),
    )


def read(run: Path | str, upto: int | None = None) -> Trial:
    """Read the run in directory ``run``, up to round ``upto`` or to its last one.

    Raises:
        UserError: If there is no run, or it has no completed round.
    """
    description, lines = Record(run).shown()
    lines = lines[:upto]
    return trial(summarised(run, description, lines), description, lines)


def reason(lines: Sequence[Line]) -> str:
    """Return the last decision that divided the clients, or for one group the last one that did not, as a sentence."""
    wanted = 2 if len(lines[-1]["groups"]) > 1 else 0
    for line in reversed(lines):
        for note in reversed(line["notes"]):
            about = len(note["parts"]) >= wanted and len(note["clients"]) > 1 and note["text"]
            if about and not aside(note):  # the end of an arm (drop) is a reason for one group, too
                return f"Round {line['round']}: {sentence(note['text'])}"
    return ""


@dataclass(frozen=True)
class Entry:
    """A method with its settings, over seeds.

    Attributes:
        label: Its name, with a number if several entries have the same method.
        trials: Seed -> run.
    """

    label: str
    trials: Mapping[int, Trial]

    @property
    def first(self) -> Trial:
        """The run of the least seed."""
        return self.trials[min(self.trials)]

    @property
    def method(self) -> str:
        """The name of the method."""
        return str(self.first.said["method"])

    @property
    def groups(self) -> float:
        """The mean number of groups over the seeds."""
        return mean_value([len(one.said["groups"]) for one in self.trials.values()])


@dataclass(frozen=True)
class Gain:
    """How much better one method is than another.

    Attributes:
        of: Its value of the main metric.
        over: The other's value.
        by: The difference, positive if it is better, whether greater or smaller values are.
        noise: Differences up to this are within noise; None if it is not known.
    """

    of: float
    over: float
    by: float
    noise: float | None

    @property
    def sign(self) -> int | None:
        """1 if it is better beyond noise, -1 if it is worse, 0 if the difference is within noise; None if not known."""
        if self.noise is None:
            return None
        return 0 if abs(self.by) <= self.noise else 1 if self.by > 0 else -1


# ----------------------------------------------------------------------------------------------------
# Methods over the same clients.


@dataclass(frozen=True)
class Contest:
    """Methods over the same clients, in one round of the same seeds.

    Attributes:
        entries: The methods; those of :func:`contests` have the recommended one first.
        seeds: The seeds that all of them have.
        round: The last round that all of them have tested, or None.
        left_out: Labels of methods that have no seed, tested round or data in common with the
            others.
    """

    entries: Sequence[Entry]
    seeds: Sequence[int]
    round: int | None
    left_out: Sequence[str] = ()

    @property
    def said(self) -> Summary:
        """The summary of one of the runs, for what they have in common."""
        return self.entries[0].first.said

    @property
    def metric(self) -> str:
        """The name of the main metric."""
        return str(self.said["metric"])

    def find(self, method: str) -> Entry | None:
        """Return the first entry of a method, or None."""
        return next((one for one in self.entries if one.method == method), None)

    @cached_property
    def focus(self) -> Entry:
        """The first entry that is no baseline, or the first one: the verdict gives its groups and reasons."""
        return next((one for one in self.entries if one.method not in BASELINES), self.entries[0])

    @cached_property
    def clients(self) -> list[ClientId]:
        """The honest clients that were tested with some method in this round."""
        found = {
            c
            for one in self.entries
            for seed in self.seeds
            for c in one.trials[seed].tested.get(self.round or 0, ())
        }
        return sorted(found, key=lambda one: (isinstance(one, str), one))

    @cached_property
    def constant(self) -> Entry | None:
        """Always predicting the same, as if it were a method; None if its scores are not recorded."""
        known = {seed: self.entries[0].trials[seed] for seed in self.seeds}
        if self.round is None or not all(one.reference.predicts for one in known.values()):
            return None
        words = {one.reference.predicts for one in known.values()}
        label = (
            f"always predicting {words.pop()}" if len(words) == 1 else "always predicting the same"
        )
        scores = {
            seed: replace(
                one,
                tested={self.round: one.reference.values},
                sums={self.round: one.reference.sums},
            )
            for seed, one in known.items()
        }
        return Entry(label, scores)

    def learned(self, one: Entry) -> bool | None:
        """Whether a method is better than a constant prediction beyond noise; None if that is not known."""
        constant = self.constant
        if constant is None or (gain := self.mean_gain(one, constant)) is None:
            return None
        if gain.by <= 0:
            return False
        if gain.noise is None:
            return False if self.within_interval(one, constant) else None
        return gain.sign == 1

    def floor(self, client: ClientId) -> float | None:
        """Return the better constant prediction for a client: that of all training data, or of its own; None if not known."""
        each = []
        for seed in self.seeds:
            reference = self.entries[0].trials[seed].reference
            known = [
                table[client] for table in (reference.values, reference.own) if client in table
            ]
            if not known:
                return None
            each.append(max(known) if self.said["better"] == "greater" else min(known))
        return mean_value(each)

    @property
    def unit(self) -> str:
        """What the sizes of the test sets count."""
        return self.entries[0].trials[self.seeds[0]].unit

    def tests(self, client: ClientId) -> float | None:
        """Return a client's number of test examples or subjects, in the mean over the seeds, or None if not recorded."""
        known = [self.entries[0].trials[seed].sizes.get(client) for seed in self.seeds]
        return mean_value([size for size in known if size]) if known and all(known) else None

    def values(self, one: Entry, client: ClientId) -> dict[int, float]:
        """Return seed -> a client's value of the main metric with a method."""
        found = {
            seed: one.trials[seed].tested.get(self.round or 0, {}).get(client)
            for seed in self.seeds
        }
        return {seed: value for seed, value in found.items() if value is not None}

    def mean(self, one: Entry) -> float | None:
        """Return the mean of the main metric over clients, of each the mean over the seeds; None without a test.

        A metric such as R2 is that of the clients' test rows together, in the mean over the seeds.
        """
        if self.pools:
            return self._pooled(one, self.clients)
        known = [
            mean_value(values.values())
            for client in self.clients
            if (values := self.values(one, client))
        ]
        return mean_value(known) if known else None

    def gain(self, one: Entry, other: Entry, client: ClientId) -> Gain | None:
        """Return how much better a method is than another for one client; None if it was not tested with both."""
        return self._gain(one, other, [client])

    def mean_gain(self, one: Entry, other: Entry) -> Gain | None:
        """Return how much better a method is than another in the mean over clients; None if none was tested with both."""
        return self._gain(one, other, self.clients)

    @cached_property
    def pools(self) -> bool:
        """Whether the main metric of several clients is that of their test rows together."""
        return all(
            one.trials[seed].sums.get(self.round or 0)
            for one in self.entries
            for seed in self.seeds
        )

    @property
    def mean_words(self) -> str:
        """What stands for the clients together, in words: the mean or the pooled main metric."""
        return f"{'pooled' if self.pools else 'mean'} {self.metric}"

    def _pooled(
        self, one: Entry, clients: Sequence[ClientId], seeds: Sequence[int] = ()
    ) -> float | None:
        """The main metric of the test rows of some clients together, in the mean over some seeds or all; None if undefined."""
        values = []
        for seed in seeds or self.seeds:
            sums = one.trials[seed].sums.get(self.round or 0, {})
            values.append(pooled(sums[client] for client in clients if client in sums))
        return None if not values or any(map(math.isnan, values)) else mean_value(values)

    def _pooled_gain(self, one: Entry, other: Entry, clients: Sequence[ClientId]) -> Gain | None:
        """The gain of several clients by a metric that is pooled over them.

        Its noise is that of :meth:`_noise_of_mean`: half the 95 % interval over the seeds, or, with
        few seeds, over the clients. For the latter each client stands for its jackknife
        pseudo-value, n times the difference over all clients minus n - 1 times that without the
        client (J. Tukey, Annals of Mathematical Statistics 29, 1958). Of a mean, this is the
        client's own difference.
        """
        both = self._with_sums(one, other, clients)
        of, over = self._pooled(one, both), self._pooled(other, both)
        if of is None or over is None:
            return None
        by = of - over if self.said["better"] == "greater" else over - of
        if len(self.seeds) >= FEW:
            each_seed = [self._pooled_difference(one, other, both, [seed]) for seed in self.seeds]
            return Gain(of, over, by, _half([value for value in each_seed if value is not None]))
        bound = None if self.shares_tests else self._jackknife(one, other, both)
        return Gain(of, over, by, bound if bound is not None and abs(by) > bound else None)

    def _with_sums(self, one: Entry, other: Entry, clients: Sequence[ClientId]) -> list[ClientId]:
        """The clients that have sums of the main metric with both methods and each seed."""
        tables = [
            each.trials[seed].sums.get(self.round or 0, {})
            for each in (one, other)
            for seed in self.seeds
        ]
        return [client for client in clients if all(client in table for table in tables)]

    def _pooled_difference(
        self, one: Entry, other: Entry, clients: Sequence[ClientId], seeds: Sequence[int] = ()
    ) -> float | None:
        of, over = self._pooled(one, clients, seeds), self._pooled(other, clients, seeds)
        return None if of is None or over is None else of - over

    def _jackknife(self, one: Entry, other: Entry, clients: Sequence[ClientId]) -> float | None:
        """Half the interval over the clients of a difference of pooled metrics; None for few clients."""
        n, whole = len(clients), self._pooled_difference(one, other, clients)
        if n < FEW or whole is None:
            return None
        without = [
            self._pooled_difference(one, other, [client for client in clients if client != left])
            for left in clients
        ]
        if None in without:
            return None
        return _half([n * whole - (n - 1) * (value or 0.0) for value in without])

    def _gain(self, one: Entry, other: Entry, clients: Sequence[ClientId]) -> Gain | None:
        if self.pools and len(clients) > 1:
            return self._pooled_gain(one, other, clients)
        pairs = {client: both for client in clients if (both := self._pairs(one, other, client))}
        if not pairs:
            return None
        rows = {
            client: (mean_value(a for a, _ in both), mean_value(b for _, b in both))
            for client, both in pairs.items()
        }
        of, over = mean_value(a for a, _ in rows.values()), mean_value(b for _, b in rows.values())
        by = of - over if self.said["better"] == "greater" else over - of
        if self.by_tests:
            return Gain(of, over, by, self.noise_of_shares(rows))
        if len(clients) > 1:
            return Gain(of, over, by, self._noise_of_mean(by, rows, list(pairs.values())))
        return Gain(of, over, by, self._noise_of_seeds(one, other, len(next(iter(pairs.values())))))

    def _pairs(self, one: Entry, other: Entry, client: ClientId) -> list[tuple[float, float]]:
        """A client's values with two methods, of each seed with which it was tested with both."""
        mine, theirs = self.values(one, client), self.values(other, client)
        return [
            (mine[seed], theirs[seed]) for seed in self.seeds if seed in mine and seed in theirs
        ]

    @cached_property
    def by_tests(self) -> bool:
        """Whether noise follows from the numbers of test examples."""
        return self.metric in SHARES and all(self.tests(client) for client in self.clients)

    def noise_of_shares(self, rows: Mapping[ClientId, tuple[float, float]]) -> float:
        """Return the noise of a mean difference of shares of right answers.

        Several seeds do not make it smaller, because their test sets may overlap.

        Args:
            rows: Client -> its two shares.
        """
        variance = step = 0.0
        for client, (mine, theirs) in rows.items():
            size, testers = self._size_for_noise(client), min(self._testers(client), len(rows))
            variance += testers * two_shares((mine + theirs) / 2, size)
            step += testers / size / len(rows)
        return (Z * math.sqrt(variance) + step) / len(rows)

    def _size_for_noise(self, client: ClientId) -> float:
        """The harmonic mean of a client's numbers of test examples over the seeds: its variance is the mean of theirs."""
        return 1 / mean_value(1 / self.entries[0].trials[seed].sizes[client] for seed in self.seeds)

    def _testers(self, client: ClientId) -> float:
        """How many clients test the examples of a client, the most over the seeds; 1 if that is not recorded."""
        known = [self.entries[0].trials[seed].testers for seed in self.seeds]
        return max((each.get(client, 1.0) for each in known if each is not None), default=1.0)

    def _noise_of_mean(
        self,
        by: float,
        rows: Mapping[ClientId, tuple[float, float]],
        pairs: Sequence[Sequence[tuple[float, float]]],
    ) -> float | None:
        """Over seeds, if there are enough; the differences between clients are only a bound, and tell nothing below it."""
        if len(pairs[0]) >= FEW and len({len(each) for each in pairs}) == 1:
            return _half(
                [mean_value(a - b for a, b in of_seed) for of_seed in zip(*pairs, strict=True)]
            )
        bound = None if self.shares_tests else self._interval_over_clients(rows)
        return bound if bound is not None and abs(by) > bound else None

    def within_interval(self, one: Entry, other: Entry) -> bool:
        """Whether the mean difference of two methods is within its interval over the clients, of at least :data:`FEW`.

        Then it is within noise even if clients share test examples, which makes this interval too
        narrow.
        """
        if self.pools:
            with_sums = self._with_sums(one, other, self.clients)
            bound, by = (
                self._jackknife(one, other, with_sums),
                self._pooled_difference(one, other, with_sums),
            )
            return bound is not None and by is not None and abs(by) <= bound
        pairs = {
            client: both for client in self.clients if (both := self._pairs(one, other, client))
        }
        rows = {
            client: (mean_value(a for a, _ in both), mean_value(b for _, b in both))
            for client, both in pairs.items()
        }
        bound = self._interval_over_clients(rows)
        return bound is not None and abs(mean_value(a - b for a, b in rows.values())) <= bound

    @staticmethod
    def _interval_over_clients(rows: Mapping[ClientId, tuple[float, float]]) -> float | None:
        return _half([a - b for a, b in rows.values()]) if len(rows) >= FEW else None

    @property
    def shares_tests(self) -> bool:
        """Whether clients share so many test examples that their differences are not independent."""
        return mean_value(self._testers(client) for client in self.clients) > SHARED

    def _noise_of_seeds(self, one: Entry, other: Entry, seeds: int) -> float | None:
        """Half the 95% interval of a client's mean difference over ``seeds`` seeds, its variance pooled over all clients."""
        each = [[a - b for a, b in self._pairs(one, other, client)] for client in self.clients]
        freedom = sum(len(some) - 1 for some in each if some)
        if not freedom:
            return None
        squares = math.fsum((value - mean_value(some)) ** 2 for some in each for value in some)
        return float(scipy.special.stdtrit(freedom, 0.975)) * math.sqrt(squares / freedom / seeds)


def _half(values: Sequence[float]) -> float | None:
    """Half the 95 % interval of the mean of some values."""
    found = interval(list(values))
    return None if found["high"] is None or found["mean"] is None else found["high"] - found["mean"]


def two_shares(p: float, n: float) -> float:
    """Return the greatest variance of the difference of two shares of the same n examples, if both are p in the long run.

    Where an answer of one model is right and that of the other is wrong, the difference of this
    example is 1 or -1, otherwise
    0. If both models are right with probability p, they differ with at most the probability ``2
       min(p, 1 - p)``. That is
    reached if the errors of one never are errors of the other, or never both are right.

    Example:
        >>> round(1.96 * two_shares(0.9, 100) ** 0.5, 3)
        0.088
    """
    p = min(max(p, 0.0), 1.0)
    return 2 * min(p, 1 - p) / n


def mean_value(values: Iterable[float]) -> float:
    """Return the mean of some values, of which there is at least one."""
    known = list(values)
    return math.fsum(known) / len(known)


def contests(trials: Iterable[Trial]) -> list[Contest]:
    """Return the comparisons of some runs: one for all runs over the same scenario, with the recommended method first.

    Methods are ordered by their mean main metric. Of those that are within noise of the best, the
    one with the fewest groups comes first, and FedAvg before others with as many; but after them
    those that are no better than a constant prediction.

    Args:
        trials: The runs.
    """
    alike: list[tuple[Any, list[Trial]]] = []
    for one in trials:
        key = [one.said[name] for name in ("scenario", "scenario_settings", "metric", "better")]
        same = next((members for known, members in alike if known == key), None)
        if same is None:
            alike.append((key, [one]))
        else:
            same.append(one)
    return [ranked(_shared(_entries(members))) for _, members in alike]


def _entries(trials: Sequence[Trial]) -> list[Entry]:
    """Return the methods of some runs: those that differ in their seed alone are one."""
    found: list[tuple[Any, dict[int, Trial]]] = []
    for one in trials:
        key, seed = [one.said[name] for name in ALIKE], one.said["seed"]
        known = next(
            (members for other, members in found if other == key and seed not in members), None
        )
        if known is None:
            found.append((key, {seed: one}))
        else:
            known[seed] = one
    labels = numbered([next(iter(members.values())).said["method"] for _, members in found])
    return [Entry(label, members) for label, (_, members) in zip(labels, found, strict=True)]


def _shared(entries: Sequence[Entry]) -> Contest:
    """Return the comparison in what the methods share: methods over most seeds first, each joins if it shares something."""
    order = sorted(
        entries,
        key=lambda one: (not any(each.tested for each in one.trials.values()), -len(one.trials)),
    )
    joined = order[:1]
    for one in order[1:]:
        same = all(_same_data(each.trials, one.trials) for each in joined)
        joined += [one] if same and _common([*joined, one])[1] else []
    seeds, rounds = _common(joined)
    return Contest(
        joined, seeds, max(rounds, default=None), [one.label for one in order if one not in joined]
    )


def _same_data(some: Mapping[int, Trial], others: Mapping[int, Trial]) -> bool:
    known = [(some[seed].data, others[seed].data) for seed in some.keys() & others.keys()]
    return all(not a or not b or a == b for a, b in known)


def _common(entries: Sequence[Entry]) -> tuple[list[int], set[int]]:
    """Return the seeds that all methods have, and the rounds that all of them have tested with each."""
    seeds = sorted(set.intersection(*(set(one.trials) for one in entries)))
    tested = [set(one.trials[seed].tested) for one in entries for seed in seeds]
    return seeds, set.intersection(*tested) if tested else set()


def ranked(contest: Contest) -> Contest:
    """Return a comparison with its methods in the order of :func:`contests`."""
    sign = -1 if contest.said["better"] == "greater" else 1
    means = {one.label: contest.mean(one) for one in contest.entries}
    tested = [one for one in contest.entries if means[one.label] is not None]
    left, order = (
        sorted(tested, key=lambda one: (sign * (means[one.label] or 0), _simpler(one))),
        [],
    )
    while left:
        tied = [
            one
            for one in left[1:]
            if (gain := contest.mean_gain(left[0], one)) and (gain.sign == 0 or gain.by == 0)
        ]
        order.append(
            min([left[0], *tied], key=lambda one: (contest.learned(one) is False, _simpler(one)))
        )
        left.remove(order[-1])
    return replace(
        contest, entries=[*order, *(one for one in contest.entries if means[one.label] is None)]
    )


def _simpler(one: Entry) -> tuple[float, bool]:
    return one.groups, one.method != "fedavg"


def gains(contest: Contest) -> dict[str, dict[str, Any]]:
    """Return how much better each run is than FedAvg's run of the same seed, in the last round that both have tested.

    Args:
        contest: The comparison.

    Returns:
        Run directory -> the round, and of: ``(client, by, sign)`` of each client, see
        :class:`Gain`. Empty without a run of FedAvg.
    """
    base = contest.find("fedavg")
    out: dict[str, dict[str, Any]] = {}
    if base is None:
        return out
    for one in (one for one in contest.entries if one is not base):
        for seed in sorted(one.trials.keys() & base.trials.keys()):
            mine, theirs = (Entry(each.label, {seed: each.trials[seed]}) for each in (one, base))
            pair = _shared([mine, theirs])
            if len(pair.entries) == 2:
                found = [(client, pair.gain(mine, theirs, client)) for client in pair.clients]
                of = [(client, gain.by, gain.sign) for client, gain in found if gain]
                out[mine.first.said["run_dir"]] = {"round": pair.round, "of": of}
    return out


def beside(run: Path, own: Trial) -> tuple[Contest, Entry]:
    """Return the comparison of a run with FedAvg and Independent, as far as its experiment has them with the same seed.

    Args:
        run: The run directory.
        own: What a comparison needs of this run, up to some round; the others are read up to the
            same round.

    Returns:
        The comparison, and the run's entry in it.
    """
    trials, seed = [own], own.said["seed"]
    for method in BASELINES:
        for path in (
            sorted(run.absolute().parent.glob(f"{method}*-seed{seed}/{RUN}"))
            if own.said["method"] != method
            else ()
        ):
            with suppress(UserError):  # one that has not begun, or is damaged, is not compared
                trials.append(read(within(path.parents[1], path.parent.name), own.said["rounds"]))
    pairs = ((contest, one) for contest in contests(trials) for one in contest.entries)
    alone = Entry(own.said["method"], {seed: own})
    return next((pair for pair in pairs if pair[1].first is own), (_shared([alone]), alone))
