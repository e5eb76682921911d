"""Runs as a comparison of methods needs them, and methods over the seeds of their runs."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from coterie.data.objective import METRICS
from coterie.data.scenario import FEDERATION
from coterie.pooling import ErrorSums
from coterie.records.record import Record
from coterie.records.shown import ClientId, Line, personal_clients, shown_as, sums_of
from coterie.report.candidates import Candidates, candidates
from coterie.report.gathered import examines_groups
from coterie.report.learning import Losses
from coterie.report.limits import Limit, limited
from coterie.report.noise import mean_value
from coterie.report.reference import GroupEvidence, Reference, strongest_evidence
from coterie.report.summary import Summary, summarised
from coterie.report.words import by_time, sentence


@dataclass(frozen=True, kw_only=True)
class Trial:
    """A run as a comparison needs it.

    Attributes:
        summary: The summary of the run.
        scores: Tested round -> honest client -> its main metric.
        sums: Tested round -> honest client -> its sums of the main metric, if that is pooled over
            clients; see ``coterie.pooling``.
        test_sizes: Client -> its number of test examples or of test subjects, where recorded.
        test_unit: What the sizes count.
        averages_shares: Whether the main metric averages numbers from 0 to 1 over test examples, as an
            accuracy.
        data_digest: The digest of the data, or empty.
        personal: Round -> the clients that a personal model served after it, where there were some.
        test_rows: A digest of the rows on which clients are tested: those of seeds with equal ones
            are the same. Empty if it is not recorded.
        deciding_tests: Client -> the numbers of test examples that decide the noise of its main
            metric, see ``coterie.data.deciding_tests``; empty where this follows from the test
            sizes, or is not known.
        last_decision: The last decision on the groups, as a sentence with its round, or empty.
        losses: Tested round -> honest client -> its loss on test data; empty where data drift.
        reference: The scores of constant predictions.
        testers: Client -> the mean number of clients that test an example of its test part; None if
            it is not recorded.
        cautions: What the data warn of.
        unanswered_rounds: Number of rounds without an accepted reply.
        warned: What the notes of the rounds warn of, each text once, in the order of the rounds.
        evidence: The strongest evidence for groups, or None.
        limits: What limits on single clients changed.
        candidates: How a race chose the models in use, up to the last round; None for other methods.
        by_time: How test examples follow the others in time, as a sentence; empty if they are
            drawn at random.
    """

    summary: Summary
    scores: Mapping[int, Mapping[ClientId, float]]
    sums: Mapping[int, Mapping[ClientId, ErrorSums]]
    test_sizes: Mapping[ClientId, int]
    test_unit: str
    averages_shares: bool
    data_digest: str
    last_decision: str
    personal: Mapping[int, frozenset[ClientId]] = field(default_factory=dict)
    test_rows: str = ""
    deciding_tests: Mapping[ClientId, Sequence[float]] = field(default_factory=dict)
    losses: Losses = field(default_factory=dict)
    reference: Reference = field(default_factory=Reference)
    testers: Mapping[ClientId, float] | None = None
    cautions: Sequence[str] = ()
    unanswered_rounds: int = 0
    warned: Sequence[str] = ()
    evidence: GroupEvidence | None = None
    limits: Sequence[Limit] = ()
    by_time: str = ""
    candidates: Candidates | None = None

    def losses_until(self, last_round: int | None) -> Losses:
        """Return the losses up to a round; None for all."""
        if last_round is None:
            return self.losses
        return {number: losses for number, losses in self.losses.items() if number <= last_round}


def trial(run: Path | str, description: Mapping[str, Any], lines: Sequence[Line]) -> Trial:
    """Return what a comparison needs of a run.

    Args:
        run: The run directory.
        description: The content of ``run.toml``, as shown.
        lines: The completed rounds, as shown.

    Raises:
        UserError: If ``lines`` is empty.
    """
    world = description["world"]
    limits = limited(lines)
    summary = summarised(run, description, lines, limits)
    # What each honest client scored in each tested round.
    scores: dict[int, dict[ClientId, float]] = {}
    sums: dict[int, dict[ClientId, ErrorSums]] = {}
    losses: dict[int, dict[ClientId, float]] = {}
    for line in lines:
        if not line["tested"]:
            continue
        round = line["round"]
        main_metric = shown_as(line).main
        honest_entries = _honest_entries(line)
        round_scores = _numbers(honest_entries, main_metric)
        # A round counts as tested if the main metric is known of some client.
        if round_scores:
            scores[round] = round_scores
            sums[round] = _sums_of_honest(line, main_metric, honest_entries)
            losses[round] = _numbers(honest_entries, "loss")
    # Where rows belong to subjects, such as patients, the subjects are the independent tests.
    has_subjects = world.get("test_subjects") is not None
    test_sizes = world["test_subjects"] if has_subjects else world.get("tests", ())
    testers = world.get("testers")
    deciding_tests = world.get("deciding_tests", ())
    # Runs recorded before rounds said so do not tell who had a personal model.
    personal = {line["round"]: personal_clients(line) for line in lines if "personal" in line}
    return Trial(
        summary=summary,
        scores=scores,
        sums=sums,
        test_sizes=dict(zip(world["clients"], test_sizes, strict=False)),
        test_unit="test subjects" if has_subjects else "test examples",
        averages_shares=_averages_shares(world, shown_as(lines[-1]).main, scores),
        data_digest=world.get("data", ""),
        last_decision=last_decision(lines),
        personal=personal,
        # Without a digest of the tests: the latest rows are the same ones with each seed, and equal
        # data have equal tests. In a federation clients keep their own, of which there is no
        # digest: a seed does not draw them anew.
        test_rows=world.get("test_rows") or by_time(world) or world.get("data") or FEDERATION,
        deciding_tests=dict(zip(world["clients"], deciding_tests, strict=False)),
        # Where data drift, a rising loss does not mean that learning has ended.
        losses={} if "drift" in world else losses,
        reference=Reference.of(world),
        testers=None if testers is None else dict(zip(world["clients"], testers, strict=False)),
        cautions=world.get("cautions", ()),
        unanswered_rounds=sum(not line["answered"] for line in lines),
        warned=_warned(lines),
        evidence=strongest_evidence(lines),
        limits=limits,
        by_time=by_time(world),
        candidates=candidates(description["methods"][0], lines),
    )


def _warned(lines: Sequence[Line]) -> list[str]:
    """Return what the notes of the rounds warn of, each text once."""
    texts: dict[str, None] = {}
    for line in lines:
        for note in line["notes"]:
            if note["effect"] == "warns":
                texts[note["text"]] = None
    return list(texts)


def _averages_shares(
    world: Mapping[str, Any], main_metric: str, scores: Mapping[int, Mapping[ClientId, float]]
) -> bool:
    """Whether the main metric is a mean of numbers from 0 to 1: by the run's record, or by its name."""
    by_name = main_metric in METRICS and METRICS[main_metric].averages_shares
    if not world.get("averages_shares", by_name):
        return False
    # A user's metric may say so by default and be none.
    all_scores: list[float] = []
    for round_scores in scores.values():
        all_scores += round_scores.values()
    return all(0 <= score <= 1 for score in all_scores)


