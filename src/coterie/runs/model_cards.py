"""Scores of an export's models with their intervals, and a model card in Markdown for each group.

The cards follow Mitchell et al., Model Cards for Model Reporting (FAT* 2019), as far as a run knows
the answers: which data, how the model was made and chosen, how well it predicts, and its limits.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import scipy

from coterie.data.objective import METRICS
from coterie.notebook.tables import count
from coterie.printable import printable
from coterie.records.shown import Line, mean_of, shown_as

NORMAL_QUANTILE = 1.96
"""Half the 95% interval of a normal distribution, in standard deviations."""

MAX_CARD_ENTRIES = 50
"""Most clients that a card lists one by one."""


def wilson_interval(share: float, rows: int) -> tuple[float, float]:
    """Return the 95% interval of a share of independent rows (Wilson, JASA 22, 1927).

    Example:
        >>> tuple(round(end, 3) for end in wilson_interval(0.9, 100))
        (0.826, 0.945)
    """
    squared = NORMAL_QUANTILE**2
    centre = (share + squared / (2 * rows)) / (1 + squared / rows)
    half = math.sqrt(share * (1 - share) / rows + squared / (4 * rows**2)) * NORMAL_QUANTILE
    half /= 1 + squared / rows
    return max(0.0, centre - half), min(1.0, centre + half)


def mean_interval(values: Sequence[float]) -> tuple[float, float] | None:
    """Return the 95% interval of a mean over clients, by Student's t; None for fewer than two."""
    if len(values) < 2:
        return None
    quantile = float(scipy.special.stdtrit(len(values) - 1, 0.975))
    half = quantile * float(np.std(values, ddof=1)) / math.sqrt(len(values))
    mean = float(np.mean(values))
    return mean - half, mean + half


def scores(
    tested_line: Line | None, groups: Sequence[Sequence[Any]], rows: Mapping[str, Mapping[str, int]]
) -> dict[str, Any] | None:
    """Return the scores of an export.

    Args:
        tested_line: The shown line of the last tested round; None if none was tested.
        groups: The groups, by the names of the clients.
        rows: Name of a client -> its training, validation and test rows.

    Returns:
        ``round``, ``metric`` and ``better``; ``clients``: name -> its metrics and, of a share of
        right predictions, its ``interval`` over test rows; ``groups``: for each the ``mean`` and its
        ``interval`` over clients. None without a test.
    """
    if tested_line is None:
        return None
    naming = shown_as(tested_line)
    metric = METRICS.get(naming.main)
    is_share_of_rows = metric is not None and metric.share and not metric.whole
    client_scores = {}
    for client_name, client_entry in tested_line["clients"].items():
        metrics = {
            metric_name: value
            for metric_name, value in client_entry.items()
            if isinstance(value, float) and math.isfinite(value)
        }
        score = metrics.get(naming.main)
        test_rows = rows.get(client_name, {}).get("test", 0)
        entry: dict[str, Any] = {"metrics": metrics}
        if score is not None and is_share_of_rows and test_rows:
            entry["interval"] = list(wilson_interval(score, test_rows))
        client_scores[client_name] = entry
    group_scores = []
    for group in groups:
        values = []
        for client_name in map(str, group):
            score = client_scores.get(client_name, {"metrics": {}})["metrics"].get(naming.main)
            if score is not None:
                values.append(score)
        interval = mean_interval(values)
        # No share is below 0 or above 1.
        if interval is not None and metric is not None and metric.share:
            interval = max(0.0, interval[0]), min(1.0, interval[1])
        group_scores.append(
            {
                "mean": mean_of(tested_line, group),
                "interval": None if interval is None else list(interval),
            }
        )
    return {
        "round": tested_line["round"],
        "metric": naming.main,
        "better": naming.better,
        "clients": client_scores,
        "groups": group_scores,
    }


