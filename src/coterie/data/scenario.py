"""Scenarios as settings: the data set, its partition over clients, the shift between groups, and the training.

``build`` makes the :class:`~coterie.data.world.World` that an engine runs. It depends only on the
settings, the seed and the data. :data:`SCENARIOS` has the named scenarios; clients with their own
data come from a table or a folder, or from :func:`coterie.from_frame` and
:func:`coterie.from_lists`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar

import numpy as np
import torch

from coterie.core import Groups, Training, as_groups
from coterie.data import datasets, own, partition, pictures, tables
from coterie.data import shift as shifting
from coterie.data import world as attendance
from coterie.data.drift import DRIFTS, Schedule, schedule
from coterie.data.examples import Dataset, Pool
from coterie.data.objective import Objective
from coterie.data.partition import Parts
from coterie.data.scaling import STANDARDIZE, Constants, standardized
from coterie.data.shift import SHIFTS, SWAPS, Shift, crop_and_flip, deal
from coterie.data.splits import TESTS, Selections, Views, check_shares, hold_out
from coterie.data.tasks import TASKS
from coterie.data.times import check_gap
from coterie.data.world import ATTACKS, ClientData, Drift, World, among, check_attack
from coterie.models import nets
from coterie.randomness import Purpose, numpy_generator, seeded
from coterie.settings import SettingError, UserError, build, check, nearest, setting
from coterie.settings.calls import public

# ----------------------------------------------------------------------------------------------------
# Settings of the named scenarios: data set / heterogeneity. Settings that are not listed have their
# defaults.
#
# Numbers are those of the papers where the papers print them; ``about`` names the paper. ``--set``
# changes any setting.


Settings = Mapping[str, Any]

_SMALL = {"training": Training(lr=0.1, batch=10, epochs=3)}
_FLHC = {
    "clients": 100,
    "train": 1.0,
    "validation": 0.0,
    "test": "whole",
    "model": "flhc-cnn",
    "training": Training(lr=0.1, batch=10, epochs=3),
}
_SHARED = {"clients": 100, "model": "cfl-cnn", "training": Training(lr=0.1, batch=10, epochs=1)}
_CFL = {
    "clients": 20,
    "train": 0.9,
    "test": "whole",
    "model": "cfl-cifar-cnn",
    "training": Training(lr=0.05, batch=100, epochs=3),
}
_HCCT = {"train": 0.2, "validation": 0.0, "clients": 10}
_ACFL = {
    "clients": 16,
    "partition": "classes",
    "sizes": (50, 500),
    "train": 0.9,
    "test": "classes",
    "model": "acfl-cnn",
    "training": Training(lr=0.1, batch=32, epochs=1),
}


def _digits() -> dict[str, Settings]:
    """20 clients of about 90 images of scikit-learn's digits: 72 to train, 9 for validation, 9 to test."""
    return {
        "digits/iid": {**_SMALL, "about": "identically distributed clients; nothing to split"},
        "digits/label-permutation": {
            **_SMALL,
            "shift": "label-permutation",
            "about": "four groups, each with its own permutation of the labels",
        },
        "digits/label-swap": {
            **_SMALL,
            "shift": "label-swap",
            "about": "four groups, each exchanging two labels",
        },
        "digits/rotation": {
            **_SMALL,
            "shift": "rotation",
            "about": "four groups, images turned by 0 to 270 degrees",
        },
        "digits/class-groups": {
            **_SMALL,
            "partition": "classes",
            "about": "four groups with disjoint sets of classes",
        },
        "digits/dirichlet": {
            **_SMALL,
            "partition": "dirichlet",
            "about": "class shares from Dirichlet(0.5)",
        },
        "digits/quantity": {
            **_SMALL,
            "partition": "quantity",
            "alpha": 1.0,
            "about": "one distribution, unequal sizes",
        },
    }


def _synthetic() -> dict[str, Settings]:
    base = {**_SMALL, "dataset": "synthetic", "model": "linear"}
    return {
        "synthetic/iid": {**base, "about": "Gaussian classes, identically distributed clients"},
        "synthetic/groups": {
            **base,
            "shift": "label-permutation",
            "about": "four groups with different class labels",
        },
    }


