"""Any method as a strategy of Flower's: plans go out as messages, replies come back as what a step sees."""

from __future__ import annotations

import json
import logging
import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import asdict, dataclass, field, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from flwr.app import ArrayRecord, ConfigRecord, Error, Message, MessageType, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy
from google.protobuf.message import DecodeError
from torch import Tensor, nn

from coterie.boundary import Boundary, Wire
from coterie.core import Assignment, Cohort, Federation, Method, Position, Replies, Round, Training
from coterie.data.scenario import FEDERATION
from coterie.engines.flower import messages
from coterie.engines.flower.exchange import Carrier
from coterie.engines.flower.messages import CONFIG, FIRST, Rest
from coterie.engines.flower.nodes import CLAIMED, Identity, NodeMemory, Nodes, Post, Waiting, from_file
from coterie.engines.rounds import Clock, Roster, Steps, carry, round_steps
from coterie.engines.workers import EngineError
from coterie.files import read_within, within
from coterie.methods import method_class
from coterie.models import nets
from coterie.models.layout import Layout
from coterie.printable import printable_record
from coterie.randomness import seeded
from coterie.records import checksum
from coterie.records.codec import DamagedError
from coterie.records.record import NODES, OTHERS, RUN, Record, versions
from coterie.records.store import CHECKED, LOCK, PART, held, write_whole
from coterie.robust import Robust
from coterie.settings import SettingError, UserError, build, plain

METRICS: Mapping[str, tuple[str, ...]] = {
    "loss": ("loss", "eval_loss", "test_loss", "val_loss"),
    "accuracy": ("accuracy", "eval_acc", "eval_accuracy", "acc", "test_acc", "test_accuracy", "val_acc", "val_accuracy"),
}
"""Metric -> the names that apps may have for it; the first one there counts."""

_OWN = ("nodes", "wait", "timeout", "min-replies", "grace", "identity", "patience", "seed", "eval-every", "out")


def _table(config: Mapping[str, Any], name: str) -> dict[str, Any]:
    """The settings in a table of a run config, which Flower flattens: ``cfl.eps1`` is eps1 of cfl."""
    return {key.removeprefix(f"{name}."): _listed(value) for key, value in config.items() if key.startswith(f"{name}.")}


def _listed(value: Any) -> Any:
    """A run config has no lists: numbers with commas between them, or one and a comma, are one."""
    if not isinstance(value, str) or "," not in value:
        return value
    try:
        return tuple(json.loads(part) for part in value.split(",") if part.strip())
    except ValueError:
        return value


