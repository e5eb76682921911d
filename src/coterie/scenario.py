"""Scenarios: a data set, how it is dealt to clients, how groups of them differ, what they train. All settings.

``build`` makes the :class:`~coterie.world.World` that an engine runs; it depends on the settings, the seed and the data
alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import MappingProxyType

import numpy as np
import torch

from coterie import models
from coterie.core import Groups, Training, as_groups
from coterie.data import datasets, partition, shift
from coterie.data.pool import Dataset, Pool
from coterie.data.shift import SHIFTS, SWAPS, Shift
from coterie.data.splits import TESTS, Tests, Views, check_shares, hold_out
from coterie.randomness import Purpose, numpy_generator
from coterie.settings import SettingError, UserError, check, nearest, setting
from coterie.world import ClientData, Objective, World


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """One world to be, as settings: who has which data, where groups differ, and what everybody trains."""

    dataset: str = setting("digits", "name of the data set, hub:NAME, NAME of a NAME.npz")
    partition: str = setting("iid", "how examples are dealt to clients", choices=("iid", "shards", "half-normal", "dirichlet", "quantity", "classes", "writer", "domain", "topic"))  # fmt: skip
    shift: str = setting("none", "what makes groups of clients differ", choices=SHIFTS)
    clients: int = setting(20, "number of clients", ge=1)
    groups: int = setting(4, "number of groups of clients, where the shift or the partition makes groups", ge=1)
    shuffle: bool = setting(True, "put clients into groups in random order; false deals them out in turn")
    samples: int | None = setting(None, "examples per client at most, before any are held out; none takes all", ge=1)
    train: float = setting(0.8, "share of a client's own examples that it trains on", gt=0, le=1)
    validation: float = setting(0.1, "share of a client's own examples held out for choices", ge=0, lt=1)
    test: str = setting("share", "share: the rest of its own examples; whole: the test pool; classes: those of its classes there; own: as many there as match its class proportions", choices=TESTS)  # fmt: skip
    model: str = setting("mlp", "name of the model, or package.module:Name")
    training: Training = setting(Training(), "local training")
    alpha: float = setting(0.5, "Dirichlet concentration of the dirichlet and quantity partitions", gt=0)
    swaps: tuple[tuple[int, ...], ...] = setting(SWAPS, "pairs of labels that the groups exchange (label-swap)")
    angles: tuple[int, ...] = setting((), "degrees by which the groups' images are turned (rotation); empty spreads evenly")
    identity: bool = setting(False, "the first group keeps its labels (label-permutation)")

    def __post_init__(self) -> None:
        check(self)
        check_shares(self.train, self.validation, self.test)

    def build(self, seed: int = 0, folder: Path | str | None = None) -> World:
        """The world of ``seed``; ``folder`` holds the data set's files (see :func:`coterie.data.datasets.load`)."""
        data = datasets.load(self.dataset, folder)
        parts = partition.iid(len(data.train), self.clients, numpy_generator(seed, Purpose.PARTITION))
        rng = numpy_generator(seed, Purpose.SHIFT)
        groups = shift.deal(self.clients, 1 if self.shift == "none" else self.groups, rng if self.shuffle else None)
        shifts = self._shifts(data, rng)
        train = Views(data.train, shifts)
        test = train if self.test == "share" else Views(data.test, shifts)
        tests = Tests(test.pool)
        clients = {}
        for client, part in enumerate(parts):
            own = numpy_generator(seed, Purpose.DATA, 1, client)
            cut = hold_out(part[: self.samples], self.train, self.validation, self.test == "share", own, f"client {client}")
            pieces = [torch.from_numpy(piece) for piece in cut]
            if self.test != "share":
                pieces[2] = tests.rows(self.test, data.train.labels[part], None, own)
            views = (train, train, test)
            splits = [view.split(piece, int(groups[client])) for view, piece in zip(views, pieces, strict=True)]
            clients[client] = ClientData(train=splits[0], validation=splits[1], test=splits[2])
        return World(
            clients=clients,
            model=partial(models.make, self.model, data.shape, data.classes),
            training=self.training,
            truth=as_groups(np.flatnonzero(groups == g).tolist() for g in range(groups.max() + 1)),
        )

    def _shifts(self, data: Dataset, rng: np.random.Generator) -> list[Shift]:
        if self.shift == "label-permutation":
            return shift.label_permutations(self.groups, data.classes, rng, self.identity)
        if self.shift == "label-swap":
            return shift.label_swaps(self.groups, data.classes, self.swaps)
        if self.shift == "rotation":
            return shift.rotations(self.groups, data.shape, self.angles)
        return [Shift()]


_DIGITS = Training(lr=0.1, batch=10, epochs=3)
_FLHC = dict(dataset="mnist", clients=100, train=1.0, validation=0.0, test="whole", model="flhc-cnn", training=_DIGITS)

SCENARIOS: Mapping[str, Scenario] = MappingProxyType(
    {
        "digits/iid": Scenario(training=_DIGITS),
        "digits/label-permutation": Scenario(shift="label-permutation", training=_DIGITS),
        "digits/label-swap": Scenario(shift="label-swap", training=_DIGITS),
        "mnist/iid": Scenario(**_FLHC),
        "mnist/label-swap": Scenario(**_FLHC, shift="label-swap"),
    }
)


def find(name: str) -> Scenario:
    """The scenario called ``name``; raises :class:`UserError` with the nearest known name."""
    if name not in SCENARIOS:
        raise UserError(f"there is no scenario {name!r}{nearest(name, SCENARIOS)}; coterie scenarios lists them")
    return SCENARIOS[name]
