"""MLflow: writes to the server in MLFLOW_TRACKING_URI, else into a database in ``track/mlflow`` of the call's folder."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from mlflow import MlflowClient
from mlflow.entities import Metric, Param, RunStatus

from coterie.settings import UserError
from coterie.tracking.measures import TRACK, Picture, TrackerState

EXPERIMENT = "coterie"
"""The name of the experiment if MLFLOW_EXPERIMENT_NAME is not set."""

METRICS, PARAMS, LETTERS = 1000, 100, 500
"""Most metrics and most parameters in one call of MLflow, and most characters of a parameter's value."""

LAST = "seconds/total"
"""The number that is written last in every round: a round that has it is complete."""


class MLflow:
    """Writes one run, with the same run id after a resume."""

    def __init__(self, folder: Path) -> None:
        uri = os.environ.get("MLFLOW_TRACKING_URI", "")
        self.place = TrackerState(folder, "mlflow", where=uri)
        own = self.place.home / TRACK / "mlflow"
        if not uri:
            own.mkdir(parents=True, exist_ok=True)
        self.client = MlflowClient(tracking_uri=uri or f"sqlite:///{own / 'mlflow.db'}")
        if not self.place.known:
            self._begin(None if uri else (own / "artifacts").as_uri())
        self.run = self.place.identity
        if not uri:
            self._check_artifacts(own / "artifacts")
        written = max((metric.step for metric in self.client.get_metric_history(self.run, LAST)), default=0)
        if written > self.place.round:  # a process was killed before it could store this
            self.place.keep(written)
        self.client.update_run(self.run, status=RunStatus.to_string(RunStatus.RUNNING))

    def _check_artifacts(self, own: Path) -> None:
        """Refuse another place of the run's files: the database names it, and may be moved or come from another person."""
        where = self.client.get_run(self.run).info.artifact_uri
        if not re.fullmatch("[0-9a-f]{32}", self.run) or where != f"{own.as_uri()}/{self.run}/artifacts":
            store = f"{own.parent} and {self.place.folder / TRACK / 'mlflow.json'}"
            raise UserError(f"the database in {own.parent} keeps the run's files elsewhere; remove {store} to track it anew")

    def _begin(self, artifacts: str | None) -> None:
        """Start a new run and store its id immediately."""
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME") or EXPERIMENT
        known = self.client.get_experiment_by_name(name)
        experiment = known.experiment_id if known else self.client.create_experiment(name, artifact_location=artifacts)
        run = self.client.create_run(experiment, run_name=self.place.name, tags={"mlflow.source.name": "coterie"})
        params = [Param(name, str(value)[:LETTERS]) for name, value in self.place.settings.items()]
        for some in batches(params, PARAMS):
            self.client.log_batch(run.info.run_id, params=some)
        self.place.keep(identity=run.info.run_id)

    def write(self, round: int, numbers: Mapping[str, float], text: str, pictures: Sequence[Picture]) -> None:
        """Write a round, see :class:`~coterie.tracking.measures.Writer`."""
        for picture in pictures:
            self.client.log_image(self.run, picture.pixels, key=picture.name.replace("/", "-"), step=round)
        if text:
            self.client.log_text(self.run, text, f"notes/round-{round}.txt")
        now = int(time.time() * 1000)
        ordered = sorted(numbers.items(), key=lambda entry: entry[0] == LAST)
        for some in batches([Metric(name, value, now, round) for name, value in ordered], METRICS):
            self.client.log_batch(self.run, metrics=some)

    def close(self, finished: bool) -> None:
        """End the run, as finished or as killed."""
        self.client.set_terminated(self.run, RunStatus.to_string(RunStatus.FINISHED if finished else RunStatus.KILLED))


Entry = TypeVar("Entry")


def batches(entries: Sequence[Entry], most: int) -> Iterator[Sequence[Entry]]:
    """Divide entries into batches.

    Args:
        entries: The entries.
        most: Most entries of a batch.

    Yields:
        The batches, in order.

    Example:
        >>> list(batches([1, 2, 3], most=2))
        [[1, 2], [3]]
    """
    yield from (entries[i : i + most] for i in range(0, len(entries), most))
