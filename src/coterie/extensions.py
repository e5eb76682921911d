"""Extensions: methods, engines, commands and trackers that installed packages register.

A package registers what it adds by entry points in its ``pyproject.toml``, as Coterie itself does
for :mod:`coterie.contrib`::

    [project.entry-points."coterie.methods"]
    my-method = "my_package.my_module:MyMethod"

============================ =====================================================================
group                        what the entry point names
============================ =====================================================================
``coterie.methods``          a method's class, whose ``name`` is the name of the entry point
``coterie.commands``         a :class:`coterie.cli.arguments.Command`
``coterie.engines``          a :class:`coterie.runs.experiment.Engine`, or a module with its functions
``coterie.optimizers``       an optimizer of local training that makes its own steps: a module with
                             functions check_options, wire, train and privacy, and over
                             Flower server_wire and check_orders, see
                             :mod:`coterie.contrib.dpsgd`
``coterie.trackers``         a subclass of :class:`coterie.contrib.tracking.Tracker`
``coterie.hooks``            what Coterie calls for an option: ``tracking``, for ``--track``, and
                             ``table-schema``, a module that makes clients of a table by a schema
``coterie.exchanges``        who carries out plans with ``need="sums"``: ``sums``, in one process,
                             is a :class:`coterie.engines.exchange.SumsExchange`; ``flower-sums``,
                             over Flower, is a :class:`coterie.engines.flower.sums.FlowerSums`
============================ =====================================================================

Nothing is imported before it is used. If an extension cannot be imported, or is not what its group
needs, a warning names its package, and everything else works.
"""

from __future__ import annotations

import importlib.machinery
import os
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import Any, Generic, TypeVar

from coterie.settings import PlainWarning, UserError, nearest

PREFIX = "coterie."
"""The groups of entry points that are read begin with this."""

METADATA_FOLDERS = (".dist-info", ".egg-info")
"""Endings of the folders in which installers describe packages."""

ExtensionType = TypeVar("ExtensionType")


class BrokenExtension(UserError):
    """An extension cannot be imported, or is not what its group needs."""


class ExtensionWarning(PlainWarning):
    """An installed package registers something that cannot be used."""


@dataclass(frozen=True)
class EntryPoint:
    """One line of a package's entry points.

    Attributes:
        group: The group, such as ``coterie.methods``.
        name: The name that users write.
        target: ``module:attribute``.
        package: The package and its version, for messages.
    """

    group: str
    name: str
    target: str
    package: str

    def load(self) -> Any:
        """Import what the entry point names.

        Raises:
            BrokenExtension: That fails; the message names the package and the error.
        """
        module_name, _, attribute_path = self.target.partition(":")
        try:
            # The target may lie within a class: module:Class.attribute.
            target_object: Any = import_module(module_name)
            for attribute_name in filter(None, attribute_path.split(".")):
                target_object = getattr(target_object, attribute_name)
        # A module may do anything while it is imported.
        except (Exception, SystemExit) as error:
            cause = f"{type(error).__name__}: {error}"
            raise self.broken(f"cannot be imported ({cause:.300})") from error
        return target_object

    def broken(self, reason: str) -> BrokenExtension:
        """The error for an extension that cannot be used, and why it cannot."""
        kind = self.group.removeprefix(PREFIX)
        return BrokenExtension(f"{self.name!r} in {kind} of the package {self.package} {reason}")


def entry_points(group: str) -> Mapping[str, EntryPoint]:
    """Return the entry points of a group by name; nothing is imported.

    Args:
        group: The group, such as ``coterie.methods``.

    Returns:
        Name -> entry point: those of Coterie first, then in the order of ``sys.path``.
    """
    return _grouped(tuple(sys.path)).get(group, {})


