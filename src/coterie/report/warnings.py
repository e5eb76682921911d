"""What must be said before a method is recommended: what learning nothing scores, whom it fails, and what is not decided.

The reference is a constant prediction, see :mod:`coterie.data.constant`. Where records have no
score of it, as in older runs and in federations, nothing is said of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from coterie.pooling import MIN_ROWS_OF_WORST
from coterie.records.shown import ClientId
from coterie.report.contest import Contest
from coterie.report.learning import Fall, still_falling
from coterie.report.limits import limit_sentences
from coterie.report.reference import GroupEvidence
from coterie.report.trials import MethodTrials
from coterie.report.words import count, number, readable_number, sentence

MAX_CLIENTS_IN_WARNING = 12
"""The greatest number of clients that a warning names."""

MAX_NOTED = 2
"""The greatest number of warnings of a method's rounds that are shown."""

MAX_P_OF_EVIDENCE = 1e-3
"""Evidence for groups is shown if its p-value is below this: a run examines its groups in many
rounds."""

MAX_P_OF_EVIDENCE_IF_BELOW = 0.05
"""The same if the recommended method is worse than a constant prediction for some client."""

ROUNDING_OF_CONSTANTS = 1e-6
"""Recorded scores of constant predictions are rounded to this."""


def warnings(contest: Contest) -> list[str]:
    """Return what must be said before a method is recommended, as sentences in the order in which they are shown.

    Args:
        contest: The comparison, with the recommended method first.
    """
    best = contest.methods[0]
    # 1. The methods are not the published ones, or the data are unfit.
    lines = [*limited_lines(contest), *unanswered_lines(contest), *_noted_lines(contest)]
    lines += _data_lines(contest)
    if contest.round is None:
        return lines
    # 2. The recommended method is no better than a constant prediction, or only for some clients.
    constant_warning = no_better(contest, best)
    below = [] if constant_warning else clients_below(contest, best)
    lines += [constant_warning, below_line(contest, best, below), undecided_line(contest, below)]
    lines.append(small_tests_line(contest))
    # 3. One model is recommended against evidence for groups, or the comparison came too early.
    if len(contest.methods) > 1:
        lines.append(evidence_line(contest, best, below))
    lines.append(falling_line(contest))
    return [line for line in lines if line]


def limited_lines(contest: Contest) -> list[str]:
    """Return what limits on single clients changed with each method, one sentence a setting.

    Of several seeds, the first in which they changed something.
    """
    lines = []
    for method in contest.methods:
        limited_trials = [trial for trial in method.trials.values() if trial.limits]
        if limited_trials:
            first_trial = limited_trials[0]
            for text in limit_sentences(first_trial.limits, first_trial.summary["rounds"]):
                lines.append(f"With {method.label}, {text}")
    return lines


def unanswered_lines(contest: Contest) -> list[str]:
    """Return which methods had rounds without a reply, if these are half of the rounds or more."""
    lines = []
    for method in contest.methods:
        for trial in method.trials.values():
            num_rounds = trial.summary["rounds"]
            if 2 * trial.unanswered_rounds >= max(num_rounds, 1):
                lines.append(
                    f"With {method.label}, no reply arrived in {trial.unanswered_rounds} of {num_rounds} rounds, in which "
                    "nothing was learned."
                )
                break
    return lines


def _noted_lines(contest: Contest) -> list[str]:
    """Return what the methods and their engine have warned of in the rounds, by method."""
    lines = []
    for method in contest.methods:
        # Of several seeds, the first one that has something to say.
        warned_trials = [trial for trial in method.trials.values() if trial.warned]
        if not warned_trials:
            continue
        texts = warned_trials[0].warned
        for text in texts[:MAX_NOTED]:
            lines.append(sentence(f"With {method.label}, {text}"))
        if len(texts) > MAX_NOTED:
            further = count(len(texts) - MAX_NOTED, "further warning")
            lines.append(f"With {method.label}, the rounds have {further}.")
    return lines


