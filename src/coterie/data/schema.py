"""The schema of a client's data: columns and their order, types, the target and its classes, scaling, and the objective.

Models are sent as numbers without names. So clients whose columns have another order, or whose
classes have other numbers, train together without an error, and learn something wrong. A schema
states what the numbers mean, so that clients can be compared before they train.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from coterie.files import read_toml_file
from coterie.printable import printable
from coterie.settings import SettingError, UserError, nearest
from coterie.settings.calls import public

NONE, SHARED, OWN = "none", "shared", "own"
SCALINGS = ("", NONE, SHARED, OWN)
"""not known; the inputs as they are; standardized by constants that all clients share; by each
client's own constants."""

PARTS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "columns": ("columns",),
        "types": ("dtypes", "inputs"),
        "target": ("targets", "task"),
        "classes": ("classes",),
        "scaling": ("scaling", "means", "deviations", "target_means", "target_deviations"),
        "objective": ("loss", "metrics"),
    }
)
"""Part of a schema -> its fields. Each part has a digest of its own, so that two digests show which
part differs."""

SHOWN_NAMES = 6
"""Most names of a list that a sentence quotes."""

SHOWN_DIFFERENCES = 3
"""Most differences that a sentence lists."""

LONGEST_SHOWN = 60
"""Most characters of a name that a sentence quotes."""

CLOSE = 1e-5
"""Two scaling constants are equal if they differ by at most this share of their size, or of the
deviation."""

LONGEST_FILE = 1 << 22
"""Most bytes of a file with a schema."""

SIGNIFICANT = 6
"""Digits of a scaling constant that its digest depends on."""


