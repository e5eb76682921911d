"""What the split-half test says of clients at a model that Federated Learning has come to, beside CFL's separation gap."""

from __future__ import annotations

from typing import Any

from coterie.clustering import congruence, congruent_groups
from coterie.core import Plan, Position, Task
from coterie.data.world import World
from coterie.methods import SplitHalf
from coterie.methods._half_steps import of_equal_steps
from coterie.methods._split_half_probes import evidence_of
from coterie.report.summary import agreement
from papers.numbers import short
from papers.running import asked
from papers.study import Resources
from papers.watched import Watched

SPLIT_HALF = "split-half"


def seen(on: Resources, position: Position, world: World, seed: int) -> dict[str, Any]:
    """After a :class:`~papers.watched.Watched` run, one probe of everybody: ``p``, that all are congruent; the
    number of ``groups`` at split-half's own level, and their ``ari`` with the true ones. All None
    where clients have too few examples for two halves."""
    clients = position.state.clients
    sizes = [len(world.clients[client].train) for client in clients]
    task = Task(offered=(0,), halves=True, training=of_equal_steps(world.training, sizes))
    plan = Plan(
        models=position.state.model[None],
        tasks=dict.fromkeys(clients, task),
        need="mean",
        columns=position.state.columns,
    )
    evidence = evidence_of(asked(on, Watched(), plan, position, world, seed))
    if evidence is None or len(evidence.clients) < len(clients):
        return {"p": None, "groups": None, "ari": None}
    products = evidence.products.numpy()
    found = congruent_groups(products, SplitHalf().level).groups
    groups = [[evidence.clients[i] for i in group] for group in found]
    return {
        "p": short(congruence(products).p),
        "groups": len(groups),
        "ari": agreement(groups, world.truth),
    }