def _drifting() -> dict[str, Settings]:
    """FedDrift's streams and MNIST, new examples in each time step; label swaps of images that stay, as FedCCFA's."""
    stream = {
        "shift": "concept",
        "clients": 10,
        "groups": 2,
        "drift": "feddrift-a",
        "renew": True,
        "examples": 20_000,
        "train": 0.5,
        "validation": 0.0,
        "training": Training(lr=0.01, batch=0, steps=5, optimizer="adam"),
    }
    swaps = {"shift": "label-swap", "swaps": ((1, 2), (3, 4), (5, 6))}
    ten = "10 time steps of 100 new examples to train on"
    return {
        "sine/drift": {
            **stream,
            "dataset": "sine",
            "about": f"FedDrift's SINE: {ten}, clients that change their concept",
        },
        "circle/drift": {**stream, "dataset": "circle", "about": f"FedDrift's CIRCLE: {ten}"},
        "sea/drift": {
            **stream,
            "dataset": "sea",
            "groups": 4,
            "drift": "feddrift-c",
            "mislabelled": 0.1,
            "about": f"SEA with four concepts: {ten}, one label in ten is wrong",
        },
        "digits/drift": {
            **_SMALL,
            **swaps,
            "drift": "sudden",
            "about": "FedCCFA's sudden drift: after 20 rounds, three groups each exchange two labels",
        },
        "mnist/drift": {
            **_FLHC,
            **swaps,
            "dataset": "mnist",
            "clients": 10,
            "drift": "feddrift-c",
            "renew": True,
            "samples": 100,
            "model": "ifca-mlp",
            "about": f"FedDrift's MNIST: {ten}, four groups that exchange labels",
        },
        "fashion/drift": {
            **_SHARED,
            **swaps,
            "dataset": "fashion_mnist",
            "clients": 20,
            "partition": "dirichlet",
            "drift": "sudden",
            "period": 100,
            "about": "FedCCFA's sudden drift: after 100 rounds, three groups each exchange two labels; Dirichlet(0.5)",
        },
    }


def _mnist() -> dict[str, Settings]:
    """FL+HC's partitions of MNIST, with 100 clients of 600 training images, and others of the same size."""
    base, shared = {**_FLHC, "dataset": "mnist"}, {**_SHARED, "dataset": "mnist"}
    rotated = {"model": "ifca-mlp", "training": Training(lr=0.1, batch=0, steps=10)}
    return {
        "mnist/iid": {**base, "about": "FL+HC's IID clients: 600 images each"},
        "mnist/label-swap": {
            **base,
            "shift": "label-swap",
            "about": "FL+HC's label-swap: 4 groups of 25 clients",
        },
        "mnist/label-permutation": {
            **base,
            "shift": "label-permutation",
            "about": "4 groups that permute the labels",
        },
        "mnist/pathological": {
            **base,
            "partition": "shards",
            "test": "classes",
            "about": "FL+HC's pathological clients: two labels each",
        },
        "mnist/rotation": {
            **base,
            **rotated,
            "shift": "rotation",
            "about": "IFCA's four rotations",
        },
        "mnist/dirichlet": {
            **shared,
            "partition": "dirichlet",
            "about": "class shares from Dirichlet(0.5)",
        },
        "mnist/writers": {
            **shared,
            "dataset": "qmnist",
            "partition": "writer",
            "about": "each client is one writer of MNIST",
        },
        "mnist/populations": {
            **shared,
            "dataset": "qmnist",
            "partition": "population",
            "about": "two groups: digits written by Census employees and by high-school students",
        },
    }


def _fashion() -> dict[str, Settings]:
    hcct = {"model": "hcct-mlp", "training": Training(lr=0.1, lr_decay=0.995, batch=64, epochs=1)}
    base, shared = {**_FLHC, "dataset": "fashion_mnist"}, {**_SHARED, "dataset": "fashion_mnist"}
    return {
        "fashion/iid": {
            "dataset": "fashion_mnist",
            **_HCCT,
            **hcct,
            "clients": 20,
            "train": 0.04,
            "about": "HCCT's FMNIST: 20 clients, 120 training images each, their other images to test",
        },
        "fashion/label-swap": {
            **base,
            "shift": "label-swap",
            "about": "4 groups, two labels exchanged",
        },
        "fashion/label-permutation": {
            **base,
            "shift": "label-permutation",
            "about": "4 groups that permute the labels",
        },
        "fashion/rotation": {
            **base,
            "shift": "rotation",
            "about": "4 groups, images turned by 0 to 270 degrees",
        },
        "fashion/pathological": {
            **base,
            "partition": "shards",
            "test": "classes",
            "about": "two labels per client",
        },
        "fashion/dirichlet": {
            **shared,
            "partition": "dirichlet",
            "about": "class shares from Dirichlet(0.5)",
        },
    }


def _cifar10() -> dict[str, Settings]:
    base = {**_CFL, "dataset": "cifar10"}
    hcct = {
        "model": "hcct-cnn",
        "augment": True,
        "training": Training(lr=0.1, lr_decay=0.995, batch=64, epochs=1),
    }
    return {
        "cifar10/iid": {**base, "about": "20 identically distributed clients"},
        "cifar10/label-permutation": {
            **base,
            "shift": "label-permutation",
            "about": "CFL's CIFAR-10: 4 groups of 5 clients permute the labels",
        },
        "cifar10/label-swap": {
            **base,
            "shift": "label-swap",
            "about": "CFL's: 4 groups exchange two labels",
        },
        "cifar10/rotation": {
            **base,
            "shift": "rotation",
            "groups": 2,
            "about": "IFCA's CIFAR-10: 0 and 180 degrees",
        },
        "cifar10/half-normal": {
            "dataset": "cifar10",
            **_HCCT,
            **hcct,
            "partition": "half-normal",
            "about": "HCCT's CIFAR-10: 100 shards of one class, 10 clients with half-normal numbers of them",
        },
        "cifar10/dirichlet": {
            **base,
            "partition": "dirichlet",
            "train": 0.8,
            "test": "share",
            "about": "Dirichlet(0.5)",
        },
        "cifar10/class-groups": {
            **base,
            "partition": "classes",
            "test": "classes",
            "about": "4 groups, disjoint classes",
        },
    }


