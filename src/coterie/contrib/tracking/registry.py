"""Exported models of groups in MLflow's model registry, with the run that made them: ``coterie register``."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from coterie.contrib.tracking.following import check
from coterie.contrib.tracking.trackers import MLflow
from coterie.files import read_within
from coterie.records.record import Record
from coterie.runs.export import MODELS_FILE
from coterie.runs.loading import read_document
from coterie.settings import UserError
from coterie.settings.calls import public

NAME_SIGNS = r"[\w.-]{1,200}"
"""What a registered model's name may consist of."""


@public
@dataclass(frozen=True)
class RegisteredModel:
    """A version of a group's model in the registry.

    Attributes:
        name: The name of the registered model.
        version: Its version.
        group: The group.
        digest: SHA-256 of the model's files.
        is_new: Whether the version is new; False if the newest version has the same files.
    """

    name: str
    version: str
    group: int
    digest: str
    is_new: bool


@public
def register(export: Path | str, run: Path | str, name: str) -> list[RegisteredModel]:
    """Register the models of an export's groups in MLflow, each as a registered model ``NAME-group-G``.

    The registry is that of the server in ``MLFLOW_TRACKING_URI``, else the database in
    ``RUN/track/mlflow``. The run is tracked there first, as by ``--track mlflow``; each version points
    to it. Tags of a version: the run's folder, method, seed and scenario, the round, the group with
    its clients, and the digest. Personal models and layers of single clients are not registered.

    Args:
        export: A folder that ``coterie export`` wrote.
        run: The run directory of which it is.
        name: The beginning of the registered models' names.

    Returns:
        The versions, one for each group.

    Raises:
        UserError: The export is not of the run, is damaged, or MLflow is not installed.
    """
    export = Path(export)
    if not re.fullmatch(NAME_SIGNS, name):
        raise UserError(
            f"the name must have letters, digits, _, . and - only, at most 200, got {name!r:.60}"
        )
    check(["mlflow"])
    # Damage is found first; what loading does not need is read after that.
    read_document(export)
    document = json.loads(read_within(export, MODELS_FILE))
    _check_origin(document, export, Path(run))
    with closing(MLflow(Path(run))) as tracker:
        tracker.catch_up()
        return [
            _register_group(tracker, export, document, group, entry["files"], name)
            for group, entry in enumerate(document["group_models"])
        ]


def _check_origin(document: dict[str, Any], export: Path, run: Path) -> None:
    """Check that an export is of a run: lineage that is wrong is worse than none."""
    description = Record(run).description()
    of_run = {
        "method": description["methods"][0]["name"],
        "seed": description["seeds"][0],
    }
    for entry_name, value in of_run.items():
        if document[entry_name] != value:
            raise UserError(
                f"{export} is not of {run}: its {entry_name} is {document[entry_name]}, and the run's is {value}"
            )
    rounds = Record(run).lines()
    if not rounds or document["round"] > rounds[-1]["round"]:
        raise UserError(
            f"{export} is not of {run}: it is of round {document['round']}, which the run has not"
        )


def _register_group(
    tracker: MLflow,
    export: Path,
    document: dict[str, Any],
    group: int,
    file_names: Sequence[str],
    name: str,
) -> RegisteredModel:
    """Register the model of a group, unless its newest version has the same files."""
    registered_name = f"{name}-group-{group}"
    digest = hashlib.sha256()
    for file_name in file_names:
        digest.update(read_within(export, file_name))
    client = tracker.client
    versions = client.search_model_versions(f"name = '{registered_name}'")
    if versions:
        newest = max(versions, key=lambda version: int(version.version))
        if newest.tags.get("coterie.digest") == digest.hexdigest():
            return RegisteredModel(
                registered_name, str(newest.version), group, digest.hexdigest(), is_new=False
            )
    else:
        client.create_registered_model(registered_name, tags={"coterie.export": name})
    # The files with what loading needs: the document, and the model card.
    folder = f"coterie/{registered_name}/round-{document['round']}-{digest.hexdigest()[:12]}"
    for file_name in (*file_names, MODELS_FILE, f"card-{group}.md"):
        if (export / file_name).is_file():
            client.log_artifact(tracker.identity, str(export / file_name), folder)
    artifact_uri = client.get_run(tracker.identity).info.artifact_uri
    clients = ", ".join(map(str, document["groups"][group]))
    tags = {
        "coterie.run": tracker.folder.name,
        "coterie.method": document["method"],
        "coterie.seed": document["seed"],
        "coterie.scenario": document["scenario"],
        "coterie.round": document["round"],
        "coterie.group": group,
        "coterie.clients": clients[: tracker.MAX_CHARACTERS],
        "coterie.digest": digest.hexdigest(),
    }
    version = client.create_model_version(
        registered_name,
        source=f"{artifact_uri}/{folder}",
        run_id=tracker.identity,
        tags={tag: str(value) for tag, value in tags.items()},
    )
    return RegisteredModel(
        registered_name, str(version.version), group, digest.hexdigest(), is_new=True
    )
