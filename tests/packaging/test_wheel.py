"""What is built: the files in sdist and wheel, and the wheel alone in a fresh environment, used as its user would."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path, PurePosixPath

import pytest

import coterie

ROOT = Path(__file__).parents[2]
PACKED = (
    "pyproject.toml",
    "MANIFEST.in",
    "README.md",
    "LICENSE",
    "CHANGELOG.md",
    "CITATION.cff",
    "constraints.txt",
    "src",
)
SOURCES = [
    path.relative_to(ROOT / "src")
    for path in (ROOT / "src" / "coterie").rglob("*")
    if path.is_file()
]
EXPECTED = {path.as_posix() for path in SOURCES if path.suffix != ".pyc"}

pytestmark = pytest.mark.slow


@pytest.fixture(scope="session")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that all processes of a parallel run share; who comes first makes what is in it, the others wait."""
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "packaging"
    folder.mkdir(exist_ok=True)
    with open(folder / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "made").exists():
            make(folder)
            (folder / "made").touch()
    return folder


def make(folder: Path) -> None:
    """Build sdist and wheel from a copy, so that nothing is left in the tree, and install the wheel alone, with PyTorch as
    ``make`` installs it."""
    reached = call(
        sys.executable,
        "-m",
        "pip",
        "download",
        "--no-deps",
        "--dest",
        folder / "probe",
        "setuptools",
    )
    if reached.returncode:
        pytest.skip("pip reaches no package index, which building and installing take")
    wheel = folder / "dist" / f"coterie-{coterie.__version__}-py3-none-any.whl"
    tree, python = folder / "tree", folder / "venv" / "bin" / "python"
    tree.mkdir()
    for name in PACKED:
        if (ROOT / name).is_dir():
            shutil.copytree(
                ROOT / name, tree / name, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info")
            )
        else:
            shutil.copy(ROOT / name, tree / name)
    steps: tuple[tuple[object, ...], ...] = (
        (sys.executable, "-m", "build", "--outdir", folder / "dist", tree),
        (sys.executable, "-m", "venv", folder / "venv"),
        (python, "-m", "pip", "install", "--quiet", "-c", ROOT / "constraints.txt", wheel),
    )
    for step in steps:
        done = call(*step)
        assert done.returncode == 0, done.stderr


@pytest.fixture(scope="session")
def dist(place: Path) -> Path:
    """The folder of sdist and wheel."""
    return place / "dist"


@pytest.fixture(scope="session")
def installed(place: Path) -> Path:
    """The commands of the environment with the wheel alone."""
    return place / "venv" / "bin"


def call(*words: object, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    """A command outside the tree, which finds no module of it."""
    kept = {
        name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "COLUMNS")
    }
    return subprocess.run(
        list(map(str, words)), capture_output=True, text=True, cwd=cwd or "/", env=kept
    )


def test_the_wheel_has_the_package_and_nothing_else(dist: Path) -> None:
    (wheel,) = dist.glob("*.whl")
    names = set(zipfile.ZipFile(wheel).namelist())
    about = f"coterie-{coterie.__version__}.dist-info/"
    assert {name for name in names if not name.startswith(about)} == EXPECTED
    assert {"coterie/py.typed", "coterie/report/assets/page.html"} <= names
    assert f"{about}licenses/LICENSE" in names


def test_the_sdist_has_the_sources_and_nothing_else(dist: Path) -> None:
    (sdist,) = dist.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        files = {
            PurePosixPath(*PurePosixPath(m.name).parts[1:])
            for m in archive.getmembers()
            if m.isfile()
        }
    sources = {str(path.relative_to("src")) for path in files if path.is_relative_to("src/coterie")}
    assert sources == EXPECTED
    others = {path.parts[0] for path in files if path.parts[0] != "src"}
    assert others == {*PACKED, "PKG-INFO", "setup.cfg"} - {"src"}


def test_it_says_its_version_and_lists(installed: Path, tmp_path: Path) -> None:
    version = call(installed / "coterie", "--version", cwd=tmp_path)
    assert version.stdout.startswith(f"coterie {coterie.__version__}, Python 3.")
    listed = call(installed / "coterie", "methods", cwd=tmp_path)
    assert (listed.returncode, listed.stderr) == (0, "")
    assert "split-half" in listed.stdout


def test_a_bare_run_and_its_report(installed: Path, tmp_path: Path) -> None:
    run = call(installed / "coterie", "run", "--rounds", "2", "--out", "here", cwd=tmp_path)
    assert (run.returncode, run.stderr) == (0, "")
    assert run.stdout.endswith("recorded in here\n")
    report = call(installed / "coterie", "report", "here", "-o", "page.html", cwd=tmp_path)
    assert (report.returncode, report.stderr) == (0, "")
    assert (tmp_path / "page.html").read_text().lower().startswith("<!doctype html>")


IMPORT = """
import importlib, json, pkgutil, coterie
out = {}
for found in pkgutil.walk_packages(coterie.__path__, "coterie.", onerror=lambda name: None):
    if not found.name.endswith("__main__"):
        try:
            importlib.import_module(found.name)
        except ModuleNotFoundError as error:
            out[found.name] = error.name
print(json.dumps(out))
"""
NEED = {
    "coterie.engines.flower": ("flwr", "cryptography", "google"),
    "coterie.contrib.ray.cluster": ("ray",),
    "coterie.contrib.private.flower": ("flwr", "cryptography", "google"),
    "coterie.contrib.private.masks": ("cryptography",),
    "coterie.contrib.sites.flower": ("flwr", "cryptography", "google"),
    "coterie.report.figures.clients": ("matplotlib",),
    "coterie.report.figures.drawings": ("matplotlib",),
    "coterie.report.figures.partition": ("matplotlib",),
    "coterie.report.figures.several": ("matplotlib",),
}
"""The modules that cannot be imported without an extra: where they begin, and what they lack."""


def test_modules_are_imported_without_any_extra(installed: Path, tmp_path: Path) -> None:
    done = call(installed / "python", "-c", IMPORT, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    lacking = json.loads(done.stdout)
    assert "coterie.engines.flower.strategy" in lacking
    for module, lacks in lacking.items():
        assert any(
            module.startswith(name) and lacks.partition(".")[0] in need
            for name, need in NEED.items()
        ), (module, lacks)


MISSING = {
    "track": ("run", "--track", "tensorboard"),
    "flower": ("run", "--engine", "flower"),
    "hub": ("run", "--set", "scenario.dataset=hub:ylecun/mnist"),
    "report": ("plot", "run", "groups", "-o", "x.pdf"),
}


@pytest.mark.parametrize("extra", MISSING)
def test_a_missing_extra_is_one_sentence(extra: str, installed: Path, tmp_path: Path) -> None:
    shutil.copytree(ROOT / "tests" / "old_runs" / "schema-1" / "cfl", tmp_path / "run")
    done = call(installed / "coterie", *MISSING[extra], cwd=tmp_path)
    assert done.returncode == 2
    assert done.stdout == ""
    assert f"pip install 'coterie[{extra}]'" in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_so_is_the_accountant_that_is_not_there(installed: Path, tmp_path: Path) -> None:
    code = "from coterie.boundary import spent; spent(1.0, 10, 1e-5, accountant='rdp')"
    done = call(installed / "python", "-c", code, cwd=tmp_path)
    assert "needs dp-accounting: pip install 'coterie[dp]'" in done.stderr.splitlines()[-1]
