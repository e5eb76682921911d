"""Digits of several origins, as images of 3 x 28 x 28: the domains of HCCT and FedBN."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch

from coterie.data.datasets.source import REGISTERED, DatasetSettings, Paths, Source, register
from coterie.data.examples import Dataset, Pool
from coterie.settings import setting

# Upstream: several data sets of digits, each in its own files and its own module of this package.
# MNIST and USPS are grey and of 28 x 28 and 16 x 16 pixels, scikit-learn's digits grey and 8 x 8,
# SVHN, SynthDigits and MNIST-M coloured and 32 x 32 or 28 x 28.
#
# From data sets to one pool: the first ``per_domain`` images of each, made equal in size and
# channels, one domain after the other. The meta ``domain`` records which images come from which
# data set.
#
# From the pool to clients: the partition ``domain`` gives each client images of one domain only,
# and the domains are the true groups.
NUMBER_OF_FILES = {"mnist": 4, "svhn": 2, "usps": 1, "synth_digits": 2, "mnist_m": 1, "digits": 0}
"""Data set of digits -> the number of its files."""


@dataclass(frozen=True, kw_only=True)
class DomainSettings(DatasetSettings):
    """The size of each domain."""

    per_domain: int = setting(
        5000,
        "training images of each domain, the first ones; a fifth as many are test images",
        ge=5,
        le=1_000_000,
    )


def domain_files(folder: Path, domains: tuple[str, ...]) -> Paths:
    """Find the files of all domains, in their order."""
    paths: list[Path] = []
    for domain in domains:
        # scikit-learn's digits have no files.
        find_files = REGISTERED[domain].files
        paths += find_files(folder) if find_files else ()
    return tuple(paths)


def read_domains(
    paths: Paths, options: DomainSettings, seed: int, domains: tuple[str, ...]
) -> Dataset:
    """Read domains of digits as images of 3 x 28 x 28.

    Args:
        paths: The files of all domains, in their order.
        options: The size of each domain.
        seed: Not used.
        domains: Data sets of digits, one for each domain.

    Returns:
        The data set. Its meta ``domain`` is the number of the domain.
    """
    unread = list(paths)
    train_pools: list[Pool] = []
    test_pools: list[Pool] = []
    for domain in domains:
        # The paths of all domains are one list; take those of this domain from its front.
        file_count = NUMBER_OF_FILES[domain]
        paths_of_domain = unread[:file_count]
        unread = unread[file_count:]
        source = REGISTERED[domain]
        # The domain's own module reads them.
        dataset = _with_test_pool(
            source.read(tuple(paths_of_domain), source.options(name=domain), seed)
        )
        assert dataset.test is not None
        # Every domain gives equally many images, so that no domain dominates by its size.
        train_pools.append(dataset.train.first(options.per_domain))
        test_pools.append(dataset.test.first(options.per_domain // 5))
    return Dataset(
        name=options.name, train=_joined(train_pools), test=_joined(test_pools), classes=10
    )


def _with_test_pool(dataset: Dataset) -> Dataset:
    """The last fifth of a data set without a test pool becomes its test pool."""
    if dataset.test is not None:
        return dataset
    # The test images are the last ones, and the training images those before them.
    images = dataset.train.inputs
    labels = dataset.train.targets
    train_count = len(dataset.train) - len(dataset.train) // 5
    test_pool = Pool(images[train_count:], labels[train_count:])
    return Dataset(
        name=dataset.name,
        train=dataset.train.first(train_count),
        test=test_pool,
        classes=dataset.classes,
    )


def _joined(pools_of_domains: list[Pool]) -> Pool:
    """One pool of all domains, in colour and of one size."""
    images = []
    for domain_pool in pools_of_domains:
        # Resize to 28 x 28, repeat a grey channel three times, and undo what interpolation
        # overshoots.
        resized = torch.nn.functional.interpolate(
            domain_pool.inputs, size=(28, 28), mode="bilinear"
        )
        images.append(resized.expand(-1, 3, -1, -1).clamp(0, 1))
    # The number of each image's domain, in the order of the images.
    domain = [
        torch.full((len(domain_pool),), number)
        for number, domain_pool in enumerate(pools_of_domains)
    ]
    labels = torch.cat([domain_pool.targets for domain_pool in pools_of_domains])
    return Pool(torch.cat(images), labels, {"domain": torch.cat(domain)})


for _name, _about, _domains in (
    (
        "digit_domains",
        "digits of four origins as 3x28x28: MNIST, USPS, MNIST-M, scikit-learn's",
        ("mnist", "usps", "mnist_m", "digits"),
    ),
    (
        "digit_five",
        "digits of five origins as 3x28x28, as in HCCT: MNIST, SVHN, USPS, SynthDigits, MNIST-M",
        ("mnist", "svhn", "usps", "synth_digits", "mnist_m"),
    ),
):
    register(
        _name,
        Source(
            _about,
            partial(read_domains, domains=_domains),
            partial(domain_files, domains=_domains),
            options=DomainSettings,
        ),
    )
