"""Folders of runs: :func:`begin` creates the runs of an experiment, :func:`reopen` finds them again.

A single run is in the folder itself. An experiment of several methods or seeds is a folder with
``experiment.toml`` and one run directory for each method and seed, ``<method>-seed<N>``.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from operator import attrgetter
from pathlib import Path
from typing import Any

from coterie.boundary import Boundary
from coterie.core import Method, Training
from coterie.core.needs import all_methods
from coterie.data.objective import METRICS
from coterie.data.on_demand import OnDemand
from coterie.data.scenario import OwnWorld
from coterie.data.world import World
from coterie.engines import rounds as inprocess
from coterie.files import Folder, within
from coterie.methods import METHODS
from coterie.methods import made as made_method
from coterie.methods._named import CLASS
from coterie.notebook.progress import tell
from coterie.notebook.tables import count, some
from coterie.records.checksum import sealed_toml
from coterie.records.codec import DamagedError
from coterie.records.record import EXPERIMENT_FILE, RUN_FILE, Record
from coterie.records.store import LOCK_FILE, PART_SUFFIX, SCHEMA_VERSION, write_whole
from coterie.records.text_files import read_recorded, to_toml
from coterie.robust import Robust
from coterie.runs.experiment import (
    DEMO_METHODS,
    Experiment,
    OwnMethodError,
    data_folder,
    make,
    own,
    read,
)
from coterie.runs.facts import digest, same_world
from coterie.runs.run import Run, Runs, recorded_part, secret_entry, unused_of, warn, warn_of
from coterie.settings import SettingError, UserError, brief, in_shell, plain
from coterie.settings.calls import public
from coterie.training.faster_precision import faster_precision
from coterie.training.precision import MEASURED
from coterie.training.trial import trial

_LEFT_BY_KILLED_PROCESS = {LOCK_FILE, RUN_FILE + PART_SUFFIX, EXPERIMENT_FILE + PART_SUFFIX}
"""Files that a process may leave if it is killed before there is anything to resume."""


_SHARED_SETTINGS = (
    "scenario",
    "setup",
    "methods",
    "training",
    "robust",
    "seeds",
    "width",
    "device",
    "precision",
    "engine",
)
"""Settings that must be equal in an experiment's file and in the file of each of its runs.

