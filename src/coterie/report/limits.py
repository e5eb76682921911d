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

from coterie.notebook.tables import count
from coterie.records.shown import ClientId, Line, shown_as
from coterie.robust import OFF

MAX_CLIENTS_IN_SENTENCE = 3
"""The greatest number of clients that a sentence about limits names."""


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
        """Return the limit for JSON: its fields, with the least and the greatest amount only."""
        fields: dict[str, Any] = {
            "client": self.client,
            "setting": self.setting,
            "effect": self.effect,
            "rounds": self.rounds,
        }
        if self.amounts:
            fields["least"] = min(self.amounts)
            fields["most"] = max(self.amounts)
        if self.claims:
            fields["claimed"] = max(self.claims)
        return fields


def limited(lines: Sequence[Line]) -> list[Limit]:
    """Return what limits changed, by setting and client.

    Args:
        lines: The completed rounds, as shown.
    """
    # What each setting changed, by client, in the order of the rounds.
    factors: dict[ClientId, list[float]] = {}
    claims: dict[ClientId, list[int]] = {}
    counts: dict[ClientId, list[int]] = {}
    bound_rounds: Counter[ClientId] = Counter()
    for line in lines:
        client_id = shown_as(line).key
        for key, factor in line.get("scaled", {}).items():
            factors.setdefault(client_id(key), []).append(factor)
        for key, claim in line.get("claimed", {}).items():
            client = client_id(key)
            claims.setdefault(client, []).append(claim)
            # Older records do not say how many examples counted.
            counts.setdefault(client, []).append(line.get("counted", {}).get(key, claim))
        bound_rounds.update(_bound_clients(line))
    limits = []
    # robust.norms scales updates; robust.share limits what a client counts and what it reports.
    for client, factors_of_client in factors.items():
        num_rounds = len(factors_of_client)
        limits.append(Limit(client, "robust.norms", "scaled", num_rounds, tuple(factors_of_client)))
    for client, amounts_counted in counts.items():
        limits.append(
            Limit(
                client,
                "robust.share",
                "counted",
                rounds=len(amounts_counted),
                amounts=tuple(amounts_counted),
                claims=tuple(claims[client]),
            )
        )
    for client, num_rounds in bound_rounds.items():
        limits.append(Limit(client, "robust.share", "bound", num_rounds))
    return limits


def _bound_clients(line: Line) -> set[ClientId]:
    """Return the clients whose reports to a method were limited in a round."""
    clients: set[ClientId] = set()
    for note in line["notes"]:
        if note["effect"] == "limits":
            clients.update(note["clients"])
    return clients


def limit_sentences(limits: Sequence[Limit], num_rounds: int) -> list[str]:
    """Return one sentence for each kind of change that limits made.

    Args:
        limits: What limits changed.
        num_rounds: The number of completed rounds.
    """
    sentences = []
    for effect, words in _EFFECTS.items():
        of_effect = [limit for limit in limits if limit.effect == effect]
        if of_effect:
            # The most frequently limited clients are named.
            of_effect.sort(key=lambda limit: -limit.rounds)
            sentences.append(_limit_sentence(of_effect, words, num_rounds))
    return sentences


def _limit_sentence(limits: Sequence[Limit], words: str, num_rounds: int) -> str:
    """Return the sentence about limits with one effect, which ``words`` describe."""
    # Each effect has one setting.
    setting = limits[0].setting
    effect = words.format(clients=count(len(limits), "client"))
    named = []
    for limit in limits[:MAX_CLIENTS_IN_SENTENCE]:
        named.append(f"client {limit.client} {_amount(limit, num_rounds)}")
    # The number of clients is in the sentence already.
    if len(limits) > MAX_CLIENTS_IN_SENTENCE:
        named.append("...")
    meaning = f"This is not the published algorithm; {OFF[setting]} is."
    # Reports of an honest client are limited, too, so a reader must not take it for an attack.
    if limits[0].effect == "bound":
        meaning = (
            "This is usual for a client that differs from all others, also an honest one; "
            f"{OFF[setting]}, the published algorithm, turns it off."
        )
    return f"{setting} {effect}: {', '.join(named)}. {meaning}"


def refused_sentence(lines: Sequence[Line]) -> str:
    """Return how many replies were refused, of whom and why, or an empty text.

    Args:
        lines: The completed rounds, as shown.
    """
    refusals: list[tuple[str, str]] = []
    for line in lines:
        refusals += line["refused"].items()
    if not refusals:
        return ""
    # The last refusal is the example.
    client, reason = refusals[-1]
    replies = "1 reply was" if len(refusals) == 1 else f"{len(refusals):,} replies were"
    return f"{replies} refused, for example of client {client}: {reason}"


def limited_clients(limits: Iterable[Limit], client: ClientId) -> list[str]:
    """Return what limits did to one client, as sentences.

    Args:
        limits: What limits changed.
        client: The client.
    """
    sentences = []
    for limit in limits:
        if limit.client == client:
            effect = _EFFECTS_ON_ONE[limit.effect]
            meaning = ""
            if limit.effect == "bound":
                meaning = ": usual for a client that differs from all others, also an honest one"
            sentences.append(f"{limit.setting} {effect} {_amount(limit)}{meaning}.")
    return sentences


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


def _amount(limit: Limit, num_rounds: int | None = None) -> str:
    """In how many rounds, and by how much: "(in 3 of 15 rounds, to 0.06 to 0.19 of their length)"."""
    frequency = f"in {count(limit.rounds, 'round')}"
    if num_rounds:
        frequency = f"in {limit.rounds} of {count(num_rounds, 'round')}"
    match limit.effect:
        case "scaled":
            return f"({frequency}, to {_span(limit.amounts)} of their length)"
        case "counted":
            return f"({frequency}, {_span(limit.amounts)} for {_span(limit.claims)})"
        case _:
            return f"({frequency})"


def _span(values: Sequence[float]) -> str:
    low = _number(min(values))
    high = _number(max(values))
    return low if low == high else f"{low} to {high}"


def _number(value: float) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:.3g}"
