"""Running: a method over a scenario as a generator of rounds, and whole experiments into folders that can be resumed.

One run has its directory to itself. An experiment of several methods or seeds is a folder with ``experiment.toml`` and
one run directory each, ``<method>-seed<N>``.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from coterie.boundary import Boundary, known_by
from coterie.core import Method, Position, Round, Training
from coterie.data.scenario import Scenario, find
from coterie.data.world import World
from coterie.engines import rounds as inprocess
from coterie.engines.workers import EngineError
from coterie.files import within
from coterie.methods import method_class
from coterie.models import nets
from coterie.records.checksum import sealed_toml
from coterie.records.codec import DamagedError, from_stored
from coterie.records.record import RUN, Line, Record, ends, read_recorded, to_toml
from coterie.records.record import versions as versions
from coterie.records.store import LOCK, PART, SCHEMA, held, write_whole
from coterie.robust import Robust
from coterie.runs.experiment import Experiment, data_folder, make, read
from coterie.settings import SettingError, UserError

EXPERIMENT = "experiment.toml"

_LEFT = {LOCK, RUN + PART, EXPERIMENT + PART}
"""Files of a process that was killed before there was anything to go on with."""


_SAME = ("scenario", "setup", "methods", "training", "robust", "seeds", "width", "device", "precision", "engine")
"""What an experiment's file and that of a run of it agree on, with the boundary but for its secret."""


def run(
    method: str | Method[Any],
    scenario: str | Scenario | World,
    *,
    rounds: int,
    seed: int = 0,
    workers: int | None = None,
    width: int | None = None,
    device: str = "cpu",
    precision: str = "fp32",
    data: str | Path | None = None,
    training: Training | None = None,
    eval_every: int = 1,
    start: Position | None = None,
    boundary: Boundary | None = None,
    robust: Robust | None = None,
) -> Iterator[Round]:
    """Run a method over a scenario; yields each communication round as it ends.

    method: a name of :data:`coterie.METHODS` or a method with its settings. scenario: a name of
    :data:`coterie.SCENARIOS`, a scenario, or a world of your own. training: local training in place of the scenario's.
    data: folder of the data set's files. workers, width, device, precision: what it computes with
    (:class:`~coterie.engines.workers.Hardware`). start: the ``position`` of an earlier round, to go on from. boundary:
    what is done to updates on their way. robust: bounds on what one client can do to the others.

    Nothing is written; early stopping is ``break``. Raises
    :class:`~coterie.settings.UserError` for a wrong argument, before the first round.
    """
    for name, value, least in (("rounds", rounds, 1), ("seed", seed, 0), ("eval_every", eval_every, 1)):
        if not isinstance(value, int) or value < least:
            raise SettingError(f"{name} must be a whole number >= {least}, got {value!r}")
    chosen: Method[Any] = method_class(method)() if isinstance(method, str) else method
    if isinstance(scenario, str):
        scenario = find(scenario)
    world = scenario if isinstance(scenario, World) else scenario.build(seed, data_folder(data))
    if training is not None:
        world = replace(world, training=training)
    return inprocess.rounds(
        chosen, world, rounds=rounds, seed=seed, workers=workers, width=width, device=device, precision=precision,
        eval_every=eval_every, start=start, boundary=boundary, robust=robust,
    )  # fmt: skip


