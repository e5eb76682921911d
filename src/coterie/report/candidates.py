"""How a race chose the models in use, from its notes: which candidate, by how much, on how many examples, and what is open.

``race`` and ``auto`` record the differences of their candidates' held-out losses in each round in
which clients report them, see :mod:`coterie.methods.race`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Literal

from coterie.methods import made
from coterie.methods._named import places_in
from coterie.methods.auto import Auto
from coterie.methods.independent import Independent
from coterie.methods.race import HELD_OUT_EXAMPLES, REPORTS, Race, recorded_differences
from coterie.records.shown import Line
from coterie.settings import UserError

End = Literal["", "evidence", "expected", "time"]
"""Why two candidates are no longer compared: one is significantly behind, one is expected to stay
behind, or they were compared for long enough. Empty while they are."""

END_OF_CRITERION: Mapping[str, End] = {
    "held_out_loss": "evidence",
    "expected_loss": "expected",
    "reports": "time",
}
"""Key of the criterion by which a candidate ended -> why."""

CLEARLY_SIGNIFICANT = 4.0
"""A difference of so many standard errors is clear, whatever the number of looks at it."""

SIGNIFICANT = 2.0
"""A difference of so many standard errors is beyond chance, at the usual 5 %."""

MAX_TIMES_AS_MANY = 100
"""Where more than so many times as many examples would be needed, two models are as good."""


@dataclass(frozen=True)
class ComparedCandidates:
    """The last comparison of the candidate in use with another.

    Attributes:
        rival: The other candidate, as sentences name it.
        gain: Its held-out loss less that of the candidate in use: how much better that one is.
        error: The standard error of ``gain``, by the draw of the held-out examples.
        round: The round of the comparison.
        num_examples: Number of held-out examples; None if it is not recorded.
        end: Why the comparison ended.
    """

    rival: str
    gain: float
    error: float
    round: int
    num_examples: int | None
    end: End

    @property
    def num_errors(self) -> float:
        """The difference in standard errors."""
        return abs(self.gain) / self.error if self.error > 0 else math.inf

    @property
    def is_decided(self) -> bool:
        """Whether the difference is beyond chance and in favour of the candidate in use."""
        return self.gain > 0 and self.num_errors >= SIGNIFICANT

    @property
    def sureness(self) -> str:
        """How sure the difference is, in plain words."""
        if self.num_errors >= CLEARLY_SIGNIFICANT:
            return "clear"
        if self.num_errors >= SIGNIFICANT:
            return "beyond chance"
        return "likely, but may be chance" if self.num_errors >= 1 else "no more than chance"

    @property
    def examples_needed(self) -> int | None:
        """With how many held-out examples this difference would be beyond chance; None if not known, or if it is.

        The standard error falls with the root of the number of examples.
        """
        if self.num_examples is None or not self.gain or self.num_errors >= SIGNIFICANT:
            return None
        return math.ceil(self.num_examples * (SIGNIFICANT / self.num_errors) ** 2)


@dataclass(frozen=True)
class Candidates:
    """The candidates of a race after some round.

    Attributes:
        in_use: The candidate whose models the clients use, as sentences name it.
        is_local: Whether it is training alone.
        lead_rounds: The rounds in which another candidate came into use.
        compared: The last comparison with each other candidate.
        same_models: The candidates that have not differed from the one in use so far.
        reports: Reports of each client, on average, at the last comparison; None if not recorded.
        reports_to_end: After so many, one candidate goes on.
        rounds_to_end: In about how many more rounds that is; None if nothing is open, or not known.
    """

    in_use: str
    is_local: bool
    lead_rounds: Sequence[int]
    compared: Sequence[ComparedCandidates]
    same_models: Sequence[str]
    reports: int | None
    reports_to_end: int
    rounds_to_end: int | None

    @property
    def open_comparisons(self) -> list[ComparedCandidates]:
        """The comparisons that have not ended."""
        return [comparison for comparison in self.compared if not comparison.end]


def race_of(method_table: Mapping[str, Any]) -> Race | None:
    """Return the race that a method runs; None if it runs none, or has methods of a user's own.

    Args:
        method_table: The method's table in ``run.toml``.
    """
    # Reading a record never imports code that the record names.
    if method_table["name"] not in (Auto.name, Race.name) or any(places_in(method_table)):
        return None
    settings = {
        setting: None if value == "none" else value for setting, value in method_table.items()
    }
    # The record may be of another version, with other settings.
    with suppress(UserError, TypeError, ValueError):
        method: Auto | Race = made(settings)
        return method.race if isinstance(method, Auto) else method
    return None


def candidates(method_table: Mapping[str, Any], lines: Sequence[Line]) -> Candidates | None:
    """Return how a race stands after the last of some rounds; None for other methods.

    Args:
        method_table: The method's table in ``run.toml``.
        lines: The completed rounds.
    """
    race = race_of(method_table)
    if race is None:
        return None
    names = race.display_names
    arms = list(names)
    in_use = arms[0]
    lead_rounds: list[int] = []
    last_comparisons: dict[tuple[str, str], _Recorded] = {}
    # Round of a comparison -> reports of each client until then, where that is recorded.
    reports_at: dict[int, int] = {}
    last_round = 0
    for line in lines:
        for note in line["notes"]:
            # Whose models the clients use; the first candidate begins.
            position = note["labels"].get("arm")
            if note["effect"] == "serves" and position is not None and position < len(arms):
                in_use = arms[position]
                lead_rounds.append(line["round"])
            differences = recorded_differences(note["numbers"])
            if not differences:
                continue
            last_round = line["round"]
            if REPORTS in note["labels"]:
                reports_at[last_round] = note["labels"][REPORTS]
            for pair, (difference, error) in differences.items():
                last_comparisons[pair] = _recorded(
                    last_comparisons.get(pair), line["round"], difference, error, note
                )
    # The choice is settled when clients hold nothing out any more.
    is_open = bool(lines) and last_round == lines[-1]["round"]
    compared = []
    same_models = []
    for arm in arms:
        if arm == in_use:
            continue
        # The loss of the simpler arm less that of the other is the gain of the other. Two arms that
        # run together are compared as soon as their models differ.
        if (arm, in_use) in last_comparisons:
            recorded = last_comparisons[arm, in_use]
            gain = recorded.difference
        elif (in_use, arm) in last_comparisons:
            recorded = last_comparisons[in_use, arm]
            gain = -recorded.difference
        else:
            same_models.append(names[arm])
            continue
        end = recorded.end
        if not end and (recorded.round < last_round or not is_open):
            end = "time"
        compared.append(
            ComparedCandidates(
                rival=names[arm],
                gain=gain,
                error=recorded.error,
                round=recorded.round,
                num_examples=recorded.num_examples,
                end=end,
            )
        )
    has_open = any(not comparison.end for comparison in compared)
    return Candidates(
        in_use=names[in_use],
        is_local=isinstance(race.named[in_use], Independent),
        lead_rounds=lead_rounds,
        compared=compared,
        same_models=same_models,
        reports=reports_at.get(last_round),
        reports_to_end=2 * race.patience,
        rounds_to_end=_rounds_to_end(reports_at, 2 * race.patience) if has_open else None,
    )


@dataclass(frozen=True)
class _Recorded:
    """The last recorded difference of two arms: loss of the simpler one less that of the other."""

    round: int
    difference: float
    error: float
    num_examples: int | None
    end: End


def _recorded(
    before: _Recorded | None, round: int, difference: float, error: float, note: Mapping[str, Any]
) -> _Recorded:
    """Return the difference of a note, with what an earlier note of the same round says of it."""
    num_examples = note["labels"].get(HELD_OUT_EXAMPLES)
    end: End = ""
    if before is not None and before.round == round:
        num_examples = before.num_examples if num_examples is None else num_examples
        end = before.end
    # The end of an arm has the difference that decided, and the criterion that did.
    if note["numbers"].get("difference") == difference:
        for criterion in note["criteria"]:
            end = END_OF_CRITERION.get(criterion["key"], end)
    return _Recorded(round, difference, error, num_examples, end)


def _rounds_to_end(reports_at: Mapping[int, int], reports_to_end: int) -> int | None:
    """In about how many more rounds each client has sent its last report, at the rate so far; None if not known.

    Args:
        reports_at: Round of a comparison -> reports of each client until then.
        reports_to_end: The number of reports.
    """
    if not reports_at:
        return None
    last_round, reports = max(reports_at.items())
    # Candidates that start again count from 0.
    first_round = last_round
    later_reports = reports
    for round, reports_then in sorted(reports_at.items(), reverse=True):
        if reports_then > later_reports:
            break
        first_round = round
        later_reports = reports_then
    num_reports = reports - later_reports
    # With a single comparison, or fewer than one report since, the rate is not known.
    if not num_reports:
        return None
    rate = num_reports / (last_round - first_round)
    return max(math.ceil((reports_to_end - reports) / rate), 1)
