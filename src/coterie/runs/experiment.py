"""An experiment as one value: which methods, in which scenario, with which seeds, for how long.

As TOML, everything but the name of the scenario may be left out::

    scenario = "digits/label-permutation"    # or a table: [scenario] name = "...", and settings of it
    methods = ["fedavg", "cfl"]              # or tables: [[methods]] name = "cfl", and settings of it
    rounds = 40
    seeds = [0, 1, 2]                        # or a number of seeds, 3; or seed = 0
    target = 0.95                            # stop a run when its mean accuracy gets there
    eval_every = 1                           # rounds between tests
    checkpoint_every = 1                     # rounds between checkpoints
    checkpoints_kept = 2                     # the newest so many; older ones are removed
    workers = 2                              # processes that train; changes no result
    width = 16                               # clients trained in one block; by itself what suits model and device
    device = "cpu"                           # or cuda
    precision = "fp32"                       # or bf16
    engine = "inprocess"                     # or flower, for its simulation
    data = "data"                            # folder of the data set's files

    [training]                               # local training; what is not said is the scenario's
    lr = 0.05

    [boundary]                               # what is done to updates on their way, see docs/boundary.md
    rotation = "permute"

    [robust]                                 # what one client can do to the others, see docs/adversaries.md
    mean = "trimmed-mean"

The ``run.toml`` of a run directory is such a file too, with everything said. Two things are not taken from a file that was
recorded, since it may be somebody else's: code, which a model ``package.module:Name`` is, and a boundary's secret, which is
not in it.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from coterie.boundary import Boundary, secret_of_environment, unlike_secret
from coterie.core import Training
from coterie.data.scenario import Scenario, find
from coterie.data.world import COLLUDING, World
from coterie.engines.workers import Hardware
from coterie.files import expanded
from coterie.methods import METHODS, method_class
from coterie.models import nets
from coterie.records.record import ROUNDS, RUN, read_any
from coterie.records.store import KEPT
from coterie.robust import Robust
from coterie.settings import (
    MOST_SEEDS,
    SettingError,
    UserError,
    build,
    changed,
    check,
    nearest,
    parse,
    plain,
    setting,
    settings_of,
)
from coterie.training.precision import PRECISIONS

ENGINES = ("inprocess", "flower")
DEMO = "digits/label-permutation"
DEMO_METHODS = ("fedavg", "split-half")

Spec = dict[str, Any]
"""An experiment as plain tables, in one form: ``scenario`` a table with ``name``, ``methods`` a list of such."""


@dataclass(frozen=True, kw_only=True)
class Origin:
    """The recorded file that an experiment was read from. secret: what its boundary's secret is known by, if it has one.
    trusted: whether the caller lets code be imported that it names."""

    file: str
    secret: str | None = None
    trusted: bool = False


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """Several methods and seeds in one scenario. ``setup`` holds the scenario's settings, ``methods`` the methods'.

    origin: where it was read from, if that is a file that Coterie recorded."""

    scenario: str
    setup: Scenario
    methods: tuple[Any, ...]
    training: Training
    boundary: Boundary = Boundary()  # noqa: RUF009  (frozen)
    robust: Robust = Robust()  # noqa: RUF009  (frozen)
    rounds: int = setting(40, "communication rounds", ge=1)
    seeds: tuple[int, ...] = setting((0,), "one run of each method per seed", ge=0)
    target: float | None = setting(None, "stop a run when its mean accuracy reaches this", gt=0)
    eval_every: int = setting(1, "rounds between tests; the last is always tested", ge=1)
    checkpoint_every: int = setting(1, "rounds between checkpoints; the last always has one", ge=1)
    checkpoints_kept: int = setting(KEPT, "newest checkpoints kept, during the run and after it", ge=1)
    workers: int | None = setting(None, "processes that train; none is one per core", ge=1)
    width: int | None = setting(None, "clients trained in one block; none is what suits model and device", ge=1)
    device: str = setting("cpu", "where clients train: cpu, cuda, cuda:1, ...")
    precision: str = setting("fp32", "fp32, or bf16 (autocast) for training and tests", choices=PRECISIONS)
    engine: str = setting("inprocess", "who runs the clients: processes of its own, or Flower's simulation", choices=ENGINES)
    data: str | None = setting(None, "folder of the data set's files")
    origin: Origin | None = dataclasses.field(default=None, compare=False)

    def __post_init__(self) -> None:
        check(self)
        if not self.seeds or len(set(self.seeds)) != len(self.seeds):
            raise SettingError(f"Experiment.seeds must be at least one, all different, got {list(self.seeds)}")
        if not self.methods:
            raise SettingError("Experiment.methods must name at least one method")
        self.hardware()
        if self.engine == "flower":
            self._check_flower()

    def _check_flower(self) -> None:
        """Raises :class:`~coterie.settings.UserError` without Flower,
        :class:`~coterie.settings.SettingError` for what its clients do not take part in."""
        if any(importlib.util.find_spec(name) is None for name in ("flwr", "ray")):
            raise UserError("engine flower needs Flower and Ray: pip install 'coterie[flower]'")
        for name, only in (("width", None), ("device", "cpu"), ("precision", "fp32")):
            if getattr(self, name) not in (None, only):
                raise SettingError(f"Experiment.{name} is for engine inprocess, got {getattr(self, name)} with engine flower")
        if self.setup.attack in COLLUDING:
            raise SettingError(
                f"Scenario.attack {self.setup.attack} needs engine inprocess, got flower: no client there has others' updates"
            )

    def hardware(self, workers: int | None = None) -> Hardware:
        """What the runs compute with; ``workers`` in place of the experiment's."""
        return Hardware(workers=workers or self.workers, width=self.width, device=self.device, precision=self.precision)

    def check_calendar(self) -> None:
        """Raises :class:`~coterie.settings.SettingError` for newcomers who would never come and leavers who would never
        leave."""
        setup, late = self.setup, f"is after the last round, {self.rounds}: nobody would"
        if setup.newcomers and setup.join_round > self.rounds:
            raise SettingError(f"Scenario.join_round {setup.join_round} {late} join")
        if setup.leavers and setup.leave and setup.leave[0] > self.rounds:
            raise SettingError(f"Scenario.leave {list(setup.leave)} {late} leave")

    def check_consent(self, model: str) -> None:
        """Raises :class:`~coterie.settings.UserError` if a recorded file names code as the model and nobody has agreed."""
        if self.origin is not None and not self.origin.trusted:
            nets.check_consent(model, self.origin.file)

    def check_secret(self) -> None:
        """Raises :class:`~coterie.settings.UserError` unless the boundary has the secret with which the experiment began."""
        origin = self.origin
        if origin is None or origin.secret is None:
            return
        if why := unlike_secret(self.boundary.secret, origin.secret):
            raise UserError(f"{origin.file} was recorded with a secret of its boundary{why}")

    def world(self, seed: int) -> World:
        """The scenario's clients and data for ``seed``. Raises :class:`~coterie.settings.UserError`, see ``check_consent``."""
        self.check_consent(self.setup.model)
        return replace(self.setup, training=self.training).build(seed, self.data)

    def spec(self) -> Spec:
        """Everything said but a boundary's secret: :func:`make` of it is this experiment again, where that is none."""
        out: Spec = {"scenario": {"name": self.scenario, **plain(self.setup, without=("training",))}}
        out["methods"] = [{"name": method.name, **plain(method)} for method in self.methods]
        out |= {name: value for name in PLAIN if (value := getattr(self, name)) is not None}
        out["seeds"] = list(self.seeds)
        hidden = ("secret",) if self.boundary.secret is not None else ()
        out |= {"training": plain(self.training), "boundary": plain(self.boundary, without=hidden)}
        out["robust"] = plain(self.robust)
        return out


