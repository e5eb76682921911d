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
from coterie.data.on_demand import examined
from coterie.data.scaling import numbers
from coterie.data.target_scale import LossOfStandardized
from coterie.data.world import World
from coterie.files import available_memory
from coterie.randomness import seeded
from coterie.settings import SettingError
from coterie.settings.calls import public
from coterie.training.precision import PRECISIONS

IDLE_GRACE_SECONDS = 1.0
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
    can_fork = sys.platform == "linux" and not multiprocessing.current_process().daemon
    return len(os.sched_getaffinity(0)) if can_fork else 1


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
    # Anonymous memory, or a file if there is not enough memory.
    byte_count = rows * columns * 4
    if byte_count > available_memory() / 2:
        with tempfile.TemporaryFile() as unnamed_file:
            # A full disk is an error here, not a crash at some later write.
            os.posix_fallocate(unnamed_file.fileno(), 0, byte_count)
            shared_memory = mmap.mmap(unnamed_file.fileno(), byte_count)
    else:
        shared_memory = mmap.mmap(-1, byte_count)
    return torch.frombuffer(shared_memory, dtype=torch.float32, count=rows * columns).view(
        rows, columns
    )


@contextmanager
def _no_interrupt() -> Iterator[None]:
    """Context in which Ctrl-C waits: a process that is forked in it gets none before it ignores them."""
    mask_before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask_before)


class Workers:
    """Run ``work(job)`` for each job of a list and return the results in the order of the jobs.

    Attributes:
        work: A function of one job. It must be pure except for writes to shared matrices.
        count: Number of processes. With 1 the jobs run in this process, also with one thread, so
            the results have the same bits.
    """

    def __init__(self, work: Callable[[Any], Any], count: int) -> None:
        self.work = work
        self.count = count
        self.owner = os.getpid()
        self.processes: list[multiprocessing.process.BaseProcess] = []
        self.pipes: list[Connection] = []
        if count > 1:
            self._fork()

    def _fork(self) -> None:
        context = multiprocessing.get_context("fork")
        # The position of the next job, which the processes share.
        self.next_job = context.Value("l", 0)
        for _ in range(self.count):
            parent_pipe, worker_pipe = context.Pipe()
            process = context.Process(
                target=self._serve, args=(worker_pipe, [*self.pipes, parent_pipe]), daemon=True
            )
            with warnings.catch_warnings(), _no_interrupt():
                # Python 3.12+ warns of any thread at a fork; torch's idle ones are never used by a
                # one-thread child.
                warnings.filterwarnings(
                    "ignore", message=".*multi-threaded.*fork.*", category=DeprecationWarning
                )
                process.start()
            worker_pipe.close()
            self.processes.append(process)
            self.pipes.append(parent_pipe)

    def _serve(self, job_pipe: Connection, parent_pipes: list[Connection]) -> None:
        """Main loop of a worker: take lists of jobs until the parent sends None or has ended."""
        # If these stayed open, the pipe would not show that the parent has ended.
        for parent_pipe in parent_pipes:
            parent_pipe.close()
        # The parent handles Ctrl-C, and its handler of SIGTERM does not count here.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        torch.set_num_threads(1)
        # Else collections would go through all objects of the parent, and so copy their pages.
        gc.freeze()
        _keep_memory()
        with suppress(EOFError, OSError):
            while (jobs := job_pipe.recv()) is not None:
                job_pipe.send(self._run_share(jobs))

    def _run_share(
        self, jobs: Sequence[Any]
    ) -> tuple[list[tuple[int, Any]], tuple[str, str] | None]:
        """Run the next job of the list until none is left; return ([(position, result), ...], None) or ([], error)."""
        results = []
        try:
            # A worker whose parent has ended stops.
            while os.getppid() == self.owner and (position := self._take_job()) < len(jobs):
                results.append((position, self.work(jobs[position])))
        except Exception as error:
            # The other workers can stop.
            self.next_job.value = len(jobs)
            return [], (sentence(error), traceback.format_exc())
        return results, None

    def _take_job(self) -> int:
        """The position of the next job, which no other worker gets."""
        with self.next_job.get_lock():
            self.next_job.value += 1
            return self.next_job.value - 1

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
        # Results are stored by position, so the order in which workers finish does not matter.
        self.next_job.value = 0
        results: list[Any] = [None] * len(jobs)
        first_failure = None
        # All workers get the list, and take jobs from it until none is left.
        process_of_pipe = dict(zip(self.pipes, self.processes, strict=True))
        for worker_pipe, worker_process in process_of_pipe.items():
            try:
                worker_pipe.send(list(jobs))
            except OSError:
                raise _worker_lost(worker_process) from None
        while process_of_pipe:
            ready_pipes = wait(list(process_of_pipe))
            for worker_pipe in list(process_of_pipe):
                if worker_pipe not in ready_pipes:
                    continue
                worker_process = process_of_pipe.pop(worker_pipe)
                try:
                    results_of_worker, failure = worker_pipe.recv()
                except (EOFError, OSError):
                    raise _worker_lost(worker_process) from None
                first_failure = first_failure or failure
                for position, job_result in results_of_worker:
                    results[position] = job_result
        if first_failure:
            raise EngineError(*first_failure)
        return results

    def _run_here(self, jobs: Sequence[Any]) -> list[Any]:
        threads_before = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            return [self.work(job) for job in jobs]
        except Exception as error:
            raise EngineError(sentence(error), traceback.format_exc()) from error
        finally:
            torch.set_num_threads(threads_before)

    def close(self) -> None:
        """End the processes; a busy one is killed."""
        # While Python ends, modules are empty, and so a script that stopped early ends without a
        # traceback. Its daemonic processes end with it.
        if sys is None or sys.is_finalizing():
            return
        # A process that was forked later has a copy of this object.
        if os.getpid() != self.owner:
            return
        # Ask the processes to end, and kill those that do not.
        for worker_pipe in self.pipes:
            with suppress(OSError):
                worker_pipe.send(None)
            worker_pipe.close()
        deadline = time.monotonic() + IDLE_GRACE_SECONDS
        for process in self.processes:
            process.join(timeout=max(deadline - time.monotonic(), 0.0))
            if process.is_alive():
                process.kill()
                process.join()
        self.pipes = []
        self.processes = []


