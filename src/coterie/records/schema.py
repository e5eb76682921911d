"""The schema of records, on which readers rely: a file may be damaged or malicious.

The types state the form of each entry, and msgspec checks it. What no type can state, such as that
each client is in one group, is checked by functions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Annotated, Any, NotRequired, TypedDict

import msgspec
from msgspec import Meta

from coterie.boundary import Boundary
from coterie.core import LONGEST_NAME, Effect, Sign, Training
from coterie.data import target_scale
from coterie.methods import METHODS
from coterie.methods._named import places_in
from coterie.pooling import sound
from coterie.printable import printable
from coterie.records.codec import DamagedError
from coterie.robust import Robust
from coterie.settings import UnknownName, UserError, build

LARGEST_INTEGER = 2**63 - 1
"""The largest integer of a record: 64 bits with a sign."""

Count = Annotated[int, Meta(ge=0, le=LARGEST_INTEGER)]
"""A whole number, such as a client's id."""

Integer = Annotated[int, Meta(ge=-LARGEST_INTEGER - 1, le=LARGEST_INTEGER)]
Number = Integer | float | None
"""A number of JSON; None stands for one that is not finite."""

DecidingNumber = Annotated[float, Meta(gt=0, le=LARGEST_INTEGER)]
"""A number of tests that decides noise: a mean of numbers, so it need not be whole."""

ClientKey = Annotated[str, Meta(pattern="^[0-9]{1,18}$")]
"""A client's id as a key of JSON."""

Table = Mapping[str, Any]


class CriterionEntry(TypedDict):
    """A criterion of a note."""

    name: str
    key: str
    value: Number
    sign: Sign
    bound: Number
    setting: str
    met: str
    unmet: str
    held: bool


class NoteEntry(TypedDict):
    """A note of a round; ``similarity`` names the file of its matrices."""

    kind: str
    effect: Effect
    clients: list[Count]
    parts: list[list[Count]]
    text: str
    criteria: list[CriterionEntry]
    otherwise: str
    numbers: dict[str, Number]
    labels: dict[str, Count]
    values: dict[str, dict[ClientKey, Number]]
    similarity: str | None


class RoundEntry(TypedDict):
    """A line of ``rounds.jsonl``. Entries that are not required are in the lines to which they apply."""

    round: Count
    exchange: Count
    exchanges: Count
    tested: bool
    groups: list[list[Count]]
    sizes: NotRequired[list[Count]]
    clients: dict[ClientKey, dict[str, bool | Number]]
    notes: list[NoteEntry]
    asked: Count
    answered: Count
    refused: dict[ClientKey, str]
    silent: list[Count]
    bytes_up: Count
    bytes_down: Count
    evaluations: Count
    seconds: dict[str, Number]
    absent: NotRequired[dict[ClientKey, Count]]
    released: NotRequired[dict[ClientKey, Count]]
    rows: NotRequired[dict[ClientKey, Count]]
    files: NotRequired[dict[str, str]]
    personal: NotRequired[list[Count]]
    claimed: NotRequired[dict[ClientKey, Count]]
    counted: NotRequired[dict[ClientKey, Count]]
    scaled: NotRequired[dict[ClientKey, Number]]
    sums: NotRequired[dict[ClientKey, dict[str, Table]]]


class NodesEntry(TypedDict):
    """The names in ``nodes.json``; the Flower engine checks the rest."""

    names: dict[ClientKey, str]


class Named(TypedDict):
    """A table of settings of something that has a name."""

    name: str


class MetricEntry(TypedDict):
    """The main metric, and whether a greater or a smaller value is better."""

    main: str
    better: str


class DriftEntry(TypedDict):
    """The rounds of a time step, and the concept of each client in each time step."""

    period: Annotated[int, Meta(ge=1, le=LARGEST_INTEGER)]
    concepts: list[list[Count]]