def _others() -> dict[str, Settings]:
    cifar100 = {**_ACFL, "dataset": "cifar100"}
    digit = {
        "partition": "domain",
        "samples": 206,
        "train": 0.9,
        "test": "whole",
        "model": "fedbn-cnn",
        "training": Training(lr=0.01, lr_decay=0.995, batch=64, epochs=5),
    }
    return {
        "cifar100/class-pairs": {
            **cifar100,
            "groups": 8,
            "classes_per_group": 2,
            "about": "ACFL's two tasks: 8 pairs of clients, two classes per pair, classes of unequal size",
        },
        "cifar100/class-groups": {
            **cifar100,
            "groups": 4,
            "classes_per_group": 5,
            "classes_per_client": 3,
            "about": "ACFL's three tasks: 4 groups of five classes, three of them at each client",
        },
        "cifar100/label-permutation": {
            **_CFL,
            "dataset": "cifar100",
            "shift": "label-permutation",
            "about": "4 groups",
        },
        "ag_news/topics": {
            "dataset": "ag_news",
            "partition": "topic",
            "train": 0.9,
            "test": "whole",
            "model": "cfl-lstm",
            "training": Training(lr=1.0, clip=0.25, batch=100, epochs=3),
            "about": "CFL's next-word prediction: 20 clients, one of four topics each",
        },
        "digit_domains/domains": {
            **digit,
            "dataset": "digit_domains",
            "clients": 8,
            "about": "digits of four origins, two clients each, 185 images to train (HCCT's Digit has five origins)",
        },
        "digit_five/domains": {
            **digit,
            "dataset": "digit_five",
            "clients": 10,
            "about": "HCCT's Digit: digits of five origins, two clients each, 185 images to train",
        },
        "femnist/writers": {
            **_FLHC,
            "dataset": "femnist",
            "partition": "writer",
            "clients": 367,
            "train": 0.8,
            "test": "share",
            "about": "FL+HC's FEMNIST: each client is one writer of digits and letters",
        },
        "folder/clients": {
            "dataset": "folder",
            "partition": "clients",
            "training": Training(lr=0.1, batch=10, epochs=1),
            "about": "your own: a folder with one .npz per client, arrays x and y (or x_train, y_train, x_test, y_test)",
        },
        "table/clients": {
            "dataset": "table",
            "partition": "clients",
            "training": Training(lr=0.1, batch=10, epochs=1),
            "about": "your own: a .csv or .parquet file with a column that names the client, and a target",
        },
        "images/clients": {
            "dataset": "images",
            "partition": "clients",
            "model": "cfl-cnn",
            "training": Training(lr=0.1, batch=10, epochs=1),
            "about": "your own: a folder per client with a folder of PNG or JPEG files per class",
        },
    }


SETTINGS: Mapping[str, Settings] = MappingProxyType(
    {
        **_digits(),
        **_synthetic(),
        **_drifting(),
        **_mnist(),
        **_fashion(),
        **_cifar10(),
        **_others(),
    }
)


_PARTITIONS = (
    "iid",
    "shards",
    "half-normal",
    "dirichlet",
    "quantity",
    "classes",
    "writer",
    "population",
    "domain",
    "topic",
    "clients",
)
RENEWED = ("iid", "dirichlet", "quantity")
"""Partitions that can give each client new examples in every time step."""

_TEST = (
    "share: the rest of its own examples; whole: the test pool (of its domain, topic or population); classes: test examples "
    "of its classes; own: test examples in its class proportions"
)

OWN_DATA: Mapping[str, str] = MappingProxyType(
    {"folder": "one per file", "table": "one per name", "images": "one per folder"}
)
"""Data sets whose clients have their own data -> their number of clients, in words."""

_OF_PARTITIONS = (
    *(
        "alpha",
        "least",
        "shards",
        "total_shards",
        "classes_per_group",
        "classes_per_client",
        "sizes",
        "swaps",
        "angles",
    ),
    "identity",
)
"""Settings of the division of a data set among clients, and of shifts."""

_OWN_DATA = "your own: folder (a file per client), table (rows name the client) or images (a folder per client)"