def model_card(
    document: Mapping[str, Any],
    group_number: int,
    settings: Mapping[str, Any],
    training: Mapping[str, Any],
    rows: Mapping[str, Mapping[str, int]],
) -> str:
    """Return the model card of a group.

    Args:
        document: The entries of ``models.json``.
        group_number: The group.
        settings: The settings of the method.
        training: The settings of local training.
        rows: Name of a client -> its training, validation and test rows; empty if not known.
    """
    members = list(map(str, document["groups"][group_number]))
    group_model = document["group_models"][group_number]
    lines = [
        f"# Model card: group {group_number} of {_code(document['scenario'])}",
        "",
        f"Written by Coterie {document['coterie']} with PyTorch {document['torch']}, from round "
        f"{document['round']} of a run of the method {_code(document['method'])} with seed {document['seed']}.",
        "",
        "## Model",
        "",
    ]
    lines += _model_lines(document, group_model)
    lines += ["", "## Data", ""]
    lines += _data_lines(document, members, rows)
    lines += ["", "## How it was made and chosen", ""]
    state = "the last" if document["finished"] else "which is not the last"
    other_models = ""
    if len(document["groups"]) > 1:
        other_models = (
            f", together with {count(len(document['groups']) - 1, 'model')} of other groups"
        )
    lines += [
        f"The method {_code(document['method'])} trained the model{other_models}, and decided which clients share it. "
        f"The export has the model of the newest checkpoint, after round {document['round']}, {state} round of the "
        "run. Methods see no test rows.",
        "",
        f"- Settings of the method: {_settings(settings)}",
        f"- Local training: {_settings(training)}",
    ]
    lines += ["", "## Scores", ""]
    lines += _score_lines(document, group_number, members, rows)
    lines += ["", "## Calibration", ""]
    lines += _calibration_lines(document, group_model)
    lines += ["", "## Limits", ""]
    lines += _limit_lines(document)
    return "\n".join(lines) + "\n"


def _model_lines(document: Mapping[str, Any], group_model: Any) -> list[str]:
    net = document["model"]
    lines = []
    if net is None:
        lines.append("- A net of the user's own code.")
    else:
        lines.append(
            f"- Net {_code(net['name'])}, inputs of shape {net['shape']}, {net['classes']} outputs."
        )
    if group_model is None:
        lines.append(
            "- The group has no model as a whole: each client has its own, see `models.json`."
        )
    else:
        for file_name in _files_of(group_model):
            lines.append(f"- `{file_name}`, digest `{document['files'][file_name]}`")
    about_data = document["data"] or {}
    if about_data.get("classes"):
        lines.append(
            f"- Classes: {', '.join(map(_code, about_data['classes'][:MAX_CARD_ENTRIES]))}"
        )
    if about_data.get("features"):
        lines.append(
            f"- Columns: {', '.join(map(_code, about_data['features'][:MAX_CARD_ENTRIES]))}"
        )
    if about_data.get("means"):
        lines.append("- Inputs are standardized by the constants in `models.json`.")
    if document["target_scale"] is not None:
        lines.append(
            "- Targets are standardized; `coterie.load` returns predictions in their unit."
        )
    return lines


def _data_lines(
    document: Mapping[str, Any], members: Sequence[str], rows: Mapping[str, Mapping[str, int]]
) -> list[str]:
    lines = [f"{count(len(members), 'client')} of the scenario {_code(document['scenario'])}."]
    if not rows:
        return [*lines, "", f"Their numbers of rows are not known: {document['without_data']}."]
    lines += ["", "| client | training rows | validation rows | test rows |", "|---|---|---|---|"]
    for client_name in members[:MAX_CARD_ENTRIES]:
        of_client = rows.get(client_name, {})
        counts = " | ".join(
            f"{of_client.get(part, 0):,}" for part in ("train", "validation", "test")
        )
        lines.append(f"| {_cell(client_name)} | {counts} |")
    totals = []
    for part in ("train", "validation", "test"):
        totals.append(f"{sum(rows.get(name, {}).get(part, 0) for name in members):,}")
    lines.append(f"| all {len(members)} | {' | '.join(totals)} |")
    return lines


