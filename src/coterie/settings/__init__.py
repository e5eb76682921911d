"""Settings: the fields of a frozen dataclass, each with a sentence and its limits. Nothing else describes them.

TOML files, ``--set``, help texts, records and equality all read these fields.
"""

from __future__ import annotations

import dataclasses
import math
import numbers
import operator
import re
import shlex
import types
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from coterie.printable import one_line
from coterie.settings.field_names import alike, called_here, closest, meant


class UserError(Exception):
    """A mistake of the caller, described in one sentence: the setting, its value, the allowed values and the likely mistake.

    The message may quote text from an untrusted source. As a string it is therefore one line
    without control characters, cut in the middle if it is too long to read.
    """

    def __str__(self) -> str:
        return one_line(super().__str__())


class PlainWarning(UserWarning):
    """A warning in one sentence for people; the command line prints it without the place in the code."""


class SettingError(UserError, ValueError):
    """A setting whose value is not allowed, or a name that is not a setting."""


def setting(
    default: Any,
    doc: str,
    *,
    ge: float | None = None,
    gt: float | None = None,
    le: float | None = None,
    lt: float | None = None,
    choices: Iterable[str] | None = None,
    multiple: int | None = None,
    bits: int = 64,
    advanced: bool = False,
    method: bool = False,
    only_with: Mapping[str, Sequence[Any]] | None = None,
    not_with: Mapping[str, Sequence[Any]] | None = None,
    begins: str = "",
    rounds_later: int = 0,
) -> Any:
    """Make a dataclass field with a sentence ``doc`` and limits.

    Args:
        default: The default value, immutable.
        doc: One sentence that describes the setting.
        ge: The value must be >= this number.
        gt: The value must be > this number.
        le: The value must be <= this number.
        lt: The value must be < this number.
        choices: The value must be one of these.
        multiple: The value must be a positive multiple of this number.
        bits: The greatest number of bits of an integer; TOML's have 64.
        method: The value is a method, or its name; the class that has the setting checks it.
        advanced: Few users need to change the setting: lists show it after the others, and mark it.
        only_with: Name of another setting -> its values with which this one has an effect; one of
            several such settings is enough. ``coterie.settings.without_effect`` says it.
        not_with: Name of another setting -> its values with which this one has no effect.
        begins: The setting is a number of rounds, and this begins afterwards. Of several numbers, the
            least one counts.
        rounds_later: The number of rounds from the setting's to the one in which it begins.

    Returns:
        The field.

    Raises:
        TypeError: The default is a dict or a list.
    """
    # Only the limits that are set are checked and shown.
    limits = {"ge": ge, "gt": gt, "le": le, "lt": lt, "multiple": multiple}
    set_limits: dict[str, Any] = {}
    for limit_name, bound in limits.items():
        if bound is not None:
            set_limits[limit_name] = bound
    if choices is not None:
        set_limits["choices"] = tuple(choices)
    metadata: dict[str, Any] = {
        "doc": doc,
        "limits": set_limits,
        "bits": bits,
        "advanced": advanced,
    }
    # A field without limits is not checked here.
    if method:
        del metadata["limits"]
    # On what the effect of the setting depends.
    if only_with is not None:
        metadata["only_with"] = only_with
    if not_with is not None:
        metadata["not_with"] = not_with
    # A number of rounds after which something begins.
    if begins:
        metadata |= {"begins": begins, "rounds_later": rounds_later}
    if isinstance(default, (dict, list)):
        raise TypeError("a setting's default is immutable")
    return dataclasses.field(default=default, metadata=metadata)


_ANNOTATIONS: dict[type[Any], dict[str, Any]] = {}
"""Class of settings -> its annotations, as types."""


def _annotations(cls: type[Any]) -> dict[str, Any]:
    """The annotations of a class, as types; they are found once, because settings are checked whenever they are made."""
    if cls not in _ANNOTATIONS:
        _ANNOTATIONS[cls] = typing.get_type_hints(cls)
    return _ANNOTATIONS[cls]


