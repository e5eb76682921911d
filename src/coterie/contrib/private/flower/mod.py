"""Masked sums in a client's mod: the steps of the protocol, and the app's reply under masks. The app does not know of them."""

from __future__ import annotations

import json
import os
import stat
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, MetricRecord, RecordDict
from torch import Tensor

from coterie.boundary import Boundary, Wire
from coterie.contrib.private.cells import question_of
from coterie.contrib.private.flower import steps
from coterie.contrib.private.flower.server import sends_update
from coterie.contrib.private.flower.steps import MASKED, MASKS
from coterie.contrib.private.flower.sum_layout import SumLayout
from coterie.contrib.private.masks import Masker, ProtocolError
from coterie.contrib.private.sums import NoiseShare
from coterie.engines.flower import messages
from coterie.engines.flower.client import FOLDER
from coterie.engines.flower.messages import ANSWER, CELL, CONFIG, METRICS_RECORD, Unfit
from coterie.training import Order

MAX_WEIGHED_EXAMPLES = 4096
"""The number of training examples above which a client has no more weight: weights are fractions of
it."""

MAX_MARK_SECONDS = 24 * 3600.0
"""Seconds after which the mark of a step is removed: the masked sum has long ended."""


# -- the steps before and after the task
# -----------------------------------------------------------------------------------


def reply_to_step(
    content: RecordDict, context: Context, boundary: Boundary, answers_once: bool = True
) -> RecordDict | None:
    """Return the reply to a message of the protocol; None for another message.

    Args:
        content: The message.
        context: Flower's context of the node, whose state has the secrets between steps.
        boundary: The client's boundary: with noise, most neighbours must have added theirs.
        answers_once: Whether to make sure that no step is answered twice, see :func:`_mark`.

    Raises:
        ProtocolError: The step must not be carried out.
        ValueError: It cannot be read.
    """
    step = steps.step_of(content)
    if step is None:
        return None
    if step.name == "keys":
        # The first step of an exchange: nothing of earlier ones is needed any more.
        forget_secrets(context)
        if answers_once:
            _remove_old_marks(context)
    # One answer for each sum in which the client takes part.
    answers: dict[str, Any] = {}
    for sum_name, step_input in step.sums.items():
        if step.name == "keys":
            masker = Masker(step.client, bytes.fromhex(sum_name))
            answers[sum_name] = steps.keys_to_json(masker.keys())
        else:
            masker = stored_masker(context, sum_name, answers_once)
            if step.name == "shares":
                answers[sum_name] = _shares(masker, step_input)
            else:
                answers[sum_name] = _unmasking(masker, step_input, boundary)
        store_masker(context, sum_name, masker)
    return steps.step_reply(answers)


def _shares(masker: Masker, step_input: Any) -> Any:
    """Step 2: encrypted shares for the neighbours, from their keys and the threshold."""
    keys_of_neighbours, threshold = step_input
    public_keys = {}
    for client, keys_value in keys_of_neighbours.items():
        keys_of_client = steps.keys_from_json(keys_value)
        if keys_of_client is None:
            raise ProtocolError(f"the public keys of client {client} cannot be read")
        public_keys[int(client)] = keys_of_client
    return steps.shares_to_json(masker.shares(public_keys, int(threshold)))


def _unmasking(masker: Masker, step_input: Any, boundary: Boundary) -> Any:
    """Step 4: the shares that unmask the sum, from the clients whose numbers have arrived."""
    arrived_clients = [int(client) for client in step_input]
    # Without the noise of most neighbours, the sum would show too much of this client.
    noisy_neighbours = len(masker.holding.intersection(arrived_clients))
    if boundary.noise and noisy_neighbours < boundary.honest * len(masker.neighbours):
        raise ProtocolError("too few neighbours have added noise to this masked sum")
    return steps.unmasking_to_json(masker.unmask(arrived_clients))


# -- the reply to a task
# ---------------------------------------------------------------------------------------------------


def pop_config(content: RecordDict) -> Mapping[str, Any]:
    """Remove from a message with tasks what it says about masked sums, and return it: the app does not see it."""
    message_config = content.config_records[CONFIG]
    if MASKS not in message_config:
        return {}
    config_of_parts: dict[str, Any] = json.loads(str(message_config[MASKS]))
    del message_config[MASKS]
    return config_of_parts


