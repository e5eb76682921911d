"""Methods that make no groups, and methods that are not known here, which are explained by their notes."""

from __future__ import annotations

from typing import Any

from coterie.report.explain.view import Explanation, NoteView, sentence, who

ABOUT = {
    "fedavg": "FedAvg makes no groups and takes no decision: one model serves all clients.",
    "independent": "Independent makes no groups: every client trains alone, and nothing is sent.",
    "fedper": "FedPer makes no groups: all clients share the lower layers of one model, and each keeps its own last ones.",
}


class Plain:
    """Explanations by the text of the notes.

    Args:
        name: The name of the method.
    """

    def __init__(self, name: str) -> None:
        self.name = name

    def about(self, settings: dict[str, Any]) -> str:
        """Return how the method decides, if it is known here."""
        return ABOUT.get(self.name, f"What {self.name} says of its own decisions is told in its words.")

    def decision(self, view: NoteView) -> Explanation:
        """Return the note's text."""
        text = sentence(view.note["text"])
        return Explanation(says=(text,) if text else (), data=view.numbers)

    def member(self, view: NoteView, client: int) -> Explanation:
        """Return the part that the client came to, and its numbers by the names that the method gave them."""
        side = next((part for part in view.parts if client in part), None)
        found = {name: view.values(name)[client] for name in view.note.get("values") or {} if client in view.values(name)}
        says = [f"It came to {who(side)}."] if side else []
        says += [f"Its {name}: {value:.3g}." for name, value in found.items()]
        return Explanation(says=tuple(says), data={**({"side": list(side)} if side else {}), **found})
