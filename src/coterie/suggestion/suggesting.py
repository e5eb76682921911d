"""From a probing round, the thresholds that FL+HC, ACFL and CFL would need, and how sure that is."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from coterie.clustering import (
    adjusted_rand,
    congruent_groups,
    cosine,
    distances,
    gram,
    labels_of,
    manhattan,
    reliability,
)  # fmt: skip
from coterie.codec import from_stored
from coterie.core import Assignment, Client, Federation, Groups, Replies, as_groups
from coterie.engines.fleet import Fleet
from coterie.engines.inprocess import meeting
from coterie.experiment import data_folder
from coterie.methods import ACFL, FLHC, SplitHalf
from coterie.methods.acfl_groups import Rule, layers_compared
from coterie.methods.split_half_groups import Evidence, confirmed, together
from coterie.runs import Run, reopen, world_facts
from coterie.settings import SettingError, UserError
from coterie.suggestion.asking import Clients, Start, start_of, stored
from coterie.suggestion.criteria import Probe, advise, course
from coterie.suggestion.results import ROOM, Advice, Finding, Suggestion, labels, without
from coterie.suggestion.thresholds import Geometry

FLHC_TRIED = (("l2", "ward"), ("l1", "complete"), ("cosine", "average"))
"""Metrics and linkages: FL+HC's default, its paper's advice, and one for which the length of updates does not matter."""

EPOCHS = (ACFL().pretrain_epochs, 10)
"""Of ACFL's first training: its default's; where that leaves no clear threshold, more."""


EXCHANGES = 9
"""A suggestion takes so many at most; the last two only where ACFL's first epochs leave no clear threshold."""


def suggest(
    run: Path | str, *, data: Path | str | None = None, workers: int | None = None, told: Callable[[], None] | None = None,
    trust_code: bool = False, secret: int | None = None,
) -> Suggestion:  # fmt: skip
    """What FL+HC, ACFL and CFL would have to be set to, to find the groups that the split-half test finds in a run.

    Its clients are asked for a few exchanges, from the model of its newest checkpoint and from its first; nothing of the run is
    changed, and asking again gives the same.

    Args:
        run: A run directory, of any method, with a completed round.
        data: Folder of the data set's files, where it is no longer the run's.
        workers: Processes that train; changes no result.
        told: Is called after each exchange, of which there are at most ``EXCHANGES``.
        trust_code: Lets a model be imported that the run directory names as ``package.module:Name``.
        secret: The boundary's, where the run had one; else the environment's COTERIE_SECRET.

    Raises:
        UserError: It is no run directory, holds several runs, is of a federation, is damaged, or has no completed round; the
            data are not what they were; fewer than two clients can be halved; or code or a secret is needed and was not given.
    """
    one = _only(run, trust_code, secret)
    one.experiment.check_secret()
    position = stored(one)
    federation, fleet = _meet(one, data, workers)
    with from_stored(one.record.checkpoints.path(position.round)):
        assignment: Assignment = one.method.assignment(position.state)
        start = start_of(assignment, position, one.record.lines())
        if strangers := set(position.members) - set(fleet.world.clients):
            raise ValueError(f"there is no client {min(strangers)}")
        if start.model.shape != (size := fleet.wire.layout.size,):
            raise ValueError(f"a model has shape {tuple(start.model.shape)}, and not ({size},)")
    with fleet:
        asked = _Asked(one, Clients(fleet, federation.parameters, position, one.seed, told), federation, start)
        finding, probes = asked.found()
        advice = tuple(asked.advice(finding, probes))
    return Suggestion(
        run=str(run), method=one.method.name, scenario=one.experiment.scenario, seed=one.seed, start=start.words,
        round=start.round, finding=finding, advice=advice, caveats=tuple(_caveats(start, finding, assignment.groups)),
        left_out=asked.clients.left_out, exchanges=asked.clients.asked,
    )  # fmt: skip


def _only(folder: Path | str, trust_code: bool, secret: int | None) -> Run:
    """The run in ``folder``, which must be the only one."""
    runs = reopen(folder, trust_code=trust_code, secret=secret)
    if len(runs) > 1:
        raise UserError(f"{folder} holds {len(runs)} runs, and a suggestion is for one: name it, as {runs[0].folder}")
    one = runs[0]
    if one.record.begun and "data" not in one.record.description()["world"]:
        raise UserError(
            f"{folder} is of a federation, whose clients are elsewhere and cannot be asked for a probe here; "
            f"there, method {SplitHalf.name} probes by itself and needs no thresholds"
        )
    return one


def _meet(run: Run, data: Path | str | None, workers: int | None) -> tuple[Federation, Fleet]:
    """What a method is told of the run's clients, and the processes that train them on the data they had."""
    experiment = replace(run.experiment, data=data_folder(data or run.experiment.data))
    world = experiment.world(run.seed)
    facts = world_facts(world)
    if any(facts.get(name) != known for name, known in run.record.description()["world"].items()):
        raise UserError(f"{run.folder} cannot be probed: the scenario's clients or data are not what they were")
    hardware = experiment.hardware(workers)
    hardware.check(world)
    wire, federation = meeting(run.method, world, run.seed, experiment.boundary)
    return federation, Fleet(world, wire, hardware)


