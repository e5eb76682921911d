"""Exported models in MLflow's registry: files, lineage, and that the same files are registered once."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest

from coterie.cli import main
from coterie.contrib.tracking.registry import register
from coterie.runs.export import save
from coterie.settings import UserError

for module in ("mlflow", "sqlalchemy", "alembic"):
    pytest.importorskip(module, reason=f"{module} is not installed")

pytestmark = [
    pytest.mark.slow,
    # MLflow's own calls of SQLAlchemy.
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]


@pytest.fixture
def exported(run: Path, tmp_path: Path) -> Path:
    folder = tmp_path / "models"
    save(run, folder)
    return folder


def test_groups_are_registered_with_their_lineage_once(run: Path, exported: Path) -> None:
    from mlflow import MlflowClient

    models = register(exported, run, "sites")
    document = json.loads((exported / "models.json").read_text())
    assert len(models) == len(document["groups"]) > 1
    client = MlflowClient(tracking_uri=f"sqlite:///{run / 'track' / 'mlflow' / 'mlflow.db'}")
    state = json.loads((run / "track" / "mlflow.json").read_text())
    for group, model in enumerate(models):
        version = client.get_model_version(f"sites-group-{group}", model.version)
        (file_name,) = document["group_models"][group]["files"]
        digest = hashlib.sha256((exported / file_name).read_bytes()).hexdigest()
        assert version.tags["coterie.digest"] == digest == model.digest
        assert version.tags["coterie.round"] == str(document["round"])
        assert version.tags["coterie.group"] == str(group)
        assert version.tags["coterie.clients"] == ", ".join(map(str, document["groups"][group]))
        assert version.run_id == state["run"]
        # The files of the version are those of the export.
        stored = Path(version.source.removeprefix("file://"))
        assert (stored / file_name).read_bytes() == (exported / file_name).read_bytes()
        assert (stored / "models.json").is_file()
    again = register(exported, run, "sites")
    assert [model.version for model in again] == [model.version for model in models]
    assert not any(model.is_new for model in again)


def test_mistakes_are_one_sentence(
    run: Path, exported: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(UserError, match="the name must have letters"):
        register(exported, run, "a/b")
    with pytest.raises(UserError, match="holds no exported models"):
        register(tmp_path, run, "sites")
    (run / "run.toml").write_text(
        (run / "run.toml").read_text().replace('name = "cfl"', 'name = "flhc"')
    )
    assert main(["register", str(exported), "--run", str(run), "--name", "sites"]) == 2
    assert "Traceback" not in capsys.readouterr().err
