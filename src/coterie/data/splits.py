"""Training, validation and test examples of each client: positions, and :class:`~coterie.data.world.Split` objects."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
import torch

from coterie.data.examples import Pool
from coterie.data.parts import ScenarioPart
from coterie.data.shift import Shift
from coterie.data.world import Split
from coterie.notebook.tables import count
from coterie.settings import SettingError, UserError, setting

TESTS = ("share", "whole", "classes", "own")
"""Which test data a client can have, see :class:`HoldOutSettings`."""


@dataclass(frozen=True, kw_only=True)
class HoldOutSettings(ScenarioPart):
    """How many examples a client has, and which of them are for validation and tests."""

    part: ClassVar[str] = "holdout"

    samples: int | None = setting(
        None, "maximum number of examples per client, including held-out ones; none: all", ge=1
    )
    train: float = setting(0.8, "fraction of a client's own examples to train on", gt=0, le=1)
    validation: float = setting(
        0.1, "fraction of a client's own examples held out for validation", ge=0, lt=1
    )
    test: str = setting(
        "share",
        "test data of a client. share: the rest of its own examples; whole: the test pool (of its "
        "domain, topic or population); classes: test examples of its classes; own: test examples "
        "in its class proportions",
        choices=TESTS,
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        check_shares(self.train, self.validation, self.test)


def check_shares(train_share: float, validation_share: float, test: str) -> None:
    """Check that the shares of training and validation leave examples for a test share.

    Args:
        train_share: Share of a client's own examples to train on.
        validation_share: Share for validation.
        test: One of :data:`TESTS`.

    Raises:
        SettingError: The shares are out of range.
    """
    for share_name, share, lower_bound in (
        ("train", train_share, "> 0"),
        ("validation", validation_share, ">= 0"),
    ):
        is_number = isinstance(share, int | float) and not isinstance(share, bool)
        if not is_number or not (0 < share <= 1 or (share == 0 and share_name == "validation")):
            raise SettingError(
                f"{share_name} must be a number {lower_bound}, <= 1, the share of a client's examples, "
                f"got {share!r}"
            )
    total = train_share + validation_share
    needs_rest = test == "share"
    if total > 1 + 1e-9 or (needs_rest and total > 1 - 1e-9):
        requirement = "leave some examples for the test data" if needs_rest else "sum to at most 1"
        raise SettingError(
            f"train and validation must {requirement}, got {train_share:g} and {validation_share:g}"
        )


def hold_out(
    positions: np.ndarray,
    train_share: float,
    validation_share: float,
    needs_test_part: bool,
    client_name: str = "a client",
    own_data: bool = False,
    noun: str = "example",
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Cut the positions of a client into training, validation and test positions.

    Each part that is wanted gets at least one position.

    Args:
        positions: The positions, in random order.
        train_share: Share of all positions for training.
        validation_share: Share of all positions for validation.
        needs_test_part: Whether the rest is the test part.
        client_name: Name of the client, for the message.
        own_data: Whether the data are the client's own, for the message.
        noun: What a position is, for the message.

    Returns:
        The training, validation and test positions.

    Raises:
        UserError: There are too few positions.
    """
    # Round each share, but give each part that is wanted at least one position.
    validation_count = 0
    if validation_share:
        validation_count = max(round(validation_share * len(positions)), 1)
    max_train_count = len(positions) - validation_count - needs_test_part
    if max_train_count < 1:
        min_count = len(positions) - max_train_count + 1
        advice = "leave it out" if own_data else "use fewer clients or other fractions"
        raise UserError(
            f"{client_name} has {count(len(positions), noun)}, too few to hold some out: it needs "
            f"{min_count} at least; {advice}"
        )
    # Training comes first, then validation, and the rest is for tests.
    train_count = min(max(round(train_share * len(positions)), 1), max_train_count)
    train_positions, held_out_positions = np.split(positions, [train_count])
    validation_positions, test_positions = np.split(held_out_positions, [validation_count])
    return (
        train_positions,
        validation_positions,
        test_positions if needs_test_part else positions[:0],
    )


