"""The commands ``coterie federation``, for who runs a federation, and ``coterie node``, for a site."""

from __future__ import annotations

import argparse
from pathlib import Path

from coterie.cli.arguments import Command, Parser, UsageError
from coterie.printable import say

FEDERATION_DESCRIPTION = """\
Write the Flower app of a federation of sites with tables, from a simulation over such tables (coterie schema, coterie run).
Its file federation.toml has the run's method and settings, and the schema of its tables. The sites agree on constants
(medians, levels, means) from sums of their own rows when the federation starts. Sites need the file, and nothing of the run.

  coterie federation runs/trial -o app
  flwr run app"""

NODE_DESCRIPTION = """\
Check the rows of a site against a federation's file, and write the node config with which its SuperNode starts. What does
not fit (columns, types, classes, values of another unit) is said in one sentence. Nothing is sent.

  coterie node federation.toml --client north --data records.csv -o node.toml
  coterie node federation.toml --client north --data env:CLINIC_DATABASE --query visits.sql -o node.toml
  flower-supernode --superlink HOST:PORT --root-certificates ca.pem --auth-supernode-private-key KEY --node-config node.toml"""

APP_PACKAGE = "sites_app"

APP_MODULE = '''\
"""What runs at {where}: Coterie's app for tables, with the settings of federation.toml."""

from pathlib import Path

from {module} import {function}

app = {function}(Path(__file__).parents[1] / "federation.toml")
'''

PYPROJECT = """\
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "sites-app"
version = "1.0.0"
description = "A federation of sites with tables, with Coterie on Flower"
license = "Apache-2.0"
dependencies = ["coterie[flower]"]

[tool.hatch.build.targets.wheel]
packages = ["."]

[tool.flwr.app]
publisher = "coterie"

[tool.flwr.app.components]
serverapp = "sites_app.server:app"
clientapp = "sites_app.client:app"

# What the server's operator may choose at the start of a run; all else is in federation.toml.
[tool.flwr.app.config]
rounds = {rounds}
nodes = {nodes}              # sites that must be connected before the first round
out = ""               # the run directory at the server; none where empty
identity = "claimed"   # a node is the site that it says; see docs/deploy/network.md
clients = ""           # a TOML file that lists which key is which site; none where empty
eval-every = {eval_every}         # rounds between tests
wait = 600.0           # seconds to wait for the sites
timeout = 3600.0       # seconds that an exchange may take
min-replies = 0.8      # once this share of the sites has answered, the others have the grace time left:
grace = 2.0            # as many times as long again as that took, and 60 seconds at least
patience = 10          # rounds without an answer after which a site is away
sites = ""             # of a simulation: the folder with a table for each site
"""


def federation_options(parser: Parser) -> None:
    """Add the arguments of ``coterie federation`` to its parser."""
    parser.add_argument("run", metavar="RUN", help="a run directory of a simulation over tables")
    parser.add_argument(
        "-o", "--out", metavar="FOLDER", required=True, help="the new folder of the app"
    )
    parser.add_argument(
        "--schema",
        metavar="FILE.toml",
        help="the table schema, if it is not where the run says (its settings may have changed)",
    )
    parser.add_argument(
        "--constants",
        action="store_true",
        help="take the constants of the run; by default the sites agree on constants of their own rows",
    )
    parser.add_argument(
        "--masks",
        action="store_true",
        help="the server learns only sums over all sites while they agree (secure aggregation)",
    )


