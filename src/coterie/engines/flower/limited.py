"""What the server of a federation logs about limits on single clients: once for each client, and totals at the end."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from coterie.core import Client, Round
from coterie.robust import OFF

NORM_SCALED = "scaled"
"""An update was scaled down."""

CLAIM_REDUCED = "counted"
"""A client counted for fewer examples than it reported."""

REPORTS_LIMITED = "bound"
"""What the method makes of a client's reports was limited."""

SETTING_OF_EFFECT = {
    NORM_SCALED: "robust.norms",
    CLAIM_REDUCED: "robust.share",
    REPORTS_LIMITED: "robust.share",
}
"""Effect -> the setting that had it."""

USUAL_MEANING = (
    "usual for a client that differs from all others, also an honest one; nothing need be done"
)
"""What a limit on a client's reports means, unlike the other two: honest sites have it, too."""


class LimitMessage(NamedTuple):
    """A sentence for the log.

    Attributes:
        text: The sentence.
        warns: Whether somebody should look at the client. Limits on reports are usual.
    """

    text: str
    warns: bool


@dataclass
class LimitLog:
    """What limits changed so far.

    Attributes:
        rounds: (effect, client) -> the number of rounds in which limits had this effect on the
            client's replies.
        names: Client -> its name, if it has one.
        completed: The number of completed rounds.
    """

    rounds: dict[tuple[str, Client], int] = field(default_factory=dict)
    names: dict[Client, str] = field(default_factory=dict)
    completed: int = 0

    @classmethod
    def of_records(
        cls, recorded_lines: Iterable[Mapping[str, Any]], names: Mapping[Client, str]
    ) -> LimitLog:
        """Return what limits changed in the recorded rounds of a run that continues.

        Args:
            recorded_lines: The lines of ``rounds.jsonl``.
            names: Client -> its name.
        """
        limit_log = cls(names=dict(names))
        for line in recorded_lines:
            limit_log.completed = line["round"]
            effects = [(NORM_SCALED, int(client)) for client in line.get("scaled", ())]
            effects += [(CLAIM_REDUCED, int(client)) for client in line.get("claimed", ())]
            bound_clients: set[Client] = set()
            for note in line["notes"]:
                if note["effect"] == "limits":
                    bound_clients.update(note["clients"])
            effects += [(REPORTS_LIMITED, client) for client in sorted(bound_clients)]
            for effect in effects:
                limit_log.rounds[effect] = limit_log.rounds.get(effect, 0) + 1
        return limit_log

    def new_limits(self, finished_round: Round) -> list[LimitMessage]:
        """Count what a round's limits changed.

        Args:
            finished_round: The round.

        Returns:
            A sentence for each client on which limits had an effect for the first time.
        """
        self.completed = finished_round.number
        self.names.update(finished_round.names)
        # What limits did to each client in this round. Notes come from the method.
        words_of_effect: dict[tuple[str, Client], str] = {}
        for client, scale_factor in finished_round.scaled.items():
            words_of_effect[NORM_SCALED, client] = (
                f"scaled its update down to {scale_factor:.3g} of its length"
            )
        for client, claimed_examples in finished_round.claimed.items():
            counted = finished_round.counted.get(client, claimed_examples)
            words_of_effect[CLAIM_REDUCED, client] = (
                f"counted {counted:,} of the {claimed_examples:,} examples that it reports"
            )
        for note in finished_round.notes:
            if note.effect == "limits":
                for client in note.clients:
                    words_of_effect[REPORTS_LIMITED, client] = (
                        f"limited what the method makes of its reports: {USUAL_MEANING}"
                    )
        # Each effect on a client is mentioned once; the totals follow at the end of the run.
        messages = []
        for (effect, client), effect_in_words in sorted(words_of_effect.items()):
            earlier_rounds = self.rounds.get((effect, client), 0)
            setting = SETTING_OF_EFFECT[effect]
            if earlier_rounds == 0:
                text = (
                    f"client {self._name(client)}: {setting} {effect_in_words} "
                    f"(first in round {finished_round.number}; {OFF[setting]} turns it off)"
                )
                messages.append(LimitMessage(text, effect != REPORTS_LIMITED))
            self.rounds[effect, client] = earlier_rounds + 1
        return messages

    def totals(self) -> list[LimitMessage]:
        """Return one sentence for each effect and client: in how many rounds limits had it."""
        messages = []
        for (effect, client), limited_rounds in sorted(self.rounds.items()):
            meaning = (
                USUAL_MEANING
                if effect == REPORTS_LIMITED
                else "this is not the published algorithm"
            )
            limited = "reports of client" if effect == REPORTS_LIMITED else "client"
            text = (
                f"{SETTING_OF_EFFECT[effect]} limited {limited} {self._name(client)} "
                f"in {limited_rounds} of {self.completed} rounds: {meaning}"
            )
            messages.append(LimitMessage(text, effect != REPORTS_LIMITED))
        return messages

    def _name(self, client: Client) -> str:
        return self.names.get(client, str(client))