class MethodStrategy(Strategy):
    """A Coterie method over Flower: one model per cluster or client, several in one message where a task offers them.

    method: with its settings. model: makes the clients' net. training: how clients train that know of Coterie; of it other
    apps are told the learning rate, as ``config["lr"]``. nodes: how many must be connected before the first round; ``wait``
    seconds at most. timeout: seconds an exchange may take; who has not answered is silent, and after ``patience`` rounds of
    silence away. min_replies, grace: once this share of the clients has answered, the others have ``grace`` times as long
    again as that took, and 60 seconds at least. identity: which node is which client: ``"claimed"``, whichever it says;
    ``"first"``, for good the first node, by its key, that says so; or client -> public key file, fingerprint or node id (see
    ``coterie.engines.flower.nodes``). seed: of everything random. eval_every: rounds between tests. metrics: metric ->
    the names that apps give it. boundary: what clients do to rows (:func:`~coterie.engines.flower.boundary_mod`). robust:
    bounds on what one client can do to the others (:class:`~coterie.robust.Robust`). out: a run directory, for records and
    checkpoints; if a run of this method is there already, it goes on.

    After :meth:`start`, ``assignment`` has the groups and their models, and ``last`` is the last round.
    """

    def __init__(
        self,
        method: Method[Any],
        model: Callable[[], nn.Module],
        *,
        training: Training | None = None,
        nodes: int = 2,
        wait: float = 600.0,
        timeout: float = 3600.0,
        min_replies: float = 0.8,
        grace: float = 2.0,
        identity: str | Mapping[int, Any] | Identity = CLAIMED,
        patience: int = 10,
        seed: int = 0,
        eval_every: int = 1,
        metrics: Mapping[str, Sequence[str]] | None = None,
        boundary: Boundary | None = None,
        robust: Robust | None = None,
        out: Path | str | None = None,
    ) -> None:
        whole = (("nodes", nodes, 1), ("patience", patience, 1), ("seed", seed, 0), ("eval_every", eval_every, 1))
        for name, value, least in whole:
            if type(value) is not int or value < least:
                raise SettingError(f"MethodStrategy.{name} must be a whole number >= {least}, got {value!r}")
        if isinstance(wait, bool) or not isinstance(wait, (int, float)) or not 0 < wait < 1e9:
            raise SettingError(f"MethodStrategy.wait must be a number of seconds > 0, got {wait!r}")
        self.terms = Terms(
            method=method, model=model, training=training or Training(), nodes=nodes, wait=wait,
            waiting=Waiting(timeout=timeout, min_replies=min_replies, grace=grace), identity=Identity.of(identity),
            patience=patience, seed=seed, eval_every=eval_every, boundary=boundary or Boundary(), robust=robust or Robust(),
            names={**METRICS, **{name: tuple(names) for name, names in (metrics or {}).items()}},
        )  # fmt: skip
        self.out = out
        self._conductor: Conductor | None = None
        self._configs: dict[str, Mapping[str, Any]] = {}
        self._steps: Steps | None = None
        self._stored: Assignment | None = None

    @property
    def last(self) -> Round | None:
        """The last round there was."""
        return self._conductor.last if self._conductor else None

    @property
    def assignment(self) -> Assignment | None:
        """Who is served by which model now."""
        return self.last.assignment if self.last else self._stored

    @classmethod
    def from_config(cls, config: Mapping[str, Any], model: Callable[[], nn.Module], **how: Any) -> MethodStrategy:
        """By Flower's run config: ``method`` is a name of :data:`coterie.METHODS`, ``<method>.<setting>`` and
        ``training.<setting>``, ``boundary.<setting>`` and ``robust.<setting>`` are settings, ``metrics.<metric>`` is the name
        that apps give a metric, and ``nodes``, ``wait``, ``timeout``, ``min-replies``, ``grace``, ``identity``, ``patience``,
        ``seed``, ``eval-every`` and ``out`` are those of this class. ``clients`` is the path of a TOML file with the list for
        ``identity``. An app may have other keys of its own. how: what takes precedence. Raises
        :class:`~coterie.settings.UserError`."""
        name = str(config.get("method", "cfl"))
        made = build(method_class(name), _table(config, name))
        own = {key.replace("-", "_"): value for key, value in config.items() if key in _OWN and value != ""}
        if config.get("clients"):
            own["identity"] = from_file(str(config["clients"]))
        own["training"] = build(Training, _table(config, "training"))
        own["boundary"] = build(Boundary, _table(config, "boundary"))
        own["robust"] = build(Robust, _table(config, "robust"))
        own["metrics"] = {metric: str(called).split(",") for metric, called in _table(config, "metrics").items()}
        return cls(made, model, **{**own, **how})

    # -- rounds -----------------------------------------------------------------------------------------------------------

    def rounds(
        self,
        grid: Grid,
        rounds: int,
        *,
        start: Position | None = None,
        memory: NodeMemory | None = None,
        initial: ArrayRecord | None = None,
        roster: Roster | None = None,
    ) -> Iterator[Round]:
        """Yield each communication round up to number ``rounds``. start, memory: go on from there, with what was known of
        the nodes then. initial: the first model, in place of a fresh one. roster: who is there when, where that is not
        simply who is connected."""
        here = self._conductor = Conductor(
            self.terms, grid, start=start, memory=memory, initial=initial, roster=roster, configs=self._configs
        )
        while here.position.round < rounds:
            yield here.round(here.position.round + 1 == rounds)

    # -- Flower's interface -------------------------------------------------------------------------------------------------

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord | None = None,
        num_rounds: int = 3,
        timeout: float | None = None,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: Callable[[int, ArrayRecord], MetricRecord | None] | None = None,
    ) -> Result:
        """Run it: rounds are recorded in ``out`` and logged. The result's arrays are the model of the largest group.

        train_config, evaluate_config: what apps find in ``config`` besides the learning rate and the round.
        """
        if timeout is not None:
            self.terms = replace(self.terms, waiting=replace(self.terms.waiting, timeout=timeout))
        self._configs = {"train": train_config or {}, "evaluate": evaluate_config or {}}
        self.summary()
        result = Result()
        with ExitStack() as stack:
            journal = stack.enter_context(Journal(self.out, self.terms, num_rounds)) if self.out is not None else None
            start, memory = journal.stored() if journal else (None, None)
            if start is not None and start.round >= num_rounds:
                return self._finished(start, result)
            for done in self.rounds(grid, num_rounds, start=start, memory=memory, initial=initial_arrays):
                if journal:
                    assert self._conductor is not None
                    journal.keep(done, self._conductor.memory)
                self._tell(done, result)
                if evaluate_fn and (found := evaluate_fn(done.number, result.arrays)) is not None:
                    result.evaluate_metrics_serverapp[done.number] = found
        return result

    def _finished(self, at: Position, result: Result) -> Result:
        """Of a run that has all its rounds already: nobody is waited for."""
        log.info("%s has its %d rounds already", self.out, at.round)
        self._stored = self.terms.method.assignment(at.state)
        result.arrays = self._largest(self._stored)
        return result

    def _tell(self, done: Round, result: Result) -> None:
        result.arrays = self._largest(done.assignment)
        result.train_metrics_clientapp[done.number] = MetricRecord({
            "groups": len(done.assignment.groups), "asked": done.asked, "answered": done.answered,
            "bytes-up": done.bytes_up, "bytes-down": done.bytes_down,
        })  # fmt: skip
        said = f"round {done.number}: {done.answered} of {done.asked} answered, {len(done.assignment.groups)} groups"
        if done.scores:
            each = [score["accuracy"] for score in done.scores.values() if score["accuracy"] == score["accuracy"]]
            if each:
                said += f", mean accuracy {sum(each) / len(each):.3f}"
                found: dict[str, Any] = {"accuracy": sum(each) / len(each), "least-accuracy": min(each)}
                result.evaluate_metrics_clientapp[done.number] = MetricRecord(found)
        log.info(said)
        for client, why in sorted(done.refused.items()):
            log.warning("client %s refused: %s", client, why)
        for note in done.notes:
            log.info("%s: %s", note.kind, note.text)

    def _largest(self, served: Assignment) -> ArrayRecord:
        group = max(served.groups, key=len)
        return messages.packed(served.models[served.row[group[0]]], self.terms.layout, self.terms.rest)

    # Strategy.start of Flower's own calls these in turn. It knows neither run directories nor the last round, which is
    # tested only where ``eval_every`` has it.

    def configure_train(self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid) -> Iterable[Message]:
        """The messages of a round's last exchange; those before it are carried out here."""
        if self._conductor is None:
            self._conductor = Conductor(self.terms, grid, initial=arrays, configs=self._configs)
        carrier, clock = self._conductor.carrier, Clock()
        self._steps = self._conductor.steps(clock)
        self._plan, self._at = next(self._steps)
        while not self._plan.ends_round:
            self._plan, self._at = self._steps.send((carrier.exchange(self._plan, self._at, clock), {}))
        return carrier.outgoing(self._plan, self._at)

    def aggregate_train(self, server_round: int, replies: Iterable[Message]) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Take the step; the largest group's model, and how many answered."""
        if self._conductor is None or self._steps is None:
            raise EngineError("aggregate_train needs configure_train before it")
        heard = self._conductor.carrier.incoming(self._plan, replies, self._at.exchange)
        done = self._conductor.ended(_last(self._steps, heard))
        return self._largest(done.assignment), MetricRecord({"asked": done.asked, "answered": done.answered})

    def configure_evaluate(self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid) -> Iterable[Message]:
        """Every client gets the model that serves it."""
        if self._conductor is None or self.last is None or server_round % self.terms.eval_every:
            return []
        return self._conductor.carrier.tests(self.last.assignment, self.last.position)

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """The mean over clients."""
        if self._conductor is None or self.last is None:
            return None
        scores = self._conductor.carrier.scores(self.last.assignment, replies)
        values = {name: [s[name] for s in scores.values() if s[name] == s[name]] for name in self.terms.names}
        return MetricRecord({name: sum(each) / len(each) for name, each in values.items() if each})

    def summary(self) -> None:
        """Log what will run."""
        log.info("%s with %s", self.terms.method, self.terms.training)
        if self.terms.identity.rule == CLAIMED:
            log.info("identity is claimed: every node is the client that it says, and nothing proves it")


