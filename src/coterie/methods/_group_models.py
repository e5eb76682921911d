"""The models of a method's groups, for a server that moves them otherwise than by adding the mean update.

This works for methods in which every group has one model, and a round adds to it the mean update of
the group's clients: one model for all; CFL, split-half and FL+HC, whose groups are leaves of a tree;
and IFCA, whose groups are those of its k models. It does not for methods whose groups start from
means of several models (HCCT, FLSC), which compare several starts (IFCA with restarts), whose clients
have models of their own at the server (ACFL, FedAMP), or whose server weights updates in its own way
(FedFA, MAXFL).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Protocol

import torch

from coterie.methods._cluster_tree import HasLeaves
from coterie.methods._model_choice import ChoosingState
from coterie.methods._one_model import OneModel
from coterie.methods.cfl import CFL
from coterie.methods.flhc import FLHC, FLHCState
from coterie.methods.ifca import IFCA
from coterie.methods.split_half import SplitHalf

Models = Mapping[int, "torch.Tensor"]
"""Group -> its model ``(d,)``. A group keeps its number as long as it lasts."""


class GroupModels(Protocol):
    """The models of the groups in a method's state.

    ``trains``: whether the next exchange moves models by mean updates. ``of``: the models. ``origin``:
    of the groups before an exchange, the one of which a new group was a part; None for a group of
    clients that were in none. ``replaced``: the state with other models for some groups.
    """

    def trains(self, state: Any) -> bool: ...
    def of(self, state: Any) -> Models: ...
    def origin(self, state: Any, group: int, models_before: Models) -> int | None: ...
    def replaced(self, state: Any, models: Models) -> Any: ...


class _Single:
    """One model for all clients."""

    def trains(self, state: Any) -> bool:
        return True

    def of(self, state: Any) -> Models:
        return {0: state.model}

    def origin(self, state: Any, group: int, models_before: Models) -> int | None:
        return 0

    def replaced(self, state: Any, models: Models) -> Any:
        return replace(state, model=models[0]) if models else state


class _Chosen:
    """k models, of which each client chooses one; group j is that of model j."""

    def trains(self, state: ChoosingState) -> bool:
        # k-means++ trains the first models one after the other, each by a single client.
        return state.starts[0].centres is None

    def of(self, state: ChoosingState) -> Models:
        return dict(enumerate(state.starts[0].models))

    def origin(self, state: ChoosingState, group: int, models_before: Models) -> int | None:
        return group

    def replaced(self, state: ChoosingState, models: Models) -> ChoosingState:
        start = state.starts[0]
        rows = [models.get(row, model) for row, model in enumerate(start.models)]
        return replace(state, starts=(replace(start, models=torch.stack(rows)),))


class _Leaves:
    """The leaves of a tree; a group's number is its node."""

    def trains(self, state: Any) -> bool:
        # Split-half also has exchanges that review the groups, and may merge some.
        return getattr(state, "stage", "train") == "train"

    def of(self, state: HasLeaves) -> Models:
        return {leaf.node: leaf.model for leaf in state.leaves}

    def origin(self, state: Any, group: int, models_before: Models) -> int | None:
        # The nearest node above that was a leaf.
        node: int | None = group
        while node is not None and node not in models_before:
            node = state.tree.nodes[node].parent
        return node

    def replaced(self, state: Any, models: Models) -> Any:
        leaves = []
        for leaf in state.leaves:
            leaves.append(replace(leaf, model=models.get(leaf.node, leaf.model)))
        return replace(state, leaves=tuple(leaves))


class _RowsOfLeaves(_Leaves):
    """FL+HC: its leaves are nodes, and their models rows."""

    def of(self, state: FLHCState) -> Models:  # type: ignore[override]
        return dict(zip(state.leaves, state.models, strict=True))

    def replaced(self, state: FLHCState, models: Models) -> FLHCState:
        rows = []
        for node, model in zip(state.leaves, state.models, strict=True):
            rows.append(models.get(node, model))
        return replace(state, models=torch.stack(rows))


def group_models_of(method: Any) -> GroupModels | None:
    """Return how a method keeps the models of its groups; None if it has no model for each group."""
    match method:
        case OneModel():
            return _Single()
        case IFCA(restarts=1):
            return _Chosen()
        case CFL() | SplitHalf():
            return _Leaves()
        case FLHC():
            return _RowsOfLeaves()
    return None
