"""Data sets by name: ``load("mnist", "/data")`` reads files in their upstream layouts.

Every module of this package is one data set, or one file format with its data sets: the class of
its options, the function that reads it, and a line that registers it.
"""

from __future__ import annotations

import os
import pkgutil
from collections.abc import Mapping
from functools import lru_cache
from importlib import import_module
from pathlib import Path
from types import MappingProxyType
from typing import Any

from coterie.data.datasets.source import (
    FAMILIES,
    OWN_SOURCES,
    REGISTERED,
    DatasetSettings,
    Source,
)
from coterie.data.examples import Dataset
from coterie.files import expanded, reason
from coterie.settings import UserError, build, known_list, nearest

# Every module of this package registers its data sets when it is imported, so import them all.
for _module in pkgutil.iter_modules(__path__):
    import_module(f"{__name__}.{_module.name}")

DATASETS: Mapping[str, Source] = MappingProxyType(
    dict(sorted(REGISTERED.items(), key=lambda entry: entry[1].files is not None))
)
"""Name -> data set that a scenario divides among clients; first those that need no files."""

OWN_DATA: Mapping[str, str] = MappingProxyType(
    {name: source.clients for name, source in OWN_SOURCES.items()}
)
"""Data sets whose clients have their own data -> their number of clients, in words."""


def load(name: str, folder: Path | str | None = None, seed: int = 0, **options: Any) -> Dataset:
    """Load the data set called ``name``.

    The last two data sets stay in memory. They are read again only if a file has changed.

    Args:
        name: One of :data:`DATASETS`, ``hub:NAME``, or NAME for the ``NAME.npz`` of the folder.
        folder: Folder of its files; None takes the environment variable COTERIE_DATA. Each file is
            searched in the folder itself and in upstream's own subfolders.
        seed: Seed of the examples, where they are drawn.
        **options: Settings of the data set, see :attr:`Source.options`.

    Returns:
        The data set.

    Raises:
        UserError: The name is unknown, the folder or a file is missing, or a file is not valid.
        SettingError: The data set has no such option.
    """
    # The name says how the files are found and read, and which options there are.
    source = find(name, folder)
    return read(
        source,
        build(source.options, {"name": name, **options}, owner=f"the data set {name}"),
        folder,
        seed,
    )


def read(source: Source, options: DatasetSettings, folder: Path | str | None, seed: int) -> Dataset:
    """Read a data set with the given options; see :func:`load`."""
    # Find the files, and note the time and the size of each: the cache's key, so that a file that
    # has changed is read again.
    paths = source.files(resolve(folder, options.name)) if source.files else ()
    try:
        stamps = tuple((path, path.stat().st_mtime_ns, path.stat().st_size) for path in paths)
    except OSError as error:
        raise UserError(f"{error.filename} cannot be read: {reason(error)}") from error
    # All runs share a data set that is read from files, whatever their seeds are.
    return _read_unless_kept(source, stamps, options, seed if source.random else 0)


@lru_cache(maxsize=2)
# Two data sets, because a comparison of methods often changes between two scenarios.
def _read_unless_kept(
    source: Source,
    stamps: tuple[tuple[Path, int, int], ...],
    options: DatasetSettings,
    seed: int,
) -> Dataset:
    return source.read(tuple(path for path, _, _ in stamps), options, seed)


def find(name: str, folder: Path | str | None = None) -> Source:
    """Return the :class:`Source` of a data set.

    Args:
        name: As for :func:`load`.
        folder: As for :func:`load`.

    Returns:
        The source.

    Raises:
        UserError: The name is unknown; the message has the nearest known name.
    """
    if name in DATASETS:
        return DATASETS[name]
    # Other names belong to a family: a data set of the hub, or a NAME.npz in the data folder.
    data_folder = folder or os.environ.get("COTERIE_DATA")
    for family in FAMILIES:
        source = family.find(name, expanded(data_folder) if data_folder else None)
        if source is not None:
            return source
    # The message has the nearest of the known names.
    known_names = [*DATASETS, *(family.pattern for family in FAMILIES)]
    raise UserError(
        f"there is no data set {name!r}{nearest(name, DATASETS)}{known_list(known_names)}"
    )


def resolve(folder: Path | str | None, name: str, *, file: bool = False) -> Path:
    """Return the data folder, or the file of a table: the given one, otherwise COTERIE_DATA.

    Args:
        folder: The given folder or file, or None.
        name: Name of the data set, for the message.
        file: Whether it is a file.

    Returns:
        The path of an existing folder or file.

    Raises:
        UserError: No path is given, it does not exist, or it is a folder where a file is needed or
            the other way round.
    """
    # The words of the messages.
    path_noun = "file" if file else "folder"
    option_hint = "--data FILE.csv" if file else "--data DIR"
    data_path = folder or os.environ.get("COTERIE_DATA")
    if not data_path:
        request = f"{name} is read from files: give their folder"
        if file:
            request = "a table is read from a file: give it"
        raise UserError(f"{request} with {option_hint} or set COTERIE_DATA")
    resolved_path = expanded(data_path)
    # The path must exist, and be a file for a table and a folder for everything else.
    if file and resolved_path.is_dir():
        raise UserError(
            f"{resolved_path} is a folder, and a table is one file: give it with {option_hint}"
        )
    if not resolved_path.exists():
        raise UserError(f"the data {path_noun} {resolved_path} does not exist")
    if not file and not resolved_path.is_dir():
        raise UserError(
            f"the data folder {resolved_path} is a file; for a table of your own, use the scenario "
            "table/clients"
        )
    return resolved_path