def check(settings: Any, name_of: Callable[[str], str] | None = None) -> None:
    """Check every field for its type and limits; call it in ``__post_init__``.

    Args:
        settings: The dataclass. Its values are replaced by values of exactly the annotated types.
        name_of: Function of the name of a field that returns its name in messages; None for
            ``Class.field``.

    Raises:
        SettingError: A value is not allowed.
    """
    # Each value becomes exactly its annotated type, and each of its entries must be within the limits.
    annotations = _annotations(type(settings))
    for field in dataclasses.fields(settings):
        if "limits" not in field.metadata:
            continue
        shown_name = name_of(field.name) if name_of else f"{type(settings).__name__}.{field.name}"
        value = coerced(
            shown_name,
            getattr(settings, field.name),
            annotations[field.name],
            field.metadata["bits"],
        )
        object.__setattr__(settings, field.name, value)
        for entry in value if isinstance(value, tuple) else (value,):
            _check_limits(shown_name, entry, field.metadata["limits"])


MOST_SEEDS = 10_000
"""The maximum number of seeds that a single number can ask for; they start at 0."""


def _is_text(value: str) -> bool:
    """Whether a file can hold it, and the system accept it as a path.

    Bytes of a file name that are not UTF-8 become halves of surrogate pairs, which no file can
    hold.
    """
    return not any(character < " " or "\ud800" <= character <= "\udfff" for character in value)


SYMBOLS = {"ge": ">=", "gt": ">", "le": "<=", "lt": "<", "multiple": "a positive multiple of"}
"""Name of a limit -> how messages write it."""

_FITS_LIMIT: Mapping[str, Callable[[Any, Any], bool]] = {
    "ge": operator.ge,
    "gt": operator.gt,
    "le": operator.le,
    "lt": operator.lt,
    "multiple": lambda value, divisor: value > 0 and value % divisor == 0,
}
"""Name of a limit -> function of a value and the bound that says whether the value is allowed."""


def _check_limits(setting_name: str, value: Any, limits: Mapping[str, Any]) -> None:
    if value is None:
        return
    if "choices" in limits:
        choices = limits["choices"]
        # Of a choice, the message lists all that there are.
        if value not in choices:
            raise SettingError(
                f"{setting_name} must be one of {', '.join(choices)}, got {value!r}{nearest(value, choices)}"
            )
        return
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        return
    fits_limits = all(_FITS_LIMIT[limit](value, bound) for limit, bound in limits.items())
    # NaN passes no comparison, and an empty set of limits does not exclude it.
    if math.isnan(value) or not fits_limits:
        bounds = [f"{SYMBOLS[limit]} {bound:g}" for limit, bound in limits.items()]
        raise SettingError(
            f"{setting_name} must be {' and '.join(bounds) or 'a number'}, got {value!r}"
        )


