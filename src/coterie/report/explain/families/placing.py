"""Clients placed after the groups were made, with any method: those that come later, did not answer, or move."""

from __future__ import annotations

from coterie.methods.split_half import ALIKE
from coterie.report.explain.view import Change, Criterion, Explanation, Flip, NoteView, opposed, ranked, sentence, short, who

KINDS = ("join", "walk", "wait", "move", "leave", "node")

ALONE, JOINED = "it would have been a group of its own", "it would have joined the nearest branch"


def decision(view: NoteView) -> Explanation:
    """Explain a note about the placement of one client; if its numbers are not known here, by its own text."""
    numbers = view.numbers
    if view.kind == "move" and "p_there" in numbers:
        return _moved(numbers)
    if "similarity" in numbers:
        return _seated(view, numbers["similarity"])
    if "gain" in numbers and view.story.settings.get("groups") is None:
        test = Criterion("What it would add to the utility of the group that it raises most", numbers["gain"], ">", 0.0,
                         "it joined that group")  # fmt: skip
        return Explanation(says=(sentence(view.note["text"]),), criteria=(test,), data=numbers)
    branches = {name.removeprefix("node_"): value for name, value in numbers.items() if name.startswith("node_")}
    if not branches:
        return Explanation(says=(sentence(view.note["text"]),), data=numbers)
    return _walked(view, branches)


def _walked(view: NoteView, branches: dict[str, float]) -> Explanation:
    """Explain one step down a tree of groups: which branch was the nearest, and by how much."""
    numbers = view.numbers
    chances = {name.removeprefix("p_"): value for name, value in numbers.items() if name.startswith("p_")}
    near = _by_cosine(view)
    took = str(int(numbers["node"]))
    what = (
        "greatest cosine with an update of that branch" if near
        else "squared distance of its signal from that branch's mean" if view.story.method == "split-half"
        else "distance to the nearest update of that branch"
    )  # fmt: skip
    order = dict(sorted(branches.items(), key=lambda item: -item[1] if near else item[1]))
    names = {name: _named(view, name) for name in order}
    says = [f"It compared itself with the branches of the tree of groups, by {what}: {ranked(order, names)}."]
    if took in branches and len(order) > 1:
        first, second = list(order)[:2]
        says.append(
            f"It went to branch {took}; it would have gone to branch {second if took == first else first} had that been the "
            f"nearer one, which took {short(abs(order[second] - order[first]))} more."
        )
    elif took not in branches:
        says.append("It was near none of them, so it became a group of its own.")
    flips = _alone(view, chances, took in branches)
    return Explanation(says=tuple(says), flips=flips, data=numbers)


def _by_cosine(view: NoteView) -> bool:
    """Return whether branches are compared by cosines, which are greater for nearer branches."""
    return view.story.method == "cfl" or (view.story.method == "flhc" and view.story.settings.get("metric") == "cosine")


def _named(view: NoteView, node: str) -> str:
    there = view.story.nodes.get(int(node))
    return f"branch {node}" + (f" ({who(there)})" if there else "")


def _alone(view: NoteView, chances: dict[str, float], joined: bool) -> tuple[Flip, ...]:
    """Return the settings that decide whether a client becomes a group of its own."""
    settings, numbers = view.story.settings, view.numbers
    if chances and "level" in settings:
        change = Change("level", ">" if joined else "<=", max(chances.values()), settings["level"])
        return (Flip((change,), ALONE if joined else JOINED),)
    threshold = settings.get("threshold")
    if view.story.method == "flhc" and threshold is not None:
        seen = [value for name, value in numbers.items() if name.startswith("node_")]
        least = 1 - max(seen) if _by_cosine(view) else min(seen)
        return (Flip((Change("threshold", "<=" if joined else ">", least, threshold),), ALONE if joined else JOINED),)
    return ()


def _seated(view: NoteView, similarity: float) -> Explanation:
    """Explain ACFL's placement of a late client: with the client most similar to it."""
    threshold, numbers = view.story.settings.get("threshold"), view.numbers
    if threshold is None:
        return Explanation(says=(sentence(view.note["text"]),), data=numbers)
    what = f"Its similarity to client {numbers['like']:.0f}, the one that it is most like,"
    test = Criterion(what, similarity, ">", threshold, "it joined that one's group", "threshold")
    then = ALONE if test.holds else "it would have joined that one's group"
    return Explanation(
        criteria=(test,), flips=(Flip((opposed(test, "threshold", threshold, similarity),), then),), data=numbers
    )


def _moved(numbers: dict[str, float]) -> Explanation:
    test = Criterion("The probability that it differs from the group it went to by chance alone (p)", numbers["p_there"], ">",
                     ALIKE, "nothing sets it apart from that group")  # fmt: skip
    says = (f"A review found that it differs from its own group: p {short(numbers['p'])} that this was chance alone.",)
    return Explanation(says=says, criteria=(test,), data=numbers)