def _last(steps: Steps, replies: Replies) -> Round:
    """What a round's steps come to after their last exchange."""
    try:
        steps.send((replies, {}))
    except StopIteration as end:
        done: Round = end.value
        return done
    raise EngineError("a round went on after the exchange that ends it")


# ----------------------------------------------------------------------------------------------------
# A method's rounds over a grid: who is there, what they are told, and what comes of it.


log = logging.getLogger("flwr.coterie")
"""Below Flower's own, so that its handlers show what is logged."""
log.addFilter(printable_record)  # it quotes what clients say


WITNESSES = 5
"""So many clients are asked for the first model under a rotation; two of them may be hostile, or have another secret."""


@dataclass(frozen=True, kw_only=True)
class Terms:
    """What a federation is run by: see :class:`~coterie.engines.flower.MethodStrategy`, which has the same names."""

    method: Method[Any]
    model: Callable[[], nn.Module]
    training: Training
    nodes: int
    wait: float
    waiting: Waiting
    identity: Identity
    patience: int
    seed: int
    eval_every: int
    names: Mapping[str, Sequence[str]]
    boundary: Boundary
    robust: Robust = field(default_factory=Robust)
    wire: Wire = field(init=False)
    rest: messages.Rest = field(init=False)

    def __post_init__(self) -> None:
        self.boundary.check_method(self.method)
        if self.boundary.secret is not None:
            raise SettingError("Boundary.secret is for the clients alone, and the server's strategy got one; leave it out")
        with seeded(0):
            module = self.model()
        layout = Layout(module)
        object.__setattr__(self, "wire", Wire(self.boundary, layout, self.seed))
        object.__setattr__(self, "rest", messages.Rest.of(module, layout))

    @property
    def layout(self) -> Layout:
        return self.wire.layout


