"""What nodes state about their data in their first message, and the choice of the schema that all must share.

A node answers the query for its id with the :class:`~coterie.data.schema.Schema` of its data, in
words or as digests. The server compares it with that of the federation, before the node trains. Each
field has a digest, so that only what both sides know is compared. The
server cannot know which of two schemas is right: that of its operator decides, or else the one that
most nodes share.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

from flwr.app import ConfigRecord, RecordDict

from coterie.core import Client
from coterie.data.schema import FIELDS_OF_PART, Schema, in_words, quoted, shown
from coterie.engines.flower.messages import SCHEMA, Unfit
from coterie.settings import SettingError, nearest

WORDS = "words"
DIGEST = "digest"
NOTHING = "none"
SHARING = (WORDS, DIGEST, NOTHING)
"""What a node states: its schema; a digest of each part, and only the objective in words; nothing.
"""

SETTING = "schema"
"""Key of the node config for this."""

LONGEST_SCHEMA = 1 << 18
"""Most characters of a stated schema. A node whose schema is longer states digests."""

MOST_VERSIONS = 10
"""Most packages of which a node states versions."""

SHOWN_DIGITS = 8
"""Digits of a digest that a sentence shows."""

NOUNS_OF_FIELDS = {
    "dtypes": "types",
    "inputs": "form of inputs",
    "task": "form of targets",
    "target_means": "means of targets",
    "target_deviations": "deviations of targets",
}
"""Field of a schema -> what a sentence calls it, where that is not the field's name."""

SINGULAR_FIELDS = ("inputs", "task", "scaling", "loss")
"""Fields with one value."""

_DIGEST = re.compile("[0-9a-f]{32}|")


