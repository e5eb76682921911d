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


def check_shares(train: float, validation: float, test: str) -> None:
    """Check that the shares of training and validation leave examples for a test share.

    Args:
        train: Share of a client's own examples to train on.
        validation: Share for validation.
        test: One of :data:`TESTS`.

    Raises:
        SettingError: The shares are out of range.
    """
    for name, value, least in (("train", train, "> 0"), ("validation", validation, ">= 0")):
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if not number or not (0 < value <= 1 or (value == 0 and name == "validation")):
            raise SettingError(
                f"{name} must be a number {least}, <= 1, the share of a client's examples, got {value!r}"
            )
    total = train + validation
    if total > 1 + 1e-9 or (test == "share" and total > 1 - 1e-9):
        rest = "leave some examples for the test data" if test == "share" else "sum to at most 1"
        raise SettingError(f"train and validation must {rest}, got {train:g} and {validation:g}")


def hold_out(
    mine: np.ndarray,
    train: float,
    validation: float,
    test: bool,
    name: str = "a client",
    own: bool = False,
    noun: str = "example",
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Cut the positions of a client into training, validation and test positions.

    Each part that is wanted gets at least one position.

    Args:
        mine: The positions, in random order.
        train: Share of all positions for training.
        validation: Share of all positions for validation.
        test: Whether the rest is the test part.
        name: Name of the client, for the message.
        own: Whether the data are the client's own, for the message.
        noun: What a position is, for the message.

    Returns:
        The training, validation and test positions.

    Raises:
        UserError: There are too few positions.
    """
    held = max(round(validation * len(mine)), 1) if validation else 0
    most = len(mine) - held - test
    if most < 1:
        few = f"{name} has {count(len(mine), noun)}, too few to hold some out: it needs {len(mine) - most + 1} at least"
        raise UserError(
            f"{few}; {'leave it out' if own else 'use fewer clients or other fractions'}"
        )
    first = min(max(round(train * len(mine)), 1), most)
    return mine[:first], mine[first : first + held], mine[first + held :] if test else mine[:0]


@dataclass
class Selections:
    """Test examples of the clients in a test pool; equal selections share one index tensor.

    Attributes:
        pool: The test pool.
        kept: Selections that were made before.
    """

    pool: Pool
    kept: dict[Hashable, torch.Tensor] = field(default_factory=dict)

    def rows(self, rule: str, labels: np.ndarray, kind: tuple[str, int] | None) -> torch.Tensor:
        """Return the positions ``(s,)`` of the test examples of one client.

        Args:
            rule: ``whole`` for the whole pool, ``classes`` for the client's classes, or ``own`` for
                its class proportions.
            labels: Labels of the client's own examples.
            kind: Name and value of a meta column that the test examples must share with the client,
                such as its domain.

        Returns:
            Positions in the pool.

        Raises:
            UserError: There is no such example.
        """
        classes, counts = np.unique(labels, return_counts=True)
        key: tuple[Hashable, ...] = (kind,)
        if rule != "whole":
            key += (tuple(classes.tolist()),)
        if rule == "own":
            key += (tuple(counts.tolist()),)
        if key not in self.kept:
            able = (
                np.ones(len(self.pool), bool)
                if kind is None
                else self.pool.meta[kind[0]].numpy() == kind[1]
            )
            if rule == "classes":
                able &= np.isin(self.pool.labels, classes)
            found = np.flatnonzero(able)
            if rule == "own":
                found = in_proportion(self.pool.labels, found, classes, counts)
            if not len(found):
                raise UserError(
                    "the test pool has no example for one of the clients; use test = share"
                )
            self.kept[key] = torch.from_numpy(found)
        return self.kept[key]


def in_proportion(
    labels: np.ndarray, able: np.ndarray, classes: np.ndarray, counts: np.ndarray
) -> np.ndarray:
    """Select as many positions as possible with the class proportions of ``counts``.

    A class with less than one hundredth of all ``counts`` does not limit the number; it only gives
    the examples that it has.

    Args:
        labels: Labels ``(N,)`` of the pool.
        able: The positions to select from.
        classes: The classes.
        counts: Number of examples of each class.

    Returns:
        The selected positions, in the order of the pool.
    """
    there = np.array([(labels[able] == c).sum() for c in classes])
    scale = (there / counts)[counts >= 0.01 * counts.sum()].min()
    take = np.minimum(np.floor(counts * scale + 1e-9).astype(int), there)
    return np.sort(
        np.concatenate([able[labels[able] == c][:n] for c, n in zip(classes, take, strict=True)])
    )


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
        if len({shift.angle for shift in self.shifts}) < 2:
            return
        mixed = self.pool.inputs.clone()
        for group, shift in enumerate(self.shifts):
            mine = [part for part, g in zip(parts, groups, strict=True) if g == group]
            rows = torch.from_numpy(np.concatenate(mine))
            mixed[rows] = shift.inputs(mixed[rows])
            self.turned[shift.angle] = mixed

    def split(self, index: torch.Tensor, group: int) -> Split:
        """The examples at ``index`` as ``group`` sees them; the same ``index`` object gives the same split."""
        key = (id(index), group)
        if key not in self.made:
            shift = self.shifts[group]
            if shift.angle not in self.turned:
                self.turned[shift.angle] = shift.inputs(self.pool.inputs)
            true = self.pool.meta[shift.column] if shift.column else self.pool.targets
            self.made[key] = Split(self.turned[shift.angle], index, shift.targets(true[index]))
        return self.made[key]
