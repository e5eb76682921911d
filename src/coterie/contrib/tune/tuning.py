"""A tuning: its trials in batches, their record in a folder, and how it goes on after an interruption."""

from __future__ import annotations

import json
import multiprocessing
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from statistics import median
from typing import Any

import torch

from coterie.contrib.tune import proposing
from coterie.contrib.tune.judging import TRIAL_COMPLETE, Judged, PlannedTrial, judge, world_of
from coterie.contrib.tune.space import (
    Among,
    Between,
    Range,
    Settings,
    Space,
    ends_of,
    given_range,
    given_values,
    grid,
    of_method,
    spaces,
    with_settings,
)
from coterie.data.world import World
from coterie.engines.rounds import rehearse, wire_of
from coterie.engines.workers import default_workers
from coterie.files import read_regular
from coterie.methods._named import CLASS, class_of_table, without_class
from coterie.methods._presets import presets_of
from coterie.records.store import locked, write_whole
from coterie.records.text_files import read_toml, to_json, to_toml
from coterie.runs.experiment import Experiment, Spec, data_folder, make, normal
from coterie.settings import SettingError, UserError
from coterie.settings.calls import public
from coterie.training.trial import trial as try_world

BATCH = 4
"""Trials of a method that are proposed at once, from the trials before."""

MIN_TRIALS_OF_BOUND = 4
"""Trials with a score in a round, from which on others are stopped there."""

MIN_TEST_SEEDS = 5
"""Seeds of the tuned experiment, at least: fewer give wide intervals."""

TUNING_FILE = "tuning.toml"
TRIALS_FILE = "trials.jsonl"

USUAL_SHARE = 0.2
"""The share of the training examples that is set aside."""

USUAL_TRIALS = 20


@dataclass(frozen=True)
class Tuning:
    """What is tuned, and all trials so far.

    Attributes:
        folder: The folder of its record.
        spec: The experiment's tables, with one table for each method.
        spaces: Method -> the values that are searched.
        trials: The number of trials of each method that has something to search; None for a grid.
        share: The share of each client's training examples that gives the validation scores.
        prune: Whether trials that are worse than most before are stopped.
        judged: Method -> its trials, by their numbers.
    """

    folder: Path
    spec: Spec
    spaces: Mapping[str, Space]
    trials: int | None
    share: float
    prune: bool
    judged: Mapping[str, Mapping[int, Judged]] = field(default_factory=dict)

    @property
    def methods(self) -> list[str]:
        """The names of the methods."""
        return list(self.spaces)

    def planned(self, method: str) -> int:
        """The number of trials of a method: one of a method without anything to search."""
        if self.trials is None:
            return len(grid(self.spaces[method]))
        return self.trials if self.spaces[method] else 1

    @property
    def total(self) -> int:
        """The number of trials of all methods."""
        return sum(map(self.planned, self.methods))

    def trials_of(self, method: str) -> list[Judged]:
        """The trials of a method in the order of their numbers."""
        return [judged for _, judged in sorted(self.judged.get(method, {}).items())]

    def best(self, method: str) -> Judged | None:
        """The trial of the best validation score, of equal ones the first; None if none was completed."""
        complete = [trial for trial in self.trials_of(method) if trial.state == TRIAL_COMPLETE]
        sign = 1.0 if self.greater_is_better else -1.0
        return max(complete, key=lambda trial: sign * (trial.score or 0.0), default=None)

    @property
    def greater_is_better(self) -> bool:
        """Whether greater scores are better."""
        experiment = make(self.spec)
        return world_of(experiment, self.share, experiment.seeds[0]).objective.better == "greater"

    @property
    def searches_shared_settings(self) -> bool:
        """Whether a setting is searched that all methods of an experiment have in common, such as the learning rate."""
        for method, space in self.spaces.items():
            spec = of_method(self.spec, method)
            for key, values in space.items():
                for value in ends_of(values):
                    changed = with_settings(spec, {key: value})
                    if {**changed, "methods": []} != {**spec, "methods": []}:
                        return True
        return False

    def tuned_spec(self) -> Spec:
        """The experiment with the best settings of each method, for other seeds: those after the tuned ones.

        Raises:
            UserError: The methods have different settings of something that they share, such as
                the learning rate.
        """
        tuned_specs = [self.tuned_spec_of(method) for method in self.methods]
        tables = [table for spec in tuned_specs for table in spec["methods"]]
        shared = [{**spec, "methods": []} for spec in tuned_specs]
        if any(spec != shared[0] for spec in shared):
            raise UserError("the methods have other tuned settings of what they share")
        return {**shared[0], "methods": tables}

    def tuned_spec_of(self, method: str) -> Spec:
        """The experiment of one method with its best settings."""
        best = self.best(method)
        if best is None:
            raise UserError(f"no trial of {method} was completed")
        spec = with_settings(of_method(self.spec, method), best.settings)
        last_seed = max(spec["seeds"])
        new_seeds = range(last_seed + 1, last_seed + 1 + max(len(spec["seeds"]), MIN_TEST_SEEDS))
        return {**spec, "seeds": list(new_seeds)}