@public
@dataclass(frozen=True, kw_only=True)
class Schema:
    """The schema of a client's data. An empty field is not known, and is not compared.

    Attributes:
        columns: Names of the columns of the inputs, in order.
        dtypes: The type of each column, such as ``"number"`` or ``"boolean"``.
        inputs: Shape and type of an example's inputs, such as ``"(3,) float32"``.
        targets: Names of the targets, in order.
        task: ``"classification"``, ``"multi-label"`` or ``"regression"``, or the form of the
            targets.
        classes: Names of the classes, in the order of their numbers.
        scaling: ``"none"``, ``"shared"`` or ``"own"``. With ``"own"`` each client may have other
            constants.
        means: The means that were subtracted from the inputs, one per column or channel.
        deviations: The deviations by which the inputs were then divided.
        target_means: The means that were subtracted from the targets.
        target_deviations: The deviations by which the targets were then divided.
        loss: The name of the loss.
        metrics: Names of the metrics, the main one first.

    Raises:
        SettingError: A field has another type, a name occurs twice, or numbers of entries do not
            fit together.

    Example:
        >>> ours = Schema(columns=("age", "bp", "bmi"), classes=("no", "yes"))
        >>> Schema(columns=("age", "bmi", "bp"), classes=("no", "yes")).difference(ours)
        "it has the same columns in another order: column 2 is 'bmi', the federation's is 'bp'"
    """

    columns: tuple[str, ...] = ()
    dtypes: tuple[str, ...] = ()
    inputs: str = ""
    targets: tuple[str, ...] = ()
    task: str = ""
    classes: tuple[str, ...] = ()
    scaling: str = ""
    means: tuple[float, ...] = ()
    deviations: tuple[float, ...] = ()
    target_means: tuple[float, ...] = ()
    target_deviations: tuple[float, ...] = ()
    loss: str = ""
    metrics: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for field in fields(self):
            if isinstance(field.default, str):
                self._check_text(field.name)
            else:
                self._take_list(field.name)
        for name in ("columns", "targets", "classes", "metrics"):
            names = getattr(self, name)
            if len(set(names)) < len(names):
                twice = next(each for each in names if names.count(each) > 1)
                raise SettingError(
                    f"Schema.{name} must have each name once, got {quoted(twice)} twice"
                )
        if self.dtypes and len(self.dtypes) != len(self.columns):
            raise SettingError(
                f"Schema.dtypes must have one entry per column, {len(self.columns)}, got {len(self.dtypes)}"
            )
        if self.scaling not in SCALINGS:
            near = nearest(self.scaling, SCALINGS[1:])
            raise SettingError(
                f"Schema.scaling must be {NONE}, {SHARED} or {OWN}, got {quoted(self.scaling)}{near}"
            )
        self._check_constants("means", "deviations", len(self.columns))
        self._check_constants("target_means", "target_deviations", len(self.targets))

    def _check_text(self, name: str) -> None:
        value = getattr(self, name)
        if not isinstance(value, str):
            raise SettingError(f"Schema.{name} must be a text, got {value!r:.60}")

    def _take_list(self, name: str) -> None:
        """Make a field a tuple, of texts or of finite numbers."""
        given, numbers = getattr(self, name), name.endswith(("means", "deviations"))
        kind = "finite numbers" if numbers else "texts"
        if isinstance(given, str | bytes | Mapping) or not hasattr(given, "__iter__"):
            raise SettingError(f"Schema.{name} must be a list of {kind}, got {given!r:.60}")
        values = tuple(given)
        right = (
            all(map(_is_finite, values))
            if numbers
            else all(isinstance(value, str) for value in values)
        )
        if not right:
            raise SettingError(f"Schema.{name} must be a list of {kind}, got {list(values)!r:.60}")
        object.__setattr__(self, name, tuple(map(float, values)) if numbers else values)

    def _check_constants(self, means: str, deviations: str, count: int) -> None:
        centres, widths = getattr(self, means), getattr(self, deviations)
        if len(centres) != len(widths) or (count and len(centres) not in (0, 1, count)):
            needed = (
                f"one number, or one for each of {count}"
                if count
                else "as many numbers as the other"
            )
            raise SettingError(
                f"Schema.{means} and Schema.{deviations} must have {needed}, got {len(centres)} and {len(widths)}"
            )
        if any(width <= 0 for width in widths):
            raise SettingError(f"Schema.{deviations} must be > 0, got {min(widths):g}")
        if centres and means == "means" and self.scaling in (NONE, OWN):
            raise SettingError(
                f"Schema.scaling {self.scaling} has no constants to compare, got Schema.{means} and {deviations}"
            )

    # -- as JSON, TOML and digests
    # ----------------------------------------------------------------------------------------

    def to_json(self) -> dict[str, Any]:
        """Return the known fields as a value for JSON."""
        return {
            name: list(value) if isinstance(value, tuple) else value
            for name, value in asdict(self).items()
            if value
        }

    @classmethod
    def of(cls, found: Any) -> Schema:
        """Read a schema from JSON or TOML.

        Args:
            found: A mapping from the names of fields to values, possibly from an unknown sender.

        Returns:
            The schema.

        Raises:
            SettingError: It is no mapping, or a field is unknown or not valid.
        """
        if isinstance(found, Schema):
            return found
        if not isinstance(found, Mapping):
            raise SettingError(
                f"a schema must be a mapping from fields to values, got {found!r:.60}"
            )
        known = [field.name for field in fields(cls)]
        for name in found:
            if name not in known:
                near = nearest(name, known) if isinstance(name, str) else ""
                raise SettingError(
                    f"a schema has no field {quoted(str(name))}{near} (fields: {', '.join(known)})"
                )
        return cls(**found)

    @classmethod
    def from_file(cls, path: Path | str) -> Schema:
        """Read a schema from a TOML file with lines such as ``columns = ["age", "bp", "bmi"]``.

        Args:
            path: Path of the file.

        Returns:
            The schema.

        Raises:
            UserError: The file cannot be read, or a field is unknown or not valid.
        """
        found = read_toml_file(path, "the schema", LONGEST_FILE)
        try:
            return cls.of(found)
        except SettingError as error:
            raise SettingError(f"the schema {path}: {error}") from None

    def digests(self) -> dict[str, str]:
        """Return part -> a digest of its fields, as 32 hexadecimal digits; empty for a part that is not known."""
        found = {}
        for part, names in PARTS.items():
            values = {name: _canonical(value) for name in names if (value := getattr(self, name))}
            text = json.dumps([part, values], sort_keys=True)
            found[part] = (
                hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()
                if values
                else ""
            )
        return found

    def only(self, *parts: str) -> Schema:
        """Return the schema with some parts, see :data:`PARTS`; the others are not known."""
        names = [name for part in parts for name in PARTS[part]]
        return Schema(**{name: getattr(self, name) for name in names})

    def overridden(self, given: Schema) -> Schema:
        """Return this schema with the known fields of another one in place of its own. Scaling is replaced as a whole."""
        new = {
            field.name: value for field in fields(given) if (value := getattr(given, field.name))
        }
        if given.scaling or given.means:
            new |= {name: getattr(given, name) for name in ("scaling", "means", "deviations")}
        return replace(self, **new)

    # -- differences in words
    # ---------------------------------------------------------------------------------------------

    def difference(self, federation: Schema) -> str | None:
        """Return how this schema differs from that of a federation, in words; None if all that both know is equal."""
        return in_words(
            sentence for part in PARTS for sentence in self.differences(federation, part)
        )

    def differences(self, federation: Schema, part: str) -> list[str]:
        """Return the differences in one part, see :data:`PARTS`, in words. What one of the two does not know is equal."""
        found: list[str] = []
        if part == "columns":
            found += _of_columns(self.columns, federation.columns)
        elif part == "types":
            found += _of_dtypes(self, federation)
            same_count = len(self.columns) == len(
                federation.columns
            )  # otherwise the columns say it
            if _differ(self.inputs, federation.inputs) and same_count:
                found.append(
                    f"its inputs are {shown(self.inputs)}, the federation's are {shown(federation.inputs)}"
                )
        elif part == "target":
            if _differ(self.targets, federation.targets):
                found.append(
                    f"its targets are {listed(self.targets)}, the federation's are {listed(federation.targets)}"
                )
            if _differ(self.task, federation.task):
                found.append(
                    f"its targets are for {shown(self.task)}, the federation's for {shown(federation.task)}"
                )
        elif part == "classes":
            found += _of_classes(self.classes, federation.classes)
        elif part == "scaling":
            found += _of_scaling(self, federation)
        else:
            if _differ(self.loss, federation.loss):
                found.append(
                    f"its loss is {shown(self.loss)}, the federation's is {shown(federation.loss)}"
                )
            if _differ(self.metrics, federation.metrics):
                found.append(
                    f"its metrics are {listed(self.metrics)}, the federation's are {listed(federation.metrics)}"
                )
        return found