class ConstantEntry(TypedDict):
    """What a constant prediction is, and what it scores for each client."""

    predicts: str
    values: list[Number]
    own: list[Number]
    sums: NotRequired[list[Table]]


class NetEntry(TypedDict, total=False):
    """The net of a federation."""

    others: str


class WorldEntry(TypedDict):
    """The table ``world`` of ``run.toml``."""

    clients: list[Count]
    all_clients: NotRequired[Count]
    names: NotRequired[list[str]]
    metric: NotRequired[MetricEntry]
    examples: NotRequired[list[Count]]
    tests: NotRequired[list[Count]]
    validation_rows: NotRequired[list[Count]]
    test_subjects: NotRequired[list[Count]]
    data: NotRequired[str]
    combine: NotRequired[str]
    target_scale: NotRequired[Table]
    true_groups: NotRequired[list[list[Count]]]
    drift: NotRequired[DriftEntry]
    adversaries: NotRequired[list[Count]]
    model: NotRequired[Named]
    net: NotRequired[NetEntry]
    constant: NotRequired[ConstantEntry]
    testers: NotRequired[list[Number]]
    cautions: NotRequired[list[str]]
    averages_shares: NotRequired[bool]
    deciding_tests: NotRequired[list[Annotated[list[DecidingNumber], Meta(max_length=2)]]]
    test_rows: NotRequired[str]


class DescriptionEntry(TypedDict):
    """The content of ``run.toml``."""

    methods: Annotated[list[Named], Meta(min_length=1, max_length=1)]
    scenario: Named
    seeds: Annotated[list[Count], Meta(min_length=1, max_length=1)]
    rounds: Count
    eval_every: Count
    eval_clients: NotRequired[Count]
    validation_share: NotRequired[Number]
    stop_after: NotRequired[Count]
    checkpoint_every: NotRequired[Count]
    checkpoints_kept: NotRequired[Count]
    target: NotRequired[Number]
    training: Table
    boundary: Table
    robust: Table
    world: WorldEntry
    versions: dict[str, str]
    secret: NotRequired[str]


_LINE_DECODER = msgspec.json.Decoder(RoundEntry)


def decoded_line(line_bytes: bytes) -> dict[str, Any]:
    """Decode a line of the records.

    Args:
        line_bytes: The line, without its end.

    Returns:
        The line as dicts and lists.

    Raises:
        DamagedError: It is not a line of the records.
    """
    try:
        recorded_line: Any = _LINE_DECODER.decode(line_bytes)
    except (ValueError, RecursionError) as error:
        raise DamagedError(_in_sentence(error)) from error
    # What the types do not state.
    _check_groups(recorded_line)
    for sums_of_metric in recorded_line.get("sums", {}).values():
        if not all(map(sound, sums_of_metric.values())):
            raise DamagedError("'sums' are no sums of errors")
    return dict(recorded_line)


def _check_groups(recorded_line: RoundEntry) -> None:
    """Check that each client is in one group, has this group's number, and has numbers for metrics."""
    group_of_client: dict[str, int] = {}
    for group_number, group in enumerate(recorded_line["groups"]):
        group_of_client |= dict.fromkeys(map(str, group), group_number)
    # A client in two groups has only one entry in the table.
    if len(group_of_client) != sum(map(len, recorded_line["groups"])):
        raise DamagedError("'groups' has a client in two groups")
    if group_of_client.keys() != recorded_line["clients"].keys():
        raise DamagedError("'clients' do not match 'groups'")
    for client, client_entry in recorded_line["clients"].items():
        if client_entry.get("group") != group_of_client[client]:
            raise DamagedError("'clients' do not match 'groups'")
        # Groups and scores are numbers; only the mark of a hostile client is true or false.
        for entry_name, value in client_entry.items():
            if isinstance(value, bool) != (entry_name == "adversary"):
                raise DamagedError(f"{entry_name!r} of client {client} has the wrong type")


