"""The command ``coterie data``."""

from __future__ import annotations

import argparse

from coterie.cli.arguments import Command, Parser
from coterie.printable import say

DATA_DESCRIPTION = """\
Write a data set of the Hugging Face hub into a data folder, from which Coterie then reads it without a network: cifar10,
cifar100, mnist and fashion_mnist in the layouts of their authors, any other hub:NAME as an .npz file. It needs
flwr-datasets (pip install 'coterie[hub]').

  coterie data cifar10 --to data
  coterie data hub:flwrlabs/usps --to data
  coterie data cifar10 --source copies/cifar10 --to data"""


def options(parser: Parser) -> None:
    """Add the command's arguments to its parser."""
    parser.add_argument(
        "name", metavar="NAME", help="cifar10, cifar100, mnist, fashion_mnist, or hub:NAME"
    )
    parser.add_argument(
        "--to", metavar="DIR", required=True, help="the data folder; nothing in it is replaced"
    )
    parser.add_argument(
        "--source",
        metavar="S",
        default="",
        help="another name on the hub, or a local folder in its layout (the hub's own)",
    )


def run(arguments: argparse.Namespace) -> int:
    """Write the files, and print where they are; returns the exit status."""
    # Imported here, so that help appears immediately.
    from coterie.contrib.hub.copying import copy

    for path in copy(arguments.name, arguments.to, arguments.source):
        say(f"{path} written")
    return 0


DATA_COMMAND = Command(
    "copy a data set of the Hugging Face hub into a folder", DATA_DESCRIPTION, options, run
)