def masked_reply(
    reply: RecordDict,
    orders: Sequence[Order],
    updates: Sequence[Tensor | None],
    mask_config: Mapping[str, Any],
    context: Context,
    wire: Wire,
    noise_generator: np.random.Generator,
    answers_once: bool = True,
) -> dict[str, Any]:
    """Return an app's reply to its tasks with everything under masks.

    Args:
        reply: The app's reply.
        orders: The tasks.
        updates: The update of each task, if it has one.
        mask_config: What :func:`pop_config` has returned.
        context: Flower's context of the node.
        wire: The client's wire, whose boundary has the bound and the noise.
        noise_generator: Draws the noise.
        answers_once: Whether to make sure that no sum is answered twice, see :func:`_mark`.

    Returns:
        The records of the reply.

    Raises:
        ProtocolError: A neighbour's shares were changed on their way, or too few neighbours are
            left. Or the sum is not that of the task.
        Unfit: The app's reply has no update, or one that is not finite.
    """
    # The number of examples is part of the sum, so the reply states 1.
    metrics = messages.only(reply.metric_records, METRICS_RECORD, "metric records")
    reply_records: dict[str, Any] = {}
    sent_metrics: dict[str, Any] = {"num-examples": 1}
    for task_place, order in enumerate(orders):
        # What the server may know of this client alone.
        for metric_name in _plain_metrics(order, task_place, wire.boundary):
            if metric_name in metrics:
                sent_metrics[metric_name] = metrics[metric_name]
        if order.part not in mask_config:
            # The server has formed no sum for the task: nothing of it may leave.
            if _is_summed(order):
                raise ProtocolError(
                    "this client sends masked numbers only, and was asked for plain ones"
                )
            continue
        sum_config = mask_config[order.part]
        # Step 3 of the protocol: the numbers under all masks.
        plain_numbers = _numbers(
            reply,
            metrics,
            task_place,
            order,
            updates[task_place],
            sum_config,
            wire,
            noise_generator,
        )
        # The masker holds the secrets of the earlier steps, and now also those of this one.
        masker = stored_masker(context, sum_config["name"], answers_once)
        neighbour_shares = steps.shares_from_json(sum_config["shares"])
        if neighbour_shares is None:
            raise ProtocolError("the shares of the neighbours cannot be read")
        masked_numbers = masker.masked(neighbour_shares, plain_numbers)
        store_masker(context, sum_config["name"], masker)
        reply_records[f"{MASKED}.{order.part}"] = ArrayRecord({MASKED: Array(masked_numbers)})
    return {**reply_records, METRICS_RECORD: MetricRecord(sent_metrics)}


def _plain_metrics(order: Order, task_place: int, boundary: Boundary) -> list[str]:
    """The metrics of a reply to a task that are sent without masks."""
    metric_names: list[str] = []
    if not order.hidden:
        metric_names += [CELL, "chosen"]
    if not boundary.noise:
        metric_names += [messages.PERSONAL, messages.STORED_AT]
    return [messages.of_task(metric_name, task_place) for metric_name in metric_names]


def _is_summed(order: Order) -> bool:
    """Whether a task asks for numbers that count in a sum."""
    question = question_of(order.task)
    return sends_update(order.task) or (question is not None and not question.asks_cell)


def _numbers(
    reply: RecordDict,
    metrics: MetricRecord,
    task_place: int,
    order: Order,
    update: Tensor | None,
    sum_config: Mapping[str, Any],
    wire: Wire,
    noise_generator: np.random.Generator,
) -> np.ndarray:
    """What a client adds to the sum of a task, as integers without masks."""
    task = order.task
    boundary = wire.boundary
    max_norm = wire.limit(order.clip)
    # A server that asks for another form than that of the task gets nothing.
    asked_sizes = tuple(int(asked_size) for asked_size in sum_config["form"])
    layout = _checked_layout(order, asked_sizes, wire, max_norm)
    keep_mask = wire.layout.mask(task.local_layers) if task.local_layers else None
    # The update as it enters the sum: without own layers, and no longer than the noise covers.
    if not sends_update(task):
        update = None
    elif update is None:
        raise Unfit("the app's reply has no update")
    else:
        if keep_mask is not None:
            update = update.masked_fill(keep_mask, 0.0)
        update = limited_update(update, max_norm, wire)
    # If the plan hides choices, the update is in the slot of the model that the client took.
    model_slot = 0
    if layout.slots > 1:
        model_slot = int(metrics[messages.of_task("chosen", task_place)][0])  # type: ignore[index]
    # Weights are fractions of a number of examples. With noise all clients count as one.
    client_weight = 1.0
    if not (sum_config["uniform"] or boundary.noise):
        examples = int(metrics["num-examples"])  # type: ignore[arg-type]
        client_weight = min(examples, MAX_WEIGHED_EXAMPLES) / MAX_WEIGHED_EXAMPLES
    return layout.encode(
        update,
        client_weight,
        _answer(reply, task_place, layout.answer_size),
        model_slot,
        noise_generator.standard_normal,
        keep_mask.numpy() if keep_mask is not None and layout.d else None,
    )


def _answer(reply: RecordDict, task_place: int, answer_size: int) -> np.ndarray | None:
    """The answer in an app's reply; None if it has none, or one that cannot be used.

    A failure would say that this client's numbers are odd.
    """
    answer_name = messages.of_task(ANSWER, task_place)
    if not answer_size or answer_name not in reply:
        return None
    plain_answer = messages.array_of(reply[answer_name], ANSWER)
    return (
        plain_answer
        if plain_answer.shape == (answer_size,) and np.isfinite(plain_answer).all()
        else None
    )


