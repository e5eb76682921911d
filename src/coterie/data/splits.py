"""Which examples each client trains, validates and tests on: positions, then :class:`~coterie.data.world.Split` objects."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from coterie.data.examples import Pool
from coterie.data.shift import Shift
from coterie.data.world import Split
from coterie.settings import SettingError, UserError

TESTS = ("share", "whole", "classes", "own")


def check_shares(train: float, validation: float, test: str) -> None:
    """Training and validation must leave something for a test share; raises :class:`SettingError`."""
    total = train + validation
    if total > 1 + 1e-9 or (test == "share" and total > 1 - 1e-9):
        rest = "leave a share for the test data" if test == "share" else "be 1 at most together"
        raise SettingError(f"train and validation must {rest}, got {train:g} and {validation:g}")


def hold_out(
    mine: np.ndarray, train: float, validation: float, test: bool, name: str = "a client"
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """A client's own positions, in random order, cut into training, validation and (the rest, where ``test``) test.

    train, validation: shares of all. Each wanted piece gets at least one; raises :class:`UserError` for too few.
    """
    held = max(round(validation * len(mine)), 1) if validation else 0
    most = len(mine) - held - test
    if most < 1:
        few = f"{name} has {len(mine)} examples, too few to hold some out"
        raise UserError(f"{few}; take fewer clients or other shares")
    first = min(max(round(train * len(mine)), 1), most)
    return mine[:first], mine[first : first + held], mine[first + held :] if test else mine[:0]


@dataclass
class Selections:
    """Finds clients' examples in a test pool; equal selections are one and the same index tensor."""

    pool: Pool
    kept: dict[Hashable, Tensor] = field(default_factory=dict)

    def rows(self, rule: str, labels: np.ndarray, kind: tuple[str, int] | None) -> Tensor:
        """``(s,)`` positions in the pool for a client whose own examples have ``labels``.

        rule: the ``whole`` pool, its ``classes`` alone, or its ``own`` class proportions. kind: (name, value) of a
        meta column that the client's test examples must share, such as its domain.
        """
        classes, counts = np.unique(labels, return_counts=True)
        key: tuple[Hashable, ...] = (kind,)
        if rule != "whole":
            key += (tuple(classes.tolist()),)
        if rule == "own":
            key += (tuple(counts.tolist()),)
        if key not in self.kept:
            able = np.ones(len(self.pool), bool) if kind is None else self.pool.meta[kind[0]].numpy() == kind[1]
            if rule == "classes":
                able &= np.isin(self.pool.labels, classes)
            found = np.flatnonzero(able)
            if rule == "own":
                found = in_proportion(self.pool.labels, found, classes, counts)
            if not len(found):
                raise UserError("a client finds no test example of its own kind; test on a share of its own examples")
            self.kept[key] = torch.from_numpy(found)
        return self.kept[key]


def in_proportion(labels: np.ndarray, able: np.ndarray, classes: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """As many of the ``able`` positions as can be had with the class proportions of ``counts``, in the pool's order.

    Classes of less than a hundredth of ``counts`` do not bound the number, they only take what they can.
    """
    there = np.array([(labels[able] == c).sum() for c in classes])
    scale = (there / counts)[counts >= 0.01 * counts.sum()].min()
    take = np.minimum(np.floor(counts * scale + 1e-9).astype(int), there)
    return np.sort(np.concatenate([able[labels[able] == c][:n] for c, n in zip(classes, take, strict=True)]))


@dataclass
class Views:
    """A pool as the groups see it: one set of inputs per rotation, one set of targets per labelling and selection."""

    pool: Pool
    shifts: list[Shift]
    turned: dict[int, Tensor] = field(default_factory=dict)
    made: dict[tuple[int, int], Split] = field(default_factory=dict)

    def turn_each(self, parts: list[np.ndarray], groups: np.ndarray) -> None:
        """Turn every example the way of the one client that has it: all rotations in one pool of the same size.

        parts: positions of each client, which do not overlap. groups ``(clients,)``: the group of each.
        """
        if len({shift.turns for shift in self.shifts}) < 2:
            return
        mixed = self.pool.inputs.clone()
        for group, shift in enumerate(self.shifts):
            mine = [part for part, g in zip(parts, groups, strict=True) if g == group]
            rows = torch.from_numpy(np.concatenate(mine))
            mixed[rows] = shift.inputs(mixed[rows])
            self.turned[shift.turns] = mixed

    def split(self, index: Tensor, group: int) -> Split:
        """The examples at ``index`` as ``group`` sees them; the same objects in give the same split out."""
        key = (id(index), group)
        if key not in self.made:
            shift = self.shifts[group]
            if shift.turns not in self.turned:
                self.turned[shift.turns] = shift.inputs(self.pool.inputs)
            self.made[key] = Split(self.turned[shift.turns], index, shift.targets(self.pool.targets[index]))
        return self.made[key]
