"""CFL's decisions: three criteria, which must hold for some rounds, and the bipartition by cosines of updates."""

from __future__ import annotations

from typing import Any

import numpy as np

from coterie.clustering import bipartition_margin, gamma_bound, optimal_bipartition
from coterie.methods.cfl import without_bias
from coterie.report.explain.view import Change, Criterion, Explanation, Flip, NoteView, opposed, outward, sentence, short

COSINE = (
    "How alike two clients are is told by the cosine of their updates, which are what training adds to the model: 1 where both "
    "move it the same way, 0 where the two ways have nothing in common, -1 where they are opposite."
)

Tests = list[tuple[Criterion, tuple[str, Any] | None]]
"""Criteria, each with the name and value of its setting, or None if the bound was measured."""


def about(settings: dict[str, Any]) -> str:
    """Return how CFL decides, in a few sentences."""
    if settings.get("split_rounds"):
        return (
            "CFL was told when to split: in each round of split_rounds, the group whose two halves are least alike is cut in "
            f"two. {COSINE}"
        )
    return (
        "CFL splits a group when its common model has settled although single members still pull hard, in different "
        f"directions. {COSINE}"
    )


def decision(view: NoteView) -> Explanation:
    """Explain a note: its criteria, and the changes of settings that would have changed the decision."""
    settings, numbers = view.story.settings, view.numbers
    if settings.get("split_rounds"):
        return _scheduled(view)
    tests = criteria(view)
    data: dict[str, Any] = dict(numbers)
    if not tests:
        return Explanation(says=(sentence(view.note["text"]),), data=data)
    found = [criterion for criterion, _ in tests]
    return Explanation(criteria=tuple(found), flips=_flips(view, tests), says=_says(view), data=data)


def _scheduled(view: NoteView) -> Explanation:
    if view.kind != "split":
        return Explanation(says=("Its turn to be split, by split_rounds, had not come.",))
    return Explanation(says=(f"It was {view.note['text']}. Only split_rounds could have changed that.",))


def _says(view: NoteView) -> tuple[str, ...]:
    needed, held = int(view.story.settings.get("persistence") or 1), view.numbers.get("held")
    if held is None or needed == 1 or view.kind not in ("split", "hold"):
        return ()
    return (f"It was round {held:.0f} in a row in which all criteria held; persistence asks for {needed}.",)


def criteria(view: NoteView) -> Tests:
    """Return the criteria of a note in their order, in the unit of the settings.

    Criteria that the method did not need to check are included if their numbers were recorded.

    Args:
        view: The note.
    """
    s, n = view.story.settings, view.numbers
    return [*_norms(s, n), *_separable(s, n), *_sized(s, n)]


def _norms(s: dict[str, Any], n: dict[str, float]) -> Tests:
    """Return the criteria on norms: the model is stationary, and an update of a client is still large."""
    relative, found = s.get("scale") == "relative", []
    if "eps1" in n and "mean_norm" in n and n.get("client_norm"):
        unit, of = (n["client_norm"], ", as a share of the greatest of a member,") if relative else (1.0, "")
        test = Criterion(f"The size of the group's mean update{of}", n["mean_norm"] / unit, "<", s["eps1"],
                         "the common model had settled", "eps1", "the common model was still moving")  # fmt: skip
        found.append((test, ("eps1", s["eps1"])))
    peak = n.get("peak") or (n["eps2"] / s["eps2"] if n.get("eps2") and s["eps2"] and relative else 0.0)
    if "eps2" in n and "client_norm" in n and (peak or not relative):
        unit, of = (peak, ", as a share of the greatest so far in this group,") if relative else (1.0, "")
        test = Criterion(f"The size of the greatest update of a member{of}", n["client_norm"] / unit, ">=", s["eps2"],
                         "a member still pulled hard", "eps2", "no member pulled hard any more")  # fmt: skip
        found.append((test, ("eps2", s["eps2"])))
    return list(found)


def _separable(s: dict[str, Any], n: dict[str, float]) -> Tests:
    """Return the criterion on the separation of the two sides, if it was checked or can be computed."""
    bound, setting = n.get("gamma_bound"), s.get("gamma_max") is not None
    if bound is None and {"alpha_cross", "heard", "eps1"} <= n.keys() and s.get("similarity") != "gradients":
        cross = n["alpha_cross"]
        bound = gamma_bound(without_bias(cross, int(n["heard"])) if s.get("scale") == "relative" else cross)
    gamma = s["gamma_max"] if setting else n.get("gamma_max")
    if bound is None or gamma is None:
        return []
    what = "The noise that the cut between its two sides can bear"
    test = Criterion(what, bound, ">", gamma, "the sides can be told apart", "gamma_max" if setting else "",
                     "the sides cannot be told apart for certain")  # fmt: skip
    return [(test, ("gamma_max", gamma) if setting else None)]


def _sized(s: dict[str, Any], n: dict[str, float]) -> Tests:
    least = s.get("min_cluster_size") or 1
    if least < 2 or "smaller_side" not in n:
        return []
    test = Criterion("The number of clients on the smaller side", n["smaller_side"], ">=", least,
                     "no side was too small", "min_cluster_size")  # fmt: skip
    return [(test, ("min_cluster_size", least))]