def limited_update(update: Tensor, max_norm: float | None, wire: Wire) -> Tensor:
    """Return an update as it enters a sum: of no more than a norm, and zero if it is not finite and noise is added.

    Args:
        update: The update ``(d,)``.
        max_norm: The maximum norm; None without one.
        wire: The client's wire.

    Raises:
        Unfit: It is not finite, and no noise is added.
    """
    # With noise, a refusal would reveal something about the data.
    if not torch.isfinite(update.dot(update)):
        if not wire.boundary.noise:
            raise Unfit("its update has a NaN or infinite entry (a smaller lr may help)")
        return torch.zeros_like(update)
    return update if max_norm is None else wire.clipped(update, max_norm)


def _checked_layout(
    order: Order, asked_sizes: tuple[int, ...], wire: Wire, max_norm: float | None
) -> SumLayout:
    """The layout of a sum, which must be that of its task.

    Of another one, numbers would leave that this client did not count.

    Raises:
        ProtocolError: They differ, or the noise would be rounded away.
    """
    # What the task makes this client send, in the order of the sizes.
    row_length, answer_size, max_clients, slot_count = asked_sizes
    task = order.task
    question = question_of(task)
    expected_answer_size = 0 if question is None else question.length(order.sketch_numbers)
    expected_d = wire.layout.size if sends_update(task) else 0
    expected_slots = len(task.offered) if order.hidden and sends_update(task) else 1
    if (row_length, answer_size, slot_count) != (expected_d, expected_answer_size, expected_slots):
        raise ProtocolError("the masked sum is not that of the task")
    question_cost = 1 if question is None else question.cost
    noise_share = NoiseShare.of(wire.boundary, max_clients, order.hidden, max_norm, question_cost)
    layout = SumLayout(
        row_length, answer_size, max_clients, wire.boundary.bound, slot_count, noise_share
    )
    if layout.drowned_by:
        raise ProtocolError(
            f"boundary.{layout.drowned_by}: the noise is less than the steps of the masked numbers"
        )
    return layout


# -- the client's secrets between steps, in the node's state
# -------------------------------------------------------------------


def forget_secrets(context: Context) -> None:
    """Delete the secrets of earlier exchanges."""
    for record_name in [
        record_name for record_name in context.state if record_name.startswith(f"{MASKS}-")
    ]:
        del context.state[record_name]


def store_masker(context: Context, sum_name: str, masker: Masker) -> None:
    """Store the client's secrets of a sum until its next step."""
    context.state[f"{MASKS}-{sum_name}"] = ConfigRecord({"masker": masker.saved()})


def stored_masker(context: Context, sum_name: str, answers_once: bool) -> Masker:
    """The client's secrets of a sum before its next step, which is answered once."""
    try:
        masker_record = context.state[f"{MASKS}-{sum_name}"]
        masker = Masker.restored(masker_record["masker"])  # type: ignore[arg-type]
    except KeyError:
        raise ProtocolError("this client has not begun this masked sum") from None
    if answers_once:
        _mark(context, masker)
    return masker


def _mark(context: Context, masker: Masker) -> None:
    """Mark the next step of a sum as answered.

    Flower hands messages that arrive at the same time a copy of the node's state each, so the state
    does not tell that a step was answered. Two answers differ by what no mask hides. The mark is a
    file that only one process can create.

    Raises:
        ProtocolError: The step was answered before, or the mark cannot be saved.
    """
    try:
        mark_folder = _mark_folder(context)
        mark_folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        # Another user may have made the folder, or a link, in the system's folder for temporary
        # files. Marks in it would not be this client's.
        folder_status = mark_folder.lstat()
        if not stat.S_ISDIR(folder_status.st_mode) or folder_status.st_uid != os.getuid():
            raise OSError
        os.close(os.open(mark_folder / masker.mark, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
    except FileExistsError:
        raise ProtocolError("this client has answered this step of the masked sum") from None
    except OSError:
        # The error's text would reveal this machine's folders to the server.
        raise ProtocolError(
            f"this client cannot save that it answers; a folder {FOLDER} in its node config is needed"
        ) from None


def _mark_folder(context: Context) -> Path:
    """The folder of the marks: in the node's folder, or in the system's folder for temporary files."""
    node_folder = str(context.node_config.get(FOLDER, ""))
    if node_folder:
        return Path(node_folder) / "masked-sums"
    return Path(tempfile.gettempdir()) / f"coterie-masked-sums-{os.getuid()}"


def _remove_old_marks(context: Context) -> None:
    # Other processes may remove the same marks.
    current_time = time.time()
    with suppress(OSError):
        for mark_file in _mark_folder(context).iterdir():
            if current_time - mark_file.stat().st_mtime > MAX_MARK_SECONDS:
                mark_file.unlink()
