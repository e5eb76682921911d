"""FedBABU: FedAvg in which the head keeps its first random values, and every client fine-tunes the shared model for itself.

J. Oh, S. Kim, S.-Y. Yun, "FedBABU: Towards Enhanced Representation for Federated Image
Classification", ICLR 2022, arXiv 2106.06042, Algorithm 1. The clients train and average only the
body, under a head that is the same for all and never changes. A client is served by the shared
model after some passes of fine-tuning on its own data.

Deviations
- A client fine-tunes in every round in which it is asked, from the model that it was offered, so
  that its model is one round older than the shared one. In the paper all clients fine-tune once,
  the model after the last round. A client that was never asked is served by the shared model.
- The head is sent with the other layers, although it never changes. The paper sends only the body.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import torch

from coterie.core import (
    Client,
    Cohort,
    Feature,
    Federation,
    Needs,
    Personal,
    Plan,
    Replies,
    Stage,
    Task,
    Weighting,
    state,
)
from coterie.methods._one_model import OneModel
from coterie.methods._presets import Presets
from coterie.settings import SettingError, check, setting


@state("fedbabu")
class FedBABUState:
    """State of FedBABU.

    Attributes:
        clients: all ids.
        model: ``(d,)``, the shared model.
        body: layers that are trained.
        head: layers that keep their first values.
        still: first column, and column after the last one, of each layer of the head.
    """

    clients: tuple[Client, ...]
    model: torch.Tensor
    body: tuple[str, ...]
    head: tuple[str, ...]
    still: tuple[tuple[int, int], ...]


@dataclass(frozen=True, kw_only=True)
class FedBABU(OneModel[FedBABUState]):
    """One model for all whose head stays at its first values; every client fine-tunes it for itself."""

    name: ClassVar[str] = "fedbabu"

    # The paper's experiments.
    presets: ClassVar[Presets] = {"paper": {"tune_epochs": 5}}

    head: int = setting(1, "number of last layers that keep their first values", ge=0)
    tune_epochs: int = setting(
        5, "passes of fine-tuning (τ); 0: clients are served by the shared model", ge=0
    )
    tune: Literal["full", "head", "body"] = setting(
        "full",
        "layers that fine-tuning changes: all, the head, or the body",
        choices=("full", "head", "body"),
        not_with={"tune_epochs": (0,)},
    )
    fraction: float = setting(
        1.0, "fraction of the clients sampled in each round (f), at least one", gt=0, le=1
    )
    weighting: Weighting = setting(
        "data", "weights of the mean: by training examples, or uniform", choices=("data", "uniform")
    )

    def __post_init__(self) -> None:
        check(self)
        if self.tune == "head" and not self.head:
            raise SettingError(
                "FedBABU.tune must be full or body if FedBABU.head is 0, got head: there is no head to fine-tune"
            )

    @property
    def needs(self) -> Needs:
        """What the method needs from an engine."""
        features: list[Feature] = []
        if self.head:
            features.append("stages")
        if self.tune_epochs:
            features.append("personal-model")
        return Needs(
            features=tuple(features),
            sums_only=True,
            unchanged_by="rotation",
            fraction=self.fraction,
        )

    def init(self, federation: Federation) -> FedBABUState:
        layers = tuple(federation.columns)
        if self.head > len(layers):
            raise SettingError(
                f"FedBABU.head must be at most the {len(layers)} layers of the model, got {self.head}"
            )
        if self.tune == "body" and self.head == len(layers):
            raise SettingError(
                f"FedBABU.tune must be full or head if FedBABU.head is all {self.head} layers, got body"
            )
        # The layers are in the order of the forward pass: the last ones are the head.
        body_length = len(layers) - self.head
        body_layers = layers[:body_length]
        head_layers = layers[body_length:]
        head_columns = tuple(federation.columns[layer] for layer in head_layers)
        return FedBABUState(
            clients=federation.clients,
            model=federation.draw(0),
            body=body_layers,
            head=head_layers,
            still=head_columns,
        )

    def plan(self, state: FedBABUState, cohort: Cohort) -> Plan:
        # After the round, each client fine-tunes the shared model that it was offered; the result stays
        # with it.
        tuned_layers = {"full": (), "head": state.head, "body": state.body}[self.tune]
        personal = None
        if self.tune_epochs:
            personal = Personal(start="offered", epochs=self.tune_epochs, layers=tuned_layers)
        # In the round itself, clients train the body alone.
        task = Task(
            offered=(0,),
            stages=(Stage(layers=state.body),) if state.head else (),
            personal=personal,
        )
        return self.asking(state, cohort, task)

    def step(self, state: FedBABUState, replies: Replies) -> FedBABUState:
        if not replies.clients:
            return state
        # FedAvg of the body; the head keeps its first values.
        return replace(state, model=state.model + _without(replies.mean_updates[0], state.still))


def _without(update: torch.Tensor, head_columns: Sequence[tuple[int, int]]) -> torch.Tensor:
    """The update ``(d,)`` with zeros in some columns, where noise or a hostile client may have put something else."""
    body_update = update.clone()
    for start, stop in head_columns:
        body_update[start:stop] = 0.0
    return body_update
