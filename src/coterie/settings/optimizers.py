"""Optimizers and schedules of torch by name: ``torch.optim:AdamW``, ``torch.optim.lr_scheduler:CosineAnnealingLR``.

torch is imported when such a name is first used. An optimizer of the user's own,
``package.module:Name``, is never imported here: reading settings runs no code, and where a server
states them, no name makes a client import anything but torch.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from coterie.settings import SettingError, nearest

if TYPE_CHECKING:
    import torch

OPTIMIZERS = "torch.optim:"
"""What the name of an optimizer begins with."""

SCHEDULES = "torch.optim.lr_scheduler:"
"""What the name of a schedule begins with."""

OWN_OPTIMIZERS = ("sgd", "adam")
"""The optimizers that need no name of torch's."""

ELEMENTWISE = frozenset(
    {"ASGD", "Adadelta", "Adagrad", "Adam", "AdamW", "Adamax"}
    | {"NAdam", "RAdam", "RMSprop", "Rprop", "SGD"}
)
"""Optimizers that treat each parameter alone. With them, clients can be trained in one block."""

UNUSABLE_OPTIMIZERS = {
    "LBFGS": "evaluates the loss several times in a step",
    "SparseAdam": "takes sparse gradients alone",
    "Optimizer": "is the base class of all",
}
UNUSABLE_SCHEDULES = {
    "ReduceLROnPlateau": "needs a loss after each round",
    "LambdaLR": "needs a function",
    "MultiplicativeLR": "needs a function",
    "LRScheduler": "is the base class of all",
    "SequentialLR": "needs other schedules",
    "ChainedScheduler": "needs other schedules",
}

Options = tuple[str, ...]
"""Arguments of a class as texts ``name=value``, with values in JSON; a setting that can be hashed."""


def is_own(optimizer: str) -> bool:
    """Return whether a name stands for an optimizer of the user's own.

    Example:
        >>> is_own("mypackage.optimizers:Lion"), is_own("torch.optim:AdamW"), is_own("adam")
        (True, False, False)
    """
    module, colon, class_name = optimizer.partition(":")
    module_parts = module.split(".")
    are_identifiers = all(part.isidentifier() for part in (*module_parts, class_name))
    return bool(colon) and are_identifiers and module_parts[0] != "torch"


def as_options(setting_name: str, options: Any) -> Any:
    """Return a table of arguments as texts ``name=value``; anything else as it is, for the check of its type.

    A single text may state several arguments, between spaces, for a command line.

    Example:
        >>> as_options("optimizer_options", {"betas": (0.9, 0.95), "amsgrad": True})
        ('betas=[0.9, 0.95]', 'amsgrad=true')
    """
    if isinstance(options, str):
        return tuple(options.split())
    if not isinstance(options, Mapping):
        return options
    texts = []
    for name, value in options.items():
        try:
            texts.append(f"{name}={json.dumps(value)}")
        except TypeError:
            raise SettingError(
                f"{setting_name}.{name} must be a number, a truth value, a text or a list, got {value!r:.60}"
            ) from None
    return tuple(texts)


def arguments(setting_name: str, options: Options) -> dict[str, Any]:
    """Return the arguments that the texts of ``as_options`` state.

    Raises:
        SettingError: A text is not ``name=value``.
    """
    values: dict[str, Any] = {}
    for text in options:
        name, equals, value_text = text.partition("=")
        if not equals or not name.strip().isidentifier():
            raise SettingError(
                f"{setting_name} must be a table, or texts name=value such as eps=1e-6, got {text!r:.60}"
            )
        try:
            value = json.loads(value_text)
        except ValueError:
            # A text without quotes, such as anneal_strategy=linear.
            value = {"True": True, "False": False}.get(value_text.strip(), value_text.strip())
        values[name.strip()] = tuple(value) if isinstance(value, list) else value
    return values


def check_named(
    optimizer: str, options: Options, schedule: str | None, of_schedule: Options
) -> None:
    """Refuse an optimizer or a schedule that there is not, and arguments that it does not take.

    Raises:
        SettingError: With one sentence.
    """
    # Settings that are read without torch name none of its classes.
    if optimizer in OWN_OPTIMIZERS:
        if options:
            raise SettingError(
                f"Training.optimizer_options needs an optimizer of torch.optim, such as torch.optim:AdamW, with {optimizer} "
                f"got {', '.join(options):.60}"
            )
    elif is_own(optimizer):
        arguments("Training.optimizer_options", options)
    else:
        _made_to_check(optimizer, options)
    if schedule is not None:
        _rates(1.0, schedule, of_schedule, 2)
    elif of_schedule:
        raise SettingError(
            f"Training.schedule_options needs Training.schedule, got {', '.join(of_schedule):.60}"
        )


@lru_cache(maxsize=64)
def _made_to_check(optimizer: str, options: Options) -> None:
    import torch

    # A matrix, because some optimizers take nothing else.
    build_optimizer(optimizer, options, [torch.zeros(2, 2)], 0.1)


