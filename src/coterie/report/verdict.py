"""Which method to use and for whom, in words, from the records of runs alone.

Methods are compared with one model for all (FedAvg) and with training alone (Independent), see
:mod:`coterie.report.contest`.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from coterie.data.scenario import FEDERATION, OWN
from coterie.records.record import RUN
from coterie.records.shown import ClientId
from coterie.report.contest import BASELINES, FEW, SHARES, Contest, Entry, mean_value
from coterie.report.said_first import left_below, reference_line, warnings
from coterie.report.summary import unequal
from coterie.report.words import count, number, who

GROUPS = 12
"""The greatest number of groups that are listed in words."""


def verdict(contest: Contest, of: Entry | None = None) -> dict[str, Any]:
    """Return a verdict.

    Args:
        contest: The comparison.
        of: The method whose groups the verdict describes; None for the best one that is no
            baseline.

    Returns:
        Sentences, each empty if there is nothing to say: constant (what always predicting the same
        scores), warnings (a list: what must be said before anything else, see
        :func:`~coterie.report.said_first.warnings`), by_time (how test examples follow the others
        in time), found (how many groups), why (the last decision), better (a list: the comparison
        with each baseline), use (the recommended method and for whom), noise (what is within
        noise), missing (the baselines that are not there), command (which adds them), left_out
        (methods that are not compared) and unequal (other settings that differ). Also scenario,
        method (whose groups these are), run (its directory), groups, and table: see :func:`table`,
        or None for a single method.
    """
    one, tested = of or contest.focus, contest.round is not None
    others = [
        other
        for name in BASELINES
        if (other := contest.find(name)) is not None and other is not one
    ]
    missing, command = _missing(contest)
    differ = unequal(
        [each.first.said for each in contest.entries], [each.label for each in contest.entries]
    )
    left = f"Not compared, for lack of a seed, tested round or data in common: {', '.join(contest.left_out)}."
    return {
        "scenario": contest.said["scenario"],
        "method": one.label,
        "run": one.first.said["run_dir"],
        "constant": reference_line(contest),
        "warnings": warnings(contest),
        "by_time": one.first.by_time,
        "found": found(one),
        "groups": one.first.said["groups"],
        "why": _why(one),
        "better": [against(contest, one, other) for other in others] if tested else [],
        "use": _use(contest) if tested and len(contest.entries) > 1 else "",
        "noise": _noise(contest) if tested and len(contest.entries) > 1 else "",
        "missing": missing,
        "command": command,
        "left_out": left if contest.left_out else "",
        "unequal": f"They differ in more than the method: {'; '.join(differ)}." if differ else "",
        "table": table(contest) if len(contest.entries) > 1 else None,
    }


def table(contest: Contest) -> dict[str, Any] | None:
    """Return the main metric of each client with each method, in the same round.

    Args:
        contest: The comparison.

    Returns:
        round, seeds, metric, better, methods (the labels, best first), over (the label of FedAvg's
        column, or None), means (of each method, over the clients), pooled (whether these are of all
        test rows together), and rows: client, tests (number of test examples or None), values (of
        each method, or None), and gains (of each method over FedAvg: ``[by, noise, sign]`` or
        None). None if no round was tested.
    """
    if contest.round is None:
        return None
    base = contest.find("fedavg")
    return {
        "round": contest.round,
        "seeds": list(contest.seeds),
        "metric": contest.metric,
        "better": contest.said["better"],
        "methods": [one.label for one in contest.entries],
        "over": base and base.label,
        "means": [contest.mean(one) for one in contest.entries],
        "pooled": contest.pools,
        "rows": [_row(contest, client, base) for client in contest.clients],
    }


def _row(contest: Contest, client: ClientId, base: Entry | None) -> dict[str, Any]:
    values = [contest.values(one, client) for one in contest.entries]
    gains = [
        base and one is not base and contest.gain(one, base, client) for one in contest.entries
    ]
    return {
        "client": client,
        "tests": contest.tests(client),
        "values": [mean_value(each.values()) if each else None for each in values],
        "gains": [[gain.by, gain.noise, gain.sign] if gain else None for gain in gains],
    }


def found(one: Entry) -> str:
    """Return how many groups a method found, and whether they are the true ones, as a sentence."""
    runs = one.trials.values()
    counts = sorted({len(each.said["groups"]) for each in runs})
    groups = (
        count(counts[0], "group") if len(counts) == 1 else f"{counts[0]} to {counts[-1]} groups"
    )
    seeds = f" with each of {len(runs)} seeds" if len(runs) > 1 and len(counts) == 1 else ""
    seeds = f" over {len(runs)} seeds" if len(counts) > 1 else seeds
    known = [each.said["ari"] for each in runs]
    if one.method in BASELINES:
        return f"{one.label} is {BASELINES[one.method]}: it has {groups} by definition."
    true = ""
    if known and None not in known:
        rand = f"adjusted Rand index {mean_value(known):.2f}"
        true = (
            ", the same as the true groups"
            if min(known) == 1
            else f", not the same as the true groups ({rand})"
        )
    return f"{one.label} found {groups}{seeds}{true}."


def _why(one: Entry) -> str:
    if one.method in BASELINES:
        return ""
    split = (
        "The last decision that divided clients"
        if len(one.first.said["groups"]) > 1
        else "Why it did not split"
    )
    seed = f" with seed {min(one.trials)}" if len(one.trials) > 1 else ""
    return f"{split}{seed}. {one.first.reason}" if one.first.reason else "No reason was recorded."


def against(contest: Contest, one: Entry, other: Entry) -> str:
    """Return how a method compares with another in the mean and client by client, in one sentence."""
    mean = contest.mean_gain(one, other)
    if mean is None:
        return f"No client was tested with both {one.label} and {other.label} in round {contest.round}."
    seeds = f", in the mean over {len(contest.seeds)} seeds" if len(contest.seeds) > 1 else ""
    what = (
        f"{BASELINES[other.method]} ({other.label})" if other.method in BASELINES else other.label
    )
    side = "higher" if mean.of > mean.over else "lower"
    over = "over all test rows" if contest.pools else "on average"
    by = f"{side} by {number(abs(mean.by))} {over}" if mean.by else f"the same {over}"
    within = ", which is within noise" if mean.by and mean.sign == 0 else ""
    values = f"({number(mean.over)} to {number(mean.of)}{within})"
    who_ = _for_whom(contest, one, other)
    mine = f"the {contest.metric} of {one.label}"
    return f"Compared with {what} in round {contest.round}{seeds}, {mine} is {by} {values}; {who_}."


def _for_whom(contest: Contest, one: Entry, other: Entry) -> str:
    gains = {
        client: gain for client in contest.clients if (gain := contest.gain(one, other, client))
    }
    if any(gain.sign is None for gain in gains.values()):
        higher, lower = (sum(sign * gain.by > 0 for gain in gains.values()) for sign in (1, -1))
        clients = count(len(gains), "client")
        return f"it is better for {higher} of {clients} and worse for {lower}, but noise of single clients is not known"
    up, down = ([client for client, gain in gains.items() if gain.sign == sign] for sign in (1, -1))
    clients = count(len(gains), "client")
    if not up and not down:
        return f"none of {clients} gains or loses beyond noise"
    better = f"{len(up) or 'none'} of {clients} {'gains' if len(up) < 2 else 'gain'}"
    worse = f"{len(down)} {'loses' if len(down) == 1 else 'lose'} beyond noise: {who(down)}"
    return f"{better} and {worse}" if down else f"{better}, none loses beyond noise"


def _use(contest: Contest) -> str:
    """Return which method to use, why, and for which clients another one is better."""
    best, *others = contest.entries
    if contest.constant is not None and contest.learned(best) is False:
        return f"No method is recommended: {best.label}, the best one here, is no better than {contest.constant.label}."
    gains = {one.label: gain for one in others if (gain := contest.mean_gain(best, one))}
    if any(gain.sign is None for gain in gains.values()):
        return f"The best {contest.mean_words} is that of {best.label}; whether it is best beyond noise is not known."
    tied = [label for label, gain in gains.items() if gain.sign == 0]
    if any(gain.by < 0 for gain in gains.values()):
        why = f"no method has a better {contest.mean_words} beyond noise, and none of those within noise has fewer groups"
    elif tied:
        why = f"it has the best {contest.mean_words}; within noise of it: {', '.join(tied)}"
    else:
        why = f"its {contest.mean_words} is the best, beyond noise"
    rivals = [one for one in others if one.method in BASELINES or one is contest.focus]
    better = {
        one.label: [c for c in contest.clients if (g := contest.gain(one, best, c)) and g.sign == 1]
        for one in rivals
    }
    but = "; ".join(
        f"{label} is better beyond noise for {who(ids)}" for label, ids in better.items() if ids
    )
    below = [one.client for one in left_below(contest, best)]
    whom = "" if but else " for all clients"
    whom = f" except for {who(below)}, below always predicting the same" if below else whom
    return f"Use {best.label}{whom}: {why}.{f' But {but}.' if but else ''}"


def _noise(contest: Contest) -> str:
    if contest.by_tests:
        said = (
            f"A difference is within noise below 1.96·sqrt(2·min(p, 1 − p)/n) + 1/n, for n {contest.unit} and p the mean of "
            "both values: equally good models exceed this in at most 5 % of tests, however their errors are related."
        )
        return f"{said}{_shared_tests(contest)}"
    mean = f"A difference of means is within noise if its 95 % interval over the {len(contest.seeds)} seeds contains 0"
    if len(contest.seeds) < FEW:
        mean = f"With fewer than {FEW} seeds, a difference of means counts if its 95 % interval over the clients is beyond 0"
        if contest.shares_tests:
            mean = f"With fewer than {FEW} seeds, noise of a mean is not known, because clients share test examples"
    if len(contest.seeds) > 1:
        single = f"That of one client is within noise if its 95 % interval over the {len(contest.seeds)} seeds contains 0."
        data = {each.data for each in contest.entries[0].trials.values()}
        if len(data) == 1 and data != {""}:
            single += (
                " All seeds have the same test examples; noise of their choice is not included."
            )
        return f"{mean}. {single}"
    why = (
        "the sizes of test sets are not recorded"
        if contest.metric in SHARES
        else f"{contest.metric} has no standard error"
    )
    return f"{mean}. For single clients noise is not known: {why}, and there is one seed."


def _shared_tests(contest: Contest) -> str:
    """Return how test examples that clients share count in the mean over clients, as a further sentence."""
    known = [each.testers for one in contest.entries for each in one.trials.values()]
    if len(contest.clients) < 2:
        return ""
    if None in known:
        return " Whether clients share test examples is not recorded; the mean over clients is noisier if they do."
    shared = any(value > 1 for table in known if table is not None for value in table.values())
    return (
        " In the mean over clients, a test example that several of them have counts once."
        if shared
        else ""
    )


def _missing(contest: Contest) -> tuple[str, str]:
    """Return which baselines are not there, as a sentence, and the command that records them."""
    there = {one.method for one in contest.entries} | {
        label.partition(" ")[0] for label in contest.left_out
    }
    names = [name for name in BASELINES if name not in there]
    if not names:
        return "", ""
    what = " and with ".join(f"{BASELINES[name]} ({name})" for name in names)
    said = f"There is no run to compare with {what}."
    if contest.said["scenario"] in (FEDERATION, OWN):
        return f"{said} Record one over the same clients.", ""
    run, seeds = Path(contest.focus.first.said["run_dir"]), sorted(contest.focus.trials)
    to = run.with_name(f"{run.name}-baselines") if run.name else Path("../baselines")
    methods = [word for name in names for word in ("--method", name)]
    more = ["--set", f"seeds={seeds}".replace(" ", "")] if len(seeds) > 1 else []
    words = ["coterie", "run", str(run / RUN), *methods, *more, "--out", str(to)]
    it = "it" if len(names) == 1 else "them"
    code = any(
        ":" in str(name)
        for name in (contest.said["scenario"], contest.said["scenario_settings"].get("model", ""))
    )
    trust = " It imports code, so add --trust-code if you trust it." if code else ""
    return (
        f"{said} The command below adds {it}; then report both folders together.{trust}",
        shlex.join(words),
    )


def sentences(said: Mapping[str, Any]) -> list[str]:
    """Return a verdict without its reasons: its warnings, the groups, and the comparison with each baseline.

    Args:
        said: The verdict.
    """
    groups = [who(group) for group in said["groups"][:GROUPS]]
    more = [f"and {len(said['groups']) - GROUPS} more"] if len(said["groups"]) > GROUPS else []
    names = f": {' | '.join([*groups, *more])}." if len(said["groups"]) > 1 else "."
    compared = [said["constant"], *said["better"]] if said["better"] or said["warnings"] else []
    return [
        text
        for text in (
            *said["warnings"],
            f"{said['found'].removesuffix('.')}{names}",
            said["by_time"],
            *compared,
        )
        if text
    ]


def for_client(contest: Contest, one: Entry, client: ClientId) -> str:
    """Return a client's main metric with a method and with the others, as a sentence, or empty if it was not tested."""
    if not (mine := contest.values(one, client)) or len(contest.entries) < 2:
        return ""
    said = [f"{number(mean_value(mine.values()))} with {one.label}"]
    for other in contest.entries:
        if other is not one and (gain := contest.gain(one, other, client)):
            words = {
                None: "noise is not known",
                0: "within noise",
                1: "worse beyond noise",
                -1: "better beyond noise",
            }
            said.append(f"{number(gain.over)} with {other.label} ({words[gain.sign]})")
    size = contest.tests(client)
    tests = (
        f" on {size:g} {contest.unit.removesuffix('s') if size == 1 else contest.unit}"
        if size
        else ""
    )
    return f"Its {contest.metric} in round {contest.round}{tests}: {', '.join(said)}."
