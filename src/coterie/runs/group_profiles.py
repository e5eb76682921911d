"""Which group a site belongs to: probabilities from means of a few numbers per row, as a Gaussian hierarchy.

A site's rows are described by D numbers each: the losses of the groups' models, or, without labels,
components of the inputs and of the models' embeddings and outputs (FLUX and FEROMA place clients by
such moments). A site is then its D means. For each number:

* the centres of the groups are ``N(overall, A)``,
* the means of the clients of group g are ``N(centre_g, b)``, and
* those of n rows of one client are ``N(client, within_g / n)``.

**The groups' centres.** ``overall`` is the mean of the G known centres c_g, and ``A = (w + Σ_g (c_g -
overall)²) / G``, where w is the mean over groups of ``within_g``: the spread of the known centres,
with one more that lies where a single row may, the unit information prior of Kass and Wasserman
(JASA 90, 1995). It counts ``1 + 1 / G`` times, since ``overall`` is known from G centres.

**The clients of a group.** The variance b between them is not known, least of all where groups have
one client, which tells nothing of it. So b has a distribution, on a grid from w / 100 to w: a prior,
by which ``sqrt(b / w)`` is half-Cauchy with scale 1/4 (Gelman, Bayesian Analysis 1, 2006), times the
restricted likelihood of all training clients, where the means m_i of the clients of a group, of n_i rows,
have variances ``v_i = b + within_g / n_i``::

    Π_i v_i^(-1/2) (Σ_i 1 / v_i)^(-1/2) exp(-1/2 Σ_i (m_i - centre)² / v_i)

with the mean weighted by ``1 / v_i`` as centre. It is 1 for a group of one client. For many clients
the distribution becomes a point, and for few a site's means have the heavy tails of Student's t.

**A site.** Given b, a known centre c_g has the error ``b / k_g + Σ_i within_g / n_i / k_g²`` for k_g
clients. With the prior, the group's centre is ``N(overall + s (c_g - overall), A (1 - s))`` with ``s = A /
(A + error)``; a site of n rows has this mean, and the variance ``A (1 - s) + b + within_g / n``. A site of none of
the groups is one of a group with no client: s is 0. The density of a site's mean is the mean over b.

A site is of group g with the prior probability ``k_g / (k + 1)``, and of none with ``1 / (k + 1)``,
for k clients: the Chinese restaurant process with concentration 1. The D numbers are not
independent, so the log likelihood is multiplied by a power from 1/D to 1. Each power has a weight:
the likelihood of the groups of the training clients, each left out in turn. The probabilities are the
mean over the powers. A client that is alone in its group has no weight there: left out, it tells
what is like none, but not how alike two clients of a group are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

MAX_COUNTED_ROWS = 100
"""The variance between clients is at least that between rows over this: no site is as surely placed
as if more rows had told of it."""

NUM_SPREADS = 25
"""How many variances between clients are tried."""

SPREAD_SCALE = 0.25
"""Scale of the half-Cauchy prior of the standard deviation between the clients of a group, in standard
deviations between rows."""

NUM_POWERS = 9
"""How many powers from 1/D to 1 are tried."""

SMALLEST_VARIANCE = 1e-9
"""The least variance of a number that rows are described by, so that a constant one decides nothing
by division by 0."""


@dataclass(frozen=True)
class SiteMoments:
    """The rows of one site.

    Attributes:
        means: ``(D,)``.
        variances: Between the rows, ``(D,)``; of the mean, divided by ``rows``.
        rows: How many rows there are, for each number, ``(D,)``; of an estimate whose error is not
            that of a mean, as many as give it this error.
    """

    means: np.ndarray
    variances: np.ndarray
    rows: np.ndarray


@dataclass(frozen=True)
class GroupProfiles:
    """What is known of G groups from their training clients.

    Attributes:
        centres: Mean over a group's clients of their means, ``(G, D)``.
        within: Variance between rows of a client, the mean over a group's clients, ``(G, D)``.
        row_errors: Variance of the centres by the choice of the clients' rows, ``(G, D)``.
        between: Variances between the clients of a group that are possible, ``(T, D)``.
        between_weights: Their probabilities, ``(T, D)``, of which each column adds up to 1.
        num_clients: Clients of each group, ``(G,)``.
        powers: Powers of the likelihood, ``(P,)``.
        power_weights: Their probabilities, ``(P,)``.
        accuracy: Share of the training clients that are placed in their own group when they are
            left out; a client that is alone in its group counts as right in none.
    """

    centres: np.ndarray
    within: np.ndarray
    row_errors: np.ndarray
    between: np.ndarray
    between_weights: np.ndarray
    num_clients: np.ndarray
    powers: np.ndarray
    power_weights: np.ndarray
    accuracy: float = 0.0

    def probabilities(self, site: SiteMoments) -> np.ndarray:
        """Return the probability of each group, and last that of none of them, ``(G + 1,)``."""
        log_likelihoods = self._log_likelihoods(site)
        probabilities = np.zeros(len(log_likelihoods))
        for power, weight in zip(self.powers, self.power_weights, strict=True):
            probabilities += weight * _posterior(log_likelihoods, self.num_clients, power)
        return probabilities

    def _log_likelihoods(self, site: SiteMoments) -> np.ndarray:
        """The log likelihood of the site's means in each group, and last in none ``(G + 1,)``."""
        # Where the centre of any group may lie. A client that was left out may have been its group's
        # only one, which then counts as unknown.
        is_known = self.num_clients > 0
        num_known = int(is_known.sum())
        overall_centre = self.centres[is_known].mean(0)
        overall_within = self.within[is_known].mean(0)
        squares = ((self.centres[is_known] - overall_centre) ** 2).sum(0)
        centre_variance = (overall_within + squares) / num_known * (1 + 1 / num_known)
        likelihoods = []
        for group, num_clients in enumerate(self.num_clients):
            # A group without clients gets no prior probability, and so any finite likelihood.
            centre_errors = self.between / max(num_clients, 1) + self.row_errors[group]
            known_share = centre_variance / (centre_variance + centre_errors)
            means = overall_centre + known_share * (self.centres[group] - overall_centre)
            variances = centre_variance * (1 - known_share) + self.between
            likelihoods.append(
                self._mean_density(site, means, variances + self.within[group] / site.rows)
            )
        none_variances = centre_variance + self.between + overall_within / site.rows
        likelihoods.append(self._mean_density(site, overall_centre, none_variances))
        return np.array(likelihoods)

    def _mean_density(self, site: SiteMoments, means: np.ndarray, variances: np.ndarray) -> float:
        """The log density of the site's means, of each the mean over the variances between clients ``(T, D)``."""
        log_densities = -0.5 * ((site.means - means) ** 2 / variances + np.log(variances))
        with np.errstate(divide="ignore"):
            log_densities = log_densities + np.log(self.between_weights)
        return float(np.logaddexp.reduce(log_densities, axis=0).sum())