@dataclass(frozen=True, kw_only=True)
class Stated:
    """What a node states about its data and its software.

    Attributes:
        words: The parts of the schema that are stated in words.
        digests: Part of the schema -> its digest; empty for a part that is not known.
        field_digests: Known field of the schema -> its digest. Empty if the node's Coterie is older
            and states digests of parts only.
        model: How the node's model differs from the server's, in words; empty if it does not.
        versions: Package -> its version.
    """

    words: Schema
    digests: Mapping[str, str]
    field_digests: Mapping[str, str] = field(default_factory=dict)
    model: str = ""
    versions: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        schema: Schema,
        sharing: str = WORDS,
        model: str = "",
        versions: Mapping[str, str] | None = None,
    ) -> Stated:
        """Return what a node with a schema states.

        Args:
            schema: The schema.
            sharing: One of :data:`SHARING` but ``"none"``.
            model: As in :class:`Stated`.
            versions: As in :class:`Stated`; stated with words only.
        """
        in_digests = cls(
            words=schema.only("objective"),
            digests=schema.digests(),
            field_digests=schema.field_digests(),
            model=model,
        )
        if sharing == WORDS:
            in_words = replace(in_digests, words=schema, versions=versions or {})
            if len(in_words.text()) <= LONGEST_SCHEMA:
                return in_words
        return in_digests

    @property
    def key(self) -> tuple[str, ...]:
        """The digests in order: equal for nodes with equal schemas."""
        return tuple(self.digests[schema_part] for schema_part in FIELDS_OF_PART)

    def difference(self, federation: Stated) -> str | None:
        """Return how the node differs from the federation, in words; None if all that both know is equal."""
        differences = [self.model] if self.model else []
        for schema_part in FIELDS_OF_PART:
            own_digest = self.digests[schema_part]
            federation_digest = federation.digests[schema_part]
            # An empty digest means that this side does not know the part.
            if own_digest == federation_digest or not own_digest or not federation_digest:
                continue
            # Constants that differ by rounding have other digests, and no difference in words.
            in_clear = self.words.digests()[schema_part] and federation.words.digests()[schema_part]
            if in_clear:
                differences += self.words.differences(federation.words, schema_part)
            elif self.field_digests and federation.field_digests:
                differences += self._differing_fields(federation, schema_part)
            else:
                verb = "differ" if schema_part in ("columns", "types", "classes") else "differs"
                differences.append(
                    f"its {schema_part} {verb}: digest {own_digest[:SHOWN_DIGITS]}, "
                    f"the federation's is {federation_digest[:SHOWN_DIGITS]}"
                )
        return in_words(differences)

    def _differing_fields(self, federation: Stated, schema_part: str) -> list[str]:
        """A sentence for each field of a part that both know and whose digests differ."""
        sentences = []
        for field_name in FIELDS_OF_PART[schema_part]:
            own_digest = self.field_digests.get(field_name)
            federation_digest = federation.field_digests.get(field_name)
            if own_digest is None or federation_digest is None or own_digest == federation_digest:
                continue
            noun = NOUNS_OF_FIELDS.get(field_name, field_name)
            verb = "differs" if field_name in SINGULAR_FIELDS else "differ"
            sentences.append(
                f"its {noun} {verb}: digest {own_digest[:SHOWN_DIGITS]}, "
                f"the federation's is {federation_digest[:SHOWN_DIGITS]}"
            )
        return sentences

    def to_json(self) -> dict[str, Any]:
        """Return it as a value for JSON."""
        optional = {
            "fields": dict(self.field_digests),
            "model": self.model,
            "versions": dict(self.versions),
        }
        stated_entries = {
            entry_name: entry_value for entry_name, entry_value in optional.items() if entry_value
        }
        return {"words": self.words.to_json(), "digests": dict(self.digests), **stated_entries}

    def text(self) -> str:
        """Return it as one line of JSON."""
        return json.dumps(self.to_json(), allow_nan=False)

    @classmethod
    def read(cls, statement: Any) -> Stated:
        """Read a value of :meth:`to_json`. Nothing in it is trusted.

        Raises:
            Unfit: It has another form, or its words do not have its digests.
        """
        # Check the form of every entry before it is used.
        required = {"words", "digests"}
        allowed = required | {"fields", "model", "versions"}
        if not isinstance(statement, Mapping) or not required <= set(statement) <= allowed:
            raise Unfit("its schema must have words and digests")
        digests = statement["digests"]
        field_digests = statement.get("fields", {})
        versions = statement.get("versions", {})
        model_difference = statement.get("model", "")
        if (
            not isinstance(digests, Mapping)
            or set(digests) != set(FIELDS_OF_PART)
            or not all(map(_is_digest, digests.values()))
        ):
            raise Unfit(f"its schema must have a digest of each part ({', '.join(FIELDS_OF_PART)})")
        field_names = [schema_field.name for schema_field in fields(Schema)]
        if (
            not isinstance(field_digests, Mapping)
            or not set(field_digests) <= set(field_names)
            or not all(map(_is_digest, field_digests.values()))
        ):
            raise Unfit(f"its schema must have digests of its fields ({', '.join(field_names)})")
        if (
            not isinstance(versions, Mapping)
            or len(versions) > MOST_VERSIONS
            or not all(map(_is_text, versions.values()))
        ):
            raise Unfit("its versions must be texts")
        if not _is_text(model_difference):
            raise Unfit("the difference of its model must be a text")
        try:
            schema_in_words = Schema.of(statement["words"])
        except (SettingError, TypeError, ValueError) as error:
            raise Unfit(f"its schema is not valid: {error}") from None
        # Otherwise a node could show words of one schema and be compared by the digests of another.
        for schema_part, part_digest in schema_in_words.digests().items():
            if part_digest and part_digest != digests[schema_part]:
                raise Unfit(
                    f"its schema is not valid: the digest of its {schema_part} is not that of the words"
                )
        for field_name, field_digest in schema_in_words.field_digests().items():
            if field_digests and field_digest != field_digests.get(field_name):
                raise Unfit(
                    f"its schema is not valid: the digest of its {field_name} is not that of the words"
                )
        return cls(
            words=schema_in_words,
            digests=dict(digests),
            field_digests=dict(field_digests),
            model=model_difference,
            versions=dict(versions),
        )


def _is_digest(value: Any) -> bool:
    return isinstance(value, str) and _DIGEST.fullmatch(value) is not None


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


# ----------------------------------------------------------------------------------------------------
# The record in a node's answer to the query for its id.


def sharing_of(node_config: Mapping[str, Any]) -> str:
    """Return what a node's config says that the node states.

    Args:
        node_config: The node's config.

    Returns:
        One of :data:`SHARING`; ``"words"`` without an entry.

    Raises:
        SettingError: The entry is another text.
    """
    sharing = node_config.get(SETTING, WORDS)
    if sharing not in SHARING:
        suggestion = nearest(sharing, SHARING) if isinstance(sharing, str) else ""
        raise SettingError(
            f"{SETTING} in the node's config must be {', '.join(SHARING[:-1])} or {SHARING[-1]}, got {sharing!r}{suggestion}"
        )
    return str(sharing)


def record_of(statement: Stated) -> ConfigRecord:
    """Return the record with what a node states."""
    return ConfigRecord({"stated": statement.text()})


def schema_in_reply(content: RecordDict) -> Stated | None:
    """Return what a node states in its answer. Nothing in it is trusted, and nothing is unpickled.

    Args:
        content: The content of the reply.

    Returns:
        What it states; None if it states nothing.

    Raises:
        Unfit: The record has another form.
    """
    schema_record = content.get(SCHEMA)
    if schema_record is None:
        return None
    statement_text = (
        schema_record.get("stated") if isinstance(schema_record, ConfigRecord) else None
    )
    if not isinstance(statement_text, str) or len(statement_text) > LONGEST_SCHEMA:
        raise Unfit(f"its schema must be a text of at most {LONGEST_SCHEMA:,} characters")
    try:
        statement = json.loads(statement_text)
    except (ValueError, RecursionError):
        raise Unfit("its schema must be JSON") from None
    return Stated.read(statement)