@public
def tune(
    scenario: str | Mapping[str, Any],
    methods: Sequence[str | Mapping[str, Any]] | str,
    folder: Path | str,
    *,
    trials: int | None = None,
    search: Sequence[str] = (),
    validation_share: float = USUAL_SHARE,
    prune: bool = True,
    workers: int | None = None,
    progress: Callable[[], None] = lambda: None,
    **settings: Any,
) -> Tuning:
    """Tune methods by validation scores, with the same number of trials for all; test data are not read.

    A part of each client's training examples is set aside. No trial trains on it, and its scores
    are the mean main metric over clients and seeds after the last round. The first trial of a
    method has the settings as they are given, the second one those of its paper, if it has such.

    Args:
        scenario: The name of a scenario, or a table of its name and settings.
        methods: Names of methods, or tables of a name and settings.
        folder: A new folder for the record, or one of the same tuning, which then goes on.
        trials: Trials of each method; None for 20, or all combinations if ``search`` has lists of
            values only.
        search: What to search: ``KEY=LOW:HIGH`` and ``KEY=A,B,C``, as ``--range`` and ``--set``
            take them. Empty: each method's own settings, between their limits.
        validation_share: The share that is set aside, at most half.
        prune: Whether a trial is stopped where it is worse than the median of those before.
        workers: Trials at the same time; None for one per core. The result does not depend on it.
        progress: Called after each trial.
        **settings: Further entries of an experiment: rounds, seeds, training, ...

    Returns:
        The tuning, with all trials.

    Raises:
        UserError: A setting is wrong, Optuna is needed and not installed, or the folder is of
            something else.
    """
    method_list = [methods] if isinstance(methods, str) else list(methods)
    spec = normal({"scenario": scenario, "methods": method_list, **settings})
    searched = dict(_searched(text) for text in search)
    tuning = new_tuning(spec, Path(folder), searched, trials, validation_share, prune)
    return carry_out(tuning, workers, progress)


def _searched(text: str) -> tuple[str, Any]:
    """The key and the values of one entry of ``search``."""
    return given_values(text) or given_range(text)


def new_tuning(
    spec: Spec,
    folder: Path,
    searched: Space,
    trials: int | None,
    share: float,
    prune: bool,
) -> Tuning:
    """Check a tuning, and read the trials that its folder has.

    Args:
        spec: The experiment's tables.
        folder: The folder of the record.
        searched: What the user asks to search, see :func:`~coterie.contrib.tune.space.spaces`.
        trials: Trials of each method; None for the usual number, or a grid.
        share: The share that is set aside.
        prune: Whether trials are stopped early.

    Raises:
        UserError: A setting is wrong, Optuna is needed and not installed, or the folder is of
            something else.
    """
    if not 0 < share <= 0.5:
        raise SettingError(f"validation_share must be > 0 and <= 0.5, got {share:g}")
    if trials is not None and trials < 1:
        raise SettingError(f"trials must be at least 1, got {trials}")
    spec = _checked_spec(spec)
    is_grid = (
        trials is None and bool(searched) and all(hasattr(v, "values") for v in searched.values())
    )
    if not is_grid:
        proposing.check_installed()
        trials = trials or USUAL_TRIALS
    tuning = Tuning(
        folder=folder,
        spec=spec,
        spaces=spaces(spec, searched),
        trials=None if is_grid else trials,
        share=share,
        prune=prune,
    )
    _check_folder(tuning)
    _try(tuning)
    _check_same_examples(tuning)
    return replace(tuning, judged=_read_trials(tuning))