def group_profiles(groups: Sequence[Sequence[SiteMoments]]) -> GroupProfiles:
    """Return the profiles of groups from their training clients.

    Args:
        groups: The clients of each group, at least one in each.

    Returns:
        The profiles, with the weights of the powers and the accuracy of placing each client without
        itself.
    """
    profiles = _profiles(groups)
    # Place each client by the profiles of all others.
    left_out_likelihoods = []
    left_out_counts = []
    true_places = []
    for group_number, clients in enumerate(groups):
        for client_number, client in enumerate(clients):
            other_clients = [*clients[:client_number], *clients[client_number + 1 :]]
            other_profiles = _without(profiles, groups, group_number, other_clients)
            left_out_likelihoods.append(other_profiles._log_likelihoods(client))
            left_out_counts.append(other_profiles.num_clients)
            # A client that was alone in its group is of none of the others.
            true_places.append(group_number if other_clients else len(groups))
    # How likely their own groups are with each power.
    scores = np.zeros(len(profiles.powers))
    for number, power in enumerate(profiles.powers):
        for log_likelihoods, counts, true_place in zip(
            left_out_likelihoods, left_out_counts, true_places, strict=True
        ):
            if true_place < len(groups):
                probabilities = _posterior(log_likelihoods, counts, power)
                scores[number] += np.log(max(probabilities[true_place], 1e-300))
    weights = np.exp(scores - scores.max())
    profiles = replace(profiles, power_weights=weights / weights.sum())
    # How many come into their own group.
    num_right = 0
    for log_likelihoods, counts, true_place in zip(
        left_out_likelihoods, left_out_counts, true_places, strict=True
    ):
        probabilities = np.zeros(len(groups) + 1)
        for power, weight in zip(profiles.powers, profiles.power_weights, strict=True):
            probabilities += weight * _posterior(log_likelihoods, counts, power)
        num_right += int(probabilities.argmax()) == true_place
    return replace(profiles, accuracy=num_right / len(true_places))


