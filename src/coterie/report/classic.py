"""Classic models beside the methods: whether federating is worth it, compared with scikit-learn on the same rows.

The models are those of :mod:`coterie.runs.classic`. They need the data, not only the records.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from coterie.core import as_groups
from coterie.data.scenario import FEDERATION, OwnWorld
from coterie.data.world import World
from coterie.methods import METHODS
from coterie.notebook.tables import frame
from coterie.records.record import Record
from coterie.records.shown import Shown
from coterie.report.contest import BASELINES, Contest
from coterie.report.headline import worst_client
from coterie.report.screen import tests_needed
from coterie.report.setting_differences import world_titles
from coterie.report.terminal import MARKS
from coterie.report.trials import MethodTrials, Trial
from coterie.report.words import number
from coterie.runs.classic import ClassicScores, Scope, classic_scores
from coterie.runs.facts import digest
from coterie.runs.folders import reopen
from coterie.settings import UserError

TRAINED_ON: Mapping[Scope, str] = {
    "client": "each client alone",
    "group": "each group, rows in one place",
    "all": "all rows in one place",
}
"""Scope -> the rows that a classic model is trained on, in words."""

LEGEND = (
    "(reference): scikit-learn on the training rows of the methods; it federates nothing.\n"
    "▲ significantly better, ▼ significantly worse, ≈ no significant difference, ? noise is not known"
)
"""What the table of references means."""


class ClassicReferences(list[dict[str, Any]]):
    """Methods and classic models on the same rows: a list with an entry for each, which prints as a table and sentences."""

    def __str__(self) -> str:
        texts = []
        titles = list(dict.fromkeys(entry["title"] for entry in self))
        for title in titles:
            entries = [entry for entry in self if entry["title"] == title]
            # With one scenario the table alone is shown.
            if len(titles) > 1:
                texts.append(f"{title}:")
            texts += [*_table(entries), "", LEGEND, "", entries[0]["verdict"]]
        return "\n".join(texts)

    __repr__ = __str__

    def to_pandas(self) -> Any:
        """Return a pandas data frame with one row per entry, without the scores of single clients.

        Raises:
            UserError: pandas is not installed.
        """
        rows = []
        for entry in self:
            rows.append({key: entry[key] for key in entry if key not in ("per_client", "verdict")})
        return frame(rows)


def classic(
    contests: list[Contest],
    *,
    world: World | Callable[[int], World] | None = None,
    trust_code: bool = False,
    step: Callable[[], None] = lambda: None,
) -> ClassicReferences:
    """Compare methods with classic models on the same rows.

    Args:
        contests: The comparisons.
        world: The world, or the function that makes it, of runs that began with one.
        trust_code: Whether a model or scenario that a run names as ``package.module:Name`` may be
            imported.
        step: Called after each model.

    Returns:
        An entry for each method, best first, then for each classic model: title, name,
        is_reference, trained_on, metric, round, seeds, mean (over clients and seeds), worst,
        worst_client, per_client, and over_best: how much better it is than the method with the best
        mean, and sign (1, 0 or -1, None if not known); and verdict: whether a classic model is
        better than every method, in words.

    Raises:
        UserError: The clients have no tables, or their data are not those of the runs.
    """
    entries = []
    titles = world_titles([contest.summary for contest in contests])
    for title, contest in zip(titles, contests, strict=True):
        references = _references(contest, world, trust_code, step)
        best = _best(contest, contest.methods)
        verdict = _verdict(contest, best, references)
        for method in sorted(contest.methods, key=lambda method: method is not best):
            entries.append(
                {"title": title, **_entry(contest, method, best, ""), "verdict": verdict}
            )
        for reference, scope in references:
            entry = _entry(contest, reference, best, TRAINED_ON[scope])
            entries.append({"title": title, **entry, "verdict": verdict})
    return ClassicReferences(entries)


def _references(
    contest: Contest,
    world: World | Callable[[int], World] | None,
    trust_code: bool,
    step: Callable[[], None],
) -> list[tuple[MethodTrials, Scope]]:
    """The classic models of a comparison, each as if it were a method, and whose rows it is trained on."""
    if contest.round is None:
        raise UserError("no round was tested, so there is nothing to compare classic models with")
    if contest.summary["scenario"] == FEDERATION:
        raise UserError(
            "the rows of a federation stay at its nodes, so no classic model can be trained on them here"
        )
    trials_of_reference: dict[tuple[str, Scope], dict[int, Trial]] = {}
    for seed in contest.seeds:
        # The data are those of any of the methods, the groups those of the one in focus.
        data_trial = _reopened_trial(contest, seed)
        seed_world = _world(data_trial, seed, world, trust_code)
        record = Record(contest.focus.trials[seed].summary["run_dir"])
        groups = as_groups(record.lines()[contest.round - 1]["groups"])
        naming = record.naming(record.description())
        for scores in classic_scores(seed_world, groups, seed, step):
            trial = _as_trial(data_trial, scores, contest.round, naming)
            trials_of_reference.setdefault((scores.model, scores.scope), {})[seed] = trial
    references = []
    for (model, scope), trials in trials_of_reference.items():
        # With some seeds, a method may have found groups, and with others none.
        if len(trials) == len(contest.seeds):
            references.append((MethodTrials(model, trials), scope))
    return references


def _reopened_trial(contest: Contest, seed: int) -> Trial:
    """A run with a seed, of a method that is known here, if there is one."""
    methods = sorted(contest.methods, key=lambda method: method.name not in METHODS)
    return methods[0].trials[seed]


def _world(
    trial: Trial, seed: int, world: World | Callable[[int], World] | None, trust_code: bool
) -> World:
    """The world of a run, whose data are those that it has recorded."""
    run_dir = trial.summary["run_dir"]
    (run,) = reopen(run_dir, trust_code=trust_code, world=world)
    setup = run.experiment.setup
    if isinstance(setup, OwnWorld) and setup.made is None and not setup.source:
        raise UserError(
            f"{run_dir} began with a world given in Python: in Python, coterie.compare(runs).classic(world=...) takes it"
        )
    rebuilt_world = run.experiment.world(seed)
    if trial.data_digest not in ("", digest(rebuilt_world)):
        raise UserError(f"the clients or data are not those of {run_dir} any more")
    return rebuilt_world


def _as_trial(data_trial: Trial, scores: ClassicScores, round: int, naming: Shown) -> Trial:
    """A run that scored what a classic model scores, with the names of the clients."""
    return replace(
        data_trial,
        scores={round: {naming.client(client): value for client, value in scores.scores.items()}},
        sums={round: {naming.client(client): value for client, value in scores.sums.items()}},
        personal={},
    )


def _best(contest: Contest, methods: Any) -> MethodTrials:
    """The method with the best mean score."""
    sign = 1 if contest.summary["better"] == "greater" else -1

    def goodness(method: MethodTrials) -> float:
        mean = contest.mean_score(method)
        return float("-inf") if mean is None else sign * mean

    best: MethodTrials = max(methods, key=goodness)
    return best


def _entry(
    contest: Contest, method: MethodTrials, best: MethodTrials, trained_on: str
) -> dict[str, Any]:
    """The entry of a method, or of a classic model, which has words for what it is trained on."""
    gain = None if method is best else contest.mean_gain(method, best)
    client, worst = worst_client(contest, method)
    return {
        "name": method.label,
        "is_reference": bool(trained_on),
        "trained_on": trained_on or BASELINES.get(method.name, "clients that keep their rows"),
        "metric": contest.metric,
        "round": None if trained_on else contest.round,
        "seeds": list(contest.seeds),
        "mean": contest.mean_score(method),
        "worst": worst,
        "worst_client": client,
        "per_client": {
            str(client): contest.client_score(method, client) for client in contest.clients
        },
        "over_best": None if gain is None else gain.improvement,
        "sign": None if gain is None else gain.sign,
    }


def _verdict(
    contest: Contest, best: MethodTrials, references: list[tuple[MethodTrials, Scope]]
) -> str:
    """Whether a classic model is better than every method, in plain words."""
    # 1. A model of each client alone needs no exchange at all.
    best_alone = _best(contest, [method for method, scope in references if scope == "client"])
    gain = contest.mean_gain(best_alone, best)
    if gain is None:
        return "No client was tested with both a classic model and a method."
    described = f"{best_alone.label} of each client alone, which needs no federation"
    scores = f"{contest.mean_name} {number(gain.score)} against {number(gain.rival_score)}"
    # The same from the side of the method.
    scores_of_best = f"{contest.mean_name} {number(gain.rival_score)} against {number(gain.score)}"
    if gain.improvement > 0 and gain.sign == 1:
        sentence = (
            f"A classic model beats every method: {described}, is better than {best.label}, the best "
            f"method ({scores}; beyond chance). By these tests, federating is not worth it."
        )
    elif gain.improvement >= 0:
        sentence = (
            f"A classic model is as good as every method: {described}, is not worse than {best.label}, "
            f"the best method ({scores}). By these tests, federating is not shown to be worth it."
        )
    elif gain.sign == -1:
        sentence = (
            f"Federating is worth it by these tests: {best.label}, the best method, is better than "
            f"{described} ({scores_of_best}; beyond chance)."
        )
    else:
        sentence = (
            f"Whether federating is worth it is not decided: {best.label}, the best method, is not better "
            f"beyond chance than {described} ({scores_of_best}): {tests_needed(contest, gain)}."
        )
    # 2. Models of several clients need their rows in one place.
    together = [(method, scope) for method, scope in references if scope != "client"]
    if not together:
        return sentence
    best_together = _best(contest, [method for method, _ in together])
    gain = contest.mean_gain(best_together, best)
    if gain is None or gain.improvement <= 0:
        return sentence
    (place,) = (TRAINED_ON[scope] for method, scope in together if method is best_together)
    degree = "beats every method" if gain.sign == 1 else "is as good as every method"
    return (
        f"{sentence} With rows in one place, a classic model {degree}: {best_together.label} "
        f"({place}) has {number(gain.score)}."
    )


def _table(entries: list[dict[str, Any]]) -> list[str]:
    """Methods and classic models as a table of text: a row for each, the references last."""
    best = entries[0]["name"]
    headings = ["", "trained on", entries[0]["metric"], "worst client", f"over {best}"]
    cells = []
    for entry in entries:
        over_best = ""
        if entry["over_best"] is not None:
            sign = "-" if entry["over_best"] < 0 else "+"
            over_best = f"{sign}{number(abs(entry['over_best']))} {MARKS[entry['sign']]}"
        values = ["-" if entry[key] is None else number(entry[key]) for key in ("mean", "worst")]
        name = f"{entry['name']} (reference)" if entry["is_reference"] else entry["name"]
        cells.append([name, entry["trained_on"], *values, over_best])
    widths = [max(map(len, column)) for column in zip(headings, *cells, strict=True)]
    lines = []
    for row in (headings, *cells):
        left = [text.ljust(width) for text, width in zip(row[:2], widths[:2], strict=True)]
        right = [text.rjust(width) for text, width in zip(row[2:], widths[2:], strict=True)]
        lines.append("  ".join([*left, *right]).rstrip())
    return lines
