"""The suggestion for a run: clients are probed, the split-half test finds groups, and each method gets its settings."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
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
)
from coterie.contrib.suggest.cfl_settings import ProbeDraw, cfl_advice, cut_path
from coterie.contrib.suggest.dendrogram_cuts import Geometry
from coterie.contrib.suggest.probing import ProbedClients, StartingPoint, start_of, stored_position
from coterie.contrib.suggest.remarks import caveats, own_probes
from coterie.contrib.suggest.suggestion import (
    MIN_CLEAR_MARGIN,
    Advice,
    Finding,
    Suggestion,
    group_labels,
    lie_within,
    no_advice,
)
from coterie.core import Assignment, Client, Federation, Groups, Replies, as_groups, needs_of
from coterie.engines.pool import ClientPool
from coterie.engines.rounds import setup
from coterie.files import Folder
from coterie.methods import ACFL, FLHC, SplitHalf
from coterie.methods._split_half_probes import Evidence, confirmed, together
from coterie.methods.acfl import Rule, layers_compared
from coterie.methods.split_half import SplitHalfState, members_of, several
from coterie.records.codec import from_stored
from coterie.runs.experiment import data_folder
from coterie.runs.facts import same_world
from coterie.runs.folders import reopen
from coterie.runs.run import Run
from coterie.settings import SettingError, UserError
from coterie.settings.calls import public

PROBES = 2
"""Draws of every probe: a finding must be confirmed, and a threshold must be right in each draw."""

FLHC_COMPARED = (("l2", "ward"), ("l1", "complete"), ("cosine", "average"))
"""Metrics and linkages: FL+HC's default, its paper's advice, and one that does not depend on the
length of updates."""

ACFL_EPOCHS = (ACFL().pretrain_epochs, 10)
"""Epochs of ACFL's first training: its default, and more if that leaves no clear threshold."""

MAX_PROBE_EXCHANGES = 9
"""Most exchanges of a suggestion; the last two are made only if ACFL's default epochs leave no
clear threshold."""


@public
def suggest(
    run: Folder,
    *,
    data: Path | str | None = None,
    workers: int | None = None,
    progress: Callable[[], None] | None = None,
    trust_code: bool = False,
    secret: int | None = None,
) -> Suggestion:
    """Suggest settings with which FL+HC, ACFL and CFL would find the groups that the split-half test finds in a run.

    The run's clients are asked for a few exchanges, from the model of its newest checkpoint and
    from its first model. The run is not changed, and a second call gives the same result.

    Args:
        run: A run directory, of any method, with a completed round.
        data: Folder of the data set's files, if it is no longer the run's folder.
        workers: Processes that train; the result does not depend on it.
        progress: Called after each exchange, of which there are at most nine.
        trust_code: Whether a model that the run directory names as ``package.module:Name`` may be
            imported.
        secret: The boundary's secret, if the run had one; None for the environment's
            COTERIE_SECRET.

    Returns:
        The suggestion.

    Raises:
        UserError: The folder is not a run directory, holds several runs, is of a federation, is
            damaged, or has no completed round; the data have changed; fewer than two clients have
            data that can be halved; or code or a secret is needed and was not given.
    """
    probed_run = _only_run(run, trust_code, secret)
    probed_run.experiment.check_secret()
    position = stored_position(probed_run)
    federation, pool = _federation_and_pool(probed_run, data, workers)
    recorded_lines = probed_run.record.lines()
    # A checkpoint that does not fit the clients or the model is damaged.
    with from_stored(probed_run.record.checkpoints.path(position.round)):
        assignment: Assignment = probed_run.method.assignment(position.state)
        starting_point = start_of(assignment, position, recorded_lines)
        unknown_clients = set(position.members) - set(pool.world.clients)
        if unknown_clients:
            raise ValueError(f"there is no client {min(unknown_clients)}")
        row_size = pool.wire.layout.size
        if starting_point.model.shape != (row_size,):
            raise ValueError(
                f"a model must have shape ({row_size},), got {tuple(starting_point.model.shape)}"
            )
    # The probes, and the advice from them.
    with pool:
        probed_clients = ProbedClients(
            pool, federation.parameters, position, probed_run.seed, progress
        )
        evidence = _Probing(probed_run, probed_clients, federation, starting_point)
        finding, probes = evidence.finding(split_groups(position.state))
        advice = tuple(evidence.advice(finding, probes))
    return Suggestion(
        run=os.fspath(run),
        method=probed_run.method.name,
        scenario=probed_run.experiment.scenario,
        seed=probed_run.seed,
        start=starting_point.words,
        round=starting_point.round,
        finding=finding,
        split_half=own_probes(probed_run.method, starting_point, finding, recorded_lines),
        advice=advice,
        caveats=tuple(caveats(starting_point, finding, assignment.groups)),
        left_out=probed_clients.left_out,
        exchanges=probed_clients.exchanges,
        names=pool.world.client_names,
    )


# ----------------------------------------------------------------------------------------------------
# The run, its clients and its groups.


