"""Settings of an experiment that were set and have no effect, in sentences: :func:`unused_settings`."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any

from coterie.boundary import Boundary
from coterie.core import Training
from coterie.data import datasets
from coterie.data.datasets.source import OWN_SOURCES
from coterie.data.drift import schedule
from coterie.data.parts import ScenarioPart
from coterie.data.scenario import SCENARIOS, Scenario
from coterie.engines.unused_settings import unused_of_engine
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
    if isinstance(setup, Scenario):
        sentences += _of_scenario(setup)
        sentences += _of_drift(setup, rounds)
        sentences += _of_data_folder(setup, data)
    # Training is compared with the scenario's, the others with the defaults.
    sentences += unused_of_engine(
        methods,
        rounds,
        training=training,
        base_training=getattr(setup, "training", None),
        boundary=boundary,
        robust=robust,
    )
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
