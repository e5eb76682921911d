"""Worker processes: one thread each, models and replies in shared memory, data inherited, nothing copied per job.

Workers are forked, so they share the world's tensors with their parent. The matrices of models and
replies are anonymous shared memory. Jobs are small tuples. A job's result does not depend on the
worker that runs it, or on the time.
"""

from __future__ import annotations

import ctypes
import gc
import mmap
import multiprocessing
import os
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from typing import Any

import torch
from torch import Tensor, nn

from coterie.data.losses import for_several_models
from coterie.data.objective import binary_cross_entropy, squared_error
from coterie.data.scaling import numbers
from coterie.data.target_scale import LossOfStandardized
from coterie.data.world import World
from coterie.files import available_memory
from coterie.randomness import seeded
from coterie.settings import SettingError
from coterie.settings.calls import public
from coterie.training.precision import PRECISIONS

GRACE = 1.0
"""Seconds after which an idle process that has not ended is killed."""


class EngineError(RuntimeError):
    """A run failed. The message is one sentence for the user.

    Attributes:
        details: The worker's traceback.
    """

    def __init__(self, message: str, details: str = "") -> None:
        super().__init__(message)
        self.details = details


class WorkerLost(EngineError):
    """A worker process ended while it had jobs."""


def default_workers() -> int:
    """Cores that this process may use; 1 if it cannot fork processes safely, or not at all (in a worker of a pool)."""
    forks = sys.platform == "linux" and not multiprocessing.current_process().daemon
    return len(os.sched_getaffinity(0)) if forks else 1


def shared_matrix(rows: int, columns: int) -> Tensor:
    """Create a float32 matrix in memory that forked processes share.

    The system provides the memory when it is first used. A matrix of more than half of the
    available memory lies in an unnamed file in the temporary folder.

    Args:
        rows: Number of rows.
        columns: Number of columns.

    Returns:
        The matrix ``(rows, columns)``.
    """
    if not rows or not columns:
        return torch.empty(rows, columns)
    size = rows * columns * 4
    if size > available_memory() / 2:
        with tempfile.TemporaryFile() as file:
            os.posix_fallocate(
                file.fileno(), 0, size
            )  # a full disk is an error here, not a crash at some later write
            memory = mmap.mmap(file.fileno(), size)
    else:
        memory = mmap.mmap(-1, size)
    return torch.frombuffer(memory, dtype=torch.float32, count=rows * columns).view(rows, columns)


@contextmanager
def _no_interrupt() -> Iterator[None]:
    """Context in which Ctrl-C waits: a process that is forked in it gets none before it ignores them."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


class Workers:
    """Run ``work(job)`` for each job of a list and return the results in the order of the jobs.

    Attributes:
        work: A function of one job. It must be pure except for writes to shared matrices.
        count: Number of processes. With 1 the jobs run in this process, also with one thread, so
            the results have the same bits.
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
            process = context.Process(
                target=self._serve, args=(theirs, [*self.pipes, ours]), daemon=True
            )
            with warnings.catch_warnings(), _no_interrupt():
                # Python 3.12+ warns of any thread at a fork; torch's idle ones are never used by a
                # one-thread child.
                warnings.filterwarnings(
                    "ignore", message=".*multi-threaded.*fork.*", category=DeprecationWarning
                )
                process.start()
            theirs.close()
            self.processes.append(process)
            self.pipes.append(ours)

    def _serve(self, pipe: Connection, parents: list[Connection]) -> None:
        """Main loop of a worker: take lists of jobs until the parent sends None or has ended."""
        for (
            other
        ) in parents:  # if these stayed open, the pipe would not show that the parent has ended
            other.close()
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles it
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
        signal.signal(signal.SIGTERM, signal.SIG_DFL)  # no handler of the parent
        torch.set_num_threads(1)
        gc.freeze()  # else collections would go through all objects of the parent, and so copy their pages
        _keep_memory()
        with suppress(EOFError, OSError):
            while (jobs := pipe.recv()) is not None:
                pipe.send(self._share(jobs))

    def _share(self, jobs: Sequence[Any]) -> tuple[list[tuple[int, Any]], tuple[str, str] | None]:
        """Run the next job of the list until none is left; return ([(position, result), ...], None) or ([], error)."""
        results = []
        try:
            while os.getppid() == self.owner and (i := self._take()) < len(jobs):
                results.append((i, self.work(jobs[i])))
        except Exception as error:
            self.next.value = len(jobs)  # the other workers can stop
            return [], (sentence(error), traceback.format_exc())
        return results, None

    def _take(self) -> int:
        with self.next.get_lock():
            self.next.value += 1
            return self.next.value - 1

    def run(self, jobs: Sequence[Any]) -> list[Any]:
        """Run all jobs.

        Args:
            jobs: The jobs.

        Returns:
            Their results, in order.

        Raises:
            EngineError: A job failed or a worker process ended.
        """
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
        """End the processes; a busy one is killed."""
        if os.getpid() != self.owner:  # this is a copy of the object, in a process forked later
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
    """Make this process keep freed memory, so that activations and gradients of the next step can use it again.

    Memory that the C library returns to the system at every step must be cleared and mapped again.
    This took a tenth of the time of some steps.
    """
    trim, map_from = (
        -1,
        -3,
    )  # M_TRIM_THRESHOLD and M_MMAP_THRESHOLD of glibc's mallopt; other libraries have none
    with suppress(AttributeError, OSError, TypeError):
        library = ctypes.CDLL(None)
        library.mallopt(trim, 2**31 - 1)
        library.mallopt(map_from, 2**30) or library.mallopt(
            map_from, 2**25
        )  # the limit of older versions