def _found(first: Evidence, second: Evidence, clients: tuple[Client, ...]) -> Finding:
    """The groups of ``clients``, who took part in both probes."""
    level, probes = SplitHalf().level, [first.of(clients), second.of(clients)]
    groups = confirmed(level, *probes)
    decided = tuple(sorted(client for group in groups for client in group))
    found = [congruent_groups(one.products.numpy(), level) for one in probes]
    one, other = (as_groups([clients[i] for i in group] for group in each.groups) for each in found)
    return Finding(
        clients=decided, level=level, p=together(*probes), groups=groups, alone=(one, other),
        agreement=adjusted_rand(*(labels_of(each.groups) for each in found)),
        alike=tuple(together(first.of(group), second.of(group)) for group in groups),
        reliability=tuple(np.mean([reliability(each.of(decided).products.numpy()) for each in probes], axis=0).tolist()),
    )  # fmt: skip


@dataclass
class _Asked:
    """A run's ``clients``, who are asked for all that a suggestion rests on."""

    run: Run
    clients: Clients
    federation: Federation
    start: Start

    def found(self) -> tuple[Finding, list[Evidence]]:
        """What two probes say, and they themselves, of those on whom they agree; the others are asked no more."""
        first, second = self.clients.halves(self.start), self.clients.halves(self.start)
        finding = _found(first, second, self.clients.there)
        undecided = set(self.clients.there) - set(finding.clients)
        self.clients.leave_out(dict.fromkeys(sorted(undecided), "the two probes see it in different groups"))
        return finding, [first.of(finding.clients), second.of(finding.clients)]

    def advice(self, finding: Finding, probes: Sequence[Evidence]) -> Iterator[Advice]:
        """For every method, its default first."""
        found, now = labels(finding.groups), [self.clients.updates(self.start) for _ in probes]
        yield from self._flhc(now, found, finding.firm)
        yield from self._acfl(found, finding.firm)
        first, parameters = self.clients.updates(self._first), self.federation.parameters.stop
        seen = [Probe(one.products.numpy(), updates, first, parameters) for one, updates in zip(probes, now, strict=True)]
        courses = [course(probe, finding.groups) for probe in seen]
        yield advise(courses, finding.groups, np.array(finding.reliability), finding.firm)

    @property
    def _first(self) -> Start:
        return Start(self.federation.draw(0), 0, "the first model", True)

    def _flhc(self, now: Sequence[Replies], labels: np.ndarray, firm: bool) -> Iterator[Advice]:
        fraction = getattr(self.run.method, "fraction", 1.0)  # on which the model depends that is clustered from
        for metric, linkage in FLHC_TRIED:
            compared = f"{metric}, {linkage}"
            settings = {"warmup": self.start.round, "fraction": fraction, "metric": metric, "linkage": linkage}
            try:
                self.run.experiment.boundary.check_method(FLHC(metric=metric, linkage=linkage))
            except SettingError as error:
                yield without(FLHC.name, compared, str(error))
                continue
            rows = [replies.updates[:, self.federation.parameters] for replies in now if replies.updates is not None]
            apart = [manhattan(row) if metric == "l1" else distances(gram(row), metric=metric) for row in rows]
            yield Geometry(FLHC.name, settings, compared, linkage, apart).advice(labels, firm)

    def _acfl(self, labels: np.ndarray, firm: bool) -> Iterator[Advice]:
        """By weights and by updates, after as many epochs as it takes."""
        for epochs in EPOCHS:
            try:
                tried = [one.advice(labels, firm) for one in self._dense(epochs)]
            except SettingError as error:  # no dense layers, or a boundary that hides layers
                yield without(ACFL.name, "dense layers", str(error))
                return
            yield from tried
            if any(one.margin >= ROOM for one in tried):
                return

    def _dense(self, epochs: int) -> list[Geometry]:
        """How far apart the dense layers are after ``epochs`` from the first model."""
        self.run.experiment.boundary.check_method(ACFL())
        compared = layers_compared(self.federation, (), needed=True)
        spans = {layer: self.federation.columns[layer] for layer in compared}
        drawn = [self.clients.updates(self._first, epochs).updates for _ in range(2)]
        out = []
        for similarity in ("weights", "updates"):
            rule = Rule(
                threshold=None, groups=1, linkage=ACFL().linkage, updates=similarity == "updates", columns=spans,
                compared=compared,
            )  # fmt: skip
            apart = [1 - cosine(gram(rule.vectors(self._first.model, rows))) for rows in drawn if rows is not None]
            settings: dict[str, Any] = {"pretrain_epochs": epochs, "similarity": similarity}
            out.append(Geometry(ACFL.name, settings, f"{similarity}, {epochs} epochs", rule.linkage, apart, similarity=True))
        return out


def _caveats(start: Start, finding: Finding, groups: Groups) -> Iterator[str]:
    """Why to trust the finding less; ``groups``: those of the run."""
    if len(groups) > 1 and groups != finding.groups:
        yield f"the run has {len(groups)} groups, not these; a run of fedavg, of more rounds, may tell which are right"
    if not finding.same:
        one, other = map(len, finding.alone)
        yield f"each probe alone finds other groups, {one} and {other}: their adjusted Rand index is {finding.agreement:.2f}"
    if finding.doubt is not None:
        group = finding.groups[finding.alike.index(finding.doubt)]
        if finding.doubt < finding.level:
            yield f"{len(group)} clients are left in one group, and not alike (p {finding.doubt:.2g}): nothing would part them"
        else:
            yield f"{len(group)} clients are one group with p {finding.doubt:.2g}, which is small: more data may show several"
    if not start.shared:
        yield f"clients were probed from {start.words}, from which no method's run begins: thresholds there may differ"
    single = sum(len(group) == 1 for group in finding.groups)
    if 2 * single > len(finding.groups) > 1:
        yield f"{single} of {len(finding.groups)} groups are single clients: they may differ by degrees, and be no groups"