def coerced(name: str, value: Any, annotation: Any, bits: int = 64) -> Any:
    """Return a value as the annotated type: ints pass as floats, NumPy's numbers as Python's, lists as tuples.

    Args:
        name: The name of the setting, for messages.
        value: The value.
        annotation: The annotation, such as ``int | None``.
        bits: The greatest number of bits of an integer.

    Returns:
        The value, of exactly the annotated type.

    Raises:
        SettingError: It is of another type.
    """
    accepted_types = types_of(annotation)
    # None first: the text "none" stands for it, also where a text is accepted.
    for accepted_type in sorted(accepted_types, key=lambda candidate: candidate is not type(None)):
        base_type = typing.get_origin(accepted_type) or accepted_type
        # The values of a literal are the setting's choices.
        if base_type is typing.Literal:
            base_type = str
        if base_type is type(None):
            if value is None or (isinstance(value, str) and value == "none"):
                return None
        elif base_type in (float, int):
            if isinstance(value, numbers.Integral) and not fits(int(value), bits):
                raise SettingError(
                    f"{name} must be below 2^{bits - 1}, got a number of "
                    f"{int(value).bit_length():,} bits"
                )
            # True and False are integers to Python, and not here.
            number_type = numbers.Real if base_type is float else numbers.Integral
            if isinstance(value, number_type) and value is not True and value is not False:
                return base_type(value)
        # The entries of a list are checked by their own type, and named by their position.
        elif base_type is tuple and isinstance(value, (list, tuple)):
            entry_type = typing.get_args(accepted_type)[0]
            entries = []
            for position, entry in enumerate(value):
                entries.append(coerced(f"{name}[{position}]", entry, entry_type, bits))
            return tuple(entries)
        elif base_type is str:
            if isinstance(value, str):
                if not _is_text(value):
                    raise SettingError(
                        f"{name} must be a UTF-8 string without control characters, got {value!r}"
                    )
                return value
        elif base_type is bool:
            if _is_truth_value(value):
                return bool(value)
        elif isinstance(base_type, type) and isinstance(value, base_type):
            return value
    raise SettingError(
        f"{name} must be {describe(annotation)}, got {value!r:.200}{_as_number(value, accepted_types)}"
        f"{_as_list(value, accepted_types)}"
    )


def types_of(annotation: Any) -> tuple[Any, ...]:
    """Return the types that an annotation allows: those of a union, or the type itself."""
    if isinstance(annotation, types.UnionType) or typing.get_origin(annotation) is typing.Union:
        return typing.get_args(annotation)
    return (annotation,)


def _is_truth_value(value: Any) -> bool:
    """Whether a value is true or false, also NumPy's."""
    return isinstance(value, bool) or (
        type(value).__module__ == "numpy" and type(value).__name__ in ("bool", "bool_")
    )


def _as_number(value: Any, accepted_types: Sequence[Any]) -> str:
    """The end of a sentence for a value that stands for a number, and is of a type that is not taken."""
    if int not in accepted_types and float not in accepted_types:
        return ""
    try:
        # A number in quotes, or a whole number where another type of number is needed.
        number = float(value) if isinstance(value, str | float) else math.nan
    except ValueError:
        return ""
    if not math.isfinite(number) or (float not in accepted_types and not number.is_integer()):
        return ""
    written_number = int(number) if number.is_integer() else number
    without_quotes = " without quotes" if isinstance(value, str) else ""
    return f"; write {written_number}{without_quotes}"


def _as_list(value: Any, accepted_types: Sequence[Any]) -> str:
    """The end of a sentence for a text in place of a list of texts, or of several numbers in place of one."""
    if not isinstance(value, str):
        return ""
    parts = [part.strip() for part in value.strip("[]").split(",") if part.strip()]
    if any(typing.get_args(accepted) == (str, ...) for accepted in accepted_types) and parts:
        quoted_parts = ", ".join(f'"{part}"' for part in parts)
        return f"; write [{quoted_parts:.200}]"
    takes_one_number = int in accepted_types or float in accepted_types
    return "; it takes one value" if takes_one_number and len(parts) > 1 else ""


def fits(number: int, bits: int = 64) -> bool:
    """Whether an integer has at most ``bits`` bits, including its sign; TOML's have 64."""
    return -(1 << bits - 1) <= number < 1 << bits - 1


def describe(annotation: Any) -> str:
    """Describe the type of a field in words, for messages and help.

    Args:
        annotation: The annotation, such as ``int | None``.

    Returns:
        The words.

    Example:
        >>> describe(int | None)
        'an integer or none'
    """
    # Of several types, each is described.
    options = types_of(annotation)
    if len(options) > 1:
        return " or ".join(map(describe, options))
    if typing.get_origin(annotation) is typing.Literal:
        values = typing.get_args(annotation)
        return str(values[0]) if len(values) == 1 else "a string"
    if typing.get_origin(annotation) is tuple:
        return f"a list ({describe(typing.get_args(annotation)[0])} each)"
    # The types of single values.
    words = {
        int: "an integer",
        float: "a number",
        bool: "true or false",
        str: "a string",
        type(None): "none",
    }
    words[Any] = "a method: its name, or a table of its name and settings"
    return words.get(annotation, getattr(annotation, "__name__", str(annotation)))


