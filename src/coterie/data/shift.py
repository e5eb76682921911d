"""Shifts between groups of clients: groups that permute the labels or rotate the images.

A label shift changes only targets. A rotation makes one rotated pool per angle. No pool is copied
for each client.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch

from coterie.data.examples import CONCEPT, Dataset, Pool
from coterie.data.parts import ScenarioPart
from coterie.settings import SettingError, setting

SHIFTS = ("none", "label-permutation", "label-swap", "rotation", "concept")
"""What can make groups differ."""

SWAPS = ((1, 7), (3, 5), (0, 8), (2, 6))
"""Pairs of similar digits that groups 0, 1, 2 and 3 exchange (CFL §VI-A exchanges 1-7 and 3-5)."""


@dataclass(frozen=True, eq=False)
class Shift:
    """The shift of one group.

    Attributes:
        labels: The label that the group gives to each class, ``(classes,)`` int64, or None for no
            change.
        angle: Rotation of its images, in degrees from 0 to 359.
        column: Column of the pool's meta that has the group's labels; empty for the pool's targets.
    """

    labels: torch.Tensor | None = None
    angle: int = 0
    column: str = ""

    def targets(self, classes: torch.Tensor) -> torch.Tensor:
        """The group's labels for the classes ``true``, of the same shape."""
        return classes if self.labels is None else self.labels[classes]

    def inputs(self, images: torch.Tensor) -> torch.Tensor:
        """The images ``(N, C, H, W)`` rotated counter-clockwise."""
        return images if not self.angle else rotated(images, self.angle)


@dataclass(frozen=True, kw_only=True)
class ShiftSettings(ScenarioPart):
    """What makes the groups of a scenario differ."""

    part: ClassVar[str] = "shift"
    main: ClassVar[str] = "kind"

    kind: str = setting("none", "what makes groups of clients differ", choices=SHIFTS)
    swaps: tuple[tuple[int, ...], ...] = setting(
        SWAPS,
        "pairs of labels that the groups exchange (label-swap)",
        only_with={"kind": ("label-swap",)},
    )
    angles: tuple[int, ...] = setting(
        (),
        "rotation of each group's images in degrees; empty: evenly spaced (rotation)",
        only_with={"kind": ("rotation",)},
    )
    identity: bool = setting(
        False,
        "the first group keeps its labels (label-permutation)",
        only_with={"kind": ("label-permutation",)},
    )

    def of_groups(
        self, groups: int, dataset: Dataset, rng: np.random.Generator, has_drift: bool = False
    ) -> list[Shift]:
        """Make the shift of each group.

        Args:
            groups: Number of groups.
            dataset: The data set.
            rng: Draws permutations of labels.
            has_drift: Whether the groups are concepts, of which the first keeps the labels.

        Returns:
            One shift per group; without a shift, a single one that changes nothing.

        Raises:
            SettingError: The data set does not have what the shift changes.
        """
        # Shifts of inputs, or of concepts that the data set records.
        match self.kind:
            case "none":
                return [Shift()]
            case "rotation":
                return rotations(groups, dataset.shape, self.angles)
            case "concept":
                return concepts(groups, dataset.train)
        # The other shifts change class labels. With a drift, concept 0 is the data set's own.
        if dataset.words:
            raise SettingError(
                f"the shift {self.kind} needs class labels, and {dataset.name} predicts words"
            )
        if self.kind == "label-permutation":
            return label_permutations(groups, dataset.classes, rng, self.identity or has_drift)
        if has_drift:
            return [Shift(), *label_swaps(groups - 1, dataset.classes, self.swaps)]
        return label_swaps(groups, dataset.classes, self.swaps)


def deal(clients: int, groups: int, rng: np.random.Generator | None) -> np.ndarray:
    """Assign clients to groups whose sizes differ by at most one.

    Args:
        clients: Number of clients.
        groups: Number of groups.
        rng: Draws the order, so that ids do not show the groups. With None, client i goes to group
            ``i % groups``.

    Returns:
        The group of each client, ``(n,)``.

    Raises:
        SettingError: There are more groups than clients.
    """
    if groups > clients:
        raise SettingError(f"{groups} groups need at least as many clients, got {clients}")
    group_of_client = np.arange(clients) % groups
    return group_of_client if rng is None else rng.permutation(group_of_client)


def label_permutations(
    groups: int, classes: int, rng: np.random.Generator, identity: bool = False
) -> list[Shift]:
    """Draw one random permutation of the labels per group, all different.

    CFL (Sattler, Mueller, Samek 2019), §VI-C.

    Args:
        groups: Number of groups.
        classes: Number of classes.
        rng: Draws the permutations.
        identity: Whether group 0 keeps its labels.

    Returns:
        The shift of each group.

    Raises:
        SettingError: There are fewer permutations than groups.
    """
    if classes < 6 and groups > np.prod(np.arange(1, classes + 1)):
        raise SettingError(f"{classes} classes have too few permutations for {groups} groups")
    # A dict keeps the order in which the permutations were drawn, and each of them once.
    permutations: dict[tuple[int, ...], None] = {}
    if identity:
        permutations[tuple(range(classes))] = None
    while len(permutations) < groups:
        permutations.setdefault(tuple(int(label) for label in rng.permutation(classes)))
    return [Shift(torch.tensor(permutation)) for permutation in permutations]


