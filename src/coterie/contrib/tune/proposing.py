"""The settings of the next trials, proposed by Optuna from all trials of the batches before.

A batch is proposed at once, so it does not depend on how many trials run at the same time: any
number of workers, and a tuning that was interrupted, make the same trials.
"""

from __future__ import annotations

import importlib.util
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from coterie.contrib.tune.judging import TRIAL_COMPLETE, Judged
from coterie.contrib.tune.space import Among, Between, Space
from coterie.settings import UserError

MAX_REFUSED = 200
"""Proposals that were tried before, or whose settings do not fit together, after which a batch gets no further trial."""


def check_installed() -> None:
    """Raise an error if Optuna is not installed."""
    if importlib.util.find_spec("optuna") is None:
        raise UserError(
            "tune needs Optuna: pip install 'coterie[tune]'; a grid, --set KEY=A,B,C without --trials, does not"
        )


def proposed(
    space: Space,
    earlier: Iterable[Judged],
    known_settings: Iterable[Mapping[str, Any]],
    count: int,
    key: Sequence[Any],
    greater_is_better: bool,
    fits: Callable[[Mapping[str, Any]], bool],
) -> list[dict[str, Any]]:
    """Propose the settings of a batch of trials by the tree-structured Parzen estimator.

    Bergstra, Bardenet, Bengio, Kégl: Algorithms for Hyper-Parameter Optimization. NeurIPS 2011.

    Args:
        space: The values of each setting.
        earlier: The trials of all batches before.
        known_settings: Settings that are in the batch already.
        count: How many trials to propose.
        key: What the seed of the proposals is made of.
        greater_is_better: Whether greater scores are better.
        fits: Whether settings fit together; others are not proposed.

    Returns:
        The settings of each trial, none of which was tried before. They are fewer than ``count`` if
        nothing else is left, or if hardly any settings fit together.
    """
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    distributions = {key: _distribution(values) for key, values in space.items()}
    seed = zlib.crc32(repr(tuple(key)).encode())
    study = optuna.create_study(
        direction="maximize" if greater_is_better else "minimize",
        sampler=optuna.samplers.TPESampler(seed=seed),
    )
    # What earlier trials scored. A trial that was stopped has the scores until then.
    earlier = list(earlier)
    tried_settings = [dict(judged.settings) for judged in earlier]
    tried_settings += map(dict, known_settings)
    for judged in earlier:
        if set(judged.settings) != set(space) or not judged.curve:
            continue
        states = optuna.trial.TrialState
        study.add_trial(
            optuna.trial.create_trial(
                state=states.COMPLETE if judged.state == TRIAL_COMPLETE else states.PRUNED,
                value=judged.score if judged.state == TRIAL_COMPLETE else None,
                params=_within(judged.settings, space),
                distributions=distributions,
                intermediate_values={int(number): value for number, value in judged.curve.items()},
            )
        )
    settings_of_batch: list[dict[str, Any]] = []
    refused_count = 0
    while len(settings_of_batch) < count and refused_count < MAX_REFUSED:
        trial = study.ask(distributions)
        settings = _within({key: _short(trial.params[key]) for key in space}, space)
        if settings not in tried_settings and fits(settings):
            settings_of_batch.append(settings)
            tried_settings.append(settings)
        else:
            study.tell(trial, state=optuna.trial.TrialState.FAIL)
            refused_count += 1
    return settings_of_batch


def _distribution(values: Between | Among) -> Any:
    """The values of a setting as Optuna describes them."""
    from optuna.distributions import (
        CategoricalDistribution,
        FloatDistribution,
        IntDistribution,
    )

    if isinstance(values, Among):
        return CategoricalDistribution(values.values)
    if values.whole:
        return IntDistribution(int(values.low), int(values.high), log=values.log)
    return FloatDistribution(values.low, values.high, log=values.log)


def _short(value: Any) -> Any:
    """A number with three digits, as people write it."""
    return float(f"{value:.3g}") if isinstance(value, float) else value


def _within(settings: Mapping[str, Any], space: Space) -> dict[str, Any]:
    """Settings whose numbers are moved to the next end of their range: a default may lie beyond it."""
    moved = dict(settings)
    for key, values in space.items():
        if isinstance(values, Between):
            moved[key] = min(max(moved[key], values.low), values.high)
            if values.whole:
                moved[key] = int(moved[key])
    return moved
