"""TensorBoard, MLflow and Weights & Biases: each reads the record of a run, and writes each round once.

The package of a tracker is imported when the tracker is made.
"""

from __future__ import annotations

import json
import os
import re
import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from coterie.contrib.tracking.metrics import Metrics, settings, words
from coterie.contrib.tracking.pictures import Picture, pictures
from coterie.extensions import Registry
from coterie.files import check_links, descriptor, read_within, within
from coterie.records.ending import Ending
from coterie.records.record import EXPERIMENT_FILE, ROUNDS_FILE, Record
from coterie.records.shown import Line, shown
from coterie.records.store import SCHEMA_VERSION, check_schema, write_whole
from coterie.settings import UserError

TRACK = "track"
"""Folder of trackers' files inside a run directory, or inside the folder of several runs."""

PROJECT = "coterie"
"""The name of the experiment in MLflow, and of the project in Weights & Biases, unless the
environment gives another."""

WANDB_LOG_LINK = "debug-core.log"
"""Weights & Biases makes links of this name to its logs in other folders; it does not write through
an existing link."""


class Tracker(ABC):
    """Follows one run. How far it is tracked is stored in ``track/<name>.json`` of the run directory.

    Args:
        folder: The run directory.
        store: Identifies the tracker's store. In another store, a run is tracked again from its
            first round.

    Attributes:
        name: The name of the tracker.
        needs: The modules that it needs.
        home: The folder that holds the tracker's store: the run directory, or that of all runs if
            there are several.
        settings: The settings of the run by name.
        known: Whether the run has been tracked in this store before.
        identity: The id of the run in the tracker, the same after a resume.
        round: The last tracked round.
        finished: Whether no more rounds will ever come.

    Raises:
        UserError: A link in ``track/`` leads out of it, or the state was written by a newer
            Coterie.
    """

    name: ClassVar[str]
    needs: ClassVar[tuple[str, ...]] = ()

    def __init__(self, folder: Path, store: str = "") -> None:
        self.folder = folder.absolute()
        is_one_of_several = (self.folder.parent / EXPERIMENT_FILE).is_file()
        self.home = self.folder.parent if is_one_of_several else self.folder
        self.store = store
        self.finished = False
        # The description of the run as it is recorded, and as people read it.
        self._record = Record(folder)
        self._recorded = self._record.description()
        self._shown = self._record.naming(self._recorded)
        self._description = shown(self._shown, self._recorded, ())[0]
        self.settings = settings(self._description)
        self._metrics = Metrics(self._description["world"])
        self._ending = Ending.of(self._description, ())
        # Bytes of the record that have been read.
        self._bytes_read = 0
        # Trackers write into these folders, and make links to their own files.
        for writable_folder in {self.folder, self.home}:
            check_links(writable_folder / TRACK, but=WANDB_LOG_LINK)
        stored_state = self._stored_state()
        self.known = stored_state.get("where") == store
        self.identity: str = stored_state["run"] if self.known else uuid.uuid4().hex[:12]
        self.round: int = stored_state["round"] if self.known else 0

    @property
    def _state_path(self) -> Path:
        return within(self.folder, f"{TRACK}/{self.name}.json")

    def _stored_state(self) -> dict[str, Any]:
        """How far an earlier process has tracked the run; empty if none has."""
        state_file = self._state_path
        if not state_file.exists():
            return {}
        stored_state: dict[str, Any] = json.loads(
            read_within(self.folder, f"{TRACK}/{self.name}.json")
        )
        check_schema(stored_state.get("schema"), state_file)
        return stored_state

    def keep(self) -> None:
        """Store ``identity`` and ``round``."""
        state_file = self._state_path
        state_file.parent.mkdir(exist_ok=True)
        tracker_state = {
            "schema": SCHEMA_VERSION,
            "where": self.store,
            "run": self.identity,
            "round": self.round,
        }
        write_whole(state_file, json.dumps(tracker_state).encode())

    def catch_up(self) -> None:
        """Track the new rounds of the record, except those that an earlier process has tracked."""
        rounds_file = self.folder / ROUNDS_FILE
        if not rounds_file.exists():
            return
        if rounds_file.stat().st_size > self._bytes_read:
            # A federation's clients may join, and tell their names, later.
            self._shown = self._record.naming(self._recorded)
        with open(descriptor(rounds_file, os.O_RDONLY), "rb") as record_file:
            record_file.seek(self._bytes_read)
            for recorded_line in record_file:
                # The run is still writing an incomplete line.
                if not recorded_line.endswith(b"\n"):
                    return
                self._bytes_read += len(recorded_line)
                self._track(self._shown.line(json.loads(recorded_line)))

    def _track(self, round_line: Line) -> None:
        """Write a round, unless it is tracked already; sums over rounds need every round."""
        # Numbers are computed for every round, because some of them are sums over all rounds.
        round_numbers = self._metrics.of(round_line)
        if round_line["round"] > self.round:
            self.write(
                round_line["round"],
                round_numbers,
                words(round_line),
                list(pictures(self.folder, round_line)),
            )
            self.round = round_line["round"]
            self.keep()
        self.finished = self._ending.follow(round_line)

    @abstractmethod
    def write(
        self, round: int, numbers: Mapping[str, float], text: str, pictures: Sequence[Picture]
    ) -> None:
        """Write a round: its numbers by name, its notes (empty if there are none), and its pictures."""

    @abstractmethod
    def close(self) -> None:
        """End the tracking of the run for now."""


