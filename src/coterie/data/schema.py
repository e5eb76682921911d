"""The schema of a client's data: columns and their order, types, the target and its classes, scaling, and the objective.

Models are sent as numbers without names. So clients whose columns have another order, or whose
classes have other numbers, train together without an error, and learn something wrong. A schema
states what the numbers mean, so that clients can be compared before they train.

Clients that train in one process have their columns and classes matched by ``matching`` before,
and share one schema. Over Flower each client sends a schema, and ``engines.flower.schemas`` refuses
one that differs from the federation's (:meth:`Schema.difference`). ``described`` makes the schema of
a client's data from its tensors.
"""

from __future__ import annotations

import hashlib
import json
import math
import numbers
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from coterie.data.spelling import name_of
from coterie.files import read_toml_file
from coterie.printable import printable
from coterie.settings import SettingError, UserError, nearest
from coterie.settings.calls import public

NOT_SCALED = "none"
"""The inputs are as they are."""

SHARED_SCALING = "shared"
"""The inputs are standardized by constants that all clients share."""

OWN_SCALING = "own"
"""The inputs are standardized by each client's own constants."""

SCALINGS = ("", NOT_SCALED, SHARED_SCALING, OWN_SCALING)
"""What a schema can say of scaling; an empty text if it is not known."""

FEDERATION_SCALING_WORDS = {
    NOT_SCALED: "are not standardized",
    SHARED_SCALING: "are, by shared constants",
    OWN_SCALING: "are, by each client's own constants",
}
"""Scaling -> the end of a sentence about the federation's inputs."""

CLIENT_SCALING_WORDS = {
    NOT_SCALED: "are not standardized",
    SHARED_SCALING: "are standardized by shared constants",
    OWN_SCALING: "are standardized by each client's own constants",
}
"""Scaling -> the end of a phrase about the client's inputs."""