def _keep_memory() -> None:
    """Make this process keep freed memory, so that activations and gradients of the next step can use it again.

    Memory that the C library returns to the system at every step must be cleared and mapped again.
    This took a tenth of the time of some steps.
    """
    # Parameters of glibc's mallopt. Other libraries have none.
    m_trim_threshold = -1
    m_mmap_threshold = -3
    with suppress(AttributeError, OSError, TypeError):
        library = ctypes.CDLL(None)
        library.mallopt(m_trim_threshold, 2**31 - 1)
        # Older versions have a smaller limit.
        library.mallopt(m_mmap_threshold, 2**30) or library.mallopt(m_mmap_threshold, 2**25)


def sentence(error: Exception) -> str:
    """The message of an error; with its class name unless it is an :class:`EngineError`, which is written for users."""
    return str(error) if isinstance(error, EngineError) else f"{type(error).__name__}: {error}"


def _worker_lost(process: multiprocessing.process.BaseProcess) -> WorkerLost:
    process.join(timeout=1)
    hint = ""
    if process.exitcode == -signal.SIGKILL:
        hint = " (killed; was there enough memory? fewer --workers need less)"
    return WorkerLost(f"a worker process ended with exit code {process.exitcode}{hint}")


# ----------------------------------------------------------------------------------------------------
# Hardware settings of a run: processes, blocks of clients, device, precision.


BLOCK_BYTES = 1 << 21
"""Bytes of the models in a block on a CPU. They should fit a core's cache together with their
gradients and examples."""

MAX_WIDTH = 16
"""Most clients in a block on a CPU. Wider blocks gain little, and the workers share the work less
evenly."""

MAX_WIDTH_ON_A_GPU = 64

TRIED_EXAMPLES = 8
"""Examples with which a loss is tried."""

MAX_BLOCK_OPERATIONS = 40e6
"""Operations of a step on a CPU above which clients train alone: the cost of the calls to torch is
then small."""