def in_shell(path: object) -> str:
    """Return a path as one writes it in a shell: in quotes if it has spaces.

    Example:
        >>> in_shell("my runs/auto-seed0")
        "'my runs/auto-seed0'"
    """
    return shlex.quote(str(path))


def nearest(name: Any, known_names: Iterable[str]) -> str:
    """Return ``"; did you mean X?"`` for the known name that ``name`` most likely stands for, or an empty text."""
    nearest_name = closest(name, known_names)
    return f"; did you mean {nearest_name}?" if nearest_name else ""


MAX_NAMES_LISTED = 16
"""Most known names that a message lists."""

MAX_NEAREST = 3
"""Most names that a message suggests where none is likely."""


def known_list(known_names: Iterable[str], command: str = "") -> str:
    """Return the end of a sentence with all known names, or where they are listed if they are many.

    Args:
        known_names: The names.
        command: The command that lists them; empty if there is none.

    Example:
        >>> known_list(["lr", "batch"]), known_list(map(str, range(100)), "coterie scenarios")
        (' (known: lr, batch)', ' (coterie scenarios lists them)')
    """
    listed = list(map(str, known_names))
    if len(listed) <= MAX_NAMES_LISTED:
        return f" (known: {', '.join(listed) or 'none'})"
    return f" ({command} lists them)" if command else ""


class UnknownName(UserError, KeyError):
    """A name that a table does not have; the message has the nearest name."""

    def __str__(self) -> str:
        # A ``KeyError`` would put quotes around the sentence.
        return one_line(str(self.args[0]))


class NamedTable(dict[str, Any]):
    """A table in which a name that there is not gives a sentence in place of a bare ``KeyError``.

    Args:
        noun: What the names are of, such as ``scenario``.
        command: The command that lists them.
        entries: The table.
    """

    def __init__(self, noun: str, command: str, entries: Mapping[str, Any]) -> None:
        super().__init__(entries)
        self.noun = noun
        self.command = command

    def __missing__(self, name: Any) -> Any:
        raise UnknownName(
            f"there is no {self.noun} {name!r}{nearest(name, self)}{known_list(self, self.command)}"
        )


OWNERS: dict[str, type[Any]] = {}
"""Name -> class of settings that a user can make; ``public`` enters them."""

_NOT_GIVEN = object()


def no_setting(
    owner: str,
    name: str,
    known_names: Iterable[str],
    value: Any = _NOT_GIVEN,
    beside: Iterable[Any] = (),
) -> SettingError:
    """Return the error for a name that is not a setting: the likely slip, the settings, and the value.

    Args:
        owner: What has settings: a table, a class or a function.
        name: The name.
        known_names: The names of the settings.
        value: The value that was given; it is not shown where a setting is secret.
        beside: The values of the other settings; a method's name among them is the method that is
            meant.

    Returns:
        The error.

    Example:
        >>> print(no_setting("Objective", "metric", ["loss", "metrics"], "AUROC"))
        Objective has no setting 'metric'; did you mean metrics? (got 'AUROC'; known: loss, metrics)
    """
    known_names = list(known_names)
    # A message never shows a value that may be a secret.
    hidden = value is _NOT_GIVEN or "secret" in str(name).lower() or "secret" in known_names
    remarks = [] if hidden else [f"got {brief(value)}"]
    texts_beside = [value_beside for value_beside in beside if isinstance(value_beside, str)]
    likely_setting = hint(str(name), known_names, texts_beside)
    # Of many settings, a list would hide the sentence.
    if len(known_names) <= MAX_NAMES_LISTED:
        remarks.append(f"known: {', '.join(known_names) or 'none'}")
    elif not likely_setting:
        nearest_names = alike(name, known_names, MAX_NEAREST)
        likely_setting = f"; the nearest are {', '.join(nearest_names)}" if nearest_names else ""
    in_brackets = f" ({'; '.join(remarks)})" if remarks else ""
    return SettingError(f"{owner} has no setting {name!r}{likely_setting}{in_brackets}")


