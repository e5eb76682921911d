"""Methods of a race that use the same replies: one that would be told the same as another costs nothing.

A method with one model for all that equals the models which another method offers in a round, such
as FedAvg next to a method that has not split yet, uses the replies to that method's tasks. It is
the *guest* of its *host*.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from coterie.core import Cohort, Plan, Replies, group_means

SHARED_EXCHANGE = "+"
"""Between the names of arms that use the same replies."""


def shared(plans: Mapping[str, Plan]) -> dict[str, Plan]:
    """Return the parts of a plan; an arm that may use the replies of another one has no part of its own.

    Args:
        plans: Name of an arm -> its plan.

    Returns:
        Name of an arm, or names joined by :data:`SHARED_EXCHANGE` -> plan.
    """
    host_of_guest: dict[str, str] = {}
    # The first arm that can serve as a host does. A host trains itself, so it is nobody's guest.
    for arm_name, plan in plans.items():
        if arm_name in host_of_guest.values():
            continue
        for host, host_plan in plans.items():
            if host != arm_name and host not in host_of_guest and _serves(host_plan, plan):
                host_of_guest[arm_name] = host
                break
    # A part has the names of its host and of all guests.
    parts = {}
    for arm_name, plan in plans.items():
        if arm_name not in host_of_guest:
            guests = [guest for guest, host in host_of_guest.items() if host == arm_name]
            parts[SHARED_EXCHANGE.join((arm_name, *guests))] = plan
    return parts


def _serves(host: Plan, guest: Plan) -> bool:
    """Whether the replies to ``host`` are those to ``guest``, which trains one model at all of the same clients."""
    # The layers that clients keep would be lost with the name of the part.
    if any(task.local_layers for task in guest.tasks.values()):
        return False
    # What a host adds to gradients, its guest does not.
    if any(task.corrected for task in host.tasks.values()):
        return False
    # The guest must need no more than the mean of updates from one model, and the host must have it.
    if host.parts or guest.parts or len(guest.models) != 1 or guest.need != "mean":
        return False
    if host.need not in ("rows", "mean") or host.sketch:
        return False
    # Both must ask the same clients, weigh them in the same way, and end the round together.
    same_clients = host.tasks.keys() == guest.tasks.keys()
    if not same_clients or host.weighting != guest.weighting:
        return False
    if host.ends_round != guest.ends_round:
        return False
    # A client that trains on halves does the same work as one that trains on all its examples, and so
    # does one that measures its model first.
    plain_tasks = set()
    for task in host.tasks.values():
        training = None if task.halves else task.training
        plain_tasks.add(replace(task, offered=(0,), halves=False, training=training, measure=None))
    guest_tasks = {replace(task, measure=None) for task in guest.tasks.values()}
    offered_rows = {task.offered for task in host.tasks.values()}
    if plain_tasks != guest_tasks or len(offered_rows) != 1:
        return False
    # The models need not be equal bit by bit: sums in another order differ in their last digits.
    ((offered_row,),) = offered_rows
    return torch.allclose(host.models[offered_row], guest.models[0], rtol=1e-4, atol=1e-6)


def as_means(replies: Replies, guest: Any, arm_state: Any) -> Replies:
    """Return the replies of clients that trained one model as those to the plan of a guest, which needs their mean."""
    if replies.updates is None:
        # Without a reply, all means are zeros.
        model_row = replies.chosen[0][0] if replies.chosen else 0
        mean_updates = replies.mean_updates[model_row : model_row + 1]
        mean_counts = np.array([len(replies.clients)])
    else:
        # The guest's plan says how it weighs clients.
        guest_plan = guest.plan(arm_state, Cohort(present=replies.clients, exchange=0, seed=0))
        mean_updates, mean_counts = group_means(replies, [replies.clients], guest_plan.weighting)
    return replace(
        replies,
        chosen=((0,),) * len(replies.clients),
        means=mean_updates,
        mean_counts=mean_counts,
        updates=None,
        halves=None,
    )
