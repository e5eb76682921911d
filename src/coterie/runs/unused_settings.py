"""Settings of an experiment that were set and have no effect, in sentences: :func:`unused_settings`."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator
from typing import Any

from coterie.boundary import Boundary
from coterie.core import Training
from coterie.data import datasets
from coterie.data.datasets.source import OWN_SOURCES
from coterie.data.drift import schedule
from coterie.data.parts import ScenarioPart
from coterie.data.scenario import SCENARIOS, Scenario
from coterie.robust import Robust
from coterie.settings import UserError
from coterie.settings.without_effect import without_effect


def unused_settings(
    setup: Any,
    methods: Iterable[Any],
    rounds: int,
    *,
    training: Training | None = None,
    boundary: Boundary | None = None,
    robust: Robust | None = None,
    data: str | None = None,
) -> list[str]:
    """Return a sentence for each setting that was set and has no effect, because another one switches it off.

    Args:
        setup: The scenario, or your own world, which has no settings.
        methods: The methods with their settings.
        rounds: The number of rounds.
        training: Local training; None for the scenario's.
        boundary: Changes of updates on their way; None for none.
        robust: Bounds on the influence of one client; None for the defaults.
        data: The folder of data files that was given; None if there is none.

    Returns:
        The sentences, each once.
    """
    sentences: list[str] = []
    scenario_training = getattr(setup, "training", None)
    if isinstance(setup, Scenario):
        sentences += _of_scenario(setup)
        sentences += _of_drift(setup, rounds)
        sentences += _of_data_folder(setup, data)
    # Training is compared with the scenario's, the others with the defaults.
    if training is not None:
        sentences += without_effect(training, scenario_training, lambda name: f"Training.{name}")
    if boundary is not None:
        sentences += without_effect(boundary, None, lambda name: f"Boundary.{name}")
    if robust is not None:
        sentences += without_effect(robust, None, lambda name: f"robust.{name}")
    sentences += _of_masks(boundary or Boundary(), robust or Robust())
    for method in methods:
        for inner_method in _with_inner(method):
            sentences += _of_method(inner_method, rounds, training, scenario_training)
    return list(dict.fromkeys(sentences))


def _of_scenario(scenario: Scenario) -> list[str]:
    """Settings of the scenario and its parts that have no effect."""
    # What a named scenario sets was not set by the user.
    named_scenario = SCENARIOS.get(scenario.base_name)
    base = named_scenario if isinstance(named_scenario, Scenario) else Scenario()
    sentences = without_effect(
        scenario, base, lambda name: f"Scenario.{name}", values=scenario.flat()
    )
    for field in dataclasses.fields(scenario):
        part = getattr(scenario, field.name)
        if isinstance(part, ScenarioPart):
            sentences += without_effect(
                part,
                getattr(base, field.name),
                part.name_in_scenario,
                short_name_of=part.flat_name,
            )
    return sentences


def _of_drift(scenario: Scenario, rounds: int) -> list[str]:
    """A sentence if data that drift change after the last round only."""
    drift = scenario.drift
    if drift.kind == "none":
        return []
    try:
        steps = schedule(drift.kind, scenario.clients, scenario.groups, drift.calm, drift.schedule)
    except UserError:
        # The world says what is wrong with the schedule.
        return []
    # The first time step that is not as the first one.
    changed_steps = [number for number, step in enumerate(steps) if drift.renew or step != steps[0]]
    first_change = next((number for number in changed_steps if number), None)
    if first_change is None or first_change * drift.period < rounds:
        return []
    return [
        f"the setting Scenario.drift = {drift.kind} changes nothing in {rounds} rounds: the first change is in round "
        f"{first_change * drift.period + 1} (period = {drift.period})"
    ]


def _of_data_folder(scenario: Scenario, data: str | None) -> list[str]:
    """A sentence if a folder of files is given to a data set that reads none."""
    name = scenario.dataset.name
    if data is None or name in OWN_SOURCES:
        return []
    source = datasets.DATASETS.get(name)
    # Other names, such as those of the hub, belong to files of the folder.
    if source is None or source.files is not None:
        return []
    return [f"the setting data = {data} has no effect: the data set {name} reads no files"]


def _of_masks(boundary: Boundary, robust: Robust) -> list[str]:
    """Limits on single clients where the server sees masked sums alone, and the bound of such sums without masks."""
    sentences = []
    if boundary.masks:
        for name in ("hostile", "norms", "share"):
            value = getattr(robust, name)
            if value != getattr(Robust(), name):
                sentences.append(
                    f"the setting robust.{name} = {value} has no effect with boundary.masks = true: the server sees sums "
                    "over clients, and no single client"
                )
    elif boundary.bound != Boundary().bound:
        sentences.append(
            f"the setting Boundary.bound = {boundary.bound:g} has no effect with masks = false: it is for masks = true"
        )
    return sentences


def _with_inner(method: Any) -> Iterator[Any]:
    """A method, and the methods in its settings."""
    yield method
    if not dataclasses.is_dataclass(method):
        return
    for field in dataclasses.fields(method):
        value = getattr(method, field.name)
        for entry in value if isinstance(value, tuple) else (value,):
            if hasattr(entry, "plan") and dataclasses.is_dataclass(entry):
                yield from _with_inner(entry)


def _of_method(
    method: Any, rounds: int, training: Training | None, scenario_training: Training | None
) -> list[str]:
    """Settings of a method that have no effect, and settings of training in whose place it has its own."""
    if not dataclasses.is_dataclass(method):
        return []
    name_of_method = getattr(method, "name", type(method).__name__)
    sentences = without_effect(method, None, lambda name: f"{name_of_method}.{name}")
    # Settings that are the number of a round, or of the rounds before something.
    for field in dataclasses.fields(method):
        event = field.metadata.get("begins", "")
        value = getattr(method, field.name)
        if not event or not isinstance(value, int):
            continue
        begins_in = value + field.metadata["rounds_later"]
        if begins_in > rounds:
            sentences.append(
                f"the setting {name_of_method}.{field.name} = {value} is too late for {rounds} rounds: "
                f"{event} would be in round {begins_in}"
            )
    # A method may have its own value of a setting of local training.
    base = scenario_training or Training()
    replaced: dict[str, str] = getattr(type(method), "replaces_training", {})
    for training_name, own_name in replaced.items():
        value = getattr(training, training_name, None)
        if value not in (None, getattr(base, training_name), getattr(Training(), training_name)):
            sentences.append(
                f"the setting Training.{training_name} = {value:g} has no effect with {name_of_method}, where "
                f"{name_of_method}.{own_name} stands in its place"
            )
    return sentences
