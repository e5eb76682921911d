"""What commands import: those that only read start without torch and other libraries that take long."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from coterie.cli import READING_COMMANDS

TESTS = Path(__file__).parents[1]
RUN = str(TESTS / "report" / "explained")
OLD_RUNS = sorted(str(path.parent) for path in TESTS.glob("old_runs/*/*/run.toml"))

SLOW = {
    "asyncio",
    "matplotlib",
    "multiprocessing",
    "pandas",
    "scipy.cluster",
    "scipy.special",
    "sklearn",
    "torch._C",
}
"""Modules that take long. A torch that is delayed has no torch._C."""

CALL = """
import sys
from coterie.cli import main
try:
    status = main(sys.argv[2:])
except SystemExit as end:
    status = end.code
with open(sys.argv[1], "w") as file:
    print(*sys.modules, file=file)
sys.exit(status)
"""


def imported(folder: Path, *arguments: str) -> set[str]:
    """The modules that a command imports, in a process of its own whose current folder is ``folder``."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    command = [sys.executable, "-W", "error", "-c", CALL, str(folder / "modules"), *arguments]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    return set((folder / "modules").read_text().split())


@pytest.mark.parametrize(
    "arguments", [(), ("--help",), ("--version",), ("run", "--help"), ("explain", "--help")]
)
def test_help_needs_the_standard_library_alone(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    assert not imported(tmp_path, *arguments) & {*SLOW, "numpy", "rich", "scipy", "torch"}


@pytest.mark.parametrize(
    "arguments",
    [
        ("methods",),
        ("methods", "hcct"),
        ("scenarios",),
        ("scenarios", "digits/label-swap"),
        ("compare", RUN),
        ("compare", RUN, "--json"),
        ("explain", RUN),
        ("explain", RUN, "--client", "0"),
        ("explain", RUN, "--json"),
        ("report", RUN, "-o", "report.html"),
    ],
    ids=lambda arguments: " ".join(Path(argument).name for argument in arguments),
)
def test_reading_needs_no_slow_library(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    assert arguments[0] in READING_COMMANDS
    assert not imported(tmp_path, *arguments) & SLOW


@pytest.mark.parametrize("run", OLD_RUNS, ids=lambda run: Path(run).name)
def test_no_method_needs_torch_to_be_explained_or_shown(tmp_path: Path, run: str) -> None:
    without = SLOW - {
        "scipy.cluster",
        "scipy.special",
    }  # SciPy makes dendrograms and computes the quantiles of tests
    assert not imported(tmp_path, "explain", run) & without
    assert not imported(tmp_path, "explain", run, "--client", "0") & without
    assert not imported(tmp_path, "report", run, "-o", "report.html") & without


@pytest.mark.parametrize(
    "use",
    [
        "import pickle\nassert not isinstance(0, torch.Tensor)\n"
        "assert isinstance(pickle.loads(pickle.dumps(torch.ones(2))), torch.Tensor)",
        "from torch import Tensor, nn; assert isinstance(torch.zeros(2), Tensor) and issubclass(nn.Linear, torch.nn.Module)",
        "import torch.nn.functional as f; assert torch.nn.functional is f; assert f.relu(torch.ones(2)).sum() == 2",
        "import safetensors.torch as s; assert torch.equal(s.load(s.save({'a': torch.ones(2)}))['a'], torch.ones(2))",
        "import typing; from coterie.core import STATES; import coterie.methods\n"
        "assert typing.get_type_hints(STATES['fedavg'])['model'] is torch.Tensor",
        "from threading import Thread; found = []\n"
        "threads = [Thread(target=lambda: found.append(float(torch.ones(2).sum()))) for _ in range(4)]\n"
        "[thread.start() for thread in threads]; [thread.join() for thread in threads]; assert found == [2.0] * 4",
        "import coterie; assert len(list(coterie.run('fedavg', 'digits/label-swap', rounds=1, workers=2))) == 1",
    ],
)
def test_a_delayed_torch_is_torch(use: str) -> None:
    begin = (
        "import importlib.util, sys\nfrom coterie.cli import _delay_torch\n_delay_torch()\n"
        "import torch\nimport torch as again\n"
        "assert again is torch and importlib.util.find_spec('torch').name == 'torch' and 'torch._C' not in sys.modules\n"
    )
    end = "\nimport torch as now\nassert 'torch._C' in sys.modules and now.Tensor is torch.Tensor\n"
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", begin + use + end], capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (0, "")
