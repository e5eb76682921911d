"""Trackers: TensorBoard, MLflow, Weights & Biases or Prometheus follow a run directory during the run, or afterwards.

A tracker runs in a separate process and reads only the records (``rounds.jsonl`` and the matrices
in ``similarity/``). So it tracks exactly the contents of the run directory, none of its threads
exists when an engine forks its workers, and a tracker that fails or is slow does not delay
training. Trackers are installed by ``pip install 'coterie[track]'``. A package adds one by a subclass
of :class:`Tracker` and an entry point in the group ``coterie.trackers``.
"""

from typing import TYPE_CHECKING

from coterie.extensions import lazily

if TYPE_CHECKING:
    from coterie.contrib.tracking.following import Tracking as Tracking
    from coterie.contrib.tracking.following import track as track
    from coterie.contrib.tracking.trackers import TRACKERS as TRACKERS
    from coterie.contrib.tracking.trackers import Tracker as Tracker

__all__ = ["TRACKERS", "Tracker", "Tracking", "track"]

# Imported on first use, so that help appears immediately.
__getattr__ = lazily(
    __name__,
    {
        "TRACKERS": "trackers",
        "Tracker": "trackers",
        "Tracking": "following",
        "track": "following",
    },
)
