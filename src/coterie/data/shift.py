"""What makes groups of clients differ: each group calls its classes otherwise, or sees its images turned.

A label shift only changes targets; a rotation makes one turned pool per angle. No pool is copied per client.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from coterie.settings import SettingError

SHIFTS = ("none", "label-permutation", "label-swap", "rotation")

SWAPS = ((1, 7), (3, 5), (0, 8), (2, 6))
"""Labels that look alike as digits, exchanged by groups 0, 1, 2 and 3 (CFL §VI-A exchanges 1-7 and 3-5)."""


@dataclass(frozen=True, eq=False)
class Shift:
    """One group's view: labels ``(classes,)`` int64, what it calls each class, or None; quarter turns of its images."""

    labels: Tensor | None = None
    turns: int = 0

    def targets(self, true: Tensor) -> Tensor:
        """What this group calls the classes ``true``; same shape."""
        return true if self.labels is None else self.labels[true]

    def inputs(self, images: Tensor) -> Tensor:
        """The images ``(N, C, H, W)`` as this group sees them, turned counter-clockwise."""
        return images if not self.turns else torch.rot90(images, self.turns, (2, 3)).contiguous()


def deal(clients: int, groups: int, rng: np.random.Generator | None) -> np.ndarray:
    """``(clients,)`` the group of each client; sizes differ by one at most.

    In random order, so that ids tell nothing; with ``rng`` None client i goes to group ``i % groups``.
    """
    if groups > clients:
        raise SettingError(f"{groups} groups need at least as many clients, got {clients}")
    dealt = np.arange(clients) % groups
    return dealt if rng is None else rng.permutation(dealt)


def label_permutations(groups: int, classes: int, rng: np.random.Generator, identity: bool = False) -> list[Shift]:
    """One random permutation of the labels per group, all different; with ``identity`` group 0 keeps its labels.

    CFL (Sattler, Mueller, Samek 2019), §VI-C.
    """
    if classes < 6 and groups > np.prod(np.arange(1, classes + 1)):
        raise SettingError(f"{classes} classes have too few permutations for {groups} groups")
    found: dict[tuple[int, ...], None] = {tuple(range(classes)): None} if identity else {}
    while len(found) < groups:
        found.setdefault(tuple(int(c) for c in rng.permutation(classes)))
    return [Shift(torch.tensor(permutation)) for permutation in found]


def label_swaps(groups: int, classes: int, pairs: Sequence[Sequence[int]] = SWAPS) -> list[Shift]:
    """Group g exchanges the two labels ``pairs[g]`` (CFL §VI-A, FL+HC §III)."""
    pairs = [tuple(pair) for pair in pairs]
    if len(pairs) < groups:
        raise SettingError(f"label-swap with {groups} groups needs as many pairs of labels, got {len(pairs)}")
    for pair in pairs[:groups]:
        if len(pair) != 2 or pair[0] == pair[1] or not all(0 <= label < classes for label in pair):
            raise SettingError(f"a swap must be two different labels from 0 to {classes - 1}, got {list(pair)}")
    if len({frozenset(pair) for pair in pairs[:groups]}) < groups:
        raise SettingError("two groups would swap the same labels; give each its own pair")
    made = []
    for a, b in pairs[:groups]:
        labels = torch.arange(classes)
        labels[[a, b]] = labels[[b, a]]
        made.append(Shift(labels))
    return made


def rotations(groups: int, shape: Sequence[int], angles: Sequence[int] = ()) -> list[Shift]:
    """Group g sees its images turned by ``angles[g]`` degrees, multiples of 90; by default evenly spread over 360.

    IFCA (Ghosh et al. 2020) turns MNIST by 0, 90, 180 and 270 degrees, CIFAR-10 by 0 and 180.
    """
    if len(shape) != 3 or shape[1] != shape[2]:
        raise SettingError(f"rotation needs square images, and the inputs have shape {tuple(shape)}")
    if not angles:
        angles = [180 * g for g in range(groups)] if groups <= 2 else [90 * g for g in range(groups)]
    turns = [angle // 90 % 4 for angle in angles[:groups]]
    if any(angle % 90 for angle in angles) or len(set(turns)) < groups:
        raise SettingError(f"rotation needs {groups} different multiples of 90 degrees below 360, got {list(angles)}")
    return [Shift(turns=turn) for turn in turns]


# ----------------------------------------------------------------------------------------------------
# Changes made to training images on the way to the model.


def crop_and_flip(images: Tensor, generator: torch.Generator, margin: int = 4) -> Tensor:
    """Images ``(b, C, H, W)`` moved by up to ``margin`` pixels, zeros coming in, and mirrored left-right half the time.

    The usual augmentation of CIFAR: a random crop of the zero-padded image, and a horizontal flip.
    """
    count, _, height, width = images.shape
    draws = torch.randint(0, 2 * margin + 1, (2, count), generator=generator)
    mirrored = torch.randint(0, 2, (count,), generator=generator).bool()
    across = torch.arange(width).expand(count, width)
    across = torch.where(mirrored[:, None], across.flip(1), across) + draws[1][:, None]
    down = torch.arange(height) + draws[0][:, None]
    which = torch.arange(count)[:, None, None]
    padded = pad(images, (margin,) * 4)
    return padded.permute(0, 2, 3, 1)[which, down[:, :, None], across[:, None, :]].permute(0, 3, 1, 2).contiguous()