def reopened(folder: Path, trials: int | None = None) -> Tuning:
    """The tuning of a folder, which goes on.

    Args:
        folder: The folder.
        trials: Trials of each method, no fewer than before; None for as many as were planned.

    Raises:
        UserError: The folder has no tuning.
    """
    if not (folder / TUNING_FILE).is_file():
        raise UserError(f"{folder} is no tuning: it has no {TUNING_FILE}")
    plan = read_toml(folder / TUNING_FILE)
    try:
        searched: dict[str, Range] = {}
        for space in plan["space"].values():
            for key, table in space.items():
                searched[key] = (
                    Among(tuple(table["values"])) if "values" in table else Between(**table)
                )
        share, prune = plan["validation_share"], plan["prune"]
        spec = normal(plan["experiment"])
    except (KeyError, TypeError, AttributeError) as error:
        raise UserError(f"{folder / TUNING_FILE} is damaged: {error}") from error
    # A space of several methods is given as a whole; each takes what it has.
    return new_tuning(spec, folder, searched, trials or plan.get("trials"), share, prune)


def _checked_spec(spec: Spec) -> Spec:
    """The experiment with what its trials depend on, checked."""
    # A class of the user's own is called by its short name, as in a record.
    spec = {**spec, "methods": list(map(_short_name, spec["methods"]))}
    names = [table["name"] for table in spec["methods"]]
    if len(set(names)) < len(names):
        raise SettingError(f"methods must be different, got {', '.join(names)}")
    if "origin" in spec:
        raise UserError("tune takes an experiment file of your own, not the record of a run")
    for key in ("target", "validation_share", "stop_after"):
        if spec.get(key) is not None:
            raise SettingError(f"tune takes no {key}: leave it out")
    if spec.get("engine", "inprocess") != "inprocess":
        raise SettingError(f"tune needs engine inprocess, got {spec['engine']}")
    experiment = make(spec)
    spec = {**spec, "rounds": experiment.rounds, "data": data_folder(experiment.data)}
    return {key: value for key, value in spec.items() if value is not None}


def _short_name(table: Mapping[str, Any]) -> dict[str, Any]:
    """The table of a method with its short name, and with its place if that stood in place of the name."""
    short_name = class_of_table(table).name
    if ":" not in table["name"]:
        return dict(table)
    return {"name": short_name, CLASS: table["name"], **without_class(table)}


def _try(tuning: Tuning) -> None:
    """Check each method in the world before a file is written."""
    experiment = make(tuning.spec)
    seed = experiment.seeds[0]
    world = world_of(experiment, tuning.share, seed)
    if not any(len(data.test) for data in world.clients.values()):
        raise UserError("no client can spare a training example for validation scores")
    try_world(world, seed)
    # The machine and the wire are those of all methods.
    experiment.hardware(1).check(world)
    wire = wire_of(world, seed, experiment.boundary)
    for method in experiment.methods:
        rehearse(method, world, seed, experiment.boundary, robust=experiment.robust, wire=wire)


def _check_same_examples(tuning: Tuning) -> None:
    """Check that values of a scenario's setting do not change the examples by which trials are compared.

    Raises:
        SettingError: They do, as with other clients or another partition.
    """
    seed = make(tuning.spec).seeds[0]
    for method, space in tuning.spaces.items():
        for key, values in space.items():
            tried_values = values.values if isinstance(values, Among) else (values.low, values.high)
            specs = []
            for value in tried_values:
                whole = isinstance(values, Between) and values.whole
                settings = {key: int(value) if whole else value}
                specs.append(with_settings(of_method(tuning.spec, method), settings))
            # Only the scenario's own settings can change examples.
            if all(spec["scenario"] == tuning.spec["scenario"] for spec in specs):
                continue
            labels = []
            for spec in specs:
                # A value may need that of another key, which some trials have.
                with suppress(SettingError):
                    labels.append(_labels(world_of(make(spec), tuning.share, seed)))
            if any(labels_of_value != labels[0] for labels_of_value in labels[1:]):
                raise SettingError(
                    f"{key} changes the validation examples, so scores with {', '.join(map(str, tried_values))} cannot be "
                    "compared: tune settings of methods, of training and of the model, and make one tuning for each of these"
                )


def _labels(world: World) -> list[Any]:
    """The validation examples of each client: their number, and their labels if these are classes."""
    labels_of_clients: list[Any] = []
    for client in sorted(world.clients):
        split = world.clients[client].test
        targets = split.targets
        is_of_classes = isinstance(targets, torch.Tensor) and not targets.is_floating_point()
        labels_of_clients.append([client, len(split), targets.tolist() if is_of_classes else None])
    return labels_of_clients


