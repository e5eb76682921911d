"""What the server of a federation logs about limits on single clients: once for each client, and totals at the end."""

from __future__ import annotations

from dataclasses import dataclass, field

from coterie.core import Client, Round
from coterie.robust import OFF


@dataclass
class LimitLog:
    """What limits changed so far.

    Attributes:
        rounds: (setting, client as it is shown) -> the number of rounds in which the setting
            changed its replies.
        completed: The number of completed rounds.
    """

    rounds: dict[tuple[str, str], int] = field(default_factory=dict)
    completed: int = 0

    def tell(self, done: Round) -> list[str]:
        """Count what a round's limits changed.

        Args:
            done: The round.

        Returns:
            A sentence for each client that a setting changed for the first time.
        """
        self.completed = done.number
        changes: dict[tuple[str, Client], str] = {}
        for client, factor in done.scaled.items():
            changes["robust.norms", client] = (
                f"scaled its update down to {factor:.3g} of its length"
            )
        for client, claim in done.claimed.items():
            counted = done.counted.get(client, claim)
            changes["robust.share", client] = (
                f"counted {counted:,} of the {claim:,} examples that it reports"
            )
        for note in done.notes:
            if note.effect == "limits":
                changes |= {
                    ("robust.share", client): "limited what the method makes of its reports"
                    for client in note.clients
                }
        new = []
        for (setting, client), effect in sorted(changes.items()):
            key = setting, str(done.names.get(client, client))
            if key not in self.rounds:
                new.append(
                    f"client {key[1]}: {setting} {effect} (first in round {done.number}; {OFF[setting]} turns it off)"
                )
            self.rounds[key] = self.rounds.get(key, 0) + 1
        return new

    def totals(self) -> list[str]:
        """Return one sentence for each client and setting: in how many rounds it changed the client's replies."""
        return [
            f"{setting} limited client {client} in {rounds} of {self.completed} rounds: this is not the published algorithm"
            for (setting, client), rounds in sorted(self.rounds.items())
        ]
