"""Scenarios as settings: the data set, its division among clients, the shifts, and the training.

A :class:`Scenario` consists of parts, each beside the code that uses it. ``build`` makes the
:class:`~coterie.data.world.World` that an engine runs. It depends only on the settings, the seed
and the data. :data:`SCENARIOS` has the named scenarios; clients with their own data come from a
table or a folder, or from :func:`coterie.from_frame` and :func:`coterie.from_lists`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import InitVar, dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar

import numpy as np
import torch

from coterie.core import Groups, Training, as_groups
from coterie.data import datasets
from coterie.data.adversaries import AdversarySettings
from coterie.data.attendance import AttendanceSettings
from coterie.data.augmentation import crop_and_flip
from coterie.data.datasets import DATASETS, OWN_DATA
from coterie.data.datasets.source import FAMILIES, OWN_SOURCES, DatasetSettings, settings_class
from coterie.data.datasets.table import is_table_file
from coterie.data.drift import DriftSettings, Schedule, schedule
from coterie.data.examples import Dataset, Pool
from coterie.data.objective import Objective
from coterie.data.partition import RENEWABLE, PartitionSettings, Parts
from coterie.data.parts import ScenarioPart, combined, flat_names
from coterie.data.presets import PRESETS
from coterie.data.scaling import ScalingSettings, standardized
from coterie.data.shift import SHIFTS, Shift, ShiftSettings, deal
from coterie.data.splits import HoldOutSettings, Selections, Views, hold_out
from coterie.data.world import ClientData, Drift, World, with_attacks
from coterie.extensions import imported
from coterie.files import expanded
from coterie.models import nets
from coterie.randomness import Purpose, numpy_generator, seeded
from coterie.settings import (
    NamedTable,
    SettingError,
    UserError,
    build,
    check,
    no_setting,
    setting,
    settings_of,
)
from coterie.settings.calls import CallError, public

_PART_CLASSES: tuple[type[ScenarioPart], ...] = (
    DatasetSettings,
    PartitionSettings,
    ShiftSettings,
    HoldOutSettings,
    AttendanceSettings,
    DriftSettings,
    AdversarySettings,
    ScalingSettings,
)

SCENARIO_PARTS: Mapping[str, type[ScenarioPart]] = MappingProxyType(
    {part_class.part: part_class for part_class in _PART_CLASSES}
)
"""Name of a part -> its class; the data set of a scenario has a class with its options."""

OPTIONS_OF: Mapping[str, type[DatasetSettings]] = MappingProxyType(
    {
        **{name: source.options for name, source in DATASETS.items()},
        **{name: source.options for name, source in OWN_SOURCES.items()},
        **{family.pattern: family.options for family in FAMILIES},
    }
)
"""Data set, or family of data sets -> the class of its settings."""

DATASET_CLASSES = tuple(dict.fromkeys(OPTIONS_OF.values()))
"""The classes of the settings of all data sets."""


@public
@dataclass(frozen=True, kw_only=True, init=False)
class Scenario:
    """The settings of a world: the clients' data, the shift between groups, and the training.

    Settings of a part may be given by their own names: ``Scenario(alpha=0.1)`` is
    ``Scenario(partition={"alpha": 0.1})``, and the name of a part stands for its main setting:
    ``Scenario(partition="dirichlet")``. ``dataclasses.replace(scenario, clients=12, alpha=0.1)``
    changes single settings; the others of a part stay.
    """

    about: str = setting("", "description in one sentence")
    dataset: DatasetSettings = field(default=DatasetSettings())
    partition: PartitionSettings = field(default=PartitionSettings())
    shift: ShiftSettings = field(default=ShiftSettings())
    clients: int = setting(20, "number of clients", ge=1, le=10_000_000)
    groups: int = setting(
        4,
        "number of groups, where the shift or the classes partition makes groups",
        ge=1,
        le=10_000,
        only_with={"shift": tuple(SHIFTS[1:]), "partition": ("classes",)},
    )
    shuffle: bool = setting(
        True,
        "assign clients to groups in random order; false: in turn",
        only_with={
            "shift": tuple(SHIFTS[1:]),
            "partition": ("classes", "population", "domain", "topic"),
        },
    )
    holdout: HoldOutSettings = field(default=HoldOutSettings())
    model: str = setting("mlp", "name of the model, or package.module:Name")
    training: Training = setting(Training(), "local training")
    metrics: tuple[str, ...] = setting(
        (), "names of metrics, the main one first, such as AUROC; empty: those of the task"
    )
    buffers: tuple[str, ...] = setting(
        ("*",), "float buffers of the model that are averaged, such as norm.*; empty: none"
    )
    augment: bool = setting(False, "shift and mirror training images at random")
    attendance: AttendanceSettings = field(default=AttendanceSettings())
    drift: DriftSettings = field(default=DriftSettings())
    adversaries: AdversarySettings = field(default=AdversarySettings())
    scaling: ScalingSettings = field(default=ScalingSettings())

    base: InitVar[Scenario | None] = None
    """The scenario whose settings are changed, in place of the defaults."""

    base_name: ClassVar[str] = ""
    """The name of the named scenario whose settings were changed; empty if there is none. It is a label
    alone: equal settings are equal scenarios."""

    def __init__(self, **settings: Any) -> None:
        base = settings.pop("base", None)
        if base is not None:
            object.__setattr__(self, "base_name", base.base_name)
        # The training is no part with flat names: its table becomes a Training as a whole.
        if isinstance(settings.get("training"), Mapping):
            settings["training"] = build(Training, settings["training"])

        # Start from the base scenario, or from the defaults, and change its parts.
        unchanged: dict[str, Any] = {}
        for scenario_field in dataclasses.fields(self):
            field_name = scenario_field.name
            default_value = scenario_field.default
            unchanged[field_name] = (
                default_value if base is None else getattr(base, field_name, default_value)
            )
        base_parts = {part_name: unchanged[part_name] for part_name in SCENARIO_PARTS}
        parts, other_settings = combined(base_parts, settings, _class_of)

        # What is neither a field nor a setting of a part is an error, with one exception.
        for field_name, field_value in {**unchanged, **other_settings, **parts}.items():
            if field_name in unchanged:
                object.__setattr__(self, field_name, field_value)
            else:
                raise self._unknown(field_name, field_value, parts, settings)
        self._check()

    def _unknown(
        self,
        name: str,
        value: Any,
        parts: Mapping[str, ScenarioPart],
        changes: Mapping[str, Any],
    ) -> SettingError:
        """The error for a name that is not a setting of this scenario."""
        dataset = parts["dataset"]
        assert isinstance(dataset, DatasetSettings)
        # It may be an option of another data set, which the message then names.
        owners = datasets_with(name)
        if owners:
            noun = "data set" if len(owners) == 1 else "data sets"
            return SettingError(
                f"Scenario.{name} is for the {noun} {' and '.join(owners)}, got {dataset.name}"
            )
        setting_names = self.setting_names(dataset.name)
        error = no_setting("Scenario", name, setting_names, value, list(changes.values()))
        return CallError(*error.args)

    @classmethod
    def setting_names(cls, dataset: str | None = None) -> list[str]:
        """The names of all settings, those of parts by their flat names.

        Args:
            dataset: The name of the data set, whose options are among them; None for those of all.
        """
        # In place of the data set's own field stand the options of one data set, or of all.
        dataset_classes = DATASET_CLASSES if dataset is None else (settings_class(dataset),)
        flat_setting_names: list[str] = []
        for name in settings_of(cls):
            if name == "dataset":
                flat_setting_names += flat_names(dataset_classes)
            elif name in SCENARIO_PARTS:
                flat_setting_names += SCENARIO_PARTS[name].flat_names()
            else:
                flat_setting_names.append(name)
        return flat_setting_names

    @classmethod
    def default_of(cls, name: str) -> Any:
        """The default of a setting, by its flat name."""
        for part_class in (*SCENARIO_PARTS.values(), *DATASET_CLASSES):
            defaults_of_part = {
                part_field.name: part_field.default for part_field in dataclasses.fields(part_class)
            }
            if name == part_class.part and part_class.main:
                return defaults_of_part[part_class.main]
            if name != part_class.main and name in defaults_of_part:
                return defaults_of_part[name]
        for scenario_field in dataclasses.fields(cls):
            if scenario_field.name == name:
                return scenario_field.default
        raise KeyError(name)

    def flat(self) -> dict[str, Any]:
        """All settings by their flat names: ``Scenario(**scenario.flat())`` is the same scenario."""
        settings: dict[str, Any] = {}
        for name in settings_of(type(self)):
            value = getattr(self, name)
            settings |= value.flat() if isinstance(value, ScenarioPart) else {name: value}
        return settings

    def _check(self) -> None:
        """Check all settings, and that the parts fit together."""
        check(self)
        # Clients that have their own data go with the partition that divides nothing.
        own_data = self.dataset.name in OWN_DATA
        if own_data != (self.partition.kind == "clients"):
            raise SettingError(
                f"the partition clients goes together with the data sets {', '.join(OWN_DATA)}, "
                "whose clients have their own data"
            )
        if own_data:
            self._check_undivided()
        # New examples in each time step, and standardized targets, need the data for them.
        if self.drift.renew and self.partition.kind not in RENEWABLE:
            raise SettingError(
                f"Scenario.renew needs a partition of {', '.join(RENEWABLE)}, "
                f"got {self.partition.kind}"
            )
        if self.scaling.standardize_target != "none" and not self.dataset.has_targets:
            raise SettingError(
                "Scenario.standardize_target is for numbers to predict, in the data set table; "
                f"{self.dataset.name} has classes"
            )
        # The names of metrics must be known; the world's objective gets them later.
        if self.metrics:
            Objective(metrics=self.metrics)

    def _check_undivided(self) -> None:
        """Check that nothing divides or shifts data that are the clients' own."""
        dataset_name = self.dataset.name
        if self.shift.kind != "none" or self.holdout.test != "share":
            raise SettingError(
                f"clients of the data set {dataset_name} keep their own data: shift must be none and "
                "test share"
            )
        if self.drift.kind != "none":
            raise SettingError(
                f"Scenario.drift must be none for the data set {dataset_name}, got {self.drift.kind}"
            )
        # Every setting that divides or shifts data must have its default.
        expected_settings = {**PartitionSettings(kind="clients").flat(), **ShiftSettings().flat()}
        expected_settings |= {"clients": Scenario.clients, "groups": Scenario.groups}
        actual_settings = self.flat()
        for setting_name in ("clients", "groups", *expected_settings):
            if actual_settings[setting_name] != expected_settings[setting_name]:
                own_number = (
                    f": there is {OWN_DATA[dataset_name]}" if setting_name == "clients" else ""
                )
                raise SettingError(
                    f"Scenario.{setting_name} is for data that are divided among clients, and "
                    f"clients of the data set {dataset_name} have their own{own_number}; leave it out"
                )

    def build(self, seed: int = 0, folder: Path | str | None = None) -> World:
        """Make the world of ``seed``; its clients have the ids 0, 1, ...

        The truth is the groups that the settings make. It is one group if all clients have the same
        distribution, and None if each client has its own.

        Args:
            seed: Seed of all draws.
            folder: Folder of the data files, or the file of a table; None takes the environment
                variable COTERIE_DATA.

        Returns:
            The world.

        Raises:
            UserError: The data do not fit the settings.
        """
        # Clients with their data first; adversaries, metrics and attendance are added to these.
        self._check_file(folder)
        world = self._honest(seed, folder)
        world = with_attacks(world, self.adversaries.draw(world.clients, seed))
        if self.metrics:
            world = replace(
                world, objective=replace(world.objective, metrics=self.metrics, main="")
            )
        attendance = self.attendance.draw(world.clients, seed, world.ids)
        return replace(world, attendance=attendance, buffers=self.buffers)

    def _check_file(self, folder: Path | str | None) -> None:
        """Check that a table is given only to the data set that reads one."""
        if folder is not None and self.dataset.name != "table" and is_table_file(Path(folder)):
            raise SettingError(
                f"data is the table {folder}, and the data set is {self.dataset.name}, which does "
                "not read it; for clients of a table use the scenario table/clients"
            )

    def _honest(self, seed: int, folder: Path | str | None) -> World:
        """The world without adversaries, in which all clients are always present and answer."""
        if self.dataset.name in OWN_DATA:
            return self._of_own(seed, folder)
        # The data set, with all of its examples.
        source = datasets.find(self.dataset.name, folder)
        dataset = datasets.read(source, self.dataset, folder, seed)
        has_drift = self.drift.kind != "none"

        # The groups: what makes them differ, and the group of each client in each time step. With
        # a drift a group is a concept.
        shift_rng = numpy_generator(seed, Purpose.SHIFT)
        shifts = self.shift.of_groups(self.groups, dataset, shift_rng, has_drift)
        groups_of_steps = self._groups(len(shifts), shift_rng)

        # The examples: each client's positions in the training pool, in each time step if the
        # drift brings new examples.
        sets_of_examples = len(groups_of_steps) if self.drift.renew else 1
        parts, partition_groups = self._parts(
            dataset.train,
            numpy_generator(seed, Purpose.PARTITION),
            sets_of_examples * self.clients,
        )
        clients_of_steps = self._clients(
            dataset, parts, partition_groups, shifts, groups_of_steps, seed
        )

        # The truth: the concepts of a drift, or else the groups of the shift and the partition.
        drift_of_world = None
        true_groups = None
        if has_drift:
            drift_of_world = Drift(
                period=self.drift.period,
                concepts=[
                    _concepts(partition_groups, groups, len(shifts)) for groups in groups_of_steps
                ],
                data=clients_of_steps,
            )
        else:
            true_groups = _truth(partition_groups, groups_of_steps[0] if len(shifts) > 1 else None)
        world = World(
            clients=clients_of_steps[0],
            model=nets.factory(self.model, dataset.shape, dataset.classes),
            training=self.training,
            objective=Objective(
                metrics=("accuracy", "perplexity") if dataset.words else ("accuracy",)
            ),
            truth=true_groups,
            augment=self._augmentation(dataset.shape),
            drift=drift_of_world,
        )
        return standardized(world, self.scaling.of_inputs)

    def _groups(self, groups: int, rng: np.random.Generator) -> list[np.ndarray]:
        """For each time step, the group or concept of each client, ``(n,)``; one without a drift."""
        if self.drift.kind == "none":
            return [deal(self.clients, groups, rng if self.shuffle else None)]
        # Which client gets which column of the schedule is random.
        concepts_of_steps: Schedule = schedule(
            self.drift.kind, self.clients, groups, self.drift.calm, self.drift.schedule
        )
        column_order = rng.permutation(self.clients) if self.shuffle else np.arange(self.clients)
        return [np.array(concepts)[column_order] for concepts in concepts_of_steps]

    def _of_own(self, seed: int, folder: Path | str | None) -> World:
        """The world of clients that have their own data."""
        # Read the clients' own data, then hold out their validation and test examples.
        source = OWN_SOURCES[self.dataset.name]
        is_folder = self.dataset.takes_folder and folder is not None and expanded(folder).is_dir()
        path = datasets.resolve(folder, self.dataset.name, file=source.is_file and not is_folder)
        data = source.read(path, self.dataset, nets.takes_tokens(self.model))
        return data.world(
            self.model,
            (self.holdout.train, self.holdout.validation),
            seed,
            self.holdout.samples,
            self.scaling.of_inputs,
            self.scaling.of_targets,
            training=self.training,
            augment=self._augmentation(data.shape),
        )

    def _augmentation(
        self, shape: tuple[int, ...]
    ) -> Callable[[torch.Tensor, torch.Generator], torch.Tensor] | None:
        if self.augment and len(shape) != 3:
            raise SettingError(f"Scenario.augment needs images, and the inputs have shape {shape}")
        return crop_and_flip if self.augment else None

    def _clients(
        self,
        dataset: Dataset,
        parts: Parts,
        partition_groups: np.ndarray | None,
        shifts: list[Shift],
        groups_of_steps: Sequence[np.ndarray],
        seed: int,
    ) -> list[dict[int, ClientData]]:
        """For each time step, client -> its data.

        ``parts`` has one part of each client, or one of each client for each time step after the
        other.
        """
        # A view has the examples as each group sees them, for example rotated.
        train_view = Views(dataset.train, shifts)
        # With several time steps, an example may be seen under several concepts.
        if len(groups_of_steps) == 1:
            train_view.turn_each(parts, groups_of_steps[0])
        test_view = train_view
        if self.holdout.test != "share":
            if dataset.test is None:
                raise SettingError(
                    f"{dataset.name} has no test pool: Scenario.test must be share, "
                    f"got {self.holdout.test!r}"
                )
            test_view = Views(dataset.test, shifts)
        # Which positions of each part are for training, validation and tests.
        cuts = self._cuts(dataset, parts, partition_groups, Selections(test_view.pool), seed)

        # A client that keeps its concept and its part keeps its data, the same object.
        data_of_part: dict[tuple[int, int], ClientData] = {}
        clients_of_steps: list[dict[int, ClientData]] = []
        for step, groups in enumerate(groups_of_steps):
            data_of_client: dict[int, ClientData] = {}
            for client, group in enumerate(map(int, groups)):
                part_number = client + (step * self.clients if self.drift.renew else 0)
                if (part_number, group) not in data_of_part:
                    train_positions, validation_positions, test_positions = cuts[part_number]
                    data_of_part[part_number, group] = ClientData(
                        train=train_view.split(train_positions, group),
                        validation=train_view.split(validation_positions, group),
                        test=test_view.split(test_positions, group),
                    )
                data_of_client[client] = data_of_part[part_number, group]
            clients_of_steps.append(data_of_client)
        return clients_of_steps

    def _parts(
        self, pool: Pool, rng: np.random.Generator, num_parts: int
    ) -> tuple[Parts, np.ndarray | None]:
        """Positions of each of the parts, and their true groups ``(num_parts,)`` if the partition makes groups."""
        return self.partition.divide(pool, num_parts, self.groups, self.shuffle, rng)

    def _cuts(
        self,
        dataset: Dataset,
        parts: Parts,
        partition_groups: np.ndarray | None,
        selections: Selections,
        seed: int,
    ) -> list[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]:
        """For each part, the positions of its training, validation and test examples."""
        holdout = self.holdout
        tests_are_shares = holdout.test == "share"
        # Clients of one domain, topic or population are tested with examples of the same.
        meta_column = self.partition.kind
        if partition_groups is None or meta_column not in selections.pool.meta:
            meta_column = ""
        cuts = []
        for part_number, part in enumerate(parts):
            # The draw depends on the client and the time step alone: another client changes
            # nothing.
            step, client = divmod(part_number, self.clients)
            cut_rng = numpy_generator(seed, Purpose.DATA, 1 + step, client)
            positions = cut_rng.permutation(part)[: holdout.samples]
            client_cut = hold_out(
                positions,
                holdout.train,
                holdout.validation,
                tests_are_shares,
                f"client {client}",
            )
            train_positions, validation_positions, test_positions = map(
                torch.from_numpy, client_cut
            )
            # Test examples come from upstream's test pool, by the client's own labels.
            if not tests_are_shares:
                shared_meta = None
                if meta_column:
                    assert partition_groups is not None
                    shared_meta = (meta_column, int(partition_groups[client]))
                labels = dataset.train.labels[positions]
                test_positions = selections.rows(holdout.test, labels, shared_meta)
            cuts.append((train_positions, validation_positions, test_positions))
        return cuts


