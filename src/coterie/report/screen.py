"""One screen about a run: what was decided, on how many examples, how sure that is, what is open, and what would decide it.

It has recorded numbers only: those of a race's candidates (:mod:`coterie.report.candidates`), and
the scores of the clients' tests (:mod:`coterie.report.contest`).
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from coterie.records.shown import ClientId
from coterie.report.candidates import MAX_TIMES_AS_MANY, SIGNIFICANT, Candidates, ComparedCandidates
from coterie.report.contest import BASELINES, Contest, Gain
from coterie.report.headline import worst_client
from coterie.report.sureness import beyond_chance, same_over_seeds
from coterie.report.trials import MethodTrials
from coterie.report.warnings import warnings
from coterie.report.words import count, members, number, rounds

QUANTILES = (0.1, 0.5, 0.9)
"""The quantiles over clients that are shown, of the main metric."""

MAX_GROUPS_NAMED = 6
"""The greatest number of groups whose clients a screen names."""

MAX_SPANS = 6
"""The greatest number of single clients and ranges of a group that a screen names."""

MAX_OPEN = 4
"""The greatest number of open questions on a screen."""

MAX_LINES = 24
"""Lines of a screen, as far as fewer open questions make it so short; its title is one more."""

LABEL_WIDTH = 10
"""Columns of the words at the left of a screen."""


def screen(
    contest: Contest, method: MethodTrials, over_seeds: MethodTrials | None = None
) -> dict[str, Any]:
    """Return what one screen says of a method.

    Args:
        contest: The method among the baselines that were run beside it.
        method: The method.
        over_seeds: The method with all seeds that were run; None if these are its own.

    Returns:
        Lists of sentences: decided (which models the clients use), sure (how sure that is), tests
        (how it compares with the baselines on test examples), open (what was not decided, and what
        would decide it), changes (how often the candidate in use changed; empty for other methods),
        worst (the client with the worst score, and what it has with the baselines) and warnings. And
        scores, None if no round was tested: metric, round, unit and tests (the number of test
        examples), and a row for the method, each baseline and always predicting the same: name,
        by_clients (the mean over clients), by_examples (every test example counts the same),
        quantiles (over clients, as in :data:`QUANTILES`), worst and worst_client.
    """
    candidates = method.first.candidates
    return {
        "decided": _decided(method, candidates),
        "sure": _sure(contest, method, over_seeds or method),
        "tests": _test_differences(contest, method),
        "open": _open(contest, method, over_seeds or method),
        "changes": [] if candidates is None else [_changes(candidates)],
        "worst": _worst(contest, method),
        "warnings": warnings(contest),
        "scores": _scores(contest, method),
    }


# ----------------------------------------------------------------------------------------------------
# What was decided.


def _decided(method: MethodTrials, candidates: Candidates | None) -> list[str]:
    """Which models the clients use, who is in which group, and who has a personal model."""
    summary = method.first.summary
    groups = summary["groups"]
    num_clients = sum(map(len, groups))
    all_alone = len(groups) == num_clients > 1
    if all_alone and (candidates is None or candidates.is_local):
        models = f"Training alone: each of {num_clients} clients has a model of its own"
    elif len(groups) == 1:
        models = (
            "One model for one client"
            if num_clients == 1
            else f"One model for all {num_clients} clients"
        )
    else:
        models = f"A model for each of {len(groups)} groups, {count(num_clients, 'client')} in all"
    in_use = ""
    if candidates is not None:
        since = "from the start"
        if candidates.lead_rounds:
            since = f"since round {candidates.lead_rounds[-1]}"
        in_use = f", {since}: {candidates.in_use}"
    seed = f" (seed {min(method.trials)})" if len(method.trials) > 1 else ""
    sentences = [f"{models}{in_use}{seed}."]
    if 1 < len(groups) < num_clients:
        sentences.append(_groups_in_words(groups))
    personal = summary["personal"]
    if personal and len(personal) == num_clients:
        sentences.append("Each client uses its personal model.")
    elif personal:
        verb = "uses a personal model" if len(personal) == 1 else "use personal models"
        names = _names(personal)
        sentences.append(f"{len(personal)} of {count(num_clients, 'client')} {verb}: {names}.")
    return sentences


def _groups_in_words(groups: Sequence[Sequence[Any]]) -> str:
    """The groups with their clients, or only their sizes if there are many."""
    if len(groups) > MAX_GROUPS_NAMED:
        sizes = sorted(map(len, groups), reverse=True)
        return f"They have {sizes[-1]} to {count(sizes[0], 'client')}."
    return f"{' | '.join(map(_names, groups))}."


def _names(clients: Iterable[ClientId]) -> str:
    """Some clients, without their number."""
    return members(clients, max_spans=MAX_SPANS).rpartition(" (")[0]


def _changes(candidates: Candidates) -> str:
    """How often the candidate in use changed."""
    if not candidates.lead_rounds:
        return "The clients have used the first candidate in all rounds."
    times = len(candidates.lead_rounds)
    how_often = "once" if times == 1 else f"{times} times"
    return f"The candidate in use changed {how_often}, in {rounds(candidates.lead_rounds)}."


# ----------------------------------------------------------------------------------------------------
# How sure it is.


def _sure(contest: Contest, method: MethodTrials, over_seeds: MethodTrials) -> list[str]:
    """The differences of held-out losses on which the decision rests, and whether clients differ beyond chance."""
    candidates = method.first.candidates
    sentences = []
    if candidates is not None:
        sentences += _held_out_differences(candidates)
    if len(method.first.summary["groups"]) > 1 and method.name not in BASELINES:
        reasons = [beyond_chance(method)]
        if len(over_seeds.trials) > 1:
            reasons.append(same_over_seeds(over_seeds))
        reasons_in_words = "; ".join(filter(None, reasons))
        if reasons_in_words:
            sentences.append(f"{reasons_in_words[:1].upper()}{reasons_in_words[1:]}.")
    return sentences


def _held_out_differences(candidates: Candidates) -> list[str]:
    """How much better the candidate in use is than each other one: one sentence for each number of examples."""
    phrases_of_number: dict[int | None, list[str]] = {}
    for comparison in candidates.compared:
        direction = "lower" if comparison.gain > 0 else "higher"
        phrases_of_number.setdefault(comparison.num_examples, []).append(
            f"{direction} by {abs(comparison.gain):.3g} ± {comparison.error:.2g} than with "
            f"{comparison.rival} in round {comparison.round}: {comparison.sureness}"
        )
    sentences = []
    for num_examples, phrases in phrases_of_number.items():
        examples = (
            "held-out examples" if num_examples is None else f"{num_examples} held-out examples"
        )
        sentences.append(f"On {examples}, the loss is {'; '.join(phrases)}.")
    if candidates.same_models:
        same = " and ".join([candidates.in_use, *candidates.same_models])
        sentences.append(f"The same models so far, so there is nothing to choose: {same}.")
    return sentences


SURENESS_OF_SIGN: Mapping[int | None, str] = {
    1: "beyond chance",
    0: "may be chance",
    -1: "beyond chance",
    None: "whether by chance is not known",
}
"""Sign of a gain -> how sure the difference is."""


def _test_differences(contest: Contest, method: MethodTrials) -> list[str]:
    """How much better the method is than the baselines on test examples, in one sentence."""
    phrases = []
    for baseline in contest.baselines(method):
        gain = contest.mean_gain(method, baseline)
        if gain is None:
            continue
        if not gain.improvement:
            phrases.append(f"the same as with {BASELINES[baseline.name]}")
            continue
        direction = "higher" if gain.score > gain.rival_score else "lower"
        difference = f"{number(abs(gain.improvement))} {direction} than"
        phrases.append(
            f"{difference} with {BASELINES[baseline.name]}: {SURENESS_OF_SIGN[gain.sign]}"
        )
    if not phrases:
        return []
    return [f"On test examples, the {contest.mean_name} is {'; '.join(phrases)}."]


# ----------------------------------------------------------------------------------------------------
# What is open, and what would decide it.


def _open(contest: Contest, method: MethodTrials, over_seeds: MethodTrials) -> list[str]:
    """What was not decided, and how many examples, rounds or seeds would decide it."""
    candidates = method.first.candidates
    sentences = []
    if candidates is not None:
        for comparison in candidates.compared:
            if not comparison.is_decided:
                sentences.append(_undecided(candidates.in_use, comparison))
        if candidates.open_comparisons:
            sentences.append(_rounds_needed(candidates))
    for baseline in contest.baselines(method):
        gain = contest.mean_gain(method, baseline)
        if gain is not None and gain.sign == 0 and gain.improvement:
            question = f"Whether tests differ from {BASELINES[baseline.name]}"
            sentences.append(f"{question}: {tests_needed(contest, gain)}.")
    missing = [BASELINES[name] for name in BASELINES if contest.find(name) is None]
    if method.name not in BASELINES and missing:
        sentences.append(f"How it compares with {' and '.join(missing)}: not run in this folder.")
    if len(over_seeds.trials) == 1:
        sentences.append("Whether other seeds decide the same: one was run; --seeds 3 would tell.")
    return sentences


def _undecided(in_use: str, comparison: ComparedCandidates) -> str:
    """That two candidates do not differ beyond chance, and with how many held-out examples they would."""
    question = f"Which of {in_use} and {comparison.rival} is better"
    if not comparison.gain:
        return f"{question}: the losses are equal."
    if comparison.num_errors >= SIGNIFICANT:
        return f"{question}: the other one has the lower held-out loss now; more rounds would tell."
    needed = comparison.examples_needed
    if needed is None or comparison.num_examples is None:
        return f"{question}: more held-out examples would tell."
    if needed > MAX_TIMES_AS_MANY * comparison.num_examples:
        max_difference = abs(comparison.gain) + 2 * comparison.error
        return f"{question}: as good as equal, the losses differ by less than {max_difference:.2g}."
    return (
        f"{question}: about {_rounded(needed)} held-out examples, not {comparison.num_examples}, "
        "would decide if the difference stays."
    )


def _rounds_needed(candidates: Candidates) -> str:
    """When a race that is open ends."""
    in_rounds = ""
    if candidates.rounds_to_end is not None:
        in_rounds = f", in about {count(candidates.rounds_to_end, 'more round')}"
    return (
        f"The choice itself: it ends after {candidates.reports_to_end} reports of each client "
        f"(2 patience){in_rounds}."
    )


def tests_needed(contest: Contest, gain: Gain) -> str:
    """Return how many test examples would decide whether a method is better than another, as the end of a sentence.

    Args:
        contest: The comparison.
        gain: The gain of the method, which is not significant.
    """
    if not gain.improvement:
        return "the scores are equal"
    num_tests = _num_tests(contest)
    if gain.noise is None or not num_tests or not contest.noise_is_of_tests:
        return "more seeds, or more clients, would tell"
    # Noise falls with the root of the number of test examples, or faster.
    times_as_many = (gain.noise / abs(gain.improvement)) ** 2
    if times_as_many > MAX_TIMES_AS_MANY:
        return f"as good as equal, {number(gain.noise)} at most"
    needed = _rounded(math.ceil(num_tests * times_as_many))
    return f"about {needed} {contest.test_unit}, not {num_tests:g}, would decide if the difference stays"


def _rounded(needed: int) -> str:
    """A number of examples with two significant digits: it is a rough estimate."""
    return f"{float(f'{needed:.2g}'):,.0f}"


# ----------------------------------------------------------------------------------------------------
# Scores of the clients.


def _num_tests(contest: Contest) -> float | None:
    """The number of test examples of all clients; None if not recorded."""
    sizes = [contest.test_size(client) for client in contest.clients]
    if not sizes or None in sizes:
        return None
    return math.fsum(size for size in sizes if size is not None)


def _scores(contest: Contest, method: MethodTrials) -> dict[str, Any] | None:
    """The means, quantiles and worst client of the method, of each baseline, and of a constant prediction."""
    if contest.round is None:
        return None
    shown = [method, *contest.baselines(method)]
    if contest.constant is not None:
        shown.append(contest.constant)
    return {
        "metric": contest.metric,
        "round": contest.round,
        "unit": contest.test_unit,
        "tests": _num_tests(contest),
        "rows": [_row(contest, each) for each in shown],
    }


def _row(contest: Contest, method: MethodTrials) -> dict[str, Any]:
    """The scores of the clients with one method."""
    scores = []
    sizes = []
    for client in contest.clients:
        score = contest.client_score(method, client)
        if score is not None:
            scores.append(score)
            sizes.append(contest.test_size(client))
    by_examples = None
    if contest.is_pooled:
        by_examples = contest.mean_score(method)
    elif scores and None not in sizes:
        by_examples = float(np.average(scores, weights=np.array(sizes, dtype=np.float64)))
    worst_of_all, worst = worst_client(contest, method)
    return {
        "name": method.label,
        "by_clients": float(np.mean(scores)) if scores else None,
        "by_examples": by_examples,
        "quantiles": np.quantile(scores, QUANTILES).tolist() if scores else [],
        "worst": worst,
        "worst_client": worst_of_all,
    }


def _worst(contest: Contest, method: MethodTrials) -> list[str]:
    """The client with the worst score with the method, and its scores with the baselines."""
    client, worst = worst_client(contest, method)
    baselines = contest.baselines(method)
    if client is None or worst is None or not baselines or len(contest.clients) < 2:
        return []
    scores = [f"{number(worst)} with {method.label}"]
    signs = []
    for baseline in baselines:
        gain = contest.client_gain(method, baseline, client)
        if gain is not None:
            scores.append(f"{number(gain.rival_score)} with {BASELINES[baseline.name]}")
            signs.append(gain.sign)
    size = contest.test_size(client)
    unit = "" if size is None else f" on {size:g} {contest.test_unit}"
    remark = "; with so few, this may be chance" if signs and not any(signs) and unit else ""
    return [f"Client {client} has {', '.join(scores)}{unit}{remark}."]


# ----------------------------------------------------------------------------------------------------
# The screen as text.


def lines(values: Mapping[str, Any], width: int) -> list[str]:
    """Return the screen as lines of text, with as many open questions as fit.

    Args:
        values: What :func:`screen` returned.
        width: The greatest number of columns.
    """
    for max_open in range(MAX_OPEN, 0, -1):
        text_lines = _lines(values, width, max_open)
        if len(text_lines) <= MAX_LINES:
            break
    return text_lines


def _lines(values: Mapping[str, Any], width: int, max_open: int) -> list[str]:
    """The screen with at most this number of open questions."""
    parts = [
        ("Beware", _first(values["warnings"], 1, "further warning")),
        ("Decided", values["decided"]),
        ("How sure", [*values["sure"], *values["tests"]]),
        ("Open", _first(values["open"], max_open, "further question")),
        ("Changes", values["changes"]),
        ("Worst", values["worst"]),
    ]
    text_lines = []
    for label, sentences in parts:
        for position, sentence in enumerate(sentences):
            text_lines += textwrap.wrap(
                sentence,
                width,
                initial_indent=("" if position else label).ljust(LABEL_WIDTH),
                subsequent_indent=" " * (LABEL_WIDTH + 2),
                break_long_words=False,
                break_on_hyphens=False,
            )
    if values["scores"] is not None:
        text_lines += ["", *_table(values["scores"])]
    return text_lines


def _first(sentences: Sequence[str], max_sentences: int, noun: str) -> list[str]:
    """The first sentences; the last of them says how many more there are."""
    hidden = len(sentences) - max_sentences
    if hidden <= 0:
        return list(sentences)
    shown = list(sentences[:max_sentences])
    return [*shown[:-1], f"{shown[-1]} ({count(hidden, noun)} in --json.)"]


def _table(scores: Mapping[str, Any]) -> list[str]:
    """The scores as a table: a row for each method."""
    tests = "" if scores["tests"] is None else f" on {scores['tests']:g} {scores['unit']}"
    title = f"{scores['metric']} in round {scores['round']}{tests}"
    quantile_names = [f"{quantile:.0%}" for quantile in QUANTILES]
    headings = ["", "by clients", "by examples", *quantile_names, "worst client"]
    cells = []
    for row in scores["rows"]:
        values = [row["by_clients"], row["by_examples"], *row["quantiles"], row["worst"]]
        shown = ["-" if value is None else number(value) for value in values]
        cells.append([row["name"], *shown])
    widths = [max(map(len, column)) for column in zip(headings, *cells, strict=True)]
    table_lines = [title]
    for row_cells in (headings, *cells):
        name, *numbers = row_cells
        aligned = [
            text.rjust(column_width) for text, column_width in zip(numbers, widths[1:], strict=True)
        ]
        table_lines.append("  ".join([name.ljust(widths[0]), *aligned]).rstrip())
    return table_lines