So must be the boundary, except for its secret.
"""


@public
def begin(
    experiment: Experiment | str | World | Callable[[int], World],
    folder: Path | str,
    methods: Sequence[str | Method[Any]] | str | Method[Any] | None = None,
    **settings: Any,
) -> Runs:
    """Create the runs of an experiment, or of methods over your own world, in a new folder.

    Before any file is written, the world of the first seed is built and each method makes its first
    plan. So a mistake leaves no files.

    Args:
        experiment: The experiment; or a scenario's name, a world, or a function that is called with
            a seed and returns a world. A function that can be imported by its name is recorded by
            this name, so that commands can continue the run. Other functions, and worlds, must be
            passed again, to :func:`reopen`.
        folder: The new folder. If it has the runs of a call with the same settings and data, as
            when a notebook's cell is run twice, these are returned and can be continued, and a line
            on stderr says so. Further methods besides those of the folder are added to it.
        methods: Names of methods, or methods with their settings; FedAvg and auto by default. An
            Experiment has its own.
        **settings: Further fields of :class:`~coterie.runs.experiment.Experiment`, such as
            ``rounds``, ``seeds`` and ``training``.

    Returns:
        The runs, in which no round has been made yet. ``finish()`` makes all rounds; each run has
        ``rounds()`` for a loop.

    Raises:
        UserError: The folder has other runs or files, or a setting is wrong.

    Example:
        Record FedAvg and auto over your own world, then show the report:

        >>> runs = coterie.begin(my_world, "runs/mine", ["fedavg", "auto"], rounds=20)  # doctest: +SKIP
        >>> coterie.write_report(runs.finish(progress=True), "mine.html")  # doctest: +SKIP
    """
    folder = Path(folder)
    if not isinstance(experiment, Experiment):
        experiment = own(experiment, DEMO_METHODS if methods is None else methods, **settings)
    elif settings or methods is not None:
        raise SettingError(
            f"{next(iter(settings), 'methods')} is a setting of the experiment: set it there"
        )
    # A notebook's cell that is run again begins the same runs in the same folder.
    if _has_runs(folder):
        return _again(experiment, folder)
    return begin_new(experiment, folder)


def _again(experiment: Experiment, folder: Path) -> Runs:
    """The runs of a folder that were begun with the same settings and data, as by a notebook's cell that is run twice.

    Raises:
        UserError: A setting or the clients' data are not those that were recorded.
    """
    experiment = replace(experiment, data=data_folder(experiment.data))
    experiment.check_secret()
    recorded_file = within(
        folder, EXPERIMENT_FILE if (folder / EXPERIMENT_FILE).exists() else RUN_FILE
    )
    _check_recorded(recorded_file)
    # Tables alone: nothing that they name is imported.
    recorded_spec = read(recorded_file)
    if experiment.precision == MEASURED:
        # It was measured before the first round.
        experiment = replace(experiment, precision=recorded_spec["precision"])
    # The same settings, methods and data, or the folder is not for these runs.
    given_spec = json.loads(json.dumps(experiment.spec()))
    # A setting that an older record lacks had its default.
    for table_name, defaults in (
        ("training", Training()),
        ("boundary", Boundary()),
        ("robust", Robust()),
    ):
        recorded_spec[table_name] = {
            **json.loads(json.dumps(plain(defaults, without=("secret",)))),
            **recorded_spec[table_name],
        }
    # A class may have moved since, and an older record does not say where it was.
    for tables in (recorded_spec, given_spec):
        tables["methods"] = list(map(_without_places, tables["methods"]))
    # Methods may be added to those of an experiment; its runs stay as they are.
    added_methods: list[Any] = []
    if recorded_file.name == EXPERIMENT_FILE:
        added_methods = _added_methods(recorded_spec["methods"], experiment)
    if added_methods:
        recorded_spec = {**recorded_spec, "methods": given_spec["methods"]}
    difference = _difference(recorded_spec, given_spec)
    if difference:
        compare_hint = ""
        if difference.startswith("the methods"):
            compare_hint = (
                "; to add a method, name those of the folder and the new one, "
                "or use another folder: coterie.compare takes both folders"
            )
        raise UserError(
            f"{folder} has runs with {difference}: choose another folder, or remove this one to begin anew{compare_hint}"
        )
    runs = _runs(experiment, folder)
    for recorded_run in runs if recorded_file.name == EXPERIMENT_FILE else ():
        _check_place(recorded_run, folder, _classes(experiment.methods))
    for seed in experiment.seeds:
        # Only runs that began have recorded their clients and data.
        begun_runs = [
            recorded_run
            for recorded_run in runs
            if recorded_run.seed == seed and recorded_run.record.begun
        ]
        facts_now = begun_runs[0].facts(experiment.world(seed)) if begun_runs else {}
        for recorded_run in begun_runs:
            if not same_world(facts_now, recorded_run.record.description()["world"]):
                raise UserError(
                    f"{folder} has runs of other clients or data: choose another folder, or remove this one"
                )
    if added_methods:
        first_seed = experiment.seeds[0]
        _rehearse(experiment, added_methods, experiment.world(first_seed), first_seed)
        _write_experiment(experiment, folder)
    # One line on stderr says whether the runs are finished or continued.
    num_recorded = 0
    for recorded_run in runs:
        if recorded_run.record.begun:
            num_recorded += len(recorded_run.record.lines())
    state_of_runs = f"continued after {count(num_recorded, 'recorded round')}"
    if all(map(Run.finished, runs)):
        state_of_runs = "finished"
    these_runs = "this run" if len(runs) == 1 else "these runs"
    if added_methods:
        added_names = some([method.name for method in added_methods])
        tell(f"{folder} has runs with the same settings: {state_of_runs}, and {added_names} added")
    else:
        tell(f"{folder} has {these_runs} already, with the same settings: {state_of_runs}")
    return runs


def _added_methods(
    recorded_methods: Sequence[Mapping[str, Any]], experiment: Experiment
) -> list[Any]:
    """The methods of an experiment that its folder does not have yet; empty if it lacks one of the folder's.

    Of two methods of one name the folders are numbered, so such a method cannot be added.
    """
    names = [method.name for method in experiment.methods]
    given_methods = [
        _without_places(table) for table in json.loads(json.dumps(experiment.spec()))["methods"]
    ]
    has_all = all(recorded_method in given_methods for recorded_method in recorded_methods)
    if not has_all or len(set(names)) < len(names):
        return []
    return [
        method
        for method, table in zip(experiment.methods, given_methods, strict=True)
        if table not in recorded_methods
    ]


def _without_places(table: Any) -> Any:
    """A method's table without the places of classes, also in its settings."""
    if not isinstance(table, Mapping):
        return table
    return {key: _without_places(value) for key, value in table.items() if key != CLASS}


