"""Trackers: TensorBoard, MLflow, Weights & Biases or Prometheus follow a run directory during the run, or afterwards.

A tracker runs in a separate process and reads only the records (``rounds.jsonl`` and the matrices
in ``similarity/``). So it tracks exactly the contents of the run directory, none of its threads
exists when an engine forks its workers, and a tracker that fails or is slow does not delay
training. Trackers are installed by ``pip install 'coterie[track]'``. A package adds one by a subclass
of :class:`Tracker` and an entry point in the group ``coterie.trackers``.
"""

from coterie.contrib.tracking.following import Tracking, track
from coterie.contrib.tracking.trackers import TRACKERS as TRACKERS
from coterie.contrib.tracking.trackers import Tracker as Tracker

__all__ = ["TRACKERS", "Tracker", "Tracking", "track"]
