"""Which method to use and for whom, in words, from the records of runs alone.

Methods are compared with one model for all (FedAvg) and with training alone (Independent), see
:mod:`coterie.report.contest`.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from coterie.data.scenario import FEDERATION, OWN_WORLD
from coterie.records.record import EXPERIMENT_FILE, RUN_FILE
from coterie.records.shown import ClientId
from coterie.report.contest import BASELINES, Contest, Gain
from coterie.report.headline import headline
from coterie.report.noise import MIN_SAMPLE, mean_value
from coterie.report.recommendation import Recommendation, recommend
from coterie.report.screen import screen
from coterie.report.setting_differences import unequal
from coterie.report.sureness import sureness
from coterie.report.trials import MethodTrials
from coterie.report.warnings import reference_line, warnings
from coterie.report.words import count, names, number, who

MAX_GROUPS_IN_SENTENCE = 12
"""The greatest number of groups that a verdict names."""


def verdict(contest: Contest, method: MethodTrials | None = None) -> dict[str, Any]:
    """Return a verdict.

    Args:
        contest: The comparison.
        method: The method whose groups the verdict describes; None for the best one that is no
            baseline.

    Returns:
        Sentences, each empty if there is nothing to say: personal (whom personal models serve), sure (how sure the groups are),
        constant (what always predicting the same scores), warnings (a list: what must be said before anything else, see
        :func:`~coterie.report.warnings.warnings`), by_time (how test examples follow the others in
        time), found (how many groups), why (the last decision), better (a list: the comparison with
        each baseline), use (the recommended method and for whom), noise (when a difference is
        significant), missing (the baselines that were not run), command (which runs them), left_out
        (methods that are not compared) and unequal (other settings that differ). Also scenario, title,
        method (whose groups these are), run (its directory), groups, headline: see
        :func:`~coterie.report.headline.headline`, screen: see :func:`~coterie.report.screen.screen`,
        and table: see :func:`table`, or None for a single
        method.
    """
    if method is None:
        method = contest.focus
    is_comparison = len(contest.methods) > 1
    is_tested = contest.round is not None
    missing, command = _missing_baselines(contest)
    better = []
    if is_tested:
        better = [compare(contest, method, baseline) for baseline in contest.baselines(method)]
    return {
        "scenario": contest.summary["scenario"],
        "title": contest.summary["title"],
        "method": method.label,
        "run": method.first.summary["run_dir"],
        "constant": reference_line(contest),
        "warnings": warnings(contest),
        "by_time": method.first.by_time,
        "found": " ".join(filter(None, [groups_found(method), unlisted(method.first.summary)])),
        "groups": method.first.summary["groups"],
        "personal": personal_models(method),
        "sure": sureness(contest, method),
        "why": _why(method),
        "better": better,
        "use": use(contest, recommend(contest)) if is_tested and is_comparison else "",
        "noise": _noise(contest) if is_tested and is_comparison else "",
        "missing": missing,
        "command": command,
        "left_out": _left_out(contest),
        "unequal": _unequal(contest),
        "headline": headline(contest, method),
        "screen": screen(contest, method),
        "table": table(contest) if is_comparison else None,
    }


def _left_out(contest: Contest) -> str:
    """Return which methods are not compared."""
    if not contest.left_out:
        return ""
    methods = ", ".join(contest.left_out)
    return f"Not compared, for lack of a seed, tested round or data in common: {methods}."


def _unequal(contest: Contest) -> str:
    """Return the settings besides the method's in which the runs differ."""
    summaries = [method.first.summary for method in contest.methods]
    differences = unequal(summaries, contest.labels)
    if not differences:
        return ""
    return f"They differ in more than the method: {'; '.join(differences)}."


# ----------------------------------------------------------------------------------------------------
# The table of clients and methods.


