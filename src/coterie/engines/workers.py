"""Worker processes: one thread each, models and replies in shared memory, data inherited, nothing copied per job.

Workers are forked, so they share the world's tensors with their parent; matrices of models and replies are anonymous
shared memory. Jobs are small tuples. Which worker does a job, and when, cannot change its result.
"""

from __future__ import annotations

import mmap
import multiprocessing
import os
import signal
import sys
import traceback
import warnings
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from typing import Any

import torch
from torch import Tensor


class EngineError(RuntimeError):
    """A run that failed: one sentence for people; the worker's traceback is in ``details``."""

    def __init__(self, message: str, details: str = "") -> None:
        super().__init__(message)
        self.details = details


def default_workers() -> int:
    """Cores this process may use; 1 where processes cannot be forked safely."""
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else 1


def shared_matrix(rows: int, columns: int) -> Tensor:
    """An uninitialised float32 matrix that forked processes see too; memory is taken as it is touched."""
    memory = mmap.mmap(-1, max(rows * columns * 4, 4))
    return torch.frombuffer(memory, dtype=torch.float32, count=rows * columns).view(rows, columns)


class Workers:
    """Runs ``work(job)`` for each job of a list and returns the results in the order of the jobs.

    work: a function of one job; it must be pure but for writes to shared matrices. count: processes; with 1 the jobs run
    here, one thread as well, so results are the same bits.
    """

    def __init__(self, work: Callable[[Any], Any], count: int) -> None:
        self.work, self.count = work, count
        self.processes: list[multiprocessing.process.BaseProcess] = []
        self.pipes: list[Connection] = []
        if count > 1:
            self._fork()

    def _fork(self) -> None:
        context = multiprocessing.get_context("fork")
        self.next = context.Value("l", 0)
        for _ in range(self.count):
            ours, theirs = context.Pipe()
            process = context.Process(target=self._serve, args=(theirs, [*self.pipes, ours]), daemon=True)
            with warnings.catch_warnings():
                # Python 3.12+ warns of any thread at a fork; torch's idle ones are never used by a one-thread child.
                warnings.filterwarnings("ignore", message=".*multi-threaded.*fork.*", category=DeprecationWarning)
                process.start()
            theirs.close()
            self.processes.append(process)
            self.pipes.append(ours)

    def _serve(self, pipe: Connection, parents: list[Connection]) -> None:
        """A worker's life: take the next job of the list until none is left; end when the parent does."""
        for other in parents:  # with these open, the pipe would not notice the parent's death
            other.close()
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides
        torch.set_num_threads(1)
        while True:
            try:
                jobs = pipe.recv()
            except EOFError:
                return
            results = []
            try:
                while (i := self._take()) < len(jobs):
                    results.append((i, self.work(jobs[i])))
                pipe.send((results, None))
            except Exception as error:
                pipe.send(([], (str(error), traceback.format_exc())))

    def _take(self) -> int:
        with self.next.get_lock():
            self.next.value += 1
            return self.next.value - 1

    def run(self, jobs: Sequence[Any]) -> list[Any]:
        """Results of all jobs, in order. Raises :class:`EngineError` if one fails or a worker dies."""
        if self.count == 1:
            return self._run_here(jobs)
        self.next.value = 0
        for pipe in self.pipes:
            pipe.send(list(jobs))
        results: list[Any] = [None] * len(jobs)
        failure = None
        for pipe, process in zip(self.pipes, self.processes, strict=True):
            try:
                done, failed = pipe.recv()
            except (EOFError, ConnectionResetError):
                process.join()
                raise EngineError(
                    f"a worker process ended with exit code {process.exitcode}"
                    + (" (killed; was there enough memory? fewer --workers need less)" if process.exitcode == -9 else "")
                ) from None
            failure = failure or failed
            for i, result in done:
                results[i] = result
        if failure:
            raise EngineError(*failure)
        return results

    def _run_here(self, jobs: Sequence[Any]) -> list[Any]:
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            return [self.work(job) for job in jobs]
        except Exception as error:
            raise EngineError(str(error), traceback.format_exc()) from error
        finally:
            torch.set_num_threads(threads)

    def close(self) -> None:
        for pipe in self.pipes:
            pipe.close()
        for process in self.processes:
            process.join(timeout=1)
            if process.is_alive():
                process.kill()
                process.join()
        self.pipes, self.processes = [], []
