"""What an exchange costs: bytes in both directions, and how often clients measure a model."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from coterie.boundary import NUMBER_BYTES, Wire
from coterie.core import Client, Plan, Replies, Task
from coterie.training import sketch_size
from coterie.training.statistics import sizes


def traffic(plan: Plan, wire: Wire) -> tuple[int, int]:
    """Return the communication cost of an exchange.

    Rows count without the layers that stay at the client. Losses, choices and example counts are
    included.

    Args:
        plan: The plan of the exchange.
        wire: The wire between clients and server.

    Returns:
        Bytes from the clients to the server, and bytes from the server to the clients.
    """
    bytes_up = 0
    bytes_down = 0
    columns_of_layers: dict[tuple[str, ...], tuple[int, int]] = {}
    # Held-out losses: the number of examples, sums, and products.
    for model_count in held_models(plan).values():
        bytes_up += (1 + model_count + model_count * (model_count + 1) // 2) * NUMBER_BYTES
    for _, part in plan.leaves():
        sketch_length = sketch_size(part, wire.layout.size)
        # A method often gives the same task to all clients.
        num_clients_of_task = Counter(map(id, part.tasks.values()))
        task_of_id = {id(task): task for task in part.tasks.values()}
        for task_id, num_clients in num_clients_of_task.items():
            task = task_of_id[task_id]
            # The columns that are sent, which are fewer if layers stay at the client.
            if task.local_layers not in columns_of_layers:
                columns_of_layers[task.local_layers] = wire.columns(task)
            columns = columns_of_layers[task.local_layers]
            task_up, task_down = _traffic_of_task(part, task, sketch_length, columns, wire)
            bytes_up += num_clients * task_up
            bytes_down += num_clients * task_down
    return bytes_up, bytes_down


def _traffic_of_task(
    plan: Plan, task: Task, sketch_length: int, columns: tuple[int, int], wire: Wire
) -> tuple[int, int]:
    """The bytes of one client's task, up and down: the offered models, and the reply without held-out losses.

    Args:
        plan: The plan without parts that has the task.
        task: The task.
        sketch_length: Numbers of a sketch.
        columns: Parameters, and other entries of a row, that are sent.
        wire: The wire between clients and server.
    """
    bytes_up = 0
    bytes_down = 0
    # Where the plan hides which model a client took: an update for each model.
    model_slots = len(plan.models) * plan.private.hides_choices
    parameter_columns, other_columns = columns
    row_numbers = parameter_columns + other_columns
    question = task.private.question
    if question is not None:
        states_cell = question.asks_cell and not model_slots
        bytes_up += (states_cell or question.length(sketch_length)) * NUMBER_BYTES
        bytes_down += question.sent * NUMBER_BYTES
    # No model is sent to a client that only answers a question.
    if plan.need == "sums" and not (task.trains or task.measure):
        return bytes_up, bytes_down
    if not (row_numbers or task.measure or task.holdout.report_losses or task.statistics):
        return bytes_up, bytes_down
    both_halves = task.halves and plan.need != "sums"
    update_count = task.trains * task.private.sends_update * (2 if both_halves else 1)
    update_bytes = update_count * wire.bytes_of(parameter_columns, other_columns)
    if model_slots:
        # An update in each slot, and the number of clients in it.
        bytes_up += model_slots * (update_bytes + NUMBER_BYTES)
    else:
        bytes_up += update_bytes + _reply_numbers(task, wire) * NUMBER_BYTES
    bytes_down += len(task.offered) * row_numbers * NUMBER_BYTES
    return bytes_up, bytes_down


def _reply_numbers(task: Task, wire: Wire) -> int:
    """Numbers in a reply besides the update: the example count, choices, loss and accuracy per model."""
    # A loss and an accuracy for each offered model, and the rows of the chosen ones.
    measured_numbers = 2 * len(task.offered) if task.measure else 0
    choice_numbers = task.choose if task.chooses else 0
    told_numbers = 0
    if task.statistics:
        size_of_statistic = sizes(wire.layout) or {}
        told_numbers = sum(size_of_statistic.get(name, 0) for name in task.statistics)
    return wire.counts + measured_numbers + choice_numbers + told_numbers


def as_sent(plan: Plan, replies: Replies) -> Plan:
    """Adapt the plan to the replies.

    A client with too few examples for two halves sends one update. In the plan returned it was
    asked for one only.

    Args:
        plan: The plan of the exchange.
        replies: The replies to it.

    Returns:
        The plan in which only clients that sent two updates have ``halves``.
    """
    # First the parts of the plan, then the tasks of the plan itself.
    sent_parts = {
        part_name: as_sent(part, replies.parts[part_name]) for part_name, part in plan.parts.items()
    }
    sent_both = () if replies.halves is None else replies.halves.clients
    sent_one_update = set(replies.clients) - set(sent_both)
    sent_tasks = dict(plan.tasks)
    for client in sent_one_update.intersection(sent_tasks):
        if sent_tasks[client].halves:
            sent_tasks[client] = replace(sent_tasks[client], halves=False)
    return replace(plan, tasks=sent_tasks, parts=sent_parts)


def evaluations(plan: Plan) -> int:
    """Return the number of measurements that a plan asks for: one client, one model."""
    tasks = [task for _, part in plan.leaves() for task in part.tasks.values()]
    measured_models = sum(len(task.offered) for task in tasks if task.measure)
    return measured_models + held_models(plan).total()


def held_models(plan: Plan) -> Counter[Client]:
    """Return the number of models of which each client reports held-out losses."""
    model_counts: Counter[Client] = Counter()
    for _, part in plan.leaves():
        for client, task in part.tasks.items():
            if task.holdout.report_losses:
                model_counts[client] += 1 + (task.personal is not None)
    return model_counts
