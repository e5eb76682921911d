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

from coterie import models
from coterie.boundary import Boundary
from coterie.codec import DamagedError
from coterie.core import Method, Training
from coterie.engines import inprocess
from coterie.engines.inprocess import Position, Round
from coterie.experiment import Experiment, data_folder, make, method_class, read
from coterie.record import RUN, Line, Record, ends, to_toml
from coterie.record import versions as versions
from coterie.scenario import Scenario, find
from coterie.settings import SettingError, UserError
from coterie.store import SCHEMA, held, write_whole
from coterie.world import World

EXPERIMENT = "experiment.toml"


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
) -> Iterator[Round]:
    """Run a method over a scenario; yields each communication round as it ends.

    method: a name of :data:`coterie.METHODS` or a method with its settings. scenario: a name of
    :data:`coterie.SCENARIOS`, a scenario, or a world of your own. training: local training in place of the scenario's.
    data: folder of the data set's files. workers, width, device, precision: what it computes with
    (:class:`~coterie.engines.hardware.Hardware`). start: the ``position`` of an earlier round, to go on from. boundary:
    what is done to updates on their way. Nothing is written; early stopping is ``break``. Raises
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
        eval_every=eval_every, start=start, boundary=boundary,
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
        """Whether the last round, or the target, is recorded and stored."""
        lines = self.record.lines()
        return bool(lines) and self._last(lines[-1]) and lines[-1]["round"] in self.record.checkpoints.rounds()

    def rounds(self, workers: int | None = None) -> Iterator[Round]:
        """Begin the run or go on where it stands; yields the rounds that were missing, each recorded before.

        Raises :class:`~coterie.store.BusyError` if another process writes this run, and
        :class:`~coterie.settings.UserError` if it cannot go on: files of a newer Coterie, data that have changed.
        """
        if self.finished():
            self.record.checkpoints.prune(self.experiment.checkpoints_kept)  # it may have been killed before it could
            return
        world = self.experiment.world(self.seed)
        self.folder.mkdir(parents=True, exist_ok=True)
        with held(self.folder):
            stored = self._prepare(world)
            if self.finished():  # another process may have been faster
                return
            with closing(self._engine(world, stored, workers)) as engine:  # type: ignore[type-var]
                for done in engine:
                    last = self._store(done)
                    yield done
                    if last:
                        return

    def _engine(self, world: World, start: Position | None, workers: int | None) -> Iterator[Round]:
        """The rounds that are missing."""
        experiment = self.experiment
        common: dict[str, Any] = {
            "rounds": experiment.rounds, "seed": self.seed, "eval_every": experiment.eval_every, "start": start,
            "boundary": experiment.boundary,
        }  # fmt: skip
        if experiment.engine == "flower":
            from coterie.engines.flower import simulation  # Flower is an extra

            maker = partial(world_of, json.dumps(experiment.spec()), self.seed)
            return simulation.rounds(self.method, maker, workers=workers or experiment.workers, **common)
        return inprocess.rounds(self.method, world, **common, **asdict(experiment.hardware(workers)))

    def _prepare(self, world: World) -> Position | None:
        """Write ``run.toml``, or check it and cut off what was recorded after the checkpoint."""
        record, facts = self.record, world_facts(world)
        if not record.begun:
            record.describe({**self.experiment.spec(), "world": facts, "versions": versions()})
        elif any(facts.get(name) != known for name, known in record.description()["world"].items()):
            raise UserError(f"{self.folder} cannot go on: the scenario's clients or data are not what they were")
        stored = record.checkpoints.load()
        if stored and not isinstance(stored[1], Position):
            raise DamagedError(f"the checkpoint of {self.folder} holds no position of a run; it is damaged")
        record.rewind(stored[0] if stored else 0)
        return stored[1] if stored else None

    def _store(self, done: Round) -> bool:
        """Record a round and store its checkpoint when one is due; returns whether the run ends here."""
        last = self._last(self.record.keep(done))
        if last or done.number % self.experiment.checkpoint_every == 0:
            self.record.checkpoints.save(done.number, done.position, self.experiment.checkpoints_kept)
        return last

    def _last(self, recorded: Line) -> bool:
        return ends(recorded, self.experiment.rounds, self.experiment.target)


def world_of(spec: str, seed: int) -> World:
    """The world of an experiment's tables, as JSON: for processes that make their own."""
    return make(json.loads(spec)).world(seed)


def world_facts(world: World) -> dict[str, Any]:
    """What ``run.toml`` keeps of a world: ids, training-set sizes in that order, a digest of all data, the true groups, who
    means harm, and what it takes to make a net like the clients'."""
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
    if (model := models.described(world.model)) is not None:
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
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
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
        write_whole(folder / EXPERIMENT, to_toml({"schema": SCHEMA, **experiment.spec()}).encode())
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


def reopen(folder: Path | str) -> tuple[Run, ...]:
    """The runs of a run directory or an experiment's folder, finished or not.

    Raises :class:`~coterie.settings.UserError` if it is neither, or of a newer Coterie.
    """
    folder = Path(folder)
    for name in (EXPERIMENT, RUN):
        if (folder / name).is_file():
            return _runs(make(read(folder / name)), folder)
    if not folder.exists():
        raise UserError(f"{folder} does not exist")
    raise UserError(f"{folder} is no run directory: it has neither {RUN} nor {EXPERIMENT}")