PLAIN = (
    "rounds", "target", "eval_every", "checkpoint_every", "checkpoints_kept", "workers", "width", "device", "precision",
    "engine", "data",
)  # fmt: skip
KNOWN = ("scenario", "methods", "rounds", "seed", "seeds", *PLAIN[1:], "training", "boundary", "robust")


def read(path: Path | str, *, trust_code: bool = False, secret: int | None = None) -> Spec:
    """The experiment in a TOML file, as tables: for :func:`make`, or to be changed first.

    Args:
        path: An experiment file, or the ``run.toml`` or ``experiment.toml`` that Coterie recorded.
        trust_code: Lets a model that a recorded file names as ``package.module:Name`` be imported.
        secret: The boundary's, where a recorded file had one; else the environment's COTERIE_SECRET.

    Raises:
        UserError: The file cannot be read, or is a recorded one that is not what was written.
    """
    path = Path(path)
    document = read_any(path)
    if not document:
        raise UserError(f"{path} is empty: it says nothing of an experiment")
    recorded: dict[str, Any] = {}
    if "schema" in document:  # a run's own file, with what else is known of it
        document = {key: value for key, value in document.items() if key not in ("schema", "world", "versions")}
        known = document.pop("secret", None)
        if known is not None:
            boundary = document.get("boundary", {})
            given = secret_of_environment() if secret is None else secret
            document["boundary"] = {**boundary, "secret": given} if given is not None else boundary
        recorded = {"origin": Origin(file=str(path), secret=known, trusted=trust_code)}
    elif path.name == RUN or (path.parent / ROUNDS).exists():  # it may be a stranger's, and is not to pass for the user's own
        hint = f"keep an experiment file of your own out of run directories, under another name than {RUN}"
        raise UserError(f"{path} has no schema version, so Coterie did not record it; {hint}")
    try:
        return {**normal(document), **recorded}
    except UserError as error:
        raise UserError(f"{path}: {error}") from error


