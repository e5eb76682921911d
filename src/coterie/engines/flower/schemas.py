"""What nodes state about their data in their first message, and the choice of the schema that all must share.

A node answers the query for its id with the :class:`~coterie.data.schema.Schema` of its data, in
words or as digests. The server compares it with that of the federation, before the node trains. The
server cannot know which of two schemas is right: that of its operator decides, or else the one that
most nodes share.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from flwr.app import ConfigRecord, RecordDict

from coterie.core import Client
from coterie.data.schema import PARTS, Schema, in_words, quoted, shown
from coterie.engines.flower.messages import SCHEMA, Unfit
from coterie.settings import SettingError, nearest

WORDS, DIGEST, NOTHING = "words", "digest", "none"
SHARING = (WORDS, DIGEST, NOTHING)
"""What a node states: its schema; a digest of each part, and only the objective in words; nothing.
"""

SETTING = "schema"
"""Key of the node config for this."""

LONGEST_SCHEMA = 1 << 18
"""Most characters of a stated schema. A node whose schema is longer states digests."""

MOST_VERSIONS = 10
"""Most packages of which a node states versions."""

SHORT = 8
"""Digits of a digest that a sentence shows."""

_DIGEST = re.compile("[0-9a-f]{32}|")


@dataclass(frozen=True, kw_only=True)
class Stated:
    """What a node states about its data and its software.

    Attributes:
        words: The parts of the schema that are stated in words.
        digests: Part of the schema -> its digest; empty for a part that is not known.
        model: How the node's model differs from the server's, in words; empty if it does not.
        versions: Package -> its version.
    """

    words: Schema
    digests: Mapping[str, str]
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
        digests = schema.digests()
        if sharing == WORDS:
            whole = cls(words=schema, digests=digests, model=model, versions=versions or {})
            if len(whole.text()) <= LONGEST_SCHEMA:
                return whole
        return cls(words=schema.only("objective"), digests=digests, model=model)

    @property
    def key(self) -> tuple[str, ...]:
        """The digests in order: equal for nodes with equal schemas."""
        return tuple(self.digests[part] for part in PARTS)

    def difference(self, federation: Stated) -> str | None:
        """Return how the node differs from the federation, in words; None if all that both know is equal."""
        found = [self.model] if self.model else []
        for part in PARTS:
            own, theirs = self.digests[part], federation.digests[part]
            if own == theirs or not own or not theirs:
                continue
            # Constants that differ by rounding have other digests, and no difference in words.
            in_clear = self.words.digests()[part] and federation.words.digests()[part]
            if in_clear:
                found += self.words.differences(federation.words, part)
            else:
                verb = "differs" if part in ("target", "scaling", "objective") else "differ"
                found.append(
                    f"its {part} {verb}: digest {own[:SHORT]}, the federation's is {theirs[:SHORT]}"
                )
        return in_words(found)

    def to_json(self) -> dict[str, Any]:
        """Return it as a value for JSON."""
        more = {"model": self.model, "versions": dict(self.versions)}
        known = {name: value for name, value in more.items() if value}
        return {"words": self.words.to_json(), "digests": dict(self.digests), **known}

    def text(self) -> str:
        """Return it as one line of JSON."""
        return json.dumps(self.to_json(), allow_nan=False)

    @classmethod
    def read(cls, found: Any) -> Stated:
        """Read a value of :meth:`to_json`. Nothing in it is trusted.

        Raises:
            Unfit: It has another form, or its words do not have its digests.
        """
        if not isinstance(found, Mapping) or not {"words", "digests"} <= set(found) <= {
            "words",
            "digests",
            "model",
            "versions",
        }:
            raise Unfit("its schema must have words and digests")
        digests, versions, model = (
            found["digests"],
            found.get("versions", {}),
            found.get("model", ""),
        )
        if (
            not isinstance(digests, Mapping)
            or set(digests) != set(PARTS)
            or not all(map(_is_digest, digests.values()))
        ):
            raise Unfit(f"its schema must have a digest of each part ({', '.join(PARTS)})")
        if (
            not isinstance(versions, Mapping)
            or len(versions) > MOST_VERSIONS
            or not all(map(_is_text, versions.values()))
        ):
            raise Unfit("its versions must be texts")
        if not _is_text(model):
            raise Unfit("the difference of its model must be a text")
        try:
            words = Schema.of(found["words"])
        except (SettingError, TypeError, ValueError) as error:
            raise Unfit(f"its schema is not valid: {error}") from None
        for part, digest in words.digests().items():
            if digest and digest != digests[part]:
                raise Unfit(
                    f"its schema is not valid: the digest of its {part} is not that of the words"
                )
        return cls(words=words, digests=dict(digests), model=model, versions=dict(versions))


def _is_digest(value: Any) -> bool:
    return isinstance(value, str) and _DIGEST.fullmatch(value) is not None


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


# ----------------------------------------------------------------------------------------------------
# The record in a node's answer to the query for its id.


def sharing_of(config: Mapping[str, Any]) -> str:
    """Return what a node's config says that the node states.

    Args:
        config: The node's config.

    Returns:
        One of :data:`SHARING`; ``"words"`` without an entry.

    Raises:
        SettingError: The entry is another text.
    """
    given = config.get(SETTING, WORDS)
    if given not in SHARING:
        near = nearest(given, SHARING) if isinstance(given, str) else ""
        raise SettingError(
            f"{SETTING} in the node's config must be {', '.join(SHARING[:-1])} or {SHARING[-1]}, got {given!r}{near}"
        )
    return str(given)


def record_of(stated: Stated) -> ConfigRecord:
    """Return the record with what a node states."""
    return ConfigRecord({"stated": stated.text()})


def heard_schema(content: RecordDict) -> Stated | None:
    """Return what a node states in its answer. Nothing in it is trusted, and nothing is unpickled.

    Args:
        content: The content of the reply.

    Returns:
        What it states; None if it states nothing.

    Raises:
        Unfit: The record has another form.
    """
    record = content.get(SCHEMA)
    if record is None:
        return None
    text = record.get("stated") if isinstance(record, ConfigRecord) else None
    if not isinstance(text, str) or len(text) > LONGEST_SCHEMA:
        raise Unfit(f"its schema must be a text of at most {LONGEST_SCHEMA:,} characters")
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        raise Unfit("its schema must be JSON") from None
    return Stated.read(found)


def digests_only(content: RecordDict) -> dict[str, ConfigRecord]:
    """Return the record in a node's answer reduced to digests; empty if there is none, or another app's."""
    try:
        stated = heard_schema(content)
    except Unfit:
        return {}
    if stated is None:
        return {}
    return {
        SCHEMA: record_of(
            Stated(words=stated.words.only("objective"), digests=stated.digests, model=stated.model)
        )
    }


# ----------------------------------------------------------------------------------------------------
# The schema of the federation.


def most_shared(stated: Mapping[Client, Stated]) -> Stated | None:
    """Return the schema that most clients share; of equally many, that of the smallest id. None if no client states one.

    A schema in words counts before the same one as digests, because it can say what differs.

    Args:
        stated: Client -> what its node states. A node whose model differs from the server's does
            not count.
    """
    known = {
        client: one for client, one in sorted(stated.items()) if any(one.key) and not one.model
    }
    if not known:
        return None
    count = Counter(one.key for one in known.values())
    most = max(count.values())
    key = next(one.key for one in known.values() if count[one.key] == most)
    alike = [one for one in known.values() if one.key == key]
    best = max(alike, key=lambda one: len(one.words.to_json()))
    return Stated(words=best.words, digests=best.digests)


def other_versions(own: Mapping[str, str], stated: Mapping[str, str]) -> str | None:
    """Return the versions of a node that are not the server's, in words; None if there are none.

    What follows a plus sign, such as ``+cpu``, is not compared.
    """

    def public(version: str) -> str:
        return version.partition("+")[0]

    found = [
        f"{shown(name)} {shown(stated[name])}, the server has {version}"
        for name, version in own.items()
        if name in stated and public(stated[name]) != public(version)
    ]
    return "; ".join(found) or None


def model_difference(
    names: Mapping[str, tuple[int, ...]], served: Mapping[str, tuple[int, ...]]
) -> str:
    """Return how the tensors of a node's model differ from those that the server sends, in words; empty if they do not.

    Args:
        names: Name of each tensor of the node's model -> its shape.
        served: The same of the server's model.
    """
    lacks = [name for name in served if name not in names]
    has = [name for name in names if name not in served]
    found = []
    if lacks:
        found.append(f"its model has no tensor {quoted(lacks[0])}, which the server's model has")
    if has:
        found.append(f"its model has a tensor {quoted(has[0])}, which the server's model has not")
    for name, shape in names.items():
        if name in served and shape != served[name]:
            found.append(
                f"{quoted(name)} of its model has shape {shape}, and {served[name]} in the server's model"
            )
    return in_words(found) or ""


def checked_memory(found: Any) -> Stated | None:
    """Read the schema of the federation from the server's memory; raises ``ValueError`` if it is damaged."""
    return None if found is None else Stated.read(found)


def agreed(given: Schema | None, before: Stated | None) -> Stated | None:
    """Return the schema of the federation that is known before any node answers.

    Args:
        given: The schema of the server's operator, if there is one.
        before: The schema of the run that continues, if there is one.

    Raises:
        SettingError: They differ.
    """
    if given is None:
        return before
    own = Stated.of(given)
    if before is not None and (why := own.difference(before)):
        raise SettingError(f"MethodStrategy.schema is not that of the run that continues: {why}")
    return own


def unstated(clients: Iterable[str]) -> str:
    """A note about clients that state no schema."""
    some = list(clients)
    who = (
        f"client {some[0]}"
        if len(some) == 1
        else f"{len(some)} clients, for example client {some[0]},"
    )
    verb = "states" if len(some) == 1 else "state"
    return f"{who} {verb} no schema: columns, types, classes and scaling are not compared with the federation's"
