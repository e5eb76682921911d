"""The command ``coterie register``."""

from __future__ import annotations

import argparse
import os
from dataclasses import asdict

from coterie.cli.arguments import Command, Parser
from coterie.printable import say

REGISTER_DESCRIPTION = """\
Register the models of an export's groups in MLflow's model registry, with the run, the round, the group and a digest:
that of the server in MLFLOW_TRACKING_URI, else of RUN/track/mlflow.

  coterie export runs/sites/auto-seed0 --to models
  coterie register models --run runs/sites/auto-seed0 --name sites"""


def options(parser: Parser) -> None:
    """Add the command's arguments to its parser."""
    parser.add_argument("export", metavar="EXPORT", help="a folder that coterie export wrote")
    parser.add_argument(
        "--run", required=True, metavar="RUN", help="the run directory of which the export is"
    )
    parser.add_argument(
        "--name", required=True, metavar="NAME", help="a group's model is called NAME-group-G"
    )
    parser.add_argument("--json", action="store_true", help="print only the result, as JSON")


def run(arguments: argparse.Namespace) -> int:
    """Print the registered versions; returns the exit status."""
    # Imported here, so that help appears immediately.
    from coterie.contrib.tracking.registry import register
    from coterie.records.text_files import to_json

    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
    models = register(arguments.export, arguments.run, arguments.name)
    if arguments.json:
        say(to_json([asdict(model) for model in models]))
        return 0
    for model in models:
        state = "registered" if model.is_new else "was registered before, with the same files"
        say(f"{model.name} version {model.version}: {state}")
    return 0


REGISTER_COMMAND = Command("register exported models in MLflow", REGISTER_DESCRIPTION, options, run)