def sentence(error: Exception) -> str:
    """The message of an error; with its class name unless it is an :class:`EngineError`, which is written for users."""
    return str(error) if isinstance(error, EngineError) else f"{type(error).__name__}: {error}"


def _death(process: multiprocessing.process.BaseProcess) -> WorkerLost:
    process.join(timeout=1)
    hint = (
        " (killed; was there enough memory? fewer --workers need less)"
        if process.exitcode == -signal.SIGKILL
        else ""
    )
    return WorkerLost(f"a worker process ended with exit code {process.exitcode}{hint}")


# ----------------------------------------------------------------------------------------------------
# Hardware settings of a run: processes, blocks of clients, device, precision.


BLOCK_BYTES = 1 << 21
"""Bytes of the models in a block on a CPU. They should fit a core's cache together with their
gradients and examples."""

WIDEST = 16
"""Most clients in a block on a CPU. Wider blocks gain little, and the workers share the work less
evenly."""

WIDEST_ON_A_GPU = 64
TRIED = 8
"""Examples with which a loss is tried."""

STEP = 40e6
"""Operations of a step on a CPU above which clients train alone: the cost of the calls to torch is
then small."""

_ONE_BY_ONE = (
    nn.Sequential,
    nn.Flatten,
    nn.Linear,
    nn.Identity,
    nn.ReLU,
    nn.Tanh,
    nn.Sigmoid,
    nn.GELU,
    nn.SiLU,
    nn.LeakyReLU,
)
"""Modules that are fast in blocks on a CPU and compute every example independently of the others.
"""


