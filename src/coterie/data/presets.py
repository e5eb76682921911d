"""The settings of the named scenarios: data set / heterogeneity.

Settings that are not listed have their defaults. Numbers are those of the papers where the papers
print them; ``about`` names the paper. ``--set`` changes any setting.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from coterie.core import Training

Settings = Mapping[str, Any]

# What several scenarios share. _SMALL: clients with few examples, which a laptop trains in seconds.
_SMALL = {"training": Training(lr=0.1, batch=10, epochs=3)}
# FL+HC's experiments on MNIST: 100 clients, tests on the whole test pool.
_FLHC = {
    "clients": 100,
    "train": 1.0,
    "validation": 0.0,
    "test": "whole",
    "model": "flhc-cnn",
    "training": Training(lr=0.1, batch=10, epochs=3),
}
# 100 clients that hold out their own test examples, with CFL's network.
_SHARED = {"clients": 100, "model": "cfl-cnn", "training": Training(lr=0.1, batch=10, epochs=1)}
# CFL's experiments on CIFAR-10: 20 clients, one pass of large batches three times a round.
_CFL = {
    "clients": 20,
    "train": 0.9,
    "test": "whole",
    "model": "cfl-cifar-cnn",
    "training": Training(lr=0.05, batch=100, epochs=3),
}
# HCCT's clients: a fifth of their examples to train, all others to test.
_HCCT = {"train": 0.2, "validation": 0.0, "clients": 10}
# ACFL's subsets of CIFAR-100: 50 to 500 images of each class.
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
    synthetic_base = {**_SMALL, "dataset": "synthetic", "model": "linear"}
    return {
        "synthetic/iid": {
            **synthetic_base,
            "about": "Gaussian classes, identically distributed clients",
        },
        "synthetic/groups": {
            **synthetic_base,
            "shift": "label-permutation",
            "about": "four groups with different class labels",
        },
    }


def _drifting() -> dict[str, Settings]:
    """FedDrift's streams and MNIST, new examples in each time step; label swaps of images that stay, as FedCCFA's."""
    # A stream of 20,000 examples: 200 for each of 10 clients in each of 10 time steps, half of them
    # to train.
    drifting_stream = {
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
    # Concept 0 keeps its labels, and each other concept exchanges two.
    label_swaps = {"shift": "label-swap", "swaps": ((1, 2), (3, 4), (5, 6))}
    ten_steps = "10 time steps of 100 new examples to train on"
    return {
        "sine/drift": {
            **drifting_stream,
            "dataset": "sine",
            "about": f"FedDrift's SINE: {ten_steps}, clients that change their concept",
        },
        "circle/drift": {
            **drifting_stream,
            "dataset": "circle",
            "about": f"FedDrift's CIRCLE: {ten_steps}",
        },
        "sea/drift": {
            **drifting_stream,
            "dataset": "sea",
            "groups": 4,
            "drift": "feddrift-c",
            "mislabelled": 0.1,
            "about": f"SEA with four concepts: {ten_steps}, one label in ten is wrong",
        },
        "digits/drift": {
            **_SMALL,
            **label_swaps,
            "drift": "sudden",
            "about": "FedCCFA's sudden drift: after 20 rounds, three groups each exchange two labels",
        },
        "mnist/drift": {
            **_FLHC,
            **label_swaps,
            "dataset": "mnist",
            "clients": 10,
            "drift": "feddrift-c",
            "renew": True,
            "samples": 100,
            "model": "ifca-mlp",
            "about": f"FedDrift's MNIST: {ten_steps}, four groups that exchange labels",
        },
        "fashion/drift": {
            **_SHARED,
            **label_swaps,
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
    # Two families: FL+HC's clients with the shared test pool, and clients with tests of their own.
    flhc_mnist = {**_FLHC, "dataset": "mnist"}
    shared_mnist = {**_SHARED, "dataset": "mnist"}
    # IFCA takes ten steps of the full batch.
    ifca_training = {"model": "ifca-mlp", "training": Training(lr=0.1, batch=0, steps=10)}
    return {
        "mnist/iid": {**flhc_mnist, "about": "FL+HC's IID clients: 600 images each"},
        "mnist/label-swap": {
            **flhc_mnist,
            "shift": "label-swap",
            "about": "FL+HC's label-swap: 4 groups of 25 clients",
        },
        "mnist/label-permutation": {
            **flhc_mnist,
            "shift": "label-permutation",
            "about": "4 groups that permute the labels",
        },
        "mnist/pathological": {
            **flhc_mnist,
            "partition": "shards",
            "test": "classes",
            "about": "FL+HC's pathological clients: two labels each",
        },
        "mnist/rotation": {
            **flhc_mnist,
            **ifca_training,
            "shift": "rotation",
            "about": "IFCA's four rotations",
        },
        "mnist/dirichlet": {
            **shared_mnist,
            "partition": "dirichlet",
            "about": "class shares from Dirichlet(0.5)",
        },
        # QMNIST records who wrote each digit of MNIST.
        "mnist/writers": {
            **shared_mnist,
            "dataset": "qmnist",
            "partition": "writer",
            "about": "each client is one writer of MNIST",
        },
        "mnist/populations": {
            **shared_mnist,
            "dataset": "qmnist",
            "partition": "population",
            "about": "two groups: digits written by Census employees and by high-school students",
        },
    }


def _fashion() -> dict[str, Settings]:
    # HCCT's network and training.
    hcct_training = {
        "model": "hcct-mlp",
        "training": Training(lr=0.1, lr_decay=0.995, batch=64, epochs=1),
    }
    flhc_fashion = {**_FLHC, "dataset": "fashion_mnist"}
    shared_fashion = {**_SHARED, "dataset": "fashion_mnist"}
    return {
        "fashion/iid": {
            "dataset": "fashion_mnist",
            **_HCCT,
            **hcct_training,
            "clients": 20,
            "train": 0.04,
            "about": "HCCT's FMNIST: 20 clients, 120 training images each, their other images to test",
        },
        "fashion/label-swap": {
            **flhc_fashion,
            "shift": "label-swap",
            "about": "4 groups, two labels exchanged",
        },
        "fashion/label-permutation": {
            **flhc_fashion,
            "shift": "label-permutation",
            "about": "4 groups that permute the labels",
        },
        "fashion/rotation": {
            **flhc_fashion,
            "shift": "rotation",
            "about": "4 groups, images turned by 0 to 270 degrees",
        },
        "fashion/pathological": {
            **flhc_fashion,
            "partition": "shards",
            "test": "classes",
            "about": "two labels per client",
        },
        "fashion/dirichlet": {
            **shared_fashion,
            "partition": "dirichlet",
            "about": "class shares from Dirichlet(0.5)",
        },
    }


def _cifar10() -> dict[str, Settings]:
    # CFL's clients, and below HCCT's network and training.
    cfl_cifar10 = {**_CFL, "dataset": "cifar10"}
    hcct_training = {
        "model": "hcct-cnn",
        "augment": True,
        "training": Training(lr=0.1, lr_decay=0.995, batch=64, epochs=1),
    }
    return {
        "cifar10/iid": {**cfl_cifar10, "about": "20 identically distributed clients"},
        "cifar10/label-permutation": {
            **cfl_cifar10,
            "shift": "label-permutation",
            "about": "CFL's CIFAR-10: 4 groups of 5 clients permute the labels",
        },
        "cifar10/label-swap": {
            **cfl_cifar10,
            "shift": "label-swap",
            "about": "CFL's: 4 groups exchange two labels",
        },
        "cifar10/rotation": {
            **cfl_cifar10,
            "shift": "rotation",
            "groups": 2,
            "about": "IFCA's CIFAR-10: 0 and 180 degrees",
        },
        "cifar10/half-normal": {
            "dataset": "cifar10",
            **_HCCT,
            **hcct_training,
            "partition": "half-normal",
            "about": "HCCT's CIFAR-10: 100 shards of one class, 10 clients with half-normal numbers of them",
        },
        "cifar10/dirichlet": {
            **cfl_cifar10,
            "partition": "dirichlet",
            "train": 0.8,
            "test": "share",
            "about": "Dirichlet(0.5)",
        },
        "cifar10/class-groups": {
            **cfl_cifar10,
            "partition": "classes",
            "test": "classes",
            "about": "4 groups, disjoint classes",
        },
    }


def _others() -> dict[str, Settings]:
    acfl_cifar100 = {**_ACFL, "dataset": "cifar100"}
    # HCCT's Digit, with the network of FedBN: 206 images of one origin for each client.
    digit_domains = {
        "partition": "domain",
        "samples": 206,
        "train": 0.9,
        "test": "whole",
        "model": "fedbn-cnn",
        "training": Training(lr=0.01, lr_decay=0.995, batch=64, epochs=5),
    }
    return {
        "cifar100/class-pairs": {
            **acfl_cifar100,
            "groups": 8,
            "classes_per_group": 2,
            "about": "ACFL's two tasks: 8 pairs of clients, two classes per pair, classes of unequal size",
        },
        "cifar100/class-groups": {
            **acfl_cifar100,
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
            **digit_domains,
            "dataset": "digit_domains",
            "clients": 8,
            "about": "digits of four origins, two clients each, 185 images to train (HCCT's Digit has five origins)",
        },
        "digit_five/domains": {
            **digit_domains,
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
        # Clients that have their own data: nothing is divided.
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


PRESETS: Mapping[str, Settings] = MappingProxyType(
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
