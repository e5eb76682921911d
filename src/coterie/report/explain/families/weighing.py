"""MAXFL's and FedFA's decisions: which clients take part in one model, and with which weight."""

from __future__ import annotations

from typing import Any

from coterie.report.explain.view import Criterion, Explanation, NoteView, count, sentence, short


def about(settings: dict[str, Any]) -> str:
    """Return how the method decides, in a few sentences."""
    if "rule" not in settings:
        return "FedFA makes no groups: one model for all, in which clients that it serves badly weigh more."
    if settings["rule"] == "cho":
        return (
            "MAXFL makes no groups by this rule: one model for all, in which a client weighs most whose loss with it is close "
            "to its loss with a model of its own."
        )
    bar = (
        "the squared distance between it and the client's own model"
        if settings["rule"] == "distance"
        else ("its loss with a model of its own")
    )
    return (
        "MAXFL asks in every round whom the common model appeals to: a client takes part if its training loss with that model "
        f"is below {bar}. The others train on alone."
    )


def decision(view: NoteView) -> Explanation:
    """Explain a round: how many clients took part, and which were closest to the bar."""
    loss, bar = view.values("loss"), view.values("bar")
    if bar:
        joins = sum(loss[c] < bar[c] for c in loss if c in bar)
        near = sorted((c for c in loss if c in bar), key=lambda c: (abs(loss[c] - bar[c]), c))[:3]
        named = ", ".join(f"client {c} ({loss[c] - bar[c]:+.3g})" for c in near)
        said = f"The common model appealed to {joins} of {count(len(loss), 'client')}: their loss with it was below their bar."
        return Explanation(says=(said, f"The closest, by loss less bar: {named}."), data=view.numbers)
    return Explanation(says=(sentence(view.note["text"]),), data=view.numbers)


def member(view: NoteView, client: int) -> Explanation:
    """Return a client's loss, bar and weight, as far as they were recorded."""
    names = ("loss", "bar", "own_loss", "weight", "accuracy")
    found = {name: view.values(name)[client] for name in names if client in view.values(name)}
    if not found:
        return Explanation(says=("It was not heard in this round.",))
    if "bar" in found:
        what = "Its training loss with the common model"
        test = Criterion(what, found["loss"], "<", found["bar"], "so it took part", "", "so it trained on alone")
        return Explanation(criteria=(test,), data=found)
    says = []
    if "own_loss" in found:
        says.append(f"Its loss was {short(found['loss'])} with the common model and {short(found['own_loss'])} with its own.")
    if "accuracy" in found:
        says.append(f"The common model's accuracy on its training data was {short(found['accuracy'])}.")
    weights = list(view.values("weight").values())
    total = float(sum(weights))
    if "weight" in found and total > 0:
        share, equal = short(found["weight"] / total), short(1 / len(weights))
        says.append(f"Its weight was {share} of the sum of all; with equal weights it would be {equal}.")
    return Explanation(says=tuple(says), data=found)