def _plan(tuning: Tuning) -> dict[str, Any]:
    """What the trials of a tuning depend on, as ``tuning.toml`` records it."""
    described: dict[str, Any] = {}
    for method, space in tuning.spaces.items():
        described[method] = {key: asdict(values) for key, values in space.items()}
    plan: dict[str, Any] = {
        "experiment": tuning.spec,
        "space": described,
        "validation_share": tuning.share,
        "prune": tuning.prune,
        "batch": BATCH,
    }
    if tuning.trials is not None:
        plan["trials"] = tuning.trials
    plain_plan: dict[str, Any] = json.loads(to_json(plan))
    return plain_plan


def _check_folder(tuning: Tuning) -> None:
    """Check that the folder is new, or has a tuning of the same trials; more trials may be added."""
    folder = tuning.folder
    if not folder.exists() or (folder.is_dir() and not any(folder.iterdir())):
        return
    if not (folder / TUNING_FILE).is_file():
        raise UserError(f"{folder} exists and is no tuning: choose another --out")
    earlier = read_toml(folder / TUNING_FILE)
    plan = _plan(tuning)
    for key in plan.keys() | earlier.keys():
        if key != "trials" and earlier.get(key) != plan.get(key):
            raise UserError(
                f"{folder} has a tuning with another {key}: choose another --out, or repeat its command"
            )
    if tuning.trials is not None and earlier.get("trials", 0) > tuning.trials:
        raise UserError(
            f"{folder} has a tuning with {earlier['trials']} trials, got --trials {tuning.trials}"
        )


def _read_trials(tuning: Tuning) -> dict[str, dict[int, Judged]]:
    """The trials that the folder has; a line that was cut short is made again."""
    judged: dict[str, dict[int, Judged]] = {method: {} for method in tuning.methods}
    trials_path = tuning.folder / TRIALS_FILE
    if not trials_path.exists():
        return judged
    lines = read_regular(trials_path).decode(errors="replace").splitlines()
    for number, line in enumerate(lines):
        try:
            trial = Judged(**json.loads(line))
        except (ValueError, TypeError) as error:
            if number == len(lines) - 1:
                continue
            raise UserError(f"{trials_path}, line {number + 1}, is damaged") from error
        if trial.method not in judged:
            raise UserError(f"{trials_path}, line {number + 1}, has another method")
        judged[trial.method][trial.number] = trial
    return judged


def carry_out(
    tuning: Tuning, workers: int | None = None, progress: Callable[[], None] = lambda: None
) -> Tuning:
    """Make the trials that are missing, batch by batch.

    Args:
        tuning: The tuning.
        workers: Trials at the same time; None for one per core.
        progress: Called after each trial.

    Returns:
        The tuning with all trials.
    """
    tuning.folder.mkdir(parents=True, exist_ok=True)
    with locked(tuning.folder), _judges(workers or default_workers()) as judges:
        write_whole(tuning.folder / TUNING_FILE, to_toml(_plan(tuning)).encode())
        _write_trials(tuning)
        judged = {method: dict(trials) for method, trials in tuning.judged.items()}
        tuning = replace(tuning, judged=judged)
        greater_is_better = tuning.greater_is_better
        first_number = 0
        while first_number < max(map(tuning.planned, tuning.methods)):
            jobs = []
            for method in tuning.methods:
                earlier = [t for t in tuning.trials_of(method) if t.number < first_number]
                bounds = _bounds(tuning, earlier, greater_is_better)
                for trial in _batch(tuning, method, earlier, first_number, greater_is_better):
                    if trial.number not in judged[method]:
                        spec = with_settings(of_method(tuning.spec, method), trial.settings)
                        jobs.append((trial, spec, tuning.share, bounds))
            for result in judges(jobs):
                judged[result.method][result.number] = result
                _append(tuning.folder / TRIALS_FILE, result)
                progress()
            first_number += BATCH
    return tuning


Job = tuple[PlannedTrial, Spec, float, Mapping[int, float]]


@contextmanager
def _judges(workers: int) -> Iterator[Callable[[Sequence[Job]], Iterator[Judged]]]:
    """A function that makes trials and yields them in order: in this process, or several at the same time."""
    if workers == 1:
        yield lambda jobs: (judge(*job) for job in jobs)
        return
    context = multiprocessing.get_context("spawn")
    children_before = multiprocessing.active_children()
    executor = ProcessPoolExecutor(workers, context, initializer=_prepare_process)
    try:
        yield lambda jobs: executor.map(judge, *zip(*jobs, strict=True)) if jobs else iter(())
    except BaseException:
        # Nobody waits for trials that are not recorded.
        for child in multiprocessing.active_children():
            if child not in children_before:
                child.terminate()
        raise
    finally:
        executor.shutdown(cancel_futures=True)


