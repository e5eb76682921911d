"""A small model in the place of a large one, where nobody trains it: its tensors have the same names and fewer numbers."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import replace

import torch
from torch import Tensor, nn

from coterie.layout import Layout
from coterie.randomness import Purpose, seeded
from coterie.world import World

LARGE = 1 << 14
"""Numbers of a model (d) from which on it is made smaller, and to about how many."""


def shrunk(world: World, numbers: int | None = None) -> World:
    """``world`` with a model of about so many numbers, :data:`LARGE` if none: each tensor has its share, at least one. A
    smaller model stays."""
    with seeded(0, Purpose.INIT):
        module = world.model()
        share = (numbers or LARGE) / Layout(module).size
        if share >= 1:
            return world
        for tensor in (*module.parameters(), *module.buffers()):
            flat = tensor.detach().flatten()
            tensor.data = flat[: max(1, round(len(flat) * share))].clone()  # the same object: what is shared stays so
    return replace(world, model=_like(module))


def layout_of(world: World) -> Layout:
    """The layout of its model; no random number is drawn of anybody's."""
    with seeded(0, Purpose.INIT):
        return Layout(world.model())


def lengths(small: Layout, whole: Layout) -> Mapping[int, int]:
    """Length of a row, and of its parameters, in the small model -> in the whole one."""
    return {small.trainable: whole.trainable, small.size: whole.size}


def _like(module: nn.Module) -> Callable[[], nn.Module]:
    """Makes modules whose tensors have numbers drawn from those of ``module``'s, by torch's global generator."""

    def make() -> nn.Module:
        made = copy.deepcopy(module)
        for parameter in made.parameters():
            parameter.data = _drawn(parameter.data)
        return made

    return make


def _drawn(tensor: Tensor) -> Tensor:
    return tensor[torch.randint(len(tensor), tensor.shape)]