def build_optimizer(
    optimizer: str,
    options: Options,
    tensors: Sequence[torch.Tensor],
    learning_rate: float,
    own_class: Any = None,
) -> torch.optim.Optimizer:
    """Return a new optimizer.

    Args:
        optimizer: Its name, such as ``torch.optim:AdamW``.
        options: Its arguments besides the learning rate, as of :func:`as_options`.
        tensors: The tensors that it changes.
        learning_rate: The learning rate.
        own_class: What an optimizer of the user's own is; None for one of torch.

    Raises:
        SettingError: There is no such optimizer, or an argument is not allowed.
    """
    import torch

    setting_name = "Training.optimizer"
    if own_class is not None:
        if not isinstance(own_class, type) or not issubclass(own_class, torch.optim.Optimizer):
            raise SettingError(
                f"{setting_name} must be a subclass of torch.optim.Optimizer, got {optimizer!r}, which is none"
            )
        optimizer_class = own_class
    else:
        optimizer_class = _class(
            setting_name,
            optimizer,
            OPTIMIZERS,
            torch.optim,
            torch.optim.Optimizer,
            UNUSABLE_OPTIMIZERS,
            f"{', '.join(OWN_OPTIMIZERS)}, a class of torch.optim such as torch.optim:AdamW, or package.module:Name",
        )
    values = arguments(f"{setting_name}_options", options)
    if "lr" in values:
        raise SettingError(
            f"{setting_name}_options has no lr: it is Training.lr, got {values['lr']!r:.60}"
        )
    named_values = {"lr": learning_rate, **values}
    made_optimizer: torch.optim.Optimizer = _called(
        setting_name, optimizer, optimizer_class, (tensors,), named_values
    )
    return made_optimizer


def rate_of_round(learning_rate: float, schedule: str, options: Options, round: int) -> float:
    """Return the learning rate of a round, as the schedule states it after so many of its steps.

    Args:
        learning_rate: The rate of the first round.
        schedule: The name of a schedule, such as ``torch.optim.lr_scheduler:CosineAnnealingLR``.
        options: Its arguments, as of :func:`as_options`.
        round: The round, from 0.
    """
    # Schedules count on from step to step, so rates are computed for a power of two of rounds.
    round_count = 2 ** max(round.bit_length(), 1)
    return _rates(learning_rate, schedule, options, round_count)[round]


@lru_cache(maxsize=64)
def _rates(
    learning_rate: float, schedule: str, options: Options, round_count: int
) -> tuple[float, ...]:
    """The learning rates of the first rounds."""
    import torch

    setting_name = "Training.schedule"
    schedule_class = _class(
        setting_name,
        schedule,
        SCHEDULES,
        torch.optim.lr_scheduler,
        torch.optim.lr_scheduler.LRScheduler,
        UNUSABLE_SCHEDULES,
        "a class of torch.optim.lr_scheduler such as torch.optim.lr_scheduler:CosineAnnealingLR",
    )
    values = arguments(f"{setting_name}_options", options)
    # An optimizer of nothing, for its learning rate. A momentum, because some schedules change it too.
    optimizer = torch.optim.SGD([torch.zeros(1)], lr=learning_rate, momentum=0.9)
    scheduler = _called(setting_name, schedule, schedule_class, (optimizer,), values)
    rates = []
    for _ in range(round_count):
        rates.append(float(optimizer.param_groups[0]["lr"]))
        # Torch warns if a schedule goes on without a step of its optimizer.
        optimizer.step()
        try:
            scheduler.step()
        except ValueError as error:
            # Schedules of a given length, such as OneCycleLR, end: the last rate stays.
            if not rates[1:]:
                raise SettingError(
                    f"{setting_name} {schedule} cannot be followed: {error}"
                ) from error
            rates += [rates[-1]] * (round_count - len(rates))
            break
        except (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError) as error:
            # Constructors do not look at their arguments: a step_size of 0 fails in the first step.
            raise SettingError(
                f"{setting_name}_options must be arguments of {schedule}, got {', '.join(options):.100}, with which "
                f"its step fails: {type(error).__name__}: {error!s:.200}"
            ) from error
    _check_rates(setting_name, schedule, options, rates)
    return tuple(rates)


def _check_rates(
    setting_name: str, schedule: str, options: Options, rates: Sequence[float]
) -> None:
    """Refuse a schedule with a rate below 0, or one that is not finite.

    Raises:
        SettingError: There is such a rate.
    """
    for round_number, rate in enumerate(rates, start=1):
        if not 0 <= rate < math.inf:
            raise SettingError(
                f"{setting_name} {schedule} with {', '.join(options):.100} has learning rate {rate:g} in round "
                f"{round_number}: rates must be finite and >= 0"
            )


def _class(
    setting_name: str,
    name: str,
    beginning: str,
    module: Any,
    base_class: type[Any],
    unusable: Mapping[str, str],
    allowed: str,
) -> type[Any]:
    """The class of torch that a setting names."""
    class_name = name.removeprefix(beginning)
    known_classes = {}
    for known_name, value in vars(module).items():
        if isinstance(value, type) and issubclass(value, base_class):
            known_classes[known_name] = value
    if class_name in unusable and class_name in known_classes:
        raise SettingError(
            f"{setting_name} must be {allowed}, got {name!r}, which {unusable[class_name]}"
        )
    if not name.startswith(beginning) or class_name not in known_classes:
        # The name alone, in any case, is the likely slip.
        likely = {known_name.lower(): f"{beginning}{known_name}" for known_name in known_classes}
        advice = nearest(name, likely.values())
        if name.lower() in likely:
            advice = f"; did you mean {likely[name.lower()]}?"
        raise SettingError(f"{setting_name} must be {allowed}, got {name!r:.60}{advice}")
    return known_classes[class_name]


def _called(
    setting_name: str,
    name: str,
    torch_class: type[Any],
    values: tuple[Any, ...],
    named: Mapping[str, Any],
) -> Any:
    """An object of a class of torch, or one sentence on the argument that it does not take."""
    try:
        return torch_class(*values, **named)
    # Torch raises errors of many kinds for wrong arguments.
    except (TypeError, ValueError, RuntimeError, AssertionError, AttributeError, KeyError) as error:
        reason = str(error).partition("\n")[0]
        raise SettingError(
            f"{setting_name}_options must be arguments of {name}, which says: {reason:.200}"
        ) from error