OF_USERS = (
    "Training",
    "Boundary",
    "Robust",
    "Objective",
    "Attendance",
    "World",
    "Scenario",
    "Experiment",
)
"""Classes of settings that users make, besides those of methods."""


def hint(name: str, known_names: Sequence[str], methods: Sequence[str] = ()) -> str:
    """Return the end of a sentence that says which setting is meant by a name that is none, or where it belongs.

    Args:
        name: The name.
        known_names: The names of the settings.
        methods: The names of methods that are likely to be meant.

    Returns:
        The text, from its semicolon; it may be empty.
    """
    # The classes that have a setting of this name, and what it is called there.
    names = (name, *called_here(name))
    owners: dict[type[Any], str] = {}
    for settings_class in OWNERS.values():
        # A user's own method is only meant where it is named.
        is_method = isinstance(getattr(settings_class, "name", None), str)
        is_method = is_method and settings_class.__module__.startswith("coterie.")
        if settings_class.__name__ not in OF_USERS and not is_method:
            continue
        reachable_names = _reachable_names(settings_class)
        names_there = [candidate for candidate in names if candidate in reachable_names]
        if names_there:
            owners[settings_class] = names_there[0]

    # First choice: another library's name of a setting that there is.
    likely_name = meant(name, known_names)
    is_slip = likely_name is not None and closest(name, [likely_name]) is not None
    if likely_name is not None and not is_slip:
        return f"; did you mean {likely_name}?"
    # Then a setting of an object, such as Training, that is an argument.
    for settings_class, setting_name in owners.items():
        argument = settings_class.__name__.lower()
        if argument in known_names:
            class_name = settings_class.__name__
            return (
                f"; it is a setting of {class_name}: "
                f"give {argument}=coterie.{class_name}({setting_name}=...)"
            )
    # Then a setting of a method, if methods are an argument.
    classes_of_methods = {cls.name: cls for cls in owners if cls.__name__ not in OF_USERS}
    if classes_of_methods and {"method", "methods"} & set(known_names):
        given_methods = [method for method in methods if method in classes_of_methods]
        likely_method = (given_methods or list(classes_of_methods))[0]
        settings_class = classes_of_methods[likely_method]
        return (
            f"; it is a setting of the method {likely_method}: "
            f"give coterie.methods.{settings_class.__name__}({owners[settings_class]}=...) as the method"
        )
    # Then a slip.
    if likely_name is not None:
        return f"; did you mean {likely_name}?"
    return f"; it is a setting of {next(iter(owners)).__name__}" if owners else ""


def _reachable_names(cls: type[Any]) -> list[str]:
    """The names of settings with which ``cls`` can be made: a scenario also takes those of its parts."""
    setting_names = getattr(cls, "setting_names", None)
    return settings_of(cls) if setting_names is None else setting_names()


def brief(value: Any) -> str:
    """Return a value for a message: numbers and short texts as they are, and what is greater by its type."""
    if value is None or isinstance(value, str | bytes | bool | numbers.Number):
        return f"{value!r:.60}"
    # A short list of plain values is shown in full.
    is_short = isinstance(value, list | tuple | set | frozenset) and len(value) <= 8
    if is_short and all(
        entry is None or isinstance(entry, str | numbers.Number) for entry in value
    ):
        return f"{value!r:.60}"
    if isinstance(value, type):
        return f"the class {value.__name__}"
    type_name = type(value).__name__
    return f"{'an' if type_name[0].lower() in 'aeiou' else 'a'} {type_name}"