@cache
def _grouped(search_path: tuple[str, ...]) -> dict[str, dict[str, EntryPoint]]:
    """Group -> name -> entry point, of the packages installed in the folders of ``path``."""
    # Read the lines of all packages, then group them by group and name.
    all_points = [
        point for folder, package in _packages(search_path) for point in _points(folder, package)
    ]
    # Coterie's own come first; the sort keeps the order of the others.
    all_points.sort(key=lambda point: _package_name(point.package) != "coterie")
    groups: dict[str, dict[str, EntryPoint]] = {}
    for point in all_points:
        first_registered = groups.setdefault(point.group, {}).setdefault(point.name, point)
        if first_registered is not point:
            warn(point.broken(f"is ignored: {first_registered.package} registers the same name"))
    return groups


def _packages(search_path: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    """(folder of its metadata, name with version) of each installed package.

    importlib.metadata finds the same, but importing it takes 40 ms of processor time, a third of
    all that ``coterie --help`` needs.
    """
    # The current folder may be a run directory from another person, who must not add code to it.
    folders = [folder for folder in search_path if folder and folder != os.getcwd()]
    seen_packages = set()
    for folder in folders:
        try:
            entries = sorted(os.listdir(folder))
        # A zip file, or a folder that is gone.
        except OSError:
            continue
        for entry in entries:
            package, ending = os.path.splitext(entry)
            package_name = _package_name(package)
            # As in Python's own search, the first folder that has a package is the one that counts.
            if ending in METADATA_FOLDERS and package_name not in seen_packages:
                seen_packages.add(package_name)
                yield os.path.join(folder, entry), package.replace("-", " ", 1)


def _package_name(package: str) -> str:
    """The name of a package without its version, as package indexes compare names."""
    return package.replace(" ", "-").partition("-")[0].lower().replace("_", "-").replace(".", "-")


def _points(folder: str, package: str) -> Iterator[EntryPoint]:
    """The entry points of one package that are of Coterie's groups."""
    try:
        with open(os.path.join(folder, "entry_points.txt"), encoding="utf-8") as entry_file:
            entry_text = entry_file.read()
    # Most packages have no entry points.
    except (OSError, UnicodeDecodeError):
        return
    # A quick look first: almost all packages with entry points have none of Coterie's.
    if f"[{PREFIX}" not in entry_text:
        return
    group = ""
    for line in map(str.strip, entry_text.splitlines()):
        # The file is in the format of ini files: a group in brackets, then lines NAME = TARGET.
        name, equals, target = line.partition("=")
        if line.startswith("["):
            group = line.strip("[] ")
        elif group.startswith(PREFIX) and equals and not line.startswith(("#", ";")):
            yield EntryPoint(group, name.strip(), target.strip(), package)


def provided(group: str, name: str) -> Any:
    """Return what an extension must register, because another part of Coterie calls it by name.

    Args:
        group: The group, such as ``coterie.hooks``.
        name: The name in the group.

    Raises:
        UserError: No installed package registers it, or it cannot be imported.
    """
    points_of_group = entry_points(group)
    if name not in points_of_group:
        raise UserError(f"no installed package provides {name}; install coterie again with pip")
    return points_of_group[name].load()


def warn(error: BrokenExtension) -> None:
    """Warn of an extension that cannot be used."""
    warnings.warn(str(error), ExtensionWarning, stacklevel=2)


def imported(name: str, kind: str) -> Any:
    """Import ``package.module:Name``, also from the current folder.

    Args:
        name: The name.
        kind: The kind of object that has it, for the error message.

    Returns:
        The object.

    Raises:
        UserError: It cannot be imported.
    """
    module_name, _, attribute = name.partition(":")
    # An installed command does not search the current folder.
    if "" not in sys.path and os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())
    try:
        module = import_module(module_name)
    # The user's module can raise anything.
    except Exception as error:
        raise UserError(f"the {kind} {name!r} cannot be imported: {error}") from error
    try:
        return getattr(module, attribute)
    # A module may have a __getattr__ of its own.
    except Exception as error:
        likely_name = nearest(attribute, vars(module))
        raise UserError(f"the {kind} {name!r} cannot be imported: {error}{likely_name}") from error


def lazily(package: str, module_of_name: Mapping[str, str]) -> Callable[[str], Any]:
    """Return the ``__getattr__`` of a package that imports a public name's module when the name is first used.

    Args:
        package: The package, its ``__name__``.
        module_of_name: Public name -> module in the package that has it.
    """

    def public_name(name: str) -> Any:
        if name not in module_of_name:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(import_module(f"{package}.{module_of_name[name]}"), name)

    return public_name