def table(contest: Contest) -> dict[str, Any] | None:
    """Return the main metric of each client with each method, in the same round.

    Args:
        contest: The comparison.

    Returns:
        round, seeds, metric, better, methods (the labels, best first), over (the label of FedAvg's
        column, or None), alone (the method whose gain over training alone the rows have, or None),
        means (of each method, over the clients), pooled (whether these are of all
        test rows together), and rows: client, tests (number of test examples or None), values (of
        each method, or None), personal (for each method, the number of seeds with which the value is
        that of a personal model), gains (of each method over FedAvg: ``[by, noise, sign, needed]`` or
        None, see :meth:`~coterie.report.contest.Contest.test_size_needed`) and over_alone (the same
        of the method ``alone`` over Independent). None if no round was tested.
    """
    if contest.round is None:
        return None
    fedavg = contest.find("fedavg")
    return {
        "round": contest.round,
        "seeds": list(contest.seeds),
        "metric": contest.metric,
        "better": contest.summary["better"],
        "methods": contest.labels,
        "over": None if fedavg is None else fedavg.label,
        "alone": _over_training_alone(contest),
        "means": list(map(contest.mean_score, contest.methods)),
        "pooled": contest.is_pooled,
        "rows": [_row(contest, client, fedavg) for client in contest.clients],
    }


def _over_training_alone(contest: Contest) -> str | None:
    """Return the label of the method of which a table has the gains over training alone; None without them."""
    independent = contest.find("independent")
    if independent is None or contest.focus is independent:
        return None
    return contest.focus.label


def _row(contest: Contest, client: ClientId, fedavg: MethodTrials | None) -> dict[str, Any]:
    """Return the row of one client."""
    gains = [_gain_entry(contest, client, method, fedavg) for method in contest.methods]
    independent = contest.find("independent")
    return {
        "client": client,
        "tests": contest.test_size(client),
        "values": [contest.client_score(method, client) for method in contest.methods],
        "personal": [
            contest.seeds_with_personal_model(method, client) for method in contest.methods
        ],
        "gains": gains,
        "over_alone": _gain_entry(contest, client, contest.focus, independent),
    }


def _gain_entry(
    contest: Contest, client: ClientId, method: MethodTrials, rival: MethodTrials | None
) -> list[Any] | None:
    """Return a client's gain with a method over another: ``[by, noise, sign, needed]``, or None."""
    if rival is None or method is rival:
        return None
    gain = contest.client_gain(method, rival, client)
    if gain is None:
        return None
    needed = contest.test_size_needed(client, gain)
    return [gain.improvement, gain.noise, gain.sign, needed]


# ----------------------------------------------------------------------------------------------------
# Sentences about one method.


def groups_found(method: MethodTrials) -> str:
    """Return how many groups a method found, and whether they are the true ones, as a sentence."""
    counts = [len(summary["groups"]) for summary in method.summaries]
    if min(counts) == max(counts):
        groups_in_words = count(counts[0], "group")
        seeds_in_words = f" with each of {len(counts)} seeds" if len(counts) > 1 else ""
    else:
        groups_in_words = f"{min(counts)} to {max(counts)} groups"
        seeds_in_words = f" over {len(counts)} seeds"
    if method.name in BASELINES:
        return (
            f"{method.label} is {BASELINES[method.name]}: it has {groups_in_words} by definition."
        )
    agreement = _agreement([summary["ari"] for summary in method.summaries])
    return f"{method.label} found {groups_in_words}{seeds_in_words}{agreement}."


def unlisted(summary: Mapping[str, Any]) -> str:
    """Return how many clients there are where only those that are tested are listed, as a sentence; otherwise empty.

    Args:
        summary: The summary of a run.

    Example:
        >>> sizes = {"all_clients": 1000, "sizes": [700, 300]}
        >>> unlisted({"groups": [[3, 8]], "run_dir": "a", **sizes}).split("; ")[0]
        'The run has 1,000 clients, in groups of 700 and 300'
    """
    if "all_clients" not in summary:
        return ""
    num_listed = sum(map(len, summary["groups"]))
    shown_sizes = [f"{size:,}" for size in summary["sizes"][:MAX_GROUPS_IN_SENTENCE]]
    num_more = len(summary["sizes"]) - len(shown_sizes)
    if num_more:
        shown_sizes.append(f"{num_more:,} more sizes")
    in_groups = f"one group of {shown_sizes[0]}"
    if len(shown_sizes) > 1:
        in_groups = f"groups of {', '.join(shown_sizes[:-1])} and {shown_sizes[-1]}"
    return (
        f"The run has {summary['all_clients']:,} clients, in {in_groups}; the {num_listed:,} that "
        f"are tested are listed (coterie.reopen({summary['run_dir']!r})[0].groups() has all)."
    )


