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
from coterie.records.record import ROUNDS, Line, Record
from coterie.records.shown import ends, shown
from coterie.records.store import SCHEMA, check_schema, write_whole
from coterie.runs.experiment import EXPERIMENT
from coterie.settings import UserError

TRACK = "track"
"""Folder of trackers' files inside a run directory, or inside the folder of several runs."""

NAME = "coterie"
"""The name of the experiment in MLflow, and of the project in Weights & Biases, unless the
environment gives another."""

LOG = "debug-core.log"
"""Weights & Biases makes links of this name to its logs in other folders; it does not write through
an existing link."""


class Tracker(ABC):
    """Follows one run. How far it is tracked is stored in ``track/<name>.json`` of the run directory.

    Args:
        folder: The run directory.
        where: Identifies the tracker's store. In another store, a run is tracked again from its
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

    def __init__(self, folder: Path, where: str = "") -> None:
        self.folder, self.where = folder.absolute(), where
        self.home = (
            self.folder.parent if (self.folder.parent / EXPERIMENT).is_file() else self.folder
        )
        self._record, self._recorded = Record(folder), Record(folder).description()
        self._shown = self._record.naming(self._recorded)
        self._description = shown(self._shown, self._recorded, ())[0]
        self.settings, self._metrics = (
            settings(self._description),
            Metrics(self._description["world"]),
        )
        self._at, self.finished = 0, False
        self._path = within(self.folder, f"{TRACK}/{self.name}.json")
        for place in {
            self.folder,
            self.home,
        }:  # trackers write there, and make links to their own files
            check_links(place / TRACK, but=LOG)
        stored = {}
        if self._path.exists():
            stored = json.loads(read_within(self.folder, f"{TRACK}/{self.name}.json"))
            check_schema(stored.get("schema"), self._path)
        self.known = stored.get("where") == where
        self.identity: str = stored["run"] if self.known else uuid.uuid4().hex[:12]
        self.round: int = stored["round"] if self.known else 0

    def keep(self) -> None:
        """Store ``identity`` and ``round``."""
        self._path.parent.mkdir(exist_ok=True)
        stored = {"schema": SCHEMA, "where": self.where, "run": self.identity, "round": self.round}
        write_whole(self._path, json.dumps(stored).encode())

    def catch_up(self) -> None:
        """Track the new rounds of the record, except those that an earlier process has tracked."""
        path = self.folder / ROUNDS
        if not path.exists():
            return
        if path.stat().st_size > self._at:
            self._shown = self._record.naming(
                self._recorded
            )  # a federation's clients may join later
        with open(descriptor(path, os.O_RDONLY), "rb") as file:
            file.seek(self._at)
            for raw in file:
                if not raw.endswith(b"\n"):  # it is being written
                    return
                self._at += len(raw)
                self._track(self._shown.line(json.loads(raw)))

    def _track(self, line: Line) -> None:
        numbers = self._metrics.of(line)
        if line["round"] > self.round:
            self.write(line["round"], numbers, words(line), list(pictures(self.folder, line)))
            self.round = line["round"]
            self.keep()
        self.finished = ends(line, self._description["rounds"], self._description.get("target"))

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

    name, needs = "tensorboard", ("tensorboard", "PIL")

    def __init__(self, folder: Path) -> None:
        from torch.utils.tensorboard import SummaryWriter
        from torch.utils.tensorboard.summary import hparams

        super().__init__(folder)
        to = self.home / TRACK / "tensorboard" / self.folder.name
        self.writer = SummaryWriter(str(to), purge_step=self.round + 1)
        if not self.round:
            for summary in hparams(
                self.settings, {f"{self._shown.main}/mean": 0.0}
            ):  # shown beside the settings
                self.writer._get_file_writer().add_summary(summary)

    def write(
        self, round: int, numbers: Mapping[str, float], text: str, pictures: Sequence[Picture]
    ) -> None:
        for name, value in numbers.items():
            self.writer.add_scalar(name, value, round)
        for picture in pictures:
            self.writer.add_image(picture.name, picture.pixels, round, dataformats="HWC")
            self.writer.add_text(f"{picture.name}/caption", picture.caption, round)
        if text:
            self.writer.add_text(
                "notes", text.replace("\n", "  \n"), round
            )  # Markdown's line break
        self.writer.flush()

    def close(self) -> None:
        self.writer.close()


class MLflow(Tracker):
    """Writes to the server in MLFLOW_TRACKING_URI, else into a database in ``track/mlflow``."""

    name, needs = "mlflow", ("mlflow", "sqlalchemy", "alembic", "PIL")

    LAST = "seconds/total"
    """The number that is written last in every round: a round that has it is complete."""

    METRICS, PARAMS, LETTERS = 1000, 100, 500
    """Most metrics and most parameters in one call of MLflow, and most characters of a parameter's
    value."""

    def __init__(self, folder: Path) -> None:
        from mlflow import MlflowClient

        uri = os.environ.get("MLFLOW_TRACKING_URI", "")
        super().__init__(folder, where=uri)
        own = self.home / TRACK / "mlflow"
        if not uri:
            own.mkdir(parents=True, exist_ok=True)
        self.client = MlflowClient(tracking_uri=uri or f"sqlite:///{own / 'mlflow.db'}")
        if not self.known:
            self._begin(None if uri else (own / "artifacts").as_uri())
        if not uri:
            self._check_artifacts(own / "artifacts")
        written = max(
            (metric.step for metric in self.client.get_metric_history(self.identity, self.LAST)),
            default=0,
        )
        self.round = max(
            self.round, written
        )  # a process may have been killed before it could store this
        self.client.update_run(self.identity, status="RUNNING")

    def _begin(self, artifacts: str | None) -> None:
        """Start a new run and store its id immediately."""
        from mlflow.entities import Param

        name = os.environ.get("MLFLOW_EXPERIMENT_NAME") or NAME
        known = self.client.get_experiment_by_name(name)
        experiment = (
            known.experiment_id
            if known
            else self.client.create_experiment(name, artifact_location=artifacts)
        )
        run = self.client.create_run(
            experiment, run_name=self.folder.name, tags={"mlflow.source.name": "coterie"}
        )
        params = [Param(name, str(value)[: self.LETTERS]) for name, value in self.settings.items()]
        for i in range(0, len(params), self.PARAMS):
            self.client.log_batch(run.info.run_id, params=params[i : i + self.PARAMS])
        self.identity = run.info.run_id
        self.keep()

    def _check_artifacts(self, own: Path) -> None:
        """Refuse another place of the run's files: the database names it, and may be moved or come from another person."""
        where = self.client.get_run(self.identity).info.artifact_uri
        if (
            not re.fullmatch("[0-9a-f]{32}", self.identity)
            or where != f"{own.as_uri()}/{self.identity}/artifacts"
        ):
            store = f"{own.parent} and {self.folder / TRACK / 'mlflow.json'}"
            raise UserError(
                f"the database in {own.parent} keeps the run's files elsewhere; remove {store} to track it anew"
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
        now = int(time.time() * 1000)
        metrics = [
            Metric(name, numbers[name], now, round)
            for name in sorted(numbers, key=lambda name: name == self.LAST)
        ]
        for i in range(0, len(metrics), self.METRICS):
            self.client.log_batch(self.identity, metrics=metrics[i : i + self.METRICS])

    def close(self) -> None:
        self.client.set_terminated(self.identity, "FINISHED" if self.finished else "KILLED")


class Wandb(Tracker):
    """Writes offline runs in ``track/wandb``; nothing is sent unless WANDB_MODE is set otherwise."""

    name, needs = "wandb", ("wandb", "PIL")

    def __init__(self, folder: Path) -> None:
        import wandb

        mode: Any = os.environ.get("WANDB_MODE", "offline")
        super().__init__(folder, where=mode)
        self._check_settings()
        home = Path(
            os.environ.get("WANDB_DIR") or self.home / TRACK
        )  # wandb makes its folder in it
        home.mkdir(parents=True, exist_ok=True)
        quiet = wandb.Settings(
            silent=True,
            console="off",
            save_code=False,
            disable_git=True,
            x_disable_stats=True,
            x_disable_meta=True,
        )
        self.run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", NAME),
            dir=home,
            id=self.identity,
            name=self.folder.name,
            group=self.home.name,
            config=self.settings,
            mode=mode,
            resume="allow",
            settings=quiet,
        )
        self.keep()

    def _check_settings(self) -> None:
        """Refuse settings that came with the run: they could name the server that receives the user's key."""
        path = Path.cwd() / "wandb" / "settings"
        if os.path.lexists(path) and Path.cwd().is_relative_to(self.home.resolve()):
            raise UserError(
                f"{path} came with the run and would be settings of Weights & Biases; call from another folder"
            )

    def write(
        self, round: int, numbers: Mapping[str, float], text: str, pictures: Sequence[Picture]
    ) -> None:
        import wandb

        seen = {
            picture.name: wandb.Image(picture.pixels, caption=picture.caption)
            for picture in pictures
        }
        self.run.log({**numbers, **seen, **({"notes": text} if text else {})}, step=round)

    def close(self) -> None:
        self.run.finish()


TRACKERS: Registry[type[Tracker]] = Registry(
    "coterie.trackers",
    "a subclass of coterie.contrib.tracking.Tracker",
    lambda name, cls: isinstance(cls, type) and issubclass(cls, Tracker) and cls.name == name,
)
"""The trackers by name."""
