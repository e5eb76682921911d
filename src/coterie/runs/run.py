"""Runs: a method over a scenario as a generator of rounds, and whole experiments in folders that can be resumed.

A run has its own directory. An experiment of several methods or seeds is a folder with
``experiment.toml`` and one run directory for each method and seed, ``<method>-seed<N>``.
"""

from __future__ import annotations

import hashlib
import json
import warnings
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from coterie.boundary import Boundary, known_by
from coterie.core import Method, Position, Round, Training
from coterie.data.batches import Batch, Items, tensors
from coterie.data.cautions import cautions
from coterie.data.constant import constant
from coterie.data.objective import METRICS, mean_probability
from coterie.data.scenario import OwnWorld, Scenario, find
from coterie.data.shared_tests import times_tested
from coterie.data.target_scale import recorded
from coterie.data.world import Split, World
from coterie.engines import rounds as inprocess
from coterie.engines.workers import EngineError
from coterie.files import Folder, within
from coterie.methods import METHODS
from coterie.methods import made as made_method
from coterie.models import nets
from coterie.notebook.progress import followed, tell
from coterie.notebook.tables import by_group, count, frame, some, table
from coterie.printable import printable
from coterie.records.checksum import sealed_toml
from coterie.records.codec import DamagedError, from_stored
from coterie.records.record import RUN, Line, Record, read_recorded, to_toml
from coterie.records.record import versions as versions
from coterie.records.shown import Shown, ends, mean_of, shown_as, spread
from coterie.records.store import LOCK, PART, SCHEMA, held, write_whole
from coterie.robust import Robust
from coterie.runs.experiment import (
    DEMO_METHODS,
    ENGINES,
    EXPERIMENT,
    Experiment,
    data_folder,
    make,
    own,
    read,
)
from coterie.settings import SettingError, UserError, brief, table_of
from coterie.settings.calls import public
from coterie.training.trial import trial

_LEFT_BY_KILLED_PROCESS = {LOCK, RUN + PART, EXPERIMENT + PART}
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
def run(
    method: str | Method[Any],
    scenario: str | Scenario | World | Callable[[int], World],
    *,
    rounds: int,
    seed: int = 0,
    workers: int | None = None,
    width: int | None = None,
    device: str = "cpu",
    precision: str = "fp32",
    data: str | Path | None = None,
    training: Training | Mapping[str, Any] | None = None,
    eval_every: int = 1,
    start: Position | None = None,
    boundary: Boundary | Mapping[str, Any] | None = None,
    robust: Robust | Mapping[str, Any] | None = None,
    progress: bool = False,
) -> Iterator[Round]:
    """Run a method over a scenario.

    No file is written. To stop early, use ``break``.

    Args:
        method: A name of :data:`coterie.METHODS`, or a method with its settings.
        scenario: A name of :data:`coterie.SCENARIOS`, a scenario, your own world, or a function
            that makes the world of a seed.
        rounds: Communication rounds, at least 1.
        seed: Seed of all random numbers, at least 0.
        workers: Processes that train, see :class:`~coterie.engines.workers.Hardware`.
        width: Clients trained in one block, see :class:`~coterie.engines.workers.Hardware`.
        device: The device that trains, see :class:`~coterie.engines.workers.Hardware`.
        precision: The number format, see :class:`~coterie.engines.workers.Hardware`.
        data: Folder of the data set's files.
        training: Local training settings in place of the scenario's, or a table of changes to
            these.
        eval_every: Rounds between tests, at least 1.
        start: The ``position`` of an earlier round, from which the run continues.
        boundary: Changes that are made to updates on their way to the server, or a table of their
            settings.
        robust: Bounds on the influence of one client on the others, or a table of their settings.
        progress: Whether to show the progress: a bar if tqdm is installed, otherwise a line per
            round on stderr.

    Yields:
        Each communication round when it ends.

    Raises:
        UserError: An argument is wrong. It is raised before the first round.
    """
    _check_least("rounds", rounds, 1)
    _check_least("seed", seed, 0)
    _check_least("eval_every", eval_every, 1)
    if start is not None and not isinstance(start, Position):
        raise SettingError(
            f"start must be the position of an earlier round, such as round.position, got {start!r:.60}"
        )
    # The method and the world as objects; the training of the world may be changed.
    chosen_method: Method[Any] = made_method(method)
    world = _setup_of(scenario).build(seed, data_folder(data))
    if training is not None:
        world = replace(world, training=table_of("training", training, world.training))
    # A run that continues has been tried, and warned of, before its first round.
    if start is None:
        trial(world, seed)
        warn_of(world, depth=4)
    # The engine is a generator: no round is made before the caller asks for one.
    rounds_made = inprocess.rounds(
        chosen_method,
        world,
        rounds=rounds,
        seed=seed,
        workers=workers,
        width=width,
        device=device,
        precision=precision,
        eval_every=eval_every,
        start=start,
        boundary=None if boundary is None else table_of("boundary", boundary, Boundary()),
        robust=None if robust is None else table_of("robust", robust, Robust()),
    )
    return followed(rounds_made, chosen_method.name, rounds) if progress else rounds_made