class Conductor:
    """The rounds of one run, one after the other. start, memory: go on from there, with what was known then.

    Waits for the nodes first. ``position`` is where the run stands, ``last`` its last round.
    """

    def __init__(
        self, terms: Terms, grid: Grid, *, configs: Mapping[str, Mapping[str, Any]], start: Position | None = None,
        memory: NodeMemory | None = None, initial: ArrayRecord | None = None, roster: Roster | None = None,
    ) -> None:  # fmt: skip
        grid = CarefulGrid(grid)
        if initial and terms.boundary.rotation != "none" and start is None:
            raise SettingError(
                f"Boundary.rotation {terms.boundary.rotation} hides the first model too, and the server's strategy got one; "
                "let the function that makes the net load it, at every client"
            )
        self.terms, self.initial, self.roster = terms, initial, roster
        self.drawn: dict[int, Tensor] = {}
        memory = memory or NodeMemory()
        self.post = Post(grid)
        identity = terms.identity.going_on(memory.owners, memory.nodes)
        self.nodes = Nodes(self.post, terms.waiting, identity, before=memory.nodes)
        online = self.nodes.wait(terms.nodes, terms.wait, log.info)
        self.carrier = Carrier(
            post=self.post, wire=terms.wire, training=terms.training, seed=terms.seed, nodes=self.nodes, rest=terms.rest,
            waiting=terms.waiting, names=terms.names, method=terms.method.name, online=online, patience=terms.patience,
            robust=terms.robust, configs=configs, run=memory.run, layers=dict(memory.layers),
        )  # fmt: skip
        self.position = start or self._first(online)
        self.last: Round | None = None

    def _first(self, online: frozenset[int]) -> Position:
        founders = self.roster.attendance.founders(self.roster.clients) if self.roster else tuple(sorted(online))
        method = self.terms.method
        state = method.init(self._federation(founders))
        cohort = Cohort(present=founders, exchange=0, seed=self.terms.seed)
        messages.check(method, method.plan(state, cohort), self.nodes.aware)
        return Position(round=0, exchange=0, state=state, members=founders)

    def _federation(self, clients: tuple[int, ...]) -> Federation:
        layout, rotated = self.terms.layout, self.terms.boundary.rotation != "none"
        federation = Federation(
            clients=clients, draw=self._sealed if rotated else self._drawn, columns=layout.columns, tensors=layout.tensors,
            dense=layout.dense, training=self.terms.training,
        )  # fmt: skip
        return self.terms.wire.veil(federation, sealed=rotated)

    def _drawn(self, i: int) -> Tensor:
        if i == 0 and self.initial:
            try:
                row = messages.unpacked(self.initial, self.terms.layout)
            except messages.Unfit as error:
                raise SettingError(f"the initial arrays are not of the strategy's model: {error}") from None
            if not torch.isfinite(row).all():
                raise SettingError("the initial arrays have a NaN or infinite entry")
            return row
        return self.terms.wire.first_model(i, self.terms.model)

    def _sealed(self, i: int) -> Tensor:
        """The i-th first model as clients draw and seal it: all do the same, but the server cannot."""
        if i in self.drawn:
            return self.drawn[i]
        config, some = ConfigRecord({FIRST: i, "seed": self.terms.seed}), sorted(self.nodes.look())[:WITNESSES]
        asked = [
            Message(RecordDict({CONFIG: config}), dst_node_id=self.nodes.node(client), message_type=MessageType.TRAIN)
            for client in some
        ]
        row = self.carrier.first_model(self.carrier.ask(asked), self.terms.model)
        if row is not None:
            self.drawn[i] = row
            return row
        raise EngineError(
            f"no client drew the first model under rotation {self.terms.boundary.rotation}: their apps need the mod "
            "boundary_mod with the strategy's boundary and a secret"
        )

    # -- rounds -----------------------------------------------------------------------------------------------------------

    def round(self, final: bool) -> Round:
        """One communication round: its exchanges, and the test."""
        clock = Clock()
        done = carry(self.steps(clock), lambda plan, at: (self.carrier.exchange(plan, at, clock), {}))
        if final or done.number % self.terms.eval_every == 0:
            with clock("evaluate"):
                done = replace(done, scores=self.carrier.evaluate(done.assignment, done.position))
        return self.ended(done)

    def steps(self, clock: Clock) -> Steps:
        """The next round's exchanges, with those who are connected now; if nobody is, after a wait as at the start.

        Who was retired for its silence is not there again because it is connected, but once it answers something; if that
        leaves nobody, all are."""
        terms = self.terms
        connected = self.nodes.look() or self.nodes.wait(1, terms.wait, log.info)
        self.carrier.online = self.nodes.awake(connected, self.position.members) or connected
        return round_steps(terms.method, self.roster or self.carrier, terms.wire, self.position, terms.seed, clock)

    @property
    def memory(self) -> NodeMemory:
        """What it takes to go on, besides the position."""
        nodes, owners = {**self.nodes.before, **self.nodes.client}, dict(self.nodes.identity.owners)
        return NodeMemory(self.carrier.run, nodes, dict(self.carrier.layers), owners)

    def ended(self, done: Round) -> Round:
        """The round, with what has happened to nodes; it is the last one now."""
        self.last = replace(done, notes=(*self.nodes.taken(), *done.notes))
        self.position = done.position
        return self.last


