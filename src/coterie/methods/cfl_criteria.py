"""CFL's decision about one group, from its Gram matrix: Algorithm 5, lines 16-20, with the numbers compared in words."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from coterie.clustering import (
    Bipartition,
    bipartition_margin,
    cosine,
    gamma_bound,
    gram,
    norm_of_mean,
    norms,
    optimal_bipartition,
    passes_gamma,
    reliability,
    sketch_error,
)  # fmt: skip
from coterie.core import Client, Groups, Note, Replies, as_groups, weights
from coterie.settings import SettingError

if TYPE_CHECKING:
    from coterie.methods.cfl import CFL
    from coterie.methods.cfl_leaves import CFLState, Leaf


@dataclass(frozen=True)
class Heard:
    """What a group said in an exchange. leaf: with peaks and losses brought up to date. clients (n,): who answered.

    mean ``(d,)``: the weighted mean update. mean_norm, client_norm: ‖Σ w_i Δ_i‖ and max_i ‖Δ_i‖, of the parameters.
    cosines ``(n, n)``: of their updates. sides: the optimal bipartition of those who answered, None of fewer than two.
    complete: all were asked. sketched: numbers of the sketches that stand for the updates, None where nothing does.
    """

    leaf: Leaf
    replies: Replies
    mean: Tensor
    mean_norm: float
    client_norm: float
    cosines: np.ndarray
    sides: Bipartition | None
    complete: bool
    sketched: int | None

    @property
    def clients(self) -> tuple[Client, ...]:
        return self.replies.clients

    def enough(self, quorum: float) -> bool:
        """Whether so many answered that the group may split."""
        return len(self.clients) >= max(2.0, quorum * len(self.leaf.clients))

    @property
    def alpha(self) -> float:
        """α_cross without the bias of few clients."""
        return without_bias(self.sides.cross, len(self.clients)) if self.sides else 1.0

    @property
    def smallest(self) -> int:
        """Clients on the smaller side."""
        return min(len(self.sides.left), len(self.sides.right)) if self.sides else 0

    @property
    def unsure(self) -> str:
        """What a note of a split says where the sketches' error could have changed the sides."""
        if self.sketched is None or bipartition_margin(self.cosines) > 2 * sketch_error(self.sketched, len(self.clients)):
            return ""
        return f"; unsure: sketches of {self.sketched} numbers may have changed the sides"

    def parts(self) -> Groups:
        """The sides as groups of client ids."""
        sides = (self.sides.left, self.sides.right) if self.sides else ()
        return as_groups([self.clients[i] for i in side] for side in sides)


def without_bias(cross: float, n: int) -> float:
    """α_cross of n clients without the bias of few.

    At a stationary point the updates of n clients sum to zero, so even of clients who agree the cosines average
    -1/(n - 1): -0.05 of 20 clients, but -0.25 of five. ``((n - 1) α + 1) / n`` is 0 there, and 1 where α is.
    """
    return ((n - 1) * cross + 1) / n


def listen(method: CFL, state: CFLState, row: int, replies: Replies) -> Heard | None:
    """What the leaf at ``row`` of the plan's models said, or None if nobody of it answered."""
    leaf = state.leaves[row]
    part = replies.of(leaf.clients)
    if not part.clients or part.updates is None:
        return None
    parameters = None if method.sketch else slice(0, state.tree.parameters)
    matrix = gram(part.updates, columns=parameters)
    w = weights(part, method.weighting)
    mean = part.mean(w) if replies.means is None else replies.means[row]
    # The norm of the step that the group takes: of a robust mean the Gram matrix does not give it.
    robust = part.averaging.needs_all
    mean_norm = float(mean[: state.tree.parameters].double().norm()) if robust else norm_of_mean(matrix, w)
    client_norm = float(norms(matrix).max())
    leaf = replace(
        leaf,
        peak=max(leaf.peak, client_norm),
        losses=_losses(leaf, part) if method.fallback else {},
    )
    complete = method.fraction == 1.0 or leaf.ask_all or leaf.gradients or method.split_rounds is not None
    cosines = cosine(matrix)
    sides = optimal_bipartition(cosines) if len(part.clients) > 1 else None
    compared = state.tree.parameters or len(mean)
    sketched = method.sketch if method.sketch and method.sketch < compared else None
    return Heard(leaf, part, mean, mean_norm, client_norm, cosines, sides, complete, sketched)


def _losses(leaf: Leaf, part: Replies) -> dict[Client, float]:
    """The members' latest validation losses, brought up to date."""
    new = {client: losses[0] for client, losses in zip(part.clients, part.losses, strict=True)}
    if any(np.isnan(loss) for loss in new.values()):
        raise SettingError("CFL.fallback true needs validation data of every client, and this scenario has none for some")
    return {**leaf.losses, **new}


