"""The command ``explain``: why a client is in its group, in words."""

from __future__ import annotations

import argparse
import shutil
import sys

from coterie.printable import say


def explain(arguments: argparse.Namespace) -> int:
    from coterie.record import to_json
    from coterie.report import explain as why

    asked = {"client": arguments.client, "round": arguments.round}
    if arguments.json:
        say(to_json(why.explain(arguments.run, **asked)))
    else:
        columns = shutil.get_terminal_size((why.WIDTH, 24)).columns if sys.stdout.isatty() else why.WIDTH
        say(why.words(arguments.run, **asked, width=min(columns, why.WIDTH)))
    return 0