FIELDS_OF_PART: Mapping[str, tuple[str, ...]] = MappingProxyType(
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

MAX_SHOWN_LETTERS = 60
"""Most characters of a name that a sentence quotes."""

EQUAL_CONSTANTS = 1e-5
"""Two scaling constants are equal if they differ by at most this share of their size, or of the
deviation."""

MAX_SCHEMA_BYTES = 1 << 22
"""Most bytes of a file with a schema."""

DIGITS_IN_DIGEST = 6
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
        classes: Names of the classes, in the order of their numbers. A boolean or a whole number is
            the name "True" or "0", as in the classes of a world.
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
        # The types of all fields first, so that the checks below can count on them.
        for field in fields(self):
            if isinstance(field.default, str):
                self._check_text(field.name)
            else:
                self._take_list(field.name)
        for field_name in ("columns", "targets", "classes", "metrics"):
            self._check_distinct(field_name)
        # Fields that belong together must have the same length.
        if self.dtypes and len(self.dtypes) != len(self.columns):
            raise SettingError(
                f"Schema.dtypes must have one entry per column, {len(self.columns)}, got {len(self.dtypes)}"
            )
        if self.scaling not in SCALINGS:
            suggestion = nearest(self.scaling, SCALINGS[1:])
            raise SettingError(
                f"Schema.scaling must be {NOT_SCALED}, {SHARED_SCALING} or {OWN_SCALING}, "
                f"got {quoted(self.scaling)}{suggestion}"
            )
        self._check_constants("means", "deviations", len(self.columns))
        self._check_constants("target_means", "target_deviations", len(self.targets))

    def _check_text(self, field_name: str) -> None:
        value = getattr(self, field_name)
        if not isinstance(value, str):
            raise SettingError(f"Schema.{field_name} must be a text, got {value!r:.60}")

    def _take_list(self, field_name: str) -> None:
        """Make a field a tuple, of texts or of finite numbers."""
        entries = getattr(self, field_name)
        has_numbers = field_name.endswith(("means", "deviations"))
        kind = "finite numbers" if has_numbers else "texts"
        if isinstance(entries, str | bytes | Mapping) or not hasattr(entries, "__iter__"):
            raise SettingError(f"Schema.{field_name} must be a list of {kind}, got {entries!r:.60}")
        # A generator can be read only once.
        values = tuple(entries)
        # Labels that a reader made booleans or numbers have the same names as in a world.
        if field_name == "classes":
            values = tuple(map(_class_name, values))
        fits = _is_finite if has_numbers else _is_text
        if not all(map(fits, values)):
            raise SettingError(
                f"Schema.{field_name} must be a list of {kind}, got {list(values)!r:.60}"
            )
        object.__setattr__(self, field_name, tuple(map(float, values)) if has_numbers else values)

    def _check_distinct(self, field_name: str) -> None:
        names = getattr(self, field_name)
        if len(set(names)) == len(names):
            return
        for name in names:
            if names.count(name) > 1:
                raise SettingError(
                    f"Schema.{field_name} must have each name once, got {quoted(name)} twice"
                )

    def _check_constants(self, means_field: str, deviations_field: str, count: int) -> None:
        """Check that means and deviations fit together, and fit ``count`` columns; 0 if these are not known."""
        means = getattr(self, means_field)
        deviations = getattr(self, deviations_field)
        # One number may stand for all columns.
        if len(means) != len(deviations) or (count and len(means) not in (0, 1, count)):
            needed = "as many numbers as the other"
            if count:
                needed = f"one number, or one for each of {count}"
            raise SettingError(
                f"Schema.{means_field} and Schema.{deviations_field} must have {needed}, "
                f"got {len(means)} and {len(deviations)}"
            )
        if any(deviation <= 0 for deviation in deviations):
            raise SettingError(f"Schema.{deviations_field} must be > 0, got {min(deviations):g}")
        # Constants that differ between clients are no part of the schema.
        if means and means_field == "means" and self.scaling in (NOT_SCALED, OWN_SCALING):
            raise SettingError(
                f"Schema.scaling {self.scaling} has no constants to compare, "
                f"got Schema.{means_field} and {deviations_field}"
            )

    def to_json(self) -> dict[str, Any]:
        """Return the known fields as a value for JSON."""
        values: dict[str, Any] = {}
        for field_name, value in asdict(self).items():
            if value:
                values[field_name] = list(value) if isinstance(value, tuple) else value
        return values

    @classmethod
    def of(cls, schema_fields: Any) -> Schema:
        """Read a schema from JSON or TOML.

        Args:
            schema_fields: A mapping from the names of fields to values, possibly from an unknown sender.

        Returns:
            The schema.

        Raises:
            SettingError: It is no mapping, or a field is unknown or not valid.
        """
        if isinstance(schema_fields, Schema):
            return schema_fields
        if not isinstance(schema_fields, Mapping):
            raise SettingError(
                f"a schema must be a mapping from fields to values, got {schema_fields!r:.60}"
            )
        # The sender may be anybody: an unknown field is refused, and quoted in a short form.
        field_names = [field.name for field in fields(cls)]
        for key in schema_fields:
            if key not in field_names:
                suggestion = nearest(key, field_names) if isinstance(key, str) else ""
                raise SettingError(
                    f"a schema has no field {quoted(str(key))}{suggestion} "
                    f"(fields: {', '.join(field_names)})"
                )
        return cls(**schema_fields)

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
        content = read_toml_file(path, "the schema", MAX_SCHEMA_BYTES)
        try:
            return cls.of(content)
        except SettingError as error:
            raise SettingError(f"the schema {path}: {error}") from None

    def digests(self) -> dict[str, str]:
        """Return part -> a digest of its fields, as 32 hexadecimal digits; empty for a part that is not known."""
        digest_of_part = {}
        for part, field_names in FIELDS_OF_PART.items():
            known_values: dict[str, Any] = {}
            for field_name in field_names:
                value = getattr(self, field_name)
                if value:
                    known_values[field_name] = _canonical(value)
            if not known_values:
                digest_of_part[part] = ""
                continue
            digest_of_part[part] = _digest(part, known_values)
        return digest_of_part

    def field_digests(self) -> dict[str, str]:
        """Return known field -> a digest of it, as 32 hexadecimal digits.

        Two schemas of which each knows other fields of a part differ in the digest of the part. The
        digests of the fields that both know are equal.
        """
        digest_of_field = {}
        for field in fields(self):
            value = getattr(self, field.name)
            if value:
                digest_of_field[field.name] = _digest(f"field {field.name}", _canonical(value))
        return digest_of_field

    def only(self, *parts: str) -> Schema:
        """Return the schema with some parts, see :data:`FIELDS_OF_PART`; the others are not known."""
        kept_fields: dict[str, Any] = {}
        for part in parts:
            for field_name in FIELDS_OF_PART[part]:
                kept_fields[field_name] = getattr(self, field_name)
        return Schema(**kept_fields)

    def overridden(self, stated: Schema) -> Schema:
        """Return this schema with the known fields of another one in place of its own. Scaling is replaced as a whole."""
        new_values: dict[str, Any] = {}
        for field in fields(stated):
            value = getattr(stated, field.name)
            if value:
                new_values[field.name] = value
        # Constants say nothing without the kind of scaling that they belong to.
        if stated.scaling or stated.means:
            for field_name in ("scaling", "means", "deviations"):
                new_values[field_name] = getattr(stated, field_name)
        return replace(self, **new_values)

    def difference(self, federation: Schema) -> str | None:
        """Return how this schema differs from that of a federation, in words; None if all that both know is equal."""
        sentences: list[str] = []
        for part in FIELDS_OF_PART:
            sentences += self.differences(federation, part)
        return in_words(sentences)

    def differences(self, federation: Schema, part: str) -> list[str]:
        """Return the differences in one part, see :data:`FIELDS_OF_PART`, in words.

        What one of the two does not know is equal.
        """
        match part:
            case "columns":
                return _of_columns(self.columns, federation.columns)
            # Types and inputs are one part: they say what a number of the inputs is.
            case "types":
                return _of_types(self, federation)
            case "target":
                return [
                    *_of_lists("targets", self.targets, federation.targets),
                    *_of_task(self.task, federation.task),
                ]
            case "classes":
                return _of_classes(self.classes, federation.classes)
            case "scaling":
                return _of_scaling(self, federation)
            # The objective: what is minimised, and what is reported.
            case _:
                return [
                    *_of_loss(self.loss, federation.loss),
                    *_of_lists("metrics", self.metrics, federation.metrics),
                ]


def in_words(differences: Sequence[str]) -> str | None:
    """Return one sentence with the first of several differences; None if there are none."""
    # The first differences say enough: clients with other columns differ in everything after.
    sentences = list(differences[:SHOWN_DIFFERENCES])
    further_count = len(differences) - SHOWN_DIFFERENCES
    if further_count > 1:
        sentences.append(f"and {further_count} further differences")
    elif further_count == 1:
        sentences.append("and one further difference")
    return "; ".join(sentences) or None


def shown(text: str) -> str:
    """A text of an unknown sender for a sentence: printable and short."""
    # Line breaks and control characters could forge lines of a log.
    line = printable(text)
    return line if len(line) <= MAX_SHOWN_LETTERS else f"{line[: MAX_SHOWN_LETTERS - 3]}..."


def quoted(text: str) -> str:
    """Such a text in quotation marks."""
    return f"'{shown(text)}'"


def listed(names: Sequence[str]) -> str:
    """Such texts as a list; of many, the first ones."""
    first_names = ", ".join(map(quoted, names[:SHOWN_NAMES]))
    if len(names) > SHOWN_NAMES:
        return f"[{first_names}, ... {len(names)} in all]"
    return f"[{first_names}]"


def _is_finite(value: Any) -> bool:
    return (
        isinstance(value, int | float) and not isinstance(value, bool) and -1e300 <= value <= 1e300
    )


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _class_name(label: Any) -> Any:
    """The name of a class whose label is a boolean or a whole number; any other label as it is."""
    # NumPy's boolean is no number.
    if isinstance(label, numbers.Integral) or type(label).__name__ in ("bool", "bool_"):
        return str(label)
    if isinstance(label, numbers.Real) and float(label).is_integer():
        return name_of(float(label))
    return label


def _digest(name: str, value: Any) -> str:
    """The digest of a part or a field. Its name is hashed too, so that no two have the same digest."""
    text = json.dumps([name, value], sort_keys=True)
    hashed = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16)
    return hashed.hexdigest()