@public
@dataclass(frozen=True, kw_only=True)
class Scenario:
    """The settings of a world: the clients' data, the shift between groups, and the training."""

    about: str = setting("", "description in one sentence")
    dataset: str = setting(
        "digits", f"name of the data set, hub:NAME, NAME of a NAME.npz, or {_OWN_DATA}"
    )
    partition: str = setting(
        "iid", "how examples are distributed over clients", choices=_PARTITIONS
    )
    shift: str = setting("none", "what makes groups of clients differ", choices=SHIFTS)
    clients: int = setting(20, "number of clients", ge=1, le=10_000_000)
    groups: int = setting(
        4,
        "number of groups, where the shift or the classes partition makes groups",
        ge=1,
        le=10_000,
    )
    shuffle: bool = setting(True, "assign clients to groups in random order; false: in turn")
    samples: int | None = setting(
        None, "maximum number of examples per client, including held-out ones; none: all", ge=1
    )
    train: float = setting(0.8, "fraction of a client's own examples to train on", gt=0, le=1)
    validation: float = setting(
        0.1, "fraction of a client's own examples held out for validation", ge=0, lt=1
    )
    test: str = setting("share", f"test data of a client. {_TEST}", choices=TESTS)
    model: str = setting("mlp", "name of the model, or package.module:Name")
    training: Training = setting(Training(), "local training")
    metrics: tuple[str, ...] = setting(
        (), "names of metrics, the main one first, such as AUROC; empty: those of the task"
    )
    buffers: tuple[str, ...] = setting(
        ("*",), "float buffers of the model that are averaged, such as norm.*; empty: none"
    )
    augment: bool = setting(False, "shift and mirror training images at random")
    silent: float = setting(
        0.0, "probability that a client does not answer, in each exchange", ge=0, lt=1
    )
    patience: int = setting(
        10, "consecutive rounds without an answer after which a client counts as away", ge=1
    )
    newcomers: int | tuple[str, ...] = setting(
        0, "number of clients that join late, in join_round, or their names", ge=0
    )
    join_round: int = setting(10, "the round in which newcomers join", ge=1)
    leavers: int | tuple[str, ...] = setting(
        0, "number of clients that leave and return, see leave, or their names", ge=0
    )
    leave: tuple[int, ...] = setting(
        (10, 20), "the first and the last round in which leavers are away", ge=1
    )
    drift: str = setting("none", "who has which concept when; none: data that stay", choices=DRIFTS)
    period: int = setting(20, "rounds of a time step, in which data stay (drift)", ge=1)
    calm: int = setting(
        1, "time steps before the first change; of still, all of them (drift)", ge=1
    )
    schedule: tuple[tuple[int, ...], ...] = setting(
        (), "a row per time step: the concept of each client (drift=given)"
    )
    renew: bool = setting(
        False, "new examples in each time step; false: the same, under another concept (drift)"
    )
    adversaries: float = setting(
        0.0, "fraction of clients that are hostile, at least one client; 0: none", ge=0, lt=1
    )
    attack: str = setting(
        "none",
        "what hostile clients do, to their labels or to their updates",
        choices=("none", *ATTACKS),
    )
    attack_scale: float | None = setting(
        None, "scale of the attack; none: the attack's default", gt=0, lt=1e18
    )
    alpha: float = setting(0.5, "concentration of the dirichlet and quantity partitions", gt=0)
    least: int = setting(10, "minimum examples per client (dirichlet, quantity, writer)", ge=1)
    shards: int = setting(2, "shards per client (shards)", ge=1, le=1_000_000)
    total_shards: int = setting(100, "shards in all (half-normal)", ge=1, le=10_000_000)
    classes_per_group: int | None = setting(
        None, "classes per group; none: divide all of them (classes)", ge=1
    )
    classes_per_client: int | None = setting(
        None, "classes per client, from its group's; none: all of them (classes)", ge=1
    )
    sizes: tuple[int, ...] = setting(
        (), "lowest and highest size of a client (quantity) or of a class (classes)", ge=1
    )
    swaps: tuple[tuple[int, ...], ...] = setting(
        SWAPS, "pairs of labels that the groups exchange (label-swap)"
    )
    angles: tuple[int, ...] = setting(
        (), "rotation of each group's images in degrees; empty: evenly spaced (rotation)"
    )
    identity: bool = setting(False, "the first group keeps its labels (label-permutation)")
    vocabulary: int = setting(10_000, "number of words (ag_news)", ge=3, le=10_000_000)
    length: int = setting(30, "words of a sequence (ag_news)", ge=1, le=1_000_000)
    examples: int = setting(
        2000, "number of examples (synthetic, sine, circle, sea)", ge=1, le=1_000_000_000
    )
    mislabelled: float = setting(
        0.0, "probability that an example has the wrong label (sine, circle, sea)", ge=0, le=0.5
    )
    features: int = setting(20, "number of features (synthetic)", ge=1, le=10_000_000)
    classes: int = setting(4, "number of classes (synthetic)", ge=2, le=1_000_000)
    spread: float = setting(
        1.0, "standard deviation within a class, where class means have 1 (synthetic)", gt=0
    )
    input_column: str | None = setting(None, "column of the inputs; none: find it (hub)")
    label_column: str | None = setting(None, "column of the labels; none: find it (hub)")
    client: str | None = setting(None, "column that names the client of each row (table)")
    target: str | tuple[str, ...] | None = setting(None, "column to predict, or several (table)")
    columns: tuple[str, ...] = setting((), "columns of the inputs; empty: all others (table)")
    subject: str | None = setting(
        None,
        "column that names the subject of each row, such as a patient, whose rows stay together (table)",
    )
    order: str | None = setting(
        None,
        "column of the times of the rows, of which the latest are for tests; none: rows at random (table)",
    )
    gap: float | str | None = setting(
        None,
        "later parts are later by more than this: a number, or for dates such as 7D or 12h; none: no gap (table, folder)",
    )
    task: str = setting(
        "auto",
        "classification or regression; auto: by the type of the target (table)",
        choices=TASKS,
    )
    resize: int | None = setting(
        None, "height and width that pictures get; none: they have one size (images)", ge=1, le=4096
    )
    grey: bool = setting(
        False, "make pictures grey, with one channel; false: three channels (images)"
    )
    standardize: str = setting(
        "none",
        "inputs minus means, over deviations. pooled: of all clients' training data",
        choices=STANDARDIZE,
    )
    means: tuple[float, ...] = setting(
        (), "one per feature or channel, or one for all (standardize=given)"
    )
    deviations: tuple[float, ...] = setting(
        (), "one per feature or channel, or one for all (standardize=given)", gt=0
    )
    standardize_target: str = setting(
        "none",
        "the loss takes targets minus a mean, over a deviation; metrics and models keep their unit. pooled: of all training "
        "data (table)",
        choices=STANDARDIZE,
    )
    target_means: tuple[float, ...] = setting(
        (), "one per target, or one for all (standardize_target=given)"
    )
    target_deviations: tuple[float, ...] = setting(
        (), "one per target, or one for all (standardize_target=given)", gt=0
    )

    def __post_init__(self) -> None:
        check(self)
        check_shares(self.train, self.validation, self.test)
        check_attack(self.adversaries, self.attack)
        if self.sizes and (len(self.sizes) != 2 or self.sizes[0] > self.sizes[1]):
            raise SettingError(
                f"Scenario.sizes must be a lowest and a highest number, got {list(self.sizes)}"
            )
        self._check_own()
        self._check_drift()
        if self.metrics:
            Objective(metrics=self.metrics)

    def _check_drift(self) -> None:
        """Raise :class:`~coterie.settings.SettingError` if the settings of a drift do not fit together."""
        if (self.drift == "given") != bool(self.schedule):
            raise SettingError("Scenario.schedule goes together with drift = given")
        if self.drift == "none" and self.renew:
            raise SettingError(
                "Scenario.renew needs a drift, got none; still: new examples of one concept"
            )
        if self.drift != "none" and self.dataset in OWN_DATA:
            raise SettingError(
                f"Scenario.drift must be none for the data set {self.dataset}, got {self.drift}"
            )
        if self.renew and self.partition not in RENEWED:
            raise SettingError(
                f"Scenario.renew needs a partition of {', '.join(RENEWED)}, got {self.partition}"
            )

    def _check_own(self) -> None:
        """Raise :class:`~coterie.settings.SettingError` if a setting does not fit clients with their own data."""
        own_data = self.dataset in OWN_DATA
        if own_data != (self.partition == "clients"):
            known = ", ".join(OWN_DATA)
            raise SettingError(
                f"the partition clients goes together with the data sets {known}, whose clients have their own data"
            )
        if own_data and (self.shift != "none" or self.test != "share"):
            raise SettingError(
                f"clients of the data set {self.dataset} keep their own data: shift must be none and test share"
            )
        for name in ("clients", "groups", *_OF_PARTITIONS) if own_data else ():
            if getattr(self, name) != getattr(Scenario, name):
                number = f": there is {OWN_DATA[self.dataset]}" if name == "clients" else ""
                raise SettingError(
                    f"Scenario.{name} is for data that are divided among clients, and clients of the data set {self.dataset} "
                    f"have their own{number}; leave it out"
                )
        check_gap(self.gap)
        if self.gap is not None and not (
            self.dataset == "folder" or (self.dataset == "table" and self.order is not None)
        ):
            raise SettingError(
                f"Scenario.gap {self.gap} needs Scenario.order, a column by which rows are early or late (table)"
            )
        for name in ("client", "target", "subject", "order"):
            if self.dataset != "table" and getattr(self, name) is not None:
                raise SettingError(f"Scenario.{name} is for the data set table, got {self.dataset}")
        given = self.standardize == "given"
        if given != bool(self.means) or given != bool(self.deviations):
            raise SettingError("Scenario.means and deviations go together with standardize = given")
        given = self.standardize_target == "given"
        if given != bool(self.target_means) or given != bool(self.target_deviations):
            raise SettingError(
                "Scenario.target_means and target_deviations go together with standardize_target = given"
            )
        if self.standardize_target != "none" and self.dataset != "table":
            raise SettingError(
                f"Scenario.standardize_target is for numbers to predict, in the data set table; {self.dataset} has classes"
            )

    def build(self, seed: int = 0, folder: Path | str | None = None) -> World:
        """Make the world of ``seed``; its clients have the ids 0, 1, ...

        The truth is the groups that the settings make. It is one group if all clients have the same
        distribution, and None if each client has its own.

        Args:
            seed: Seed of all draws.
            folder: Folder of the data files, or the file of a table; None takes the environment
                variable COTERIE_DATA.

        Returns:
            The world.

        Raises:
            UserError: The data do not fit the settings.
        """
        self._check_file(folder)
        world = among(
            self._honest(seed, folder), seed, self.adversaries, self.attack, self.attack_scale
        )
        if self.metrics:
            world = replace(
                world, objective=replace(world.objective, metrics=self.metrics, main="")
            )
        comings = {
            name: getattr(self, name)
            for name in ("silent", "patience", "newcomers", "join_round", "leavers", "leave")
        }
        attending = attendance.drawn(sorted(world.clients), seed, ids=world.ids, **comings)
        return replace(world, attendance=attending, buffers=self.buffers)

    def _check_file(self, folder: Path | str | None) -> None:
        """Raise :class:`~coterie.settings.SettingError` where a table is given and the data set is no table."""
        if (
            folder is not None
            and self.dataset != "table"
            and tables.ending(Path(folder)) in tables.KINDS
        ):
            raise SettingError(
                f"data is the table {folder}, and the data set is {self.dataset}, which does not read it; for clients of a "
                "table use the scenario table/clients"
            )

    def _honest(self, seed: int, folder: Path | str | None) -> World:
        """The world without adversaries, in which all clients are always present and answer."""
        if self.dataset in OWN_DATA:
            return self._of_own(
                datasets.resolve(folder, self.dataset, file=self.dataset == "table"), seed
            )
        data = datasets.load(self.dataset, folder, **self._options(seed, folder))
        rng = numpy_generator(seed, Purpose.SHIFT)
        shifts = self._shifts(data, rng)
        rows = self._groups(len(shifts), rng)
        sets = len(rows) if self.renew else 1
        parts, kinds = self._parts(
            data.train, numpy_generator(seed, Purpose.PARTITION), sets * self.clients
        )
        steps = self._clients(data, parts, kinds, shifts, rows, seed)
        drift = None
        if self.drift != "none":
            drift = Drift(
                period=self.period,
                concepts=[_concepts(kinds, row, len(shifts)) for row in rows],
                data=steps,
            )
        world = World(
            clients=steps[0],
            model=nets.factory(self.model, data.shape, data.classes),
            training=self.training,
            objective=Objective(
                metrics=("accuracy", "perplexity") if data.words else ("accuracy",)
            ),
            truth=None if drift else _truth(kinds, rows[0] if len(shifts) > 1 else None),
            augment=self._augmentation(data.shape),
            drift=drift,
        )
        return standardized(world, self._constants)

    @property
    def _constants(self) -> str | Constants:
        """The constants of the standardization, or how they are found."""
        return (self.means, self.deviations) if self.means else self.standardize

    def _groups(self, groups: int, rng: np.random.Generator) -> list[np.ndarray]:
        """For each time step, the group or concept of each client, ``(n,)``; one without a drift."""
        if self.drift == "none":
            return [deal(self.clients, groups, rng if self.shuffle else None)]
        table: Schedule = schedule(self.drift, self.clients, groups, self.calm, self.schedule)
        order = rng.permutation(self.clients) if self.shuffle else np.arange(self.clients)
        return [np.array(row)[order] for row in table]

    def _of_own(self, path: Path, seed: int) -> World:
        """The world of clients that have their own data."""
        match self.dataset:
            case "table":
                data = tables.clients(
                    path,
                    self.client,
                    self.target,
                    self.columns,
                    self.task,
                    self.subject,
                    self.order,
                    self.gap,
                )
            case "images":
                data = pictures.clients(path, self.resize, self.grey)
            case _:
                data = own.of_folder(path, not nets.takes_tokens(self.model), self.gap)
        return data.world(
            self.model,
            (self.train, self.validation),
            seed,
            self.samples,
            self._constants,
            (self.target_means, self.target_deviations)
            if self.target_means
            else self.standardize_target,
            training=self.training,
            augment=self._augmentation(data.shape),
        )

    def _augmentation(
        self, shape: tuple[int, ...]
    ) -> Callable[[torch.Tensor, torch.Generator], torch.Tensor] | None:
        if self.augment and len(shape) != 3:
            raise SettingError(f"Scenario.augment needs images, and the inputs have shape {shape}")
        return crop_and_flip if self.augment else None

    def _options(self, seed: int, folder: Path | str | None) -> dict[str, Any]:
        """The settings that the data set takes."""
        taken = datasets.find(self.dataset, folder).options
        return {
            name: seed if name == "seed" else getattr(self, name)
            for name in taken
            if name != "per_domain"
        }

    def _parts(
        self, pool: Pool, rng: np.random.Generator, n: int
    ) -> tuple[Parts, np.ndarray | None]:
        """Positions of each of n clients, and their true groups ``(n,)`` if the partition makes groups."""
        labels, rows = pool.labels, len(pool)
        everyone = np.zeros(n, int)
        match self.partition:
            case "iid":
                return partition.iid(rows, n, rng), everyone
            case "quantity" if self.sizes:
                return partition.ranges(rows, n, self.sizes[0], self.sizes[1], rng), everyone
            case "quantity":
                return partition.quantity(rows, n, self.alpha, rng, self.least), everyone
            case "dirichlet":
                return partition.dirichlet(labels, n, self.alpha, rng, self.least), None
            case "classes":
                groups = deal(n, self.groups, rng if self.shuffle else None)
                wanted = {
                    "per_group": self.classes_per_group,
                    "per_client": self.classes_per_client,
                }
                return partition.class_groups(
                    labels, groups, rng, sizes=self.sizes, **wanted
                ), groups
            case "shards":
                parts = partition.shards(labels, n, self.shards, rng)
                return parts, partition.same_classes(labels, parts)
            case "half-normal":
                return partition.half_normal(labels, n, self.total_shards, rng), None
        if self.partition not in pool.meta:
            raise SettingError(
                f"{self.dataset} does not record the {self.partition} of its examples"
            )
        values = pool.meta[self.partition].numpy()
        if self.partition == "writer":
            return partition.by_owner(values, n, rng, self.least), None
        groups = deal(n, min(int(values.max()) + 1, n), rng if self.shuffle else None)
        return partition.by_kind(values, groups, rng), groups

    def _shifts(self, data: Dataset, rng: np.random.Generator) -> list[Shift]:
        """One shift per group; without a shift, a single one that changes nothing."""
        if self.shift == "none":
            return [Shift()]
        if self.shift == "rotation":
            return shifting.rotations(self.groups, data.shape, self.angles)
        if self.shift == "concept":
            return shifting.concepts(self.groups, data.train)
        if data.words:
            raise SettingError(
                f"the shift {self.shift} needs class labels, and {data.name} predicts words"
            )
        drifts = self.drift != "none"  # then concept 0 keeps the labels
        if self.shift == "label-swap":
            swapped = shifting.label_swaps(self.groups - drifts, data.classes, self.swaps)
            return [Shift(), *swapped] if drifts else swapped
        return shifting.label_permutations(self.groups, data.classes, rng, self.identity or drifts)

    def _clients(
        self,
        data: Dataset,
        parts: Parts,
        kinds: np.ndarray | None,
        shifts: list[Shift],
        rows: Sequence[np.ndarray],
        seed: int,
    ) -> list[dict[int, ClientData]]:
        """For each time step, client -> its data: one part of each client, or one for each time step after the other."""
        view, share = Views(data.train, shifts), self.test == "share"
        if len(rows) == 1:  # otherwise an example may be seen under several concepts
            view.turn_each(parts, rows[0])
        if not share and data.test is None:
            raise SettingError(
                f"{data.name} has no test pool: Scenario.test must be share, got {self.test!r}"
            )
        test_view = view if data.test is None or share else Views(data.test, shifts)
        cuts = self._cuts(data, parts, kinds, Selections(test_view.pool), seed)
        made: dict[
            tuple[int, int], ClientData
        ] = {}  # a client that keeps its concept keeps its data
        steps: list[dict[int, ClientData]] = []
        for step, row in enumerate(rows):
            steps.append({})
            for client, group in enumerate(map(int, row)):
                at = (client + step * self.clients * self.renew, group)
                if at not in made:
                    train, validation, rest = cuts[at[0]]
                    made[at] = ClientData(
                        train=view.split(train, group),
                        validation=view.split(validation, group),
                        test=test_view.split(rest, group),
                    )
                steps[step][client] = made[at]
        return steps

    def _cuts(
        self, data: Dataset, parts: Parts, kinds: np.ndarray | None, tests: Selections, seed: int
    ) -> list[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]:
        """For each part, the positions of its training and validation examples, and of test examples in the pool of these."""
        share, labels, cuts = self.test == "share", data.train.labels, []
        own_kind = self.partition in tests.pool.meta
        for number, part in enumerate(parts):
            step, client = divmod(number, self.clients)
            mine = numpy_generator(seed, Purpose.DATA, 1 + step, client).permutation(part)[
                : self.samples
            ]
            cut = hold_out(mine, self.train, self.validation, share, f"client {client}")
            train, validation, rest = (torch.from_numpy(rows) for rows in cut)
            if not share:
                kind = (
                    (self.partition, int(kinds[client])) if kinds is not None and own_kind else None
                )
                rest = tests.rows(self.test, labels[mine], kind)
            cuts.append((train, validation, rest))
        return cuts


