"""An experiment as one value: the methods, the scenario, the seeds and the number of rounds.

In TOML, everything may be left out, but the file must not be empty::

    scenario = "digits/label-permutation"  # or a table: name = "...", and settings of it
    methods = ["fedavg", "cfl"]   # or tables: [[methods]] name = "cfl", and settings of it, or preset = "paper";
                                  # of your own: "package.module:Class"
    rounds = 40
    seeds = [0, 1, 2]             # or a number of seeds, 3; or seed = 0
    target = 0.95                 # stop a run when its mean accuracy reaches this
    eval_every = 1                # rounds between tests
    eval_clients = 1000           # clients that are tested and recorded; by default all
    validation_share = 0.2        # set aside for validation scores; by default nothing is
    stop_after = 20               # stop a run after so many rounds without a better validation score
    checkpoint_every = 1          # rounds between checkpoints
    checkpoints_kept = 2          # number of newest checkpoints kept; older ones are removed
    workers = 2                   # processes that train; the results do not depend on it
    width = 16                    # clients trained in one block; by default what suits the model
    device = "cpu"                # or cuda
    precision = "fp32"            # or bf16
    engine = "inprocess"          # or flower, for its simulation; or ray, for a Ray cluster
    address = "10.0.0.1:6379"     # of the Ray cluster; by default Ray's own rules
    data = "data"                 # folder of the data set's files

    [training]                    # local training; other settings are the scenario's
    lr = 0.05

    [boundary]                    # changes to updates on their way, see docs/deploy/privacy.md
    rotation = "permute"

    [robust]                      # bounds on the influence of one client, see docs/deploy/hostile.md
    mean = "trimmed-mean"

The ``run.toml`` of a run directory is such a file too, with all settings. A recorded file may come
from another person, so three things are not taken from it: code (a model, a scenario or a method
``package.module:Name``), and a boundary's secret and the address of a cluster, which are not in it.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, Protocol

from coterie.boundary import Boundary, secret_of_environment, unlike_secret
from coterie.core import Method, Position, Round, Training
from coterie.data.adversaries import COLLUDING
from coterie.data.augmentation import augmented
from coterie.data.scenario import OwnWorld, Scenario, find, label
from coterie.data.world import World
from coterie.engines.workers import Hardware
from coterie.extensions import Registry, check_consent, entry_points
from coterie.files import expanded
from coterie.methods import made as made_method
from coterie.methods._named import (
    made_of_table,
    method_table,
    place_of,
    places_in,
    without_class,
)
from coterie.notebook.tables import count, some
from coterie.records.record import EXPERIMENT_FILE, ROUNDS_FILE, RUN_FILE
from coterie.records.store import CHECKPOINTS_KEPT
from coterie.records.text_files import read_any
from coterie.robust import Robust
from coterie.settings import (
    MOST_SEEDS,
    SettingError,
    UserError,
    changed,
    check,
    no_setting,
    plain,
    setting,
    settings_of,
    table_of,
)
from coterie.settings.calls import public
from coterie.training import set_aside
from coterie.training.precision import MEASURED, PRECISIONS

ENGINE_NAMES = ("inprocess", "flower", *entry_points("coterie.engines"))
"""The engines: Coterie's own processes, Flower's simulation, and those of extensions."""

DEMO_SCENARIO = "digits/label-permutation"
DEMO_METHODS = ("fedavg", "auto")

Spec = dict[str, Any]
"""An experiment as plain tables in normal form: ``scenario`` is a table with ``name``, ``methods``
a list of such tables."""


class OwnMethodError(UserError):
    """A recorded experiment has a method of a user's own, which was not given and may not be imported."""


