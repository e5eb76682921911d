"""The messages of a masked sum in Flower's records.

Before the tasks are sent, the clients send public keys, and encrypted shares for their neighbours.
Afterwards the clients that are still connected send the shares with which the sum is unmasked. Each
step of a client is one message for all of its sums: :class:`Step` as JSON in the config, and the
answer, sum -> what the client says, as JSON in a record of the reply.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from flwr.app import ConfigRecord, RecordDict

from coterie.contrib.private.masks.protocol import Keys, Unmasking
from coterie.core import Client
from coterie.engines.flower import messages
from coterie.engines.flower.messages import CONFIG

MASKS = "coterie-masks"
"""Key of the config of a message, and record of a reply: a step of masked sums, as JSON."""

MASKED = "masked"
"""Record of a reply, and its only array: masked numbers."""


@dataclass(frozen=True)
class Step:
    """A step of masked sums besides that with the task.

    Attributes:
        name: ``"keys"``, ``"shares"`` or ``"unmask"``.
        client: The client that is asked.
        sums: The names of the sums, each with what the client must know for the step: nothing for
            keys; the neighbours' keys and the threshold for shares; the clients whose numbers have
            arrived to unmask.
    """

    name: str
    client: Client
    sums: Mapping[str, Any]


def step_message(step_name: str, client: Client, step_inputs: Any) -> RecordDict:
    """Return the message that asks a client for a step, see :class:`Step`."""
    step_text = json.dumps({"step": step_name, "client": client, "sums": step_inputs})
    return RecordDict({CONFIG: ConfigRecord({MASKS: step_text})})


def step_of(content: RecordDict) -> Step | None:
    """Return the step that a message asks for; None for another message."""
    message_config = content.get(CONFIG)
    if (
        not isinstance(message_config, ConfigRecord)
        or MASKS not in message_config
        or messages.TASK in message_config
    ):
        return None
    # For keys, a list of names is enough.
    step_values = json.loads(str(message_config[MASKS]))
    step_inputs = step_values["sums"]
    if not isinstance(step_inputs, dict):
        step_inputs = dict.fromkeys(step_inputs)
    return Step(name=step_values["step"], client=int(step_values["client"]), sums=step_inputs)


def step_reply(answers: Mapping[str, Any]) -> RecordDict:
    """Return the reply to a step: the name of a sum -> the answer of one of the functions below."""
    return RecordDict({MASKS: ConfigRecord({MASKS: json.dumps(answers)})})


def answer_about(content: RecordDict | None, sum_name: bytes) -> Any:
    """Return what a reply to a step says about a sum; None if it says nothing that can be read."""
    # Whatever a stranger sends must not raise an error here.
    step_record = None if content is None else content.get(MASKS)
    if not isinstance(step_record, ConfigRecord):
        return None
    try:
        return json.loads(str(step_record[MASKS]))[sum_name.hex()]
    except (ValueError, LookupError, TypeError, RecursionError):
        return None


# -- keys, shares and unmaskings as JSON. What is read may come from anyone: None if it cannot be read.
# --------------------------------------------------------------------


def keys_to_json(public_keys: Keys) -> list[str]:
    """Return public keys as a value for JSON."""
    return [public_keys.sealing.hex(), public_keys.masking.hex()]


def keys_from_json(json_value: Any) -> Keys | None:
    """Read public keys."""
    try:
        sealing, masking = json_value
        return Keys(bytes.fromhex(sealing), bytes.fromhex(masking))
    except (ValueError, TypeError):
        return None


def shares_to_json(client_shares: Mapping[Client, bytes]) -> dict[Client, str]:
    """Return shares, one per client, as a value for JSON."""
    return {client: share.hex() for client, share in client_shares.items()}


def shares_from_json(json_value: Any) -> dict[Client, bytes] | None:
    """Read shares."""
    try:
        return {int(client): bytes.fromhex(share_text) for client, share_text in json_value.items()}
    except (ValueError, TypeError, AttributeError):
        return None


def unmasking_to_json(unmasking: Unmasking) -> list[dict[Client, str]]:
    """Return a client's answer to the last step as a value for JSON."""
    return [shares_to_json(unmasking.seeds), shares_to_json(unmasking.keys)]


def unmasking_from_json(json_value: Any) -> Unmasking | None:
    """Read a client's answer to the last step."""
    try:
        seed_shares, key_shares = (shares_from_json(shares_value) for shares_value in json_value)
    except (ValueError, TypeError):
        return None
    if seed_shares is None or key_shares is None:
        return None
    return Unmasking(seeds=seed_shares, keys=key_shares)