def _check_least(name: str, value: Any, least: int) -> None:
    """Check that an argument is an integer of at least ``least``."""
    if not isinstance(value, int) or value < least:
        raise SettingError(f"{name} must be an integer >= {least}, got {value!r}")


def _setup_of(scenario: Any) -> Scenario | OwnWorld:
    """The scenario that an argument of :func:`run` stands for."""
    if isinstance(scenario, str):
        return find(scenario)
    if isinstance(scenario, Scenario | OwnWorld):
        return scenario
    if isinstance(scenario, World) or callable(scenario):
        return OwnWorld.of(scenario)
    accepted = (
        "a scenario's name, a Scenario, a World, or a function that makes the world of a seed"
    )
    raise SettingError(f"scenario must be {accepted}, got {brief(scenario)}")


@public
@dataclass(frozen=True)
class Run:
    """One method with one seed.

    Attributes:
        folder: The run directory.
        experiment: The experiment of this one method and this one seed.
    """

    folder: Path
    experiment: Experiment

    def __fspath__(self) -> str:
        return str(self.folder)

    def __repr__(self) -> str:
        return f"<Run {self.name}, {count(self.experiment.rounds, 'round')}, in {printable(str(self.folder))}>"

    def _repr_html_(self) -> str:
        title = f"{self.name}, {self.folder}"
        try:
            lines = self.record.shown()[1] if self.record.begun else []
        except UserError as error:
            # A notebook shows a damaged run all the same.
            return table(f"{title}: {error}", [])
        if not lines:
            return table(f"{title}: no round has been made yet", [])
        last_line = lines[-1]
        tested = next((line for line in reversed(lines) if line["tested"]), None)
        # The groups of the last round, with the scores of the last tested one.
        metric = shown_as(last_line).main
        table_rows = by_group(
            last_line["groups"],
            metric,
            lambda group: None if tested is None else mean_of(tested, group, metric),
        )
        score = "" if tested is None else f", {metric} {spread(tested)['mean']:.3f}"
        return table(
            f"{title}: round {last_line['round']} of {self.experiment.rounds}{score}", table_rows
        )

    @property
    def name(self) -> str:
        """Its method and its seed, in words."""
        return f"{self.method.name} seed {self.seed}"

    @property
    def record(self) -> Record:
        """The files of the run."""
        return Record(self.folder)

    @property
    def method(self) -> Any:
        """The method with its settings."""
        return self.experiment.methods[0]

    @property
    def seed(self) -> int:
        """The seed of the run."""
        return self.experiment.seeds[0]

    def finished(self) -> bool:
        """Whether the last round (or the round that reached the target) is recorded, and its checkpoint can be read."""
        lines = self.record.lines()
        if (
            not lines
            or not self._last(lines[-1])
            or lines[-1]["round"] not in self.record.checkpoints.rounds()
        ):
            return False
        try:
            self.record.checkpoints.check(lines[-1]["round"], self.record.identity())
        except DamagedError:
            # The round is made again, from the checkpoint before.
            return False
        return True

    def to_pandas(self) -> Any:
        """Return the recorded rounds as a pandas data frame.

        Returns:
            One row per round and client: round, client, group, and loss and metrics, which only
            tested rounds have. If there are hostile clients, ``adversary`` marks them.

        Raises:
            UserError: pandas is not installed, no round has begun, or the records are damaged.
        """
        return frame(self._rows())

    def _rows(self) -> Iterator[dict[str, Any]]:
        for shown_line in self.record.shown()[1]:
            client_id = shown_as(shown_line).key
            for client, entry in shown_line["clients"].items():
                yield {"round": shown_line["round"], "client": client_id(client), **entry}

    def rounds(self, workers: int | None = None, progress: bool = False) -> Iterator[Round]:
        """Start or resume the run.

        Args:
            workers: Processes that train; None for the experiment's number.
            progress: Whether to show the progress, see :func:`coterie.run`.

        Yields:
            Each round that was missing, after it is recorded.

        Raises:
            BusyError: Another process writes this run.
            UserError: The run cannot be resumed: a file is damaged or of a newer Coterie, the data
                have changed, or code or a secret is needed and was not given.
        """
        rounds_made = self._rounds(workers)
        return followed(rounds_made, self.name, self.experiment.rounds) if progress else rounds_made

    def _rounds(self, workers: int | None) -> Generator[Round, None, None]:
        if self.finished():
            # The process may have been killed before it removed older checkpoints.
            self.record.checkpoints.prune(self.experiment.checkpoints_kept)
            return
        self.experiment.check_secret()
        world = self.experiment.world(self.seed)
        self.folder.mkdir(parents=True, exist_ok=True)
        with held(self.folder):
            # One object for all rounds, which reads ``run.toml`` once.
            record = self.record
            start = self._prepare(world)
            # Another process may have finished the run before this one had the lock.
            if self.finished():
                return
            with closing(self._engine(world, start, workers)) as engine:  # type: ignore[type-var]
                for round in self._checked_start(engine, start):
                    is_last = self._store(record, round)
                    yield round
                    if is_last:
                        return

    def _engine(self, world: World, start: Position | None, workers: int | None) -> Iterator[Round]:
        """The rounds that are missing."""
        experiment = self.experiment
        common: dict[str, Any] = {
            "rounds": experiment.rounds,
            "seed": self.seed,
            "eval_every": experiment.eval_every,
            "start": start,
            "boundary": experiment.boundary,
            "robust": experiment.robust,
        }
        # Flower simulates on this machine, with its own processes for the clients.
        if experiment.engine == "flower":
            if world.drift is not None:
                raise SettingError(
                    "a world whose data drift needs engine inprocess, got flower, whose clients keep their data"
                )
            # Flower is an extra, which only this engine needs.
            from coterie.engines.flower import simulation

            # Each client's process makes the world from the experiment's tables.
            maker = partial(world_of, json.dumps(experiment.spec()), self.seed)
            return simulation.rounds(
                self.method, maker, workers=workers or experiment.workers, **common
            )
        # The engine of an extension gets the world, and a function that makes it elsewhere.
        if experiment.engine != "inprocess":
            return ENGINES.find(experiment.engine).rounds(
                experiment,
                self.method,
                world,
                self._elsewhere(world),
                seed=self.seed,
                start=start,
                workers=workers,
            )
        return inprocess.rounds(
            self.method, world, **common, **asdict(experiment.hardware(workers))
        )

    def _elsewhere(self, world: World) -> Callable[[], World]:
        """A function that makes the world on other machines, which have no object of this process."""
        return partial(same_world_of, json.dumps(self.experiment.spec()), self.seed, digest(world))

    def _try(self, world: World) -> None:
        """Let the engine of an extension try what can fail before a file is written."""
        experiment = self.experiment
        if experiment.engine not in ("inprocess", "flower"):
            maker = self._elsewhere(world)
            ENGINES.find(experiment.engine).prepare(experiment, self.seed, maker)

    def _checked_start(self, engine: Iterator[Round], start: Position | None) -> Iterator[Round]:
        """The engine's rounds; an error in the first one means that the checkpoint at the start is damaged."""
        if start is not None:
            # The first round uses every part of the checkpoint, so that damage shows here.
            with from_stored(self.record.checkpoints.path(start.round), but=(EngineError,)):
                first = next(engine, None)
            if first is not None:
                yield first
        yield from engine

    def _prepare(self, world: World) -> Position | None:
        """Write ``run.toml``, or check it and remove the records after the checkpoint."""
        record = self.record
        facts = world_facts(world)
        # A new run is described; one that goes on must have the same clients and data.
        if not record.begun:
            known_secret = self.experiment.origin and self.experiment.origin.secret
            secret = {"secret": known_secret} if known_secret else _secret_of(self.experiment)
            record.describe(
                {**self.experiment.spec(), **secret, "world": facts, "versions": versions()}
            )
        elif not same_world(facts, record.description()["world"]):
            raise UserError(
                f"{self.folder} cannot be resumed: the scenario's clients or data have changed"
            )
        # Rounds after the newest checkpoint are made again.
        try:
            stored = record.go_on(Position, self.experiment.checkpoint_every)
        except DamagedError as error:
            raise DamagedError(
                f"{error}; to repeat the run, use coterie run {self.folder / RUN} --out DIR"
            ) from error
        return stored[1] if stored else None

    def _store(self, record: Record, round: Round) -> bool:
        """Record a round, store its checkpoint if one is due, and return whether the run ends here."""
        # The line before the checkpoint: a killed process leaves at most lines that are made again.
        is_last = self._last(record.keep(round))
        if is_last or round.number % self.experiment.checkpoint_every == 0:
            record.store(round.number, round.position, self.experiment.checkpoints_kept)
        return is_last

    def _last(self, recorded: Line) -> bool:
        # The target is a value of the main metric, by which people read the line.
        if self.experiment.target is not None:
            recorded = Shown.of(self.record.description()["world"]).line(recorded)
        return ends(recorded, self.experiment.rounds, self.experiment.target)