@public
@dataclass(frozen=True, kw_only=True)
class Origin:
    """The recorded file from which an experiment was read.

    Attributes:
        file: The path of the file.
        secret: The text by which its boundary's secret can be recognized, if it has one.
        trusted: Whether the caller allows that code named in the file is imported.
        chosen: Places of methods that the caller has named himself, as ``package.module:Class``.
    """

    file: str
    secret: str | None = None
    trusted: bool = False
    chosen: tuple[str, ...] = ()

    def check_scenario(self, setup: Scenario | OwnWorld) -> None:
        """Check that the caller allows the import of the scenario, if its name stands for code.

        Args:
            setup: The scenario.

        Raises:
            UserError: The caller has not allowed it.
        """
        if not self.trusted and isinstance(setup, OwnWorld) and setup.made is None:
            check_consent(setup.source, self.file, "scenario")

    def check_methods(
        self, tables: Iterable[Mapping[str, Any]], own_methods: Mapping[str, type[Any]]
    ) -> None:
        """Check that the caller allows the import of all methods that are code, also of those in settings.

        Args:
            tables: The tables of the methods.
            own_methods: Name -> class of the methods that the caller has given.

        Raises:
            OwnMethodError: The caller has not allowed it.
        """
        # What the caller has given or named needs no further consent.
        allowed_places = {*self.chosen, *map(place_of, own_methods.values())}
        for table in () if self.trusted else tables:
            # A class that was given is not imported, wherever the file says that it is.
            is_given = table["name"] in own_methods
            for place in places_in(without_class(table) if is_given else table):
                if place in allowed_places:
                    continue
                try:
                    check_consent(place, self.file, "method")
                except UserError as error:
                    raise OwnMethodError(error.args[0]) from None