def in_words(differences: Any) -> str | None:
    """Return one sentence with the first of several differences; None if there are none."""
    found = list(differences)
    more = len(found) - SHOWN_DIFFERENCES
    rest = (
        [f"and {more} further differences" if more > 1 else "and one further difference"]
        if more > 0
        else []
    )
    return "; ".join([*found[:SHOWN_DIFFERENCES], *rest]) or None


def shown(text: str) -> str:
    """A text of an unknown sender for a sentence: printable and short."""
    line = printable(text)
    return line if len(line) <= LONGEST_SHOWN else f"{line[: LONGEST_SHOWN - 3]}..."


def quoted(text: str) -> str:
    """Such a text in quotation marks."""
    return f"'{shown(text)}'"


def listed(names: Sequence[str]) -> str:
    """Such texts as a list; of many, the first ones."""
    some = ", ".join(map(quoted, names[:SHOWN_NAMES]))
    return f"[{some}, ... {len(names)} in all]" if len(names) > SHOWN_NAMES else f"[{some}]"


def _is_finite(value: Any) -> bool:
    return (
        isinstance(value, int | float) and not isinstance(value, bool) and -1e300 <= value <= 1e300
    )


def _canonical(value: Any) -> Any:
    """The value of a field as its digest depends on it: equal constants may differ in their last digits."""
    if isinstance(value, tuple):
        return [f"{one + 0.0:.{SIGNIFICANT}g}" if isinstance(one, float) else one for one in value]
    return value


def _differ(own: Any, theirs: Any) -> bool:
    """Whether two fields are known and differ."""
    return bool(own) and bool(theirs) and own != theirs


def _of_columns(own: Sequence[str], theirs: Sequence[str]) -> list[str]:
    if not _differ(own, theirs):
        return []
    at = next(
        (i for i, (one, other) in enumerate(zip(own, theirs, strict=False)) if one != other), None
    )
    place = (
        ""
        if at is None
        else f"column {at + 1} is {quoted(own[at])}, the federation's is {quoted(theirs[at])}"
    )
    if sorted(own) == sorted(theirs):
        return [f"it has the same columns in another order: {place}"]
    lacks, has = _without(theirs, own), _without(own, theirs)
    found = [place] if place else []
    if len(own) != len(theirs):
        found.append(f"it has {len(own)} columns, the federation has {len(theirs)}")
    if lacks:
        found.append(f"it lacks {listed(lacks)}")
    if has:
        found.append(f"the federation lacks {listed(has)}")
    return [", ".join(found)]


def _without(names: Sequence[str], others: Sequence[str]) -> list[str]:
    known = set(others)
    return [name for name in names if name not in known]


