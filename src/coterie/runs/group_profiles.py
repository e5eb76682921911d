"""Which group a site belongs to: probabilities from means of a few numbers per row, as a Gaussian hierarchy.

A site's rows are described by D numbers each: the losses of the groups' models, or, without labels,
components of the inputs and of the models' embeddings and outputs (FLUX and FEROMA place clients by
such moments). A site is then its D means, and:

* a site of group g has means ``N(centre_g, between (1 + 1 / k_g) + within_g / n)``, where the k_g
  clients of the group gave the centre, ``between`` is the variance between clients of one group,
  ``within_g`` that between rows of one client, and n is the site's number of rows;
* a site of none of the groups has means ``N(overall centre, within + between + within / n)``: the
  centre of a new group may lie anywhere where a single row may. This is the unit information prior
  of Kass and Wasserman (JASA 90, 1995).

A site is of group g with the prior probability ``k_g / (k + 1)``, and of none with ``1 / (k + 1)``,
for k clients: the Chinese restaurant process with concentration 1. The D numbers are not
independent, so the log likelihood is multiplied by a power from 1/D to 1: the one with which the
groups of the training clients, each left out in turn, are most likely.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

MAX_COUNTED_ROWS = 100
"""The variance between clients is at least that between rows over this: no site is as surely placed
as if more rows had told of it."""

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
        between: Variance between the clients of a group, the same for all groups, ``(D,)``.
        num_clients: Clients of each group, ``(G,)``.
        power: The power of the likelihood.
        accuracy: Share of the training clients that are placed in their own group when they are
            left out; a client that is alone in its group counts as right in none.
    """

    centres: np.ndarray
    within: np.ndarray
    between: np.ndarray
    num_clients: np.ndarray
    power: float = 1.0
    accuracy: float = 0.0

    def probabilities(self, site: SiteMoments) -> np.ndarray:
        """Return the probability of each group, and last that of none of them, ``(G + 1,)``."""
        log_likelihoods = self._log_likelihoods(site)
        return _posterior(log_likelihoods, self.num_clients, self.power)

    def _log_likelihoods(self, site: SiteMoments) -> np.ndarray:
        """The log likelihood of the site's means in each group, and last in none ``(G + 1,)``."""
        # A group without clients gets no prior probability, and so any finite likelihood.
        client_counts = np.maximum(self.num_clients, 1)[:, None]
        group_variances = self.between * (1 + 1 / client_counts) + self.within / site.rows
        group_likelihoods = _gaussian(site.means, self.centres, group_variances)
        # None of the groups: somewhere where a row of any client may lie.
        weights = self.num_clients / self.num_clients.sum()
        overall_centre = weights @ self.centres
        overall_within = weights @ (self.within + (self.centres - overall_centre) ** 2)
        none_variance = overall_within * (1 + 1 / site.rows) + self.between
        none_likelihood = _gaussian(site.means, overall_centre, none_variance)
        return np.append(group_likelihoods, none_likelihood)


def group_profiles(groups: Sequence[Sequence[SiteMoments]]) -> GroupProfiles:
    """Return the profiles of groups from their training clients.

    Args:
        groups: The clients of each group, at least one in each.

    Returns:
        The profiles, with the power and the accuracy of placing each client without itself.
    """
    profiles = _profiles(groups)
    # Place each client by the profiles of all others.
    num_numbers = profiles.centres.shape[1]
    left_out_likelihoods = []
    left_out_counts = []
    true_places = []
    for group_number, clients in enumerate(groups):
        for client in clients:
            other_profiles = _without(profiles, group_number, client)
            left_out_likelihoods.append(other_profiles._log_likelihoods(client))
            left_out_counts.append(other_profiles.num_clients)
            # A client that was alone in its group is of none of the others.
            true_places.append(group_number if len(clients) > 1 else len(groups))
    # The power with which their own groups are most likely.
    powers = np.geomspace(1 / num_numbers, 1, NUM_POWERS) if num_numbers > 1 else np.ones(1)
    best_power = 1.0
    best_score = -np.inf
    best_accuracy = 0.0
    for power in powers:
        score = 0.0
        num_right = 0
        for log_likelihoods, counts, true_place in zip(
            left_out_likelihoods, left_out_counts, true_places, strict=True
        ):
            probabilities = _posterior(log_likelihoods, counts, power)
            score += np.log(max(probabilities[true_place], 1e-300))
            num_right += int(probabilities.argmax()) == true_place
        if score > best_score:
            best_score = score
            best_power = float(power)
            best_accuracy = num_right / len(true_places)
    return GroupProfiles(
        profiles.centres,
        profiles.within,
        profiles.between,
        profiles.num_clients,
        best_power,
        best_accuracy,
    )


def _profiles(groups: Sequence[Sequence[SiteMoments]]) -> GroupProfiles:
    """The profiles, with power 1."""
    centres = []
    within = []
    squares = 0.0
    expected_squares = 0.0
    degrees_of_freedom = 0
    for clients in groups:
        client_means = np.stack([client.means for client in clients])
        client_variances = np.stack([client.variances for client in clients])
        row_counts = np.stack([client.rows for client in clients])
        centre = client_means.mean(0)
        centres.append(centre)
        within.append(np.maximum(client_variances.mean(0), SMALLEST_VARIANCE))
        # The means of clients differ by their true differences and by the choice of their rows.
        share_left = 1 - 1 / len(clients)
        squares = squares + ((client_means - centre) ** 2).sum(0)
        expected_squares = expected_squares + share_left * (client_variances / row_counts).sum(0)
        degrees_of_freedom += len(clients) - 1
    within_groups = np.stack(within)
    smallest_between = within_groups.mean(0) / MAX_COUNTED_ROWS
    between = smallest_between
    if degrees_of_freedom:
        between = np.maximum((squares - expected_squares) / degrees_of_freedom, smallest_between)
    return GroupProfiles(
        np.stack(centres), within_groups, between, np.array([len(clients) for clients in groups])
    )


def _without(profiles: GroupProfiles, group_number: int, client: SiteMoments) -> GroupProfiles:
    """The profiles as if a client of a group had not been there; the variances stay."""
    num_clients = profiles.num_clients.copy()
    centres = profiles.centres.copy()
    num_clients[group_number] -= 1
    if num_clients[group_number]:
        total = centres[group_number] * profiles.num_clients[group_number]
        centres[group_number] = (total - client.means) / num_clients[group_number]
    if not num_clients.sum():
        # The only client: there is nothing else to compare it with.
        num_clients[group_number] = 1
    return GroupProfiles(centres, profiles.within, profiles.between, num_clients)


def _gaussian(values: np.ndarray, centres: np.ndarray, variances: np.ndarray) -> np.ndarray:
    """Log density of independent normal numbers, summed over the last axis, without its constant."""
    distances = (values - centres) ** 2 / variances
    total: np.ndarray = -0.5 * (distances + np.log(variances)).sum(-1)
    return total


def _posterior(log_likelihoods: np.ndarray, num_clients: np.ndarray, power: float) -> np.ndarray:
    """The probability of each group and of none, from likelihoods to a power and the prior ``(G + 1,)``."""
    weights = np.append(num_clients, 1) / (num_clients.sum() + 1)
    with np.errstate(divide="ignore"):
        logits = power * log_likelihoods + np.log(weights)
    exponentials = np.exp(logits - logits.max())
    posterior: np.ndarray = exponentials / exponentials.sum()
    return posterior