@public
@dataclass(frozen=True, kw_only=True)
class Experiment:
    """Several methods and seeds in one scenario.

    Attributes:
        scenario: The name of the scenario.
        setup: The scenario with its settings.
        methods: The methods with their settings, at least one.
        training: Local training.
        boundary: Changes that are made to updates on their way.
        robust: Bounds on the influence of one client on the others.
        rounds: Communication rounds, at least 1.
        seeds: One run of each method per seed; at least one seed, all different.
        target: A run stops when the mean of its main metric reaches this.
        eval_every: Rounds between tests; the last is always tested.
        eval_clients: Clients that are tested, the same random ones in each test; None for all. The
            records list these alone.
        validation_share: Share of each client's training examples that is set aside for validation
            scores, see ``coterie.training.set_aside``; None for none.
        stop_after: A run stops after so many rounds without a better validation score, and keeps the
            checkpoint of its best round; None to make all rounds.
        checkpoint_every: Rounds between checkpoints; the last always has one.
        checkpoints_kept: Newest checkpoints kept, during the run and after it.
        workers: Processes that train; None for one per core.
        width: Clients trained in one block; None for a number that suits model and device.
        device: The device on which clients train: cpu, cuda, cuda:1, ...
        precision: fp32, or bf16 (autocast) for training and tests; auto measures which is faster
            before the first round.
        engine: The engine that runs the clients: Coterie's own processes, Flower's simulation, or a
            Ray cluster.
        address: Address of the Ray cluster: ``HOST:PORT``, ``auto`` or ``local``. None for Ray's
            own rules, see ``coterie.contrib.ray.cluster.connected``. It is not recorded.
        data: Folder of the data set's files, or your table.
        origin: The file from which it was read, if Coterie recorded that file.
    """

    scenario: str
    setup: Scenario | OwnWorld
    methods: tuple[Any, ...]
    training: Training
    boundary: Boundary = Boundary()  # noqa: RUF009  (frozen)
    robust: Robust = Robust()  # noqa: RUF009  (frozen)
    rounds: int = setting(40, "communication rounds", ge=1)
    seeds: tuple[int, ...] = setting((0,), "one run of each method per seed", ge=0)
    target: float | None = setting(
        None, "stop a run when the mean of its main metric reaches this", gt=0
    )
    eval_every: int = setting(1, "rounds between tests; the last round is always tested", ge=1)
    eval_clients: int | None = setting(
        None, "clients that are tested and listed in the records; none: all", ge=1
    )
    validation_share: float | None = setting(
        None,
        "share of each client's training examples set aside for validation scores",
        gt=0,
        le=0.5,
    )
    stop_after: int | None = setting(
        None, "stop a run after so many rounds without a better validation score", ge=1
    )
    checkpoint_every: int = setting(
        1, "rounds between checkpoints; the last round always has one", ge=1
    )
    checkpoints_kept: int = setting(
        CHECKPOINTS_KEPT, "number of newest checkpoints that are kept", ge=1
    )
    workers: int | None = setting(None, "training processes; none: one per core", ge=1)
    width: int | None = setting(
        None, "clients trained in one block; none: chosen for model and device", ge=1
    )
    device: str = setting("cpu", "where clients train: cpu, cuda, cuda:1, ...")
    precision: str = setting(
        "fp32",
        "fp32, or bf16 (autocast) for training and tests; auto: bf16 if it is measured to be faster",
        choices=(*PRECISIONS, MEASURED),
    )
    engine: str = setting(
        "inprocess",
        "what runs the clients: Coterie's own processes, Flower's simulation, or a Ray cluster",
        choices=ENGINE_NAMES,
    )
    address: str | None = setting(
        None, "address of the Ray cluster: HOST:PORT, auto or local; none: found by Ray"
    )
    data: str | None = setting(None, "folder of the data set's files, or your table")
    origin: Origin | None = dataclasses.field(default=None, compare=False)

    def __repr__(self) -> str:
        method_names = some([method.name for method in self.methods])
        seed_words = some(self.seeds)
        return f"<Experiment: {method_names} over {self.scenario}; seeds {seed_words}; {count(self.rounds, 'round')}>"

    def __post_init__(self) -> None:
        check(self)
        # Two equal seeds would be the same run twice, in one folder.
        if not self.seeds or len(set(self.seeds)) != len(self.seeds):
            raise SettingError(
                f"Experiment.seeds must be at least one, all different, got {list(self.seeds)}"
            )
        if not self.methods:
            raise SettingError("Experiment.methods must name at least one method")
        # A name stands for one class: folders and reports know no more of a method.
        class_of_name: dict[str, type[Any]] = {}
        for method in self.methods:
            first_class = class_of_name.setdefault(method.name, type(method))
            if first_class is not type(method):
                raise SettingError(
                    f"Experiment.methods has two classes of the name {method.name!r}: give one another name"
                )
        # Two equal methods would be the same run twice, and a comparison of them says nothing.
        tables = [method_table(method) for method in self.methods]
        for position, table in enumerate(tables):
            if table in tables[:position]:
                raise SettingError(
                    f"Experiment.methods has {table['name']} twice with the same settings: name it once; for runs with "
                    "several seeds, set seeds"
                )
        # The hardware checks its own settings: device, precision, width.
        self.hardware()
        if self.address is not None and self.engine != "ray":
            raise SettingError(
                f"Experiment.address needs engine ray, got {self.address!r} with engine {self.engine}"
            )
        # A test score must not decide when to stop.
        if self.stop_after is not None and self.validation_share is None:
            raise SettingError(
                f"Experiment.stop_after {self.stop_after} needs validation scores: set validation_share, such as 0.2"
            )
        # Each engine says which settings it does not support.
        if self.engine == "flower":
            self._check_flower()
        elif self.engine != "inprocess":
            ENGINES.find(self.engine).check(self)

    def _check_flower(self) -> None:
        """Raise an error if Flower is not installed, or if a setting is one that its clients do not support."""
        if any(importlib.util.find_spec(package_name) is None for package_name in ("flwr", "ray")):
            raise UserError("engine flower needs Flower and Ray: pip install 'coterie[flower]'")
        # Each of Flower's clients trains alone, on the processor.
        unsupported = (
            ("width", None),
            ("device", "cpu"),
            ("precision", "fp32"),
            ("eval_clients", None),
        )
        for setting_name, supported in unsupported:
            setting_value = getattr(self, setting_name)
            if setting_value not in (None, supported):
                raise SettingError(
                    f"Experiment.{setting_name} needs engine inprocess, got {setting_value} with engine flower"
                )
        if "optimizer" in self.training.own_code:
            raise SettingError(
                f"Training.optimizer {self.training.optimizer} needs engine inprocess or ray, got flower"
            )
        if isinstance(self.setup, OwnWorld):
            # Each client's process makes the world anew.
            if not self.setup.source:
                raise SettingError(
                    "engine flower needs a function that makes the world, in a module that can be imported"
                )
            return
        # Flower's clients make their data once, and see no other client's update.
        drift = self.setup.drift.kind
        if drift != "none":
            raise SettingError(
                f"Scenario.drift {drift} needs engine inprocess, got flower, whose clients keep their data"
            )
        attack = self.setup.adversaries.attack
        if attack in COLLUDING:
            raise SettingError(
                f"Scenario.attack {attack} needs engine inprocess, "
                "got flower, which hides other clients' updates"
            )

    def hardware(self, workers: int | None = None) -> Hardware:
        """The hardware settings of the runs, with ``workers`` in place of the experiment's if it is given.

        A precision that is not measured yet counts as fp32.
        """
        return Hardware(
            workers=workers or self.workers,
            width=self.width,
            device=self.device,
            precision="fp32" if self.precision == MEASURED else self.precision,
        )

    def check_calendar(self) -> None:
        """Check that newcomers join and leavers leave before the run ends.

        Raises:
            SettingError: The round in which clients join or leave is after the last round.
        """
        if isinstance(self.setup, OwnWorld):
            return
        # Who joins or leaves after the last round would never do so: likely a mistake.
        attendance = self.setup.attendance
        after_last_round = f"is after the last round, {self.rounds}: no client would"
        if attendance.newcomers and attendance.join_round > self.rounds:
            raise SettingError(
                f"Scenario.join_round {attendance.join_round} {after_last_round} join"
            )
        if attendance.leavers and attendance.leave and attendance.leave[0] > self.rounds:
            raise SettingError(f"Scenario.leave {list(attendance.leave)} {after_last_round} leave")

    def check_consent(self, model_name: str) -> None:
        """Check that the caller allows the import of a model, or of the scenario, that a recorded file names.

        Args:
            model_name: The name of the model.

        Raises:
            UserError: The name stands for code, and the caller has not allowed its import.
        """
        if self.origin is not None and not self.origin.trusted:
            check_consent(model_name, self.origin.file)
            self.origin.check_scenario(self.setup)

    def check_secret(self) -> None:
        """Check that the boundary has the secret with which the experiment began.

        Raises:
            UserError: The secret is missing or is another one.
        """
        # A new experiment may have any secret, and a recorded one without a secret none.
        origin = self.origin
        if origin is None or origin.secret is None:
            return
        difference = unlike_secret(self.boundary.secret, origin.secret)
        if difference:
            raise UserError(f"{origin.file} was recorded with a boundary secret{difference}")

    def world(self, seed: int) -> World:
        """The scenario's clients and data.

        Args:
            seed: The seed of the world.

        Returns:
            The world.

        Raises:
            UserError: See :meth:`check_consent`.
        """
        self.check_consent(self.setup.model)
        if self.origin is not None and not self.origin.trusted:
            for kind, name in self.training.own_code.items():
                check_consent(name, self.origin.file, kind)
        world = augmented(replace(self.setup, training=self.training).build(seed, self.data))
        if self.validation_share is None:
            return world
        return set_aside(world, self.validation_share, seed)

    def spec(self) -> Spec:
        """All settings as tables, except a boundary's secret and the address of a cluster.

        If there are none, :func:`make` gives this experiment again.
        """
        # The scenario and the methods by name, each with all of its settings.
        scenario_table: dict[str, Any] = {"name": self.scenario}
        if isinstance(self.setup, Scenario):
            scenario_table |= plain(self.setup, without=("training",))
        tables: Spec = {"scenario": scenario_table}
        tables["methods"] = list(map(method_table, self.methods))
        # TOML has no value for None, so such settings are left out.
        for setting_name in PLAIN_SETTINGS:
            setting_value = getattr(self, setting_name)
            if setting_name != "address" and setting_value is not None:
                tables[setting_name] = setting_value
        tables["seeds"] = list(self.seeds)
        # A record never has the secret, and the address of a cluster is this user's.
        hidden_names = ("secret",) if self.boundary.secret is not None else ()
        tables["training"] = plain(self.training)
        tables["boundary"] = plain(self.boundary, without=hidden_names)
        tables["robust"] = plain(self.robust)
        return tables


