"""Runs: a method over a scenario as a generator of rounds, or in a run directory, from which it can be resumed."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from coterie.boundary import Boundary, known_by
from coterie.core import Client, Groups, Method, Position, Round, Training
from coterie.data.augmentation import augmented
from coterie.data.cautions import cautions
from coterie.data.scenario import OwnWorld, Scenario, find
from coterie.data.world import World
from coterie.engines import rounds as inprocess
from coterie.engines.workers import EngineError
from coterie.methods import made as made_method
from coterie.notebook.progress import followed
from coterie.notebook.tables import by_group, count, frame, some, table
from coterie.printable import printable
from coterie.records.codec import DamagedError, from_stored
from coterie.records.ending import Ending
from coterie.records.record import RUN_FILE, Record, versions
from coterie.records.shown import Line, Shown, mean_of, shown_as, spread
from coterie.records.store import locked
from coterie.robust import Robust
from coterie.runs.experiment import ENGINES, Experiment, data_folder, make
from coterie.runs.facts import digest, same_world, world_facts
from coterie.runs.unused_settings import unused_settings
from coterie.settings import PlainWarning, SettingError, UserError, brief, in_shell, table_of
from coterie.settings.calls import public
from coterie.training import set_aside
from coterie.training.faster_precision import faster_precision
from coterie.training.precision import MEASURED
from coterie.training.trial import trial

if TYPE_CHECKING:
    from coterie.runs.placing_waiting import PlacedClients


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
    eval_clients: int | None = None,
    validation_share: float | None = None,
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
        precision: The number format, see :class:`~coterie.engines.workers.Hardware`; or ``"auto"``,
            the faster one, which is measured.
        data: Folder of the data set's files.
        training: Local training settings in place of the scenario's, or a table of changes to
            these.
        eval_every: Rounds between tests, at least 1.
        eval_clients: Clients that are tested, the same random ones in each test; None for all.
        validation_share: Share of each client's training examples that is set aside for validation
            scores, at most half: ``round.mean("validation_accuracy")``. None for none.
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
    if eval_clients is not None:
        _check_least("eval_clients", eval_clients, 1)
    if start is not None and not isinstance(start, Position):
        raise SettingError(
            f"start must be the position of an earlier round, such as round.position, got {start!r:.60}"
        )
    # The settings as objects.
    chosen_method: Method[Any] = made_method(method)
    setup = _setup_of(scenario)
    boundary_settings = None if boundary is None else table_of("boundary", boundary, Boundary())
    robust_settings = None if robust is None else table_of("robust", robust, Robust())
    world = _world_of(setup, seed, data, training, validation_share)
    # A run that continues has been tried, and warned of, before its first round.
    if start is None:
        trial(world, seed)
        warn_of(world, depth=4)
        unused = unused_settings(
            setup,
            [chosen_method],
            rounds,
            training=None if training is None else world.training,
            boundary=boundary_settings,
            robust=robust_settings,
            data=None if data is None else str(data),
        )
        warn(unused, depth=4)
    if precision == MEASURED:
        precision = faster_precision(world, seed, device).precision
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
        eval_clients=eval_clients,
        start=start,
        boundary=boundary_settings,
        robust=robust_settings,
    )
    return followed(rounds_made, chosen_method.name, rounds) if progress else rounds_made


def _world_of(
    setup: Scenario | OwnWorld,
    seed: int,
    data: str | Path | None,
    training: Training | Mapping[str, Any] | None,
    validation_share: float | None,
) -> World:
    """The world of a scenario with the changes that the arguments of :func:`run` make to it."""
    world = setup.build(seed, data_folder(data))
    if training is not None:
        world = replace(world, training=table_of("training", training, world.training))
    world = augmented(world)
    if validation_share is None:
        return world
    if not 0 < validation_share <= 0.5:
        raise SettingError(f"validation_share must be > 0 and <= 0.5, got {validation_share!r}")
    return set_aside(world, validation_share, seed)


def _check_least(argument_name: str, value: Any, smallest_value: int) -> None:
    """Check that an argument is an integer of at least ``smallest_value``."""
    if not isinstance(value, int) or value < smallest_value:
        raise SettingError(f"{argument_name} must be an integer >= {smallest_value}, got {value!r}")


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
            shown_lines = self.record.shown()[1] if self.record.begun else []
        except UserError as error:
            # A notebook shows a damaged run all the same.
            return table(f"{title}: {error}", [])
        if not shown_lines:
            return table(f"{title}: no round has been made yet", [])
        last_line = shown_lines[-1]
        tested_line = next((line for line in reversed(shown_lines) if line["tested"]), None)
        # The groups of the last round, with the scores of the last tested one.
        metric_name = shown_as(last_line).main
        table_rows = by_group(
            last_line["groups"],
            metric_name,
            lambda group: None if tested_line is None else mean_of(tested_line, group, metric_name),
        )
        score_words = (
            "" if tested_line is None else f", {metric_name} {spread(tested_line)['mean']:.3f}"
        )
        return table(
            f"{title}: round {last_line['round']} of {self.experiment.rounds}{score_words}",
            table_rows,
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
        """Whether the last round (or the one after which the run stops early) is recorded, and its checkpoint can be read."""
        if not self.record.begun:
            return False
        _, lines = self.record.shown()
        if not self._ending(lines).ended:
            return False
        # A process may have been killed between the line of the round and its checkpoint.
        last_round = lines[-1]["round"]
        if last_round not in self.record.checkpoints.rounds():
            return False
        try:
            self.record.checkpoints.check(last_round, self.record.identity())
        except DamagedError:
            # The round is made again, from the checkpoint before.
            return False
        return True

    def groups(self) -> Groups:
        """Return the groups of all clients, from the newest checkpoint, also where the records list only some.

        Raises:
            UserError: There is no checkpoint, or it is damaged.
        """
        checkpoint = self.record.stored(Position) if self.record.begun else None
        if checkpoint is None:
            raise UserError(f"{self.folder} has no checkpoint yet, which has the groups")
        with from_stored(self.record.checkpoints.path(checkpoint[0])):
            groups: Groups = self.method.assignment(checkpoint[1].state).groups
        return groups

    def place_waiting(self, *, batch: int = 1000, workers: int | None = None) -> PlacedClients:
        """Place all clients of a run of split-half or auto that wait for a group, a batch after the other.

        Only a batch of updates and, where data are made on demand, of clients is in memory. The
        result does not depend on the batches. The run's folder stays as it is. A client that
        differs from all groups gets one of its own; the clients that wait share the level of this
        test.

        Args:
            batch: Clients that train together, at least 1.
            workers: Processes that train; None for the experiment's number.

        Returns:
            The groups of all clients.

        Raises:
            UserError: The run has no checkpoint, its method does not run split-half, its updates
                are changed on their way, or its data have changed.
        """
        from coterie.runs.placing_waiting import place_waiting

        return place_waiting(self, batch, workers)

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
            for client_key, client_entry in shown_line["clients"].items():
                yield {
                    "round": shown_line["round"],
                    "client": client_id(client_key),
                    **client_entry,
                }

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
            self.record.checkpoints.prune(
                self.experiment.checkpoints_kept,
                best_round=self._kept_best_round(self._ending(self.record.shown()[1])),
            )
            return
        # Whatever is missing or wrong is found before the folder is made.
        self.experiment.check_secret()
        world = self.experiment.world(self.seed)
        self.folder.mkdir(parents=True, exist_ok=True)
        with locked(self.folder):
            # One object for all rounds, which reads ``run.toml`` once.
            record = self.record
            listed = self._listed(world)
            start = self._prepare(world)
            # Another process may have finished the run before this one had the lock.
            if self.finished():
                return
            naming = Shown.of(record.description()["world"])
            ending = self._ending(map(naming.line, record.lines()))
            with closing(self._engine(world, start, workers)) as engine:  # type: ignore[type-var]
                for finished_round in self._checked_start(engine, start):
                    # The line before the checkpoint: a killed process leaves at most lines that
                    # are made again.
                    ending.follow(naming.line(record.keep(finished_round, listed)))
                    self._store(record, finished_round, ending)
                    yield finished_round
                    if ending.ended:
                        return

    def _engine(self, world: World, start: Position | None, workers: int | None) -> Iterator[Round]:
        """The rounds that are missing."""
        experiment = self.experiment
        common_settings: dict[str, Any] = {
            "rounds": experiment.rounds,
            "seed": self.seed,
            "eval_every": experiment.eval_every,
            "eval_clients": experiment.eval_clients,
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
            make_world = partial(world_of, json.dumps(experiment.spec()), self.seed)
            del common_settings["eval_clients"]
            return simulation.rounds(
                self.method, make_world, workers=workers or experiment.workers, **common_settings
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
            self.method, world, **common_settings, **asdict(experiment.hardware(workers))
        )

    def _elsewhere(self, world: World) -> Callable[[], World]:
        """A function that makes the world on other machines, which have no object of this process."""
        # Of data made on demand, those of some clients are compared: a node makes only what it needs.
        some_digest = digest(world.examined)
        return partial(same_world_of, json.dumps(self.experiment.spec()), self.seed, some_digest)

    def _listed(self, world: World) -> Collection[Client] | None:
        """The clients that the records list; None for all."""
        return inprocess.drawn_for_tests(world, self.experiment.eval_clients, self.seed)

    def facts(self, world: World) -> dict[str, Any]:
        """The facts about a world that the run records.

        Args:
            world: The world of the run.
        """
        facts = world_facts(recorded_part(world, self.experiment.eval_clients, self.seed))
        # The number of all clients, where some are listed.
        if len(facts["clients"]) < len(world.clients):
            facts["all_clients"] = len(world.clients)
        # Settings without effect stand beside what the data warn of.
        unused = unused_of(self.experiment, [self.method])
        if unused:
            facts["cautions"] = [*facts.get("cautions", ()), *unused]
        return facts

    def _try(self, world: World) -> None:
        """Let the engine of an extension try what can fail before a file is written."""
        # Coterie's own engines are tried by the rehearsal of each method.
        experiment = self.experiment
        if experiment.engine not in ("inprocess", "flower"):
            make_world = self._elsewhere(world)
            ENGINES.find(experiment.engine).prepare(experiment, self.seed, make_world)

    def _checked_start(self, engine: Iterator[Round], start: Position | None) -> Iterator[Round]:
        """The engine's rounds; an error in the first one means that the checkpoint at the start is damaged."""
        if start is not None:
            # The first round uses every part of the checkpoint, so that damage shows here.
            with from_stored(
                self.record.checkpoints.path(start.round), passed_errors=(EngineError,)
            ):
                first_round = next(engine, None)
            if first_round is not None:
                yield first_round
        yield from engine

    def _prepare(self, world: World) -> Position | None:
        """Write ``run.toml``, or check it and remove the records after the checkpoint."""
        record = self.record
        facts_now = self.facts(world)
        # A new run is described; one that goes on must have the same clients and data.
        if not record.begun:
            known_secret = self.experiment.origin and self.experiment.origin.secret
            secret_table = (
                {"secret": known_secret} if known_secret else secret_entry(self.experiment)
            )
            record.describe(
                {
                    **self.experiment.spec(),
                    **secret_table,
                    "world": facts_now,
                    "versions": versions(),
                }
            )
        elif not same_world(facts_now, record.description()["world"]):
            raise UserError(
                f"{self.folder} cannot be resumed: the scenario's clients or data have changed"
            )
        # Rounds after the newest checkpoint are made again.
        try:
            checkpoint = record.go_on(Position, self.experiment.checkpoint_every)
        except DamagedError as error:
            raise DamagedError(
                f"{error}; to repeat the run, use coterie run {in_shell(self.folder / RUN_FILE)} --out DIR"
            ) from error
        return checkpoint[1] if checkpoint else None

    def _store(self, record: Record, finished_round: Round, ending: Ending) -> None:
        """Store the checkpoint of a recorded round if one is due."""
        best_round = self._kept_best_round(ending)
        is_due = finished_round.number % self.experiment.checkpoint_every == 0
        if is_due or ending.ended or best_round == finished_round.number:
            record.store(
                finished_round.number,
                finished_round.position,
                self.experiment.checkpoints_kept,
                best_round,
            )

    def _ending(self, shown_lines: Iterable[Line]) -> Ending:
        """Whether the run has ended after these rounds, and the best of them."""
        experiment = self.experiment
        ending = Ending(experiment.rounds, experiment.target, experiment.stop_after)
        for shown_line in shown_lines:
            ending.follow(shown_line)
        return ending

    def _kept_best_round(self, ending: Ending) -> int | None:
        """The round whose checkpoint stays as long as its validation score is the best; None without early stopping."""
        if self.experiment.stop_after is None or ending.best is None:
            return None
        return ending.best.round


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