def _only_run(folder: Folder, trust_code: bool, secret: int | None) -> Run:
    """The run in ``folder``, which must be the only one."""
    # Which of several runs is meant cannot be guessed: they may have other clients.
    reopened_runs = reopen(folder, trust_code=trust_code, secret=secret)
    if len(reopened_runs) > 1:
        raise UserError(
            f"{folder} holds {len(reopened_runs)} runs, and a suggestion is for one; "
            f"give one, for example {reopened_runs[0].folder}"
        )
    only_run = reopened_runs[0]
    if only_run.record.begun and "data" not in only_run.record.description()["world"]:
        raise UserError(
            f"{folder} is of a federation, whose clients are on other machines and cannot be probed here; "
            f"there, method {SplitHalf.name} probes by itself and needs no thresholds"
        )
    return only_run


def _federation_and_pool(
    run: Run, data: Path | str | None, workers: int | None
) -> tuple[Federation, ClientPool]:
    """The method's description of the run's clients, and the processes that train them on the data of the run."""
    experiment = replace(run.experiment, data=data_folder(data or run.experiment.data))
    world = experiment.world(run.seed)
    # Groups of other data would be no advice for this run.
    if not same_world(run.facts(world), run.record.description()["world"]):
        raise UserError(
            f"{run.folder} cannot be probed: the scenario's clients or data have changed"
        )
    hardware = experiment.hardware(workers)
    hardware.check(world)
    wire, federation = setup(run.method, world, run.seed, experiment.boundary)
    return federation, ClientPool(world, wire, hardware)


def split_groups(state: Any) -> Groups:
    """The groups into which split-half has split a run; none for one group, or another method.

    Args:
        state: The state of the run's method.

    Returns:
        The groups, without clients that still walk down the tree.
    """
    if not isinstance(state, SplitHalfState) or not several(state):
        return ()
    return as_groups(members_of(state).values())


def finding_of(
    first_probe: Evidence,
    second_probe: Evidence,
    clients: tuple[Client, ...],
    level: float,
    run_groups: Groups = (),
) -> Finding:
    """The groups that two probes of the same clients confirm.

    If some of these are not within one of the groups of the run, those of the run are taken.

    Args:
        first_probe: The first probe.
        second_probe: The second probe.
        clients: The clients that took part in both.
        level: The level of the test.
        run_groups: The groups into which split-half has split the run; empty for none.

    Returns:
        The finding.
    """
    # Groups that both probes confirm, or those of the run if these do not divide them further.
    probes = [first_probe.of(clients), second_probe.of(clients)]
    groups_found = confirmed(level, *probes)
    run_groups = _groups_of_present(run_groups, clients)
    if run_groups and not lie_within(groups_found, run_groups):
        groups_found = run_groups
    # Clients that the probes put into different groups are in none.
    decided_clients = tuple(sorted(chain.from_iterable(groups_found)))
    # The groups that each probe finds by itself, as positions and as clients.
    partitions = []
    groups_alone = []
    reliabilities = []
    for probe in probes:
        partition = congruent_groups(probe.products.numpy(), level).groups
        partitions.append(partition)
        groups_alone.append(
            as_groups([clients[position] for position in positions] for positions in partition)
        )
        reliabilities.append(reliability(probe.of(decided_clients).products.numpy()))
    # For each group, the test that its members are alike, on both probes together.
    p_values = [together(first_probe.of(group), second_probe.of(group)) for group in groups_found]
    return Finding(
        clients=decided_clients,
        level=level,
        p=together(*probes),
        groups=groups_found,
        alone=(groups_alone[0], groups_alone[1]),
        agreement=adjusted_rand(*map(labels_of, partitions)),
        alike=tuple(p_values),
        reliability=tuple(np.mean(reliabilities, axis=0).tolist()),
        of_run=groups_found == run_groups,
    )


def _groups_of_present(groups: Groups, clients: tuple[Client, ...]) -> Groups:
    """The groups without other clients than these; groups of none of them are left out."""
    present = set(clients)
    present_groups = []
    for group in groups:
        present_members = tuple(client for client in group if client in present)
        if present_members:
            present_groups.append(present_members)
    return as_groups(present_groups)


# ----------------------------------------------------------------------------------------------------
# The probes of the run's clients, and the advice for each method.