class Engine(Protocol):
    """Runs the rounds of an experiment elsewhere than in processes of this machine.

    An entry point in ``coterie.engines`` names such an object, or a module with the three functions.
    """

    def check(self, experiment: Experiment) -> None:
        """Raise an error if something is not installed, or if a setting is one that it does not support."""

    def prepare(self, experiment: Experiment, seed: int, maker: Callable[[], World]) -> None:
        """Try what can fail before a run's first file is written; ``maker`` makes the run's world."""

    def rounds(
        self,
        experiment: Experiment,
        method: Method[Any],
        world: World,
        maker: Callable[[], World],
        *,
        seed: int,
        start: Position | None,
        workers: int | None,
    ) -> Iterator[Round]:
        """Yield the rounds after ``start``, the same as in one process."""
        ...


ENGINES: Registry[Engine] = Registry(
    "coterie.engines",
    "an engine, with functions check, prepare and rounds,",
    accepts=lambda name, engine: all(
        callable(getattr(engine, part, None)) for part in ("check", "prepare", "rounds")
    ),
)
"""The engines of extensions by name."""


PLAIN_SETTINGS = (
    "rounds",
    "target",
    "eval_every",
    "eval_clients",
    "validation_share",
    "stop_after",
    "checkpoint_every",
    "checkpoints_kept",
    "workers",
    "width",
    "device",
    "precision",
    "engine",
    "address",
    "data",
)
"""Settings of an experiment that are single values."""