@public
class Runs(tuple[Run, ...]):
    """The runs of a folder."""

    __slots__ = ()

    def finish(self, workers: int | None = None, progress: bool = False) -> Runs:
        """Make all rounds that are missing, one run after the other.

        Args:
            workers: Processes that train; None for the experiment's number.
            progress: Whether to show the progress, see :func:`coterie.run`.

        Returns:
            These runs.

        Raises:
            UserError: As :meth:`coterie.Run.rounds`.
        """
        for run in self:
            for _ in run.rounds(workers, progress):
                pass
        return self

    def to_pandas(self) -> Any:
        """Return the data frames of all runs as one, with the name of the run's folder in the first column, ``run``.

        Raises:
            UserError: As :meth:`coterie.Run.to_pandas`.
        """
        return frame({"run": run.folder.name, **row} for run in self for row in run._rows())

    def __repr__(self) -> str:
        return f"<{count(len(self), 'run')}: {some([run.name for run in self])}>"

    def _repr_html_(self) -> str:
        return "".join(run._repr_html_() for run in self)


def _secret_of(experiment: Experiment) -> dict[str, str]:
    """The entry of a record about a boundary's secret."""
    secret = experiment.boundary.secret
    return {} if secret is None else {"secret": known_by(secret)}


def world_of(spec: str, seed: int) -> World:
    """The world of an experiment, for processes that build their own.

    Args:
        spec: The experiment's tables, as JSON.
        seed: The seed of the world.

    Returns:
        The scenario's clients and data.
    """
    return make(json.loads(spec)).world(seed)