def _canonical(value: Any) -> Any:
    """The value of a field as its digest depends on it: equal constants may differ in their last digits."""
    if not isinstance(value, tuple):
        return value
    # Adding 0.0 makes -0.0 and 0.0 the same text.
    return [
        f"{entry + 0.0:.{DIGITS_IN_DIGEST}g}" if isinstance(entry, float) else entry
        for entry in value
    ]


def _differ(ours: Any, federations: Any) -> bool:
    """Whether two fields are known and differ."""
    return bool(ours) and bool(federations) and ours != federations


def _first_difference(names: Sequence[str], federation_names: Sequence[str]) -> int | None:
    """The first place where two lists have other names; None if one begins with the other."""
    pairs = zip(names, federation_names, strict=False)
    for place, (name, federation_name) in enumerate(pairs):
        if name != federation_name:
            return place
    return None


def _of_columns(columns: Sequence[str], federation_columns: Sequence[str]) -> list[str]:
    if not _differ(columns, federation_columns):
        return []
    # The first column that differs, then the numbers, then what each side has alone.
    sentence_parts = []
    place = _first_difference(columns, federation_columns)
    if place is not None:
        sentence_parts.append(
            f"column {place + 1} is {quoted(columns[place])}, "
            f"the federation's is {quoted(federation_columns[place])}"
        )
    # The same names cannot differ in their number, so that there is a first difference.
    if sorted(columns) == sorted(federation_columns):
        return [f"it has the same columns in another order: {sentence_parts[0]}"]
    if len(columns) != len(federation_columns):
        sentence_parts.append(
            f"it has {len(columns)} columns, the federation has {len(federation_columns)}"
        )
    sentence_parts += _lacking(columns, federation_columns)
    return [", ".join(sentence_parts)]