def personal_models(method: MethodTrials) -> str:
    """Return which clients are served by personal models, as a sentence; empty if none is."""
    # Of several seeds, the first whose groups are shown.
    summary = method.first.summary
    seed = f" (with seed {min(method.trials)})" if len(method.trials) > 1 else ""
    clients = summary["personal"]
    num_clients = sum(map(len, summary["groups"]))
    if not clients:
        return ""
    if len(clients) == num_clients:
        return f"Each client is served by a personal model{seed}."
    shared = "that of their group" if len(summary["groups"]) > 1 else "the model of all"
    verb = "is" if len(clients) == 1 else "are"
    own_models = "a personal model" if len(clients) == 1 else "personal models"
    subject = who(clients)
    return f"{subject[:1].upper()}{subject[1:]} {verb} served by {own_models}, the others by {shared}{seed}."


def _agreement(rand_indices: list[float | None]) -> str:
    """Return how the groups of each seed agree with the true ones; empty if these are not known."""
    known_indices = [rand_index for rand_index in rand_indices if rand_index is not None]
    if len(known_indices) < len(rand_indices):
        return ""
    if min(known_indices) == 1:
        return ", the same as the true groups"
    mean_index = mean_value(known_indices)
    return f", not the same as the true groups (adjusted Rand index {mean_index:.2f})"


def _why(method: MethodTrials) -> str:
    """Return the last decision of a method on its groups, with the first seed."""
    if method.name in BASELINES:
        return ""
    decision = method.first.last_decision
    if not decision:
        return "No reason was recorded."
    # With one group, the last decision says why there are no more.
    divided = len(method.first.summary["groups"]) > 1
    about = "The last decision that divided clients" if divided else "Why it did not split"
    seed = f" with seed {min(method.trials)}" if len(method.trials) > 1 else ""
    return f"{about}{seed}. {decision}"


# ----------------------------------------------------------------------------------------------------
# Sentences that compare methods.


def compare(contest: Contest, method: MethodTrials, rival: MethodTrials) -> str:
    """Return how a method compares with another in the mean and client by client, in one sentence."""
    gain = contest.mean_gain(method, rival)
    if gain is None:
        return (
            f"No client was tested with both {method.label} and {rival.label} "
            f"in round {contest.round}."
        )
    rival_name = rival.label
    if rival.name in BASELINES:
        rival_name = f"{BASELINES[rival.name]} ({rival.label})"
    seeds_in_words = (
        f", in the mean over {len(contest.seeds)} seeds" if len(contest.seeds) > 1 else ""
    )
    clients_in_words = _better_and_worse(contest.client_gains(method, rival))
    return (
        f"Compared with {rival_name} in round {contest.round}{seeds_in_words}, the {contest.mean_name} of "
        f"{method.label} is {_difference(gain)}; {clients_in_words}."
    )


def _difference(gain: Gain) -> str:
    """Return a difference in words: "0.450 higher (0.750 against 0.300)"."""
    if not gain.improvement:
        return f"the same ({number(gain.score)})"
    # Higher is not always better.
    direction = "higher" if gain.score > gain.rival_score else "lower"
    scores = f"{number(gain.score)} against {number(gain.rival_score)}"
    significance = ", not significant" if gain.sign == 0 else ""
    return f"{number(abs(gain.improvement))} {direction} ({scores}{significance})"