KNOWN_KEYS = (
    "scenario",
    "methods",
    "rounds",
    "seed",
    "seeds",
    *PLAIN_SETTINGS[1:],
    "training",
    "boundary",
    "robust",
)
"""Keys of an experiment's tables."""


@public
def read(path: Path | str, *, trust_code: bool = False, secret: int | None = None) -> Spec:
    """Read an experiment from a TOML file.

    Args:
        path: An experiment file, or a ``run.toml`` or ``experiment.toml`` that Coterie recorded.
        trust_code: Whether a model, a scenario or a method that a recorded file names as
            ``package.module:Name`` may be imported.
        secret: The boundary's secret, if a recorded file had one; None for the environment's
            COTERIE_SECRET.

    Returns:
        The experiment as tables, for :func:`make`. They may be changed before.

    Raises:
        UserError: The file cannot be read, or is a recorded file that has been changed or damaged.
    """
    path = Path(path)
    # A recorded file has a schema version and a checksum; the user's own has neither.
    document = read_any(path)
    if not document:
        raise UserError(f"{path} is empty: it does not describe an experiment")
    origin_entry: dict[str, Any] = {}
    if "schema" in document:
        document, origin = _without_record(document, path, trust_code, secret)
        origin_entry["origin"] = origin
    elif path.name == RUN_FILE or (path.parent / ROUNDS_FILE).exists() or _of_runs(path):
        # It may be another person's.
        place_hint = f"keep your own experiment files outside run directories, and do not name them {RUN_FILE}"
        raise UserError(f"{path} has no schema version, so Coterie did not record it; {place_hint}")
    # Messages about the content of a file begin with its path.
    try:
        return {**normal(document), **origin_entry}
    except UserError as error:
        raise UserError(f"{path}: {error}") from error


def _without_record(
    document: Mapping[str, Any], file_path: Path, trust_code: bool, secret: int | None
) -> tuple[dict[str, Any], Origin]:
    """The experiment in a recorded file, which has other entries besides, and where it is from."""
    # Whoever answers at an address could run code here.
    if "address" in document:
        raise UserError(
            f"{file_path} has an address of a Ray cluster, which Coterie does not record: it was changed"
        )
    tables = dict(document)
    for entry_name in ("schema", "world", "versions", "secret"):
        tables.pop(entry_name, None)
    # The record has a digest of the secret; the secret comes from the caller.
    recorded_secret = document.get("secret")
    if recorded_secret is not None:
        given_secret = secret_of_environment() if secret is None else secret
        if given_secret is not None:
            tables["boundary"] = {**tables["boundary"], "secret": given_secret}
    return tables, Origin(file=str(file_path), secret=recorded_secret, trusted=trust_code)


def _of_runs(file_path: Path) -> bool:
    """Whether a file has the name and the place of the recorded experiment of several runs."""
    return file_path.name == EXPERIMENT_FILE and any(
        file_path.parent.glob(f"*-seed[0-9]*/{ROUNDS_FILE}")
    )


