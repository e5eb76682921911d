"""The result of a run, for plain Flower code and for several groups: which clients ``arrays`` serves, and the other models."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from flwr.app import ArrayRecord
from flwr.serverapp.strategy import Result

from coterie.core import Assignment, Client
from coterie.engines.flower import messages
from coterie.models.layout import Layout
from coterie.notebook.tables import labels
from coterie.settings import UserError

SHOWN = 8
"""Most clients of a group that are listed."""


@dataclass(repr=False, kw_only=True)
class GroupedResult(Result):
    """Flower's result, with the groups and the model of every client.

    ``arrays`` is one model, as in other strategies: that of the largest group, ``groups[0]``.

    Attributes:
        layout: The layout of the model's parameters.
        rest: Tensors of the net's state dict that are not part of a row.
        served: The model of each client; None before the first round.
        stays: Names of the layers that stay at the clients: these models have the values of the
            first model there.
        personal: Whether clients have personal models, which stay with them.
        sealed: Whether the models are sealed, because the boundary has a rotation.
        names: Client -> its name, for clients with names.
    """

    layout: Layout
    rest: messages.OtherTensors
    served: Assignment | None = None
    stays: tuple[str, ...] = ()
    personal: bool = False
    sealed: bool = False
    names: Mapping[Client, str] = field(default_factory=dict)
    _packed: dict[int, ArrayRecord] = field(default_factory=dict)

    @property
    def groups(self) -> tuple[tuple[Client | str, ...], ...]:
        """The groups of clients, by their names or else their ids, the largest first; empty before the first round."""
        if self.served is None:
            return ()
        shown: Mapping[Client, Any] = labels(self.names, self.served.row)
        groups = sorted(self.served.groups, key=len, reverse=True)
        return tuple(tuple(sorted(shown[client] for client in group)) for group in groups)

    @property
    def _rows(self) -> dict[str, int]:
        """Client, by its name or else its id -> the row of its model."""
        rows = {} if self.served is None else self.served.row
        shown = labels(self.names, rows)
        return {str(shown[client]): row for client, row in sorted(rows.items())}

    def serve(self, served: Assignment, names: Mapping[Client, str] | None = None) -> None:
        """Take over the models after a round, and the names of clients."""
        self.served, self.names, self._packed = served, dict(names or {}), {}
        self.arrays = self.arrays_of(self.groups[0][0])

    def arrays_of(self, client: Client | str) -> ArrayRecord:
        """Return the model of a client; all clients of a group have the same one, unless the method states otherwise.

        Args:
            client: The client's name or id.

        Returns:
            The arrays, with the names of the net's state dict.

        Raises:
            UserError: The run has no such client, or no round was run.
        """
        rows = self._rows
        row = rows.get(str(client))
        if row is None and self.served and isinstance(client, int):
            row = self.served.row.get(client)  # the id of a client with a name
        if self.served is None or row is None:
            raise UserError(
                f"the result has no client {client!r}; its clients are {_listed(tuple(rows))}"
            )
        if row not in self._packed:
            self._packed[row] = messages.packed(self.served.models[row], self.layout, self.rest)
        return self._packed[row]

    def cautions(self) -> list[str]:
        """Describe what ``arrays`` is not, one sentence each; empty if it is the one model of all clients."""
        if self.served is None:
            return []
        found, group = [], self.groups[0]
        if len(models := set(self.served.row.values())) > 1:
            own = {self.served.row[id] for id in max(self.served.groups, key=len)}
            whose = (
                f"{len(group)} clients ({_listed(group)})"
                if len(own) == 1
                else f"client {group[0]} alone"
            )
            some = f"{len(self.groups)} group{'s' if len(self.groups) > 1 else ''}"
            found.append(
                f"the clients are in {some} and have {len(models)} models: result.arrays is that of {whose}; "
                "result.groups lists the groups, and result.arrays_of(client) returns the model of a client"
            )
        if self.served.hidden:
            found.append(
                f"there are {len(self.served.models)} models, and the server does not know which one serves a client: "
                "result.arrays is the first; a client takes the one of lowest loss on its training data"
            )
        if self.served.ensemble:
            found.append(
                "clients are served by several models together; result.arrays and result.arrays_of have only the last"
            )
        if self.served.neighbours is not None:
            found.append(
                "clients are also served by their nearest training examples; the result has only the model"
            )
        if self.stays:
            layers = ", ".join(self.stays)
            found.append(
                f"layers stay at the clients ({layers}); the result has the values of the first model there"
            )
        if self.personal:
            found.append(
                "personal models stay at the clients; the result has only the models that they share"
            )
        if self.sealed:
            found.append(
                "the models are sealed by the boundary's rotation; only the clients can open them"
            )
        return found

    def __repr__(self) -> str:
        said: Any = super().__repr__()
        return "".join(f"Note: {text}.\n" for text in self.cautions()) + said


def _listed(clients: Sequence[Client | str]) -> str:
    more = f" and {len(clients) - SHOWN} more" if len(clients) > SHOWN else ""
    return ", ".join(map(str, clients[:SHOWN])) + more if clients else "none"
