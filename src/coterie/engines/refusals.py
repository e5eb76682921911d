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
    round: int,
    refused: Mapping[Client, str],
    answered: Collection[Client],
    present_clients: Collection[Client],
    roster: Roster,
    missed: Collection[Client],
) -> None:
    """Check that a round had an answer, if any client answered: without one the models stay as they are, and nobody notices.

    Clients that do not answer are no refusals. Neither are hostile clients, if they were the only
    ones that were asked: that is known in a simulation, and likely where fewer than :data:`MIN_REFUSED_CLIENTS` of
    the clients of a federation were. If only some clients are asked in a round, all of them must
    have been refused in the first round (and be :data:`MIN_REFUSED_CLIENTS`), or most of all clients that are
    present when they were last asked.

    Args:
        round: The number of the round.
        refused: Client -> why its reply was refused.
        answered: Clients whose replies were used in some exchange of the round.
        present_clients: Clients that were present.
        roster: The clients that may take part.
        missed: Members that have not answered since they were last asked, after the round.

    Raises:
        RefusedError: All replies were refused.
    """
    honest = sorted(set(refused) - set(roster.attacks))
    if answered or not honest:
        return
    many_refused = len(refused) >= min(MIN_REFUSED_CLIENTS, len(present_clients))
    all_honest = isinstance(roster, World) and not roster.attacks
    silent = set(missed) & set(present_clients)
    most_silent = len(silent) >= SILENT_SHARE * len(present_clients)
    in_first_round = many_refused and round == 1
    if not in_first_round and not (most_silent and (many_refused or all_honest)):
        return
    client = honest[0]
    why = refused[client]
    name = roster.client_names.get(client, client)
    replies = "the only reply was refused"
    if len(refused) > 1:
        replies = f"all {len(refused)} replies were refused"
    raise RefusedError(
        f"round {round}: {replies}, for example that of client {name}: {why}; {_remedy(why)}"
    )


def _remedy(why: str) -> str:
    """What to change if replies are refused for this reason."""
    if "robust.most_examples" in why:
        return "use a larger robust.most_examples"
    if not any(word in why for word in ("norm", "finite", "infinite", "NaN")):
        return "no model can learn from such replies"
    remedy = 'standardize the inputs (standardize = "pooled") or use a smaller training.lr'
    if "robust.norms" in why:
        remedy += ", or a larger robust.norms if such updates are right"
    return remedy