@public
def normal(document: Mapping[str, Any]) -> Spec:
    """The normal form of an experiment's tables.

    Args:
        document: The tables, in any form that an experiment file may have.

    Returns:
        The tables in the form :data:`Spec`.

    Raises:
        SettingError: A key is unknown (the message names the most similar key), or a value is of
            the wrong kind.
    """
    for key in document:
        if key not in KNOWN_KEYS and not (key == "origin" and isinstance(document[key], Origin)):
            raise no_setting("an experiment", key, KNOWN_KEYS, document[key])
    # Names become tables, and a number of seeds a list.
    spec: Spec = dict(document)
    spec["scenario"] = _named("scenario", document.get("scenario", DEMO_SCENARIO))
    # Without methods, those of the demo run.
    method_list = document.get("methods", list(DEMO_METHODS))
    if not isinstance(method_list, Sequence) or isinstance(method_list, str):
        raise SettingError(f"methods must be a list of names or tables, got {method_list!r}")
    spec["methods"] = [_named("methods", method) for method in method_list]
    for table_name in ("training", "boundary", "robust"):
        spec[table_name] = document.get(table_name, {})
        if not isinstance(spec[table_name], Mapping):
            got_words = (
                "; the value is not shown: it may be a secret"
                if table_name == "boundary"
                else f", got {spec[table_name]!r}"
            )
            raise SettingError(f"{table_name} must be a table of settings{got_words}")
        spec[table_name] = dict(spec[table_name])
    # `seed` is one seed, `seeds` a list of them or their number.
    if "seed" in spec and "seeds" in spec:
        raise SettingError("use only one of seed and seeds")
    if "seed" in spec:
        spec["seeds"] = [spec.pop("seed")]
    spec["seeds"] = listed_seeds(spec.get("seeds", [0]))
    return spec


@public
def listed_seeds(seeds: Any) -> Any:
    """Return the seeds 0, 1, ... for a number of seeds; a list as it is, which the experiment checks."""
    if not isinstance(seeds, int) or isinstance(seeds, bool):
        return seeds
    if seeds > MOST_SEEDS:
        raise SettingError(
            f"seeds must be a list, or a number of at most {MOST_SEEDS:,}, got {seeds}"
        )
    return list(range(seeds))


def _named(setting_name: str, setting_value: Any) -> dict[str, Any]:
    # A name alone stands for a table without further settings.
    if isinstance(setting_value, str):
        return {"name": setting_value}
    if not isinstance(setting_value, Mapping) or not isinstance(setting_value.get("name"), str):
        raise SettingError(
            f"{setting_name} must be a name or a table with a name, got {setting_value!r}"
        )
    return dict(setting_value)


@public
def own(
    made: Any, methods: Sequence[str | Method[Any]] | str | Method[Any], **settings: Any
) -> Experiment:
    """Make an experiment over your own world.

    Args:
        made: The world, a function that makes the world of a seed, or a scenario or its name.
        methods: Names of methods, or methods with their settings; one or several.
        **settings: Further fields of :class:`Experiment`: rounds, seeds, ...; training, boundary
            and robust as objects or as tables of their settings.

    Returns:
        The experiment. Its local training is the world's own, unless ``training`` is given.

    Raises:
        UserError: A name is unknown, a setting is wrong, or the function fails.
    """
    if not isinstance(made, Scenario | World | str) and not callable(made):
        accepted_words = (
            "an Experiment, a World, a scenario, or a function that makes the world of a seed"
        )
        raise SettingError(f"begin takes {accepted_words}, got {made!r:.60}")
    # A scenario is recorded by a name and all of its settings, also if some were changed.
    if isinstance(made, Scenario):
        chosen_setup: Scenario | OwnWorld = made
        scenario_name = label(made)
    else:
        chosen_setup = find(made) if isinstance(made, str) else OwnWorld.of(made)
        scenario_name = made if isinstance(made, str) else OwnWorld.of(made).name
    if "data" in settings and isinstance(chosen_setup, OwnWorld):
        raise SettingError(
            "data is the folder of a scenario's data set, and a world has its own data: leave it out"
        )
    given_methods: Any = methods
    # One method may be given without a list.
    is_list = isinstance(given_methods, Iterable) and not isinstance(given_methods, str | Mapping)
    method_list = list(given_methods) if is_list else [given_methods]
    known_names = settings_of(Experiment, hidden=("scenario", "setup", "methods", "origin"))
    for key in settings:
        if key not in known_names:
            raise no_setting(
                "an experiment", key, ("methods", *known_names), settings[key], beside=method_list
            )
    # The methods and tables as objects, with every setting checked.
    chosen_methods = tuple(map(made_method, method_list))
    for name, table_class in (("boundary", Boundary), ("robust", Robust)):
        if name in settings:
            settings[name] = table_of(name, settings[name], table_class())
    # The seeds, then the training, which may need the world of the first of them.
    seeds = listed_seeds(settings.pop("seeds", (0,)))
    if not isinstance(seeds, Iterable) or isinstance(seeds, str):
        raise SettingError(
            f"seeds must be a list of whole numbers, or a number of seeds, got {seeds!r:.60}"
        )
    seeds = tuple(seeds)
    training = settings.pop("training", {})
    if not isinstance(training, Training):
        # The world is only made if it alone says how its clients train.
        base_training = (
            chosen_setup.training or chosen_setup.build(seeds[0] if seeds else 0).training
        )
        training = table_of("training", training, base_training)
    return Experiment(
        scenario=scenario_name,
        setup=chosen_setup,
        methods=chosen_methods,
        training=training,
        seeds=seeds,
        **settings,
    )