def same_world_of(spec: str, seed: int, expected: str) -> World:
    """The world of an experiment on another machine, where its data must be the same.

    Args:
        spec: The experiment's tables, as JSON.
        seed: The seed of the world.
        expected: The digest of the data, see :func:`digest`.

    Returns:
        The scenario's clients and data.

    Raises:
        UserError: The data are not the same.
    """
    world = world_of(spec, seed)
    if digest(world) != expected:
        raise UserError("its clients or data are not those of the machine where the run began")
    return world


def world_facts(world: World) -> dict[str, Any]:
    """The entries of ``run.toml`` about a world.

    Args:
        world: The clients and their data.

    Returns:
        The client ids, the sizes of their training and test sets in that order, a digest of all
        data, and where they apply: the numbers of the subjects of their test sets, the names of the
        clients in that order, a main metric other than the accuracy, the true groups, who has which
        concept in each time step of a drift (a row per time step, in the order of the clients), the
        hostile clients, a description from which a net like the clients' can be made, and facts
        about the data (the names of features and classes, the constants of a standardization).
        Sizes are those of the first time step. For the verdict: how many clients test each example,
        what a constant prediction scores, and what the data warn of.
    """
    # Who the clients are, how much data they have, and a digest of it.
    clients = sorted(world.clients)
    facts: dict[str, Any] = {
        "clients": clients,
        "examples": [len(world.clients[client].train) for client in clients],
        "tests": [len(world.clients[client].test) for client in clients],
        "data": digest(world),
    }
    if any(world.clients[client].test.subjects is not None for client in clients):
        facts["test_subjects"] = [world.clients[client].test.independent for client in clients]
    # What readers cannot derive is recorded only where it applies.
    names = world.client_names
    if names:
        facts["names"] = [names[client] for client in clients]
    # Readers assume the accuracy, and the mean of probabilities in an ensemble.
    if (world.objective.main, world.objective.better) != (Shown.main, Shown.better):
        facts["metric"] = {"main": world.objective.main, "better": world.objective.better}
    if world.objective.target_scale is not None:
        facts["target_scale"] = recorded(world.objective.target_scale)
    facts |= _facts_of_tests(world, clients)
    combine = getattr(world.objective.combine, "__name__", "custom")
    if combine != mean_probability.__name__:
        facts["combine"] = combine
    if world.truth is not None:
        facts["true_groups"] = [list(group) for group in world.truth]
    if world.drift is not None:
        # A row for each time step, in the order of the clients.
        concepts_by_step = [
            [time_step[client] for client in clients] for time_step in world.drift.concepts
        ]
        facts["drift"] = {"period": world.drift.period, "concepts": concepts_by_step}
    if world.attacks:
        facts["adversaries"] = sorted(world.attacks)
    model = nets.described(world.model)
    if model is not None:
        facts["model"] = model
    if world.about:
        facts["about"] = dict(world.about)
    return facts