@dataclass(frozen=True)
class Run:
    """One method with one seed, in the directory ``folder``; ``experiment`` has just these."""

    folder: Path
    experiment: Experiment

    @property
    def record(self) -> Record:
        return Record(self.folder)

    @property
    def method(self) -> Any:
        return self.experiment.methods[0]

    @property
    def seed(self) -> int:
        return self.experiment.seeds[0]

    def finished(self) -> bool:
        """Whether the last round, or the target, is recorded and stored, and can be read."""
        lines = self.record.lines()
        if not lines or not self._last(lines[-1]) or lines[-1]["round"] not in self.record.checkpoints.rounds():
            return False
        try:
            self.record.checkpoints.check(lines[-1]["round"], self.record.fits())
        except DamagedError:  # it is made again, from the one before
            return False
        return True

    def rounds(self, workers: int | None = None) -> Iterator[Round]:
        """Begin the run or go on where it stands; yields the rounds that were missing, each recorded before.

        Raises :class:`~coterie.records.store.BusyError` if another process writes this run, and
        :class:`~coterie.settings.UserError` if it cannot go on: files of a newer Coterie or that are damaged, data that have
        changed, code or a secret that the caller has to give.
        """
        if self.finished():
            self.record.checkpoints.prune(self.experiment.checkpoints_kept)  # it may have been killed before it could
            return
        self.experiment.check_secret()
        world = self.experiment.world(self.seed)
        self.folder.mkdir(parents=True, exist_ok=True)
        with held(self.folder):
            stored = self._prepare(world)
            if self.finished():  # another process may have been faster
                return
            with closing(self._engine(world, stored, workers)) as engine:  # type: ignore[type-var]
                for done in self._going_on(engine, stored):
                    last = self._store(done)
                    yield done
                    if last:
                        return

    def _engine(self, world: World, start: Position | None, workers: int | None) -> Iterator[Round]:
        """The rounds that are missing."""
        experiment = self.experiment
        common: dict[str, Any] = {
            "rounds": experiment.rounds, "seed": self.seed, "eval_every": experiment.eval_every, "start": start,
            "boundary": experiment.boundary, "robust": experiment.robust,
        }  # fmt: skip
        if experiment.engine == "flower":
            from coterie.engines.flower import simulation  # Flower is an extra

            maker = partial(world_of, json.dumps(experiment.spec()), self.seed)
            return simulation.rounds(self.method, maker, workers=workers or experiment.workers, **common)
        return inprocess.rounds(self.method, world, **common, **asdict(experiment.hardware(workers)))

    def _going_on(self, engine: Iterator[Round], start: Position | None) -> Iterator[Round]:
        """What the engine makes. Its first round shows whether the checkpoint that it began with fits together."""
        if start is not None:
            with from_stored(self.record.checkpoints.path(start.round), but=(EngineError,)):
                first = next(engine, None)
            if first is not None:
                yield first
        yield from engine

    def _prepare(self, world: World) -> Position | None:
        """Write ``run.toml``, or check it and cut off what was recorded after the checkpoint."""
        record, facts = self.record, world_facts(world)
        if not record.begun:
            known = self.experiment.origin and self.experiment.origin.secret
            secret = {"secret": known} if known else _secret_of(self.experiment)
            record.describe({**self.experiment.spec(), **secret, "world": facts, "versions": versions()})
        elif any(facts.get(name) != known for name, known in record.description()["world"].items()):
            raise UserError(f"{self.folder} cannot go on: the scenario's clients or data are not what they were")
        try:
            stored = record.go_on(Position, self.experiment.checkpoint_every)
        except DamagedError as error:
            raise DamagedError(f"{error}; coterie run {self.folder / RUN} --out DIR makes the run again") from error
        return stored[1] if stored else None

    def _store(self, done: Round) -> bool:
        """Record a round and store its checkpoint when one is due; returns whether the run ends here."""
        last = self._last(self.record.keep(done))
        if last or done.number % self.experiment.checkpoint_every == 0:
            self.record.store(done.number, done.position, self.experiment.checkpoints_kept)
        return last

    def _last(self, recorded: Line) -> bool:
        return ends(recorded, self.experiment.rounds, self.experiment.target)


def _secret_of(experiment: Experiment) -> dict[str, str]:
    """What a record keeps of a boundary's secret."""
    secret = experiment.boundary.secret
    return {} if secret is None else {"secret": known_by(secret)}


def world_of(spec: str, seed: int) -> World:
    """The world of an experiment's tables, as JSON: for processes that make their own."""
    return make(json.loads(spec)).world(seed)


def world_facts(world: World) -> dict[str, Any]:
    """What ``run.toml`` keeps of a world: ids, training-set sizes in that order, a digest of all data, the true groups, who
    is hostile, and what it takes to make a net like the clients'."""
    clients = sorted(world.clients)
    facts: dict[str, Any] = {
        "clients": clients,
        "examples": [len(world.clients[c].train) for c in clients],
        "data": digest(world),
    }
    if world.truth is not None:
        facts["true_groups"] = [list(group) for group in world.truth]
    if world.attacks:
        facts["adversaries"] = sorted(world.attacks)
    if (model := nets.described(world.model)) is not None:
        facts["model"] = model
    return facts


def digest(world: World) -> str:
    """A hash of every client's examples and targets; pools that clients share are read once."""
    state = hashlib.blake2b(digest_size=16)
    seen: set[int] = set()
    for client in sorted(world.clients):
        data = world.clients[client]
        for split in (data.train, data.validation, data.test):
            new = () if id(split.inputs) in seen else (split.inputs,)
            seen.add(id(split.inputs))
            for tensor in (*new, split.index, split.targets):
                state.update(tensor.contiguous().numpy())
    return state.hexdigest()


