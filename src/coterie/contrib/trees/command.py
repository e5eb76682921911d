"""The command ``coterie trees``."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from coterie.cli.arguments import Command, Parser, consent_options, whole
from coterie.printable import say

TREES_DESCRIPTION = """\
Group clients whose models are trees, forests or linear models, which have no updates to average. Each client's model is
scored at each client on rows that were held out; clients whose models serve each other are a group, which is served by
the mean of their predictions. Compared with each client alone, and with one ensemble for all. For tables.

  coterie trees runs/sites
  coterie trees experiment.toml --family "random forest" --groups 3
  coterie trees runs/sites --matrix"""


def options(parser: Parser) -> None:
    """Add the command's arguments to its parser."""
    parser.add_argument(
        "source",
        metavar="SOURCE",
        help="a run directory, or an experiment file: its clients and rows",
    )
    parser.add_argument(
        "--family",
        default="gradient boosting",
        metavar="F",
        help="gradient boosting (default), linear, random forest, or xgboost",
    )
    parser.add_argument(
        "--groups", metavar="K", type=whole, help="number of groups (chosen on held-out rows)"
    )
    parser.add_argument(
        "--matrix", action="store_true", help="print the losses of all models at all clients"
    )
    parser.add_argument("--json", action="store_true", help="print only the result, as JSON")
    consent_options(parser)


def run(arguments: argparse.Namespace) -> int:
    """Print groups and scores; returns the exit status."""
    # Imported here, so that help appears immediately.
    from coterie.cli.commands import given
    from coterie.contrib.trees.federating import federate
    from coterie.contrib.trees.models import model_of
    from coterie.records.text_files import to_json
    from coterie.report.live import Steps, watched

    # Mistakes that are found without reading the data.
    model_of(arguments.family)
    world, seed = _world(arguments.source, given(arguments))
    num_models = 2 * (len(world.clients) - len(world.attacks))
    with Steps(watched(arguments.json), "training models", num_models) as steps:
        federation = federate(
            world, arguments.family, groups=arguments.groups, seed=seed, step=steps.step
        )
    if arguments.json:
        say(to_json(_as_json(federation)))
        return 0
    say(str(federation))
    if arguments.matrix:
        say(_matrix(federation))
    return 0


def _world(source: str, consent: dict[str, Any]) -> tuple[Any, int]:
    """The clients of a run, or of an experiment file, and the seed."""
    from coterie.runs.experiment import make, read
    from coterie.runs.folders import reopen

    if Path(source).is_dir():
        runs = reopen(source, **consent)
        return runs[0].experiment.world(runs[0].seed), runs[0].seed
    experiment = make(read(source, **consent))
    return experiment.world(experiment.seeds[0]), experiment.seeds[0]


def _as_json(federation: Any) -> dict[str, Any]:
    """A federation as plain tables."""
    return {
        "family": federation.family,
        "groups": federation.groups,
        "metric": federation.metric,
        "clients": federation.rows(),
        "cross_losses": federation.cross_losses.tolist(),
        "candidates": [
            {
                "groups": candidate.num_groups,
                "loss": candidate.loss,
                "behind": candidate.behind,
                "standard_error": candidate.standard_error,
            }
            for candidate in federation.candidates
        ],
        "verdict": federation.verdict(),
    }


def _matrix(federation: Any) -> str:
    """The cross-losses as a table of text: a row for each model, a column for each client."""
    names = [str(client)[:8] for client in federation.clients]
    lines = ["", "loss of the model of a row at the client of a column, on held-out rows"]
    lines.append(f"{'':<8}  " + "  ".join(f"{name:>8}" for name in names))
    for name, losses in zip(names, federation.cross_losses, strict=True):
        lines.append(f"{name:<8}  " + "  ".join(f"{loss:>8.3f}" for loss in losses))
    return "\n".join(lines)


TREES_COMMAND = Command(
    "groups of clients with trees or linear models", TREES_DESCRIPTION, options, run
)