@dataclass
class Selections:
    """Test examples of the clients in a test pool; equal selections share one index tensor.

    Attributes:
        pool: The test pool.
        kept: Selections that were made before.
    """

    pool: Pool
    kept: dict[Hashable, torch.Tensor] = field(default_factory=dict)

    def rows(
        self, rule: str, labels: np.ndarray, shared_meta: tuple[str, int] | None
    ) -> torch.Tensor:
        """Return the positions ``(s,)`` of the test examples of one client.

        Args:
            rule: ``whole`` for the whole pool, ``classes`` for the client's classes, or ``own`` for
                its class proportions.
            labels: Labels of the client's own examples.
            shared_meta: Name and value of a meta column that the test examples must share with the
                client, such as its domain; None for no such column.

        Returns:
            Positions in the pool.

        Raises:
            UserError: There is no such example.
        """
        classes, counts = np.unique(labels, return_counts=True)
        # All that the selection depends on.
        selection_key: tuple[Hashable, ...] = (shared_meta,)
        if rule != "whole":
            selection_key += (tuple(classes.tolist()),)
        if rule == "own":
            selection_key += (tuple(counts.tolist()),)
        if selection_key not in self.kept:
            self.kept[selection_key] = torch.from_numpy(
                self._selected(rule, classes, counts, shared_meta)
            )
        return self.kept[selection_key]

    def _selected(
        self,
        rule: str,
        classes: np.ndarray,
        counts: np.ndarray,
        shared_meta: tuple[str, int] | None,
    ) -> np.ndarray:
        """The positions that :meth:`rows` returns for a client with these classes and counts."""
        # Examples of the client's domain, then of its classes, then in its class proportions.
        is_eligible = np.ones(len(self.pool), bool)
        if shared_meta is not None:
            column, value = shared_meta
            is_eligible = self.pool.meta[column].numpy() == value
        if rule == "classes":
            is_eligible &= np.isin(self.pool.labels, classes)
        positions = np.flatnonzero(is_eligible)
        if rule == "own":
            positions = in_proportion(self.pool.labels, positions, classes, counts)
        if not len(positions):
            raise UserError("the test pool has no example for one of the clients; use test = share")
        return positions


def in_proportion(
    labels: np.ndarray, eligible: np.ndarray, classes: np.ndarray, counts: np.ndarray
) -> np.ndarray:
    """Select as many positions as possible with the class proportions of ``counts``.

    A class with less than one hundredth of all ``counts`` does not limit the number; it only gives
    the examples that it has.

    Args:
        labels: Labels ``(N,)`` of the pool.
        eligible: The positions to select from.
        classes: The classes.
        counts: Number of examples of each class.

    Returns:
        The selected positions, in the order of the pool.
    """
    # The eligible examples of each class, of which the first ones are taken.
    positions_of_classes = [eligible[labels[eligible] == label] for label in classes]
    available = np.array([len(positions) for positions in positions_of_classes])
    # The scarcest class, among those that matter, limits the others.
    is_limiting = counts >= 0.01 * counts.sum()
    common_scale = (available / counts)[is_limiting].min()
    selected_counts = np.minimum(np.floor(counts * common_scale + 1e-9).astype(int), available)
    selected_positions = []
    for positions, selected_count in zip(positions_of_classes, selected_counts, strict=True):
        selected_positions.append(positions[:selected_count])
    return np.sort(np.concatenate(selected_positions))


@dataclass
class Views:
    """A pool as each group sees it: one input tensor per rotation, one target tensor per labelling and selection.

    Attributes:
        pool: The pool.
        shifts: The shift of each group.
        turned: Angle -> rotated inputs.
        made: Splits that were made before.
    """

    pool: Pool
    shifts: list[Shift]
    turned: dict[int, torch.Tensor] = field(default_factory=dict)
    made: dict[tuple[int, int], Split] = field(default_factory=dict)

    def turn_each(self, parts: list[np.ndarray], groups: np.ndarray) -> None:
        """Rotate each example as its one client sees it, so that all rotations are in one pool of the same size.

        Args:
            parts: Positions of each client, which do not overlap.
            groups: The group of each client, ``(n,)``.
        """
        # Without different rotations there is nothing to rotate.
        if len({shift.angle for shift in self.shifts}) < 2:
            return
        rotated_inputs = self.pool.inputs.clone()
        for group, shift in enumerate(self.shifts):
            group_parts = []
            for part, group_of_client in zip(parts, groups, strict=True):
                if group_of_client == group:
                    group_parts.append(part)
            positions = torch.from_numpy(np.concatenate(group_parts))
            rotated_inputs[positions] = shift.inputs(rotated_inputs[positions])
            self.turned[shift.angle] = rotated_inputs

    def split(self, index: torch.Tensor, group: int) -> Split:
        """The examples at ``index`` as ``group`` sees them; the same ``index`` object gives the same split."""
        split_key = (id(index), group)
        if split_key not in self.made:
            # Inputs are shared by all clients of an angle; targets are computed for this selection.
            shift = self.shifts[group]
            # With drift an example may be seen under several angles, each with a rotated pool.
            if shift.angle not in self.turned:
                self.turned[shift.angle] = shift.inputs(self.pool.inputs)
            true_targets = self.pool.meta[shift.column] if shift.column else self.pool.targets
            self.made[split_key] = Split(
                self.turned[shift.angle], index, shift.targets(true_targets[index])
            )
        return self.made[split_key]
