"""Names of settings in other libraries and papers, and the nearest known name, for messages about a name that is not known.

Federated learning has many names for one setting: the number of models is ``k``, ``n_clusters`` or
``num_models`` elsewhere, and ``models`` here.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

MIN_SIMILARITY = 0.65
"""The least similarity, by :mod:`difflib`, at which a name is suggested."""

_FIELD_NAMES = {
    # Clusters and neighbours.
    "models": "k p clusters n_clusters num_clusters number_of_clusters n_models num_models nclust",
    "groups": "k clusters n_clusters num_clusters number_of_clusters n_groups num_groups",
    "neighbours": "k n_neighbors n_neighbours neighbors num_neighbors",
    "threshold": "distance_threshold cutoff similarity_threshold",
    "linkage": "link linkage_method",
    # Local training.
    "lr": "learning_rate learningrate eta local_lr client_lr step_size alpha",
    "lr_decay": "decay gamma lr_gamma learning_rate_decay",
    "epochs": "e local_epochs local_epoch num_epochs n_epochs num_local_epochs epoch max_epochs",
    "steps": "tau local_steps num_steps local_iterations iterations max_steps",
    "batch": "b bs batch_size local_batch_size minibatch mini_batch_size",
    "optimizer": "optimiser optim opt",
    "weight_decay": "wd l2 l2_penalty",
    "clip": "max_grad_norm grad_clip clip_norm clipping_norm gradient_clip max_norm",
    "proximal": "mu proximal_mu prox fedprox_mu",
    # Methods.
    "fraction": (
        "c sample_fraction client_fraction frac fraction_fit fraction_train participation participation_rate sample_rate "
        "sampling_rate clients_per_round num_clients_per_round min_fit_clients join_ratio client_sampling"
    ),
    "pull": "lam lamda lambda mu ditto_lambda regularization reg",
    "weight": "lam lamda lambda",
    "tradeoff": "lam lamda lambda",
    "mixture": "alpha",
    "server_lr": "eta_g global_lr eta_server server_learning_rate",
    "warmup": "warm_up warmup_rounds n_warmup",
    "eps1": "eps_1 epsilon1 epsilon_1 eps",
    "eps2": "eps_2 epsilon2 epsilon_2",
    # Experiments.
    "rounds": "t r num_rounds n_rounds communication_rounds comm_rounds global_rounds global_epochs max_rounds",
    "seed": "seeds random_seed random_state rng",
    "seeds": "seed random_seed random_state rng num_seeds n_seeds",
    "clients": "n n_clients num_clients number_of_clients client_num",
    "workers": "n_jobs num_workers n_workers processes cpus num_cpus",
    "device": "gpu accelerator cuda",
    "precision": "dtype fp16 bf16 amp mixed_precision",
    "eval_every": "eval_frequency evaluate_every test_every eval_freq eval_interval",
    "checkpoint_every": "save_every save_frequency checkpoint_frequency",
    "progress": "verbose show_progress pbar tqdm",
    "method": "methods algorithm algo strategy",
    "methods": "method algorithms algorithm algo strategy",
    "scenario": "world dataset",
    "folder": "out out_dir output_dir path directory dir save_dir",
    "out": "file filename path save to output",
    "to": "out path folder save_dir directory",
    "data": "data_dir data_root root data_path",
    # Data.
    "metrics": "metric metric_name metric_names score scoring",
    "main": "main_metric primary",
    "loss": "loss_fn criterion loss_function",
    "features": "columns cols feature_names feature_columns inputs x",
    "columns": "features cols feature_names feature_columns",
    "target": "targets label labels y target_column outcome",
    "client": "clients client_column client_id group_column site",
    "subject": "subjects patient patient_id subject_id",
    "model": "net network model_fn architecture arch module",
    "train": "train_size train_fraction train_share training_share",
    "validation": "val val_size val_fraction val_split validation_split valid holdout",
    "standardize": "standardise normalize normalise scale scaler scaling",
    "alpha": "dirichlet dirichlet_alpha concentration beta",
    "adversaries": "attackers malicious byzantine n_malicious",
    "silent": "dropout dropout_rate drop_rate stragglers",
    # Bounds and boundaries.
    "noise": "noise_multiplier sigma",
    "delta": "dp_delta",
    "mean": "aggregation aggregator aggregate robust_mean",
    "trim": "trim_fraction trimmed",
}
"""Name here -> names elsewhere."""


def spelled(name: Any) -> str:
    """Return a name without the differences of its spelling: in lower case, of letters and digits alone.

    Example:
        >>> spelled("--Batch_Size")
        'batchsize'
    """
    return re.sub(r"[\W_]+", "", str(name).lower())


_ELSEWHERE: dict[str, list[str]] = {}
"""Name elsewhere, as :func:`spelled` writes it -> names here."""

for _coterie_name, _other_names in _FIELD_NAMES.items():
    for _other_name in _other_names.split():
        _ELSEWHERE.setdefault(spelled(_other_name), []).append(_coterie_name)


def called_here(name: Any) -> list[str]:
    """Return what a setting may be called here that other libraries or papers call ``name``.

    Example:
        >>> called_here("n_clusters")
        ['models', 'groups']
    """
    return _ELSEWHERE.get(spelled(name), [])


def closest(
    name: Any, known_names: Iterable[Any], min_similarity: float = MIN_SIMILARITY
) -> str | None:
    """Return the known name that ``name`` most likely stands for: another spelling of it, or one with a slip.

    Args:
        name: The name that is not known.
        known_names: The known names.
        min_similarity: The least similarity of a slip.

    Returns:
        The known name, or None if there is no likely one.

    Example:
        >>> closest("Models", ["lr", "models"]), closest("modles", ["lr", "models"]), closest("k", ["lr", "models"])
        ('models', 'models', None)
    """
    # Imported here: only a mistake needs it.
    import difflib

    # The first of several names that are spelled alike stands for all of them.
    by_spelling: dict[str, str] = {}
    for known_name in known_names:
        by_spelling.setdefault(spelled(known_name), str(known_name))
    if not spelled(name):
        return None
    matches = difflib.get_close_matches(spelled(name), by_spelling, n=1, cutoff=min_similarity)
    return by_spelling[matches[0]] if matches else None


def alike(name: Any, known_names: Iterable[Any], max_names: int) -> list[str]:
    """Return the known names that are spelled most like ``name``, at most ``max_names``; the most similar one first.

    Example:
        >>> alike("rate", ["lr_rates", "batch", "rated"], 2)
        ['rated', 'lr_rates']
    """
    # Imported here: only a mistake needs it.
    import difflib

    by_spelling = {spelled(known_name): str(known_name) for known_name in known_names}
    spellings = difflib.get_close_matches(spelled(name), by_spelling, n=max_names, cutoff=0.45)
    return [by_spelling[spelling] for spelling in spellings]


def meant(name: Any, known_names: Iterable[Any]) -> str | None:
    """Return the known setting that ``name`` most likely stands for: as :func:`closest`, or called so elsewhere.

    Args:
        name: The name that is not a setting.
        known_names: The names of the settings.

    Returns:
        The name of the setting, or None if there is no likely one.

    Example:
        >>> meant("k", ["lr", "models"]), meant("learning_rate", ["lr", "models"])
        ('models', 'lr')
    """
    # First the name itself, then what other libraries mean by it, then a slip.
    by_spelling = {spelled(known_name): str(known_name) for known_name in known_names}
    spellings = [spelled(name), *map(spelled, called_here(name))]
    matches = [by_spelling[spelling] for spelling in spellings if spelling in by_spelling]
    return matches[0] if matches else closest(name, by_spelling.values())


def edits(text: str, other_text: str) -> int:
    """Return the least number of letters to add, remove, replace or swap with the next that turns a text into another.

    Example:
        >>> edits("fedagv", "fedavg"), edits("fedprox", "fedper")
        (1, 3)
    """
    # The optimal string alignment distance. Row i has the distances of the first i letters of the
    # text to every beginning of the other text; a swap looks two rows back.
    distance_rows = [list(range(len(other_text) + 1))]
    for i, letter in enumerate(text, 1):
        distance_row = [i]
        for j, other_letter in enumerate(other_text, 1):
            removed = distance_rows[-1][j] + 1
            added = distance_row[-1] + 1
            replaced = distance_rows[-1][j - 1] + (letter != other_letter)
            distance = min(removed, added, replaced)
            is_swap = i > 1 and j > 1 and (letter, text[i - 2]) == (other_text[j - 2], other_letter)
            if is_swap:
                distance = min(distance, distance_rows[-2][j - 2] + 1)
            distance_row.append(distance)
        distance_rows.append(distance_row)
    return distance_rows[-1][-1]