def _lacking(names: Sequence[str], federation_names: Sequence[str]) -> list[str]:
    """Which names one of the two lists has alone."""
    sentence_parts = []
    federation_only = _without(federation_names, names)
    if federation_only:
        sentence_parts.append(f"it lacks {listed(federation_only)}")
    client_only = _without(names, federation_names)
    if client_only:
        sentence_parts.append(f"the federation lacks {listed(client_only)}")
    return sentence_parts


def _without(names: Sequence[str], removed_names: Sequence[str]) -> list[str]:
    removed = set(removed_names)
    return [name for name in names if name not in removed]


def _of_types(schema: Schema, federation: Schema) -> list[str]:
    """Differences of the types of columns with the same name, and of the inputs."""
    sentences = []
    federation_dtypes = dict(zip(federation.columns, federation.dtypes, strict=False))
    for name, dtype in zip(schema.columns, schema.dtypes, strict=False):
        # Columns in another order are compared with the column of their own name.
        if _differ(dtype, federation_dtypes.get(name, "")):
            sentences.append(
                f"column {quoted(name)} is of type {shown(dtype)}, "
                f"the federation's of {shown(federation_dtypes[name])}"
            )
    # Another number of columns is a difference of the columns already.
    has_same_count = len(schema.columns) == len(federation.columns)
    if has_same_count and _differ(schema.inputs, federation.inputs):
        sentences.append(
            f"its inputs are {shown(schema.inputs)}, "
            f"the federation's are {shown(federation.inputs)}"
        )
    return sentences


def _of_lists(noun: str, names: Sequence[str], federation_names: Sequence[str]) -> list[str]:
    if not _differ(names, federation_names):
        return []
    return [f"its {noun} are {listed(names)}, the federation's are {listed(federation_names)}"]


def _of_task(task: str, federation_task: str) -> list[str]:
    if not _differ(task, federation_task):
        return []
    return [f"its targets are for {shown(task)}, the federation's for {shown(federation_task)}"]


def _of_loss(loss: str, federation_loss: str) -> list[str]:
    if not _differ(loss, federation_loss):
        return []
    return [f"its loss is {shown(loss)}, the federation's is {shown(federation_loss)}"]


def _of_classes(classes: Sequence[str], federation_classes: Sequence[str]) -> list[str]:
    if not _differ(classes, federation_classes):
        return []
    # A reader can compare short lists; of long ones, only the difference is stated.
    if max(len(classes), len(federation_classes)) <= SHOWN_NAMES:
        return _of_lists("classes", classes, federation_classes)
    sentence_parts = _lacking(classes, federation_classes)
    if not sentence_parts:
        place = _first_difference(classes, federation_classes)
        assert place is not None
        return [
            f"it has the same classes in another order: class {place} is {quoted(classes[place])}, "
            f"the federation's is {quoted(federation_classes[place])}"
        ]
    # The numbers first, then what each side has alone.
    counts = f"it has {len(classes)} classes, the federation has {len(federation_classes)}"
    return [", ".join([counts, *sentence_parts])]


