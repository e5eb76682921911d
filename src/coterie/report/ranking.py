"""Which runs can be compared, and which method comes first."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from coterie.files import within
from coterie.records.record import RUN
from coterie.report.compared import SAME_BUT_SEED
from coterie.report.contest import BASELINES, Contest
from coterie.report.terminal import numbered
from coterie.report.trials import MethodTrials, Trial, read
from coterie.settings import UserError

SAME_WORLD = ("scenario", "scenario_settings", "metric", "better")
"""Keys of summaries that are equal in runs over the same clients."""


def contests(trials: Iterable[Trial]) -> list[Contest]:
    """Return the comparisons of some runs: one for all runs over the same scenario.

    Methods are ordered by their mean main metric. Of those that do not differ significantly from
    the best, the one with the fewest groups comes first, and FedAvg before others with as many; but
    those that are no better than a constant prediction come last among them.

    Args:
        trials: The runs.
    """
    worlds: list[tuple[list[Any], list[Trial]]] = []
    for trial in trials:
        world = [trial.summary[name] for name in SAME_WORLD]
        members = next((members for known, members in worlds if known == world), None)
        if members is None:
            worlds.append((world, [trial]))
        else:
            members.append(trial)
    return [ranked(comparable(_methods(members))) for _, members in worlds]


def _methods(trials: Sequence[Trial]) -> list[MethodTrials]:
    """Return the methods of some runs. Runs that differ in their seed alone are of one method."""
    methods: list[tuple[list[Any], dict[int, Trial]]] = []
    for trial in trials:
        settings = [trial.summary[name] for name in SAME_BUT_SEED]
        seed = trial.summary["seed"]
        members = next(
            (members for known, members in methods if known == settings and seed not in members),
            None,
        )
        if members is None:
            methods.append((settings, {seed: trial}))
        else:
            members[seed] = trial
    names = [next(iter(members.values())).summary["method"] for _, members in methods]
    return [
        MethodTrials(label, members)
        for label, (_, members) in zip(numbered(names), methods, strict=True)
    ]


def comparable(methods: Sequence[MethodTrials]) -> Contest:
    """Return the comparison in what methods share.

    Methods over most seeds come first. Each further one joins if it has data, a seed and a tested
    round in common with those before it.
    """
    by_seeds = sorted(methods, key=lambda method: (not _is_tested(method), -len(method.trials)))
    joined = by_seeds[:1]
    left_out = []
    for method in by_seeds[1:]:
        same_data = all(_same_data(member.trials, method.trials) for member in joined)
        _, common_rounds = _common([*joined, method])
        if same_data and common_rounds:
            joined.append(method)
        else:
            left_out.append(method.label)
    seeds, common_rounds = _common(joined)
    return Contest(joined, seeds, max(common_rounds, default=None), left_out)


def _is_tested(method: MethodTrials) -> bool:
    return any(trial.scores for trial in method.trials.values())


def _same_data(trials: Mapping[int, Trial], other_trials: Mapping[int, Trial]) -> bool:
    """Whether runs of the same seeds have the same data, as far as that is recorded."""
    for seed in trials.keys() & other_trials.keys():
        digest = trials[seed].data_digest
        other_digest = other_trials[seed].data_digest
        if digest and other_digest and digest != other_digest:
            return False
    return True


def _common(methods: Sequence[MethodTrials]) -> tuple[list[int], set[int]]:
    """Return the seeds that all methods have, and the rounds that all have tested with each seed."""
    seeds = sorted(set.intersection(*(set(method.trials) for method in methods)))
    tested = [set(method.trials[seed].scores) for method in methods for seed in seeds]
    return seeds, set.intersection(*tested) if tested else set()


def ranked(contest: Contest) -> Contest:
    """Return a comparison with its methods in the order of :func:`contests`."""
    sign = -1 if contest.summary["better"] == "greater" else 1
    means = {method.label: contest.mean_score(method) for method in contest.methods}
    tested = [method for method in contest.methods if means[method.label] is not None]
    untested = [method for method in contest.methods if means[method.label] is None]
    remaining = sorted(
        tested, key=lambda method: (sign * (means[method.label] or 0), _complexity(method))
    )
    order = []
    while remaining:
        tied = [remaining[0]]
        for method in remaining[1:]:
            gain = contest.mean_gain(remaining[0], method)
            if gain is not None and (gain.sign == 0 or gain.by == 0):
                tied.append(method)
        simplest = min(
            tied,
            key=lambda method: (contest.beats_constant(method) is False, _complexity(method)),
        )
        order.append(simplest)
        remaining.remove(simplest)
    return replace(contest, methods=[*order, *untested])


def _complexity(method: MethodTrials) -> tuple[float, bool]:
    return method.mean_groups, method.name != "fedavg"


def gains(contest: Contest) -> dict[str, dict[str, Any]]:
    """Return how much better each run is than FedAvg's run of the same seed, client by client.

    Args:
        contest: The comparison.

    Returns:
        Run directory -> round, the last one that both have tested, and of: ``(client, by, sign)``
        of each client, see :class:`~coterie.report.contest.Gain`. Empty without a run of FedAvg.
    """
    fedavg = contest.find("fedavg")
    if fedavg is None:
        return {}
    run_gains: dict[str, dict[str, Any]] = {}
    for method in contest.methods:
        if method is fedavg:
            continue
        for seed in sorted(method.trials.keys() & fedavg.trials.keys()):
            run = MethodTrials(method.label, {seed: method.trials[seed]})
            base = MethodTrials(fedavg.label, {seed: fedavg.trials[seed]})
            pair = comparable([run, base])
            if len(pair.methods) == 2:
                client_gains = pair.client_gains(run, base)
                run_gains[run.first.summary["run_dir"]] = {
                    "round": pair.round,
                    "of": [(client, gain.by, gain.sign) for client, gain in client_gains.items()],
                }
    return run_gains


def with_baselines(run: Path, trial: Trial) -> tuple[Contest, MethodTrials]:
    """Return the comparison of a run with the baselines of its experiment with the same seed.

    Args:
        run: The run directory.
        trial: What a comparison needs of this run, up to some round; the others are read up to the
            same round.

    Returns:
        The comparison, and the run's entry in it.
    """
    name, seed = trial.summary["method"], trial.summary["seed"]
    trials = [trial]
    for baseline in BASELINES:
        if baseline == name:
            continue
        for path in sorted(run.absolute().parent.glob(f"{baseline}*-seed{seed}/{RUN}")):
            folder = path.parent
            with suppress(UserError):  # a run that has not begun, or is damaged, is not compared
                trials.append(read(within(folder.parent, folder.name), trial.summary["rounds"]))
    for contest in contests(trials):
        for method in contest.methods:
            if method.first is trial:
                return contest, method
    alone = MethodTrials(name, {seed: trial})  # its data are not those of the baselines
    return comparable([alone]), alone
