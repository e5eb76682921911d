"""IFCA's and FLSC's decisions: each client takes the model, or models, with the least loss on its training data."""

from __future__ import annotations

from typing import Any

from coterie.report.explain.view import Explanation, NoteView, count, sentence, short

NEAREST = 3
"""The number of clients listed, those with the closest choices."""


def about(settings: dict[str, Any]) -> str:
    """Return how the method decides, in a few sentences."""
    models = settings.get("models", 4)
    if "overlap" in settings:
        return (
            f"FLSC keeps {models} models. In every round each client measures all of them on its own training data and takes "
            f"the {settings['overlap']} with the least loss; a group is the clients with one best model."
        )
    return (
        f"IFCA keeps {models} models. In every round each client measures all of them on its own training data and takes the "
        "one with the least loss; a group is the clients that took one model."
    )


def decision(view: NoteView) -> Explanation:
    """Explain a round: how many clients changed their choice, and which choices were closest."""
    numbers = view.numbers
    starts = {name: value for name, value in numbers.items() if name.startswith("start")}
    if starts:
        return Explanation(says=(sentence(view.note["text"]),), data=numbers)
    says = []
    if "moved" in numbers:
        says.append(f"{count(int(numbers['moved']), 'client')} changed their choice.")
    margins = {client: _margin(losses) for client, losses in losses_of(view).items() if len(losses) > 1}
    if margins:
        close = sorted(margins, key=lambda client: (margins[client], client))[:NEAREST]
        named = ", ".join(f"client {client} ({short(margins[client])})" for client in close)
        says.append(f"The closest choices, by how much greater the loss with the second-best model was: {named}.")
    else:
        says.append("The losses with each of the models were not recorded.")
    return Explanation(says=tuple(says), data={**numbers, "margins": margins})


def losses_of(view: NoteView) -> dict[int, dict[int, float]]:
    """Return client -> model -> training loss, for the clients whose losses were recorded."""
    found: dict[int, dict[int, float]] = {}
    for name in view.note.get("values") or {}:
        prefix, _, model = name.partition(" ")
        if prefix == "loss" and model.isdigit():
            for client, loss in view.values(name).items():
                found.setdefault(client, {})[int(model)] = loss
    return found


def _margin(losses: dict[int, float]) -> float:
    first, second = sorted(losses.values())[:2]
    return second - first


def member(view: NoteView, client: int) -> Explanation:
    """Return a client's losses with the models that it compared."""
    losses = losses_of(view).get(client)
    model = view.values("model").get(client)
    data: dict[str, Any] = {"model": None if model is None else int(model)}
    if not losses:
        if model is None:
            kept = "It was not heard in this round and kept its choice; without one, it had the most frequent."
            return Explanation(says=(kept,), data=data)
        known = view.values("loss").get(client)
        least = f", with a loss of {short(known)}" if known is not None else ""
        return Explanation(
            says=(f"It took model {model:.0f}{least}; its losses with the others were not recorded.",), data=data
        )
    order = sorted(losses, key=lambda model: (losses[model], model))
    told_of = ", ".join(f"model {model} {short(losses[model])}" for model in order[:5])
    says = [f"Its training losses, the least first: {told_of}{', ...' if len(order) > 5 else ''}."]
    data |= {"losses": losses}
    if len(order) > 1:
        margin = losses[order[1]] - losses[order[0]]
        says.append(
            f"It took model {order[0]}, by {short(margin)}: had its loss with model {order[1]} been below "
            f"{short(losses[order[0]])}, it would have taken that first."
        )
        data |= {"margin": margin, "second": order[1]}
    return Explanation(says=tuple(says), data=data)
