"""Which runs can be compared, and which method comes first."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from coterie.files import within
from coterie.records.record import RUN_FILE
from coterie.report.contest import BASELINES, Contest
from coterie.report.setting_differences import SAME_BUT_SEED
from coterie.report.trials import MethodTrials, Trial, read
from coterie.report.words import count, numbered
from coterie.settings import PlainWarning, UserError

SAME_WORLD = ("scenario", "scenario_settings", "metric", "better")
"""Keys of summaries that are equal in runs over the same clients."""


def contests(trials: Iterable[Trial]) -> list[Contest]:
    """Return the comparisons of some runs: one for all runs over the same scenario.

    Methods are ordered by their mean main metric. Of those that do not differ significantly from
    the best, the one with the fewest groups comes first, and FedAvg before others with as many; but
    those that are no better than a constant prediction come last among them, the best score first.

    Args:
        trials: The runs.
    """
    # Settings of the scenario -> the runs in it; tables cannot be keys of a dict.
    worlds: list[tuple[list[Any], list[Trial]]] = []
    for trial in trials:
        world = [trial.summary[key] for key in SAME_WORLD]
        for earlier_world, trials_of_world in worlds:
            if earlier_world == world:
                trials_of_world.append(trial)
                break
        else:
            worlds.append((world, [trial]))
    return [ranked(comparable(_methods(trials_of_world))) for _, trials_of_world in worlds]


def _methods(trials: Sequence[Trial]) -> list[MethodTrials]:
    """Return the methods of some runs. Runs that differ in their seed alone are of one method."""
    # Settings -> seed -> run.
    methods: list[tuple[list[Any], dict[int, Trial]]] = []
    for trial in trials:
        settings = [trial.summary[key] for key in SAME_BUT_SEED]
        seed = trial.summary["seed"]
        for method_settings, trial_of_seed in methods:
            # A second run with the same settings and seed is an entry of its own.
            if method_settings == settings and seed not in trial_of_seed:
                trial_of_seed[seed] = trial
                break
        else:
            methods.append((settings, {seed: trial}))
    trials_of_methods = [trial_of_seed for _, trial_of_seed in methods]
    method_names = []
    for trial_of_seed in trials_of_methods:
        first_trial = next(iter(trial_of_seed.values()))
        method_names.append(first_trial.summary["method"])
    return list(map(MethodTrials, numbered(method_names), trials_of_methods))


def comparable(methods: Sequence[MethodTrials]) -> Contest:
    """Return the comparison in what methods share.

    Methods over most seeds come first. Each further one joins if it has data, a seed and a tested
    round in common with those before it.
    """
    most_seeds_first = sorted(
        methods, key=lambda method: (not _is_tested(method), -len(method.trials))
    )
    # The comparison grows from the method with most seeds.
    joined = most_seeds_first[:1]
    left_out = []
    for method in most_seeds_first[1:]:
        has_same_data = all(_same_data(member.trials, method.trials) for member in joined)
        _, common_rounds = _common([*joined, method])
        if has_same_data and common_rounds:
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
        # An empty digest was not recorded.
        digest = trials[seed].data_digest
        other_digest = other_trials[seed].data_digest
        if digest and other_digest and digest != other_digest:
            return False
    return True


def _common(methods: Sequence[MethodTrials]) -> tuple[list[int], set[int]]:
    """Return the seeds that all methods have, and the rounds that all have tested with each seed."""
    # A comparison needs the same seeds and rounds for all.
    seeds = sorted(set.intersection(*(set(method.trials) for method in methods)))
    if not seeds:
        return seeds, set()
    tested_rounds = []
    for method in methods:
        tested_rounds += [set(method.trials[seed].scores) for seed in seeds]
    return seeds, set.intersection(*tested_rounds)


def ranked(contest: Contest) -> Contest:
    """Return a comparison with its methods in the order of :func:`contests`."""
    # The best score first.
    direction = -1 if contest.summary["better"] == "greater" else 1
    means = {method.label: contest.mean_score(method) for method in contest.methods}
    tested = [method for method in contest.methods if means[method.label] is not None]
    untested = [method for method in contest.methods if means[method.label] is None]
    remaining = sorted(
        tested, key=lambda method: (direction * (means[method.label] or 0), _complexity(method))
    )
    ranking = []
    while remaining:
        # Of the methods that are not significantly worse than the best one, the simplest is next.
        best = remaining[0]
        tied = [best, *(rival for rival in remaining[1:] if _is_tied(contest, best, rival))]
        useful = [method for method in tied if contest.beats_constant(method) is not False]
        # If none is better than a constant prediction, none is recommended: the best score is next.
        simplest = min(useful, key=_complexity) if useful else best
        ranking.append(simplest)
        remaining.remove(simplest)
    return replace(contest, methods=[*ranking, *untested])


def _is_tied(contest: Contest, method: MethodTrials, rival: MethodTrials) -> bool:
    """Whether two methods do not differ significantly, as far as that is known."""
    gain = contest.mean_gain(method, rival)
    return gain is not None and (gain.sign == 0 or gain.improvement == 0)


def _complexity(method: MethodTrials) -> tuple[float, bool]:
    """The fewer groups, the simpler; FedAvg is simpler than others with one group."""
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
    gains_of_run: dict[str, dict[str, Any]] = {}
    for method in contest.methods:
        if method is fedavg:
            continue
        for seed in sorted(method.trials.keys() & fedavg.trials.keys()):
            run = MethodTrials(method.label, {seed: method.trials[seed]})
            fedavg_run = MethodTrials(fedavg.label, {seed: fedavg.trials[seed]})
            pair = comparable([run, fedavg_run])
            # They may have no tested round in common.
            if len(pair.methods) < 2:
                continue
            client_gains = []
            for client, gain in pair.client_gains(run, fedavg_run).items():
                client_gains.append((client, gain.improvement, gain.sign))
            run_dir = run.first.summary["run_dir"]
            gains_of_run[run_dir] = {"round": pair.round, "of": client_gains}
    return gains_of_run


def with_other_seeds(run: Path, trial: Trial) -> tuple[Contest, MethodTrials] | None:
    """Return the comparison of a run and its baselines over all seeds of its folder, and the run's method in it.

    Args:
        run: The run directory.
        trial: What a comparison needs of this run.

    Returns:
        Both; None if there are no other seeds of the method and a baseline.
    """
    method_name = trial.summary["method"]
    folders = []
    for name in dict.fromkeys((method_name, *BASELINES)):
        for path in sorted(run.absolute().parent.glob(f"{name}*-seed*/{RUN_FILE}")):
            if path.parent != run.absolute():
                folders.append(path.parent)
    trials = [trial, *_runs_beside(folders, trial.summary["rounds"])]
    for contest in contests(trials):
        for method in contest.methods:
            if trial in method.trials.values() and len(contest.seeds) > 1:
                return contest, method
    return None


def _runs_beside(folders: Iterable[Path], last_round: int) -> list[Trial]:
    """Return what a comparison needs of the runs beside the explained one.

    A run that has not begun, or is damaged, is not compared. A warning says so, since the result is
    another without it.
    """
    trials = []
    errors = []
    for folder in folders:
        try:
            trials.append(read(within(folder.parent, folder.name), last_round))
        except UserError as error:
            errors.append(str(error))
    if errors:
        more = f" (and {count(len(errors) - 1, 'more run')})" if len(errors) > 1 else ""
        warnings.warn(f"not compared: {errors[0]}{more}", PlainWarning, stacklevel=3)
    return trials


def with_baselines(run: Path, trial: Trial) -> tuple[Contest, MethodTrials]:
    """Return the comparison of a run with the baselines of its experiment with the same seed.

    Args:
        run: The run directory.
        trial: What a comparison needs of this run, up to some round; the others are read up to the
            same round.

    Returns:
        The comparison, and the run's entry in it.
    """
    method_name = trial.summary["method"]
    seed = trial.summary["seed"]
    # Runs of the baselines are next to the run in its experiment's folder.
    folders = []
    for baseline in BASELINES:
        if baseline != method_name:
            paths = run.absolute().parent.glob(f"{baseline}*-seed{seed}/{RUN_FILE}")
            folders += [path.parent for path in sorted(paths)]
    trials = [trial, *_runs_beside(folders, trial.summary["rounds"])]
    for contest in contests(trials):
        for method in contest.methods:
            if method.first is trial:
                return contest, method
    # The run's data are not those of the baselines.
    method_alone = MethodTrials(method_name, {seed: trial})
    return comparable([method_alone]), method_alone
