"""``coterie watch``: the report of a run that goes on."""

from __future__ import annotations

import argparse
from pathlib import Path

from coterie.printable import say


def watch(arguments: argparse.Namespace) -> int:
    from coterie.report.serving import Server

    with Server(Path(arguments.run), arguments.port) as server:
        say(f"{arguments.run} is shown at {server.address} to this machine; Ctrl-C ends it")
        try:
            server.serve_forever(poll_interval=0.2)
        except KeyboardInterrupt:
            say("no longer shown")
    return 0
