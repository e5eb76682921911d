"""What must be said before a method is recommended: what learning nothing scores, whom it fails, and what is not decided.

The reference is a constant prediction, see :mod:`coterie.data.constant`. Where records have no
score of it, as in older runs and in federations, nothing is said of it.
"""

from __future__ import annotations

from dataclasses import dataclass

from coterie.records.shown import ClientId
from coterie.report.contest import Contest, Entry
from coterie.report.learning import still_falling
from coterie.report.words import count, number, sentence, short

NAMED = 12
"""Most clients that are named in a sentence."""

SURE = 1e-3
"""Evidence for groups is shown if its p-value is below this: a run examines its groups in many
rounds."""

ROUNDED = 1e-6
"""Recorded scores of constant predictions are rounded to this."""


def warnings(contest: Contest) -> list[str]:
    """Return what must be said before a method is recommended, as sentences in the order in which they are shown.

    What limits on single clients changed, so that a method is not the published one; what the data
    warn of; that the recommended method is no better than always predicting the same, or leaves
    clients below that; that test parts are too small to decide; the strongest evidence for groups
    where one model is recommended; and that losses still fall.

    Args:
        contest: The comparison, with the recommended method first.
    """
    best = contest.entries[0]
    said = limited_lines(contest)
    said += [
        sentence(text)
        for text in dict.fromkeys(text for each in best.trials.values() for text in each.cautions)
    ]
    if contest.round is None:
        return said
    nothing = no_better(contest, best)
    below = [] if nothing else left_below(contest, best)
    said += [
        nothing,
        below_line(contest, best, below),
        undecided_line(contest, below),
        evidence_line(contest, best, below) if len(contest.entries) > 1 else "",
        falling_line(contest),
    ]
    return [text for text in said if text]


def limited_lines(contest: Contest) -> list[str]:
    """Return what limits on single clients changed with each method, one sentence a setting; of several seeds, the first."""
    said = []
    for entry in contest.entries:
        changed = next((trial.limited for trial in entry.trials.values() if trial.limited), ())
        said += [f"With {entry.label}, {text}" for text in changed]
    return said


def reference_line(contest: Contest) -> str:
    """Return what always predicting the same scores, as the first line of a comparison; empty if it is not recorded."""
    constant = contest.constant
    value = None if constant is None else contest.mean(constant)
    if constant is None or value is None:
        return ""
    of = f" over {count(len(contest.clients), 'client')}" if len(contest.clients) > 1 else ""
    return f"{constant.label[:1].upper()}{constant.label[1:]} has a {contest.mean_words} of {number(value)}{of}."


def no_better(contest: Contest, entry: Entry) -> str:
    """Return the sentence that a method is no better than a constant prediction; empty if it is, or this is not known."""
    if contest.learned(entry) is not False or contest.constant is None:
        return ""
    gain = contest.mean_gain(entry, contest.constant)
    assert gain is not None  # or it would not be known
    within = "" if gain.by <= 0 else ", which is within noise"
    values = f"{contest.metric} {number(gain.of)} against {number(gain.over)}{within}"
    return f"{entry.label} is no better than {contest.constant.label}: {values}."


@dataclass(frozen=True)
class Below:
    """A client that a method leaves below a constant prediction.

    Attributes:
        client: The client.
        value: Its main metric.
        floor: That of the constant prediction, of all clients' training data or of its own,
            whichever is better.
        decided: Whether the difference is beyond noise; None if noise is not known.
    """

    client: ClientId
    value: float
    floor: float
    decided: bool | None


def left_below(contest: Contest, entry: Entry) -> list[Below]:
    """Return the clients that a method leaves below a constant prediction, the farthest below first."""
    found = []
    for client in contest.clients:
        values, floor = contest.values(entry, client), contest.floor(client)
        if not values or floor is None:
            continue
        value = sum(values.values()) / len(values)
        by = floor - value if contest.said["better"] == "greater" else value - floor
        if by > ROUNDED:
            noise = contest.noise_of_shares({client: (value, floor)}) if contest.by_tests else None
            found.append((by, Below(client, value, floor, None if noise is None else by > noise)))
    return [one for _, one in sorted(found, key=lambda pair: -pair[0])]


def below_line(contest: Contest, entry: Entry, below: list[Below]) -> str:
    """Return which clients a method leaves below a constant prediction, with their values and those of the prediction."""
    if not below:
        return ""
    each = [f"{one.client} {number(one.value)} ({number(one.floor)})" for one in below[:NAMED]]
    more = f", and {len(below) - NAMED} more" if len(below) > NAMED else ""
    clients = f"{len(below)} of {count(len(contest.clients), 'client')}"
    what = "always predicting the same (in brackets: the better of the prediction of all training data and of their own)"
    return f"{entry.label} leaves {clients} below {what}: {', '.join(each)}{more}."


def undecided_line(contest: Contest, below: list[Below]) -> str:
    """Return for which of these clients the test part is too small to decide, with its size."""
    small = [one.client for one in below if one.decided is False]
    if not small:
        return ""
    unit = contest.unit.removeprefix("test ")
    each = [
        f"{contest.tests(client):g} test {_rows(unit, contest.tests(client))} at {client}"
        for client in small[:NAMED]
    ]
    more = f", and {len(small) - NAMED} more clients" if len(small) > NAMED else ""
    return f"Not decided: {', '.join(each)}{more}."


def _rows(unit: str, size: float | None) -> str:
    noun = "rows" if unit == "examples" else unit
    return noun.removesuffix("s") if size == 1 else noun


def evidence_line(contest: Contest, best: Entry, below: list[Below]) -> str:
    """Return the strongest evidence for groups, if the recommended method has one group; empty if it is weak."""
    if best.groups > 1:
        return ""
    found = [
        (one.evidence, entry.label)
        for entry in contest.entries
        for one in entry.trials.values()
        if one.evidence
    ]
    if not found:
        return ""
    evidence, label = min(found, key=lambda pair: pair[0].p)
    if evidence.p >= (0.05 if below else SURE):
        return ""
    what = f"{best.label} has one model for all. Strongest evidence for groups"
    return f"{what}: p = {short(evidence.p)} ({label}, round {evidence.round}): {evidence.text}"


def falling_line(contest: Contest) -> str:
    """Return which methods have not finished learning, with the fall of their losses; empty if all have."""
    falls = []
    for entry in contest.entries:
        each = [
            still_falling(entry.trials[seed].losses_until(contest.round)) for seed in contest.seeds
        ]
        fall = next((one for one in each if one is not None), None)
        if fall is not None and 2 * sum(one is not None for one in each) > len(each):
            said = f"{number(fall.before)} to {number(fall.after)} in rounds {fall.first} to {fall.last} with {entry.label}"
            falls.append(said)
    if not falls:
        return ""
    what = "this model has" if len(contest.entries) == 1 else "these models have"
    return f"Losses still fall ({'; '.join(falls)}): {what} not finished learning, and more rounds may change the result."
