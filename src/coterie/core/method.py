"""A method: five pure functions, their inputs and their results."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar, Protocol, TypeVar, runtime_checkable

import numpy as np
import torch

from coterie.core.clients import AllBut, Client, Groups, distinct_values, in_order
from coterie.core.notes import Note
from coterie.core.replies import Replies
from coterie.core.tasks import Neighbours, Plan, Task, Training
from coterie.notebook.tables import by_group, count, partition, some, table
from coterie.randomness import Purpose, numpy_generator
from coterie.settings.calls import public


@public
@dataclass(frozen=True, kw_only=True)
class Federation:
    """The facts that a method receives once, before the first exchange.

    Layers are in the order of the forward pass as far as the module shows it, so the last one is
    the classifier.

    Attributes:
        clients: The client ids, sorted.
        draw: ``draw(i)`` is the i-th fresh model, shape ``(d,)``. It is the same at every call.
        columns: Layer name -> ``(start, stop)`` of its parameters in a row. Parameters come first,
            float buffers (those of BatchNorm) after them.
        tensors: The same for each trainable tensor, so that weight and bias of a layer are
            separate.
        dense: The names of the fully connected layers.
        norms: The names of the BatchNorm layers.
        training: How clients train if a task does not state otherwise.
        labels: Whether the clients predict one class each time; true if the engine does not know.
        clip: The maximum norm of an update; None without one.
    """

    clients: tuple[Client, ...]
    draw: Callable[[int], torch.Tensor]
    columns: Mapping[str, tuple[int, int]]
    tensors: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    dense: tuple[str, ...] = ()
    norms: tuple[str, ...] = ()
    training: Training = field(default_factory=Training)
    labels: bool = True
    clip: float | None = None

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {count(len(self.clients), 'client')}, layers {some(self.columns)}>"

    @property
    def parameters(self) -> slice:
        """The columns that similarities use: every trainable parameter, no buffer."""
        return slice(0, max(end_column for _, end_column in self.columns.values()))


@public
@dataclass(frozen=True, kw_only=True)
class Cohort:
    """The clients that are available in this exchange, and the randomness to choose among them.

    Attributes:
        present: The ids of the available clients.
        exchange: The number of the exchange.
        seed: The seed of the run.
        fewest: The number of members that a sample has at least, if there are so many: a majority of
            them must be honest.
    """

    present: tuple[Client, ...]
    exchange: int
    seed: int
    fewest: int = 1

    def sample(self, members: Iterable[Client], fraction: float) -> tuple[Client, ...]:
        """Draw ``max(round(fraction * |members|), fewest)`` of the members at random, and keep those that are present.

        The draw depends only on the seed, the exchange and the members (FL+HC §II: at least one
        client per group).

        Args:
            members: The clients to draw from.
            fraction: The share of them to draw.

        Returns:
            The drawn clients that are present, sorted.
        """
        all_present = members is self.present
        # The order of the members must not change the draw.
        members = in_order(members)
        sample_size = max(round(fraction * len(members)), self.fewest)
        if sample_size < len(members):
            # The smallest id names the group, so groups draw independently of each other.
            generator = numpy_generator(self.seed, Purpose.SAMPLE, self.exchange, members[0])
            # Positions take time in proportion to the sample, and not to all members.
            positions = generator.choice(len(members), size=sample_size, replace=False)
            members = sorted(members[position] for position in positions.tolist())
        # The draw does not depend on who is present: absent clients are dropped after it.
        if all_present:
            return tuple(members)
        return tuple(client for client in members if client in self._present_clients)

    @cached_property
    def _present_clients(self) -> frozenset[Client]:
        """``present`` as a set, which is made once for the samples of all groups."""
        return frozenset(self.present)


@public
@dataclass(frozen=True, kw_only=True)
class Assignment:
    """Which model serves which client.

    Attributes:
        models: Shape ``(k, d)``.
        row: Client -> position in ``models``.
        groups: The clusters.
        path: Client -> positions of all models on its path through the parameter tree, starting at
            the root. Only for clients that have a path.
        ensemble: Serve the clients that have a path by the mean of the outputs of all models on it,
            instead of ``row``.
        part: The part of the plans (``Plan.parts``) whose clients' own values are used; the name of
            a part of a part is ``"outer/inner"``.
        plain: Clients that are served without values of their own.
        neighbours: How a client's nearest training examples take part in serving it; None if they
            do not.
        by_neighbours: The clients that ``neighbours`` is about; None for all.
        hidden: Whether the server does not know which model serves a client: each takes the one of
            lowest loss on its training data. ``row`` and ``groups`` then have all clients at the
            first model. In one process, rounds have what clients choose instead, for the
            experimenter to see.

    Raises:
        ValueError: A client is served by a row that ``models`` does not have, or there are both an
            ensemble and neighbours.

    Example:
        >>> from coterie.core import row_of
        >>> served = Assignment(models=torch.zeros(2, 3), row={4: 0, 5: 1, 7: 0}, groups=((4, 7), (5,)))
        >>> row_of(served.groups) == served.row
        True
    """

    models: torch.Tensor
    row: Mapping[Client, int]
    groups: Groups
    path: Mapping[Client, tuple[int, ...]] = field(default_factory=dict)
    ensemble: bool = False
    part: str = ""
    plain: tuple[Client, ...] | AllBut = ()
    neighbours: Neighbours | None = None
    by_neighbours: tuple[Client, ...] | None = None
    hidden: bool = False

    def __post_init__(self) -> None:
        if self.ensemble and self.neighbours is not None:
            raise ValueError(
                "Assignment.neighbours needs clients that are served by one model each, not by an ensemble"
            )
        # Every row that serves a client, alone or in the client's ensemble, must exist.
        model_count = len(self.models)
        served_rows = set(distinct_values(self.row))
        for row_path in distinct_values(self.path):
            served_rows.update(row_path)
        for row_number in served_rows:
            if not isinstance(row_number, (int, np.integer)) or not 0 <= row_number < model_count:
                description = f"rows 0 to {model_count - 1}" if model_count else "no models"
                raise ValueError(
                    f"Assignment.models has {description}, but a client is served by row {row_number!r}"
                )

    def __repr__(self) -> str:
        return f"<Assignment: {partition(self.groups)} clients, models of shape {tuple(self.models.shape)}>"

    def _repr_html_(self) -> str:
        return table(repr(self)[1:-1], by_group(self.groups))

    def neighbours_of(self, client: Client) -> Neighbours | None:
        """Return how a client's nearest training examples take part in serving it; None if they do not."""
        if self.by_neighbours is None or client in self._clients_by_neighbours:
            return self.neighbours
        return None

    @cached_property
    def _clients_by_neighbours(self) -> frozenset[Client]:
        """``by_neighbours`` as a set: each of many clients is looked up in it."""
        return frozenset(self.by_neighbours or ())

    def serving(self, client: Client) -> tuple[int, ...]:
        """Return the positions of the models that serve a client: one, or those of its ensemble."""
        # Without an ensemble, the path only describes how the client came to its model.
        client_row = (self.row[client],)
        return self.path.get(client, client_row) if self.ensemble else client_row


