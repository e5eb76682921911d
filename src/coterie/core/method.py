"""What a method is: five pure functions, what it is told, and what it tells."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Protocol, TypeVar, runtime_checkable

from torch import Tensor

from coterie.core.messages import Plan, Replies, Training
from coterie.core.state import Client, Groups
from coterie.randomness import Purpose, numpy_generator


@dataclass(frozen=True, kw_only=True)
class Federation:
    """What a method is told once.

    clients: their ids, sorted. draw: ``draw(i)`` is the i-th fresh model ``(d,)``, the same at every call. columns: layer
    name -> ``(start, stop)`` of its parameters in a row; parameters come first, float buffers (BatchNorm's) after them.
    tensors: the same for each trainable tensor, a layer's weight and bias apart. dense: the names of the fully-connected
    layers. Layers are in the order of the forward pass as far as the module tells, so the last is the classifier.
    training: how clients train where a task says nothing else.
    """

    clients: tuple[Client, ...]
    draw: Callable[[int], Tensor]
    columns: Mapping[str, tuple[int, int]]
    tensors: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    dense: tuple[str, ...] = ()
    training: Training = field(default_factory=Training)

    @property
    def parameters(self) -> slice:
        """The columns that similarity sees: every trainable parameter, no buffer."""
        return slice(0, max(stop for _, stop in self.columns.values()))


@dataclass(frozen=True, kw_only=True)
class Cohort:
    """Who can be asked in this exchange, and the randomness to choose among them."""

    present: tuple[Client, ...]
    exchange: int
    seed: int

    def sample(self, members: Iterable[Client], fraction: float) -> tuple[Client, ...]:
        """``max(round(fraction * |members|), 1)`` of the members at random, of those present; sorted.

        Depends on the seed, the exchange and the members alone (FL+HC §II: at least one client per group).
        """
        members = sorted(members)
        count = max(round(fraction * len(members)), 1)
        if count < len(members):
            rng = numpy_generator(self.seed, Purpose.SAMPLE, self.exchange, members[0])
            members = sorted(int(c) for c in rng.choice(members, size=count, replace=False))
        present = set(self.present)
        return tuple(c for c in members if c in present)


@dataclass(frozen=True, kw_only=True)
class Assignment:
    """Which model serves which client: models ``(k, d)``; row: client -> position in ``models``; groups: the clusters.

    path: client -> positions of every model on its path through the parameter tree, the root's first; for those who have
    one. ensemble: serve those clients by the mean of the outputs of all models on their paths, in place of ``row``.
    """

    models: Tensor
    row: Mapping[Client, int]
    groups: Groups
    path: Mapping[Client, tuple[int, ...]] = field(default_factory=dict)
    ensemble: bool = False


@dataclass(frozen=True, kw_only=True)
class Note:
    """Why a method did or did not act, for people and for records.

    kind: ``"split"``, ``"cluster"``, ``"join"``, ``"keep"``, ... clients: the group it is about. parts: the groups it
    became. text: one sentence with the numbers compared; numbers: the same, by name. values: numbers of each client, by
    name. similarity: matrices ``(n, n)`` that the decision rests on, by layer or ``all``; their rows are the clients
    ``heard``, in that order, which are ``clients`` where nothing is said. ValueError where they are not as many.
    """

    kind: str
    clients: tuple[Client, ...]
    text: str
    parts: Groups = ()
    numbers: Mapping[str, float] = field(default_factory=dict)
    values: Mapping[str, Mapping[Client, float]] = field(default_factory=dict)
    similarity: Mapping[str, Tensor] = field(default_factory=dict)
    heard: tuple[Client, ...] = ()

    def __post_init__(self) -> None:
        rows = len(self.order)
        for name, matrix in self.similarity.items():
            if tuple(matrix.shape) != (rows, rows):
                raise ValueError(f"Note.similarity {name!r} is {tuple(matrix.shape)}, and {rows} clients were heard")

    @property
    def order(self) -> tuple[Client, ...]:
        """The clients in the order of the rows of ``similarity``."""
        return self.heard or self.clients


S = TypeVar("S")


@runtime_checkable
class Method(Protocol[S]):
    """A method of clustered federated learning: settings as fields, five pure functions.

    ``name`` is what the command line calls it. ``init`` makes the state before the first exchange; ``plan`` asks;
    ``step`` digests the replies, which may be fewer than asked, or none; ``assignment`` tells who is served by which
    model, of every client of the federation; ``explain`` gives the reasons of the last step, if it had any.
    """

    name: ClassVar[str]

    def init(self, federation: Federation) -> S: ...
    def plan(self, state: S, cohort: Cohort) -> Plan: ...
    def step(self, state: S, replies: Replies) -> S: ...
    def assignment(self, state: S) -> Assignment: ...
    def explain(self, state: S) -> tuple[Note, ...]: ...


@runtime_checkable
class Admits(Protocol[S]):
    """A method whose clients may come and go between rounds.

    ``admit``: clients the state does not know join, new ones or such as were away. They are served by some model from
    now on, and find their group as the method says. ``retire``: clients that are gone for long are no longer served, and
    belong to no group; what others learned from them stays. ``assignment`` speaks of those who are there.
    """

    def admit(self, state: S, clients: tuple[Client, ...]) -> S: ...
    def retire(self, state: S, clients: tuple[Client, ...]) -> S: ...
