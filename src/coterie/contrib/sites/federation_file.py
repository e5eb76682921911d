"""The one file of a federation of sites with tables, ``federation.toml``: written from a run, read by all.

It is an experiment's file (:mod:`coterie.runs.experiment`) with two more tables: ``table_schema``, what
the columns are, and ``federation``, what a run over all rows found out that sites cannot find out alone.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from coterie.contrib.sites.table_schema import MAX_TABLE_SCHEMA_BYTES, TableSchema, toml_text
from coterie.contrib.sites.worlds import FACT, WEIGHTS_FACT
from coterie.core import Method
from coterie.data.columns import listed
from coterie.data.datasets.table import TableSettings
from coterie.data.scenario import Scenario
from coterie.data.tasks import TASKS
from coterie.files import expanded, read_toml_file
from coterie.methods._named import method_table
from coterie.records.record import Record
from coterie.runs.experiment import Experiment, make
from coterie.settings import SettingError, UserError, build, known_list, nearest, plain, setting

FILE_NAME = "federation.toml"

SCENARIO = "table/clients"

SCENARIO_SETTINGS = (
    "client",
    "target",
    "columns",
    "subject",
    "order",
    "gap",
    "model",
    "metrics",
    "samples",
    "train",
    "validation",
    "standardize",
    "means",
    "deviations",
    "standardize_target",
    "target_means",
    "target_deviations",
)
"""Settings of the scenario that mean something at a site; all others are for data in one place."""

EXPERIMENT_ENTRIES = ("rounds", "eval_every", "seeds")

FEDERATION_HEADER = """\
# A federation of sites with tables: everything that must be the same at the server and at all sites.
# A site checks its rows with   coterie node federation.toml --client NAME --data FILE
"""


@dataclass(frozen=True, kw_only=True)
class CommonSettings:
    """The table ``federation``."""

    targets: tuple[str, ...] = setting((), "columns to predict, in order")
    task: str = setting("classification", "what is predicted", choices=(*TASKS[1:], "multi-label"))
    classes: tuple[str, ...] = setting((), "classes that any site may have, in order")
    sites: tuple[str, ...] = setting(
        (), "sites of the simulation, which hold out the same rows for tests as there"
    )
    masks: bool = setting(
        False,
        "whether sites send their sums for the constants under masks, so that the server learns only "
        "the sums over all sites; with boundary.masks they always do",
    )


@dataclass(frozen=True, kw_only=True)
class TableFederation:
    """A federation of sites with tables.

    Attributes:
        experiment: The method, local training, privacy, limits, and the scenario.
        schema: What the columns are, with rules or with constants.
        common: The table ``federation``.
    """

    experiment: Experiment
    schema: TableSchema
    common: CommonSettings

    def __post_init__(self) -> None:
        if not self.common.targets:
            raise SettingError("federation.targets must name the columns to predict")
        if len(self.experiment.methods) != 1 or len(self.experiment.seeds) != 1:
            raise SettingError("a federation has one method and one seed")
        if self.common.task == "classification" and len(self.common.classes) < 2:
            raise SettingError(
                f"federation.classes must have two classes or more, got {listed(self.common.classes)}"
            )
        _check_no_code("model", self.scenario.model)

    @property
    def scenario(self) -> Scenario:
        """The scenario."""
        setup = self.experiment.setup
        assert isinstance(setup, Scenario)
        return setup

    @property
    def table(self) -> TableSettings:
        """The columns of the scenario."""
        options = self.scenario.dataset
        assert isinstance(options, TableSettings)
        return options

    @property
    def method(self) -> Method[Any]:
        """The method."""
        return self.experiment.methods[0]

    @property
    def seed(self) -> int:
        """The seed."""
        return self.experiment.seeds[0]

    @property
    def client_column(self) -> str:
        """The column that named the site of a row in the simulation."""
        return self.table.client or self.schema.client or "site"

    @property
    def masks(self) -> bool:
        """Whether sites send their sums for the constants under masks."""
        return self.common.masks or self.experiment.boundary.masks

    @property
    def outputs(self) -> int:
        """The number of the model's outputs."""
        common = self.common
        return len(common.classes if common.task == "classification" else common.targets)

    @property
    def facts(self) -> dict[str, Any]:
        """What a site must take from here, as ``World.about`` has it."""
        facts: dict[str, Any] = {"targets": list(self.common.targets), "task": self.common.task}
        if self.common.classes:
            facts["classes"] = list(self.common.classes)
        return facts

    @property
    def digest(self) -> str:
        """A digest of the file's content, the same for equal settings."""
        return hashlib.blake2b(self.toml().encode(), digest_size=16).hexdigest()

    def toml(self) -> str:
        """The text of the file."""
        experiment = self.experiment
        flat_settings = self.scenario.flat()
        scenario_table: dict[str, Any] = {"name": SCENARIO}
        for name in SCENARIO_SETTINGS:
            value = flat_settings[name]
            if value is not None and value not in ((), ""):
                scenario_table[name] = list(value) if isinstance(value, tuple) else value
        hidden = ("secret",) if experiment.boundary.secret is not None else ()
        document = {
            **{name: getattr(experiment, name) for name in EXPERIMENT_ENTRIES},
            "scenario": scenario_table,
            "methods": [method_table(self.method)],
            "training": plain(experiment.training),
            "boundary": plain(experiment.boundary, without=hidden),
            "robust": plain(experiment.robust),
            "federation": plain(self.common),
            "table_schema": self.schema.document(),
        }
        document["seeds"] = list(experiment.seeds)
        return FEDERATION_HEADER + toml_text(document)

    @classmethod
    def of(cls, document: Mapping[str, Any], context: str) -> TableFederation:
        """Read a document of the file.

        Args:
            document: The document, possibly edited by hand.
            context: Where it comes from, for messages.

        Raises:
            UserError: A setting is not allowed.
        """
        tables = dict(document)
        for name in ("federation", "table_schema"):
            if not isinstance(tables.get(name), Mapping):
                raise SettingError(
                    f"{context} must have a table [{name}]: coterie federation writes one"
                )
        known_entries = (
            *EXPERIMENT_ENTRIES,
            *(
                "scenario",
                "methods",
                "training",
                "boundary",
                "robust",
                "federation",
                "table_schema",
            ),
        )
        for name in tables:
            if name not in known_entries:
                raise SettingError(
                    f"{context} has no entry {name!r}{nearest(name, known_entries)}{known_list(known_entries)}"
                )
        # The file travels from the server to the sites: no code that it names is imported.
        for method in tables.get("methods", ()):
            _check_no_code("method", method.get("name") if isinstance(method, Mapping) else method)
        common_table = tables.pop("federation")
        schema = TableSchema.of(tables.pop("table_schema"), context)
        try:
            common: CommonSettings = build(CommonSettings, common_table, owner="federation")
            return cls(experiment=make(tables), schema=schema, common=common)
        except UserError as error:
            raise SettingError(f"{context}: {error}") from None

    @classmethod
    def from_file(cls, path: Path | str) -> TableFederation:
        """Read a file.

        Raises:
            UserError: The file cannot be read, or a setting is not allowed.
        """
        document = read_toml_file(path, "the federation", MAX_TABLE_SCHEMA_BYTES)
        return cls.of(document, str(path))

    @classmethod
    def from_run(
        cls,
        folder: Path | str,
        *,
        schema_file: Path | str | None = None,
        constants: bool = False,
        masks: bool = False,
    ) -> TableFederation:
        """Make the federation of a run's settings.

        Args:
            folder: The run directory of a simulation over tables with a schema.
            schema_file: The schema with rules; None for the file that the run names.
            constants: Whether the constants of the run count: of its schema, and by which it
                standardized. Without it, the sites agree on constants of their own rows.
            masks: See :class:`CommonSettings`.

        Raises:
            UserError: It is no such run, or the schema's file has other columns than the run.
        """
        folder = Path(folder)
        record = Record(folder)
        if not record.begun and (runs := sorted(folder.glob("*/run.toml"))):
            names = [str(run.parent) for run in runs]
            raise UserError(f"{folder} holds several runs: name one of {listed(names)}")
        description = record.description()
        about = description["world"].get("about", {})
        scenario_table = description["scenario"]
        if FACT not in about or "dataset" not in scenario_table:
            raise UserError(
                f"{folder} is no run over tables with a schema: run coterie schema, then coterie run with "
                "--scenario table/clients and --set schema=FILE"
            )
        # The scenario's parts as flat settings, of which sites need some.
        flat_settings: dict[str, Any] = {}
        for value in scenario_table.values():
            if isinstance(value, Mapping):
                flat_settings.update(value)
        flat_settings["model"] = scenario_table["model"]
        flat_settings["metrics"] = scenario_table["metrics"]
        recorded_schema = TableSchema.of(about[FACT], str(folder))
        if constants:
            schema = replace(
                recorded_schema, class_weights="balanced" if WEIGHTS_FACT in about else "none"
            )
            if "means" in about:
                flat_settings |= {
                    "standardize": "given",
                    "means": about["means"],
                    "deviations": about["deviations"],
                }
            scale = description["world"].get("target_scale")
            if scale is not None:
                flat_settings |= {
                    "standardize_target": "given",
                    "target_means": scale["means"],
                    "target_deviations": scale["deviations"],
                }
        else:
            schema = _schema_with_rules(
                schema_file or flat_settings["schema"],
                description.get("data"),
                recorded_schema,
                folder,
            )
        site_names = description["world"].get("names", [])
        document = {
            "rounds": description["rounds"],
            "eval_every": description["eval_every"],
            "seeds": description["seeds"],
            "scenario": {
                "name": SCENARIO,
                **{name: flat_settings[name] for name in SCENARIO_SETTINGS},
                "target": list(about["targets"]),
            },
            "methods": description["methods"],
            "training": description["training"],
            "boundary": description["boundary"],
            "robust": description["robust"],
            "federation": {
                "targets": about["targets"],
                "task": about["task"],
                "classes": about.get("classes", []),
                "sites": [str(name) for name in site_names],
                "masks": masks,
            },
            "table_schema": schema.document(),
        }
        return cls.of(document, str(folder))


