"""Results of one run, computed from its run directory alone."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import scipy

from coterie.boundary import Boundary, spent
from coterie.clustering import adjusted_rand
from coterie.data.objective import VALIDATION
from coterie.data.scenario import OWN_DATA, flattened
from coterie.extensions import entry_points, provided
from coterie.files import Folder, within
from coterie.pooling import MIN_ROWS_OF_WORST
from coterie.records.ending import Ending, best_round_of
from coterie.records.record import RUN_FILE, Record
from coterie.records.shown import ClientId, Line, shown_as, spread, truth_at
from coterie.records.text_files import finite
from coterie.report.limits import Limit, limited
from coterie.report.virtual_time import VirtualTime
from coterie.report.words import data_title
from coterie.robust import Robust
from coterie.settings import UserError, brief, in_shell, known_list, nearest, plain
from coterie.settings.calls import public

RUN_SETTINGS: Mapping[str, Any] = {"engine": "inprocess", "precision": "fp32", "eval_every": 1}
"""Settings of the run itself that its numbers depend on, besides its end, and what they are if none
is recorded."""

Summary = dict[str, Any]
"""One run as ``--json`` prints it: see :func:`summary`."""


BY = ("clients", "examples")
"""What counts equally in the mean of a metric: a client, or a test example."""


@public
def summary(
    run: Folder, *, metric: str = "", by: str = "clients", best_round: bool = False
) -> Summary:
    """Summarize the run in directory ``run``, after all rounds completed so far.

    If the run has adversaries, ``ari`` and the means, ``std`` and ``worst`` cover the honest
    clients only. Numbers that are not finite are None.

    Args:
        run: A run directory.
        metric: The metric of the score, such as ``validation_accuracy``; empty for the main metric.
        by: What counts equally in mean and std of metrics: ``clients``, or ``examples``, by which a
            client has the weight of its test examples.
        best_round: Whether to summarize the run as it was after the round with the best validation
            score, costs until then included.

    Returns:
        A dict, with the keys below.

        - method, scenario, title (what the data are called: the scenario, or the file or target of
          your own data), seed, rounds (completed)
        - settings (of the method), scenario_settings, training, boundary, robust
        - run_settings: engine, precision, eval_every, and data if these are your own
        - limits (when the run ends) and finished (whether it has ended)
        - best_round: round, metric and score of the round with the best validation score, or None
        - groups and true_groups: lists of lists of client ids; true_groups is None if not known,
          and where data drift that of the last completed round
        - all_clients and sizes: only where the records list the clients that are tested
          (``eval_clients``): the number of all clients, and those of all in each group, in the order
          of groups, then of the groups in which nobody is tested
        - personal: the clients that are served by a personal model, which they train for themselves,
          instead of the model of their group
        - ari: the adjusted Rand index of groups and true_groups over the clients that are present,
          or None
        - adversaries, and isolated: the share of them that is isolated, or None
        - metric: the name of the main metric, better: whether a greater or a smaller value is
          better
        - score: mean, std and worst of the main metric over clients, and per_client, in the last
          tested round; and the same under the metric's own name, such as accuracy
        - few_tests: the clients with fewer than five test rows (or subjects), with which the worst
          value of a client is mostly chance; empty also where the sizes are not recorded
        - loss and each other metric, whose names are in others: the mean over clients
        - bytes_up, bytes_down, exchanges, evaluations, seconds: the sums over all rounds. An
          evaluation is that of a model on a client's data, requested by the method.
        - virtual: of a run on a simulated fleet, its virtual seconds, the idle and lost shares of
          device seconds, joules, and the curve of (seconds, score); None of any other run
        - limited: what limits on single clients changed, see ``limited``; empty if nothing
        - privacy (see ``privacy``)
        - run_dir

    Raises:
        UserError: If no round is completed yet, ``by`` is neither, or with ``best_round`` the run
            has no validation scores.
    """
    if by not in BY:
        raise UserError(f"by must be {' or '.join(BY)}, got {by!r}")
    run = Path(run)
    description, lines = Record(run).shown()
    if best_round:
        lines = lines[: best_round_of(run, description, lines)]
    return summarised(run, description, lines, limited(lines), metric, by)


def summarised(
    run: Path | str,
    description: Mapping[str, Any],
    lines: Sequence[Line],
    limits: Sequence[Limit],
    metric: str = "",
    by: str = "clients",
) -> Summary:
    """Summarize a run, as :func:`summary` does, from records that have been read.

    Args:
        run: The run directory.
        description: The content of ``run.toml``.
        lines: The completed rounds.
        limits: What limits on single clients changed in these rounds.
        metric: The metric of the score, see :func:`summary`.
        by: What counts equally in means, see :func:`summary`.

    Returns:
        The summary, with the keys of :func:`summary`.

    Raises:
        UserError: If ``lines`` is empty.
    """
    if not lines:
        raise UserError(
            f"{run} has no completed round yet; to continue, run coterie resume {in_shell(run)}"
        )
    last_line = lines[-1]
    world = description["world"]
    method = dict(description["methods"][0])
    scenario = flattened(description["scenario"])
    ending = Ending.of(description, lines)
    adversaries = world.get("adversaries", [])
    weights = _weights(run, world, metric) if by == "examples" else None
    numbers: Summary = {
        "method": method.pop("name"),
        "scenario": scenario.pop("name"),
        "title": data_title(description),
        "seed": description["seeds"][0],
        "rounds": last_line["round"],
        "settings": method,
        "scenario_settings": scenario,
        "training": description["training"],
        "boundary": description["boundary"],
        "robust": {**plain(Robust()), **description.get("robust", {})},
        "run_settings": _run_settings(description),
        "limits": {
            "rounds": ending.num_rounds,
            "target": ending.target,
            "stop_after": ending.stop_after,
        },
        "finished": ending.ended,
        "best_round": None if ending.best is None else asdict(ending.best),
        "groups": last_line["groups"],
        "personal": list(last_line.get("personal", ())),
        "true_groups": truth_at(world, last_line["round"]),
        "ari": agreement_at(world, last_line),
        "adversaries": adversaries,
        "few_tests": _clients_with_few_tests(world, metric),
        "isolated": isolated(last_line["groups"], adversaries),
        **scores(lines, metric, weights),
    }
    num_clients = world.get("all_clients", len(world["clients"]))
    virtual = VirtualTime.of_lines(lines, num_clients, metric, weights)
    # Sums over all rounds.
    for count_name in ("bytes_up", "bytes_down", "exchanges", "evaluations"):
        numbers[count_name] = sum(line[count_name] for line in lines)
    numbers |= {
        "seconds": sum(sum(line["seconds"].values()) for line in lines),
        "virtual": None if virtual is None else asdict(virtual),
        "limited": [limit.plain() for limit in limits],
        "privacy": spent_privacy(description, lines),
        "run_dir": str(run),
    }
    # Where the records list some of the clients alone.
    if "all_clients" in world:
        numbers |= {"all_clients": world["all_clients"], "sizes": last_line.get("sizes", [])}
    result: Summary = finite(numbers)
    return result


def _sizes_of_scoring(world: Mapping[str, Any], metric: str) -> Sequence[int]:
    """The numbers of examples with which each client's metrics were computed; empty if they are not recorded."""
    if metric.startswith(VALIDATION):
        return list(world.get("validation_rows", ()))
    return list(world.get("tests", ()))