# ----------------------------------------------------------------------------------------------------
# A grid that goes on where a node's answer is no message at all.
#
# Flower makes messages of what nodes have uploaded as it fetches them, all that have come at once. The upload of one node that
# cannot be made a message raises then, and the others' answers, which the SuperLink gives out once, are lost with it.


MALFORMED = (ValueError, LookupError, TypeError, AttributeError, ArithmeticError, AssertionError, RecursionError, DecodeError)
"""What is raised in making a message of the wrong bytes; that the SuperLink cannot be reached is another matter."""

KNOWN = 10_000
"""Of so many messages, the newest, it is known whom they went to."""

UNREADABLE = "its answer is no message of Flower's"


class CarefulGrid(Grid):
    """Another grid, but that a malformed answer is an error of the node that has sent it.

    The first such answer loses those that came with it: their nodes are silent once. From then on answers are fetched one by
    one, which takes a request for each, and nobody's is lost with another's.
    """

    def __init__(self, grid: Grid) -> None:
        self.grid, self.singly = grid, False
        self.sent: dict[str, Message] = {}

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        ids = list(message_ids)
        if not self.singly:
            try:
                return list(self.grid.pull_messages(ids))
            except MALFORMED as error:
                log.warning("an answer is no message (%s); from now on answers are fetched one by one", type(error).__name__)
                self.singly = True
        return [reply for id in ids for reply in self._pulled(id)]

    def _pulled(self, id: str) -> list[Message]:
        try:
            return list(self.grid.pull_messages([id]))
        except MALFORMED as error:
            asked = self.sent.get(id)
            return [] if asked is None else [Message(Error(2, f"{UNREADABLE}: {type(error).__name__}"), reply_to=asked)]

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        """Send, each message with a word that nobody but its node can know.

        Whose answer it is, and to which message, Flower's grid takes from what the node has uploaded. The message's name is a
        hash of its content, which others could compute, and answer in its node's place.
        """
        messages = list(messages)
        for message in messages:
            message.metadata.group_id = message.metadata.group_id or secrets.token_hex(8)
        ids = list(self.grid.push_messages(messages))
        for message in messages:  # who was asked what, without the models
            about = message.metadata
            light = Message(RecordDict(), dst_node_id=about.dst_node_id, message_type=about.message_type)
            light.metadata.__dict__["_message_id"] = about.message_id
            self.sent[about.message_id] = light
        for old in list(self.sent)[:-KNOWN]:
            del self.sent[old]
        return ids

    # -- as the other grid has it ---------------------------------------------------------------------------------------------

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        return self.grid.send_and_receive(messages, timeout=timeout)

    def get_node_ids(self) -> Iterable[int]:
        return self.grid.get_node_ids()

    def get_nodes(self) -> Any:
        return self.grid.get_nodes()

    def set_run(self, run: Any) -> None:
        self.grid.set_run(run)

    @property
    def run(self) -> Any:
        return self.grid.run

    def create_message(self, *content: Any, **about: Any) -> Message:
        return self.grid.create_message(*content, **about)


