"""Worker processes: one thread each, models and replies in shared memory, data inherited, nothing copied per job.

Workers are forked, so they share the world's tensors with their parent; matrices of models and replies are anonymous
shared memory. Jobs are small tuples. Which worker does a job, and when, cannot change its result.
"""

from __future__ import annotations

import ctypes
import mmap
import multiprocessing
import os
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection, wait
from typing import Any

import torch
from torch import Tensor

from coterie.files import available_memory

GRACE = 1.0
"""Seconds that idle processes have to end by themselves."""


class EngineError(RuntimeError):
    """A run that failed: one sentence for people; the worker's traceback is in ``details``."""

    def __init__(self, message: str, details: str = "") -> None:
        super().__init__(message)
        self.details = details


def default_workers() -> int:
    """Cores this process may use; 1 where processes cannot be forked safely, or at all (in a pool's worker)."""
    forks = sys.platform == "linux" and not multiprocessing.current_process().daemon
    return len(os.sched_getaffinity(0)) if forks else 1


def shared_matrix(rows: int, columns: int) -> Tensor:
    """A float32 matrix that forked processes see too; memory is taken as it is touched.

    One that would take more than half of the memory there is lies in a nameless file of the temporary folder.
    """
    if not rows or not columns:
        return torch.empty(rows, columns)
    size = rows * columns * 4
    if size > available_memory() / 2:
        with tempfile.TemporaryFile() as file:
            os.posix_fallocate(file.fileno(), 0, size)  # a full disk is an error here, not a crash at some later write
            memory = mmap.mmap(file.fileno(), size)
    else:
        memory = mmap.mmap(-1, size)
    return torch.frombuffer(memory, dtype=torch.float32, count=rows * columns).view(rows, columns)


class Workers:
    """Runs ``work(job)`` for each job of a list and returns the results in the order of the jobs.

    work: a function of one job; it must be pure but for writes to shared matrices. count: processes; with 1 the jobs run
    here, one thread as well, so results are the same bits.
    """

    def __init__(self, work: Callable[[Any], Any], count: int) -> None:
        self.work, self.count, self.owner = work, count, os.getpid()
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
        """A worker's life: lists of jobs, until it is told to end or the parent is gone."""
        for other in parents:  # with these open, the pipe would not notice the parent's death
            other.close()
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides
        signal.signal(signal.SIGTERM, signal.SIG_DFL)  # not by a handler of the parent's
        torch.set_num_threads(1)
        _keep_memory()
        with suppress(EOFError, OSError):
            while (jobs := pipe.recv()) is not None:
                pipe.send(self._share(jobs))

    def _share(self, jobs: Sequence[Any]) -> tuple[list[tuple[int, Any]], tuple[str, str] | None]:
        """Do the next job of the list until none is left; ((position, result)s, None), or what went wrong."""
        results = []
        try:
            while os.getppid() == self.owner and (i := self._take()) < len(jobs):
                results.append((i, self.work(jobs[i])))
        except Exception as error:
            self.next.value = len(jobs)  # the others need not go on
            return [], (sentence(error), traceback.format_exc())
        return results, None

    def _take(self) -> int:
        with self.next.get_lock():
            self.next.value += 1
            return self.next.value - 1

    def run(self, jobs: Sequence[Any]) -> list[Any]:
        """Results of all jobs, in order. Raises :class:`EngineError` if one fails or a worker dies."""
        if self.count == 1:
            return self._run_here(jobs)
        self.next.value = 0
        results: list[Any] = [None] * len(jobs)
        failure = None
        waiting = dict(zip(self.pipes, self.processes, strict=True))
        for pipe, process in waiting.items():
            try:
                pipe.send(list(jobs))
            except OSError:
                raise _death(process) from None
        while waiting:
            ready = wait(list(waiting))
            for pipe in [p for p in waiting if p in ready]:
                process = waiting.pop(pipe)
                try:
                    done, failed = pipe.recv()
                except (EOFError, OSError):
                    raise _death(process) from None
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
            raise EngineError(sentence(error), traceback.format_exc()) from error
        finally:
            torch.set_num_threads(threads)

    def close(self) -> None:
        """End the processes; one that is busy is killed."""
        if os.getpid() != self.owner:  # a copy of this object in a process that was forked later
            return
        for pipe in self.pipes:
            with suppress(OSError):
                pipe.send(None)
            pipe.close()
        deadline = time.monotonic() + GRACE
        for process in self.processes:
            process.join(timeout=max(deadline - time.monotonic(), 0.0))
            if process.is_alive():
                process.kill()
                process.join()
        self.pipes, self.processes = [], []


def _keep_memory() -> None:
    """Have this process keep freed memory: activations and gradients of the next step take it again.

    What the C library gives back to the system at every step has to be cleared and mapped anew, a tenth of some steps.
    """
    trim, map_from = -1, -3  # M_TRIM_THRESHOLD and M_MMAP_THRESHOLD of glibc's mallopt; elsewhere there is no such thing
    with suppress(AttributeError, OSError, TypeError):
        library = ctypes.CDLL(None)
        library.mallopt(trim, 2**31 - 1)
        library.mallopt(map_from, 2**30) or library.mallopt(map_from, 2**25)  # what older ones allow


def sentence(error: Exception) -> str:
    """What an error says; with its kind, unless it is one made for people."""
    return str(error) if isinstance(error, EngineError) else f"{type(error).__name__}: {error}"


def _death(process: multiprocessing.process.BaseProcess) -> EngineError:
    process.join(timeout=1)
    hint = " (killed; was there enough memory? fewer --workers need less)" if process.exitcode == -signal.SIGKILL else ""
    return EngineError(f"a worker process ended with exit code {process.exitcode}{hint}")