def normal(document: Mapping[str, Any]) -> Spec:
    """The one form of an experiment's tables.

    Raises :class:`~coterie.settings.SettingError` for an unknown key, naming the nearest.
    """
    for key in document:
        if key not in KNOWN and not (key == "origin" and isinstance(document[key], Origin)):
            raise SettingError(f"an experiment has no setting {key!r}{nearest(key, KNOWN)} (known: {', '.join(KNOWN)})")
    spec: Spec = dict(document)
    spec["scenario"] = _named("scenario", document.get("scenario", DEMO))
    methods = document.get("methods", list(DEMO_METHODS))
    if not isinstance(methods, Sequence) or isinstance(methods, str):
        raise SettingError(f"methods must be a list of names or tables, got {methods!r}")
    spec["methods"] = [_named("methods", method) for method in methods]
    for table in ("training", "boundary", "robust"):
        spec[table] = document.get(table, {})
        if not isinstance(spec[table], Mapping):
            got = "; what was given is not shown: it may be a secret" if table == "boundary" else f", got {spec[table]!r}"
            raise SettingError(f"{table} must be a table of settings{got}")
        spec[table] = dict(spec[table])
    if "seed" in spec and "seeds" in spec:
        raise SettingError("use just one of seed and seeds")
    if "seed" in spec:
        spec["seeds"] = [spec.pop("seed")]
    seeds = spec.get("seeds", [0])
    if isinstance(seeds, int) and not isinstance(seeds, bool):
        if seeds > MOST_SEEDS:
            raise SettingError(f"seeds must be a list, or a number of at most {MOST_SEEDS:,}, got {seeds}")
        seeds = list(range(seeds))
    spec["seeds"] = seeds
    return spec


def _named(key: str, value: Any) -> dict[str, Any]:
    if isinstance(value, str):
        return {"name": value}
    if not isinstance(value, Mapping) or not isinstance(value.get("name"), str):
        raise SettingError(f"{key} must be a name or a table with a name, got {value!r}")
    return dict(value)


def make(spec: Mapping[str, Any]) -> Experiment:
    """The experiment of ``spec``, every setting checked; raises :class:`~coterie.settings.UserError`."""
    spec = normal(spec)
    name = spec["scenario"].pop("name")
    preset = find(name)
    setup = changed(preset, spec["scenario"], "scenario", hidden=("training",))
    methods = []
    for table in spec["methods"]:
        cls = method_class(table["name"])
        methods.append(build(cls, {key: value for key, value in table.items() if key != "name"}))
    return Experiment(
        scenario=name,
        setup=setup,
        methods=tuple(methods),
        training=changed(setup.training, spec["training"], "training"),
        boundary=changed(Boundary(), spec["boundary"], "boundary"),
        robust=changed(Robust(), spec["robust"], "robust"),
        origin=spec.get("origin"),
        **{key: spec[key] for key in (*PLAIN, "seeds") if key in spec},
    )


def data_folder(data: str | os.PathLike[str] | None) -> str | None:
    """``data``, or the environment's COTERIE_DATA, as a whole path, so that a run can go on from another folder."""
    data = data or os.environ.get("COTERIE_DATA")
    return str(expanded(data).absolute()) if data else None


# ----------------------------------------------------------------------------------------------------
# ``--set key=value``: which setting a name means.


_KEY = re.compile(r"[\w.-]+")