DERIVED_FACTS = ("constant", "testers", "cautions", "averages_shares")
"""Facts about a world that follow from its data, and are for the verdict."""


def _facts_of_tests(world: World, clients: Sequence[int]) -> dict[str, Any]:
    """What a verdict needs to know about the clients' tests, see :data:`DERIVED_FACTS`."""
    # How many clients test an example; 1 for the examples of a hostile client.
    test_counts = times_tested(world)
    facts: dict[str, Any] = {
        "testers": [round(test_counts.get(client, 1.0), 6) for client in clients]
    }
    # What a constant prediction scores, for comparison with the models.
    reference = constant(world)
    if reference is not None:
        facts["constant"] = {
            "predicts": reference.predicts,
            "values": [round(reference.values[client], 6) for client in clients],
            "own": [round(reference.own[client], 6) for client in clients],
        }
        if reference.sums:
            facts["constant"]["sums"] = [
                _as_lists(reference.sums.get(client, {})) for client in clients
            ]
    main_metric_name = world.objective.main
    main_metric = world.objective.named[main_metric_name]
    # Of Coterie's own metrics, readers know it.
    if main_metric is not METRICS.get(main_metric_name):
        facts["averages_shares"] = main_metric.averages_shares
    warnings_of_data = cautions(world)
    if warnings_of_data:
        facts["cautions"] = warnings_of_data
    return facts


def _as_lists(sums: Mapping[str, Iterable[float]]) -> dict[str, list[float]]:
    """The sums of a metric's errors, with their numbers as lists."""
    return {sum_name: list(numbers) for sum_name, numbers in sums.items()}


def same_world(facts: Mapping[str, Any], recorded: Mapping[str, Any]) -> bool:
    """Whether these facts are those that a run has recorded.

    :data:`DERIVED_FACTS` are not compared: they follow from the data, whose digest is compared,
    and may differ in the last digit between versions of PyTorch.
    """
    compared_facts = (facts.keys() | recorded.keys()) - set(DERIVED_FACTS)
    return all(
        fact in facts and fact in recorded and facts[fact] == recorded[fact]
        for fact in compared_facts
    )