def _flips(view: NoteView, tests: Tests) -> tuple[Flip, ...]:
    persistence = int(view.story.settings.get("persistence") or 1)
    failed = [(test, about) for test, about in tests if not test.holds]
    if view.kind == "split":
        held = view.numbers.get("held", 1)
        then = "it would not have split in this round"
        if held > 1:
            then = f"one of the {held:.0f} rounds in a row would not have counted, and it would not have split then"
        single = [Flip((_tightest(view, test, *about),), then) for test, about in tests if about]
        if held == persistence:
            later = Change("persistence", ">=", persistence + 1, persistence)
            single.append(Flip((later,), "it would not have split in this round"))
        return tuple(single)
    if view.kind == "hold":
        return tuple(
            Flip((opposed(test, *about, test.value),), "this round would not have counted") for test, about in tests if about
        )
    if view.kind != "keep" or not failed or any(about is None for _, about in failed):
        return ()
    return (Flip(tuple(opposed(test, *about, test.value) for test, about in failed if about), _instead(view, persistence)),)


def _instead(view: NoteView, persistence: int) -> str:
    """Return what would have happened in this round if the failed criteria had held."""
    s, n = view.story.settings, view.numbers
    if s.get("fraction", 1.0) < 1 or n.get("heard", np.inf) < max(2.0, s.get("quorum", 0.5) * len(view.clients)):
        return "all members would have been asked in the next round, and it could then have split"
    if s.get("similarity") == "gradients":
        return "gradients would have been asked for, to see whether it is to split"
    if s.get("gamma_max") is None and "gamma_max" not in n:
        return "updates of halves would have been asked for, to see whether it is to split"
    if not _separable(s, n):
        return "it would have come down to whether its sides can be told apart, which was not recorded"
    if persistence > 1:
        return f"this round would have counted towards a split, which takes {persistence} in a row (persistence)"
    return "it would have split in this round"


def _tightest(view: NoteView, test: Criterion, setting: str, was: Any) -> Change:
    """Return the smallest change that would have interrupted the consecutive rounds in which all criteria held."""
    values = [test.value]
    for earlier in _streak(view):
        values += [other.value for other, about in criteria(earlier) if about and about[0] == setting]
    return opposed(test, setting, was, max(values) if test.sign == "<" else min(values))


def _streak(view: NoteView) -> list[NoteView]:
    """Return the rounds before a split in which only persistence delayed it."""
    return [
        other for other in view.story.views()
        if other.kind == "hold" and other.clients == view.clients and other.place < view.place
        and other.place >= view.place - int(view.numbers.get("held", 1)) + 1
    ]  # fmt: skip


# -- one client ---------------------------------------------------------------------------------------------------------


def member(view: NoteView, client: int) -> Explanation:
    """Return on which side of a cut a client is, and its most similar clients on both sides."""
    clients, cosines = view.matrix()
    side = next((part for part in view.parts if client in part), None)
    if not view.parts:
        return Explanation()
    if side is None:
        return Explanation(
            says=("It was not heard in the round of the split, so it stood between the sides and chose one later.",)
        )
    if cosines is None:
        return Explanation(says=("Which clients it was most alike with was not recorded.",), data={"side": list(side)})
    return _on_its_side(clients, cosines, side, client)


def _on_its_side(clients: list[int], cosines: np.ndarray, side: tuple[int, ...], client: int) -> Explanation:
    at, row = clients.index(client), cosines[clients.index(client)]
    own = {c: float(row[i]) for i, c in enumerate(clients) if c in side and i != at}
    other = {c: float(row[i]) for i, c in enumerate(clients) if c not in side}
    nearest, across = (max(found, key=lambda c: (found[c], -c)) if found else None for found in (own, other))
    says: list[str] = []
    data: dict[str, Any] = {"side": list(side)}
    if nearest is not None:
        says.append(f"On its own side it was most alike with client {nearest}: cosine {short(own[nearest])}.")
        data |= {"nearest_own": nearest, "cosine_own": own[nearest]}
    else:
        says.append("It was the only one on its side.")
    if across is not None:
        says.append(f"On the other side it was most alike with client {across}: cosine {short(other[across])}.")
        data |= {"nearest_other": across, "cosine_other": other[across]}
    cut = optimal_bipartition(cosines)
    pair = max(((i, j) for i in cut.left for j in cut.right), key=lambda pair: float(cosines[pair]))
    one, two = sorted((clients[pair[0]], clients[pair[1]]))
    says.append(
        f"The cut is the one that leaves least likeness across: the greatest cosine across it (alpha_cross) is "
        f"{short(cut.cross)}, between clients {one} and {two}."
    )
    data |= {"alpha_cross": cut.cross, "across": [one, two]}
    if across is not None and len(clients) > 2:
        joined = cut.cross + bipartition_margin(cosines)
        says.append(
            f"Clients {client} and {across} would have come on one side had their cosine been above "
            f"{outward(joined, '>')}, the weakest link that holds a side together."
        )
        data["together_above"] = joined
    return Explanation(says=tuple(says), data=data)