def _prepare_process() -> None:
    """Let a process compute on one core, as trials share them, and leave Ctrl-C to the process that waits for it."""
    torch.set_num_threads(1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _batch(
    tuning: Tuning,
    method: str,
    earlier: Sequence[Judged],
    first_number: int,
    greater_is_better: bool,
) -> list[PlannedTrial]:
    """The trials of a method in the batch that begins with a number."""
    space = tuning.spaces[method]
    last_number = min(first_number + BATCH, tuning.planned(method))
    count = last_number - first_number
    if count <= 0:
        return []
    if tuning.trials is None:
        settings_of_batch = list(grid(space))[first_number:last_number]
    else:
        known_settings = _known_settings(tuning, method) if first_number == 0 else []
        settings_of_batch = known_settings[:count]
        missing = count - len(settings_of_batch)
        if missing:
            key = (method, tuning.spec["seeds"], first_number)
            settings_of_batch += proposing.proposed(
                space,
                earlier,
                known_settings,
                missing,
                key,
                greater_is_better,
                _fits(tuning, method),
            )
    return [
        PlannedTrial(method, first_number + position, settings)
        for position, settings in enumerate(settings_of_batch)
    ]


def _fits(tuning: Tuning, method: str) -> Callable[[Mapping[str, Any]], bool]:
    """A function that says whether a method can have some settings together."""

    def fits(settings: Mapping[str, Any]) -> bool:
        try:
            make(with_settings(of_method(tuning.spec, method), settings))
        except SettingError:
            return False
        return True

    return fits


def _known_settings(tuning: Tuning, method: str) -> list[Settings]:
    """The settings of the first trials: as they are given, and those of the method's paper."""
    experiment = make(of_method(tuning.spec, method))
    first_settings: list[Settings] = [_current(experiment, tuning.spaces[method])]
    if not tuning.spaces[method]:
        return [{}]
    paper = presets_of(type(experiment.methods[0])).get("paper")
    if paper is not None:
        of_paper = {f"{method}.{name}": value for name, value in paper.items()}
        of_paper = {key: value for key, value in of_paper.items() if "fraction" not in key}
        if of_paper not in first_settings:
            first_settings.append(of_paper)
    return first_settings


def _current(experiment: Experiment, space: Space) -> dict[str, Any]:
    """The values that an experiment has of the settings that are searched; none for a part of its scenario."""
    tables = {
        experiment.methods[0].name: experiment.methods[0],
        "method": experiment.methods[0],
        "training": experiment.training,
        "boundary": experiment.boundary,
        "robust": experiment.robust,
        "experiment": experiment,
    }
    current = {}
    for key in space:
        table_name, _, name = key.rpartition(".")
        owners = [tables[table_name]] if table_name in tables else []
        if not table_name:
            owners = [experiment.methods[0], experiment.training, experiment]
        for owner in owners:
            value = getattr(owner, name, None)
            if value is not None:
                current[key] = value
                break
    return current


def _bounds(tuning: Tuning, earlier: Sequence[Judged], greater_is_better: bool) -> dict[int, float]:
    """Round -> the median score of earlier trials there, which a trial must reach to go on.

    The median stopping rule of Golovin et al.: Google Vizier. KDD 2017.
    """
    if not tuning.prune:
        return {}
    scores_of_rounds: dict[int, list[float]] = {}
    for judged in earlier:
        for round_text, score in judged.curve.items():
            scores_of_rounds.setdefault(int(round_text), []).append(score)
    bounds = {}
    for number, scores in scores_of_rounds.items():
        # Trials that failed or were stopped have no score there, and are among the worse ones.
        if len(scores) >= MIN_TRIALS_OF_BOUND:
            bounds[number] = median(scores)
    return bounds


def _write_trials(tuning: Tuning) -> None:
    """Write the trials so far, without a line that was cut short."""
    lines = [to_json(asdict(t)) for method in tuning.methods for t in tuning.trials_of(method)]
    text = "".join(f"{line}\n" for line in lines)
    write_whole(tuning.folder / TRIALS_FILE, text.encode())


def _append(trials_path: Path, judged: Judged) -> None:
    with trials_path.open("a", encoding="utf-8") as trials_file:
        trials_file.write(f"{to_json(asdict(judged))}\n")