def digest(world: World) -> str:
    """A hash of the examples and targets of all clients; a pool that clients share is read once.

    Of a data set that is read item by item, 16 items of each split are hashed, evenly
    spaced. If an item is not the same when it is read again, as with random augmentation, only the
    numbers of items are.
    """
    # Time steps, clients and splits in a fixed order: equal worlds have equal digests.
    state = hashlib.blake2b(digest_size=16)
    hashed_pools: set[int] = set()
    for clients in world.steps:
        for client in sorted(clients):
            data = clients[client]
            for split in (data.train, data.validation, data.test):
                for tensor in tensors(_hashed_parts(split, hashed_pools)):
                    state.update(tensor.contiguous().numpy())
    return state.hexdigest()


def _hashed_parts(split: Split, hashed_pools: set[int]) -> tuple[Any, ...]:
    """The parts of a split that are hashed, without a pool that was hashed before, and notes its pool as hashed."""
    is_new = id(split.inputs) not in hashed_pools
    hashed_pools.add(id(split.inputs))
    parts: list[Any] = []
    if isinstance(split.inputs, Items):
        parts += [_probed(split), split.index]
    else:
        parts += [split.inputs] if is_new else []
        parts += [split.index, split.targets]
    parts += [values for values in (split.subjects, split.spans) if values is not None]
    return tuple(parts)


MAX_PROBED_ITEMS = 16
"""Items of a split that are hashed, of a data set that is read item by item."""


def _probed(split: Split) -> list[Batch]:
    """Some items of a split, each as a batch of one; none if an item is not the same when it is read again."""
    if len(split) == 0:
        return []
    last_item = len(split) - 1
    # Evenly spaced items; the first one is read twice.
    positions = torch.linspace(0, last_item, min(MAX_PROBED_ITEMS, len(split))).long()
    first_read = split.batch(positions[:1])
    second_read = split.batch(positions[:1])
    is_same = all(
        torch.equal(tensor, tensor_again)
        for tensor, tensor_again in zip(tensors(first_read), tensors(second_read), strict=True)
    )
    if not is_same:
        return []
    return [split.batch(positions[i : i + 1]) for i in range(len(positions))]


def changed_versions(run: Run) -> list[str]:
    """One sentence for each package whose version is different now from the start of the run."""
    if not run.record.begun:
        return []
    # A package that the record does not have yet counts as unchanged.
    versions_then = run.record.description()["versions"]
    sentences = []
    for package, version_now in versions().items():
        version_then = versions_then.get(package, version_now)
        if version_then != version_now:
            sentences.append(f"the run began with {package} {version_then}, this is {version_now}")
    return sentences


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
            on stderr says so.
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
    if folder.is_dir() and any((folder / file_name).exists() for file_name in (RUN, EXPERIMENT)):
        return _again(experiment, folder)
    return begin_new(experiment, folder)


def _again(experiment: Experiment, folder: Path) -> Runs:
    """The runs of a folder that were begun with the same settings and data, as by a notebook's cell that is run twice.

    Raises:
        UserError: A setting or the clients' data are not those that were recorded.
    """
    experiment = replace(experiment, data=data_folder(experiment.data))
    experiment.check_secret()
    recorded_file = within(folder, EXPERIMENT if (folder / EXPERIMENT).exists() else RUN)
    _check_recorded(recorded_file)
    # Tables alone: nothing that they name is imported.
    recorded_spec = read(recorded_file)
    # The same settings, methods and data, or the folder is not for these runs.
    difference = _difference(recorded_spec, json.loads(json.dumps(experiment.spec())))
    if difference:
        raise UserError(
            f"{folder} has runs with {difference}: choose another folder, or remove this one to begin anew"
        )
    runs = _runs(experiment, folder)
    for recorded_run in runs if recorded_file.name == EXPERIMENT else ():
        _check_place(
            recorded_run, folder, {method.name: type(method) for method in experiment.methods}
        )
    for seed in experiment.seeds:
        # Only runs that began have recorded their clients and data.
        begun = [
            recorded_run
            for recorded_run in runs
            if recorded_run.seed == seed and recorded_run.record.begun
        ]
        facts = world_facts(experiment.world(seed)) if begun else {}
        for recorded_run in begun:
            if not same_world(facts, recorded_run.record.description()["world"]):
                raise UserError(
                    f"{folder} has runs of other clients or data: choose another folder, or remove this one"
                )
    # One line on stderr says whether the runs are finished or continued.
    rounds = sum(
        len(recorded_run.record.lines()) for recorded_run in runs if recorded_run.record.begun
    )
    state_of_runs = (
        "finished"
        if all(recorded_run.finished() for recorded_run in runs)
        else f"continued after {count(rounds, 'recorded round')}"
    )
    tell(
        f"{folder} has {'this run' if len(runs) == 1 else 'these runs'} already, with the same settings: {state_of_runs}"
    )
    return runs