def check_consent(name: str, file: str, kind: str = "model") -> None:
    """Check that a file does not name a model, a scenario or a method that is code.

    Args:
        name: Its name.
        file: The file that names it.
        kind: The kind of object that has the name, for the message.

    Raises:
        UserError: It is code; the message has the place of the code.
    """
    module, colon, _ = name.partition(":")
    if not colon:
        return
    package = module.partition(".")[0]
    # The code is found and not imported: that would run it.
    package_spec = None
    if package.isidentifier():
        package_spec = importlib.machinery.PathFinder.find_spec(package, [*sys.path, os.getcwd()])
    code_path = package_spec and (
        package_spec.origin or next(iter(package_spec.submodule_search_locations or ()), None)
    )
    code_origin = f"from {code_path}" if code_path else "from wherever Python finds it"
    raise UserError(
        f"{file} names the {kind} {name!r}, which is code: Coterie would import {module!r} "
        f"{code_origin}; if you trust it, pass --trust-code, or trust_code=True in Python"
    )


class Registry(Mapping[str, ExtensionType], Generic[ExtensionType]):
    """What there is of one kind by name: Coterie's own, then what installed packages register.

    An extension is imported when its name is first looked up, or all are iterated over. One that is
    broken is left out, with one warning.

    Args:
        group: The group of entry points.
        kind: What the group needs, for messages.
        accepts: Whether something that was imported is of this kind, under this name.
        prepared: Applied to each extension once; None to leave them as they are.
        unknown: Makes the error for a name that nothing has, a ``KeyError``.

    Attributes:
        built_in: Name -> Coterie's own. No extension replaces one.
    """

    def __init__(
        self,
        group: str,
        kind: str,
        accepts: Callable[[str, Any], bool],
        prepared: Callable[[ExtensionType], ExtensionType] | None = None,
        unknown: Callable[[Any], Exception] = KeyError,
    ) -> None:
        self.group = group
        self.kind = kind
        self.accepts = accepts
        self.prepared = prepared
        self.unknown = unknown
        self.built_in: dict[str, ExtensionType] = {}
        self._extensions: dict[EntryPoint, ExtensionType | None] = {}

    def find(self, name: str) -> ExtensionType:
        """Return what has this name.

        Raises:
            KeyError: Nothing has.
            BrokenExtension: An extension has, and cannot be used.
        """
        # Coterie's own need no import of other packages.
        if name in self.built_in:
            return self.built_in[name]
        # Import it once, and keep it.
        point = entry_points(self.group)[name]
        extension = self._extensions.get(point)
        if extension is None:
            extension = self._extensions[point] = self._loaded(point)
        return extension

    def _loaded(self, point: EntryPoint) -> ExtensionType:
        extension = point.load()
        if not self.accepts(point.name, extension):
            raise point.broken(f"is not {self.kind} of this name")
        return self.prepared(extension) if self.prepared else extension

    def _usable(self, point: EntryPoint) -> bool:
        """Whether an extension can be used; if not, there is a warning the first time."""
        if point.name in self.built_in:
            return False
        # The first look imports it, and warns if that fails; later looks know the result.
        if point not in self._extensions:
            try:
                self.find(point.name)
            except BrokenExtension as error:
                self._extensions[point] = None
                warn(error)
        return self._extensions[point] is not None

    def __getitem__(self, name: str) -> ExtensionType:
        if name not in self:
            raise self.unknown(name)
        return self.find(name)

    def __contains__(self, name: object) -> bool:
        if name in self.built_in:
            return True
        point = entry_points(self.group).get(name) if isinstance(name, str) else None
        return point is not None and self._usable(point)

    def __iter__(self) -> Iterator[str]:
        yield from self.built_in
        for name, point in entry_points(self.group).items():
            if self._usable(point):
                yield name

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __repr__(self) -> str:
        return f"<{self.group}: {', '.join(self)}>"