def _has_runs(folder: Path) -> bool:
    """Whether a folder has the file of a run or of an experiment."""
    return folder.is_dir() and ((folder / RUN_FILE).exists() or (folder / EXPERIMENT_FILE).exists())


NOT_COMPARED = ("workers", "data", "schema", "secret", "world", "versions", "origin", "address")
"""Keys of a record that do not decide its numbers, or are compared apart from the settings."""


def _difference(
    recorded_table: Mapping[str, Any], given_table: Mapping[str, Any], table_prefix: str = ""
) -> str:
    """The first setting that differs, in words; an empty text if none does."""
    for setting_name in dict.fromkeys((*recorded_table, *given_table)):
        if not table_prefix and setting_name in NOT_COMPARED:
            continue
        recorded_value: Any = recorded_table.get(setting_name)
        given_value: Any = given_table.get(setting_name)
        # Tables are compared setting by setting, and the methods one by one.
        if isinstance(recorded_value, Mapping) and isinstance(given_value, Mapping):
            difference = _difference(recorded_value, given_value, f"{table_prefix}{setting_name}.")
            if difference:
                return difference
            continue
        if setting_name == "methods" and _as_many(recorded_value, given_value):
            for recorded_method, given_method in zip(recorded_value, given_value, strict=True):
                method_name = recorded_method.get("name")
                difference = _difference(recorded_method, given_method, f"{method_name}.")
                if difference:
                    return difference
            continue
        if setting_name == "methods":
            recorded_names, given_names = map(_names_of_methods, (recorded_value, given_value))
            return f"the methods {recorded_names}, and not {given_names}"
        # A message never shows a secret.
        if recorded_value != given_value and "secret" not in setting_name:
            return f"{table_prefix}{setting_name} = {brief(recorded_value)}, and not {brief(given_value)}"
    return ""


def _names_of_methods(method_tables: Any) -> str:
    """The names of some methods, from their tables."""
    return some([str(method_table.get("name")) for method_table in method_tables or ()])


def _as_many(recorded_methods: Any, given_methods: Any) -> bool:
    """Whether both are lists of as many methods, which can be compared one by one."""
    are_lists = isinstance(recorded_methods, list) and isinstance(given_methods, list)
    return are_lists and len(recorded_methods) == len(given_methods)


def begin_new(experiment: Experiment, folder: Path) -> Runs:
    """Create the runs of an experiment in a new folder, see :func:`begin`.

    Args:
        experiment: The experiment.
        folder: The folder, which does not exist or is empty.

    Returns:
        The runs.

    Raises:
        UserError: The folder is not empty, or a setting is wrong.
    """
    given_data = experiment.data
    experiment = replace(experiment, data=data_folder(given_data))
    experiment.check_secret()
    # An empty folder can be used, and so can what a killed process left behind.
    if folder.exists() and (not folder.is_dir() or _names_in(folder) - _LEFT_BY_KILLED_PROCESS):
        resume_hint = ""
        if _has_runs(folder):
            resume_hint = f"; to continue its runs, use coterie resume {in_shell(folder)}"
        raise UserError(f"{folder} exists and is not an empty folder; choose another{resume_hint}")
    # Whatever can fail fails before the first file is written.
    first_seed = experiment.seeds[0]
    world = experiment.world(first_seed)
    _check_listed(world, experiment)
    trial(world, first_seed)
    warn_of(world, depth=5)
    warn(unused_of(experiment, experiment.methods, given_data), depth=5)
    experiment.check_calendar()
    _check_target(experiment.target, world)
    if experiment.precision == MEASURED:
        # The record has what was chosen: a run that continues must not measure again.
        measured = faster_precision(world, first_seed, experiment.device)
        tell(str(measured))
        experiment = replace(experiment, precision=measured.precision)
    _rehearse(experiment, experiment.methods, world, first_seed)
    # Several runs have a folder each, and the experiment in the folder above.
    new_runs = _runs(experiment, folder)
    new_runs[0]._try(world)
    folder.mkdir(parents=True, exist_ok=True)
    if len(new_runs) == 1:
        new_runs[0]._prepare(world)
    else:
        _write_experiment(experiment, folder)
    return new_runs