MAX_TOML_DEPTH = 16
"""The maximum depth of nested tables and lists in TOML."""

_KEY_PART = r"""(?:[\w-]++|"(?:[^"\\\n]|\\.)*+"|'[^'\n]*+')"""
_DEEP_KEY = re.compile(
    rf"(?:^|[\[{{,])[ \t]*+(?:{_KEY_PART}[ \t]*+\.[ \t]*+){{{4 * MAX_TOML_DEPTH}}}", re.MULTILINE
)
"""A key of too many parts at a place where a key can begin. It is checked before parsing, because
for 80,000 parts the parser needs minutes and all memory."""


def toml(text: str) -> dict[str, Any]:
    """Parse TOML text, which may come from an untrusted source.

    Args:
        text: The text.

    Returns:
        The document.

    Raises:
        ValueError: The text is not valid TOML, or is not accepted here; the message gives the
            reason in a few words.

    Example:
        >>> toml("a = [1, {b = 2}]")
        {'a': [1, {'b': 2}]}
    """
    # Imported here: help needs neither.
    import datetime
    import tomllib

    too_deep = f"its tables and lists are more than {MAX_TOML_DEPTH} deep"
    # What the parser could not read in bounded time is refused before it is parsed.
    if _DEEP_KEY.search(text):
        raise ValueError(too_deep)
    try:
        document = tomllib.loads(text)
    except RecursionError:
        raise ValueError(too_deep) from None
    except tomllib.TOMLDecodeError:
        raise
    except ValueError as error:
        # Python itself refuses integers of too many digits.
        raise ValueError(f"it has a number of too many digits ({error})") from None
    # Then what TOML allows and no setting takes.
    for value in _within(document, too_deep):
        if isinstance(value, datetime.date | datetime.time):
            raise ValueError("it has a date or a time, which no setting takes")
        if isinstance(value, int) and not fits(value):
            # A long secret is the one likely integer of this size, and there is another way to give it.
            table = document.get("boundary")
            if isinstance(table, dict) and table.get("secret") is value:
                raise ValueError(
                    "its boundary.secret has more than 64 bits; give a longer secret with --secret-file FILE"
                )
            raise ValueError("it has an integer of more than 64 bits")
    return document


def _within(document: Any, too_deep: str) -> Iterator[Any]:
    """All values in tables and lists at any depth; raises ``ValueError`` beyond :data:`MAX_TOML_DEPTH`."""
    # Breadth first, without recursion: the depth is the sender's choice.
    level = [document]
    for _ in range(MAX_TOML_DEPTH):
        next_level: list[Any] = []
        for value in level:
            if isinstance(value, dict):
                next_level += value.values()
            elif isinstance(value, list):
                next_level += value
        level = next_level
        yield from level
        if not level:
            return
    raise ValueError(too_deep)


