"""What limits on single clients changed in a run: whom, by how much, in how many rounds, and which setting did it.

With default settings nothing is limited in a simulation without adversaries. Where something is,
results are not those of the published algorithm, so a reader must see it: in the console, in the
verdict, in explanations and on the page.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from coterie.core import BOUND
from coterie.notebook.tables import count
from coterie.records.record import Line
from coterie.records.shown import ClientId, shown_as
from coterie.robust import OFF

SHOWN = 3
"""The greatest number of clients that a sentence names."""


@dataclass(frozen=True)
class Limit:
    """What one setting did to one client.

    Attributes:
        client: The client.
        setting: The setting.
        effect: ``scaled`` (its update), ``counted`` (its number of examples) or ``bound`` (what it
            reported to a method).
        rounds: The number of rounds in which it did that.
        amounts: The factors on the update, or the numbers of examples that counted; empty for
            ``bound``.
        claims: The numbers of examples that it reported; empty for other effects.
    """

    client: ClientId
    setting: str
    effect: str
    rounds: int
    amounts: tuple[float, ...] = ()
    claims: tuple[int, ...] = ()

    def plain(self) -> dict[str, Any]:
        """Return the limit for JSON: its fields, with the least and the greatest amount in place of all."""
        told: dict[str, Any] = {
            "client": self.client,
            "setting": self.setting,
            "effect": self.effect,
            "rounds": self.rounds,
        }
        if self.amounts:
            told |= {"least": min(self.amounts), "most": max(self.amounts)}
        if self.claims:
            told["claimed"] = max(self.claims)
        return told


def limited(lines: Sequence[Line]) -> list[Limit]:
    """Return what limits changed, by setting and client.

    Args:
        lines: The completed rounds, as shown.
    """
    scaled: dict[ClientId, list[float]] = {}
    counted: dict[ClientId, list[tuple[int, int]]] = {}
    bound: Counter[ClientId] = Counter()
    for line in lines:
        key = shown_as(line).key
        for name, factor in line.get("scaled", {}).items():
            scaled.setdefault(key(name), []).append(factor)
        for name, claim in line.get("claimed", {}).items():
            counts_as = line.get("counted", {}).get(name, claim)  # records of before do not have it
            counted.setdefault(key(name), []).append((claim, counts_as))
        bound.update(
            {
                client
                for note in line["notes"]
                if note["kind"] == BOUND
                for client in note["clients"]
            }
        )
    changes = [
        Limit(client, "robust.norms", "scaled", len(each), tuple(each))
        for client, each in scaled.items()
    ]
    for client, pairs in counted.items():
        claims, amounts = zip(*pairs, strict=True)
        changes.append(Limit(client, "robust.share", "counted", len(pairs), amounts, claims))
    changes += [Limit(client, "robust.share", "bound", rounds) for client, rounds in bound.items()]
    return changes


def limit_sentences(lines: Sequence[Line]) -> list[str]:
    """Return one sentence for each kind of change that limits made.

    Args:
        lines: The completed rounds, as shown.
    """
    changes = limited(lines)
    rounds = len(lines)
    said = []
    for effect, words in _EFFECTS.items():
        of_effect = sorted(
            (each for each in changes if each.effect == effect), key=lambda limit: -limit.rounds
        )
        if of_effect:
            setting = of_effect[0].setting
            whom = ", ".join(
                f"client {limit.client} {_amount(limit, rounds)}" for limit in of_effect[:SHOWN]
            )
            whom += ", ..." if len(of_effect) > SHOWN else ""
            clients = count(len(of_effect), "client")
            effect_on = f"{setting} {words.format(clients=clients)}: {whom}"
            said.append(f"{effect_on}. This is not the published algorithm; {OFF[setting]} is.")
    return said


def refused_sentence(lines: Sequence[Line]) -> str:
    """Return how many replies were refused, of whom and why, or an empty text.

    Args:
        lines: The completed rounds, as shown.
    """
    refusals = [(client, why) for line in lines for client, why in line["refused"].items()]
    if not refusals:
        return ""
    client, why = refusals[-1]
    many = "1 reply was" if len(refusals) == 1 else f"{len(refusals):,} replies were"
    return f"{many} refused, for example of client {client}: {why}"


def limited_clients(changes: Iterable[Limit], client: ClientId) -> list[str]:
    """Return what limits did to one client, as sentences.

    Args:
        changes: All that limits changed.
        client: The client.
    """
    mine = [limit for limit in changes if limit.client == client]
    return [f"{limit.setting} {_EFFECTS_ON_ONE[limit.effect]} {_amount(limit)}." for limit in mine]


_EFFECTS: Mapping[str, str] = {
    "scaled": "scaled down updates of {clients}",
    "counted": "counted fewer examples than reported of {clients}",
    "bound": "limited what the method computes from reports of {clients}",
}
_EFFECTS_ON_ONE: Mapping[str, str] = {
    "scaled": "scaled its updates down",
    "counted": "counted fewer examples than it reported",
    "bound": "limited what the method computes from its reports",
}


def _amount(limit: Limit, rounds: int | None = None) -> str:
    """In how many rounds, and by how much: "in 3 of 15 rounds, to 0.06 to 0.19 of their length"."""
    often = (
        f"in {limit.rounds} of {count(rounds, 'round')}"
        if rounds
        else f"in {count(limit.rounds, 'round')}"
    )
    if limit.effect == "scaled":
        return f"({often}, to {_span(limit.amounts)} of their length)"
    if limit.effect == "counted":
        return f"({often}, {_span(limit.amounts)} for {_span(limit.claims)})"
    return f"({often})"


def _span(values: Sequence[float]) -> str:
    low, high = (
        f"{value:,}" if isinstance(value, int) else f"{value:.3g}"
        for value in (min(values), max(values))
    )
    return low if low == high else f"{low} to {high}"
