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
        first: The first round that was counted; above 1 if the run was continued.
        completed: The number of completed rounds since then.
    """

    rounds: dict[tuple[str, str], int] = field(default_factory=dict)
    first: int = 0
    completed: int = 0

    def new_limits(self, finished_round: Round) -> list[str]:
        """Count what a round's limits changed.

        Args:
            finished_round: The round.

        Returns:
            A sentence for each client that a setting changed for the first time.
        """
        self.first = self.first or finished_round.number
        self.completed += 1
        # What each setting did to each client in this round. Notes come from the method.
        effects: dict[tuple[str, Client], str] = {}
        for client, scale_factor in finished_round.scaled.items():
            effects["robust.norms", client] = (
                f"scaled its update down to {scale_factor:.3g} of its length"
            )
        for client, claimed_examples in finished_round.claimed.items():
            counted = finished_round.counted.get(client, claimed_examples)
            effects["robust.share", client] = (
                f"counted {counted:,} of the {claimed_examples:,} examples that it reports"
            )
        for note in finished_round.notes:
            if note.effect == "limits":
                for client in note.clients:
                    effects["robust.share", client] = "limited what the method makes of its reports"
        # Each pair of a client and a setting is mentioned once; the totals follow at the end of the
        # run.
        sentences = []
        for (setting, client), effect_in_words in sorted(effects.items()):
            client_name = str(finished_round.names.get(client, client))
            earlier_rounds = self.rounds.get((setting, client_name), 0)
            if earlier_rounds == 0:
                sentences.append(
                    f"client {client_name}: {setting} {effect_in_words} "
                    f"(first in round {finished_round.number}; {OFF[setting]} turns it off)"
                )
            self.rounds[setting, client_name] = earlier_rounds + 1
        return sentences

    def totals(self) -> list[str]:
        """Return one sentence for each client and setting: in how many rounds it changed the client's replies."""
        # A run that continues does not count the rounds before.
        since = f" since round {self.first}" if self.first > 1 else ""
        return [
            f"{setting} limited client {client} in {limited_rounds} of {self.completed} rounds{since}: "
            "this is not the published algorithm"
            for (setting, client), limited_rounds in sorted(self.rounds.items())
        ]