class TensorBoard(Tracker):
    """Writes event files in ``track/tensorboard/RUN``, by PyTorch's writer, without TensorFlow.

    Rounds after the last one known to be complete are hidden in the viewer and written again.
    """

    name = "tensorboard"
    needs = ("tensorboard", "PIL")

    def __init__(self, folder: Path) -> None:
        from torch.utils.tensorboard import SummaryWriter
        from torch.utils.tensorboard.summary import hparams

        super().__init__(folder)
        event_folder = self.home / TRACK / "tensorboard" / self.folder.name
        self.writer = SummaryWriter(str(event_folder), purge_step=self.round + 1)
        if not self.round:
            # The viewer shows this metric beside the settings.
            shown_metrics = {f"{self._shown.main}/mean": 0.0}
            for metric_summary in hparams(self.settings, shown_metrics):
                self.writer._get_file_writer().add_summary(metric_summary)

    def write(
        self, round: int, numbers: Mapping[str, float], text: str, pictures: Sequence[Picture]
    ) -> None:
        for number_name, number_value in numbers.items():
            self.writer.add_scalar(number_name, number_value, round)
        for picture in pictures:
            self.writer.add_image(picture.name, picture.pixels, round, dataformats="HWC")
            self.writer.add_text(f"{picture.name}/caption", picture.caption, round)
        if text:
            # Two spaces are Markdown's line break.
            self.writer.add_text("notes", text.replace("\n", "  \n"), round)
        self.writer.flush()

    def close(self) -> None:
        self.writer.close()