# ----------------------------------------------------------------------------------------------------
# The run directory of a federation: what is recorded of it, and where it goes on after the server was stopped.


class Journal(AbstractContextManager["Journal"]):
    """The records of a strategy's run in its folder ``out``; begun, or opened again where the settings are the same.

    Raises :class:`~coterie.settings.UserError` where the folder is of another run.
    """

    def __init__(self, folder: Path | str, terms: Terms, rounds: int) -> None:
        self.folder, self.record = Path(folder), Record(folder)
        self.terms, self.rounds, self.stack = terms, rounds, ExitStack()

    def __enter__(self) -> Journal:
        own = {NODES, OTHERS, LOCK, RUN}  # of a run that was stopped in its first round
        there = {path.name.removesuffix(PART) for path in self.folder.iterdir()} if self.folder.is_dir() else set()
        if self.folder.exists() and not self.record.begun and (there - own or not self.folder.is_dir()):
            raise UserError(f"{self.folder} is there already and no run directory; name another")
        self.folder.mkdir(parents=True, exist_ok=True)
        self.stack.enter_context(held(self.folder))
        return self

    def __exit__(self, *error: object) -> None:
        self.stack.close()

    def stored(self) -> tuple[Position | None, NodeMemory | None]:
        """Where the run stands, and what was known of the nodes; nothing of a new one."""
        if not self.record.begun:
            return None, None
        was = self.record.description()
        for name, value in {**self._settings(), **self._tensors(was)}.items():
            if told := _change(name, was.get(name), value):
                raise UserError(f"{self.folder} cannot go on: its {told}")
        found = self.record.go_on(Position, every=1)
        self._describe_anew(was, found[0] if found else 0)
        return (found[1] if found else None), read_memory(self.folder, was["schema"] >= CHECKED)

    def keep(self, done: Round, memory: NodeMemory) -> None:
        """Record a round and store its checkpoint."""
        if not self.record.begun:
            self._describe(done)
        write_whole(self.folder / NODES, checksum.sealed_json(json.dumps(asdict(memory)).encode()))
        self.record.keep(done)
        self.record.store(done.number, done.position)

    def _settings(self) -> dict[str, Any]:
        terms = self.terms
        return {
            "methods": [{"name": terms.method.name, **plain(terms.method)}], "training": plain(terms.training),
            "boundary": plain(terms.boundary), "robust": plain(terms.robust), "seeds": [terms.seed],
        }  # fmt: skip

    def _tensors(self, was: Mapping[str, Any]) -> dict[str, Any]:
        """The net's tensors, to be compared where the record tells them."""
        before = was["world"].get("net")
        return {} if before is None else {"world": {"net": {"tensors": tensors_of(self.terms.model)[0]["tensors"]}}}

    def _describe(self, done: Round) -> None:
        world = {"clients": sorted(done.position.members), **self._net()}
        self.record.describe({
            "scenario": {"name": FEDERATION}, "rounds": self.rounds, "eval_every": self.terms.eval_every,
            **self._settings(), "world": world, "versions": {**versions(), "flwr": version("flwr")},
        })  # fmt: skip

    def _describe_anew(self, was: Mapping[str, Any], reached: int) -> None:
        """What may be otherwise than when the run began: when it ends, and what an earlier Coterie did not tell of the net."""
        now = {**was, "rounds": max(self.rounds, reached), "eval_every": self.terms.eval_every}
        if was["schema"] < CHECKED and not {"model", "net"} & set(was["world"]):
            now["world"] = {**was["world"], **self._net()}
        if now != was:
            self.record.describe(now)

    def _net(self) -> dict[str, Any]:
        """What it takes to make a net like the clients', or if that has no name, the tensors of its state dict."""
        if (model := nets.described(self.terms.model)) is not None:
            return {"model": model}
        net, others = tensors_of(self.terms.model)
        if others:
            data = safetensors.torch.save(others)
            write_whole(self.folder / OTHERS, data)
            net |= {"others": OTHERS, "others_checksum": checksum.digest(data)}
        return {"net": net}