def _better_and_worse(gains: Mapping[ClientId, Gain]) -> str:
    """Return for how many clients a method is better, and for which it is worse."""
    clients = count(len(gains), "client")
    # Where noise is not known, no difference is significant; only its direction is counted.
    if any(gain.sign is None for gain in gains.values()):
        num_better = sum(gain.improvement > 0 for gain in gains.values())
        num_worse = sum(gain.improvement < 0 for gain in gains.values())
        return (
            f"it is better for {num_better} of {clients} and worse for {num_worse}, "
            "but noise of single clients is not known"
        )
    better_off = [client for client, gain in gains.items() if gain.sign == 1]
    worse_off = [client for client, gain in gains.items() if gain.sign == -1]
    if not better_off and not worse_off:
        return f"it is significantly better or worse for none of {clients}"
    better_for = f"{len(better_off) or 'none'} of {clients}"
    if 0 < len(better_off) < len(gains):
        named = who(better_off) if len(better_off) == 1 else names(better_off)
        better_for = f"{better_for} ({named})"
    worse_for = who(worse_off) if worse_off else "none"
    return f"it is significantly better for {better_for} and significantly worse for {worse_for}"


def use(contest: Contest, recommendation: Recommendation) -> str:
    """Return which method to use, why, and for which clients another one is better."""
    label = recommendation.method
    metric = contest.mean_name
    # 1. Why this method.
    match recommendation.reason:
        case "no better than constant":
            assert contest.constant is not None
            constant = contest.constant.label
            return (
                f"No method is recommended: {label} has the best {metric}, "
                f"but is not significantly better than {constant}."
            )
        case "not known":
            return f"{label} has the best {metric}; whether the difference is significant is not known."
        case "simplest":
            reason = (
                f"{recommendation.best_score} has the best {metric}, but within noise, "
                "and of the methods within noise of it none has fewer groups"
            )
        case "tied":
            tied = ", ".join(recommendation.tied)
            reason = f"it has the best {metric}; not significantly worse: {tied}"
        case "best":
            reason = f"its {metric} is significantly better than with any other method"
    # 2. The clients for which another method, or a constant prediction, is better.
    exceptions = []
    for rival, better_off in recommendation.exceptions.items():
        exceptions.append(f"{rival} is significantly better for {who(better_off)}")
    clients = ""
    if recommendation.below:
        below = who(recommendation.below)
        clients = f", but not for {below}, where a constant prediction is better"
    elif not exceptions:
        clients = " for all clients"
    objection = f" But {'; '.join(exceptions)}." if exceptions else ""
    return f"Use {label}{clients}: {reason}.{objection}"


# ----------------------------------------------------------------------------------------------------
# Noise.


def _noise(contest: Contest) -> str:
    """Return when a difference is significant."""
    if not contest.noise_is_of_tests:
        return f"{_noise_of_means(contest)} {_noise_of_single_clients(contest)}"
    if contest.compares_areas:
        return (
            "A difference is significant above 1.96·sqrt(2·v) + 1/(2·m), where v is the variance of "
            f"one {contest.metric} by Hanley and McNeil, for the mean of both values and the numbers "
            f"of {contest.test_unit} with each label, and m the smaller number. Equally good models "
            "whose errors are independent exceed this in about 5 % of tests, others less often."
            f"{_shared_tests(contest)}"
        )
    number_of = f"the number of {contest.test_unit}"
    if not contest.averages_shares:
        number_of = f"the number of classes times that of the {contest.test_unit} of the rarest one"
    return (
        "A difference is significant above 1.96·sqrt(2·min(p, 1 − p)/n) + 1/n, where n is "
        f"{number_of} and p the mean of both values: equally good models "
        "exceed this in at most 5 % of tests, however their errors are related."
        f"{_shared_tests(contest)}"
    )


