"""How large the page of a run is, how long it takes to make, and how long a browser takes to open it.

Runs are written by hand, as a method would record them: CFL's splits into eight groups; HCCT's
groups made anew in every round with a matrix each. Needs Playwright and a Chromium: ``python
benchmarks/report_page.py --out report-page.json``.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

from coterie.report.page import document, page
from page_runs import cosines, line, matrices, note, write

REPEATS = 5
CASES = (("cfl", 20, 100), ("cfl", 1000, 100), ("hcct", 1000, 60), ("hcct", 1000, 200))


def run(folder: Path, method: str, n: int, rounds: int) -> Path:
    """A run of ``n`` clients in eight true groups."""
    clients, truth = list(range(n)), [list(range(g, n, 8)) for g in range(8)]
    lines, groups, files = [], [clients], []
    for number in range(1, rounds + 1):
        notes = [note("keep", group, numbers=_numbers(number)) for group in groups]
        if method == "hcct":
            groups = [
                [c for c in clients if (c + (c * number) % 89 // 88) % 8 == g] for g in range(8)
            ]
            files.append(f"round-{number}.safetensors")
            notes = [
                note(
                    "partition",
                    clients,
                    groups,
                    numbers={"utility": number / 9},
                    similarity=f"similarity/{files[-1]}",
                )
            ]
        elif number % 10 == 0 and len(groups) < 8:
            largest = max(groups, key=len)
            modulus = 2 * n // len(largest)
            parts = [[c for c in largest if (c % 8) % modulus == largest[0] % modulus]]
            parts.append([c for c in largest if c not in set(parts[0])])
            name = f"round-{number}.safetensors"
            files.append(name)
            notes = [
                note(
                    "split",
                    largest,
                    parts,
                    numbers=_numbers(number),
                    similarity=f"similarity/{name}",
                )
            ]
            groups = [group for group in groups if group is not largest] + parts
        lines.append(line(number, groups, *notes))
    write(folder, lines, method=method, truth=truth)
    square = cosines([c % 8 for c in clients]) + np.random.default_rng(0).normal(0, 0.1, (n, n))
    named = {
        Path(name["similarity"]).name: name["clients"]
        for one in lines
        for name in one["notes"]
        if name["similarity"]
    }
    for name, members in named.items():
        matrices(folder, name, members, all=square[np.ix_(members, members)])
    return folder


def _numbers(number: int) -> dict[str, float]:
    return {
        "mean_norm": 1 / number,
        "client_norm": 1.0,
        "eps1": 0.4,
        "eps2": 0.5,
        "alpha_cross": 1 / number,
    }


def opened(path: Path) -> list[float]:
    """Seconds until everything is drawn, of each of several fresh tabs."""
    from playwright.sync_api import sync_playwright

    found = []
    with sync_playwright() as api:
        browser = api.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox"]
        )
        for _ in range(REPEATS):
            tab = browser.new_page(viewport={"width": 1200, "height": 900})
            start = time.perf_counter()
            tab.goto(path.as_uri())
            tab.wait_for_selector("section.run canvas")
            tab.evaluate(
                "new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))"
            )
            found.append(time.perf_counter() - start)
            tab.close()
        browser.close()
    return found


def measure(method: str, n: int, rounds: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as place:
        folder, path = run(Path(place, "run"), method, n, rounds), Path(place, "page.html")
        start = time.perf_counter()
        path.write_text(page(document([folder])), encoding="utf-8")
        made = time.perf_counter() - start
        seconds = opened(path)
        return {
            "method": method,
            "clients": n,
            "rounds": rounds,
            "bytes": path.stat().st_size,
            "made": round(made, 2),
            "opened": round(float(np.median(seconds)), 2),
            "slowest": round(max(seconds), 2),
        }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--out", type=Path, default=Path(__file__).parent / "results" / "report-page.json"
    )
    rows = []
    for case in CASES:
        rows.append(measure(*case))
        print(rows[-1], flush=True)
    parser.parse_args().out.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