NOT_COMPARED = ("workers", "data", "schema", "secret", "world", "versions", "origin", "address")
"""Keys of a record that do not decide its numbers, or are compared apart from the settings."""


def _difference(recorded: Mapping[str, Any], given: Mapping[str, Any], table: str = "") -> str:
    """The first setting that differs, in words; an empty text if none does."""
    for name in dict.fromkeys((*recorded, *given)):
        if not table and name in NOT_COMPARED:
            continue
        recorded_value: Any = recorded.get(name)
        given_value: Any = given.get(name)
        # Tables are compared setting by setting, and the methods one by one.
        if isinstance(recorded_value, Mapping) and isinstance(given_value, Mapping):
            difference = _difference(recorded_value, given_value, f"{table}{name}.")
            if difference:
                return difference
            continue
        if name == "methods" and _as_many(recorded_value, given_value):
            for recorded_method, given_method in zip(recorded_value, given_value, strict=True):
                method_name = recorded_method.get("name")
                difference = _difference(recorded_method, given_method, f"{method_name}.")
                if difference:
                    return difference
            continue
        # A message never shows a secret.
        if recorded_value != given_value and "secret" not in name:
            return f"{table}{name} = {brief(recorded_value)}, and not {brief(given_value)}"
    return ""


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
    experiment = replace(experiment, data=data_folder(experiment.data))
    experiment.check_secret()
    # An empty folder can be used, and so can what a killed process left behind.
    if folder.exists() and (
        not folder.is_dir() or {entry.name for entry in folder.iterdir()} - _LEFT_BY_KILLED_PROCESS
    ):
        has_runs = folder.is_dir() and any(
            (folder / file_name).exists() for file_name in (RUN, EXPERIMENT)
        )
        resume_hint = f"; to continue its runs, use coterie resume {folder}" if has_runs else ""
        raise UserError(f"{folder} exists and is not an empty folder; choose another{resume_hint}")
    # Whatever can fail fails before the first file is written.
    first_seed = experiment.seeds[0]
    world = experiment.world(first_seed)
    trial(world, first_seed)
    warn_of(world, depth=5)
    experiment.check_calendar()
    for method in experiment.methods:
        inprocess.rehearse(
            method,
            world,
            first_seed,
            experiment.boundary,
            experiment.hardware(),
            experiment.robust,
        )
    # Several runs have a folder each, and the experiment in the folder above.
    new_runs = _runs(experiment, folder)
    new_runs[0]._try(world)
    folder.mkdir(parents=True, exist_ok=True)
    if len(new_runs) == 1:
        new_runs[0]._prepare(world)
    else:
        document = {"schema": SCHEMA, **experiment.spec(), **_secret_of(experiment)}
        write_whole(folder / EXPERIMENT, sealed_toml(to_toml(document)))
    return new_runs


class Caution(UserWarning):
    """A warning about data: a run is possible, but its result may not be what its clients could have."""


def warn_of(world: World, depth: int) -> None:
    """Warn of what :func:`~coterie.data.cautions.cautions` says about a world, one :class:`Caution` for each sentence.

    Args:
        world: The world.
        depth: The number of calls from here to the user's line, which the warning shows.
    """
    for caution in cautions(world):
        warnings.warn(caution, Caution, stacklevel=depth)


def _runs(experiment: Experiment, folder: Path) -> Runs:
    """The runs: a single one is in the folder itself, several have a subfolder each."""
    if len(experiment.methods) == len(experiment.seeds) == 1:
        return Runs((Run(folder, experiment),))
    # Several methods of one name are numbered: cfl-1, cfl-2.
    totals = Counter(method.name for method in experiment.methods)
    numbers: Counter[str] = Counter()
    runs = []
    for method in experiment.methods:
        # The folder of a run has the method's name and the seed.
        label = method.name
        if totals[method.name] > 1:
            numbers[method.name] += 1
            label = f"{method.name}-{numbers[method.name]}"
        for seed in experiment.seeds:
            one_run = replace(experiment, methods=(method,), seeds=(seed,))
            runs.append(Run(folder / f"{label}-seed{seed}", one_run))
    return Runs(runs)