def _noise_of_means(contest: Contest) -> str:
    num_seeds = len(contest.seeds)
    repeated = ""
    if contest.repeats_tests:
        repeated = f"The {num_seeds} seeds have the same test rows, so they count as one. "
    elif num_seeds >= MIN_SAMPLE:
        return (
            "A difference of means is significant if its 95 % interval over the "
            f"{num_seeds} seeds does not contain 0."
        )
    if contest.shares_tests:
        return (
            f"{repeated}With fewer than {MIN_SAMPLE} seeds, noise of a mean is not known, "
            "because clients share test examples."
        )
    return (
        f"{repeated}With fewer than {MIN_SAMPLE} seeds, a difference of means is significant if its 95 % "
        "interval over the clients does not contain 0; otherwise it is inconclusive."
    )


def _noise_of_single_clients(contest: Contest) -> str:
    if len(contest.seeds) == 1 or contest.repeats_tests:
        why_no_error = f"{contest.metric} has no standard error"
        if contest.averages_shares:
            why_no_error = "the sizes of test sets are not recorded"
        why_no_spread = "there is one seed"
        if contest.repeats_tests:
            why_no_spread = "each seed has the same test rows"
        return f"For single clients noise is not known: {why_no_error}, and {why_no_spread}."
    return (
        "A difference of one client is significant if its 95 % interval over the "
        f"{len(contest.seeds)} seeds does not contain 0."
    )


def _shared_tests(contest: Contest) -> str:
    """Return how test examples that clients share count in the mean over clients."""
    if len(contest.clients) < 2:
        return ""
    all_testers: list[float] = []
    is_recorded = True
    for method in contest.methods:
        for trial in method.trials.values():
            if trial.testers is None:
                is_recorded = False
            else:
                all_testers += trial.testers.values()
    if not is_recorded:
        return (
            " Whether clients share test examples is not recorded; "
            "the mean over clients is noisier if they do."
        )
    if any(testers > 1 for testers in all_testers):
        return " In the mean over clients, a test example that several of them have counts once."
    return ""


# ----------------------------------------------------------------------------------------------------
# Baselines that were not run.


def _missing_baselines(contest: Contest) -> tuple[str, str]:
    """Return which baselines were not run, as a sentence, and the command that runs them."""
    method_names = {method.name for method in contest.methods}
    # A label may be a name and a number.
    method_names |= {label.partition(" ")[0] for label in contest.left_out}
    missing = [baseline_name for baseline_name in BASELINES if baseline_name not in method_names]
    if not missing:
        return "", ""
    baselines = " and with ".join(
        f"{BASELINES[baseline_name]} ({baseline_name})" for baseline_name in missing
    )
    problem = f"There is no run to compare with {baselines}."
    if contest.summary["scenario"] in (FEDERATION, OWN_WORLD):
        return f"{problem} Record one over the same clients.", ""
    pronoun = "it" if len(missing) == 1 else "them"
    advice = f"These commands add {pronoun}, and report both folders together."
    if _imports_code(contest):
        advice = f"{advice} The first imports code, so add --trust-code if you trust it."
    return f"{problem} {advice}", _commands_for(contest, missing)


def _imports_code(contest: Contest) -> bool:
    """Whether the scenario or the model is the user's own code, named ``package.module:Name``."""
    scenario = contest.summary["scenario"]
    model = contest.summary["scenario_settings"].get("model", "")
    return any(":" in str(object_name) for object_name in (scenario, model))


def _commands_for(contest: Contest, baselines: list[str]) -> str:
    """Return the command that runs baselines with the settings and seeds of the method in focus, and one that reports all."""
    run = Path(contest.focus.first.summary["run_dir"])
    recorded = _recorded_folder(run)
    # The name of the working folder is not known from the path.
    new_folder = Path("../baselines")
    if recorded.name:
        new_folder = recorded.with_name(f"{recorded.name}-baselines")
    arguments = ["coterie", "run", str(run / RUN_FILE)]
    for baseline_name in baselines:
        arguments += ["--method", baseline_name]
    # The run's own file has one seed.
    seeds = sorted(contest.focus.trials)
    if len(seeds) > 1:
        arguments += ["--set", f"seeds={seeds}".replace(" ", "")]
    run_command = shlex.join([*arguments, "--out", str(new_folder)])
    report_command = shlex.join(["coterie", "report", str(recorded), str(new_folder)])
    return f"{run_command}\n{report_command}"