def read_memory(folder: Path, checked: bool) -> NodeMemory | None:
    """What was known of the nodes, or None of an earlier Coterie. checked: the file must have a checksum."""
    path = within(folder, NODES)
    if not path.exists():
        return None
    try:
        data = read_within(folder, NODES)
        checksum.check_json(data, path, needed=checked)
        found = json.loads(data)
        nodes, layers = ({int(key): int(value) for key, value in found[name].items()} for name in ("nodes", "layers"))
        owners = {int(key): str(badge) for key, badge in found.get("owners", {}).items()}  # an earlier Coterie has none
        return NodeMemory(str(found["run"]), nodes, layers, owners)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise DamagedError(f"{path} is damaged ({error})") from error


def tensors_of(model: Callable[[], nn.Module]) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """A net's ``tensors``, in the order of a row; ``trainable``, how many of them are, the first ones; ``tied``, the other
    names of those that have several. And what has no place in a row, such as BatchNorm's count of batches."""
    with seeded(0):
        module = model()
    layout, whole = Layout(module), module.state_dict()
    rest = Rest.of(module, layout)
    tensors = [
        {"name": piece.name, "shape": list(piece.shape), "dtype": str(whole[piece.name].dtype).removeprefix("torch.")}
        for piece in layout.pieces
    ]
    tied = {"tied": dict(rest.tied)} if rest.tied else {}
    return {"trainable": len(layout.tensors), "tensors": tensors, **tied}, dict(rest.others)


def _change(name: str, was: Any, now: Any) -> str | None:
    """How a setting is another than it was; of a table, the first that is."""
    if name == "methods" and isinstance(was, list) and len(was) == 1:
        return _change("method", was[0], now[0])
    if isinstance(was, Mapping) and isinstance(now, Mapping):
        told = (_change(f"{name}.{key}", was[key], value) for key, value in now.items() if key in was)
        return next(filter(None, told), None)
    verbs = ("were", "are") if isinstance(now, list) else ("was", "is")
    return f"{name} {verbs[0]} {was}, and now {verbs[1]} {now}" if was != now else None