def _check_target(target: float | None, world: World) -> None:
    """Check that a main metric of Coterie's own can reach the target: none that grows is above 1."""
    name = world.objective.main
    known_metric = METRICS.get(name)
    if target is None or target <= 1 or known_metric is None:
        return
    if world.objective.named[name] is known_metric and known_metric.better == "greater":
        in_percent = f"; write {target / 100:g}" if target <= 100 else ""
        raise SettingError(
            f"Experiment.target {target:g} can never be reached: {name} is at most 1{in_percent}"
        )


MOST_LISTED = 10_000
"""Most clients of a world made on demand whose records list all of them."""


def _check_listed(world: World, experiment: Experiment) -> None:
    """Check that the records of a world whose data are made on demand list few clients."""
    num_listed = min(len(world.clients), experiment.eval_clients or len(world.clients))
    if isinstance(world.clients, OnDemand) and num_listed > MOST_LISTED:
        raise SettingError(
            f"Experiment.eval_clients must be at most {MOST_LISTED:,} with {len(world.clients):,} "
            "clients that are made on demand, such as 1000: records list the clients that are tested"
        )


def _rehearse(experiment: Experiment, methods: Iterable[Any], world: World, seed: int) -> None:
    """Let each method make its first plan, which finds mistakes before a file is written."""
    # The machine and the wire are those of all methods. A large net is made once for each.
    experiment.hardware().check(world)
    wire = inprocess.wire_of(world, seed, experiment.boundary)
    for method in methods:
        inprocess.rehearse(
            method, world, seed, experiment.boundary, robust=experiment.robust, wire=wire
        )


def _write_experiment(experiment: Experiment, folder: Path) -> None:
    """Write the file of an experiment of several runs."""
    experiment_document = {
        "schema": SCHEMA_VERSION,
        **experiment.spec(),
        **secret_entry(experiment),
    }
    write_whole(folder / EXPERIMENT_FILE, sealed_toml(to_toml(experiment_document)))


def _runs(experiment: Experiment, folder: Path) -> Runs:
    """The runs: a single one is in the folder itself, several have a subfolder each."""
    # A single run needs no experiment.toml: its run.toml says everything.
    if len(experiment.methods) == len(experiment.seeds) == 1:
        return Runs((Run(folder, experiment),))
    # Several methods of one name are numbered: cfl-1, cfl-2.
    methods_of_name = Counter(method.name for method in experiment.methods)
    last_number: Counter[str] = Counter()
    folder_runs = []
    for method in experiment.methods:
        # The folder of a run has the method's name and the seed.
        folder_label = method.name
        if methods_of_name[method.name] > 1:
            last_number[method.name] += 1
            folder_label = f"{method.name}-{last_number[method.name]}"
        for seed in experiment.seeds:
            run_experiment = replace(experiment, methods=(method,), seeds=(seed,))
            folder_runs.append(Run(folder / f"{folder_label}-seed{seed}", run_experiment))
    return Runs(folder_runs)


