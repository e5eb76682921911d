"""What the tests themselves are held to: no draw that nobody seeded, and no need for an order."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
DRAWS = {
    "torch's": ["torch.rand(1)", "torch.nn.Linear(2, 2)", "torch.manual_seed(0)"],
    "NumPy's": ["np.random.rand(1)", "np.random.seed(0)", "np.random.standard_normal()"],
    "Python's": ["random.random()", "random.shuffle([1, 2])", "random.seed(0)"],
}
EVERY = ", ".join(draws[0] for draws in DRAWS.values())
IMPORTS = """
import random
import numpy as np
import pytest
import torch
from hypothesis import given, strategies as st
from coterie.randomness import generator, numpy_generator, seeded
"""


def outcomes(
    pytester: pytest.Pytester, source: str, name: str = "test_it.py"
) -> tuple[dict[str, int], str]:
    """How the tests of a file end where ``generators`` watches, and all that pytest says."""
    pytester.path.joinpath(name).write_text(IMPORTS + source)
    result = pytester.runpytest_inprocess(
        "-p", "generators", "-p", "no:cacheprovider", "--doctest-modules", "-rN"
    )
    return result.parseoutcomes(), result.stdout.str()


def test_a_draw_that_nobody_seeded_fails_the_test(pytester: pytest.Pytester) -> None:
    draws = [draw for some in DRAWS.values() for draw in some]
    source = "".join(
        f"def test_{n}():\n    {draw}\n\ndef test_after_{n}():\n    pass\n\n"
        for n, draw in enumerate(draws)
    )
    found, said = outcomes(pytester, source)
    assert found == {"passed": 2 * len(draws), "errors": len(draws)}, said
    for whose, some in DRAWS.items():
        assert said.count(
            f"the test: {whose} global generator was used outside a seeded scope"
        ) == len(some)


@pytest.mark.parametrize(
    ("source", "where"),
    [
        ("@pytest.fixture\ndef it():\n    return {}\n\ndef test_it(it):\n    pass\n", "the fixtures"),
        ("@pytest.fixture(scope='module')\ndef it():\n    {}\n\ndef test_it(it):\n    pass\n", "the fixtures"),
        ("@pytest.fixture\ndef it():\n    yield\n    {}\n\ndef test_it(it):\n    pass\n", "the end of the fixtures"),
        ("def f():\n    '''\n    >>> _ = {}\n    '''\n", "the test"),
        ("N = {}\ndef test_it():\n    pass\n", "the import of this file"),
        ("@pytest.mark.xfail\ndef test_it():\n    {}\n    assert False\n", "the test"),
        ("def test_it():\n    {}\n    pytest.skip('later')\n", "the test"),
        ("@given(st.booleans())\ndef test_it(b):\n    {}\n", "an example of Hypothesis"),
    ],
    ids=["fixture", "module-fixture", "end", "doctest", "import", "xfail", "skip", "property"],
)  # fmt: skip
def test_wherever_it_is(pytester: pytest.Pytester, source: str, where: str) -> None:
    found, said = outcomes(pytester, source.format(EVERY))
    assert found.get("errors", 0) + found.get("failed", 0) >= 1, said
    assert f"{where}: torch's and NumPy's and Python's global generator" in said


def test_seeded_draws_are_left_in_peace(pytester: pytest.Pytester) -> None:
    found, said = outcomes(
        pytester,
        """
def test_scope():
    with seeded(1):
        torch.rand(1), torch.nn.Linear(2, 2)

@seeded(1)
def test_whole():
    torch.rand(1)

def test_generators():
    torch.rand(1, generator=generator(1)), numpy_generator(1).random(), random.Random(1).random()

@given(st.randoms(), st.lists(st.integers()))
@seeded(1)
def test_property(r, some):
    r.random(), torch.rand(1)
""",
    )
    assert found == {"passed": 4}, said


def test_every_test_starts_in_a_state_of_its_own(pytester: pytest.Pytester) -> None:
    """So that what depends on it is seen to: a draw and its state put back, say, which no comparison finds."""
    found, said = outcomes(
        pytester,
        """
SEEN = []

@pytest.mark.parametrize("number", range(4))
def test_it(number):
    kept = torch.get_rng_state(), np.random.get_state(), random.getstate()
    SEEN.append((float(torch.rand(1)), np.random.rand(), random.random()))
    torch.set_rng_state(kept[0]), np.random.set_state(kept[1]), random.setstate(kept[2])

def test_all_differ():
    assert all(len(set(one)) == 4 for one in zip(*SEEN))
""",
    )
    assert found == {"passed": 5}, said


def order(folder: Path, *options: str) -> list[str]:
    """The tests of three small files, in the order they ran in."""
    for module in range(3):
        names = "\n".join(f"def test_{n}():\n    pass\n" for n in range(5))
        (folder / f"test_module_{module}.py").write_text(names)
    (folder / "pytest.ini").write_text("[pytest]\n")
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-v",
        "-p",
        "shuffled",
        "-p",
        "no:cacheprovider",
        *options,
    ]
    environ = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(HERE), os.environ.get("PYTHONPATH", "")]),
    }
    said = subprocess.run(
        command, cwd=folder, env=environ, capture_output=True, text=True, check=True
    ).stdout
    return [
        word
        for line in said.splitlines()
        if "PASSED" in line
        for word in line.split()
        if "::" in word
    ]


@pytest.mark.slow
def test_a_shuffle_is_its_seed(tmp_path: Path) -> None:
    plain, shuffled = order(tmp_path), order(tmp_path, "--shuffle", "1")
    assert sorted(shuffled) == sorted(plain) == plain
    assert shuffled != plain
    assert order(tmp_path, "--shuffle", "1") == shuffled
    assert order(tmp_path, "--shuffle", "2") not in (plain, shuffled)
    modules = [name.partition("::")[0] for name in shuffled]
    assert all(modules[5 * n : 5 * n + 5] == [modules[5 * n]] * 5 for n in range(3))
    assert (
        sorted(order(tmp_path, "--shuffle", "1", "-n", "2")) == plain
    )  # xdist refuses workers that differ
