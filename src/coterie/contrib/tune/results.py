"""What a tuning leaves in its folder: the tuned experiment, and a table of all trials."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.console import Group as Together
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from coterie.contrib.tune.judging import TRIAL_COMPLETE, TRIAL_FAILED, TRIAL_PRUNED
from coterie.contrib.tune.tuning import Tuning
from coterie.notebook.tables import count
from coterie.records.store import write_whole
from coterie.records.text_files import to_toml
from coterie.runs.experiment import Spec
from coterie.settings import UserError, in_shell

TUNED_FILE = "tuned.toml"
TABLE_FILE = "trials.csv"


def write_results(tuning: Tuning) -> list[Path]:
    """Write the tuned experiment and the table of trials.

    If settings that methods share were searched, such as those of training, each method has a file
    of its own: the best ones may differ, and cannot be in one experiment.

    Args:
        tuning: The tuning, with all trials.

    Returns:
        The files of experiments.

    Raises:
        UserError: A method has no trial that was completed.
    """
    write_whole(tuning.folder / TABLE_FILE, _csv(tuning).encode())
    for method in tuning.methods:
        if tuning.best(method) is None:
            reasons = [trial.reason for trial in tuning.trials_of(method) if trial.reason]
            reason = reasons[0] if reasons else "all were stopped early"
            raise UserError(f"no trial of {method} was completed: {reason}")
    if len(tuning.methods) > 1 and tuning.searches_shared_settings:
        specs = {f"tuned-{method}.toml": tuning.tuned_spec_of(method) for method in tuning.methods}
    else:
        specs = {TUNED_FILE: tuning.tuned_spec()}
    paths = []
    for file_name, spec in specs.items():
        write_whole(tuning.folder / file_name, _experiment_text(tuning, spec).encode())
        paths.append(tuning.folder / file_name)
    return paths


def _experiment_text(tuning: Tuning, spec: Spec) -> str:
    """An experiment file, with a comment that says where its settings are from."""
    trials_text = count(sum(map(len, tuning.judged.values())), "trial")
    head = (
        f"# Settings of the best validation score among {trials_text} of coterie tune, "
        f"with the seeds {', '.join(map(str, tuning.spec['seeds']))}.\n"
        "# The seeds below were not used for tuning.\n\n"
    )
    # Empty tables say nothing.
    tables = {key: value for key, value in spec.items() if value != {}}
    return head + to_toml(tables)


def _csv(tuning: Tuning) -> str:
    """A line per trial: its settings, a column each, and its score."""
    keys: dict[str, None] = {}
    for method in tuning.methods:
        for trial in tuning.trials_of(method):
            keys |= dict.fromkeys(trial.settings)
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["method", "trial", "state", "score", "rounds", "seconds", *keys, "reason"])
    for method in tuning.methods:
        for trial in tuning.trials_of(method):
            values = [_plain(trial.settings.get(key, "")) for key in keys]
            score = "" if trial.score is None else round(trial.score, 6)
            row = [method, trial.number, trial.state, score, trial.rounds, trial.seconds]
            writer.writerow([*row, *values, trial.reason])
    return text.getvalue()


def _plain(value: Any) -> Any:
    return json.dumps(value) if isinstance(value, list | dict) else value


def summary(tuning: Tuning) -> list[dict[str, Any]]:
    """An entry per method: its trials, the score of its first trial and of its best one, and the best settings.

    ``changed`` are those of the best settings that the first trial, with the settings as given, has
    not.
    """
    entries = []
    for method in tuning.methods:
        trials = tuning.trials_of(method)
        states = [trial.state for trial in trials]
        best = tuning.best(method)
        best_settings = {} if best is None else dict(best.settings)
        first_settings = trials[0].settings if trials else {}
        changed = {}
        for key, value in best_settings.items():
            if key not in first_settings or first_settings[key] != value:
                changed[key] = value
        entries.append(
            {
                "method": method,
                "trials": len(trials),
                "complete": states.count(TRIAL_COMPLETE),
                "pruned": states.count(TRIAL_PRUNED),
                "failed": states.count(TRIAL_FAILED),
                "first_score": trials[0].score if trials else None,
                "score": None if best is None else best.score,
                "settings": best_settings,
                "changed": changed,
                "searched": {key: str(values) for key, values in tuning.spaces[method].items()},
                "seconds": round(sum(trial.seconds for trial in trials), 2),
            }
        )
    return entries


def screen(tuning: Tuning, files: list[Path]) -> Together:
    """The result for a terminal: a row per method, its best settings, and where they are written."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    columns = ("method", "trials", "stopped", "first", "best", "best settings")
    for column in columns:
        is_text = column in ("method", "best settings")
        table.add_column(column, justify="left" if is_text else "right", overflow="fold")
    notes = []
    for entry in summary(tuning):
        stopped = entry["pruned"] + entry["failed"]
        assignments = ", ".join(f"{key}={value}" for key, value in entry["changed"].items())
        as_before = "as given" if entry["searched"] else "(nothing to search)"
        numbers = [_decimals(entry[key]) for key in ("first_score", "score")]
        table.add_row(
            entry["method"],
            str(entry["trials"]),
            str(stopped),
            *numbers,
            assignments or as_before,
        )
        if not entry["searched"]:
            notes.append(f"{entry['method']} has no setting to search here, so it has one trial")
    parts: list[RenderableType] = [
        Text(
            "Mean validation scores, of examples that no model was trained on; test data were not read",
            style="bold",
        ),
        table,
    ]
    parts += [Text(note, style="dim") for note in notes]
    parts.append(Text("\nto test the best settings on seeds that were not used:"))
    for path in files:
        parts.append(Text(f"  coterie run {in_shell(path)}"))
    parts.append(Text(f"all trials: {tuning.folder / TABLE_FILE}"))
    return Together(*parts)


def _decimals(score: float | None) -> str:
    return "-" if score is None else f"{score:.3f}"


def as_json(tuning: Tuning, files: list[Path]) -> Mapping[str, Any]:
    """The result as one JSON object."""
    return {
        "folder": str(tuning.folder),
        "experiments": list(map(str, files)),
        "methods": summary(tuning),
    }