@public
def reopen(
    folder: Folder,
    *,
    trust_code: bool = False,
    secret: int | None = None,
    world: World | Callable[[int], World] | None = None,
    methods: Sequence[Method[Any]] = (),
    address: str | None = None,
) -> Runs:
    """The runs of a run directory or an experiment's folder, finished or not.

    Args:
        folder: The folder. It may come from another person: no code that it names is imported, no
            link in it is followed. A :class:`Run` brings the world that was given in Python, and
            your own methods.
        trust_code: Whether a model, a scenario or a method that it names as
            ``package.module:Name`` may be imported, if the run needs it.
        secret: The boundary's secret, if there was one; None for the environment's COTERIE_SECRET.
            Without it, such a run cannot continue.
        world: The world, or the function that makes it, of a run that began with one.
        methods: Your own methods, with any settings; those of the run are recorded.
        address: The address of the Ray cluster, for a run with engine ray. It is not recorded.

    Returns:
        The runs.

    Raises:
        UserError: The folder is neither a run directory nor an experiment's folder, is of a newer
            Coterie, has been changed or damaged, or has a method of your own that was not given.
    """
    # A run brings its own methods, and the world that was given in Python.
    brings_world = False
    if isinstance(folder, Run):
        methods = (*folder.experiment.methods, *methods)
        if world is None and isinstance(folder.experiment.setup, OwnWorld):
            world = folder.experiment.setup.made
            brings_world = True
    # The arguments are checked before any file is read.
    given_methods: Any = methods
    if isinstance(given_methods, str) or not isinstance(given_methods, Iterable):
        raise SettingError(
            f"methods must be a list of your own methods, got {brief(given_methods)}"
        )
    given_world: Any = world
    if world is not None and not isinstance(given_world, World) and not callable(given_world):
        raise SettingError(
            f"world must be a World, or a function that makes the world of a seed, got {brief(given_world)}"
        )
    # The classes of methods of a user's own; their settings are recorded.
    own_methods_given = list(map(made_method, methods))
    own_methods = _classes(own_methods_given)
    folder = Path(folder)
    for file_name in (EXPERIMENT_FILE, RUN_FILE):
        if not ((folder / file_name).is_file() or (folder / file_name).is_symlink()):
            continue
        recorded_file = within(folder, file_name)
        _check_recorded(recorded_file)
        # The experiment as it was recorded, with what only the caller can give.
        recorded_spec = read(recorded_file, trust_code=trust_code, secret=secret)
        given_names = [method.name for method in own_methods_given]
        _check_methods(recorded_spec, own_methods, given_names, recorded_file)
        experiment = make(recorded_spec, own_methods)
        if secret is not None and (experiment.origin is None or experiment.origin.secret is None):
            raise SettingError(f"{folder} was recorded without a secret: leave out secret")
        if world is not None:
            experiment = _with_world(experiment, world, folder)
        if address is not None:
            experiment = replace(experiment, address=address)
        reopened_runs = _runs(experiment, folder)
        for reopened_run in reopened_runs if file_name == EXPERIMENT_FILE else ():
            # The classes are there now: the files of the runs import nothing.
            _check_place(reopened_run, folder, _classes(experiment.methods))
        if world is not None and not brings_world:
            _check_given_world(world, reopened_runs)
        return reopened_runs
    raise _no_runs(folder)


def _classes(methods: Iterable[Any]) -> dict[str, type[Any]]:
    """Name -> class of methods, and of those that they run."""
    return {
        inner_method.name: type(inner_method)
        for method in methods
        for inner_method in all_methods(method)
    }


def _check_recorded(recorded_file: Path) -> None:
    """Check an ``experiment.toml`` or ``run.toml`` that Coterie has written."""
    if recorded_file.name == EXPERIMENT_FILE:
        read_recorded(recorded_file)
    else:
        Record(recorded_file.parent).description()


def _check_methods(
    recorded_spec: Mapping[str, Any],
    own_methods: Mapping[str, type[Any]],
    given_names: Sequence[str],
    recorded_file: Path,
) -> None:
    """Check that every method of an experiment is known, and every given one is of the experiment."""
    # A recorded method of a user's own that cannot be imported names no class.
    for method_settings in recorded_spec["methods"]:
        method_name = method_settings["name"]
        if CLASS not in method_settings and method_name not in {**METHODS, **own_methods}:
            raise OwnMethodError(
                f"{recorded_file} has the method {method_name!r}, which is not one of Coterie's; if it is yours, use Python: "
                f"coterie.reopen({str(recorded_file.parent)!r}, methods=[...])"
            )
    # A method that is given for nothing was meant to be run.
    recorded_names = [method_settings["name"] for method_settings in recorded_spec["methods"]]
    for method_name in given_names:
        if method_name not in recorded_names:
            raise UserError(
                f"{recorded_file.parent} has no run of the method {method_name!r} (it has {some(recorded_names)}): "
                "begin it in another folder; reports and comparisons take both"
            )


def _names_in(folder: Path) -> set[str]:
    """The names of all files in a folder."""
    return set(map(attrgetter("name"), folder.iterdir()))