def _of_dtypes(own: Schema, federation: Schema) -> list[str]:
    theirs = dict(zip(federation.columns, federation.dtypes, strict=False))
    found = []
    for name, dtype in zip(own.columns, own.dtypes, strict=False):
        if _differ(dtype, theirs.get(name, "")):
            found.append(
                f"column {quoted(name)} is of type {shown(dtype)}, the federation's of {shown(theirs[name])}"
            )
    return found


def _of_classes(own: Sequence[str], theirs: Sequence[str]) -> list[str]:
    if not _differ(own, theirs):
        return []
    lacks, has = _without(theirs, own), _without(own, theirs)
    if max(len(own), len(theirs)) <= SHOWN_NAMES:
        return [f"its classes are {listed(own)}, the federation's are {listed(theirs)}"]
    if not lacks and not has:
        at = next(i for i, (one, other) in enumerate(zip(own, theirs, strict=True)) if one != other)
        first = f"class {at} is {quoted(own[at])}, the federation's is {quoted(theirs[at])}"
        return [f"it has the same classes in another order: {first}"]
    found = [f"it has {len(own)} classes, the federation has {len(theirs)}"]
    found += [f"it lacks {listed(lacks)}"] if lacks else []
    found += [f"the federation lacks {listed(has)}"] if has else []
    return [", ".join(found)]


def _of_scaling(own: Schema, federation: Schema) -> list[str]:
    words = {
        NONE: "are not standardized",
        SHARED: "are, by shared constants",
        OWN: "are, by each client's own constants",
    }
    if _differ(own.scaling, federation.scaling):
        ours = words[own.scaling].replace("are, by", "are standardized by")
        return [f"its inputs {ours}, the federation's {words[federation.scaling]}"]
    inputs = "column", own.columns, federation.columns
    targets = "target", own.targets, federation.targets
    return [
        *_of_constants(
            *inputs, (own.means, own.deviations), (federation.means, federation.deviations)
        ),
        *_of_constants(
            *targets,
            (own.target_means, own.target_deviations),
            (federation.target_means, federation.target_deviations),
        ),
    ]


Constants = tuple[Sequence[float], Sequence[float]]
"""Means and deviations; one number may stand for all columns."""


def _of_constants(
    what: str, names: Sequence[str], other_names: Sequence[str], own: Constants, theirs: Constants
) -> list[str]:
    """The differences of the constants of columns that both have: by name, whatever the order, or else by place."""
    count = max(len(own[0]), len(theirs[0]))
    if not own[0] or not theirs[0]:
        return []
    if names and other_names:
        ours, others = (
            _by_name(list(map(quoted, names)), own),
            _by_name(list(map(quoted, other_names)), theirs),
        )
    elif {len(own[0]), len(theirs[0])} <= {1, count}:
        places = [quoted(name) for name in names] or [f"{what} {i + 1}" for i in range(count)]
        ours, others = _by_name(places, own), _by_name(places, theirs)
    else:
        return [f"it is standardized by {len(own[0])} means, the federation by {len(theirs[0])}"]
    return _of_each(ours, others)


def _by_name(names: Sequence[str], constants: Constants) -> dict[str, tuple[float, float]]:
    """Name of a column -> its mean and deviation."""
    means, deviations = constants
    return {
        name: (means[i % len(means)], deviations[i % len(means)]) for i, name in enumerate(names)
    }


def _of_each(
    own: Mapping[str, tuple[float, float]], theirs: Mapping[str, tuple[float, float]]
) -> list[str]:
    """The differences of the mean and deviation of each column that both have."""
    found = []
    for name, (mean, deviation) in own.items():
        if name not in theirs:
            continue
        other_mean, other_deviation = theirs[name]
        if not math.isclose(
            mean, other_mean, rel_tol=CLOSE, abs_tol=CLOSE * min(deviation, other_deviation)
        ):
            found.append(
                f"{name} is standardized with mean {mean:.6g}, the federation's with {other_mean:.6g}"
            )
        if not math.isclose(deviation, other_deviation, rel_tol=CLOSE):
            found.append(
                f"{name} is standardized with deviation {deviation:.6g}, the federation's with {other_deviation:.6g}"
            )
    return found


def checked(given: Any, where: str) -> Schema:
    """Return a schema that was given as such, as a mapping, or as the path of a TOML file.

    Args:
        given: What was given.
        where: Where, for the message.

    Returns:
        The schema.

    Raises:
        UserError: It is none of these, or not valid.
    """
    if isinstance(given, str | Path):
        return Schema.from_file(given)
    try:
        return Schema.of(given)
    except UserError as error:
        raise SettingError(f"{where}: {error}") from None