@public
@dataclass(frozen=True, kw_only=True)
class Hardware:
    """The hardware settings of a run.

    The number of workers changes no bit of a result. The width and the device change rounding; bf16
    changes a little more.

    Attributes:
        workers: Processes that train. None means one per core.
        width: Clients trained in one block. None chooses a width for the model and the device.
        device: A torch device.
        precision: ``"fp32"`` or ``"bf16"``.

    Raises:
        SettingError: A setting is not allowed.
    """

    workers: int | None = None
    width: int | None = None
    device: str = "cpu"
    precision: str = "fp32"

    def __post_init__(self) -> None:
        for name in ("workers", "width"):
            value = getattr(self, name)
            if value is not None and (not isinstance(value, int) or value < 1):
                raise SettingError(f"{name} must be an integer >= 1, got {value!r}")
        if self.precision not in PRECISIONS:
            raise SettingError(
                f"precision must be one of {', '.join(PRECISIONS)}, got {self.precision!r}"
            )
        if self._kind() not in ("cpu", "cuda"):
            raise SettingError(f"device must be cpu or cuda, got {self.device!r}")
        if self._kind() != "cpu" and (self.workers or 1) > 1:
            raise SettingError(
                f"workers must be 1 with device {self.device}, got {self.workers} (use width for blocks)"
            )

    def _kind(self) -> str:
        try:
            return torch.device(self.device).type
        except (RuntimeError, TypeError):
            raise SettingError(
                f"device must be cpu, cuda or cuda:NUMBER, got {self.device!r}"
            ) from None

    def check(self, world: World) -> None:
        """Check that this machine has the device and that the model can be trained with these settings.

        Args:
            world: The clients and their model.

        Raises:
            SettingError: The device is missing, or the model does not allow this width.
        """
        if self._kind() == "cuda" and not torch.cuda.is_available():
            raise SettingError(
                f"device {self.device!r} cannot be used: this PyTorch finds no CUDA GPU; cpu always works"
            )
        count = torch.cuda.device_count()
        if self._kind() == "cuda" and (torch.device(self.device).index or 0) >= count:
            raise SettingError(
                f"device {self.device!r} cannot be used: the last GPU here is cuda:{count - 1}"
            )
        with seeded(0):
            self.block(world.model(), world)

    def processes(self, clients: int) -> int:
        """Return the number of worker processes for a number of clients; 1 in a process that can have none."""
        if self._kind() != "cpu" or multiprocessing.current_process().daemon:
            return 1
        return min(self.workers or default_workers(), clients)

    def warn_of_one(self) -> None:
        """Issue a warning if this process can have no worker processes, and several are asked for."""
        if (
            (self.workers or 1) > 1
            and self._kind() == "cpu"
            and multiprocessing.current_process().daemon
        ):
            warnings.warn(
                f"workers is {self.workers}, and a process of a multiprocessing.Pool can start none: training runs in this "
                "process alone, with the same results",
                stacklevel=2,
            )

    def block(self, module: nn.Module, world: World) -> int:
        """Return the number of clients in a block: ``width``, or a suitable number.

        It does not depend on the number of workers.

        Args:
            module: The model.
            world: The clients, their data and their objective.

        Returns:
            The number of clients in a block. With 1 each client trains alone.

        Raises:
            SettingError: ``width`` is greater than 1, and the model cannot be trained in blocks.
        """
        obstacle = next((why for part in module.modules() for why in _obstacles(part)), None)
        if self.width is not None:
            obstacle = obstacle or (
                None if _of_tensors(world) else "inputs that are not single tensors"
            )
            if self.width > 1 and obstacle:
                raise SettingError(f"width must be 1 for a model with {obstacle}, got {self.width}")
            return self.width
        if obstacle or not _of_tensors(world):
            return 1
        if self._kind() != "cpu":
            return WIDEST_ON_A_GPU if _together(module, world) else 1
        parameters = sum(p.numel() for p in module.parameters())
        if (
            not all(type(part) in _ONE_BY_ONE for part in module.modules())
            or _work(parameters, world) > STEP
        ):
            return 1
        if not _together(module, world):
            return 1
        return max(1, min(WIDEST, BLOCK_BYTES // (4 * parameters)))


def _obstacles(part: nn.Module) -> Iterator[str]:
    """Reasons why a module with this part cannot be computed for several models at once."""
    if isinstance(part, nn.modules.dropout._DropoutNd) and part.p > 0:
        yield "dropout, which draws separate random numbers for each client"
    if isinstance(part, nn.RNNBase):
        yield "recurrent layers, which torch cannot compute for several models at once"
    owned = [
        buffer
        for buffer in part._buffers.values()
        if buffer is not None and buffer.is_floating_point()
    ]
    if owned and not isinstance(part, nn.modules.batchnorm._BatchNorm):
        yield f"buffers in {type(part).__name__}, which may change as it is trained"


def _of_tensors(world: World) -> bool:
    """Whether the inputs of all clients are single tensors in memory."""
    return all(isinstance(data.train.inputs, torch.Tensor) for data in world.clients.values())


def _together(module: nn.Module, world: World) -> bool:
    """Whether the loss can be computed for several clients at once, tried with some examples of the first one."""
    objective = world.objective
    loss = objective.loss.loss if isinstance(objective.loss, LossOfStandardized) else objective.loss
    if loss in (squared_error, binary_cross_entropy):
        return False  # such clients have always trained alone, and rounding would change
    first = world.clients[min(world.clients)].train
    if not isinstance(first.targets, torch.Tensor) or objective.takes_classes(first.targets):
        return isinstance(first.targets, torch.Tensor)
    training, inputs = module.training, numbers(first.inputs.index_select(0, first.index[:TRIED]))
    try:
        with seeded(0), torch.no_grad():
            outputs = module.eval()(inputs.to(next(module.parameters()).device))
    except Exception:  # the check before the first round says what is wrong
        return False
    finally:
        module.train(training)
    return isinstance(outputs, torch.Tensor) and for_several_models(
        objective.loss, outputs, first.targets[:TRIED]
    )


def _work(parameters: int, world: World) -> float:
    """Operations of one step of a dense net at the client with most examples: 3 passes of 2 per weight and example."""
    most = max(len(data.train) for data in world.clients.values())
    return 6.0 * parameters * (min(world.training.batch, most) or most)