class OwnMethodError(UserError):
    """A run has a method of a user's own, which was not given."""


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
        trust_code: Whether a model or a scenario that it names as ``package.module:Name`` may be
            imported, if the run needs it.
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
    if isinstance(folder, Run):
        methods = (*folder.experiment.methods, *methods)
        if world is None and isinstance(folder.experiment.setup, OwnWorld):
            world = folder.experiment.setup.made
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
    own_methods = {method.name: type(method) for method in map(made_method, methods)}
    folder = Path(folder)
    for file_name in (EXPERIMENT, RUN):
        if not ((folder / file_name).is_file() or (folder / file_name).is_symlink()):
            continue
        recorded_file = within(folder, file_name)
        _check_recorded(recorded_file)
        # The experiment as it was recorded, with what only the caller can give.
        spec = read(recorded_file, trust_code=trust_code, secret=secret)
        _check_methods(spec, own_methods, recorded_file)
        experiment = make(spec, own_methods)
        if world is not None:
            experiment = _with_world(experiment, world, folder)
        if address is not None:
            experiment = replace(experiment, address=address)
        runs = _runs(experiment, folder)
        for run in runs if file_name == EXPERIMENT else ():
            _check_place(run, folder, own_methods)
        return runs
    raise _no_runs(folder)


def _check_recorded(path: Path) -> None:
    """Check an ``experiment.toml`` or ``run.toml`` that Coterie has written."""
    if path.name == EXPERIMENT:
        read_recorded(path)
    else:
        Record(path.parent).description()


def _check_methods(
    spec: Mapping[str, Any], own_methods: Mapping[str, type[Any]], path: Path
) -> None:
    """Check that every method of an experiment is known."""
    for method_settings in spec["methods"]:
        name = method_settings["name"]
        if name not in {**METHODS, **own_methods}:
            raise OwnMethodError(
                f"{path} has the method {name!r}, which is not one of Coterie's; if it is yours, use Python: "
                f"coterie.reopen({str(path.parent)!r}, methods=[...])"
            )


def _no_runs(folder: Path) -> UserError:
    """The error for a folder without runs."""
    if not folder.exists():
        return UserError(f"{folder} does not exist")
    hint = ""
    names = {path.name for path in folder.iterdir()} if folder.is_dir() else set()
    if names and names <= _LEFT_BY_KILLED_PROCESS:
        hint = (
            f"; it was stopped before it started: to start it there, use coterie run --out {folder}"
        )
    return UserError(
        f"{folder} is not a run directory: it has neither {RUN} nor {EXPERIMENT}{hint}"
    )


def _check_place(run: Run, folder: Path, own_methods: Mapping[str, type[Any]]) -> None:
    """Raise :class:`~coterie.settings.UserError` if a run of an experiment is at another place, or is a different run."""
    within(folder, run.folder.name)
    if not run.record.begun:
        return
    run.record.description()
    # The run's own file must have the settings that the experiment gives to it.
    recorded_experiment = make(read(run.folder / RUN), own_methods)
    recorded_boundary = replace(recorded_experiment.boundary, secret=None)
    same_boundary = recorded_boundary == replace(run.experiment.boundary, secret=None)
    same_settings = all(
        getattr(recorded_experiment, setting_name) == getattr(run.experiment, setting_name)
        for setting_name in _SHARED_SETTINGS
    )
    if not (same_boundary and same_settings):
        raise DamagedError(
            f"{run.folder} does not have the run that {folder / EXPERIMENT} describes"
        )


def _with_world(
    experiment: Experiment, world: World | Callable[[int], World], folder: Path
) -> Experiment:
    """The experiment of a folder with the world that it began with; its data are checked when a run continues."""
    if not isinstance(experiment.setup, OwnWorld):
        raise UserError(
            f"{folder} was recorded with the scenario {experiment.scenario}: leave out world"
        )
    return replace(experiment, setup=replace(experiment.setup, made=world))
