"""FedOpt: a server optimizer moves the model of every group, with the mean update as the gradient.

S. Reddi, Z. Charles, M. Zaheer, Z. Garrett, K. Rush, J. Konečný, S. Kumar, H. B. McMahan, "Adaptive
Federated Optimization", ICLR 2021, arXiv 2003.00295, Algorithm 2 (FedAdagrad, FedYogi, FedAdam); and
FedAvgM: T. H. Hsu, H. Qi, M. Brown, "Measuring the Effects of Non-Identical Data Distribution for
Federated Visual Classification", arXiv 1909.06335, section 4.3.

Any method that adds mean updates to a model for each group can be inside: FedOpt lets it process
the replies, takes the change of each group's model as the pseudo-gradient Δ, and puts the model of
the server optimizer in its place. The method compares clients by their own updates, as it would
alone.

Deviations
- Each group has its own optimizer. The parts of a group that splits go on from copies of its moments,
  as their models go on from its model. The paper has one model.
- A group of which nobody answered keeps its model and its moments.
- Running statistics of BatchNorm are averaged. The paper uses GroupNorm.
- v begins at τ², the least value that Algorithm 2 allows.
- Means are weighted as the method inside states. Algorithm 2 has an unweighted mean; the paper's
  experiments weight by training examples, as here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import torch

from coterie.core import (
    Assignment,
    Client,
    Cohort,
    Federation,
    Needs,
    Note,
    Plan,
    Replies,
    needs_of,
    state,
)
from coterie.methods._group_models import GroupModels, group_models_of
from coterie.methods._presets import Presets
from coterie.methods.tuned import method_of
from coterie.settings import SettingError, check, setting


@state("fedopt.moments")
class GradientMoments:
    """What the optimizer of one group remembers.

    Attributes:
        mean: ``(p,)``, m: the mean of the pseudo-gradients, over the p trainable parameters.
        square: ``(p,)``, v: the mean or the sum of their squares.
    """

    mean: torch.Tensor
    square: torch.Tensor


@state("fedopt")
class FedOptState:
    """State of FedOpt.

    Attributes:
        inner: state of the method whose models are moved.
        parameters: p, the number of columns that are no buffers.
        moments: group -> what its optimizer remembers, for groups that have moved.
    """

    inner: Any
    parameters: int
    moments: Mapping[int, GradientMoments] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class FedOpt:
    """Momentum, Adagrad, Adam or Yogi at the server, for the model of every group."""

    name: ClassVar[str] = "fedopt"

    # Section 5 and appendix D of the paper. It tunes lr for each task; FedAvgM has 1.
    presets: ClassVar[Presets] = {
        "fedavgm": {"optimizer": "momentum", "lr": 1.0, "beta1": 0.9},
        "fedadagrad": {"optimizer": "adagrad", "beta1": 0.0, "tau": 1e-3},
        "fedadam": {"optimizer": "adam", "beta1": 0.9, "beta2": 0.99, "tau": 1e-3},
        "fedyogi": {"optimizer": "yogi", "beta1": 0.9, "beta2": 0.99, "tau": 1e-3},
    }

    method: Any = setting("fedavg", "the method whose models the server moves", method=True)
    optimizer: str = setting(
        "adam",
        "the server optimizer: FedAvgM, FedAdagrad, FedAdam or FedYogi",
        choices=("momentum", "adagrad", "adam", "yogi"),
    )
    lr: float | None = setting(
        None, "server learning rate (η); none: 1 with momentum, else 0.03", gt=0
    )
    beta1: float = setting(0.9, "decay of the mean of updates (β1)", ge=0, lt=1)
    beta2: float = setting(
        0.99,
        "decay of the mean of squares (β2) of adam and yogi",
        ge=0,
        lt=1,
        only_with={"optimizer": ("adam", "yogi")},
    )
    tau: float = setting(
        1e-3,
        "degree of adaptivity (τ) of all but momentum",
        gt=0,
        not_with={"optimizer": ("momentum",)},
    )

    def __post_init__(self) -> None:
        check(self)
        method = method_of(self.method, "fedopt.method")
        if group_models_of(method) is None:
            raise SettingError(
                f"fedopt.method must be a method that adds mean updates to a model for each group, got {method.name}; "
                "tuned and race take fedopt as one of their methods"
            )
        object.__setattr__(self, "method", method)

    @property
    def needs(self) -> Needs:
        """What the method inside needs."""
        inner_needs = needs_of(self.method)
        unchanged_by = inner_needs.unchanged_by
        # v has a value for each parameter, which a rotation would mix.
        if self.optimizer != "momentum" and unchanged_by == "rotation":
            unchanged_by = "signed-permutation"
        return replace(inner_needs, unchanged_by=unchanged_by, inner=(self.method,))

    @property
    def _models(self) -> GroupModels:
        """How the method inside keeps the models of its groups."""
        group_models = group_models_of(self.method)
        assert group_models is not None
        return group_models

    # -- the contract: that of the method inside, but for the models of its groups
    # -----------------------------------------------------------------------------------------------

    def init(self, federation: Federation) -> FedOptState:
        return FedOptState(
            inner=self.method.init(federation), parameters=federation.parameters.stop
        )

    def plan(self, state: FedOptState, cohort: Cohort) -> Plan:
        plan: Plan = self.method.plan(state.inner, cohort)
        return plan

    def step(self, state: FedOptState, replies: Replies) -> FedOptState:
        new_inner = self.method.step(state.inner, replies)
        if not self._models.trains(state.inner):
            return replace(state, inner=new_inner)
        models_before = self._models.of(state.inner)
        moved_models: dict[int, torch.Tensor] = {}
        moments: dict[int, GradientMoments] = {}
        for group, averaged_model in self._models.of(new_inner).items():
            # A new group goes on from the model and the moments of the group that it was part of.
            origin: int | None = group
            if group not in models_before:
                origin = self._models.origin(new_inner, group, models_before)
            # A group of newcomers alone has not been trained yet.
            if origin is None:
                continue
            model = models_before[origin]
            group_moments = state.moments.get(origin)
            if not torch.equal(averaged_model, model):
                # Δ_t: the mean of the clients' updates, which the method has added to the model.
                pseudo_gradient = (averaged_model - model)[: state.parameters]
                group_moments = self.next_moments(group_moments, pseudo_gradient)
                # Algorithm 2, line 14: x_{t+1} = x_t + its change. Buffers keep their mean.
                moved_model = averaged_model.clone()
                moved_model[: state.parameters] = model[: state.parameters]
                moved_model[: state.parameters] += self.change(group_moments)
                moved_models[group] = moved_model
            if group_moments is not None:
                moments[group] = group_moments
        new_inner = self._models.replaced(new_inner, moved_models)
        return replace(state, inner=new_inner, moments=moments)

    def assignment(self, state: FedOptState) -> Assignment:
        assignment: Assignment = self.method.assignment(state.inner)
        return assignment

    def explain(self, state: FedOptState) -> tuple[Note, ...]:
        notes: tuple[Note, ...] = self.method.explain(state.inner)
        return notes

    def admit(self, state: FedOptState, clients: tuple[Client, ...]) -> FedOptState:
        return replace(state, inner=self.method.admit(state.inner, clients))

    def retire(self, state: FedOptState, clients: tuple[Client, ...]) -> FedOptState:
        return replace(state, inner=self.method.retire(state.inner, clients))

    # -- the optimizers
    # -----------------------------------------------------------------------------------------------

    def next_moments(
        self, before: GradientMoments | None, pseudo_gradient: torch.Tensor
    ) -> GradientMoments:
        """Return the moments after a round.

        Args:
            before: Those before it; None in the first round of a group.
            pseudo_gradient: ``(p,)``, Δ_t, the mean update.
        """
        mean = torch.zeros_like(pseudo_gradient)
        square = torch.full_like(pseudo_gradient, self.tau**2)
        if before is not None:
            mean = before.mean
            square = before.square
        delta_square = pseudo_gradient.square()
        match self.optimizer:
            case "momentum":
                # Hsu et al.: m_t = β m_{t-1} + Δ_t
                return GradientMoments(mean=self.beta1 * mean + pseudo_gradient, square=square)
            case "adagrad":
                square = square + delta_square
            case "adam":
                square = self.beta2 * square + (1 - self.beta2) * delta_square
            case "yogi":
                signs = torch.sign(square - delta_square)
                square = square - (1 - self.beta2) * delta_square * signs
        # Algorithm 2, line 10: m_t = β1 m_{t-1} + (1 - β1) Δ_t
        return GradientMoments(
            mean=self.beta1 * mean + (1 - self.beta1) * pseudo_gradient, square=square
        )

    def change(self, moments: GradientMoments) -> torch.Tensor:
        """Return the change ``(p,)`` of the model: ``η m_t``, or ``η m_t / (√v_t + τ)`` (Algorithm 2, line 14)."""
        if self.optimizer == "momentum":
            return (1.0 if self.lr is None else self.lr) * moments.mean
        learning_rate = 0.03 if self.lr is None else self.lr
        return learning_rate * moments.mean / (moments.square.sqrt() + self.tau)