def _profiles(groups: Sequence[Sequence[SiteMoments]]) -> GroupProfiles:
    """The profiles, in which all powers are as likely."""
    centres = []
    within = []
    for clients in groups:
        centres.append(np.mean([client.means for client in clients], axis=0))
        variances = np.mean([client.variances for client in clients], axis=0)
        within.append(np.maximum(variances, SMALLEST_VARIANCE))
    # Variances between clients, from hardly any to those between rows.
    row_variances = np.mean(within, axis=0)
    ratios = np.geomspace(1 / MAX_COUNTED_ROWS, 1, NUM_SPREADS)[:, None]
    between = ratios * row_variances
    # The density of the half-Cauchy prior on this grid, whose points are as far apart in log(b).
    log_weights = 0.5 * np.log(ratios) - np.log1p(ratios / SPREAD_SCALE**2)
    for group, clients in enumerate(groups):
        log_weights = log_weights + _restricted_likelihood(clients, within[group], between)
    weights = np.exp(log_weights - log_weights.max(0))
    num_numbers = between.shape[1]
    powers = np.geomspace(1 / num_numbers, 1, NUM_POWERS) if num_numbers > 1 else np.ones(1)
    return GroupProfiles(
        np.stack(centres),
        np.stack(within),
        np.stack([_row_errors(clients, within[g]) for g, clients in enumerate(groups)]),
        between,
        weights / weights.sum(0),
        np.array([len(clients) for clients in groups]),
        powers,
        np.full(len(powers), 1 / len(powers)),
    )


def _restricted_likelihood(
    clients: Sequence[SiteMoments], within: np.ndarray, between: np.ndarray
) -> np.ndarray:
    """The log likelihood of variances between clients ``(T, D)``, whatever their group's centre is ``(T, D)``."""
    client_variances = np.stack([between + within / client.rows for client in clients])
    precisions = 1 / client_variances
    client_means = np.stack([client.means for client in clients])[:, None, :]
    centre = (precisions * client_means).sum(0) / precisions.sum(0)
    squares = (precisions * (client_means - centre) ** 2).sum(0)
    log_likelihood: np.ndarray = -0.5 * (
        np.log(client_variances).sum(0) + np.log(precisions.sum(0)) + squares
    )
    return log_likelihood


def _row_errors(clients: Sequence[SiteMoments], within: np.ndarray) -> np.ndarray:
    """The variance of a group's centre by the choice of its clients' rows ``(D,)``."""
    errors: np.ndarray = sum(within / client.rows for client in clients) / len(clients) ** 2
    return errors


def _without(
    profiles: GroupProfiles,
    groups: Sequence[Sequence[SiteMoments]],
    group_number: int,
    other_clients: Sequence[SiteMoments],
) -> GroupProfiles:
    """The profiles as if a client of a group had not been there; the variances stay.

    Args:
        profiles: The profiles of all clients.
        groups: The clients of each group.
        group_number: The group.
        other_clients: Its other clients.
    """
    num_clients = profiles.num_clients.copy()
    num_clients[group_number] -= 1
    if not num_clients.sum():
        # The only client: there is nothing else to compare it with.
        return profiles
    if not other_clients:
        return replace(profiles, num_clients=num_clients)
    centres = profiles.centres.copy()
    centres[group_number] = np.mean([client.means for client in other_clients], axis=0)
    row_errors = profiles.row_errors.copy()
    row_errors[group_number] = _row_errors(other_clients, profiles.within[group_number])
    return replace(profiles, centres=centres, row_errors=row_errors, num_clients=num_clients)


def _posterior(log_likelihoods: np.ndarray, num_clients: np.ndarray, power: float) -> np.ndarray:
    """The probability of each group and of none, from likelihoods to a power and the prior ``(G + 1,)``."""
    weights = np.append(num_clients, 1) / (num_clients.sum() + 1)
    with np.errstate(divide="ignore"):
        logits = power * log_likelihoods + np.log(weights)
    exponentials = np.exp(logits - logits.max())
    posterior: np.ndarray = exponentials / exponentials.sum()
    return posterior