def _honest_entries(line: Line) -> dict[ClientId, Mapping[str, Any]]:
    """Return what a round records of each client that is no adversary."""
    # The record has clients as text.
    client_id = shown_as(line).key
    entries = {}
    for key, entry in line["clients"].items():
        if not entry.get("adversary"):
            entries[client_id(key)] = entry
    return entries


def _numbers(entries: Mapping[ClientId, Mapping[str, Any]], metric: str) -> dict[ClientId, float]:
    """Return a metric of each client that has it."""
    number_of_client = {}
    for client, entry in entries.items():
        if entry.get(metric) is not None:
            number_of_client[client] = float(entry[metric])
    return number_of_client


def _sums_of_honest(
    line: Line, metric: str, honest_clients: Container[ClientId]
) -> dict[ClientId, ErrorSums]:
    """Return the sums of a metric of each client that is no adversary."""
    client_id = shown_as(line).key
    sums_of_client = {}
    for key, sums in sums_of(line, metric).items():
        client = client_id(key)
        if client in honest_clients:
            sums_of_client[client] = sums
    return sums_of_client


def read(run: Path | str, last_round: int | None = None) -> Trial:
    """Read the run in a directory, up to a round or to its last one.

    Raises:
        UserError: If there is no run, or it has no completed round.
    """
    description, lines = Record(run).shown()
    return trial(run, description, lines[:last_round])


def last_decision(lines: Sequence[Line]) -> str:
    """Return the last decision that divided the clients, as a sentence with its round.

    With one group it is the last decision that did not divide them. Empty if there is none.

    Args:
        lines: The completed rounds, as shown.
    """
    # With several groups, the decision that made them; with one, the last that looked for some.
    min_parts = 2 if len(lines[-1]["groups"]) > 1 else 0
    for line in reversed(lines):
        for note in reversed(line["notes"]):
            is_about_groups = len(note["parts"]) >= min_parts and len(note["clients"]) > 1
            # The end of an arm (drop) may be a reason for one group, too.
            if is_about_groups and note["text"] and examines_groups(note):
                return f"Round {line['round']}: {sentence(note['text'])}"
    return ""


@dataclass(frozen=True)
class MethodTrials:
    """A method with its settings, over seeds.

    Attributes:
        label: Its name, with a number if several entries have the same method.
        trials: Seed -> run.
    """

    label: str
    trials: Mapping[int, Trial]

    @property
    def first(self) -> Trial:
        """The run with the smallest seed."""
        return self.trials[min(self.trials)]

    @property
    def name(self) -> str:
        """The name of the method."""
        return str(self.first.summary["method"])

    @property
    def summaries(self) -> list[Summary]:
        """The summaries of its runs."""
        return [trial.summary for trial in self.trials.values()]

    @property
    def num_personal(self) -> float:
        """The mean number of clients that a personal model serves, over the seeds."""
        return mean_value(len(summary["personal"]) for summary in self.summaries)

    @property
    def mean_groups(self) -> float:
        """The mean number of groups over the seeds."""
        return mean_value(len(summary["groups"]) for summary in self.summaries)