def decide(method: CFL, heard: Heard, round: int) -> Note:
    """Split, keep, or ask: the criteria in turn. round: the one being decided, from 1."""
    leaf = heard.leaf
    relative = method.scale == "relative"
    eps1 = method.eps1 * (heard.client_norm if relative else 1.0)
    eps2 = method.eps2 * (leaf.peak if relative else 1.0)
    if len(leaf.clients) < 2:
        return note(heard, "keep", "a group of one cannot split")
    if round <= method.warmup:
        return note(heard, "keep", f"round {round} is within the warm-up of {method.warmup}")
    numbers = {"eps1": eps1, "eps2": eps2}
    if method.gamma_max is None and leaf.ask_all and heard.replies.halves is not None and heard.enough(method.quorum):
        # The updates of halves are of half the steps, and no norms to compare; the last whole ones passed.
        return _held(method, leaf, separate(method, heard, "stationary and at odds before", numbers))
    mean, most = f"mean update {heard.mean_norm:.3g}", f"greatest update {heard.client_norm:.3g}"
    if not heard.mean_norm < eps1:
        return note(heard, "keep", f"not stationary: {mean} >= eps1 {eps1:.3g}", numbers=numbers)
    said = f"stationary: {mean} < eps1 {eps1:.3g}"
    if not heard.client_norm >= eps2:
        return note(heard, "keep", f"{said}; but in agreement: {most} < eps2 {eps2:.3g}", numbers=numbers)
    said += f"; at odds: {most} >= eps2 {eps2:.3g}"
    if not heard.complete:
        return note(heard, "ask", f"{said}; all members are asked next time", numbers=numbers)
    if not heard.enough(method.quorum):
        text = f"{said}; but only {len(heard.clients)} of {len(leaf.clients)} members answered, so asked again"
        return note(heard, "ask", text, numbers=numbers)
    if method.similarity == "updates":
        found = separate(method, heard, said, numbers)
    else:
        found = note(heard, "gradients", f"{said}; gradients are asked for next", numbers=numbers)
    return _held(method, leaf, found)


def _held(method: CFL, leaf: Leaf, found: Note) -> Note:
    """The verdict, once it has been the same for long enough."""
    if found.kind in ("keep", "ask") or method.persistence == 1:
        return found
    text = f"{found.text}; round {leaf.held + 1} of {method.persistence} in a row"
    found = replace(found, text=text, numbers={**found.numbers, "held": float(leaf.held + 1)})
    return found if leaf.held + 1 >= method.persistence else replace(found, kind="hold", parts=(), similarity={})


def separate(method: CFL, heard: Heard, said: str, numbers: Mapping[str, float] = MappingProxyType({})) -> Note:
    """Algorithm 1's sides of the members heard, and the test of gamma_max."""
    assert heard.sides is not None
    cross, test = heard.sides.cross, f"alpha_cross {heard.sides.cross:.3f}"
    if method.scale == "relative":
        cross = heard.alpha
        test += f" ({cross:.3f} corrected for {len(heard.clients)} clients)"
    test += f", so gamma may be up to {gamma_bound(cross):.3f}"
    gamma_max = method.gamma_max if method.gamma_max is not None else measured_gamma(heard.replies)
    if gamma_max is None and heard.leaf.ask_all:
        text = f"{said}; but gamma_max cannot be measured: fewer than two members sent updates of halves"
        return note(heard, "keep", text, numbers=numbers)
    if gamma_max is None:
        return note(heard, "ask", f"{said}; gamma_max is measured next, from halves", numbers=numbers)
    limit = f"gamma_max {gamma_max:.3g}" + (" as measured" if method.gamma_max is None else "")
    numbers = {**numbers, "gamma_bound": gamma_bound(cross)} | ({"gamma_max": gamma_max} if np.isfinite(gamma_max) else {})
    if gamma_max >= 1 or not passes_gamma(cross, gamma_max):
        return note(heard, "keep", f"{said}; but not separable: {test} <= {limit}", numbers=numbers)
    if heard.smallest < method.min_cluster_size:
        text = f"{said}; but a side would have fewer than min_cluster_size {method.min_cluster_size} clients"
        return note(heard, "keep", text, numbers=numbers)
    text = f"{said}; separable: {test} > {limit}{heard.unsure}"
    return note(heard, "split", text, heard.parts(), numbers)


def measured_gamma(replies: Replies) -> float | None:
    """γ_max as the halves of those who sent them tell it: the greatest noise over signal, ``sqrt(1/ρ_i - 1)``; infinite where
    one shows nothing but noise, None of fewer than two."""
    halves = replies.of(replies.halved).halves
    if halves is None or len(halves) < 4:
        return None
    least = float(reliability(halves).min())
    return float(np.sqrt(1 / least - 1)) if least > 0 else float("inf")


def by_schedule(heard: Heard, chosen: int) -> Note:
    """Split the node ``chosen`` for this round; keep every other."""
    if heard.leaf.node != chosen or heard.sides is None:
        return note(heard, "keep", "not chosen by split_rounds")
    test = f"alpha_cross {heard.sides.cross:.3f} ({heard.alpha:.3f} corrected for {len(heard.clients)} clients)"
    text = f"chosen by split_rounds as the least alike group: {test}{heard.unsure}"
    return note(heard, "split", text, heard.parts())


def note(
    heard: Heard, kind: str, text: str, parts: Groups = (), numbers: Mapping[str, float] = MappingProxyType({})
) -> Note:
    """A note about a group, with its norms and α_cross among the numbers; of a split, with the cosines too."""
    leaf = heard.leaf
    known = {
        "node": float(leaf.node), "heard": float(len(heard.clients)), "peak": leaf.peak,
        "mean_norm": heard.mean_norm, "client_norm": heard.client_norm,
    }  # fmt: skip
    if heard.sides is not None:
        known |= {"alpha_cross": heard.sides.cross, "smaller_side": float(heard.smallest)}
    return Note(
        kind=kind, clients=leaf.clients, text=text, parts=parts, numbers={**known, **numbers}, heard=heard.clients,
        similarity={"all": torch.from_numpy(heard.cosines).float()} if parts else {},
    )  # fmt: skip