# ``dataclasses.replace`` passes ``scenario.base`` on, and so keeps the other settings of a part whose
# main setting it changes.
setattr(Scenario, "base", property(lambda scenario: scenario))  # noqa: B010


def _class_of(part: str, main_value: Any) -> type[ScenarioPart]:
    """The class of a part: for a data set, that of its options."""
    if part == "dataset" and isinstance(main_value, str):
        return settings_class(main_value)
    return SCENARIO_PARTS[part]


def flattened(recorded_settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of a recorded scenario by their flat names.

    Args:
        recorded_settings: The settings; those of a part are a table.
    """
    flat_settings: dict[str, Any] = {}
    for name, value in recorded_settings.items():
        if name in SCENARIO_PARTS and isinstance(value, Mapping):
            for setting_name, inner_value in value.items():
                flat_settings[SCENARIO_PARTS[name].flat_name(setting_name)] = inner_value
        else:
            flat_settings[name] = value
    return flat_settings


def flat_name(part: str, setting_name: str, dataset: str) -> str:
    """Return the name under which a scenario has a setting of a part.

    Args:
        part: The name of the part, such as ``partition``.
        setting_name: The name of the setting in the table of the part.
        dataset: The name of the scenario's data set, whose options are settings of the part
            ``dataset``.

    Returns:
        The flat name.

    Raises:
        SettingError: The part has no such setting.

    Example:
        >>> flat_name("partition", "alpha", "digits"), flat_name("partition", "kind", "digits")
        ('alpha', 'partition')
    """
    part_class = _class_of(part, dataset)
    setting_names = settings_of(part_class)
    if setting_name not in setting_names:
        raise no_setting(f"scenario.{part}", setting_name, setting_names)
    return part_class.flat_name(setting_name)


def datasets_with(option: str) -> list[str]:
    """Return the names of the data sets that have an option of this name."""
    return [
        name
        for name, options in OPTIONS_OF.items()
        if option != options.main and option in settings_of(options)
    ]


def _concepts(
    partition_groups: np.ndarray | None, concepts: np.ndarray, concept_count: int
) -> dict[int, int]:
    """Client -> the number of its concept; clients of different groups of the partition have different numbers."""
    concept_of_client = {}
    for client, concept in enumerate(concepts):
        group = 0 if partition_groups is None else int(partition_groups[client])
        concept_of_client[client] = int(concept) + concept_count * group
    return concept_of_client


def _truth(partition_groups: np.ndarray | None, shift_groups: np.ndarray | None) -> Groups | None:
    """Groups of clients that the partition and the shift treat alike; None if neither makes groups."""
    # Two clients are alike if they are in the same group of each grouping.
    known_groupings = [groups for groups in (partition_groups, shift_groups) if groups is not None]
    if not known_groupings:
        return None
    clients_of_combination: dict[tuple[int, ...], list[int]] = {}
    for client, groups_of_client in enumerate(zip(*known_groupings, strict=True)):
        clients_of_combination.setdefault(tuple(map(int, groups_of_client)), []).append(client)
    return as_groups(clients_of_combination.values())


def _named(name: str) -> Scenario:
    """The scenario of this name, which changed copies of it keep."""
    scenario = Scenario(**PRESETS[name])
    object.__setattr__(scenario, "base_name", name)
    return scenario


SCENARIOS: Mapping[str, Scenario] = MappingProxyType(
    NamedTable("scenario", "coterie scenarios", {name: _named(name) for name in PRESETS})
)
"""Named scenarios: data set / heterogeneity -> scenario."""


def label(scenario: Scenario) -> str:
    """Return the name under which a scenario is recorded, together with all of its settings.

    Args:
        scenario: The scenario. A changed copy of a named one has its name; any other has that of the
            named scenario that differs from it in the fewest settings.

    Example:
        >>> label(replace(SCENARIOS["digits/dirichlet"], alpha=0.1))
        'digits/dirichlet'
    """
    if scenario.base_name:
        return scenario.base_name
    settings = scenario.flat()
    differences_from: dict[str, int] = {}
    for name, named_scenario in SCENARIOS.items():
        named_settings = named_scenario.flat()
        # The description is no difference. A data set may have options that others have not.
        differences_from[name] = sum(
            settings.get(key) != named_settings.get(key)
            for key in settings.keys() | named_settings.keys()
            if key != "about"
        )
    return min(differences_from, key=differences_from.__getitem__)


FEDERATION = "federation"
"""Name in place of a scenario for a run whose clients are nodes of a federation."""


class FederationScenario(Scenario):
    """The scenario of a run whose clients are nodes of a federation."""

    def build(self, seed: int = 0, folder: Path | str | None = None) -> World:
        """Raise :class:`~coterie.settings.UserError`: only the federation itself can continue its run."""
        raise UserError(
            "the clients of a federation are on other machines: to resume, start its ServerApp again with the same settings"
        )


OWN_WORLD = "own"
"""Name in place of a scenario for a run over a world that was given in Python, and has no name."""


@public
@dataclass(frozen=True, kw_only=True)
class OwnWorld:
    """The scenario of a run over your own world: a function that makes it, or the world itself.

    Attributes:
        source: The function as ``package.module:function``, called with the seed; empty if it has
            no such name.
        made: The world, or the function, if it was given in Python.
        training: Local training, in place of the world's own; None keeps that.
    """

    source: str = ""
    made: World | Callable[[int], World] | None = field(default=None, compare=False)
    training: Training | None = None
    about: ClassVar[str] = "your own world"
    model: ClassVar[str] = ""

    @classmethod
    def of(cls, made: World | Callable[[int], World]) -> OwnWorld:
        """Return the scenario of a world or a function, with the function's name if it can be imported by it."""
        # A name that can be imported again: not that of a lambda, nor of what the user's script
        # defines.
        module_name = getattr(made, "__module__", "")
        function_name = getattr(made, "__qualname__", "")
        is_importable = (
            not isinstance(made, World)
            and module_name not in ("", "__main__", None)
            and function_name.isidentifier()
        )
        return cls(source=f"{module_name}:{function_name}" if is_importable else "", made=made)

    @property
    def name(self) -> str:
        """The name of the scenario in records."""
        return self.source or OWN_WORLD

    def build(self, seed: int = 0, folder: Path | str | None = None) -> World:
        """Return the world of ``seed``.

        Args:
            seed: The seed, with which the function is called.
            folder: Not used: the function knows its data.

        Returns:
            The world.

        Raises:
            UserError: The function cannot be imported, fails, or makes no world.
        """
        # A run that continues may have only the function's name.
        made = self.made
        if made is None and self.source:
            made = imported(self.source, "scenario")
        if made is None:
            raise UserError(
                "the run began with a world given in Python: pass it to coterie.reopen(FOLDER, world=...) to continue"
            )
        world = made if isinstance(made, World) else self._called(made, seed)
        return world if self.training is None else replace(world, training=self.training)

    def _called(self, make_world: Callable[[int], World], seed: int) -> World:
        """The world that the user's function makes; its errors become one sentence."""
        try:
            # The seed is fixed, because a run that continues must have the same data.
            with seeded(seed, Purpose.OWN_CODE):
                world = make_world(seed)
        except UserError:
            raise
        except Exception as error:
            raise UserError(
                f"the scenario {self.name!r} fails with seed {seed}: {type(error).__name__}: {error}"
            ) from error
        if not isinstance(world, World):
            raise UserError(
                f"the scenario {self.name!r} must return a coterie.World, but returns {type(world).__name__}"
            )
        return world


def find(name: str) -> Scenario | OwnWorld:
    """Return the scenario called ``name``; ``package.module:function`` is a function that makes the world of a seed.

    Args:
        name: Name of the scenario.

    Returns:
        The scenario.

    Raises:
        UserError: The name is unknown; the message has the nearest known name.
    """
    # Worlds without settings first: a federation, and worlds of the user's own.
    if name == FEDERATION:
        return FederationScenario()
    if name == OWN_WORLD or ":" in name:
        return OwnWorld(source="" if name == OWN_WORLD else name)
    return SCENARIOS[name]
