"""Names of clients: what a node's config says, the id of a name, and the name in a node's answer to the query for its id.

A client has a whole number as its id. The id of a client with a name is a hash of the name, so that
every server gives it the same one, also after a restart, and nothing needs to be agreed.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from flwr.app import ConfigRecord, MetricRecord, RecordDict

from coterie.core import Client
from coterie.data.world import check_name
from coterie.engines.flower.messages import NAME, WHO, Unfit, whole
from coterie.printable import printable
from coterie.settings import SettingError

SMALLEST_HASHED_ID = 1 << 48
"""The smallest id of a name.

Ids of names have 49 bits: they are never those of clients that are counted from 0, and JavaScript
holds them exactly.
"""

MAX_ID_DIGITS = 18
"""Most digits of an id that a node's config or a list gives: records hold no longer ones."""


class Claim(NamedTuple):
    """A client as its node or the operator calls it.

    Attributes:
        client: The client's id.
        name: The client's name; empty if it has none.
    """

    client: Client
    name: str = ""

    def __str__(self) -> str:
        return self.name or str(self.client)


def id_of(client_name: str) -> Client:
    """Return the id of the client with this name.

    Args:
        client_name: The name.

    Returns:
        An id from 2^48 to 2^49 - 1, the same everywhere.

    Example:
        >>> id_of("hospital-A") == id_of("hospital-A"), id_of("hospital-A") == id_of("hospital-B")
        (True, False)
    """
    return SMALLEST_HASHED_ID + int.from_bytes(
        hashlib.blake2b(client_name.encode(), digest_size=6).digest(), "big"
    )


def claim_of(stated_client: Any, entry_name: str) -> Claim:
    """Return the client that a value denotes.

    Args:
        stated_client: A whole number, also as text, or a name.
        entry_name: Where it stands, for the message.

    Returns:
        The client.

    Raises:
        SettingError: A text is neither a whole number >= 0 of at most 18 digits nor a name: a name
            has at most 100 characters, all of them printable.

    Example:
        >>> claim_of(3, "client-id"), claim_of("3", "client-id"), claim_of("north", "client-id").name
        (Claim(client=3, name=''), Claim(client=3, name=''), 'north')
    """
    if not isinstance(stated_client, str):
        return Claim(int(stated_client))
    # A text of digits is an id. With a sign, or too many digits, it is neither an id nor a name.
    if re.fullmatch("[+-]?[0-9]+", stated_client):
        if len(stated_client) > MAX_ID_DIGITS or not stated_client.isdecimal():
            got_value = f"got {stated_client[:40]!r}"
            raise SettingError(
                f"{entry_name} must be a name or a non-negative integer of at most {MAX_ID_DIGITS} digits, {got_value}"
            )
        return Claim(int(stated_client))
    check_name(stated_client, entry_name)
    # Two names that differ must be shown differently.
    if printable(stated_client) != stated_client:
        raise SettingError(
            f"{entry_name}: a name must have only printable characters, got {stated_client!r}"
        )
    return Claim(id_of(stated_client), stated_client)


def claim_in_config(node_config: Mapping[str, Any]) -> Claim | None:
    """Return the client in a node's config.

    Args:
        node_config: The node's config.

    Returns:
        The client by ``client-id``, or else by ``partition-id``; None if the config has neither.

    Raises:
        SettingError: The entry is a text that can be neither an id nor a name.
    """
    for config_key in ("client-id", "partition-id"):
        if config_key in node_config:
            return claim_of(node_config[config_key], config_key)
    return None


def id_reply(claim: Claim | None, **entries: int) -> RecordDict:
    """Return a node's answer to the query for its id.

    Args:
        claim: The client; None if it has neither an id nor a name.
        **entries: Entries of the record :data:`.messages.WHO` besides the id.

    Returns:
        The content of the reply.
    """
    id_entry = {} if claim is None else {"client": claim.client}
    name_record = {NAME: ConfigRecord({"name": claim.name})} if claim and claim.name else {}
    return RecordDict({WHO: MetricRecord({**id_entry, **entries}), **name_record})


def claim_in_reply(content: RecordDict) -> Claim | None:
    """Return the client in a node's answer to the query for its id. Nothing in it is trusted.

    Args:
        content: The content of the reply.

    Returns:
        The client; None if the node says none.

    Raises:
        Unfit: The id is not a non-negative integer, the name is not allowed, or the id is not that
            of the name.
    """
    # The id, as a number, and the name, as a text, are in separate records.
    id_record = content.get(WHO, MetricRecord())
    name_record = content.get(NAME)
    if not isinstance(id_record, MetricRecord) or (
        "client" in id_record and whole(id_record["client"]) is None
    ):
        raise Unfit("its client id must be a non-negative integer")
    stated_id = whole(id_record.get("client"))
    if name_record is None:
        return None if stated_id is None else Claim(stated_id)
    stated_name = name_record.get("name") if isinstance(name_record, ConfigRecord) else None
    if not isinstance(stated_name, str):
        raise Unfit("its client name must be a text")
    try:
        claim = claim_of(stated_name, "its client name")
    except SettingError as error:
        raise Unfit(str(error)) from None
    if claim != (stated_id, stated_name):
        raise Unfit(f"its client id {stated_id} is not the id of its name {stated_name!r}")
    return claim
