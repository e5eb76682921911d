"""Public functions and classes: a wrong call is one sentence, as on the command line.

:func:`public` marks what users call. Without it, a misspelled argument is Python's ``TypeError``,
which neither names the value nor the arguments that there are, and often comes from a function that
the user has never seen.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import os
import types
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar, overload

from coterie.settings import OWNERS, SettingError, brief, coerced, known_list, no_setting, types_of

F = TypeVar("F", bound=Callable[..., Any])

_SIMPLE = (int, float, bool, str, type(None))
"""Types whose values are checked where the annotation of an argument has no others."""


class CallError(SettingError, TypeError):
    """A call with an argument that there is not, without one that is needed, or with one of the wrong type."""


@overload
def public(target: F, /) -> F: ...
@overload
def public(*, more: Iterable[str] = ()) -> Callable[[F], F]: ...
def public(target: Any = None, /, *, more: Iterable[str] = ()) -> Any:
    """Mark a function or a class that users call; a decorator.

    A call with an unknown, a missing or one value too many raises a ``CallError`` of one sentence.
    Values of arguments that are annotated as numbers, texts or paths are checked, and NumPy's
    numbers become Python's. Signature, help and types stay those of the function.

    Args:
        target: The function or the class.
        more: Names that a function takes by ``**``, which no other name may be.

    Returns:
        The function, or the class with a checked ``__init__``.

    Example:
        >>> @public
        ... def area(width: float, height: float = 1.0) -> float:
        ...     return width * height
        >>> area(widht=3)
        Traceback (most recent call last):
        coterie.settings.calls.CallError: area has no setting 'widht'; did you mean width? ...
    """
    if target is None:
        return functools.partial(_marked, extra_names=tuple(more))
    return _marked(target)


def _marked(target: Any, extra_names: Sequence[str] = ()) -> Any:
    if not isinstance(target, type):
        return _checked_function(target, extra_names)
    # The public methods of a class, and the one that makes its objects.
    for member_name, member in list(vars(target).items()):
        if member_name == "__init__" and isinstance(member, types.FunctionType):
            setattr(target, member_name, _checked_method(member, target.__name__))
        elif not member_name.startswith("_") and isinstance(member, types.FunctionType):
            setattr(
                target, member_name, _checked_method(member, f"{target.__name__}.{member_name}")
            )
    if dataclasses.is_dataclass(target):
        OWNERS[target.__name__] = target
    return target


def _checked_method(method: Callable[..., Any], owner: str) -> Callable[..., Any]:
    """A method whose wrong calls are one sentence; a right call is looked at no closer, because engines make many."""
    # A method that has a wrapper stays as it is.
    if hasattr(method, "__wrapped__"):
        return method
    signature = inspect.signature(method)

    @functools.wraps(method)
    def called(*values: Any, **named: Any) -> Any:
        try:
            return method(*values, **named)
        except TypeError:
            _check_call(owner, signature, values, named, skipped=1)
            raise

    return called


def _checked_function(
    function: Callable[..., Any], extra_names: Sequence[str]
) -> Callable[..., Any]:
    """A function whose wrong calls are one sentence, and whose numbers, texts and paths are checked."""
    owner = function.__name__
    signature = inspect.signature(function)
    parameters = list(signature.parameters)
    simple: dict[str, Any] | None = None
    usual_types: dict[str, frozenset[type[Any]]] = {}

    @functools.wraps(function)
    def called(*values: Any, **named: Any) -> Any:
        nonlocal simple
        # On the first call, when every name of the module is known.
        if simple is None:
            simple = _simple_hints(function)
            usual_types.update((argument, _usual_types(hint)) for argument, hint in simple.items())
        if extra_names:
            _check_call(owner, signature, values, named, extra_names=extra_names)
        # Most values have exactly the annotated types, and need no closer look.
        names_to_check = []
        for argument, value in (*zip(parameters, values, strict=False), *named.items()):
            if argument in usual_types and type(value) not in usual_types[argument]:
                names_to_check.append(argument)
        try:
            if not names_to_check:
                return function(*values, **named)
            bound_arguments = signature.bind(*values, **named)
        except TypeError:
            _check_call(owner, signature, values, named, extra_names=extra_names)
            raise
        # The values of other types, such as NumPy's numbers and paths as text, are converted.
        for argument in names_to_check:
            bound_arguments.arguments[argument] = _checked_value(
                argument, bound_arguments.arguments[argument], simple[argument]
            )
        return function(*bound_arguments.args, **bound_arguments.kwargs)

    return called


def _usual_types(annotation: Any) -> frozenset[type[Any]]:
    """The types of values that need no check; True is an integer to Python, and none here."""
    usual_types: set[type[Any]] = set()
    for option in types_of(annotation):
        if _is_path(option):
            usual_types.add(type(Path()))
        elif option is float:
            usual_types |= {float, int}
        else:
            usual_types.add(option)
    return frozenset(usual_types)


def _check_call(
    owner: str,
    signature: inspect.Signature,
    values: Sequence[Any],
    named: Mapping[str, Any],
    skipped: int = 0,
    extra_names: Sequence[str] = (),
) -> None:
    """Raise ``CallError`` if Python cannot make the call, or a name is neither an argument nor one of ``extra_names``.

    Args:
        owner: The name of the function or class.
        signature: Its arguments.
        values: The values that were given by position.
        named: The values that were given by name.
        skipped: Number of first arguments that Python itself gives (``self``).
        extra_names: Names that the function takes by ``**``; empty if it takes any, or none.
    """
    parameters = list(signature.parameters.values())[skipped:]
    # Which arguments can be given by position and by name, and which must be given.
    by_position = []
    by_name = []
    required = []
    for parameter in parameters:
        if parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD):
            by_position.append(parameter.name)
        if parameter.kind in (parameter.KEYWORD_ONLY, parameter.POSITIONAL_OR_KEYWORD):
            by_name.append(parameter.name)
        is_single = parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
        if is_single and parameter.default is parameter.empty:
            required.append(parameter.name)
    kinds = [parameter.kind for parameter in parameters]
    takes_any_name = inspect.Parameter.VAR_KEYWORD in kinds and not extra_names
    takes_any_number = inspect.Parameter.VAR_POSITIONAL in kinds

    # A name that is no argument.
    known_names = [*by_name, *extra_names]
    for argument_name, value in named.items():
        if argument_name not in known_names and not takes_any_name:
            raise CallError(
                *no_setting(
                    owner, argument_name, known_names, value, (*values, *named.values())
                ).args
            )

    # Too many values without a name.
    value_count = len(values) - skipped
    if value_count > len(by_position) and not takes_any_number:
        noun = "value" if value_count == 1 else "values"
        accepted = (
            f"at most {len(by_position)} ({', '.join(by_position)})" if by_position else "none"
        )
        only_by_name = [name for name in by_name if name not in by_position and name not in named]
        advice = f": give the others by name, such as {only_by_name[0]}=..." if only_by_name else ""
        raise CallError(
            f"{owner} got {value_count} {noun} without a name, and takes {accepted}{advice}"
        )

    # An argument twice, or not at all.
    names_of_values = by_position[: max(value_count, 0)]
    for argument_name in names_of_values:
        if argument_name in named:
            raise CallError(
                f"{owner} got {argument_name} twice: once by its place and once by its name"
            )
    missing_arguments = [
        name for name in required if name not in named and name not in names_of_values
    ]
    if missing_arguments:
        raise CallError(f"{owner} needs {' and '.join(missing_arguments)}{known_list(known_names)}")


def _simple_hints(function: Callable[..., Any]) -> dict[str, Any]:
    """Name -> annotation, for arguments of numbers, texts, truth values and paths."""
    try:
        annotations = typing.get_type_hints(function)
    except NameError:
        # A name may have been imported for type checkers alone.
        return {}
    simple_hints = {}
    for argument_name, parameter in inspect.signature(function).parameters.items():
        is_named = parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)
        if is_named and argument_name in annotations and _is_simple(annotations[argument_name]):
            simple_hints[argument_name] = annotations[argument_name]
    return simple_hints


def _is_path(annotation: Any) -> bool:
    base_type = typing.get_origin(annotation) or annotation
    return isinstance(base_type, type) and issubclass(base_type, os.PathLike)


def _is_simple(annotation: Any) -> bool:
    return all(option in _SIMPLE or _is_path(option) for option in types_of(annotation))


def _checked_value(name: str, value: Any, annotation: Any) -> Any:
    """A value as the annotation has it, with NumPy's numbers as Python's."""
    options = types_of(annotation)
    if value is None and type(None) in options:
        return None
    takes_path = any(map(_is_path, options))
    # A text stays a text: a client may be called "none".
    if isinstance(value, str) and str in options and not takes_path:
        return value
    # The value of a secret is not shown.
    if name == "secret":
        if not isinstance(value, int) or isinstance(value, bool):
            raise CallError("secret must be an integer; its value is not shown")
        return value
    if takes_path:
        if not isinstance(value, str | os.PathLike):
            advice = ""
            if isinstance(value, list | tuple) and value:
                advice = "; give one of them, such as [0]"
            raise CallError(f"{name} must be a path, got {brief(value)}{advice}")
        # An argument that takes texts and paths gets the text as it is.
        return value if str in options else Path(value)
    try:
        return coerced(name, value, annotation)
    # A wrong value is also a TypeError, as for any function of Python.
    except SettingError as error:
        raise CallError(*error.args) from None
