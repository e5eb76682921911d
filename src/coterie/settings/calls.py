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

from coterie.settings import OWNERS, SettingError, brief, coerced, no_setting

F = TypeVar("F", bound=Callable[..., Any])

_SIMPLE = (int, float, bool, str, type(None))
"""Types whose values are checked where the annotation of an argument has no others."""


class CallError(SettingError, TypeError):
    """A call with an argument that there is not, without one that is needed, or with one of the wrong type."""


@overload
def public(given: F, /) -> F: ...
@overload
def public(*, more: Iterable[str] = ()) -> Callable[[F], F]: ...
def public(given: Any = None, /, *, more: Iterable[str] = ()) -> Any:
    """Mark a function or a class that users call; a decorator.

    A call with an unknown, a missing or one value too many raises a ``CallError`` of one sentence.
    Values of arguments that are annotated as numbers, texts or paths are checked, and NumPy's
    numbers become Python's. Signature, help and types stay those of the function.

    Args:
        given: The function or the class.
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
    if given is None:
        return functools.partial(_marked, more=tuple(more))
    return _marked(given)


def _marked(given: Any, more: Sequence[str] = ()) -> Any:
    if not isinstance(given, type):
        return _checked_function(given, more)
    for name, part in list(vars(given).items()):
        if name == "__init__" and isinstance(part, types.FunctionType):
            setattr(given, name, _checked_method(part, given.__name__))
        elif not name.startswith("_") and isinstance(part, types.FunctionType):
            setattr(given, name, _checked_method(part, f"{given.__name__}.{name}"))
    if dataclasses.is_dataclass(given):
        OWNERS[given.__name__] = given
    return given


def _checked_method(method: Callable[..., Any], owner: str) -> Callable[..., Any]:
    """A method whose wrong calls are one sentence; a right call is looked at no closer, because engines make many."""
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


def _checked_function(function: Callable[..., Any], more: Sequence[str]) -> Callable[..., Any]:
    """A function whose wrong calls are one sentence, and whose numbers, texts and paths are checked."""
    owner = function.__name__
    signature = inspect.signature(function)
    parameters = list(signature.parameters)
    simple: dict[str, Any] | None = None
    usual: dict[str, frozenset[type[Any]]] = {}

    @functools.wraps(function)
    def called(*values: Any, **named: Any) -> Any:
        nonlocal simple
        if simple is None:  # on the first call, when every name of the module is known
            simple = _simple_hints(function)
            usual.update((name, _usual_types(hint)) for name, hint in simple.items())
        if more:
            _check_call(owner, signature, values, named, more=more)
        # Most values have exactly the annotated types: they are as they should be, without a closer
        # look.
        odd = [
            name
            for name, value in zip(parameters, values, strict=False)
            if name in usual and type(value) not in usual[name]
        ]
        odd += [
            name
            for name, value in named.items()
            if name in usual and type(value) not in usual[name]
        ]
        try:
            if not odd:
                return function(*values, **named)
            bound = signature.bind(*values, **named)
        except TypeError:
            _check_call(owner, signature, values, named, more=more)
            raise
        for name in odd:
            bound.arguments[name] = _checked_value(name, bound.arguments[name], simple[name])
        return function(*bound.args, **bound.kwargs)

    return called


def _usual_types(hint: Any) -> frozenset[type[Any]]:
    """The types of values that need no check; True is an integer to Python, and none here."""
    types_: set[type[Any]] = set()
    for option in _options(hint):
        if _is_path(option):
            types_ |= {type(Path())}
        else:
            types_ |= {float, int} if option is float else {option}
    return frozenset(types_)


def _check_call(
    owner: str,
    signature: inspect.Signature,
    values: Sequence[Any],
    named: Mapping[str, Any],
    skipped: int = 0,
    more: Sequence[str] = (),
) -> None:
    """Raise ``CallError`` if Python cannot make the call, or a name is neither an argument nor one of ``more``.

    Args:
        owner: The name of the function or class.
        signature: Its arguments.
        values: The values that were given by position.
        named: The values that were given by name.
        skipped: Number of first arguments that Python itself gives (``self``).
        more: Names that the function takes by ``**``; empty if it takes any, or none.
    """
    parameters = list(signature.parameters.values())[skipped:]
    by_position = [
        p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)
    ]
    by_name = [p.name for p in parameters if p.kind in (p.KEYWORD_ONLY, p.POSITIONAL_OR_KEYWORD)]
    known = [*by_name, *more]
    takes_any_name = any(p.kind is p.VAR_KEYWORD for p in parameters) and not more
    takes_any_number = any(p.kind is p.VAR_POSITIONAL for p in parameters)
    for name, value in named.items():
        if name not in known and not takes_any_name:
            raise CallError(*no_setting(owner, name, known, value, (*values, *named.values())).args)
    places = len(values) - skipped
    if places > len(by_position) and not takes_any_number:
        rest = [name for name in by_name if name not in by_position and name not in named]
        taken = f"at most {len(by_position)} ({', '.join(by_position)})" if by_position else "none"
        advice = f": give the others by name, such as {rest[0]}=..." if rest else ""
        raise CallError(
            f"{owner} got {places} {'value' if places == 1 else 'values'} without a name, and takes {taken}{advice}"
        )
    twice = [name for name in by_position[: max(places, 0)] if name in named]
    if twice:
        raise CallError(f"{owner} got {twice[0]} twice: once by its place and once by its name")
    needed = [
        p.name
        for p in parameters
        if p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)
    ]
    lacking = [
        name for name in needed if name not in named and name not in by_position[: max(places, 0)]
    ]
    if lacking:
        raise CallError(f"{owner} needs {' and '.join(lacking)} (known: {', '.join(known)})")


def _simple_hints(function: Callable[..., Any]) -> dict[str, Any]:
    """Name -> annotation, for arguments of numbers, texts, truth values and paths."""
    try:
        hints = typing.get_type_hints(function)
    except NameError:  # a name that is imported for types alone
        return {}
    kinds = {p.name: p.kind for p in inspect.signature(function).parameters.values()}
    plain = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return {
        name: hint for name, hint in hints.items() if kinds.get(name) in plain and _is_simple(hint)
    }


def _options(hint: Any) -> tuple[Any, ...]:
    return (
        typing.get_args(hint)
        if isinstance(hint, types.UnionType) or typing.get_origin(hint) is typing.Union
        else (hint,)
    )


def _is_path(hint: Any) -> bool:
    origin = typing.get_origin(hint) or hint
    return isinstance(origin, type) and issubclass(origin, os.PathLike)


def _is_simple(hint: Any) -> bool:
    return all(option in _SIMPLE or _is_path(option) for option in _options(hint))


def _checked_value(name: str, value: Any, hint: Any) -> Any:
    """A value as the annotation has it, with NumPy's numbers as Python's."""
    options = _options(hint)
    if value is None and type(None) in options:
        return None
    if isinstance(value, str) and str in options and not any(map(_is_path, options)):
        return value  # a client may be called "none"
    if name == "secret":  # its value is not shown
        if not isinstance(value, int) or isinstance(value, bool):
            raise CallError("secret must be an integer; its value is not shown")
        return value
    if any(map(_is_path, options)):
        if not isinstance(value, str | os.PathLike):
            several = isinstance(value, list | tuple) and len(value) > 0
            raise CallError(
                f"{name} must be a path, got {brief(value)}{'; give one of them, such as [0]' if several else ''}"
            )
        return value if str in options else Path(value)
    try:
        return coerced(name, value, hint)
    except SettingError as error:
        raise CallError(*error.args) from None