def check_nodes(nodes_document: Any) -> None:
    """Check the names in ``nodes.json``, which differ also when they are shown.

    Args:
        nodes_document: The content of the file.

    Raises:
        DamagedError: The names are not well-formed.
    """
    # Two names that differ may be shown as the same text.
    nodes_entry = _converted(nodes_document, NodesEntry)
    client_names = list(map(printable, nodes_entry["names"].values()))
    # A number would be taken for the client that has it.
    if not _are_names(client_names) or any(map(str.isdecimal, client_names)):
        raise DamagedError("'names' has a name twice, or one that is empty, too long or a number")


def check_description(description: Mapping[str, Any]) -> None:
    """Check the content of ``run.toml``.

    Args:
        description: The content.

    Raises:
        DamagedError: An entry is missing or has the wrong form, or a setting would not be accepted.
    """
    # The types first, then what they do not state, then every setting.
    world_entry: WorldEntry = _converted(description, DescriptionEntry)["world"]
    for entry_name, is_sound in _WORLD_CHECKS.items():
        if entry_name in world_entry and not is_sound(world_entry[entry_name]):  # type: ignore[literal-required]
            raise DamagedError(f"{entry_name!r} has the wrong form")
    _check_settings(description)


def _are_names(client_names: list[str]) -> bool:
    """Whether these are names of clients: all different, and neither empty nor too long."""
    return len(set(client_names)) == len(client_names) and all(
        0 < len(client_name) <= LONGEST_NAME for client_name in client_names
    )


def _is_drift(drift_entry: DriftEntry) -> bool:
    """Whether there is a time step, and each has as many concepts."""
    return len({len(concepts) for concepts in drift_entry["concepts"]}) == 1


def _is_constant(constant_entry: ConstantEntry) -> bool:
    """Whether the sums of a constant prediction are sums of errors; a client without test data has none."""
    return all(
        error_sums == {} or sound(error_sums) for error_sums in constant_entry.get("sums", ())
    )


_WORLD_CHECKS: Mapping[str, Callable[[Any], bool]] = {
    "names": _are_names,
    "target_scale": target_scale.sound,
    "drift": _is_drift,
    "constant": _is_constant,
}
"""Entry about the world -> the check of what its type does not state."""


def _check_settings(description: Mapping[str, Any]) -> None:
    """Check that every known setting would be accepted now.

    A method of a user's own is code, which reading never imports: its settings are not known. The
    secret is not in the document.
    """
    # A file of another version may have settings that this one refuses.
    method_table = description["methods"][0]
    tables_by_class: list[tuple[type[Any], Mapping[str, Any]]] = [
        (Training, description["training"]),
        (Boundary, description["boundary"]),
        (Robust, description["robust"]),
    ]
    names_code = any(places_in(method_table))
    if method_table["name"] in METHODS and not names_code:
        tables_by_class.append((METHODS[method_table["name"]], method_table))
    for settings_class, table in tables_by_class:
        # A method's table also has its name, which is no setting.
        settings = {}
        for class_field in fields(settings_class):
            is_setting = class_field.init and class_field.name != "secret"
            if is_setting and class_field.name in table:
                settings[class_field.name] = table[class_field.name]
        try:
            build(settings_class, settings)
        except UnknownName:
            # A setting is a method of a user's own that cannot be imported.
            continue
        except (UserError, TypeError, ValueError) as error:
            raise DamagedError(str(error)) from error


def _converted(document: Any, entry_type: type[Any]) -> Any:
    """The document with the entries that its type has.

    Raises:
        DamagedError: The document does not match the type.
    """
    try:
        return msgspec.convert(document, entry_type)
    except (ValueError, RecursionError) as error:
        raise DamagedError(_in_sentence(error)) from error


def _in_sentence(error: Exception) -> str:
    """An error's message as the end of a sentence."""
    error_text = str(error)
    return f"{error_text[:1].lower()}{error_text[1:]}"