def _weights(run: Path | str, world: Mapping[str, Any], metric: str) -> dict[str, float]:
    """Client -> its number of examples, as its weight in means.

    Raises:
        UserError: The run has not recorded these numbers.
    """
    sizes = _sizes_of_scoring(world, metric)
    if not sizes:
        raise UserError(
            f"{run} has not recorded how many test examples each client has: compare by clients"
        )
    return {str(client): float(size) for client, size in zip(world["clients"], sizes, strict=True)}


def _clients_with_few_tests(world: Mapping[str, Any], metric: str) -> list[ClientId]:
    """Return the clients with so few rows to score that the worst value is mostly chance."""
    test_sizes = _sizes_of_scoring(world, metric)
    if "test_subjects" in world and not metric.startswith(VALIDATION):
        test_sizes = world["test_subjects"]
    return [
        client
        for client, test_size in zip(world["clients"], test_sizes, strict=False)
        if 0 < test_size < MIN_ROWS_OF_WORST
    ]


def _run_settings(description: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of the run itself, and the data if these are the user's own."""
    settings = {
        setting: description.get(setting, default) for setting, default in RUN_SETTINGS.items()
    }
    # What is set aside for validation scores is missing from the training data.
    if "validation_share" in description:
        settings["validation_share"] = description["validation_share"]
    # A file of the user's own may be any; a named data set is always the same.
    if flattened(description["scenario"]).get("dataset") in OWN_DATA and "data" in description:
        settings["data"] = description["data"]
    return settings


def without(
    groups: Sequence[Sequence[ClientId]], clients: Sequence[ClientId]
) -> list[list[ClientId]]:
    """Return the groups without these clients; groups that become empty are left out.

    Args:
        groups: The client ids of each group.
        clients: The clients to leave out.

    Example:
        >>> without([[0, 1], [2]], [2])
        [[0, 1]]
    """
    remaining_groups = []
    for group in groups:
        remaining = [client for client in group if client not in clients]
        if remaining:
            remaining_groups.append(remaining)
    return remaining_groups


def isolated(groups: Sequence[Sequence[ClientId]], adversaries: Sequence[ClientId]) -> float | None:
    """Return the share of the adversaries that are in no group with an honest client.

    Args:
        groups: The client ids of each group.
        adversaries: The ids of the hostile clients.

    Returns:
        A number from 0 to 1, or None if no adversary is in a group.

    Example:
        >>> isolated([[0, 1, 7], [8, 9]], adversaries=[7, 8, 9])
        0.6666666666666666
    """
    num_adversaries = 0
    num_isolated = 0
    for group in groups:
        # A group of adversaries alone harms nobody.
        adversaries_of_group = sum(client in adversaries for client in group)
        num_adversaries += adversaries_of_group
        if adversaries_of_group == len(group):
            num_isolated += adversaries_of_group
    return num_isolated / num_adversaries if num_adversaries else None


def spent_privacy(description: Mapping[str, Any], lines: Sequence[Line]) -> Summary | None:
    """Return the privacy loss under noise, of clients or of single rows, and its ``words``; None without noise.

    Args:
        description: The content of ``run.toml``.
        lines: The completed rounds.
    """
    # Noise within local training is that of an extension, which computes what it protects.
    optimizer = description["training"].get("optimizer", "")
    if optimizer in entry_points("coterie.optimizers"):
        of_training: Summary | None = provided("coterie.optimizers", optimizer).privacy(
            description, lines
        )
        return of_training
    return privacy(description["boundary"], lines)


def privacy(boundary: Mapping[str, Any], lines: Sequence[Line]) -> Summary | None:
    """Return the privacy loss of a client's data under noise.

    It is the loss of the client that sent the most updates; see :func:`coterie.boundary.spent`.

    Args:
        boundary: The settings of the boundary.
        lines: The completed rounds.

    Returns:
        epsilon, delta, updates (the number of updates sent) and words, or None without noise.
    """
    if not boundary.get("noise"):
        return None
    # A client's updates are counted where it sent some.
    updates_of_client: Counter[str] = Counter()
    for line in lines:
        updates_of_client.update(line.get("released", {}))
    num_updates = max(updates_of_client.values(), default=0)
    delta = boundary.get("delta", Boundary.delta)
    # With masks the noise is on sums over clients.
    epsilon = spent(boundary["noise"], num_updates, delta, sums=boundary.get("masks", False))
    return {
        "epsilon": epsilon,
        "delta": delta,
        "updates": num_updates,
        "words": f"ε = {epsilon:.3g} at δ = {delta:g} after {num_updates} updates of the client that sent the most",
    }


def agreement(
    groups: Sequence[Sequence[ClientId]], truth: Sequence[Sequence[ClientId]] | None
) -> float | None:
    """Return the adjusted Rand index of two partitions of the same clients.

    Args:
        groups: The client ids of each group.
        truth: The client ids of each true group, or None if not known.

    Returns:
        The index, or None if ``truth`` is None or has other clients.
    """
    if truth is None:
        return None
    # The index compares partitions of the same clients only.
    group_of_client = _group_numbers(groups)
    true_group_of_client = _group_numbers(truth)
    if group_of_client.keys() != true_group_of_client.keys():
        return None
    clients = sorted(group_of_client)
    return adjusted_rand(
        [group_of_client[client] for client in clients],
        [true_group_of_client[client] for client in clients],
    )


def _group_numbers(groups: Sequence[Sequence[ClientId]]) -> dict[ClientId, int]:
    """Return client -> number of its group."""
    group_of_client: dict[ClientId, int] = {}
    for number, group in enumerate(groups):
        group_of_client.update(dict.fromkeys(group, number))
    return group_of_client


def agreement_at(world: Mapping[str, Any], line: Line) -> float | None:
    """Return the adjusted Rand index of a round's groups and its true groups, over honest clients in groups.

    Args:
        world: The table ``world`` of ``run.toml``.
        line: The record of the round.

    Returns:
        The index, or None if the true groups are not known.
    """
    groups = line["groups"]
    truth = truth_at(world, line["round"])
    if truth is None:
        return None
    adversaries = world.get("adversaries", [])
    # Both partitions must have the same clients: the honest ones that are in a group.
    present = _group_numbers(groups)
    absent: list[ClientId] = []
    for true_group in truth:
        absent += [client for client in true_group if client not in present]
    return agreement(without(groups, adversaries), without(truth, [*adversaries, *absent]))


def silent(line: Line, client: ClientId) -> bool:
    """Return whether a client was asked in a round and did not answer.

    A client whose reply was refused has answered.

    Args:
        line: The record of the round.
        client: The client's id.
    """
    return client in line["silent"] and str(client) not in line["refused"]


def absent(line: Line, client: ClientId) -> bool:
    """Return whether a client was away in a round, so that it was not asked. Older records do not say it.

    Args:
        line: The record of the round.
        client: The client's id.
    """
    return str(client) in line.get("absent", {})


ABOUT = ("group", "adversary")
"""Entries about a client in a round's record that are not metrics."""


def scores(
    lines: Sequence[Line], metric: str = "", weights: Mapping[str, float] | None = None
) -> Summary:
    """Return the main metric, the loss and each other metric of the last tested round of ``lines``.

    Args:
        lines: The completed rounds.
        metric: The metric that stands in the place of the main one; empty for the main metric.
        weights: Client -> its weight in means, see :func:`coterie.records.shown.spread`.

    Raises:
        UserError: No client has a value of this metric.
    """
    naming = shown_as(lines[-1])
    main_metric = metric or naming.main
    numbers: Summary = {
        "metric": main_metric,
        "better": naming.direction(main_metric),
        "others": [],
        "score": None,
        main_metric: None,
        "loss": None,
    }
    tested_line = last_tested(lines)
    if tested_line is None:
        return numbers
    # A client may lack some metrics. The keys are an ordered set.
    metrics: dict[str, None] = {}
    for entry in tested_line["clients"].values():
        metrics |= dict.fromkeys(entry_name for entry_name in entry if entry_name not in ABOUT)
    if metric and metric not in metrics:
        raise UserError(
            f"these runs have no metric {metric!r}{nearest(metric, metrics)}{known_list(metrics)}"
        )
    for name in metrics:
        if name != main_metric:
            numbers[name] = spread(tested_line, name, weights)["mean"]
    numbers["others"] = [name for name in metrics if name not in (main_metric, "loss")]
    numbers["score"] = spread(tested_line, main_metric, weights)
    numbers[main_metric] = numbers["score"]
    return numbers


def last_tested(lines: Sequence[Line]) -> Line | None:
    """Return the last tested round; None if there is none."""
    return next((line for line in reversed(lines) if line["tested"]), None)


def expand(folders: Folder | Iterable[Folder]) -> list[Path]:
    """Return the run directories among ``folders`` and inside them, each once.

    Args:
        folders: Run directories, or folders that contain some, or folders of such folders; a single one need not be in a list.

    Raises:
        UserError: If one of ``folders`` is a file, or contains no run.
    """
    listed: list[Any] = [folders]
    if isinstance(folders, Iterable) and not isinstance(folders, str | os.PathLike):
        listed = list(folders)
    # The caller may have passed anything.
    for folder in listed:
        if not isinstance(folder, str | os.PathLike):
            raise UserError(
                f"runs must be run directories, or folders of them, got {brief(folder)}"
            )
    # A run counts once, by whatever path it is named.
    run_folders: list[Path] = []
    for folder in map(Path, listed):
        listed_before = {run.resolve() for run in run_folders}
        run_folders += [run for run in _runs_in(folder) if run.resolve() not in listed_before]
    return run_folders


def _runs_in(folder: Path) -> list[Path]:
    """Return a run directory itself, or the run directories in a folder, or in the folders in it."""
    if folder.is_file():
        raise UserError(f"{folder} is a file; give the run directory that contains it")
    if (folder / RUN_FILE).is_file():
        return [folder]
    run_folders = sorted(path.parent for path in folder.glob(f"*/{RUN_FILE}"))
    if not run_folders:
        run_folders = sorted(path.parent for path in folder.glob(f"*/*/{RUN_FILE}"))
    if not run_folders:
        raise UserError(
            f"{folder} is not a run directory and contains none: there is no {RUN_FILE}"
        )
    # A link may not lead out of the folder.
    for run_folder in run_folders:
        within(folder, run_folder.relative_to(folder).as_posix())
    return run_folders


def interval(values: Sequence[float | None], confidence: float = 0.95) -> dict[str, float | None]:
    """Return the mean of some values and its confidence interval by Student's t.

    Args:
        values: The values; None for one that is missing.
        confidence: The level of the interval.

    Returns:
        mean, low, high. All are None if a value is missing or there are no values; low and high are
        None for one value.

    Example:
        >>> interval([0.8, 0.9, 1.0])["low"].__round__(4)  # 0.9 - 4.3027 * 0.1 / sqrt(3)
        0.6516
    """
    # A mean is not known if one of its values is missing.
    sample = [value for value in values if value is not None]
    sample_size = len(sample)
    if sample_size == 0 or sample_size < len(values):
        return {"mean": None, "low": None, "high": None}
    mean = float(np.mean(sample))
    if sample_size == 1:
        return {"mean": mean, "low": None, "high": None}
    # Student's t with n - 1 degrees of freedom, and the standard error of the mean.
    quantile = scipy.special.stdtrit(sample_size - 1, (1 + confidence) / 2)
    half_width = float(quantile * np.std(sample, ddof=1) / np.sqrt(sample_size))
    return {"mean": mean, "low": mean - half_width, "high": mean + half_width}