def changed_versions(run: Run) -> list[str]:
    """What runs in another version now than when the run began, one sentence each."""
    if not run.record.begun:
        return []
    now = versions()
    was = run.record.description().get("versions", {})
    changed = [name for name in now if was.get(name, now[name]) != now[name]]
    return [f"the run began with {name} {was[name]}, this is {now[name]}" for name in changed]


def begin(experiment: Experiment, folder: Path | str) -> tuple[Run, ...]:
    """The runs of an experiment, in a new ``folder``; none has made a round yet.

    The first seed's world is built, and each method's first plan made, before anything is written, so that a mistake leaves
    nothing behind. Raises
    :class:`~coterie.settings.UserError` if the folder has something in it.
    """
    folder = Path(folder)
    experiment = replace(experiment, data=data_folder(experiment.data))
    experiment.check_secret()
    if folder.exists() and (not folder.is_dir() or {path.name for path in folder.iterdir()} - _LEFT):
        runs = folder.is_dir() and any((folder / name).exists() for name in (RUN, EXPERIMENT))
        hint = f"; coterie resume {folder} goes on with what is there" if runs else ""
        raise UserError(f"{folder} is there already and not an empty folder; name another{hint}")
    world = experiment.world(experiment.seeds[0])
    experiment.check_calendar()
    for method in experiment.methods:
        inprocess.rehearse(method, world, experiment.seeds[0], experiment.boundary, experiment.hardware())
    runs_ = _runs(experiment, folder)
    folder.mkdir(parents=True, exist_ok=True)
    if len(runs_) == 1:
        runs_[0]._prepare(world)
    else:
        about = {"schema": SCHEMA, **experiment.spec(), **_secret_of(experiment)}
        write_whole(folder / EXPERIMENT, sealed_toml(to_toml(about)))
    return runs_


def _runs(experiment: Experiment, folder: Path) -> tuple[Run, ...]:
    """One run is the folder itself; of several, each has its own inside."""
    if len(experiment.methods) == len(experiment.seeds) == 1:
        return (Run(folder, experiment),)
    names = [method.name for method in experiment.methods]
    seen: Counter[str] = Counter()
    runs = []
    for method in experiment.methods:
        seen[method.name] += 1
        label = method.name if names.count(method.name) == 1 else f"{method.name}-{seen[method.name]}"
        for seed in experiment.seeds:
            runs.append(Run(folder / f"{label}-seed{seed}", replace(experiment, methods=(method,), seeds=(seed,))))
    return tuple(runs)


def reopen(folder: Path | str, *, trust_code: bool = False, secret: int | None = None) -> tuple[Run, ...]:
    """The runs of a run directory or an experiment's folder, finished or not.

    Args:
        folder: It may be from somebody else: nothing that it names is imported, no link in it is followed.
        trust_code: Lets a model of it that is called ``package.module:Name`` be imported, where it is needed to go on.
        secret: The boundary's, where it had one; else the environment's COTERIE_SECRET. A run cannot go on without it.

    Raises:
        UserError: It is neither, of a newer Coterie, or not what was written.
    """
    folder = Path(folder)
    for name in (EXPERIMENT, RUN):
        if (folder / name).is_file() or (folder / name).is_symlink():
            path = within(folder, name)
            if name == EXPERIMENT:
                read_recorded(path)
            else:
                Record(folder).description()
            found = _runs(make(read(path, trust_code=trust_code, secret=secret)), folder)
            for one in found if name == EXPERIMENT else ():
                _check_place(one, folder)
            return found
    if not folder.exists():
        raise UserError(f"{folder} does not exist")
    begun = folder.is_dir() and {path.name for path in folder.iterdir()}
    hint = f"; it was stopped before it began: coterie run --out {folder} begins it there" if begun and begun <= _LEFT else ""
    raise UserError(f"{folder} is no run directory: it has neither {RUN} nor {EXPERIMENT}{hint}")


def _check_place(one: Run, folder: Path) -> None:
    """Raises :class:`~coterie.settings.UserError` if a run of an experiment is elsewhere, or is another one."""
    within(folder, one.folder.name)
    if one.record.begun:
        one.record.description()
        there = make(read(one.folder / RUN))
        boundaries = [replace(experiment.boundary, secret=None) for experiment in (there, one.experiment)]
        if boundaries[0] != boundaries[1] or any(getattr(there, name) != getattr(one.experiment, name) for name in _SAME):
            raise DamagedError(f"{one.folder} has another run than {folder / EXPERIMENT} says")