def _check_no_code(kind: str, name: Any) -> None:
    if isinstance(name, str) and ":" in name:
        raise SettingError(
            f"the {kind} {name!r} is code of your own, which this file cannot carry to the sites: write "
            "an app, as docs/deploy/from-simulation.md shows"
        )


def _schema_with_rules(
    schema_file: Path | str, data: Any, recorded_schema: TableSchema, folder: Path
) -> TableSchema:
    """The schema as the run's file has it, which must still be that of the run."""
    path = expanded(str(schema_file))
    if not path.exists() and data is not None:
        data_path = Path(str(data))
        beside_data = (data_path if data_path.is_dir() else data_path.parent) / str(schema_file)
        path = beside_data if beside_data.exists() else path
    if not path.exists():
        raise UserError(
            f"{folder} was run with the schema {schema_file}, which is not here: say where it is with "
            "--schema, or take the constants of the run with --constants"
        )
    schema = TableSchema.from_file(path)
    used = set(recorded_schema.columns)
    lacking = sorted(used - set(schema.columns))
    kinds_differ = [
        name
        for name in sorted(used - set(lacking))
        if schema.columns[name].kind != recorded_schema.columns[name].kind
    ]
    if lacking or kinds_differ:
        difference = (
            f"lacks {listed(lacking)}" if lacking else f"has another kind of {listed(kinds_differ)}"
        )
        raise UserError(f"{path} is not the schema of {folder}: it {difference}")
    return schema
