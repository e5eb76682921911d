"""When a round in which replies were refused ends the run."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from coterie.core import Client
from coterie.data.world import World
from coterie.engines.membership import Roster
from coterie.settings import UserError


class RefusedError(UserError):
    """All replies of a round were refused, so that no model learns anything; the sentence names the reason and a remedy."""


MIN_REFUSED_CLIENTS = 3
"""Refused clients of a round from which on they cannot all be hostile clients that happened to be
the only ones asked."""

SILENT_SHARE = 0.8
"""Share of the clients that are present of which none may have answered when it was last asked. If
only some clients are asked in a round, all of these may be broken by chance, and the others not."""


def check_refusals(
    round_number: int,
    refused: Mapping[Client, str],
    answered: Collection[Client],
    present_clients: Collection[Client],
    roster: Roster,
    missed_clients: Collection[Client],
) -> None:
    """Check that a round had an answer, if any client answered: without one the models stay as they are, and nobody notices.

    Clients that do not answer are no refusals. Neither are hostile clients, if they were the only
    ones that were asked: that is known in a simulation, and likely where fewer than :data:`MIN_REFUSED_CLIENTS` of
    the clients of a federation were. If only some clients are asked in a round, all of them must
    have been refused in the first round (and be :data:`MIN_REFUSED_CLIENTS`), or most of all clients that are
    present when they were last asked.

    Args:
        round_number: The number of the round.
        refused: Client -> why its reply was refused.
        answered: Clients whose replies were used in some exchange of the round.
        present_clients: Clients that were present.
        roster: The clients that may take part.
        missed_clients: Members that have not answered since they were last asked, after the round.

    Raises:
        RefusedError: All replies were refused.
    """
    # A round with an answer, or with refused adversaries only, does not end the run.
    honest_clients = sorted(set(refused) - set(roster.attacks))
    if answered or not honest_clients:
        return
    # The refusals must be too many to be chance: in the first round, or of most clients since they
    # were last asked.
    many_refused = len(refused) >= min(MIN_REFUSED_CLIENTS, len(present_clients))
    all_honest = isinstance(roster, World) and not roster.attacks
    silent_clients = set(missed_clients) & set(present_clients)
    most_silent = len(silent_clients) >= SILENT_SHARE * len(present_clients)
    in_first_round = many_refused and round_number == 1
    if not in_first_round and not (most_silent and (many_refused or all_honest)):
        return
    # Name one client and its reason, and say what to change.
    client = honest_clients[0]
    refusal = refused[client]
    client_name = roster.client_names.get(client, client)
    refused_replies = "the only reply was refused"
    if len(refused) > 1:
        refused_replies = f"all {len(refused)} replies were refused"
    raise RefusedError(
        f"round {round_number}: {refused_replies}, for example that of client {client_name}: {refusal}; {_remedy(refusal)}"
    )


def _remedy(refusal: str) -> str:
    """What to change if replies are refused for this reason."""
    # The first reason that fits decides: a wrong limit, or numbers that grew without bound.
    if "robust.most_examples" in refusal:
        return "use a larger robust.most_examples"
    if not any(numeric_word in refusal for numeric_word in ("norm", "finite", "infinite", "NaN")):
        return "no model can learn from such replies"
    remedy = 'standardize the inputs (standardize = "pooled") or use a smaller training.lr'
    if "robust.norms" in refusal:
        remedy += ", or a larger robust.norms if such updates are right"
    return remedy