def label_swaps(groups: int, classes: int, pairs: Sequence[Sequence[int]] = SWAPS) -> list[Shift]:
    """Let group g exchange the two labels ``pairs[g]`` (CFL §VI-A, FL+HC §III).

    Args:
        groups: Number of groups.
        classes: Number of classes.
        pairs: Two labels per group.

    Returns:
        The shift of each group.

    Raises:
        SettingError: There are too few pairs, a pair is not two different labels, or two groups
            have the same pair.
    """
    pairs = list(map(tuple, pairs))
    if len(pairs) < groups:
        raise SettingError(
            f"label-swap with {groups} groups needs as many pairs of labels, got {len(pairs)}"
        )
    # Each pair must be two different classes, and no two groups may have the same.
    for pair in pairs[:groups]:
        are_classes = all(0 <= label < classes for label in pair)
        if len(pair) != 2 or pair[0] == pair[1] or not are_classes:
            raise SettingError(
                f"a swap must be two different labels from 0 to {classes - 1}, got {list(pair)}"
            )
    if len({frozenset(pair) for pair in pairs[:groups]}) < groups:
        raise SettingError("two groups would swap the same labels; give each its own pair")
    shifts = []
    for first_label, second_label in pairs[:groups]:
        # The identity, in which the two labels are exchanged.
        shifted_labels = torch.arange(classes)
        shifted_labels[[first_label, second_label]] = shifted_labels[[second_label, first_label]]
        shifts.append(Shift(shifted_labels))
    return shifts


ROTATED_AT_ONCE = 4096
"""Images that are interpolated together, which limits the memory."""


def rotated(images: torch.Tensor, angle: int) -> torch.Tensor:
    """Rotate images counter-clockwise: exactly by multiples of 90 degrees, by other angles with bilinear interpolation.

    Args:
        images: The images ``(N, C, H, W)``.
        angle: Degrees.

    Returns:
        Images of the same shape. What was outside has the least value of its channel, which is
        black.
    """
    if angle % 90 == 0:
        return torch.rot90(images, angle // 90, (2, 3)).contiguous()
    # The matrix that ``affine_grid`` takes: from a place in the result to its place in the image.
    cosine = math.cos(math.radians(angle))
    sine = math.sin(math.radians(angle))
    rotation_matrix = torch.tensor([[cosine, -sine, 0.0], [sine, cosine, 0.0]])
    # What comes from outside the image is zero to ``grid_sample``, so black must be zero, too.
    black = images.amin(dim=(0, 2, 3), keepdim=True)
    rotated_images = torch.empty_like(images)
    for start in range(0, len(images), ROTATED_AT_ONCE):
        block_positions = slice(start, start + ROTATED_AT_ONCE)
        image_block = images[block_positions]
        sampling_grid = torch.nn.functional.affine_grid(
            rotation_matrix.expand(len(image_block), 2, 3),
            list(image_block.shape),
            align_corners=False,
        )
        above_black = torch.nn.functional.grid_sample(
            image_block - black, sampling_grid, align_corners=False
        )
        rotated_images[block_positions] = above_black + black
    return rotated_images


def rotations(groups: int, shape: Sequence[int], angles: Sequence[int] = ()) -> list[Shift]:
    """Let group g rotate its images by ``angles[g]`` degrees.

    IFCA (Ghosh et al. 2020) rotates MNIST by 0, 90, 180 and 270 degrees, and CIFAR-10 by 0 and 180.
    CFL-GP (Kim et al. 2024) rotates MNIST by eight angles, such as 0 and 15.

    Args:
        groups: Number of groups.
        shape: Shape of one input, ``(C, H, W)``.
        angles: Different angles; by default 0 and 180, multiples of 90 for up to four groups, and
            spread evenly for more.

    Returns:
        The shift of each group.

    Raises:
        SettingError: The inputs are not square images, or the angles are not valid.
    """
    if len(shape) != 3 or shape[1] != shape[2]:
        raise SettingError(
            f"rotation needs square images, and the inputs have shape {tuple(shape)}"
        )
    # Three groups have multiples of 90 degrees, too, by which images rotate exactly.
    if not angles:
        angle_step = 90 if groups == 3 else 360 / groups
        angles = [round(angle_step * group) for group in range(groups)]
    distinct_angles = [angle % 360 for angle in angles[:groups]]
    if len(set(distinct_angles)) < groups:
        raise SettingError(
            f"rotation needs {groups} angles that differ by more than whole turns, got {list(angles)}"
        )
    return [Shift(angle=angle) for angle in distinct_angles]


def concepts(groups: int, pool: Pool) -> list[Shift]:
    """Let group g have the labels of concept g, of a pool whose examples have a label under each concept.

    Args:
        groups: Number of groups.
        pool: The pool; its meta has columns ``concept 0``, ``concept 1``, ...

    Returns:
        The shift of each group.

    Raises:
        SettingError: The pool has fewer concepts.
    """
    columns = [f"{CONCEPT}{group}" for group in range(groups)]
    concept_count = sum(column.startswith(CONCEPT) for column in pool.meta)
    if groups > concept_count:
        raise SettingError(
            f"Scenario.groups must be at most the {concept_count} concepts of the data set with shift concept, got {groups}"
        )
    return [Shift(column=column) for column in columns]
