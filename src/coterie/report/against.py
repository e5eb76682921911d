"""Methods against one that is named: the difference with each seed, its paired test, and single clients."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from coterie.notebook.tables import frame
from coterie.report.contest import Contest
from coterie.report.over_seeds import over_seeds, paired_p_value
from coterie.report.ranking import contests
from coterie.report.setting_differences import world_titles
from coterie.report.trials import MethodTrials, Trial
from coterie.report.verdict import compare
from coterie.settings import UserError, known_list, nearest


class Differences(list[dict[str, Any]]):
    """How other methods compare with a named one: a list with an entry for each, which prints as sentences."""

    def __str__(self) -> str:
        texts: list[str] = []
        titles = list(dict.fromkeys(entry["title"] for entry in self))
        for title in titles:
            # With one scenario the methods alone are named.
            if len(titles) > 1:
                texts.append(f"{title}:")
            texts += [entry["text"] for entry in self if entry["title"] == title]
        return "\n".join(texts)

    __repr__ = __str__

    def to_pandas(self) -> Any:
        """Return a pandas data frame with one row per entry, without the sentences.

        Raises:
            UserError: pandas is not installed.
        """
        rows = []
        for entry in self:
            rows.append(
                {key: entry[key] for key in entry if key not in ("text", "title", "values")}
            )
        return frame(rows)


def against(trials: Iterable[Trial], rival_name: str) -> Differences:
    """Return how each other method compares with one that is named.

    Args:
        trials: The runs.
        rival_name: The name of the method, or its label such as ``cfl 2``.

    Returns:
        Per method: scenario, method, against, metric, round, seeds, mean (how much better it is in
        the mean over seeds, positive if it is better), low, high and sd over the seeds, values (with
        each seed), p (of the paired t-test over the seeds; None for fewer than three), significant
        (1, 0 or -1: by the noise of a comparison, see :mod:`coterie.report.noise`; None if not
        known), better and worse (the clients for which it is significantly so), and text.

    Raises:
        UserError: No run has this method, or several methods have this name.
    """
    all_contests = contests(trials)
    titles = world_titles([contest.summary for contest in all_contests])
    differences = Differences()
    for title, contest in zip(titles, all_contests, strict=True):
        rival = _named(contest, rival_name)
        if rival is None:
            continue
        for method in contest.methods:
            if method is not rival:
                differences.append({"title": title, **_difference(contest, method, rival)})
        if contest.left_out:
            differences[-1]["text"] += f" Not compared: {', '.join(contest.left_out)}."
    if not differences:
        labels = list(dict.fromkeys(label for contest in all_contests for label in contest.labels))
        raise UserError(
            f"no other method is compared with {rival_name!r} in these runs"
            f"{nearest(rival_name, labels)}{known_list(labels)}"
        )
    return differences


def _named(contest: Contest, name: str) -> MethodTrials | None:
    """The method of a comparison with a label or a name; None if there is none."""
    of_label = [method for method in contest.methods if method.label == name]
    of_name = [method for method in contest.methods if method.name == name]
    if not of_label and len(of_name) > 1:
        labels = " or ".join(method.label for method in of_name)
        raise UserError(f"several methods are called {name}: write {labels}")
    candidates = of_label or of_name
    return candidates[0] if candidates else None


def _difference(contest: Contest, method: MethodTrials, rival: MethodTrials) -> dict[str, Any]:
    """The entry of one method against another."""
    of_seed = contest.improvement_of_seed(method, rival)
    entry: dict[str, Any] = {
        "scenario": contest.summary["scenario"],
        "method": method.label,
        "against": rival.label,
        "metric": contest.metric,
        "round": contest.round,
        "seeds": list(of_seed),
        **over_seeds(list(of_seed.values()), "difference"),
        "p": paired_p_value(list(of_seed.values())),
    }
    gain = None if contest.round is None else contest.mean_gain(method, rival)
    gain_of_client = {} if contest.round is None else contest.client_gains(method, rival)
    entry["significant"] = None if gain is None else gain.sign
    entry["better"] = [client for client, gain in gain_of_client.items() if gain.sign == 1]
    entry["worse"] = [client for client, gain in gain_of_client.items() if gain.sign == -1]
    entry["text"] = f"{compare(contest, method, rival)} {_over_seeds_in_words(entry)}"
    return entry


def _over_seeds_in_words(entry: dict[str, Any]) -> str:
    """The difference over the seeds and its paired test, as a sentence."""
    num_seeds = len(entry["seeds"])
    if num_seeds < 2:
        return "With one seed there is no test over seeds."
    values = ", ".join(f"{value:+.3f}" for value in entry["values"])
    differences = f"Better by, with each of {num_seeds} seeds: {values}"
    if entry["p"] is None:
        return f"{differences} (a paired t-test needs three seeds that differ)."
    return (
        f"{differences}; mean {entry['mean']:+.3f}, 95 % interval {entry['low']:+.3f} to "
        f"{entry['high']:+.3f}, paired t-test p = {entry['p']:.2g}."
    )
