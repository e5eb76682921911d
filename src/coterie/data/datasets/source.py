"""What a data set is: a name, a sentence, its options, and a function that reads it.

Each module of this package registers its data sets with :func:`register`, beside the class of
their options. Nothing else lists them: a new data set is a new module.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from coterie.data.examples import Dataset
from coterie.data.own import OwnData
from coterie.data.parts import ScenarioPart
from coterie.files import available_memory
from coterie.settings import SettingError, setting

Paths = tuple[Path, ...]


@dataclass(frozen=True, kw_only=True)
class DatasetSettings(ScenarioPart):
    """The data set of a scenario: its name and, in subclasses, its options.

    Attributes:
        name: Name of the data set.
    """

    part: ClassVar[str] = "dataset"
    main: ClassVar[str] = "name"
    has_targets: ClassVar[bool] = False
    """Whether the targets can be numbers, which can be standardized."""

    name: str = setting(
        "digits",
        "name of the data set, hub:NAME, NAME of a NAME.npz, or your own: folder (a file per "
        "client), table (rows name the client) or images (a folder per client)",
    )

    @property
    def takes_folder(self) -> bool:
        """Whether data that are one file may also be a folder."""
        return False


@dataclass(frozen=True)
class Source:
    """How the examples of one data set are found and read. A scenario divides them among clients.

    Attributes:
        about: A short description.
        read: Function of the paths, the options and the seed that returns the
            :class:`~coterie.data.examples.Dataset`.
        files: Function of a folder that returns the paths of the needed files; None for a data set
            without files.
        options: The class of its settings.
        random: Whether the examples depend on the seed.
    """

    about: str
    read: Callable[[Paths, Any, int], Dataset]
    files: Callable[[Path], Paths] | None = None
    options: type[DatasetSettings] = DatasetSettings
    random: bool = False


@dataclass(frozen=True)
class OwnSource:
    """How your own data are read, in which each client has its examples already.

    Attributes:
        clients: The number of clients, in words.
        read: Function of the path, the options, and whether the model takes tokens, that returns
            the :class:`~coterie.data.own.OwnData`.
        options: The class of its settings.
        is_file: Whether the data are one file; otherwise they are a folder.
    """

    clients: str
    read: Callable[[Path, Any, bool], OwnData]
    options: type[DatasetSettings] = DatasetSettings
    is_file: bool = False


@dataclass(frozen=True)
class Family:
    """Data sets of one kind, whose names are not known beforehand.

    Attributes:
        pattern: The form of the names, for messages.
        find: Function of a name and the data folder, or None, that returns the :class:`Source`, or
            None if the name does not belong to the family.
        prefix: What the names begin with; empty if that is not known.
        options: The class of their settings.
    """

    pattern: str
    find: Callable[[str, Path | None], Source | None]
    prefix: str = ""
    options: type[DatasetSettings] = DatasetSettings


REGISTERED: dict[str, Source] = {}
"""Name -> data set, in the order of registration; use :data:`coterie.data.datasets.DATASETS`."""

OWN_SOURCES: dict[str, OwnSource] = {}
"""Name -> data set whose clients have their own data."""

FAMILIES: list[Family] = []


def register(name: str, source: Source | OwnSource) -> None:
    """Add a data set. Its settings are those of ``source.options``."""
    # A scenario divides the examples of the one kind; clients of the other have their own.
    if isinstance(source, Source):
        REGISTERED[name] = source
    else:
        OWN_SOURCES[name] = source


def register_family(family: Family) -> None:
    """Add data sets of one kind, whose names are not known beforehand."""
    FAMILIES.append(family)


def settings_class(name: str) -> type[DatasetSettings]:
    """Return the class of the settings of the data set called ``name``, which may be unknown."""
    source = REGISTERED.get(name) or OWN_SOURCES.get(name)
    if source is not None:
        return source.options
    # Only some families can be told from a name, such as hub:NAME.
    for family in FAMILIES:
        if family.prefix and name.startswith(family.prefix):
            return family.options
    return DatasetSettings


def check_memory(needed_bytes: int, what: str) -> None:
    """Check that drawn examples fit into the memory.

    Args:
        needed_bytes: Memory that the examples take.
        what: The examples, for the message.

    Raises:
        SettingError: They would take more than half of the free memory.
    """
    # The other half is for the models, and for the copies that training makes.
    half_of_free = available_memory() / 2
    if needed_bytes > half_of_free:
        raise SettingError(
            f"{what} take {needed_bytes:,} bytes, and half of the free memory is "
            f"{half_of_free:,.0f} bytes"
        )