def recorded_part(world: World, eval_clients: int | None, seed: int) -> World:
    """Return the world of the clients that the records list: those that are tested.

    Args:
        world: All clients.
        eval_clients: How many are tested; None for all.
        seed: Seed of the run.
    """
    listed = inprocess.drawn_for_tests(world, eval_clients, seed)
    return world if listed is None else world.only(listed)


def secret_entry(experiment: Experiment) -> dict[str, str]:
    """The entry of a record about a boundary's secret."""
    secret = experiment.boundary.secret
    return {} if secret is None else {"secret": known_by(secret)}


def world_of(spec_json: str, seed: int) -> World:
    """The world of an experiment, for processes that build their own.

    Args:
        spec_json: The experiment's tables, as JSON.
        seed: The seed of the world.

    Returns:
        The scenario's clients and data.
    """
    return make(json.loads(spec_json)).world(seed)


def same_world_of(spec_json: str, seed: int, expected_digest: str) -> World:
    """The world of an experiment on another machine, where its data must be the same.

    Args:
        spec_json: The experiment's tables, as JSON.
        seed: The seed of the world.
        expected_digest: The digest of the data, see :func:`digest`; of data that are made on demand,
            that of the clients that checks examine.

    Returns:
        The scenario's clients and data.

    Raises:
        UserError: The data are not the same.
    """
    # Each machine reads its own copy of the data, which may be another version.
    world = world_of(spec_json, seed)
    if digest(world.examined) != expected_digest:
        raise UserError("its clients or data are not those of the machine where the run began")
    return world


