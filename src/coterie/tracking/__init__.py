"""Runs in a tracker: TensorBoard, MLflow or Weights & Biases follow a run directory while it grows, or afterwards.

A tracker reads what is recorded (``rounds.jsonl``, the matrices in ``similarity/``) and nothing else, in a process of its
own. So it tracks exactly what the run directory has, no thread of it is there when an engine forks its workers, and a
tracker that fails or is slow holds up no training. Installed by ``pip install 'coterie[track]'``.
"""

from coterie.tracking.following import TRACKERS, Tracking, track

__all__ = ["TRACKERS", "Tracking", "track"]
