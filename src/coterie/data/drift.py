"""Concept drift: which client has which concept when.

A *schedule* is a table: a row for each time step, a column for each client, and in it the number of
the client's concept.

Sources
- FedDrift's schedules: E. Jothimurugesan, K. Hsieh, J. Wang, G. Joshi, P. B. Gibbons, "Federated
  Learning under Distributed Concept Drift", AISTATS 2023, arXiv 2206.00799, and the files
  ``data/changepoints/*.cp`` of its published code.
- ``sudden``, ``incremental`` and ``recurring``: as in the code of FedCCFA, "Classifier Clustering
  and Feature Alignment for Federated Learning under Distributed Concept Drift", NeurIPS 2024, arXiv
  2410.18478.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import ClassVar

from coterie.data.parts import ScenarioPart
from coterie.settings import SettingError, setting

Schedule = tuple[tuple[int, ...], ...]
"""For each time step, the concept of each client."""

FEDDRIFT: Mapping[str, str] = MappingProxyType(
    {
        "a": "0000000000 0100000000 0100000100 0111010100 0111010110 1011011010 1001001010 1000101011 1000101001 1000101001",
        "b": "0000000000 1110000000 1112220000 2212222100 2221222130 2321233130 3321133210 3033133213 0033313223 0003311322",
        "c": "0000000000 1112220000 1112220030 2211222130 2221232130 2321133130 3323133210 3033313213 0033313223 0003311322",
        "d": "1112220033 1112220033 2211222032 2221232002 2321133002 3323133202 3033313201 0033313221 0003311321 0003311321",
        "e": "0000000000 1113330000 1113330020 3311333120 3331323120 3231122120 2232122310 2022212312 0022212332 0002211233",
        "f": "0000000000 0000000000 1112220000 1112220030 2211222130 2221232130 2321133133 3323133213 3033313213 0033312223",
        "w": "0000000000 0000000000 0100000100 0100000100 0111010100 0111010110 1111011110 1111011110 1111111111 1111111111",
        "x": "0000000000 0100000000 0100000000 0100000100 0111010100 0111010110 1111011110 1111011110 1111111111 1111111111",
        "y": "0000000000 0000000000 0000000000 0100000100 0111010100 0111010110 1111011110 1111011110 1111111111 1111111111",
    }
)
"""FedDrift's schedules of 10 time steps for 10 clients, a digit per client; Z is Y with concept 2
in place of 1."""

DRIFTS = (
    "none",
    "still",
    "sudden",
    "incremental",
    "recurring",
    *(f"feddrift-{name}" for name in FEDDRIFT),
    "given",
)
"""The schedules."""


@dataclass(frozen=True, kw_only=True)
class DriftSettings(ScenarioPart):
    """The schedule of a scenario's concepts."""

    part: ClassVar[str] = "drift"
    main: ClassVar[str] = "kind"

    kind: str = setting("none", "schedule of concept drift; none: stationary data", choices=DRIFTS)
    period: int = setting(
        20,
        "rounds of a time step, in which data stay (drift)",
        ge=1,
        not_with={"kind": ("none",)},
    )
    calm: int = setting(
        1,
        "time steps before the first change; of still, all of them (drift)",
        ge=1,
        only_with={"kind": ("still", "sudden", "incremental", "recurring")},
    )
    schedule: tuple[tuple[int, ...], ...] = setting(
        (), "a row per time step: the concept of each client (drift=given)"
    )
    renew: bool = setting(
        False, "new examples in each time step; false: the same, under another concept (drift)"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if (self.kind == "given") != bool(self.schedule):
            raise SettingError("Scenario.schedule goes together with drift = given")
        if self.kind == "none" and self.renew:
            raise SettingError(
                "Scenario.renew needs a drift, got none; still: new examples of one concept"
            )


def schedule(
    drift: str, clients: int, concepts: int, calm: int, given: Sequence[Sequence[int]] = ()
) -> Schedule:
    """Return who has which concept when.

    - ``still``: ``calm`` time steps of concept 0.
    - ``sudden``: concept 0, then each client has one of the other concepts, in equal parts. Of two
      concepts, half of the clients keep concept 0.
    - ``incremental``: the same, but one concept's clients change after the other, a time step
      apart.
    - ``recurring``: as sudden, back to concept 0 after a time step, and both once more.
    - ``feddrift-a`` to ``feddrift-y``: FedDrift's. Client c has column c mod 10.

    Args:
        drift: One of :data:`DRIFTS`.
        clients: Number of clients.
        concepts: Number of concepts.
        calm: Time steps before the first change, for the schedules that are not a table.
        given: The table, for ``given``.

    Returns:
        The schedule, at least one row.

    Raises:
        SettingError: There are too few concepts or clients, or the table has no row or another
            number of clients.

    Example:
        >>> schedule("recurring", clients=4, concepts=2, calm=1)
        ((0, 0, 0, 0), (0, 0, 1, 1), (0, 0, 0, 0), (0, 0, 1, 1), (0, 0, 0, 0))
    """
    # The table of the user, one of FedDrift, or one that is computed.
    if drift == "given":
        time_steps = tuple(tuple(time_step) for time_step in given)
    elif drift.startswith("feddrift-"):
        time_steps = _feddrift(drift.removeprefix("feddrift-"), clients)
    else:
        time_steps = _computed(drift, clients, concepts, calm)
    # Every row needs a concept for each client.
    if not time_steps or any(len(time_step) != clients for time_step in time_steps):
        row_lengths = sorted({len(time_step) for time_step in time_steps}) or "none"
        raise SettingError(
            f"Scenario.schedule needs rows of one concept for each of the {clients} clients, got "
            f"{row_lengths}"
        )
    lowest = min(map(min, time_steps))
    highest = max(map(max, time_steps))
    if lowest < 0 or highest >= concepts:
        raise SettingError(
            f"drift {drift} needs the concepts 0 to {highest}, and Scenario.groups allows {concepts}"
        )
    return time_steps


def _feddrift(name: str, clients: int) -> Schedule:
    """FedDrift's schedule of this name; the columns are repeated for more than ten clients."""
    time_steps = []
    # A row is a text of ten digits; client c has digit c mod 10.
    for digits_of_step in FEDDRIFT[name].split():
        time_steps.append(
            tuple(int(digits_of_step[client % len(digits_of_step)]) for client in range(clients))
        )
    return tuple(time_steps)


def _computed(drift: str, clients: int, concepts: int, calm: int) -> Schedule:
    """A schedule that is not a table: still, sudden, incremental or recurring."""
    # Every schedule begins with time steps in which all clients have concept 0.
    first_step = (0,) * clients
    calm_steps = (first_step,) * calm
    if drift == "still":
        return calm_steps
    if concepts < 2 or clients < 2:
        raise SettingError(
            f"drift {drift} needs at least 2 concepts and 2 clients, got {concepts} and {clients}"
        )
    # Each client's concept after the change, in equal parts; the last clients have the last one.
    new_concepts = [0, 1] if concepts == 2 else list(range(1, concepts))
    new_concept_of_client = []
    for client in range(clients):
        places_from_end = (clients - 1 - client) * len(new_concepts) // clients
        new_concept_of_client.append(new_concepts[len(new_concepts) - 1 - places_from_end])
    changed_step = tuple(new_concept_of_client)
    match drift:
        case "sudden":
            return (*calm_steps, changed_step)
        case "recurring":
            return (*calm_steps, changed_step, first_step, changed_step, first_step)
    # Incremental: in each time step, the clients of one more concept have changed.
    steps = list(calm_steps)
    for latest_concept in filter(None, new_concepts):
        steps.append(tuple(concept if concept <= latest_concept else 0 for concept in changed_step))
    return tuple(steps)