def _concepts(kinds: np.ndarray | None, row: np.ndarray, count: int) -> dict[int, int]:
    """Client -> its concept, one of ``count``; clients of different kinds (partition) have different numbers."""
    return {
        c: int(concept) + (0 if kinds is None else count * int(kinds[c]))
        for c, concept in enumerate(row)
    }


def _truth(kinds: np.ndarray | None, groups: np.ndarray | None) -> Groups | None:
    """Groups of clients with the same kind (partition) and the same group (shift); None if neither is known."""
    known = [numbers for numbers in (kinds, groups) if numbers is not None]
    if not known:
        return None
    members: dict[tuple[int, ...], list[int]] = {}
    for client, key in enumerate(zip(*known, strict=True)):
        members.setdefault(tuple(map(int, key)), []).append(client)
    return as_groups(members.values())


SCENARIOS: Mapping[str, Scenario] = MappingProxyType(
    {name: build(Scenario, settings) for name, settings in SETTINGS.items()}
)
"""Named scenarios: data set / heterogeneity -> scenario."""


FEDERATION = "federation"
"""Name in place of a scenario for a run whose clients are nodes of a federation."""


class Elsewhere(Scenario):
    """The scenario of a run whose clients are nodes of a federation."""

    def build(self, seed: int = 0, folder: Path | str | None = None) -> World:
        """Raise :class:`~coterie.settings.UserError`: only the federation itself can continue its run."""
        raise UserError(
            "the clients of a federation are on other machines: to resume, start its ServerApp again with the same settings"
        )


