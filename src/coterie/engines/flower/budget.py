"""What a client's updates may tell of its data in all, counted by the client: a server that asks more often gets no more.

The count is a file of the client's own. Nothing that a server says has a part in its name: neither a new run, nor another
seed, exchange or client number begins a new count. Flower's node state would not do, for it is one for each run.
"""

from __future__ import annotations

import fcntl
import json
import logging
import math
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from flwr.app import Context

from coterie.boundary import Boundary, spent
from coterie.engines.flower.keeping import FOLDER, named
from coterie.settings import SettingError
from coterie.store import write_whole

log = logging.getLogger("flwr.coterie")


@dataclass(frozen=True)
class Budget:
    """The most that noised updates of one client may spend: ``epsilon`` at the boundary's δ, over all runs.

    Raises :class:`~coterie.settings.SettingError` where the boundary has no noise, which no budget is enough for.
    """

    epsilon: float
    boundary: Boundary

    def __post_init__(self) -> None:
        value = self.epsilon
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < math.inf:
            raise SettingError(f"boundary_mod's budget must be a number > 0, the greatest ε, got {value!r}")
        if not self.boundary.noise:
            raise SettingError(f"boundary_mod's budget {value:g} needs Boundary.noise, got 0: any update would be beyond it")

    def spend(self, context: Context, updates: int) -> None:
        """Count ``updates`` that are about to leave; the count is on the disk when this returns. Raises ``ValueError`` where
        they would spend more than the budget, or the count cannot be kept, and counts nothing then."""
        path = _path(context)
        try:
            with _alone(path.parent):
                self._count(path, updates)
        except OSError:  # whose words would tell the server of this machine's folders
            log.warning("the count of the privacy budget cannot be kept", exc_info=True)
            raise ValueError("the count of this client's privacy budget cannot be kept; its log says why") from None

    def _count(self, path: Path, updates: int) -> None:
        counts, noise = _counted(path), repr(self.boundary.noise)
        counts[noise] = counts.get(noise, 0) + updates
        epsilon = _epsilon(counts, self.boundary.delta)
        if epsilon > self.epsilon * (1 + 1e-9):
            raise ValueError(
                f"this client's privacy budget is spent: one more answer would take ε to {epsilon:.4g}, of {self.epsilon:g} "
                f"at δ {self.boundary.delta:g}"
            )
        write_whole(path, json.dumps({"updates": counts}).encode())


def _path(context: Context) -> Path:
    """The file of this node's count: by the name that its operator has given it."""
    config = context.node_config
    folder = str(config.get(FOLDER, ""))
    if not folder:
        raise ValueError(f"a privacy budget needs a folder in the node's config, {FOLDER}: nothing else outlives Flower's runs")
    try:
        client = named(config)
    except ValueError:  # another app's: it is no name of a file
        client = None
    return Path(folder) / f"budget-{'node' if client is None else client}.json"


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """One process at a time: two messages may come at once."""
    folder.mkdir(parents=True, exist_ok=True)
    handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def _counted(path: Path) -> dict[str, int]:
    """Noise multiplier -> how many updates have left under it. Raises ``ValueError`` for a file that does not say so."""
    if not path.exists():
        return {}
    try:
        counts = json.loads(path.read_bytes())["updates"]
        right = all(0 < float(noise) < math.inf and type(count) is int and count >= 0 for noise, count in counts.items())
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        right = False
    if not right:
        raise ValueError("the count of this client's privacy budget is damaged; its operator has to look at it")
    return dict(counts)


def _epsilon(counts: Mapping[str, int], delta: float) -> float:
    """What has been spent: T Gaussian releases of multipliers z tell as much as one with 1 / z² = Σ 1 / z_t²."""
    inverse = sum(count / float(noise) ** 2 for noise, count in counts.items())
    return spent(1 / math.sqrt(inverse), 1, delta) if inverse else 0.0