def _data_lines(contest: Contest) -> list[str]:
    """Return what the data and the settings of all methods warn of, each once."""
    cautions: dict[str, None] = {}
    for method in contest.methods:
        for trial in method.trials.values():
            cautions.update(dict.fromkeys(trial.cautions))
    return [sentence(caution) for caution in cautions]


def reference_line(contest: Contest) -> str:
    """Return what always predicting the same scores; empty if it is not recorded."""
    constant = contest.constant
    score = None if constant is None else contest.mean_score(constant)
    if constant is None or score is None:
        return ""
    num_clients = len(contest.clients)
    over = f" over {count(num_clients, 'client')}" if num_clients > 1 else ""
    prediction = constant.label[:1].upper() + constant.label[1:]
    return f"{prediction} has a {contest.mean_name} of {number(score)}{over}."


def no_better(contest: Contest, method: MethodTrials) -> str:
    """Return that a method is no better than a constant prediction; empty if it is, or this is not known."""
    constant = contest.constant
    if constant is None or contest.beats_constant(method) is not False:
        return ""
    gain = contest.mean_gain(method, constant)
    # Otherwise it would not be known.
    assert gain is not None
    # It may be better, but not significantly.
    degree = "not significantly" if gain.improvement > 0 else "no"
    scores = f"{contest.metric} {number(gain.score)} against {number(gain.rival_score)}"
    return f"{method.label} is {degree} better than {constant.label}: {scores}."


@dataclass(frozen=True)
class ClientBelow:
    """A client for which a method is worse than a constant prediction.

    Attributes:
        client: The client.
        score: Its main metric.
        constant_score: The score of the better constant prediction, see
            :meth:`~coterie.report.contest.Contest.constant_score`.
        is_significant: Whether the difference is significant; None if noise is not known.
    """

    client: ClientId
    score: float
    constant_score: float
    is_significant: bool | None


def clients_below(contest: Contest, method: MethodTrials) -> list[ClientBelow]:
    """Return the clients for which a method is worse than a constant prediction, the worst first."""
    shortfalls = []
    for client in contest.clients:
        scores = contest.seed_scores(method, client)
        constant_score = contest.constant_score(client)
        if not scores or constant_score is None:
            continue
        # The mean over seeds, and how far it is below the constant's.
        score = sum(scores.values()) / len(scores)
        shortfall = constant_score - score
        if contest.summary["better"] == "smaller":
            shortfall = -shortfall
        if shortfall <= ROUNDING_OF_CONSTANTS:
            continue
        # Noise of a single client is known here if it follows from the size of its test set.
        is_significant = None
        if contest.noise_is_of_tests:
            noise = contest.noise_of_shares({client: (score, constant_score)})
            is_significant = shortfall > noise
        shortfalls.append((shortfall, ClientBelow(client, score, constant_score, is_significant)))
    shortfalls.sort(key=lambda pair: -pair[0])
    return [client_below for _, client_below in shortfalls]


def below_line(contest: Contest, method: MethodTrials, below: Sequence[ClientBelow]) -> str:
    """Return for which clients a method is worse than a constant prediction, with both scores."""
    if not below:
        return ""
    clients = f"{len(below)} of {count(len(contest.clients), 'client')}"
    scores = []
    for client_below in below[:MAX_CLIENTS_IN_WARNING]:
        constant_score = number(client_below.constant_score)
        scores.append(f"{client_below.client} {number(client_below.score)} ({constant_score})")
    return (
        f"With {method.label}, {clients} score worse than always predicting the same (in brackets: "
        "the better constant prediction, from all training data or from the client's own): "
        f"{', '.join(scores)}{_and_more(below)}."
    )


def undecided_line(contest: Contest, below: Sequence[ClientBelow]) -> str:
    """Return for which of these clients the test set is too small to decide, with its size."""
    undecided = []
    for client_below in below:
        if client_below.is_significant is False:
            undecided.append(client_below.client)
    if not undecided:
        return ""
    clients_with_size = []
    for client in undecided[:MAX_CLIENTS_IN_WARNING]:
        clients_with_size.append(f"{client} ({_size_in_words(contest, client)})")
    return (
        f"Test sets too small to decide this: {', '.join(clients_with_size)}{_and_more(undecided)}."
    )