def _no_runs(folder: Path) -> UserError:
    """The error for a folder without runs."""
    if not folder.exists():
        return UserError(f"{folder} does not exist")
    start_hint = ""
    file_names = _names_in(folder) if folder.is_dir() else set()
    if file_names and file_names <= _LEFT_BY_KILLED_PROCESS:
        start_hint = (
            f"; it was stopped before it started: to start it there, use coterie run --out {folder}"
        )
    return UserError(
        f"{folder} is not a run directory: it has neither {RUN_FILE} nor {EXPERIMENT_FILE}{start_hint}"
    )


def _check_place(run: Run, folder: Path, own_methods: Mapping[str, type[Any]]) -> None:
    """Raise :class:`~coterie.settings.UserError` if a run of an experiment is at another place, or is a different run."""
    # A link at the place of a run could lead to the run of another experiment.
    within(folder, run.folder.name)
    if not run.record.begun:
        return
    run.record.description()
    # The run's own file must have the settings that the experiment gives to it.
    recorded_experiment = make(read(run.folder / RUN_FILE), own_methods)
    # No file has the secret, so boundaries are compared without it.
    recorded_boundary = replace(recorded_experiment.boundary, secret=None)
    same_boundary = recorded_boundary == replace(run.experiment.boundary, secret=None)
    same_settings = all(
        getattr(recorded_experiment, setting_name) == getattr(run.experiment, setting_name)
        for setting_name in _SHARED_SETTINGS
    )
    if not (same_boundary and same_settings):
        raise DamagedError(
            f"{run.folder} does not have the run that {folder / EXPERIMENT_FILE} describes"
        )


def _with_world(
    experiment: Experiment, world: World | Callable[[int], World], folder: Path
) -> Experiment:
    """The experiment of a folder with the world that it began with; its data are checked when a run continues."""
    # With another world, the rounds to come would not be of the same run.
    if not isinstance(experiment.setup, OwnWorld):
        raise UserError(
            f"{folder} was recorded with the scenario {experiment.scenario}: leave out world"
        )
    return replace(experiment, setup=replace(experiment.setup, made=world))


def _check_given_world(world: World | Callable[[int], World], runs: Runs) -> None:
    """Check that a world that the caller gave is that of the runs which began.

    Unfinished runs compare all data when they continue. Finished ones never would: what was given
    for them is compared here.

    Raises:
        UserError: It has other clients or data.
    """
    finished_runs = [
        begun_run for begun_run in runs if begun_run.record.begun and begun_run.finished()
    ]
    # A function makes the world of each seed; the first one tells.
    if not isinstance(world, World):
        if not finished_runs:
            return
        world = finished_runs[0].experiment.world(finished_runs[0].seed)
        runs = Runs(finished_runs[:1])
    _check_clients(world, runs)
    for finished_run in finished_runs[:1]:
        recorded_digest = finished_run.record.description()["world"].get("data")
        experiment = finished_run.experiment
        recorded_world = recorded_part(world, experiment.eval_clients, finished_run.seed)
        if recorded_digest not in (None, digest(recorded_world)):
            raise UserError(
                f"the world has other data than {finished_run.folder}, which is finished: "
                "begin a new run with them"
            )


def _check_clients(world: World, runs: Runs) -> None:
    """Check that a world has the clients of the runs that began, which it was given to continue.

    Raises:
        UserError: It has other clients, such as one more.
    """
    names = list(map(world.name, sorted(world.clients)))
    for begun_run in runs:
        if not begun_run.record.begun:
            continue
        recorded = begun_run.record.description()["world"]
        if "all_clients" in recorded:
            # The record lists some of them, so their number must do.
            if recorded["all_clients"] != len(world.clients):
                raise UserError(
                    f"the world has {len(world.clients):,} clients, and {begun_run.folder} has "
                    f"{recorded['all_clients']:,}: a run keeps its clients; begin a new one with others"
                )
            continue
        recorded_names = list(recorded.get("names") or map(str, recorded["clients"]))
        further = [name for name in names if name not in recorded_names]
        missing = [name for name in recorded_names if name not in names]
        if further or missing:
            difference = (
                f"does not have {some(further)}" if further else f"has also {some(missing)}"
            )
            raise UserError(
                f"the world has other clients than {begun_run.folder}, which {difference}: "
                "a run keeps its clients; begin a new one with others"
            )
