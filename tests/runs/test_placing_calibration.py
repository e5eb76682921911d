"""The probabilities of groups for new sites are what they say, in worlds that are drawn from a hierarchy.

In each world, groups have a centre, clients lie around the centre of their group, and rows around
their client. A placement knows only rows. Sites come from each group as often as its clients, and
from a new group as often as one client.
"""

from collections.abc import Callable

import numpy as np
import pytest

from coterie.runs.group_profiles import SiteMoments, group_profiles
from coterie.runs.site_moments import moments_of, with_spread

NUM_GROUPS = 3
NUM_NUMBERS = 3
TRAINING_ROWS = 40
SITES_OF_WORLD = 10


def placed_sites(
    clients_of_group: int,
    rows: int,
    correlation: float,
    moments: Callable[[np.ndarray], SiteMoments],
    worlds: int = 120,
) -> tuple[np.ndarray, np.ndarray]:
    """Place sites in drawn worlds.

    Args:
        clients_of_group: Training clients of each group.
        rows: Rows of a site.
        correlation: Between the numbers of a row, and of clients.
        moments: Makes moments of rows.
        worlds: How many worlds are drawn, with ten sites each.

    Returns:
        The probabilities ``(n, G + 1)``, and the true group of each site ``(n,)``; G is none.
    """
    rng = np.random.default_rng(0)
    covariance = np.full((NUM_NUMBERS, NUM_NUMBERS), correlation)
    np.fill_diagonal(covariance, 1.0)
    factor = np.linalg.cholesky(covariance)

    def site(centre: np.ndarray, spread: float, num_rows: int) -> SiteMoments:
        client_mean = centre + spread * factor @ rng.normal(size=NUM_NUMBERS)
        return moments(client_mean + rng.normal(size=(num_rows, NUM_NUMBERS)) @ factor.T)

    stated = []
    true_groups = []
    for _ in range(worlds):
        # Clients of a group differ hardly, or nearly as much as rows do.
        spread = float(np.exp(rng.uniform(np.log(0.1), np.log(0.7))))
        centres = rng.normal(size=(NUM_GROUPS, NUM_NUMBERS))
        groups = []
        for centre in centres:
            groups.append([site(centre, spread, TRAINING_ROWS) for _ in range(clients_of_group)])
        profiles = group_profiles(groups)
        for _ in range(SITES_OF_WORLD):
            number = rng.integers(NUM_GROUPS * clients_of_group + 1)
            true_group = int(number) // clients_of_group
            if number == NUM_GROUPS * clients_of_group:
                true_group = NUM_GROUPS
                centre = rng.normal(size=NUM_NUMBERS)
            else:
                centre = centres[true_group]
            stated.append(profiles.probabilities(site(centre, spread, rows)))
            true_groups.append(true_group)
    return np.stack(stated), np.array(true_groups)


@pytest.mark.slow
@pytest.mark.parametrize("clients_of_group", [1, 2, 5])
@pytest.mark.parametrize("correlation", [0.0, 0.8])
@pytest.mark.parametrize(
    ("rows", "moments"),
    [(5, moments_of), (40, moments_of), (40, with_spread)],
    ids=["5 labels", "40 labels", "no labels"],
)
def test_a_group_that_is_said_to_be_likely_is_right_at_least_as_often(
    clients_of_group: int,
    correlation: float,
    rows: int,
    moments: Callable[[np.ndarray], SiteMoments],
) -> None:
    stated, true_groups = placed_sites(clients_of_group, rows, correlation, moments)
    highest = stated.max(1)
    is_right = stated.argmax(1) == true_groups
    for least, greatest in ((0.5, 0.8), (0.8, 0.95), (0.95, 1.01)):
        in_bin = (highest >= least) & (highest < greatest)
        if in_bin.sum() < 20:
            continue
        # Sites of one world are not independent: three standard errors, and as much again.
        tolerance = (
            0.03 + 3 * (highest[in_bin].mean() * (1 - highest[in_bin].mean()) / in_bin.sum()) ** 0.5
        )
        assert is_right[in_bin].mean() > highest[in_bin].mean() - tolerance
    # How often it is right, over all sites: not far from what is said, with fewer rows too.
    assert is_right.mean() == pytest.approx(highest.mean(), abs=0.16)
    assert is_right.mean() > 0.6


@pytest.mark.slow
def test_groups_of_one_client_are_not_sure_of_what_their_clients_share() -> None:
    stated, true_groups = placed_sites(1, 40, 0.0, moments_of)
    # None is as often right as it is said to be, and not said of each site that differs a little.
    is_new = true_groups == NUM_GROUPS
    assert stated[:, NUM_GROUPS].mean() == pytest.approx(is_new.mean(), abs=0.06)
    assert stated[is_new, NUM_GROUPS].mean() > 1.6 * stated[~is_new, NUM_GROUPS].mean()
    # No answer is surer than it can be.
    losses = -np.log(stated[np.arange(len(stated)), true_groups])
    prior = np.array([1, 1, 1, 1]) / 4
    assert losses.mean() < -np.log(prior).mean() / 1.5
    sure = stated.max(1) > 0.9
    if sure.any():
        assert (stated.argmax(1) == true_groups)[sure].mean() > 0.9


def test_a_site_far_from_all_groups_is_of_none_even_if_each_has_one_client() -> None:
    rng = np.random.default_rng(1)
    groups = [[moments_of(centre + rng.normal(size=(40, 3)))] for centre in (0.0, 2.0, 4.0)]
    profiles = group_profiles(groups)
    probabilities = profiles.probabilities(moments_of(12 + rng.normal(size=(40, 3))))
    assert probabilities.argmax() == 3
    assert probabilities[3] > 0.8
    # A site like a client is of its group, and less surely so with fewer rows.
    near = [profiles.probabilities(moments_of(2 + rng.normal(size=(rows, 3)))) for rows in (2, 40)]
    assert near[1].argmax() == 1
    assert near[0][1] < near[1][1] < 0.95
    # More clients of each group tell how alike they are.
    more_groups = []
    for centre in (0.0, 2.0, 4.0):
        more_groups.append([moments_of(centre + rng.normal(size=(40, 3))) for _ in range(5)])
    more = group_profiles(more_groups).probabilities(moments_of(2 + rng.normal(size=(40, 3))))
    assert more[1] > 0.98