def changed_versions(run: Run) -> list[str]:
    """One sentence for each package whose version is different now from the start of the run."""
    if not run.record.begun:
        return []
    # A package that the record does not have yet counts as unchanged.
    versions_then = run.record.description()["versions"]
    sentences = []
    for package_name, version_now in versions().items():
        version_then = versions_then.get(package_name, version_now)
        if version_then != version_now:
            sentences.append(
                f"the run began with {package_name} {version_then}, this is {version_now}"
            )
    return sentences


class Caution(PlainWarning):
    """A warning about data or settings: a run is possible, but its result may not be what was meant."""


def warn_of(world: World, depth: int) -> None:
    """Warn of what :func:`~coterie.data.cautions.cautions` says about a world, one :class:`Caution` for each sentence.

    Args:
        world: The world.
        depth: The number of calls from here to the user's line, which the warning shows.
    """
    warn(cautions(world), depth + 1)


def warn(sentences: Iterable[str], depth: int) -> None:
    """Warn by one :class:`Caution` for each sentence.

    Args:
        sentences: The sentences.
        depth: The number of calls from here to the user's line, which the warning shows.
    """
    for sentence in sentences:
        warnings.warn(sentence, Caution, stacklevel=depth)


def unused_of(experiment: Experiment, methods: Sequence[Any], data: str | None = None) -> list[str]:
    """Return a sentence for each setting of an experiment that was set and has no effect.

    Args:
        experiment: The experiment.
        methods: Those of its methods whose settings count.
        data: The folder of data files that the user gave; None if there is none, or the
            environment's.
    """
    return unused_settings(
        experiment.setup,
        methods,
        experiment.rounds,
        training=experiment.training,
        boundary=experiment.boundary,
        robust=experiment.robust,
        data=data,
    )