class MLflow(Tracker):
    """Writes to the server in MLFLOW_TRACKING_URI, else into a database in ``track/mlflow``."""

    name = "mlflow"
    needs = ("mlflow", "sqlalchemy", "alembic", "PIL")

    LAST_METRIC = "seconds/total"
    """The number that is written last in every round: a round that has it is complete."""

    MAX_METRICS = 1000
    """Most metrics in one call of MLflow."""

    MAX_PARAMETERS = 100
    """Most parameters in one call of MLflow."""

    MAX_CHARACTERS = 500
    """Most characters of a parameter's value."""

    def __init__(self, folder: Path) -> None:
        from mlflow import MlflowClient

        server_address = os.environ.get("MLFLOW_TRACKING_URI", "")
        super().__init__(folder, store=server_address)
        database_folder = self.home / TRACK / "mlflow"
        artifacts = database_folder / "artifacts"
        if not server_address:
            database_folder.mkdir(parents=True, exist_ok=True)
        database_address = f"sqlite:///{database_folder / 'mlflow.db'}"
        self.client = MlflowClient(tracking_uri=server_address or database_address)
        if not self.known:
            self._begin(None if server_address else artifacts.as_uri())
        if not server_address:
            self._check_artifacts(artifacts)
        # A process may have been killed after it wrote a round, before it could store this.
        complete_rounds = self.client.get_metric_history(self.identity, self.LAST_METRIC)
        last_complete = max((metric.step for metric in complete_rounds), default=0)
        self.round = max(self.round, last_complete)
        self.client.update_run(self.identity, status="RUNNING")

    def _begin(self, artifacts: str | None) -> None:
        """Start a new run and store its id immediately."""
        from mlflow.entities import Param

        # A run is in the user's experiment, if the environment names one.
        experiment_name = os.environ.get("MLFLOW_EXPERIMENT_NAME") or PROJECT
        # All runs of Coterie are in one experiment.
        experiment = self.client.get_experiment_by_name(experiment_name)
        if experiment:
            experiment_id = experiment.experiment_id
        else:
            experiment_id = self.client.create_experiment(
                experiment_name, artifact_location=artifacts
            )
        new_run = self.client.create_run(
            experiment_id, run_name=self.folder.name, tags={"mlflow.source.name": "coterie"}
        )
        parameters = [
            Param(setting_name, str(setting_value)[: self.MAX_CHARACTERS])
            for setting_name, setting_value in self.settings.items()
        ]
        for batch_start in range(0, len(parameters), self.MAX_PARAMETERS):
            parameter_batch = parameters[batch_start : batch_start + self.MAX_PARAMETERS]
            self.client.log_batch(new_run.info.run_id, params=parameter_batch)
        self.identity = new_run.info.run_id
        self.keep()

    def _check_artifacts(self, artifacts: Path) -> None:
        """Refuse another place of the run's files: the database names it, and may be moved or come from another person."""
        # The place must be the one where this class would put the files.
        stored_uri = self.client.get_run(self.identity).info.artifact_uri
        is_run_id = re.fullmatch("[0-9a-f]{32}", self.identity)
        if is_run_id and stored_uri == f"{artifacts.as_uri()}/{self.identity}/artifacts":
            return
        database_folder = artifacts.parent
        removed_files = f"{database_folder} and {self.folder / TRACK / 'mlflow.json'}"
        raise UserError(
            f"the database in {database_folder} keeps the run's files elsewhere; remove {removed_files} to track it anew"
        )

    def write(
        self, round: int, numbers: Mapping[str, float], text: str, pictures: Sequence[Picture]
    ) -> None:
        from mlflow.entities import Metric

        for picture in pictures:
            self.client.log_image(
                self.identity, picture.pixels, key=picture.name.replace("/", "-"), step=round
            )
        if text:
            self.client.log_text(self.identity, text, f"notes/round-{round}.txt")
        # The metric that marks a complete round comes last.
        current_time = int(time.time() * 1000)
        number_names = sorted(numbers, key=lambda number_name: number_name == self.LAST_METRIC)
        round_metrics = [
            Metric(number_name, numbers[number_name], current_time, round)
            for number_name in number_names
        ]
        for batch_start in range(0, len(round_metrics), self.MAX_METRICS):
            metric_batch = round_metrics[batch_start : batch_start + self.MAX_METRICS]
            self.client.log_batch(self.identity, metrics=metric_batch)

    def close(self) -> None:
        self.client.set_terminated(self.identity, "FINISHED" if self.finished else "KILLED")


class Wandb(Tracker):
    """Writes offline runs in ``track/wandb``; nothing is sent unless WANDB_MODE is set otherwise."""

    name = "wandb"
    needs = ("wandb", "PIL")

    def __init__(self, folder: Path) -> None:
        import wandb

        wandb_mode: Any = os.environ.get("WANDB_MODE", "offline")
        super().__init__(folder, store=wandb_mode)
        self._check_settings()
        # wandb makes its folder in this one.
        parent_folder = Path(os.environ.get("WANDB_DIR") or self.home / TRACK)
        parent_folder.mkdir(parents=True, exist_ok=True)
        # Nothing is printed, and nothing about the machine or the code is saved.
        quiet_settings = wandb.Settings(
            silent=True,
            console="off",
            save_code=False,
            disable_git=True,
            x_disable_stats=True,
            x_disable_meta=True,
        )
        self.run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", PROJECT),
            dir=parent_folder,
            id=self.identity,
            name=self.folder.name,
            group=self.home.name,
            config=self.settings,
            mode=wandb_mode,
            resume="allow",
            settings=quiet_settings,
        )
        self.keep()

    def _check_settings(self) -> None:
        """Refuse settings that came with the run: they could name the server that receives the user's key."""
        settings_file = Path.cwd() / "wandb" / "settings"
        if os.path.lexists(settings_file) and Path.cwd().is_relative_to(self.home.resolve()):
            raise UserError(
                f"{settings_file} came with the run and would be settings of Weights & Biases; call from another folder"
            )

    def write(
        self, round: int, numbers: Mapping[str, float], text: str, pictures: Sequence[Picture]
    ) -> None:
        import wandb

        # All of a round is logged at once, so that a round is complete or missing.
        logged_values: dict[str, Any] = dict(numbers)
        for picture in pictures:
            logged_values[picture.name] = wandb.Image(picture.pixels, caption=picture.caption)
        if text:
            logged_values["notes"] = text
        self.run.log(logged_values, step=round)

    def close(self) -> None:
        self.run.finish()


TRACKERS: Registry[type[Tracker]] = Registry(
    "coterie.trackers",
    "a subclass of coterie.contrib.tracking.Tracker",
    lambda name, cls: isinstance(cls, type) and issubclass(cls, Tracker) and cls.name == name,
)
"""The trackers by name."""
