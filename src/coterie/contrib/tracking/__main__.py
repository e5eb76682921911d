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


def follow(stream: BinaryIO, make: Callable[[Path], Tracker]) -> None:
    """Track runs one after the other.

    Args:
        stream: Unbuffered input: run directories, one per line, each after the run before has
            ended. An empty line, or the end of the input, is the end of the last run.
        make: Makes the tracker for a run directory.
    """
    while folder := stream.readline().rstrip(b"\n"):
        with closing(make(Path(os.fsdecode(folder)))) as tracker:
            while not select.select([stream], [], [], READ_EVERY_SECONDS)[0]:
                tracker.catch_up()
            tracker.catch_up()


if __name__ == "__main__":
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
    os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
    with open(sys.stdin.fileno(), "rb", buffering=0) as unbuffered:
        follow(cast(BinaryIO, unbuffered), TRACKERS[sys.argv[1]])