def _of_scaling(schema: Schema, federation: Schema) -> list[str]:
    # Constants can be compared only if both sides scale in the same way.
    if _differ(schema.scaling, federation.scaling):
        return [
            f"its inputs {CLIENT_SCALING_WORDS[schema.scaling]}, "
            f"the federation's {FEDERATION_SCALING_WORDS[federation.scaling]}"
        ]
    # Inputs and targets each have constants of their own.
    return [
        *_of_constants(
            "column",
            schema.columns,
            federation.columns,
            (schema.means, schema.deviations),
            (federation.means, federation.deviations),
        ),
        *_of_constants(
            "target",
            schema.targets,
            federation.targets,
            (schema.target_means, schema.target_deviations),
            (federation.target_means, federation.target_deviations),
        ),
    ]


MeansAndDeviations = tuple[Sequence[float], Sequence[float]]
"""Means and deviations; one number may stand for all columns."""


def _of_constants(
    noun: str,
    names: Sequence[str],
    federation_names: Sequence[str],
    constants: MeansAndDeviations,
    federation_constants: MeansAndDeviations,
) -> list[str]:
    """The differences of the constants of columns that both have: by name, whatever the order, or else by place."""
    count = len(constants[0])
    federation_count = len(federation_constants[0])
    if not count or not federation_count:
        return []

    # Columns with names are compared by name, whatever their order.
    if names and federation_names:
        return _of_each_column(
            _by_name(list(map(quoted, names)), constants),
            _by_name(list(map(quoted, federation_names)), federation_constants),
        )

    # Without names they are compared by their place; one number stands for all columns.
    columns = max(count, federation_count)
    if not {count, federation_count} <= {1, columns}:
        return [f"it is standardized by {count} means, the federation by {federation_count}"]
    places = [quoted(name) for name in names]
    places = places or [f"{noun} {place + 1}" for place in range(columns)]
    return _of_each_column(_by_name(places, constants), _by_name(places, federation_constants))


def _by_name(names: Sequence[str], constants: MeansAndDeviations) -> dict[str, tuple[float, float]]:
    """Name of a column -> its mean and deviation."""
    means, deviations = constants
    constants_of_name = {}
    for place, name in enumerate(names):
        # One mean may stand for all columns.
        index = place % len(means)
        constants_of_name[name] = (means[index], deviations[index])
    return constants_of_name


def _of_each_column(
    constants: Mapping[str, tuple[float, float]],
    federation_constants: Mapping[str, tuple[float, float]],
) -> list[str]:
    """The differences of the mean and deviation of each column that both have."""
    sentences = []
    for name, (mean, deviation) in constants.items():
        # A column that only one side has is a difference of the columns.
        if name not in federation_constants:
            continue
        federation_mean, federation_deviation = federation_constants[name]
        # A mean near 0 cannot be compared by its own size, so the deviation counts, too.
        mean_tolerance = EQUAL_CONSTANTS * min(deviation, federation_deviation)
        if not math.isclose(mean, federation_mean, rel_tol=EQUAL_CONSTANTS, abs_tol=mean_tolerance):
            sentences.append(
                f"{name} is standardized with mean {mean:.6g}, "
                f"the federation's with {federation_mean:.6g}"
            )
        if not math.isclose(deviation, federation_deviation, rel_tol=EQUAL_CONSTANTS):
            sentences.append(
                f"{name} is standardized with deviation {deviation:.6g}, "
                f"the federation's with {federation_deviation:.6g}"
            )
    return sentences


def checked(schema_or_path: Any, context: str) -> Schema:
    """Return a schema that was given as such, as a mapping, or as the path of a TOML file.

    Args:
        schema_or_path: What was given.
        context: Where, for the message.

    Returns:
        The schema.

    Raises:
        UserError: It is none of these, or not valid.
    """
    if isinstance(schema_or_path, str | Path):
        return Schema.from_file(schema_or_path)
    try:
        return Schema.of(schema_or_path)
    except UserError as error:
        raise SettingError(f"{context}: {error}") from None
