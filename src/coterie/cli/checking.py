"""``coterie check``: whether files are as they were written."""

from __future__ import annotations

import argparse
from dataclasses import asdict

from coterie.printable import say


def check(arguments: argparse.Namespace) -> int:
    from coterie.checking import accept
    from coterie.checking import check as checked
    from coterie.record import to_json

    if arguments.accept:
        taken = [path for folder in arguments.runs for path in accept(folder)]
        if not arguments.json:
            for path in taken:
                say(f"{path} is accepted")
    found = [checked(folder) for folder in arguments.runs]
    if arguments.json:
        told = [asdict(one) for one in found]
        say(to_json(told if len(told) > 1 else told[0]))
    for one in () if arguments.json else found:
        for kind in ("intact", "unchecked", "damaged"):
            for text in getattr(one, kind):
                say(f"{kind + ':':<11}{text}")
        say(f"{one.folder}: {'DAMAGED' if one.damaged else 'intact'}; digest {one.digest}")
    return 1 if any(one.damaged for one in found) else 0