OWN = "own"
"""Name in place of a scenario for a run over a world that was given in Python, and has no name."""


@public
@dataclass(frozen=True, kw_only=True)
class OwnWorld:
    """The scenario of a run over your own world: a function that makes it, or the world itself.

    Attributes:
        source: The function as ``package.module:function``, called with the seed; empty if it has
            no such name.
        made: The world, or the function, if it was given in Python.
        training: Local training, in place of the world's own; None keeps that.
    """

    source: str = ""
    made: World | Callable[[int], World] | None = field(default=None, compare=False)
    training: Training | None = None
    about: ClassVar[str] = "your own world"
    model: ClassVar[str] = ""

    @classmethod
    def of(cls, made: World | Callable[[int], World]) -> OwnWorld:
        """Return the scenario of a world or a function, with the function's name if it can be imported by it."""
        module, name = getattr(made, "__module__", ""), getattr(made, "__qualname__", "")
        known = (
            not isinstance(made, World)
            and module not in ("", "__main__", None)
            and name.isidentifier()
        )
        return cls(source=f"{module}:{name}" if known else "", made=made)

    @property
    def name(self) -> str:
        """The name of the scenario in records."""
        return self.source or OWN

    def build(self, seed: int = 0, folder: Path | str | None = None) -> World:
        """Return the world of ``seed``.

        Args:
            seed: The seed, with which the function is called.
            folder: Not used: the function knows its data.

        Returns:
            The world.

        Raises:
            UserError: The function cannot be imported, fails, or makes no world.
        """
        made = (
            nets.imported(self.source, "scenario")
            if self.made is None and self.source
            else self.made
        )
        if made is None:
            raise UserError(
                "the run began with a world given in Python: pass it to coterie.reopen(FOLDER, world=...) to continue"
            )
        world = made if isinstance(made, World) else self._called(made, seed)
        return world if self.training is None else replace(world, training=self.training)

    def _called(self, made: Callable[[int], World], seed: int) -> World:
        try:
            with seeded(seed, Purpose.OWN_CODE):  # a run that continues must have the same data
                world = made(seed)
        except UserError:
            raise
        except Exception as error:  # the user's function can raise anything
            raise UserError(
                f"the scenario {self.name!r} fails with seed {seed}: {type(error).__name__}: {error}"
            ) from error
        if not isinstance(world, World):
            raise UserError(
                f"the scenario {self.name!r} must return a coterie.World, but returns {type(world).__name__}"
            )
        return world


def find(name: str) -> Scenario | OwnWorld:
    """Return the scenario called ``name``; ``package.module:function`` is a function that makes the world of a seed.

    Args:
        name: Name of the scenario.

    Returns:
        The scenario.

    Raises:
        UserError: The name is unknown; the message has the nearest known name.
    """
    if name == FEDERATION:
        return Elsewhere()
    if name == OWN or ":" in name:
        return OwnWorld(source="" if name == OWN else name)
    if name not in SCENARIOS:
        raise UserError(
            f"there is no scenario {name!r}{nearest(name, SCENARIOS)} (known: {', '.join(SCENARIOS)})"
        )
    return SCENARIOS[name]