@dataclass
class _Probing:
    """Collects the evidence for a suggestion from a run's ``clients``."""

    run: Run
    clients: ProbedClients
    federation: Federation
    start: StartingPoint

    def finding(self, run_groups: Groups = ()) -> tuple[Finding, list[Evidence]]:
        """The result of two probes, and the probes, for the clients that are in a group; the others are left out.

        ``run_groups``: the groups of the run, if split-half has split it.
        """
        # Two draws of halves: both must find a group.
        first_probe = self.clients.halves(self.start)
        second_probe = self.clients.halves(self.start)
        method = self.run.method
        level = method.level if isinstance(method, SplitHalf) else SplitHalf().level
        finding = finding_of(first_probe, second_probe, self.clients.present, level, run_groups)
        # Thresholds are for the clients that are in a group; no other is asked again.
        left_out_reason = "the two probes place it in different groups"
        if run_groups:
            left_out_reason = "the run has not placed it in a group"
        undecided = set(self.clients.present) - set(finding.clients)
        self.clients.leave_out(dict.fromkeys(sorted(undecided), left_out_reason))
        return finding, [first_probe.of(finding.clients), second_probe.of(finding.clients)]

    def advice(self, finding: Finding, probes: Sequence[Evidence]) -> Iterator[Advice]:
        """The advice for every method, that for its default quantities first."""
        wanted_labels = group_labels(finding.groups)
        probed_replies = [self.clients.updates(self.start) for _ in range(PROBES)]
        yield from self._flhc_advice(probed_replies, wanted_labels, finding.firm)
        yield from self._acfl_advice(wanted_labels, finding.firm)
        # CFL's criteria compare a round from the first model with a round from the probed one.
        first_replies = self.clients.updates(self._first_model)
        cut_paths = []
        for probe, replies in zip(probes, probed_replies, strict=True):
            draw = ProbeDraw(
                halves_gram=probe.products.numpy(),
                probed=replies,
                first=first_replies,
                parameters=self.federation.parameters.stop,
            )
            cut_paths.append(cut_path(draw, finding.groups))
        reliabilities = np.array(finding.reliability)
        yield cfl_advice(cut_paths, finding.groups, reliabilities, finding.firm)

    @property
    def _first_model(self) -> StartingPoint:
        return StartingPoint(self.federation.draw(0), 0, "the first model", True)

    def _flhc_advice(
        self, probed_replies: Sequence[Replies], wanted_labels: np.ndarray, firm: bool
    ) -> Iterator[Advice]:
        """Advice for each metric and linkage, from updates of the probed model."""
        updates = [reply.all_updates[:, self.federation.parameters] for reply in probed_replies]
        # The model from which clients are clustered depends on the fraction that trains it.
        fraction = needs_of(self.run.method).fraction
        for metric, linkage in FLHC_COMPARED:
            compared = f"{metric}, {linkage}"
            # A map of the rows changes some distances: this metric may not be allowed.
            try:
                self.run.experiment.boundary.check_method(FLHC(metric=metric, linkage=linkage))
            except SettingError as error:
                yield no_advice(FLHC.name, compared, str(error))
                continue
            # The other metrics follow from the Gram matrix.
            distances_of_draw = []
            for update_rows in updates:
                if metric == "l1":
                    distances_of_draw.append(manhattan(update_rows))
                else:
                    distances_of_draw.append(distances(gram(update_rows), metric=metric))
            settings = {
                "warmup": self.start.round,
                "fraction": fraction,
                "metric": metric,
                "linkage": linkage,
            }
            geometry = Geometry(FLHC.name, settings, compared, linkage, distances_of_draw)
            yield geometry.advice(wanted_labels, firm)

    def _acfl_advice(self, wanted_labels: np.ndarray, firm: bool) -> Iterator[Advice]:
        """Advice by weights and by updates, with more epochs until one is clear."""
        for epochs in ACFL_EPOCHS:
            try:
                geometries = self._dense_layers(epochs)
            except SettingError as error:
                # The net has no dense layers, or the boundary hides layers.
                yield no_advice(ACFL.name, "dense layers", str(error))
                return
            for_epochs = [geometry.advice(wanted_labels, firm) for geometry in geometries]
            yield from for_epochs
            # One clear threshold is enough, and more epochs cost exchanges.
            if any(advice.margin >= MIN_CLEAR_MARGIN for advice in for_epochs):
                return

    def _dense_layers(self, epochs: int) -> list[Geometry]:
        """The distances of the dense layers after ``epochs`` epochs of training from the first model."""
        self.run.experiment.boundary.check_method(ACFL())
        compared_layers = layers_compared(self.federation, (), needed=True)
        columns_of_layer = {layer: self.federation.columns[layer] for layer in compared_layers}
        # ACFL clusters by a first training of all clients, from the first model.
        update_draws = []
        for _ in range(PROBES):
            update_draws.append(self.clients.updates(self._first_model, epochs).all_updates)
        geometries = []
        for similarity in ("weights", "updates"):
            merge_rule = Rule(
                threshold=None,
                groups=1,
                linkage=ACFL().linkage,
                updates=similarity == "updates",
                columns=columns_of_layer,
                compared=compared_layers,
            )
            # ACFL merges by cosine similarity; a dendrogram needs distances.
            first_model = self._first_model.model
            distances_of_draw = []
            for update_rows in update_draws:
                compared_vectors = merge_rule.vectors(first_model, update_rows)
                distances_of_draw.append(1 - cosine(gram(compared_vectors)))
            geometry = Geometry(
                method=ACFL.name,
                settings={"pretrain_epochs": epochs, "similarity": similarity},
                compared=f"{similarity}, {epochs} epochs",
                linkage=merge_rule.linkage,
                draws=distances_of_draw,
                similarity=True,
            )
            geometries.append(geometry)
        return geometries