DOTTED = ("boundary", "robust")
"""Tables whose settings are named with the table."""


class SettingPlace(NamedTuple):
    """Where a setting is: ``kind`` of table, the ``table``'s own name, the ``key``, the ``values`` to write into."""

    kind: str
    table: str
    key: str
    values: dict[str, Any]

    @property
    def dotted(self) -> str:
        return f"{self.table}.{self.key}"


def assign(spec: Spec, text: str) -> Spec:
    """``spec`` with the setting of ``text``, ``key=value``, changed.

    key: ``method.KEY`` (of each method that has it), ``NAME.KEY`` of one method, ``training.KEY``, ``scenario.KEY``,
    ``experiment.KEY``, ``boundary.KEY``, ``robust.KEY``; or a bare KEY where only one kind of the first four has it. Raises
    :class:`~coterie.settings.SettingError` for an unknown key, naming the nearest, and for an ambiguous one.
    """
    key, equals, value = (part.strip() for part in text.partition("="))
    if not equals or not _KEY.fullmatch(key):
        got = "; what was given is not shown: it may be a secret" if "secret" in text.lower() else f", got {text!r}"
        raise SettingError(f"--set takes key=value{got}")
    spec = {
        **spec,
        "scenario": dict(spec["scenario"]),
        "training": dict(spec["training"]),
        "boundary": dict(spec["boundary"]),
        "robust": dict(spec["robust"]),
        "methods": [dict(m) for m in spec["methods"]],
    }
    try:
        parsed = parse(value)
    except ValueError as error:
        if key.rpartition(".")[2] == "secret" and value.isdecimal():
            raise SettingError(f"--set {key}: a secret of more than 64 bits is given by --secret-file FILE") from None
        raise SettingError(f"--set {key}: the value cannot be read: {error}") from error
    if parsed is None:  # a text may be called "none" (a shift), and an optional setting takes "none" for None
        parsed = "none"
    places = list(_places(spec))
    for place in _dotted(places, key) if "." in key else _bare(places, key):
        place.values[place.key] = parsed
    return spec


def _places(spec: Spec) -> Iterator[SettingPlace]:
    for table in spec["methods"]:
        for key in settings_of(method_class(table["name"])):
            yield SettingPlace("method", table["name"], key, table)
    for key in settings_of(Training):
        yield SettingPlace("training", "training", key, spec["training"])
    for key in settings_of(Boundary):
        yield SettingPlace("boundary", "boundary", key, spec["boundary"])
    for key in settings_of(Robust):
        yield SettingPlace("robust", "robust", key, spec["robust"])
    for key in settings_of(type(find(spec["scenario"]["name"])), hidden=("training",)):
        yield SettingPlace("scenario", "scenario", key, spec["scenario"])
    for key in (*PLAIN, "seeds"):
        yield SettingPlace("experiment", "experiment", key, spec)


def _dotted(places: list[SettingPlace], key: str) -> list[SettingPlace]:
    table, _, name = key.rpartition(".")
    there = [place for place in places if table in (place.table, place.kind)]
    if not there:
        tables = dict.fromkeys([*(p.table for p in places), "method"])
        if table in METHODS:
            raise SettingError(f"--set {key}: {table} is not among the methods of this run")
        raise SettingError(f"--set {key}: there is no {table!r}{nearest(table, tables)} (known: {', '.join(tables)})")
    found = [place for place in there if place.key == name]
    if not found:
        known = dict.fromkeys(place.key for place in there)
        hint = f"{nearest(name, known)} (known: {', '.join(known)})"
        raise SettingError(f"--set {key}: {table} has no setting {name!r}{hint}")
    return found


def _bare(places: list[SettingPlace], key: str) -> list[SettingPlace]:
    found = [place for place in places if place.key == key and place.kind not in DOTTED]
    if not found:
        if table := next((place.table for place in places if place.key == key), None):
            raise SettingError(f"--set {key}: write {table}.{key}")
        hint = nearest(key, {place.key for place in places})
        if not hint:
            hint = "; coterie methods NAME and coterie scenarios NAME list them"
        raise SettingError(f"--set {key}: no method of this run, training or scenario has a setting {key!r}{hint}")
    if len({place.kind for place in found}) > 1:
        names = " or ".join(dict.fromkeys(place.dotted for place in found))
        raise SettingError(f"--set {key} is ambiguous: write {names}")
    return found
