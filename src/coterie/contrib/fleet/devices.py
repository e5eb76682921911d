"""Devices of a fleet: how long a client's task takes, when a client is available, and whether its task fails.

Times are virtual: they follow from the settings and a seed, and nobody waits for them. The classes
``fast``, ``middle``, ``slow`` and ``server`` are round numbers of the order of today's devices, not
measurements. Those with the name of a phone are measurements of C. Yang et al., "Characterizing
Impacts of Heterogeneity in Federated Learning upon Large-Scale Smartphone Data", WWW 2021, arXiv
2006.06983, in its repository github.com/PKU-Chengxu/FLASH.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum

from coterie.core import Client, Task, Training
from coterie.randomness import numpy_generator
from coterie.settings import SettingError, nearest

SECONDS_OF_DAY = 86_400.0
"""Seconds of a day, after which a rhythm begins again."""

BYTES_OF_NUMBER = 4
"""Bytes of a parameter that is sent, in fp32."""

OPERATIONS_OF_TRAINING = 6
"""Operations for each parameter and example: two in the forward pass of a dense layer, and twice as
many in the backward pass. A convolution uses a parameter more than once: see ``timed.work``."""


@dataclass(frozen=True)
class DeviceClass:
    """What devices of a class do in a second.

    Attributes:
        operations: Floating point operations per second in training.
        down: Bytes per second that it receives.
        up: Bytes per second that it sends.
        memory: Gigabytes of memory.
        training_watts: Power while it trains. Round numbers, also for measured phones.
        network_watts: Power while it sends or receives. Round numbers, also for measured phones.
    """

    operations: float
    down: float
    up: float
    memory: float
    training_watts: float
    network_watts: float


PHONE_POWER = {"training_watts": 4.0, "network_watts": 1.0}
"""Power of a phone in round numbers."""

MEASURED_NETWORK = {"down": 4.3e6, "up": 3.3e6}
"""Medians over 19 users, ``models/speed_distri.json`` of FLASH, as kilobytes. The quartiles of the
download, 3.7 and 7.2 MB/s, are those of a lognormal distribution with a deviation of 0.5."""

OPERATIONS_OF_MEASURED_BATCH = 10 * 6 * 17_211_904
"""Operations for ten examples of FLASH's CNN for FEMNIST, which makes 17,211,904 products in a
forward pass: 28 · 28 · 25 · 32 and 14 · 14 · 25 · 32 · 64 in its convolutions, 3136 · 2048 and 2048 · 62
in its dense layers."""

DEVICE_CLASSES: Mapping[str, DeviceClass] = {
    "fast": DeviceClass(operations=20e9, down=4e6, up=1e6, memory=8, **PHONE_POWER),
    "middle": DeviceClass(operations=5e9, down=1.5e6, up=0.4e6, memory=4, **PHONE_POWER),
    "slow": DeviceClass(operations=1e9, down=0.4e6, up=0.1e6, memory=2, **PHONE_POWER),
    "server": DeviceClass(
        operations=1e12, down=1e8, up=1e8, memory=256, training_watts=200, network_watts=10
    ),
    # A batch took 1,642, 588 and 179 ms (``models/utils/device_util/device_util.py``).
    "nexus-6": DeviceClass(
        operations=OPERATIONS_OF_MEASURED_BATCH / 1.642,
        memory=3,
        **MEASURED_NETWORK,
        **PHONE_POWER,
    ),
    "redmi-note-8": DeviceClass(
        operations=OPERATIONS_OF_MEASURED_BATCH / 0.588,
        memory=4,
        **MEASURED_NETWORK,
        **PHONE_POWER,
    ),
    "galaxy-note-10": DeviceClass(
        operations=OPERATIONS_OF_MEASURED_BATCH / 0.179,
        memory=8,
        **MEASURED_NETWORK,
        **PHONE_POWER,
    ),
}
"""Name -> class. From a fast to a slow phone there is a factor of 20 in computing and 10 in the network."""

MEASURED_PHONES = ("nexus-6=18820", "redmi-note-8=16428", "galaxy-note-10=159")
"""How many of the 35,407 phones of FLASH's trace are most like each measured one, by their score in
AI Benchmark; values of ``timed.devices``."""


class DeviceDraw(IntEnum):
    """What is drawn for a client; keeps the draws separate."""

    CLASS = 1
    SPEED = 2
    PHASE = 3
    FAILURE = 4
    START = 5


@dataclass(frozen=True)
class Device:
    """The device of one client.

    Attributes:
        name: Its class.
        operations: Operations per second.
        down: Bytes per second that it receives.
        up: Bytes per second that it sends.
        phase: When its day begins, in seconds after that of the first.
    """

    name: str
    operations: float
    down: float
    up: float
    phase: float

    def seconds(self, work: TaskWork) -> float:
        """Return the seconds from when the server sends a task until it has the reply."""
        return self._training_seconds(work) + self._network_seconds(work)

    def joules(self, work: TaskWork) -> float:
        """Return the energy of a task: the power of its class times the seconds."""
        device_class = DEVICE_CLASSES[self.name]
        training_joules = device_class.training_watts * self._training_seconds(work)
        return training_joules + device_class.network_watts * self._network_seconds(work)

    @property
    def memory(self) -> float:
        """Gigabytes of memory."""
        return DEVICE_CLASSES[self.name].memory

    def _training_seconds(self, work: TaskWork) -> float:
        return work.operations / self.operations

    def _network_seconds(self, work: TaskWork) -> float:
        return work.bytes_down / self.down + work.bytes_up / self.up


@dataclass(frozen=True)
class TaskWork:
    """What a task asks of a device.

    Attributes:
        operations: Floating point operations.
        bytes_down: Bytes of the models that it receives.
        bytes_up: Bytes of the updates that it sends.
    """

    operations: float
    bytes_down: float
    bytes_up: float


@dataclass(frozen=True)
class Rhythm:
    """The part of each day in which a client is available, such as a phone that is charged at night.

    Attributes:
        share: The share of the day, above 0 and at most 1; 1 for always.
    """

    share: float

    def wait(self, device: Device, now: float) -> float:
        """Return the seconds until a client is available.

        Args:
            device: Its device.
            now: The virtual time, in seconds.
        """
        time_of_day = (now - device.phase) % SECONDS_OF_DAY
        if time_of_day < self.share * SECONDS_OF_DAY:
            return 0.0
        return SECONDS_OF_DAY - time_of_day


def shares_of_classes(texts: Sequence[str], setting_name: str) -> dict[str, float]:
    """Return class -> its share of the clients, with sum 1.

    Args:
        texts: Such as ``("fast=1", "slow=3")``.
        setting_name: Name of the setting, for the message.

    Raises:
        SettingError: A text has another form, or names no class.
    """
    share_of_class = {}
    for text in texts:
        name, _, number = text.partition("=")
        try:
            share = float(number)
        except ValueError:
            share = -1.0
        if name not in DEVICE_CLASSES:
            raise SettingError(
                f"{setting_name} must be classes with their shares, such as fast=0.25, got {text}; "
                f"classes are {', '.join(DEVICE_CLASSES)}{nearest(name, DEVICE_CLASSES)}"
            )
        if not 0 < share < float("inf"):
            raise SettingError(
                f"{setting_name} must be classes with their shares, such as {name}=0.25, got {text}"
            )
        share_of_class[name] = share
    total = sum(share_of_class.values())
    if not total:
        raise SettingError(f"{setting_name} must name a class, such as middle=1, got none")
    return {name: share / total for name, share in share_of_class.items()}


def drawn(
    client: Client,
    share_of_class: Mapping[str, float],
    spread: float,
    seed: int,
    time_zones: float = 24.0,
) -> Device:
    """DeviceDraw the device of a client; it is the same at every call.

    Args:
        client: The client.
        share_of_class: Class -> its share of the clients.
        spread: Standard deviation of the logarithm of a device's speed, within its class; computing
            and network have draws of their own.
        seed: Seed of the draws.
        time_zones: Hours over which the starts of the clients' days are spread.
    """
    names = list(share_of_class)
    class_generator = numpy_generator(seed, DeviceDraw.CLASS, client)
    name = names[int(class_generator.choice(len(names), p=list(share_of_class.values())))]
    device_class = DEVICE_CLASSES[name]
    computing, network = numpy_generator(seed, DeviceDraw.SPEED, client).lognormal(0.0, spread, 2)
    phase = numpy_generator(seed, DeviceDraw.PHASE, client).uniform(
        0, time_zones * SECONDS_OF_DAY / 24
    )
    return Device(
        name=name,
        operations=device_class.operations * float(computing),
        down=device_class.down * float(network),
        up=device_class.up * float(network),
        phase=float(phase),
    )


def work_of(
    task: Task,
    training: Training,
    num_examples: int,
    num_parameters: int,
    num_local: int,
    work: float,
) -> TaskWork:
    """Return what a task asks of a device.

    Args:
        task: The task.
        training: The experiment's settings of training.
        num_examples: The client's training examples.
        num_parameters: d, of the model.
        num_local: Of these, the parameters that stay at the client.
        work: Operations for each parameter and example of one training pass.
    """
    # Examples that pass through the net, each forward and backward.
    task_training = task.how(training)
    passes = 0.0
    if task.gradient:
        passes = float(num_examples)
    elif task.trains and task_training.steps:
        passes = float(task_training.steps * (task_training.batch or num_examples))
    elif task.trains:
        passes = float(task_training.epochs * num_examples)
    # A personal model is a second pass of training.
    if task.personal is not None:
        passes *= 2
    # To measure a model takes the forward pass alone, a third of the work.
    if task.measure is not None:
        passes += num_examples * task.models_offered / 3
    num_sent = num_parameters - num_local
    num_updates = 0
    if task.trains:
        num_updates = 2 if task.halves else 1
    return TaskWork(
        operations=passes * work * num_parameters,
        bytes_down=BYTES_OF_NUMBER * num_sent * len(task.offered),
        bytes_up=BYTES_OF_NUMBER * num_sent * num_updates,
    )
