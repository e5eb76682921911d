"""What commands import: those that only read start without torch and other libraries that take long."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from coterie.cli import READING_COMMANDS
from method_examples import slow

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
import json
import sys
from coterie.cli import main
status = 0
for arguments in json.loads(sys.argv[2]):
    try:
        status = main(arguments) or status
    except SystemExit as end:
        status = end.code or status
with open(sys.argv[1], "w") as file:
    print(*sys.modules, file=file)
sys.exit(status)
"""


def imported(folder: Path, *commands: tuple[str, ...]) -> set[str]:
    """The modules that commands import, in a process of their own whose current folder is ``folder``."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    called = json.dumps(commands)
    command = [sys.executable, "-W", "error", "-c", CALL, str(folder / "modules"), called]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    return set((folder / "modules").read_text().split())


@pytest.mark.parametrize(
    "arguments", [(), ("--help",), ("--version",), ("run", "--help"), ("explain", "--help")]
)
def test_help_needs_the_standard_library_alone(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    assert not imported(tmp_path, arguments) & {*SLOW, "numpy", "rich", "scipy", "torch"}


COMMAND_LINES = [
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
]


def test_reading_needs_no_slow_library(tmp_path: Path) -> None:
    assert {arguments[0] for arguments in COMMAND_LINES} <= set(READING_COMMANDS)
    modules = imported(tmp_path, *COMMAND_LINES) & SLOW
    assert not modules, "of one of the commands: call them one by one"


def test_no_method_needs_torch_to_be_explained_or_shown(tmp_path: Path) -> None:
    # SciPy makes dendrograms and computes the quantiles of tests.
    forbidden = SLOW - {"scipy.cluster", "scipy.special"}
    commands: list[tuple[str, ...]] = []
    for run in OLD_RUNS:
        page = f"{Path(run).name}.html"
        commands += [
            ("explain", run),
            ("explain", run, "--client", "0"),
            ("report", run, "-o", page),
        ]
    assert not imported(tmp_path, *commands) & forbidden


USES_OF_TORCH = [
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
]
"""What a program does with a torch that is delayed. Each takes a process that imports it."""


@pytest.mark.parametrize(
    "use",
    [USES_OF_TORCH[0], *slow(*USES_OF_TORCH[1:])],
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