@public
def make(
    spec: Mapping[str, Any], own_methods: Mapping[str, type[Any]] = MappingProxyType({})
) -> Experiment:
    """Make an experiment and check every setting.

    Args:
        spec: The experiment's tables.
        own_methods: Name -> class of a user's own methods.

    Returns:
        The experiment.

    Raises:
        UserError: A name is unknown or a setting is wrong.
    """
    spec = normal(spec)
    scenario_name = spec["scenario"].pop("name")
    # The scenario by its name, with the settings of its table.
    chosen_setup = _changed_setup(find(scenario_name), spec["scenario"])
    # Each method from its table, by its class. A class is only imported with consent.
    if "origin" in spec:
        spec["origin"].check_methods(spec["methods"], own_methods)
    chosen_methods = [made_of_table(table, own_methods) for table in spec["methods"]]
    # Settings that the tables leave out have their defaults.
    plain_settings = {name: spec[name] for name in (*PLAIN_SETTINGS, "seeds") if name in spec}
    return Experiment(
        scenario=scenario_name,
        setup=chosen_setup,
        methods=tuple(chosen_methods),
        training=_training(chosen_setup, spec),
        boundary=changed(Boundary(), spec["boundary"], "boundary"),
        robust=changed(Robust(), spec["robust"], "robust"),
        origin=spec.get("origin"),
        **plain_settings,
    )


OWN_FIELDS = ("source", "made", "training")
"""Fields of your own world that are not settings."""


def _changed_setup(setup: Scenario | OwnWorld, changes: Mapping[str, Any]) -> Scenario | OwnWorld:
    """The scenario with changed settings; those of local training have their own table."""
    if isinstance(setup, OwnWorld):
        own_world: OwnWorld = changed(setup, changes, "scenario", hidden=OWN_FIELDS)
        return own_world
    if "training" in changes:
        raise SettingError(
            "scenario has no setting 'training'; write it as its own table, [training]"
        )
    return replace(setup, **changes)


def _training(setup: Scenario | OwnWorld, spec: Mapping[str, Any]) -> Training:
    """The scenario's training, with the changes of ``spec``; your own world is only made if ``spec`` leaves out a setting."""
    base_training = setup.training
    # If every setting is given, it does not matter what they are changes to.
    if base_training is None and set(settings_of(Training)) <= set(spec["training"]):
        base_training = Training()
    if base_training is None:
        # A recorded file has every setting, unless somebody has removed some.
        if "origin" in spec:
            spec["origin"].check_scenario(setup)
        base_training = setup.build(spec["seeds"][0]).training
    return changed(base_training, spec["training"], "training")


@public
def data_folder(data: str | os.PathLike[str] | None) -> str | None:
    """``data``, or the environment's COTERIE_DATA, as an absolute path: a run may be resumed from another folder."""
    data = data or os.environ.get("COTERIE_DATA")
    return str(expanded(data).absolute()) if data else None