MethodState = TypeVar("MethodState")
MethodState_contra = TypeVar("MethodState_contra", contravariant=True)


@runtime_checkable
class Method(Protocol[MethodState]):
    """A method of clustered federated learning: settings as fields, and five pure functions.

    ``name`` is its name on the command line. ``init`` makes the state before the first exchange.
    ``plan`` asks clients to work. ``step`` processes the replies, which may be fewer than were
    asked for, or none. ``assignment`` states which model serves each client of the federation.
    ``explain`` gives the reasons of the last step, if there are any.

    ``needs``, a class variable or a property, says what the method asks of engines and clients, see
    :class:`~coterie.core.Needs`. A method without it has the defaults: tasks that train one model as
    the experiment states, without masks and without a map of updates.
    """

    name: ClassVar[str]

    def init(self, federation: Federation) -> MethodState: ...
    def plan(self, state: MethodState, cohort: Cohort) -> Plan: ...
    def step(self, state: MethodState, replies: Replies) -> MethodState: ...
    def assignment(self, state: MethodState) -> Assignment: ...
    def explain(self, state: MethodState) -> tuple[Note, ...]: ...


@runtime_checkable
class Composite(Protocol[MethodState_contra]):
    """A method that runs others (``Needs.inner``), one of which serves the clients.

    ``serving_tasks``: the next tasks of the method that serves them now. Its next plan may lack
    them, because that method waits for the others.
    """

    def serving_tasks(self, state: MethodState_contra, cohort: Cohort) -> tuple[Task, ...]: ...


@public
def serving_tasks(method: Any, state: Any, cohort: Cohort) -> tuple[Task, ...]:
    """Return the next tasks of the method that serves the clients, at any depth of composites."""
    if isinstance(method, Composite):
        return method.serving_tasks(state, cohort)
    # Of a plan with parts, the part whose values the assignment uses.
    served_part = method.assignment(state).part
    # Its next tasks, of all its clients.
    serving_part_tasks: list[Task] = []
    for part_name, part in method.plan(state, cohort).leaves():
        if part_name == served_part:
            serving_part_tasks.extend(part.tasks.values())
    return tuple(serving_part_tasks)


@runtime_checkable
class Admits(Protocol[MethodState]):
    """A method whose clients may join and leave between rounds.

    ``admit``: clients that the state does not contain join; they are new or were away. From now on
    some model serves them, and they find their group as the method prescribes. ``retire``: clients
    that stay away for long are no longer served and belong to no group. The other clients keep what
    was learned from them. ``assignment`` covers the clients that are present.
    """

    def admit(self, state: MethodState, clients: tuple[Client, ...]) -> MethodState: ...
    def retire(self, state: MethodState, clients: tuple[Client, ...]) -> MethodState: ...
