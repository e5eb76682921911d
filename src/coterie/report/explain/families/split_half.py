"""Split-half's decisions: p-values of probes, and distances between the signals of clients."""

from __future__ import annotations

from typing import Any

from coterie.clustering import repeated_p
from coterie.methods.split_half import ALIKE
from coterie.report.explain.view import Change, Criterion, Explanation, Flip, NoteView, opposed, sentence, short, who

SIGNAL = "what training moves the model by once the noise of small data is taken out"


def about(settings: dict[str, Any]) -> str:
    """Return how Split-half decides, in a few sentences."""
    return (
        "Split-half probes a group: every member trains on two random halves of its data. Where the halves of one client agree "
        "and two clients do not, the clients differ by more than chance. A group splits when two probes in a row say so: p, "
        "the probability that clients who are alike differ as much as that by chance, must be below level for both together."
    )


def decision(view: NoteView) -> Explanation:
    """Explain a note: its p-value, and the level that would have changed the decision."""
    settings, numbers = view.story.settings, view.numbers
    level = settings["level"]
    if view.kind == "merge" and "p" in numbers:
        test = Criterion("The probability that the two groups differ by chance alone (p)", numbers["p"], ">", ALIKE,
                         "nothing sets them apart")  # fmt: skip
        return Explanation(criteria=(test,), data=numbers)
    if view.kind == "keep" and "p" in numbers and "other_node" in numbers:
        what = "The probability that the two nearest groups differ by chance alone (p)"
        test = Criterion(what, numbers["p"], ">", ALIKE, "", "", "they stay two")
        return Explanation(says=(sentence(view.note["text"]),), criteria=(test,), data=numbers)
    p = _p(view)
    if p is None:
        return Explanation(says=(sentence(view.note["text"]),), data=numbers)
    name, value, first = p
    test = Criterion(name, value, "<", level, "its clients are not all alike", "level",
                     "as much as that may be chance")  # fmt: skip
    says = () if first else (f"This probe alone had p {short(numbers['p'])}.",)
    return Explanation(says=says, criteria=(test,), flips=_flips(view, test, level, first), data=numbers)


def _p(view: NoteView) -> tuple[str, float, bool] | None:
    """Return the description and value of the p-value compared with the level, and whether it is of a first probe.

    It is None if the p-value was not recorded.
    """
    numbers = view.numbers
    if "p_together" in numbers:
        what = "The probability of two probes like this one and the one before, if its clients were alike,"
        return what, numbers["p_together"], False
    if "p" not in numbers or view.kind not in ("keep", "hold", "split"):
        return None
    heard = numbers.get("heard", len(view.clients))
    p = numbers.get("p_twice", repeated_p(numbers["p"], numbers["p"], int(heard)))
    return "The probability of a probe like this one, coming twice, if its clients were alike,", p, True


def _flips(view: NoteView, test: Criterion, level: float, first: bool) -> tuple[Flip, ...]:
    change = opposed(test, "level", level, test.value)
    if view.kind == "split":
        return (Flip((change,), "it would not have split in this round"),)
    if view.kind == "hold":
        return (Flip((change,), "it would not have been probed again in the next round"),)
    if not test.holds and test.value < 1:
        then = (
            "it would have been probed again in the next round, to be sure"
            if first
            else ("it would have split in this round, if both probes had seen the same two sides")
        )
        return (Flip((Change("level", ">", test.value, level),), then),)
    return ()


# -- one client ---------------------------------------------------------------------------------------------------------


def member(view: NoteView, client: int) -> Explanation:
    """Return how far a client's signal was from each part, and its most similar clients."""
    side = next((part for part in view.parts if client in part), None)
    if not view.parts:
        return Explanation()
    if side is None:
        return Explanation(says=(
            "It was not heard in both probes, or they disagreed about its side. So it stood between the parts and chose later.",
        ))  # fmt: skip
    says: list[str] = []
    data: dict[str, Any] = {"side": list(side)}
    apart = {j: view.values(f"distance {j}").get(client) for j in range(len(view.parts))}
    known = {j: value for j, value in apart.items() if value is not None}
    mine = view.parts.index(side)
    data["distances"] = [{"clients": list(view.parts[j]), "distance": value} for j, value in known.items()]
    others = {j: value for j, value in known.items() if j != mine}
    if mine in known and others:
        near = min(others, key=lambda j: (others[j], j))
        says.append(
            f"Its signal, {SIGNAL}, was {short(known[mine])} from the mean of the others on its own side and "
            f"{short(others[near])} from that of {who(view.parts[near])} (squared distances without noise: near or below 0 is "
            "no difference)."
        )
    elif not known:
        says.append("How far it was from either side was not recorded.")
    says += _alike(view, client, side, data)
    return Explanation(says=tuple(says), data=data)


def _alike(view: NoteView, client: int, side: tuple[int, ...], data: dict[str, Any]) -> list[str]:
    clients, cosines = view.matrix()
    if cosines is None or client not in clients:
        return []
    at = clients.index(client)
    row = {c: float(cosines[at, i]) for i, c in enumerate(clients) if i != at}
    told_of = []
    for name, there in (("own", True), ("other", False)):
        found = {c: value for c, value in row.items() if (c in side) == there}
        if found:
            best = max(found, key=lambda c: (found[c], -c))
            data |= {f"nearest_{name}": best, f"cosine_{name}": found[best]}
            told_of.append(f"{short(found[best])} with client {best} on {'its own' if there else 'another'} side")
    return [f"Without noise its greatest cosines were {' and '.join(told_of)}."] if told_of else []
