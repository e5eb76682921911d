"""What of a client's work is code of the user's own, and the random generators that such code made itself.

Coterie seeds the global generators of torch, NumPy and Python for each task
(:func:`coterie.randomness.seeded`). Code of torch and of Coterie draws from torch's alone. A
generator that the user's code made itself is in the state in which the last task of its process
left it, so its numbers would depend on the number of workers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import nn

from coterie.data.objective import COMBINED, METRICS, Objective
from coterie.randomness import is_generator, state_of

TRUSTED_PACKAGES = ("torch", "coterie")
"""Packages whose code draws from torch's generators alone."""

HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")

DEPTH = 4
"""How deep generators are searched for: the data set, its data set, a transform of it, and a part
of this."""


def runs_own_code(
    module: nn.Module, objective: Objective, augment: Callable[..., Any] | None
) -> bool:
    """Return whether training or testing a module calls code that is neither torch's nor Coterie's.

    Args:
        module: The net.
        objective: The loss and the metrics.
        augment: The augmentation of training batches, or None.
    """
    # The net is trusted if all of its layers are torch's or Coterie's and none has a hook.
    for part in module.modules():
        if not _is_trusted(type(part)) or any(getattr(part, hook_kind) for hook_kind in HOOKS):
            return True
    # So are the metrics, the function that combines ensembles, the loss and the augmentation.
    metrics = set(map(id, METRICS.values()))
    if any(id(metric) not in metrics for metric in objective.named.values()):
        return True
    combined = any(objective.combine is known_function for known_function in COMBINED.values())
    return not (
        combined
        and _is_trusted_function(objective.loss)
        and (augment is None or _is_trusted_function(augment))
    )


def _is_trusted(class_or_function: Any) -> bool:
    """Whether a class or function belongs to one of the :data:`TRUSTED_PACKAGES`."""
    return str(getattr(class_or_function, "__module__", "")).split(".")[0] in TRUSTED_PACKAGES


def _is_trusted_function(function: Any) -> bool:
    """Whether a function, a ``partial`` of one, or a module of torch belongs to one of the :data:`TRUSTED_PACKAGES`."""
    if isinstance(function, partial):
        return _is_trusted_function(function.func)
    if isinstance(function, nn.Module):
        return all(_is_trusted(type(part)) for part in function.modules())
    # Functions that torch compiles have no module, and those of its C++ part call themselves torch
    # or torch._C.
    return (
        _is_trusted(function)
        or _is_trusted(type(function))
        or getattr(torch.nn.functional, getattr(function, "__name__", ""), None) is function
    )


# ----------------------------------------------------------------------------------------------------
# Generators of the user's own.


Generators = dict[str, Any]
"""Where a generator is, such as ``transform.rng`` -> the generator."""


def own_generators(holder: Any) -> Generators:
    """Find the random generators that an object holds.

    Args:
        holder: A data set, a module, or a function with its closure, its defaults and the global
            names that it uses.

    Returns:
        Name of the attribute or variable -> generator of NumPy, Python or torch.
    """
    generators: Generators = {}
    _search(holder, "", DEPTH, generators, set())
    return generators


def _search(
    holder: Any, name: str, depth: int, generators: Generators, visited_ids: set[int]
) -> None:
    """Add the generators that an object holds, to a depth, to a dict."""
    # Objects may hold each other in a circle.
    if id(holder) in visited_ids:
        return
    visited_ids.add(id(holder))
    if is_generator(holder):
        generators[name] = holder
        return
    for part_name, value in _parts(holder) if depth else ():
        _search(value, f"{name}.{part_name}".lstrip("."), depth - 1, generators, visited_ids)


def _parts(holder: Any) -> Iterator[tuple[str, Any]]:
    """The named parts of an object in which a generator may be."""
    if isinstance(holder, Mapping):
        for key, value in holder.items():
            if not _plain(value):
                yield str(key), value
    elif isinstance(holder, list | tuple):
        # A long list holds examples, and generators would be among its first entries.
        for position, value in enumerate(holder[:100]):
            if not _plain(value):
                yield str(position), value
    elif isinstance(holder, partial):
        yield "function", holder.func
        yield "arguments", holder.args
        yield "arguments", holder.keywords
    elif hasattr(holder, "__code__"):
        # A function: the variables of its closure, the globals that it uses, and its defaults.
        code = holder.__code__
        closure_cells = zip(code.co_freevars, holder.__closure__ or (), strict=False)
        for name, cell in closure_cells:
            # A variable that has no value yet has an empty cell.
            if cell != type(cell)():
                yield name, cell.cell_contents
        for name in code.co_names:
            if name in holder.__globals__:
                yield name, holder.__globals__[name]
        yield "default", holder.__defaults__
    elif hasattr(holder, "__func__"):
        # A method of an object: the object, and the method's function.
        yield "", holder.__self__
        yield "", holder.__func__
    elif (
        isinstance(getattr(holder, "__dict__", None), dict)
        and not isinstance(holder, type)
        and not _is_module(holder)
    ):
        # Any other object: its attributes, and the variables that its own methods use.
        for name, value in vars(holder).items():
            if not _plain(value):
                yield name, value
        if _is_trusted(type(holder)):
            return
        for method_name in ("__getitem__", "__call__", "forward"):
            method = getattr(type(holder), method_name, None)
            if hasattr(method, "__code__"):
                yield "", method


def _is_module(holder: Any) -> bool:
    return hasattr(holder, "__spec__")


def _plain(value: Any) -> bool:
    """Whether a value can hold no generator: numbers, text and arrays."""
    return value is None or isinstance(
        value, bool | int | float | str | bytes | np.ndarray | torch.Tensor
    )


def states(generators: Generators) -> dict[str, Any]:
    """Return the state of each generator, for :func:`moved`."""
    return {name: state_of(generator) for name, generator in generators.items()}


def moved(generators: Generators, before: Mapping[str, Any]) -> str | None:
    """Return the name of the first generator that has drawn a number since :func:`states`; None if none has."""
    for name, generator in generators.items():
        if state_of(generator) != before[name]:
            return name
    return None