def write_app(arguments: argparse.Namespace) -> int:
    """Write the app of a federation; returns the exit status."""
    from coterie.contrib.sites.federation_file import FILE_NAME, TableFederation
    from coterie.notebook.tables import count

    out = Path(arguments.out)
    if out.exists():
        raise UsageError(f"{out} exists: choose another folder, or remove it")
    federation = TableFederation.from_run(
        arguments.run,
        schema_file=arguments.schema,
        constants=arguments.constants,
        masks=arguments.masks,
    )
    pyproject = PYPROJECT.format(
        rounds=federation.experiment.rounds,
        nodes=max(len(federation.common.sites), 2),
        eval_every=federation.experiment.eval_every,
    )
    modules = {
        "client": ("a site", "coterie.contrib.sites.flower.site_app", "site_app"),
        "server": ("the server", "coterie.contrib.sites.flower.site_server", "server_app"),
    }
    # Everything is checked: the folder is written at last.
    package = out / APP_PACKAGE
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    for name, (imported_from, module, function) in modules.items():
        text = APP_MODULE.format(where=imported_from, module=module, function=function)
        (package / f"{name}.py").write_text(text)
    (out / "pyproject.toml").write_text(pyproject)
    (out / FILE_NAME).write_text(federation.toml())
    rules = "constants of the run"
    if federation.schema.rules or federation.scenario.scaling.standardize == "pooled":
        rules = "constants that the sites agree on"
    say(
        f"written to {out}: {federation.method.name}, {count(federation.experiment.rounds, 'round')}, "
        f"{count(len(federation.schema.columns), 'column')}, {rules}"
    )
    return 0


def node_options(parser: Parser) -> None:
    """Add the arguments of ``coterie node`` to its parser."""
    parser.add_argument("federation", metavar="FEDERATION.toml", help="the federation's file")
    parser.add_argument("--client", metavar="NAME", required=True, help="the site's name")
    parser.add_argument(
        "--data",
        metavar="FILE",
        required=True,
        help="a table (.csv, .csv.gz, .parquet), an address of a database such as "
        "sqlite:////srv/clinic.db, or env:NAME for either in a variable of the environment",
    )
    parser.add_argument(
        "--query", metavar="SQL", default="", help="of a database: a query, or a .sql file with it"
    )
    parser.add_argument(
        "--keep-dir",
        metavar="DIR",
        help="a folder for what stays at the site, such as personal models",
    )
    parser.add_argument("-o", "--out", metavar="NODE.toml", help="the new file of the node config")


def check_node(arguments: argparse.Namespace) -> int:
    """Check the rows of a site, and write its node config; returns the exit status."""
    from coterie.contrib.sites.federation_file import TableFederation
    from coterie.contrib.sites.site import Site
    from coterie.contrib.sites.sources import VARIABLE, read_source
    from coterie.contrib.sites.table_schema import toml_text
    from coterie.data.world import check_name
    from coterie.files import expanded
    from coterie.notebook.tables import count
    from coterie.records.store import write_whole

    out = Path(arguments.out) if arguments.out else None
    if out is not None and out.exists():
        raise UsageError(
            f"{out} exists, and may have been edited: choose another name, or remove it"
        )
    check_name(arguments.client, "--client")
    federation = TableFederation.from_file(arguments.federation)
    table, table_name = read_source(arguments.data, arguments.query)
    site = Site(federation, arguments.client, 0, table, table_name)
    say(
        f"{table_name} fits {arguments.federation}: {count(site.rows, 'row')} of {arguments.client}"
    )
    if out is None:
        return 0
    # The SuperNode may be started in another folder.
    data = arguments.data
    if "://" not in data and not data.startswith(VARIABLE):
        data = str(expanded(data).absolute())
    node_config = {
        "client-id": arguments.client,
        "data": data,
        "federation": federation.digest,
    }
    if arguments.query:
        is_file = arguments.query.strip().endswith(".sql")
        query = str(expanded(arguments.query.strip()).absolute()) if is_file else arguments.query
        node_config["query"] = query
    if arguments.keep_dir:
        node_config["keep-dir"] = str(expanded(arguments.keep_dir).absolute())
    write_whole(out, toml_text(node_config).encode())
    say(f"written to {out}")
    return 0


FEDERATION_COMMAND = Command(
    "write the app of a federation from a simulation over tables",
    FEDERATION_DESCRIPTION,
    federation_options,
    write_app,
)

NODE_COMMAND = Command(
    "check a site's rows against a federation, and write its node config",
    NODE_DESCRIPTION,
    node_options,
    check_node,
)
