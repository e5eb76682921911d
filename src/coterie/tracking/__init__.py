"""Trackers: TensorBoard, MLflow or Weights & Biases follow a run directory during the run, or afterwards.

A tracker runs in a separate process and reads only the records (``rounds.jsonl`` and the matrices
in ``similarity/``). So it tracks exactly the contents of the run directory, none of its threads
exists when an engine forks its workers, and a tracker that fails or is slow does not delay
training. Trackers are installed by ``pip install 'coterie[track]'``.
"""

from coterie.tracking.following import Tracking, track
from coterie.tracking.trackers import TRACKERS

__all__ = ["TRACKERS", "Tracking", "track"]
