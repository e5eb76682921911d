"""A masked sum of vectors outside of a plan: what an extension asks its nodes for, such as the constants of tables.

The protocol is that of :mod:`~coterie.contrib.private.masks.protocol`, in four messages to each client:
keys, shares, the masked numbers, and unmasking. :func:`sum_of_vectors` is the server's side. At a node,
:func:`~coterie.contrib.private.flower.mod.reply_to_step` answers all messages but the third, and
:func:`masked_vector` makes the answer to that.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping
from typing import Any, TypeVar

import numpy as np
from flwr.app import Array, ArrayRecord, Context, RecordDict

from coterie.contrib.private.flower import steps
from coterie.contrib.private.flower.mod import store_masker, stored_masker
from coterie.contrib.private.flower.steps import MASKED, MASKS, step_message
from coterie.contrib.private.masks import MaskedSum, ProtocolError
from coterie.contrib.private.masks.fixed import WORD
from coterie.core import Client
from coterie.engines.flower import messages
from coterie.engines.flower.messages import CONFIG, Unfit
from coterie.engines.flower.sums import Ask

StepAnswer = TypeVar("StepAnswer")


def sum_of_vectors(
    ask: Ask,
    clients: Collection[Client],
    size: int,
    name: bytes,
    content_of: Callable[[Client], RecordDict],
) -> np.ndarray:
    """Return the sum of the clients' vectors, of which the server reads none.

    Args:
        ask: Sends a message to each client, and returns the contents of the replies.
        clients: The clients; all of them must answer.
        size: d, how many numbers a client sends.
        name: The name of the sum, never used again.
        content_of: Makes the message that asks a client for its numbers. It is added to.

    Returns:
        The sum ``(d,)`` of integers modulo 2³².

    Raises:
        ProtocolError: A client has not answered a step, or there are fewer than three.
    """
    server = MaskedSum(name=name, size=size)
    key = name.hex()
    members = sorted(clients)
    # 1. Keys: each client sends two public keys, and gets those of its neighbours.
    replies = ask({client: step_message("keys", client, [key]) for client in members})
    public_keys = {
        client: _answer(replies, client, name, steps.keys_from_json) for client in members
    }
    neighbour_keys = server.keys(public_keys)
    # 2. Shares: each client shares its secrets among its neighbours.
    share_messages = {}
    for client in members:
        keys_to_send = {
            neighbour: steps.keys_to_json(keys)
            for neighbour, keys in neighbour_keys[client].items()
        }
        step_input = {key: [keys_to_send, server.graph.threshold]}
        share_messages[client] = step_message("shares", client, step_input)
    replies = ask(share_messages)
    shares_for = server.shares(
        {client: _answer(replies, client, name, steps.shares_from_json) for client in members}
    )
    # 3. The numbers under all masks.
    number_messages = {}
    for client in members:
        content = content_of(client)
        sum_config = {"name": key, "shares": steps.shares_to_json(shares_for[client])}
        content.config_records[CONFIG][MASKS] = json.dumps(sum_config)
        number_messages[client] = content
    replies = ask(number_messages)
    for client in members:
        server.add(client, _vector(replies, client, size))
    # 4. Unmasking: shares of the secrets of masks that have not cancelled.
    replies = ask({client: step_message("unmask", client, {key: members}) for client in members})
    return server.unmasked(
        {client: _answer(replies, client, name, steps.unmasking_from_json) for client in members}
    )


def masked_vector(content: RecordDict, numbers: np.ndarray, context: Context) -> RecordDict:
    """Return a node's answer to the message that asks for its numbers.

    Args:
        content: The message.
        numbers: ``(d,)``, integers modulo 2³².
        context: Flower's context of the node, whose state has the secrets of the earlier steps.

    Raises:
        ProtocolError: The message asks for plain numbers, or a neighbour's shares were changed on
            their way, or this sum was answered before.
    """
    message_config = content.config_records[CONFIG]
    if MASKS not in message_config:
        raise ProtocolError("this client sends masked numbers only, and was asked for plain ones")
    sum_config = json.loads(str(message_config[MASKS]))
    neighbour_shares = steps.shares_from_json(sum_config["shares"])
    if neighbour_shares is None:
        raise ProtocolError("the shares of the neighbours cannot be read")
    masker = stored_masker(context, sum_config["name"], answers_once=True)
    masked_numbers = masker.masked(neighbour_shares, numbers)
    store_masker(context, sum_config["name"], masker)
    return RecordDict({MASKED: ArrayRecord({MASKED: Array(masked_numbers)})})


def _answer(
    replies: Mapping[Client, RecordDict],
    client: Client,
    name: bytes,
    from_json: Callable[[Any], StepAnswer | None],
) -> StepAnswer:
    """What a client's reply says about the sum. Raises ProtocolError if it says nothing that can be read."""
    answer = from_json(steps.answer_about(replies.get(client), name))
    if answer is None:
        raise ProtocolError(f"client {client} has not answered a step of a masked sum")
    return answer


def _vector(replies: Mapping[Client, RecordDict], client: Client, size: int) -> np.ndarray:
    """The masked numbers in a client's reply."""
    array_record = replies[client].get(MASKED) if client in replies else None
    if not isinstance(array_record, ArrayRecord) or MASKED not in array_record:
        raise ProtocolError(f"client {client} has sent no masked numbers")
    try:
        numbers = messages.array_of(array_record, MASKED)
    except Unfit as error:
        raise ProtocolError(f"client {client}: {error}") from None
    if numbers.dtype != WORD or numbers.shape != (size,):
        raise ProtocolError(f"client {client} has sent other numbers than were asked for")
    return numbers
