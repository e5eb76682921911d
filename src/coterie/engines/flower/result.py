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

MAX_LISTED_CLIENTS = 8
"""Most clients of a group that are listed."""


@dataclass(repr=False, kw_only=True)
class GroupedResult(Result):
    """Flower's result, with the groups and the model of every client.

    ``arrays`` is one model, as in other strategies: that of the largest group, ``groups[0]``.

    Attributes:
        layout: The layout of the model's parameters.
        other_tensors: Tensors of the net's state dict that are not part of a row.
        assignment: The model of each client; None before the first round.
        local_layers: Names of the layers that stay at the clients: these models have the values of
            the first model there.
        personal: Whether clients have personal models, which stay with them.
        sealed: Whether the models are sealed, because the boundary has a rotation.
        names: Client -> its name, for clients with names.
    """

    layout: Layout
    other_tensors: messages.OtherTensors
    assignment: Assignment | None = None
    local_layers: tuple[str, ...] = ()
    personal: bool = False
    sealed: bool = False
    names: Mapping[Client, str] = field(default_factory=dict)
    _packed_rows: dict[int, ArrayRecord] = field(default_factory=dict)

    @property
    def groups(self) -> tuple[tuple[Client | str, ...], ...]:
        """The groups of clients, by their names or else their ids, the largest first; empty before the first round."""
        if self.assignment is None:
            return ()
        client_labels: Mapping[Client, Any] = labels(self.names, self.assignment.row)
        labelled_groups = []
        for group in sorted(self.assignment.groups, key=len, reverse=True):
            labelled_groups.append(tuple(sorted(client_labels[client] for client in group)))
        return tuple(labelled_groups)

    @property
    def _rows(self) -> dict[str, int]:
        """Client, by its name or else its id -> the row of its model."""
        # Names as keys, because that is how users know the clients.
        row_of_client = {} if self.assignment is None else self.assignment.row
        client_labels = labels(self.names, row_of_client)
        return {str(client_labels[client]): row for client, row in sorted(row_of_client.items())}

    def serve(self, assignment: Assignment, names: Mapping[Client, str] | None = None) -> None:
        """Take over the models after a round, and the names of clients."""
        self.assignment = assignment
        self.names = dict(names or {})
        self._packed_rows = {}
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
        if row is None and self.assignment and isinstance(client, int):
            # A client with a name can be given by its id, too.
            row = self.assignment.row.get(client)
        if self.assignment is None or row is None:
            raise UserError(
                f"the result has no client {client!r}; its clients are {_client_list(tuple(rows))}"
            )
        if row not in self._packed_rows:
            model_row = self.assignment.models[row]
            self._packed_rows[row] = messages.packed(model_row, self.layout, self.other_tensors)
        return self._packed_rows[row]

    def cautions(self) -> list[str]:
        """Describe what ``arrays`` is not, one sentence each; empty if it is the one model of all clients."""
        if self.assignment is None:
            return []
        cautions = []
        # Each caution is a way in which the arrays are not the one model of all clients.
        used_rows = set(self.assignment.row.values())
        if len(used_rows) > 1:
            cautions.append(self._which_model(len(used_rows)))
        if self.assignment.hidden:
            cautions.append(
                f"there are {len(self.assignment.models)} models, and the server does not know which one serves a client: "
                "result.arrays is the first; a client takes the one of lowest loss on its training data"
            )
        if self.assignment.ensemble:
            cautions.append(
                "clients are served by several models together; result.arrays and result.arrays_of have only the last"
            )
        if any(self.assignment.neighbours_of(client) for client in self.assignment.row):
            cautions.append(
                "clients are also served by their nearest training examples; the result has only the model"
            )
        if self.local_layers:
            layer_names = ", ".join(self.local_layers)
            cautions.append(
                f"layers stay at the clients ({layer_names}); the result has the values of the first model there"
            )
        if self.personal:
            cautions.append(
                "personal models stay at the clients; the result has only the models that they share"
            )
        if self.sealed:
            cautions.append(
                "the models are sealed by the boundary's rotation; only the clients can open them"
            )
        return cautions

    def _which_model(self, model_count: int) -> str:
        """The sentence that says whose model ``arrays`` is, of several models."""
        assert self.assignment is not None
        # A group may have several models, if its clients are served by models of their own.
        largest_group = self.groups[0]
        rows_of_group = {
            self.assignment.row[client] for client in max(self.assignment.groups, key=len)
        }
        if len(rows_of_group) == 1:
            served_clients = f"{len(largest_group)} clients ({_client_list(largest_group)})"
        else:
            served_clients = f"client {largest_group[0]} alone"
        group_count = len(self.groups)
        group_phrase = "1 group" if group_count == 1 else f"{group_count} groups"
        return (
            f"the clients are in {group_phrase} and have {model_count} models: result.arrays is that of {served_clients}; "
            "result.groups lists the groups, and result.arrays_of(client) returns the model of a client"
        )

    def __repr__(self) -> str:
        flower_text: Any = super().__repr__()
        return "".join(f"Note: {caution}.\n" for caution in self.cautions()) + flower_text


def _client_list(clients: Sequence[Client | str]) -> str:
    """The first clients of a group and the number of the others."""
    if not clients:
        return "none"
    client_list = ", ".join(map(str, clients[:MAX_LISTED_CLIENTS]))
    if len(clients) > MAX_LISTED_CLIENTS:
        client_list += f" and {len(clients) - MAX_LISTED_CLIENTS} more"
    return client_list
