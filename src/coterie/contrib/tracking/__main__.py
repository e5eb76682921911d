"""The process of a tracker, which ``Tracking`` starts: ``python -m coterie.contrib.tracking NAME``."""

from __future__ import annotations

import os
import select
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import BinaryIO, cast

from coterie.contrib.tracking.trackers import TRACKERS, Tracker

READ_EVERY_SECONDS = 1.0
"""Seconds between two reads of a growing record. The run does not say when it has recorded a round,
so it never waits."""


def follow(input_stream: BinaryIO, make_tracker: Callable[[Path], Tracker]) -> None:
    """Track runs one after the other.

    Args:
        input_stream: Unbuffered input: run directories, one per line, each after the run before has
            ended. An empty line, or the end of the input, is the end of the last run.
        make_tracker: Makes the tracker for a run directory.
    """
    while folder := input_stream.readline().rstrip(b"\n"):
        with closing(make_tracker(Path(os.fsdecode(folder)))) as tracker:
            while not select.select([input_stream], [], [], READ_EVERY_SECONDS)[0]:
                tracker.catch_up()
            tracker.catch_up()


if __name__ == "__main__":
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
    os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
    with open(sys.stdin.fileno(), "rb", buffering=0) as unbuffered:
        follow(cast(BinaryIO, unbuffered), TRACKERS[sys.argv[1]])