def _recorded_folder(run: Path) -> Path:
    """Return the folder of a run's experiment, or of the run if it has none: a new record is next to it, never inside."""
    if (run.parent / EXPERIMENT_FILE).is_file():
        return run.parent
    return run


# ----------------------------------------------------------------------------------------------------
# Verdicts as text.


def paragraphs(verdict: Mapping[str, Any], is_comparison: bool = True) -> list[tuple[str, bool]]:
    """Return a verdict as the console shows it: each paragraph, and whether it is a warning.

    Args:
        verdict: The verdict.
        is_comparison: Whether it is about several methods, so that sentences about others belong to it.
    """
    comparisons = []
    if is_comparison:
        comparisons = [*filter(None, verdict["better"])]
    groups = [verdict[key] for key in ("sure", "personal") if verdict[key]]
    texts = []
    # What a constant prediction scores is worth a sentence only beside others.
    if verdict["warnings"] or comparisons:
        texts.append((verdict["constant"], False))
    texts += [(sentence, True) for sentence in verdict["warnings"]]
    texts += [(sentence, False) for sentence in (*comparisons, *groups)]
    if is_comparison and verdict["use"]:
        texts.append((verdict["use"], False))
    if verdict["by_time"]:
        texts.append((verdict["by_time"], False))
    return texts


def sentences(verdict: Mapping[str, Any]) -> list[str]:
    """Return a verdict without its reasons: its warnings, the groups, and the comparison with each baseline.

    Args:
        verdict: The verdict.
    """
    # The groups follow in the same sentence.
    groups = f"{verdict['found'].removesuffix('.')}{_group_names(verdict['groups'])}."
    parts = [*verdict["warnings"], groups, verdict["sure"], verdict["personal"], verdict["by_time"]]
    if verdict["better"] or verdict["warnings"]:
        parts += [verdict["constant"], *verdict["better"]]
    return [part for part in parts if part]


def _group_names(groups: list[list[ClientId]]) -> str:
    """Return the groups as the end of a sentence; nothing for a single one."""
    if len(groups) < 2:
        return ""
    group_names = [who(group) for group in groups[:MAX_GROUPS_IN_SENTENCE]]
    if len(groups) > MAX_GROUPS_IN_SENTENCE:
        group_names.append(f"and {len(groups) - MAX_GROUPS_IN_SENTENCE} more")
    return f": {' | '.join(group_names)}"


SIGNIFICANCE: Mapping[int | None, str] = {
    None: "whether that is significant is not known",
    0: "no significant difference",
    1: "significantly worse",
    -1: "significantly better",
}
"""Sign of a method's gain over another -> how the other one compares."""


def for_client(contest: Contest, method: MethodTrials, client: ClientId) -> str:
    """Return a client's main metric with a method, and with each other one; empty if it was not tested."""
    score = contest.client_score(method, client)
    if score is None or len(contest.methods) < 2:
        return ""
    test_size = contest.test_size(client)
    test_set = ""
    if test_size:
        unit = contest.test_unit.removesuffix("s") if test_size == 1 else contest.test_unit
        test_set = f", on {test_size:g} {unit}"
    sentences = [
        f"Client {client} has {contest.metric} {number(score)} with {method.label} "
        f"in round {contest.round}{test_set}."
    ]
    for rival in contest.methods:
        gain = None if rival is method else contest.client_gain(method, rival, client)
        if gain is None:
            continue
        needed = contest.test_size_needed(client, gain)
        remark = f" (about {needed} would be needed to be sure)" if needed else ""
        sentences.append(
            f"With {rival.label} it has {number(gain.rival_score)}: {SIGNIFICANCE[gain.sign]}{remark}."
        )
    return " ".join(sentences)