_FAST_MODULES = (
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
        for setting_name in ("workers", "width"):
            setting_value = getattr(self, setting_name)
            if setting_value is not None and (
                not isinstance(setting_value, int) or setting_value < 1
            ):
                raise SettingError(f"{setting_name} must be an integer >= 1, got {setting_value!r}")
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
        # First the device, then whether the model can be trained in blocks of this width.
        if self._kind() == "cuda" and not torch.cuda.is_available():
            raise SettingError(
                f"device {self.device!r} cannot be used: this PyTorch finds no CUDA GPU; cpu always works"
            )
        gpu_count = torch.cuda.device_count()
        if self._kind() == "cuda" and (torch.device(self.device).index or 0) >= gpu_count:
            raise SettingError(
                f"device {self.device!r} cannot be used: the last GPU here is cuda:{gpu_count - 1}"
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
        # A block needs a model that can be computed for several clients at once.
        obstacle = _obstacle(module)
        if obstacle is None and not _has_tensor_inputs(world):
            obstacle = "inputs that are not single tensors"
        if self.width is not None:
            if self.width > 1 and obstacle:
                raise SettingError(f"width must be 1 for a model with {obstacle}, got {self.width}")
            return self.width
        if obstacle:
            return 1
        if self._kind() != "cpu":
            return MAX_WIDTH_ON_A_GPU if _has_block_loss(module, world) else 1
        # On a CPU, blocks pay for small nets of fast modules.
        parameters = sum(parameter.numel() for parameter in module.parameters())
        is_fast = all(type(inner_module) in _FAST_MODULES for inner_module in module.modules())
        if not is_fast or _step_operations(parameters, world) > MAX_BLOCK_OPERATIONS:
            return 1
        if not _has_block_loss(module, world):
            return 1
        return max(1, min(MAX_WIDTH, BLOCK_BYTES // (4 * parameters)))


def _obstacle(module: nn.Module) -> str | None:
    """Why a module cannot be computed for several models at once; None if it can."""
    for inner_module in module.modules():
        if isinstance(inner_module, nn.modules.dropout._DropoutNd) and inner_module.p > 0:
            return "dropout, which draws separate random numbers for each client"
        if isinstance(inner_module, nn.RNNBase):
            return "recurrent layers, which torch cannot compute for several models at once"
        if isinstance(inner_module, nn.modules.batchnorm._BatchNorm):
            continue
        for buffer in inner_module._buffers.values():
            if buffer is not None and buffer.is_floating_point():
                return (
                    f"buffers in {type(inner_module).__name__}, which may change as it is trained"
                )
    return None


def _has_tensor_inputs(world: World) -> bool:
    """Whether the inputs of all clients are single tensors in memory."""
    return all(
        isinstance(client_data.train.inputs, torch.Tensor)
        for client_data in examined(world.clients).values()
    )


def _has_block_loss(module: nn.Module, world: World) -> bool:
    """Whether the loss can be computed for several clients at once, tried with some examples of the first one."""
    # Coterie's own losses can be computed in blocks; a loss of the user's is tried.
    objective = world.objective
    loss = objective.loss.loss if isinstance(objective.loss, LossOfStandardized) else objective.loss
    # Clients with these losses have always trained alone, and rounding would change.
    if loss in (squared_error, binary_cross_entropy):
        return False
    first_split = world.clients[min(world.clients)].train
    if not isinstance(first_split.targets, torch.Tensor) or objective.takes_classes(
        first_split.targets
    ):
        return isinstance(first_split.targets, torch.Tensor)
    was_training = module.training
    inputs = numbers(first_split.inputs.index_select(0, first_split.index[:TRIED_EXAMPLES]))
    try:
        with seeded(0), torch.no_grad():
            outputs = module.eval()(inputs.to(next(module.parameters()).device))
    except Exception:
        # The check before the first round says what is wrong.
        return False
    finally:
        module.train(was_training)
    return isinstance(outputs, torch.Tensor) and for_several_models(
        objective.loss, outputs, first_split.targets[:TRIED_EXAMPLES]
    )


def _step_operations(parameters: int, world: World) -> float:
    """Operations of one step of a dense net at the client with most examples: 3 passes of 2 per weight and example."""
    most_examples = max(len(client_data.train) for client_data in examined(world.clients).values())
    # A batch of 0 means all examples.
    batch_size = min(world.training.batch, most_examples) or most_examples
    return 6.0 * parameters * batch_size