def digests_only(content: RecordDict) -> dict[str, ConfigRecord]:
    """Return the record in a node's answer reduced to digests; empty if there is none, or another app's."""
    try:
        statement = schema_in_reply(content)
    except Unfit:
        return {}
    if statement is None:
        return {}
    reduced = replace(statement, words=statement.words.only("objective"), versions={})
    return {SCHEMA: record_of(reduced)}


# ----------------------------------------------------------------------------------------------------
# The schema of the federation.


def most_shared(statements: Mapping[Client, Stated]) -> Stated | None:
    """Return the schema that most clients share; of equally many, that of the smallest id. None if no client states one.

    A schema in words counts before the same one as digests, because it can say what differs.

    Args:
        statements: Client -> what its node states. A node whose model differs from the server's does
            not count.
    """
    # In the order of client ids: of equally frequent schemas, the first one counts.
    by_client = sorted(statements.items())
    usable_statements = [
        statement for _, statement in by_client if any(statement.key) and not statement.model
    ]
    if not usable_statements:
        return None
    schema_counts = Counter(statement.key for statement in usable_statements)
    largest_count = max(schema_counts.values())
    shared_key = next(
        statement.key
        for statement in usable_statements
        if schema_counts[statement.key] == largest_count
    )
    sharing_it = [statement for statement in usable_statements if statement.key == shared_key]
    # The one with the most words can best say what differs.
    wordiest = max(sharing_it, key=lambda statement: len(statement.words.to_json()))
    return replace(wordiest, model="", versions={})


def other_versions(
    server_versions: Mapping[str, str], node_versions: Mapping[str, str]
) -> str | None:
    """Return the versions of a node that are not the server's, in words; None if there are none.

    What follows a plus sign, such as ``+cpu``, is not compared.
    """
    differences = []
    for package, server_version in server_versions.items():
        node_version = node_versions.get(package)
        if node_version is None:
            continue
        if node_version.partition("+")[0] != server_version.partition("+")[0]:
            difference = f"{shown(package)} {shown(node_version)}, the server has {server_version}"
            differences.append(difference)
    return "; ".join(differences) or None


def model_difference(
    node_shapes: Mapping[str, tuple[int, ...]], server_shapes: Mapping[str, tuple[int, ...]]
) -> str:
    """Return how the tensors of a node's model differ from those that the server sends, in words; empty if they do not.

    Args:
        node_shapes: Name of each tensor of the node's model -> its shape.
        server_shapes: The same of the server's model.
    """
    # Of missing and additional tensors, one example is enough.
    missing_names = [tensor_name for tensor_name in server_shapes if tensor_name not in node_shapes]
    additional_names = [
        tensor_name for tensor_name in node_shapes if tensor_name not in server_shapes
    ]
    differences = []
    if missing_names:
        differences.append(
            f"its model has no tensor {quoted(missing_names[0])}, which the server's model has"
        )
    if additional_names:
        differences.append(
            f"its model has a tensor {quoted(additional_names[0])}, which the server's model has not"
        )
    for tensor_name, node_shape in node_shapes.items():
        if tensor_name in server_shapes and node_shape != server_shapes[tensor_name]:
            differences.append(
                f"{quoted(tensor_name)} of its model has shape {node_shape}, "
                f"and {server_shapes[tensor_name]} in the server's model"
            )
    return in_words(differences) or ""


def checked_memory(stored_schema: Any) -> Stated | None:
    """Read the schema of the federation from the server's memory; raises ``ValueError`` if it is damaged."""
    return None if stored_schema is None else Stated.read(stored_schema)


def federation_schema(
    operator_schema: Schema | None, stored_schema: Stated | None
) -> Stated | None:
    """Return the schema of the federation that is known before any node answers.

    Args:
        operator_schema: The schema of the server's operator, if there is one.
        stored_schema: The schema of the run that continues, if there is one.

    Raises:
        SettingError: They differ.
    """
    if operator_schema is None:
        return stored_schema
    operator_statement = Stated.of(operator_schema)
    if stored_schema is not None and (difference := operator_statement.difference(stored_schema)):
        raise SettingError(
            f"MethodStrategy.schema is not that of the run that continues: {difference}"
        )
    return operator_statement


def unstated_schema_note(clients: Iterable[str]) -> str:
    """A note about clients that state no schema."""
    client_list = list(clients)
    if len(client_list) == 1:
        subject = f"client {client_list[0]} states"
    else:
        subject = f"{len(client_list)} clients, for example client {client_list[0]}, state"
    return f"{subject} no schema: columns, types, classes and scaling are not compared with the federation's"
