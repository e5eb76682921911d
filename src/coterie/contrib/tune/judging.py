"""A trial: a method with some settings, run on clients that have validation rows in place of their test data."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import lru_cache, partial
from statistics import fmean
from typing import Any

from coterie.core import Round
from coterie.data.world import ClientData, World
from coterie.engines import rounds as inprocess
from coterie.engines.workers import EngineError
from coterie.runs.experiment import Experiment, Spec, make
from coterie.settings import SettingError
from coterie.training import set_aside

TRIAL_COMPLETE = "complete"
TRIAL_PRUNED = "pruned"
TRIAL_FAILED = "failed"

SCORES_OF_A_TRIAL = 8
"""Rounds of a trial in which it is scored, about, unless the experiment says in which."""


@dataclass(frozen=True)
class PlannedTrial:
    """A trial that is to be made.

    Attributes:
        method: The name of the method.
        number: The number of the trial among those of its method, from 0.
        settings: Key, as ``--set`` takes it -> value.
    """

    method: str
    number: int
    settings: Mapping[str, Any]


@dataclass(frozen=True)
class Judged:
    """A trial that was made.

    Attributes:
        method: The name of the method.
        number: The number of the trial among those of its method, from 0.
        settings: Key, as ``--set`` takes it -> value.
        state: ``complete``, ``pruned``, or ``failed`` (its settings do not fit together, or its
            training failed).
        score: The mean validation score over clients and seeds after the last round; None if there
            is none.
        of_seeds: The score with each seed, in their order.
        curve: Round -> the score after it.
        rounds: Rounds that were made.
        seconds: The time that it took.
        reason: Why it failed.
    """

    method: str
    number: int
    settings: Mapping[str, Any]
    state: str
    score: float | None = None
    of_seeds: Sequence[float | None] = ()
    curve: Mapping[str, float] = field(default_factory=dict)
    rounds: int = 0
    seconds: float = 0.0
    reason: str = ""


def without_tests(world: World, share: float, seed: int) -> World:
    """A world whose clients have validation rows as test data; their own test data are not in it.

    Args:
        world: The world.
        share: The share of the training examples that is set aside, see
            :func:`coterie.training.set_aside`.
        seed: The seed of the run.
    """
    divided = set_aside(world, share, seed)
    validation_data: dict[int, ClientData] = {}
    clients_of_steps = []
    for clients in divided.steps:
        for data in clients.values():
            if id(data) not in validation_data and data.scoring is not None:
                validation_data[id(data)] = replace(data, test=data.scoring, scoring=None)
        clients_of_steps.append(
            {client: validation_data[id(data)] for client, data in clients.items()}
        )
    drift = None if divided.drift is None else replace(divided.drift, data=clients_of_steps)
    return replace(divided, clients=clients_of_steps[0], drift=drift)


@lru_cache(maxsize=8)
def _world(scenario_json: str, spec_json: str, share: float, seed: int) -> World:
    """The world of a scenario and a seed, made once in a process."""
    del scenario_json  # a part of the key only
    return without_tests(make(json.loads(spec_json)).world(seed), share, seed)


def world_of(experiment: Experiment, share: float, seed: int) -> World:
    """The world in which a trial of an experiment is judged with one seed.

    Args:
        experiment: The experiment of the trial.
        share: The share that is set aside.
        seed: The seed.
    """
    # Worlds of one scenario differ in their training alone, which each trial may change.
    spec = experiment.spec()
    world_spec = {"scenario": spec["scenario"], "training": spec["training"]}
    if experiment.data is not None:
        world_spec["data"] = experiment.data
    scenario_json = json.dumps([spec["scenario"], experiment.data], sort_keys=True)
    world = _world(scenario_json, json.dumps(world_spec, sort_keys=True), share, seed)
    return replace(world, training=experiment.training)


def judge(trial: PlannedTrial, spec: Spec, share: float, bounds: Mapping[int, float]) -> Judged:
    """Make a trial, with all seeds side by side.

    Args:
        trial: The trial.
        spec: The experiment of this method with these settings.
        share: The share of the training examples that is set aside for validation scores.
        bounds: Round -> the score that the trial must reach there to go on.

    Returns:
        The trial with its scores.
    """
    began = time.perf_counter()
    about = partial(Judged, trial.method, trial.number, dict(trial.settings))
    curve: dict[str, float] = {}
    of_seeds: list[float | None] = []
    state = TRIAL_COMPLETE
    last_round = 0
    try:
        experiment = make(spec)
        worlds = [world_of(experiment, share, seed) for seed in experiment.seeds]
        sign = 1.0 if worlds[0].objective.better == "greater" else -1.0
        runs = [
            inprocess.rounds(
                experiment.methods[0],
                world,
                rounds=experiment.rounds,
                seed=seed,
                eval_every=_rounds_between_scores(spec, experiment.rounds),
                boundary=experiment.boundary,
                robust=experiment.robust,
                **asdict(experiment.hardware(1)),
            )
            for seed, world in zip(experiment.seeds, worlds, strict=True)
        ]
        for rounds_of_seeds in zip(*runs, strict=True):
            last_round = rounds_of_seeds[0].number
            if rounds_of_seeds[0].scores is None:
                continue
            of_seeds = [_score(finished_round) for finished_round in rounds_of_seeds]
            finite_scores = [score for score in of_seeds if score is not None]
            score = fmean(finite_scores) if len(finite_scores) == len(of_seeds) else math.nan
            if math.isfinite(score):
                curve[str(last_round)] = score
            # Stop where the trial is worse than the bound, or has no score at all.
            bound = bounds.get(last_round)
            reaches_bound = bound is None or sign * score >= sign * bound
            if last_round < experiment.rounds and not reaches_bound:
                state = TRIAL_PRUNED
                break
        for engine in runs:
            engine.close()
    except (SettingError, EngineError) as error:
        return about(TRIAL_FAILED, reason=str(error), seconds=_since(began))
    final_score = curve.get(str(last_round))
    return about(
        state=state if final_score is not None or state == TRIAL_PRUNED else TRIAL_FAILED,
        score=final_score,
        of_seeds=of_seeds,
        curve=curve,
        rounds=last_round,
        seconds=_since(began),
        reason="" if final_score is not None else "no client has a validation score",
    )


def _rounds_between_scores(spec: Spec, rounds: int) -> int:
    """As the user's experiment says; otherwise a trial is scored some times, so that bad ones can be stopped."""
    if "eval_every" in spec:
        return int(spec["eval_every"])
    return max(1, rounds // SCORES_OF_A_TRIAL)


def _score(finished_round: Round) -> float | None:
    """The validation score of a round, which stands in the place of the test score."""
    score = finished_round.mean()
    return score if score is not None and math.isfinite(score) else None


def _since(began: float) -> float:
    return round(time.perf_counter() - began, 2)