def small_tests_line(contest: Contest) -> str:
    """Return which clients have so few test rows that the worst client is a matter of chance; empty if none has."""
    sizes: dict[ClientId, float] = {}
    for client in contest.clients:
        size = contest.test_size(client)
        if size is not None and size < MIN_ROWS_OF_WORST:
            sizes[client] = size
    # A few rows of a mean over all clients do not matter; a worst value is always one of them.
    if not sizes or len(contest.clients) < 2:
        return ""
    smallest_first = sorted(sizes, key=sizes.__getitem__)
    clients_with_size = [
        f"{client} ({_size_in_words(contest, client)})"
        for client in smallest_first[:MAX_CLIENTS_IN_WARNING]
    ]
    have = "has" if len(sizes) == 1 else "have"
    return (
        f"{len(sizes)} of {count(len(contest.clients), 'client')} {have} fewer than "
        f"{MIN_ROWS_OF_WORST} test {contest.test_unit.removeprefix('test ').replace('examples', 'rows')}, "
        f"so the worst client is mostly chance: {', '.join(clients_with_size)}"
        f"{_and_more(smallest_first)}."
    )


def _size_in_words(contest: Contest, client: ClientId) -> str:
    """Return the size of a client's test set: "8 rows", "1 subject"."""
    size = contest.test_size(client)
    # The sentence speaks of test sets already.
    unit = contest.test_unit.removeprefix("test ")
    noun = "rows" if unit == "examples" else unit
    return f"{size:g} {noun.removesuffix('s') if size == 1 else noun}"


def _and_more(clients: Sequence[object]) -> str:
    unnamed = len(clients) - MAX_CLIENTS_IN_WARNING
    return f", and {unnamed} more" if unnamed > 0 else ""


def evidence_line(contest: Contest, best: MethodTrials, below: Sequence[ClientBelow]) -> str:
    """Return the strongest evidence for groups, if the recommended method has one group.

    Empty if the evidence is weak.
    """
    # A method with groups needs no evidence for them.
    if best.mean_groups > 1:
        return ""
    strongest: GroupEvidence | None = None
    label = ""
    for method in contest.methods:
        for trial in method.trials.values():
            # Of equally strong ones the first.
            if trial.evidence and (strongest is None or trial.evidence.p < strongest.p):
                strongest = trial.evidence
                label = method.label
    # Weaker evidence counts if one model fails some client.
    max_p_value = MAX_P_OF_EVIDENCE_IF_BELOW if below else MAX_P_OF_EVIDENCE
    if strongest is None or strongest.p >= max_p_value:
        return ""
    # The text has the p-value where the method compared it with a level.
    p_value = readable_number("p", strongest.p)
    if p_value not in strongest.text:
        p_value = p_value if p_value.startswith("<") else f"= {p_value}"
        label = f"p {p_value}, {label}"
    return (
        f"{best.label} has one model for all. Strongest evidence for groups "
        f"({label}, round {strongest.round}): {strongest.text}"
    )


def falling_line(contest: Contest) -> str:
    """Return which methods have not finished learning, with the fall of their losses; empty if all have."""
    falls = []
    for method in contest.methods:
        fall = _fall_with_most_seeds(contest, method)
        if fall is not None:
            losses = f"{number(fall.before)} to {number(fall.after)}"
            falls.append(f"{losses} in rounds {fall.first} to {fall.last} with {method.label}")
    if not falls:
        return ""
    models_have = "this model has" if len(contest.methods) == 1 else "these models have"
    return (
        f"Losses still fall ({'; '.join(falls)}): {models_have} not finished learning, "
        "and more rounds may change the result."
    )


def _fall_with_most_seeds(contest: Contest, method: MethodTrials) -> Fall | None:
    """Return the fall with the first seed of those whose losses still fall, if these are most seeds."""
    falls = []
    for seed in contest.seeds:
        losses = method.trials[seed].losses_until(contest.round)
        fall = still_falling(losses)
        if fall is not None:
            falls.append(fall)
    return falls[0] if 2 * len(falls) > len(contest.seeds) else None