def parse(text: str) -> Any:
    """Parse a value from the command line: TOML's notation, ``none``, or else the text itself.

    Args:
        text: The text as it was typed.

    Returns:
        The value.

    Raises:
        ValueError: Coterie does not accept the value anywhere: see :func:`toml`.

    Example:
        >>> parse("0.5"), parse(".5"), parse("[1, 2]"), parse("true"), parse("none"), parse("ward")
        (0.5, 0.5, [1, 2], True, None, 'ward')
    """
    import tomllib

    if text.lower() == "none":
        return None
    # TOML has no number without a digit before its point.
    if re.fullmatch(r"[+-]?\.\d+", text):
        return float(text)
    try:
        return toml(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def build(cls: type[Any], values: Mapping[str, Any], owner: str = "") -> Any:
    """Make ``cls(**values)``, including tables of nested settings.

    Args:
        cls: The dataclass of settings.
        values: Name -> value; for nested settings a mapping.
        owner: What a message calls the owner of the settings; empty for the name of the class.

    Returns:
        The settings.

    Raises:
        SettingError: A name is unknown (the message suggests the nearest known one), or a value is
            not allowed.
    """
    setting_names = [
        settings_field.name for settings_field in dataclasses.fields(cls) if settings_field.init
    ]
    annotations = _annotations(cls)
    for setting_name in values:
        if setting_name not in setting_names:
            raise no_setting(
                owner or cls.__name__, setting_name, setting_names, values[setting_name]
            )
    # Tables of nested settings become their classes first.
    built_values = dict(values)
    for setting_name, value in values.items():
        if isinstance(value, Mapping) and dataclasses.is_dataclass(annotations[setting_name]):
            built_values[setting_name] = build(annotations[setting_name], value)
    return cls(**built_values)


def documented(cls: type[Any]) -> list[tuple[str, str, Any, str]]:
    """Return (name, type in words, default, sentence) of every setting of ``cls``, in order, the advanced ones last."""
    annotations = _annotations(cls)
    usual_settings = []
    advanced_settings = []
    for field in dataclasses.fields(cls):
        if "doc" not in field.metadata:
            continue
        sentence = field.metadata["doc"]
        words = describe(annotations[field.name])
        if field.metadata["advanced"]:
            advanced_settings.append((field.name, words, field.default, f"{sentence} (advanced)"))
        else:
            usual_settings.append((field.name, words, field.default, sentence))
    return usual_settings + advanced_settings


def settings_of(cls: type[Any], hidden: Sequence[str] = ()) -> list[str]:
    """Return the names of the settings of ``cls``, without those in ``hidden``."""
    return [
        settings_field.name
        for settings_field in dataclasses.fields(cls)
        if settings_field.init and settings_field.name not in hidden
    ]


def changed(base: Any, values: Mapping[str, Any], table: str, hidden: Sequence[str] = ()) -> Any:
    """Replace some values of ``base``.

    Args:
        base: The settings.
        values: Name -> new value.
        table: The name of their table in messages.
        hidden: Names of settings that have a separate table.

    Returns:
        New settings.

    Raises:
        SettingError: A name is not a setting, or a value is not allowed.
    """
    setting_names = settings_of(type(base), hidden)
    for setting_name in values:
        if setting_name not in setting_names:
            # A hidden setting has a table of its own.
            if setting_name in hidden:
                raise SettingError(
                    f"{table} has no setting {setting_name!r}; write it as its own table, [{setting_name}]"
                )
            raise no_setting(table, setting_name, setting_names, values[setting_name])
    return dataclasses.replace(base, **values)


def table_of(name: str, settings_or_changes: Any, base: Any) -> Any:
    """Return settings that were given as an object, or as a table of changes.

    Args:
        name: The name of the table, for messages.
        settings_or_changes: The object or the table.
        base: The settings that a table changes.

    Returns:
        The settings.

    Raises:
        SettingError: ``settings_or_changes`` is neither, or a setting is not allowed.
    """
    if isinstance(settings_or_changes, Mapping):
        return changed(base, settings_or_changes, name)
    if not isinstance(settings_or_changes, type(base)):
        # A boundary may have a secret.
        received = "" if name == "boundary" else f", got {settings_or_changes!r:.60}"
        raise SettingError(
            f"{name} must be a coterie.{type(base).__name__} or a table of its settings{received}"
        )
    return settings_or_changes


def plain(settings: Any, without: Sequence[str] = ()) -> dict[str, Any]:
    """Return all fields for TOML or JSON, nested settings as tables.

    ``None`` becomes ``"none"``, so that later changes of defaults have no effect.
    """
    return {name: _value(getattr(settings, name)) for name in settings_of(type(settings), without)}


def _value(value: Any) -> Any:
    # A method's table begins with its name, by which it is found again.
    if dataclasses.is_dataclass(value):
        table = plain(value)
        method_name = getattr(type(value), "name", None)
        return table if method_name is None else {"name": method_name, **table}
    if isinstance(value, tuple):
        return [_value(entry) for entry in value]
    return "none" if value is None else value