def _score_lines(
    document: Mapping[str, Any],
    group_number: int,
    members: Sequence[str],
    rows: Mapping[str, Mapping[str, int]],
) -> list[str]:
    export_scores = document["scores"]
    if export_scores is None:
        return ["No round of the run was tested."]
    metric = export_scores["metric"]
    group_score = export_scores["groups"][group_number]
    of_group = (
        f"over the group's clients, each on its own test rows: {_number(group_score['mean'])}"
    )
    if group_score["interval"] is not None:
        of_group += (
            f" (95% interval over clients, Student's t: {_interval(group_score['interval'])})"
        )
    lines = [
        f"Mean {_code(metric)} {of_group}, after round {export_scores['round']}; {export_scores['better']} is better.",
        "",
        f"| client | {_cell(metric)} | 95% interval over its test rows | loss |",
        "|---|---|---|---|",
    ]
    for client_name in members[:MAX_CARD_ENTRIES]:
        entry = export_scores["clients"].get(client_name, {"metrics": {}})
        metrics = entry["metrics"]
        interval = _interval(entry["interval"]) if "interval" in entry else "not known"
        score = _number(metrics.get(metric))
        lines.append(
            f"| {_cell(client_name)} | {score} | {interval} | {_number(metrics.get('loss'))} |"
        )
    if len(members) > MAX_CARD_ENTRIES:
        lines.append(f"\nThe first {MAX_CARD_ENTRIES} clients; `models.json` has all.")
    return lines


def _calibration_lines(document: Mapping[str, Any], group_model: Any) -> list[str]:
    calibration = document["calibration"]
    net_name = "" if group_model is None else "+".join(_files_of(group_model))
    if net_name not in calibration:
        reason = (
            document["without_data"]
            or "the model gives no probabilities of single rows, or no validation rows are left"
        )
        return [f"Not calibrated: {reason}."]
    entry = calibration[net_name]
    source = (
        "all models together, because this model has few validation rows"
        if entry["shared"]
        else "this model"
    )
    lines = [
        f"Logits are divided by the temperature {entry['temperature']:.3f}, fitted on the validation rows of {source}.",
    ]
    if entry["test_rows"]:
        lines.append(
            f"On {entry['test_rows']:,} test rows, the expected calibration error (15 bins) is "
            f"{entry['error_before']:.3f} before and {entry['error_after']:.3f} after, and the loss "
            f"{entry['loss_before']:.3f} and {entry['loss_after']:.3f}."
        )
    return lines


def _limit_lines(document: Mapping[str, Any]) -> list[str]:
    lines = [
        "- The scores are those of clients that took part in training. `coterie place` says whether another site is like "
        "the clients of a group.",
        "- If a column has another unit, or the data have changed since, predictions are wrong without an error.",
    ]
    if document["stays"]:
        lines.append(
            f"- Layers that stay at the clients are not in the file: {', '.join(document['stays'])}."
        )
    placement = document["placement"] or {}
    for source, words in (("labels", "by labels"), ("inputs", "without labels")):
        if source in placement:
            lines.append(
                f"- `coterie place` {words} finds the own group of {placement[source]['accuracy']:.0%} of the training "
                "clients, each left out in turn."
            )
    return lines


def _files_of(group_model: Mapping[str, Any]) -> list[str]:
    """The files of a group's net."""
    return list(group_model["files"])


def _settings(settings: Mapping[str, Any]) -> str:
    """Settings in one line."""
    shown = []
    for setting_name, value in settings.items():
        if setting_name != "name" and not isinstance(value, Mapping):
            shown.append(_code(f"{setting_name} = {value}"))
    return ", ".join(shown) or "none"


def _code(text: Any) -> str:
    """A text in the type of code; it can contain no Markdown."""
    return "`" + printable(str(text)).replace("`", "'") + "`"


def _cell(text: Any) -> str:
    """A text in a cell of a table."""
    return _code(text).replace("|", "\\|")


def _number(value: Any) -> str:
    return "not known" if value is None else f"{value:.3f}"


def _interval(ends: Sequence[float]) -> str:
    return f"{ends[0]:.3f} to {ends[1]:.3f}"
