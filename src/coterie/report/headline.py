"""What a page shows before anything else: two numbers, and every client with one model, with groups and alone."""

from __future__ import annotations

from typing import Any

from coterie.records.shown import ClientId
from coterie.report.contest import BASELINES, Contest
from coterie.report.trials import MethodTrials
from coterie.report.words import count


def headline(contest: Contest, grouped: MethodTrials) -> dict[str, Any] | None:
    """Return the two numbers and the clients' scores at the top of a page.

    Args:
        contest: The comparison, with the recommended method first.
        grouped: The method whose groups the page shows.

    Returns:
        None if no round was tested. Otherwise:

        - caption: what the numbers are, such as "mean accuracy of 20 clients in round 40"
        - is_share: whether they are shares, which a page shows in percent
        - numbers: two of value, label (what it is of), about (the method, or its groups) and worst
          (the score of the worst client)
        - gains: for how many clients the second is significantly better and worse than the first,
          and of how many; None without two methods, or if noise of single clients is not known
        - series: the methods of the strip of clients, each with name, about and role: "shared" (one
          model for all), "alone" or "groups"
        - rows: ``[client, score with each of these methods, or None]``
        - constant: value and label of always predicting the same, or None
    """
    if contest.round is None:
        return None
    # One model for all, training alone and the method with groups, as far as they were run.
    strip_methods = [*contest.baselines(grouped), grouped]
    rows = []
    for client in contest.clients:
        rows.append([client, [contest.client_score(method, client) for method in strip_methods]])
    clients = count(len(contest.clients), "client")
    seeds = f", {len(contest.seeds)} seeds" if len(contest.seeds) > 1 else ""
    hint = "; smaller is better" if contest.summary["better"] == "smaller" else ""
    return {
        "caption": f"{contest.mean_name} of {clients} in round {contest.round}{seeds}{hint}",
        "is_share": contest.averages_shares,
        **_numbers(contest, grouped),
        "series": [_series(method) for method in strip_methods],
        "rows": rows,
        "constant": _constant(contest),
    }


def _series(method: MethodTrials) -> dict[str, str]:
    """Return a method of the strip of clients."""
    roles = {"fedavg": "shared", "independent": "alone"}
    return {
        "name": method.label,
        "about": BASELINES.get(method.name, ""),
        "role": roles.get(method.name, "groups"),
    }


def _numbers(contest: Contest, grouped: MethodTrials) -> dict[str, Any]:
    """Return the score with one model for all, or else alone, and that of the recommended method, with the gains.

    If one model for all is recommended, the second number is that of the method with groups. A
    single method has its score and that of its worst client.
    """
    first = contest.find("fedavg") or contest.find("independent")
    second = contest.methods[0]
    if second is first:
        second = grouped
    if first is None or first is second:
        mean = _mean_number(contest, second)
        client, worst = worst_client(contest, second)
        worst_number = {"value": worst, "label": "worst client", "about": f"client {client}"}
        return {"numbers": [mean, {**worst_number, "worst": None}], "gains": None}
    numbers = [_mean_number(contest, first), _mean_number(contest, second)]
    return {"numbers": numbers, "gains": _gains(contest, second, first)}


def _mean_number(contest: Contest, method: MethodTrials) -> dict[str, Any]:
    """Return the score of all clients with a method, as one of the two numbers."""
    label = BASELINES.get(method.name)
    about = method.label
    if label is None:
        groups = method.mean_groups
        num_groups = (
            count(int(groups), "group") if groups == int(groups) else f"{groups:.1f} groups"
        )
        label = method.label
        about = num_groups if len(contest.seeds) == 1 else f"{num_groups} on average"
        if method.num_personal:
            about = f"{about}, {method.num_personal:.3g} of the clients with a personal model"
    _, worst = worst_client(contest, method)
    return {"value": contest.mean_score(method), "label": label, "about": about, "worst": worst}


def worst_client(contest: Contest, method: MethodTrials) -> tuple[ClientId | None, float | None]:
    """Return the client with the worst score with a method, and the score; None for both without a test."""
    scores = []
    for client in contest.clients:
        score = contest.client_score(method, client)
        if score is not None:
            scores.append((score, client))
    if not scores:
        return None, None
    least = min if contest.summary["better"] == "greater" else max
    score, client = least(scores, key=lambda scored: scored[0])
    return client, score


def _gains(contest: Contest, method: MethodTrials, rival: MethodTrials) -> dict[str, int] | None:
    """Return for how many clients a method is significantly better and worse than another."""
    signs = [gain.sign for gain in contest.client_gains(method, rival).values()]
    if None in signs:
        return None
    return {"better": signs.count(1), "worse": signs.count(-1), "of": len(signs)}


def _constant(contest: Contest) -> dict[str, Any] | None:
    """Return the score of always predicting the same, or None if it is not recorded."""
    if contest.constant is None:
        return None
    score = contest.mean_score(contest.constant)
    return None if score is None else {"value": score, "label": contest.constant.label}
