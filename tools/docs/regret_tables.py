"""Tables of gaps to the best method, of what ``benchmarks/study/regret.py`` measured; :mod:`generate` puts them in."""

from __future__ import annotations

import sys
import textwrap
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import mean

from measured import table

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
sys.path.append(str(BENCHMARKS))

from result_file import read_results  # noqa: E402
from study import regret_summary  # noqa: E402
from study.frozen import frozen  # noqa: E402
from study.regret_summary import Row, Runs  # noqa: E402

from coterie.contrib.bench.kinds import SIZES, WORLD_KINDS, needs_files  # noqa: E402

ALIKE = BENCHMARKS / "results" / "alike.jsonl"
REGRET = BENCHMARKS / "results" / "regret.jsonl.gz"
SETTINGS = tomllib.loads((BENCHMARKS / "study" / "regret.toml").read_text())
COMMAND = "python benchmarks/study/regret.py --out benchmarks/results/regret.jsonl.gz --data DIR"
NOT_YET = f"Not measured yet: `{COMMAND}` does it.\n"
JUDGED = "auto"

ANSWERS: Mapping[str, float] = {"all": 1.0, "three-in-ten": 0.3}
"""How many answer, in a marker -> their share."""


def rows() -> list[Row]:
    """All runs at the frozen settings, in the order of worlds and of methods."""
    found = [
        row
        for row in read_results(REGRET)
        if row["settings"] == frozen(SETTINGS, row["kind"], row["method"])
    ]
    kinds, sizes, methods = list(WORLD_KINDS), list(SIZES), list(SETTINGS["frozen"])

    def place(row: Row) -> tuple[int, int, float, int]:
        return (
            kinds.index(row["kind"]),
            sizes.index(row["size"]),
            -row["participation"],
            methods.index(row["method"]),
        )

    return sorted(found, key=place)


FILES = "files"
"""Of a marker: worlds of data in files; otherwise those of digits, which have other seeds."""


def _of(data: str, answers: float) -> list[Row]:
    """All runs of worlds of this data in which so many answer."""
    return [
        row
        for row in rows()
        if row["participation"] == answers and needs_files(row["kind"]) == (data == FILES)
    ]


def regret(what: str, answers: str, *which: str) -> str:
    """The ``totals``, ``accuracies`` or what is ``judged``, of worlds in which so many answer.

    Of digits, or of data in ``files``; of all sizes, or of some.
    """
    sizes = set(which) - {FILES}
    seen = _of(FILES if FILES in which else "digits", ANSWERS[answers])
    seen = [row for row in seen if not sizes or row["size"] in sizes]
    if not seen:
        return NOT_YET
    of: Mapping[str, Callable[[], str]] = {
        "totals": lambda: regret_summary.totals(seen),
        "accuracies": lambda: regret_summary.accuracies(seen),
        "judged": lambda: regret_summary.judged(seen, JUDGED),
    }
    return of[what]()


def gaps() -> str:
    """A row per method: its gap to the best one over all settings, by the mean."""
    settings = regret_summary.by_world(rows())
    gaps_of: dict[str, dict[regret_summary.World, float]] = {}
    for setting, runs in settings.items():
        for method in runs:
            lacking = regret_summary.regret(runs, method)
            if lacking is not None:
                gaps_of.setdefault(method, {})[setting] = lacking.regret
    cells = []
    for method, own in sorted(gaps_of.items(), key=lambda pair: mean(pair[1].values())):
        close = sum(gap <= regret_summary.CLOSE for gap in own.values())
        greatest = max(own, key=lambda setting: own[setting])
        cells.append(
            (
                f"`{method}`",
                f"{mean(own.values()):.3f}",
                f"{close} of {len(own)}",
                f"{own[greatest]:.3f} ({regret_summary.named(greatest)})",
            )
        )
    head = ("method", "mean gap", f"within {regret_summary.CLOSE:g}", "greatest gap")
    return table(head, cells, "lrrl") if cells else NOT_YET


def choices() -> str:
    """What served the clients at the end of the judged method's runs in each world, and which it had given up."""
    found = []
    for world, runs in regret_summary.by_world(rows()).items():
        own = [row["chosen"] for row in runs.get(JUDGED, {}).values()]
        ends = (
            [_last(each, "lead", "one model (fedavg)") for each in own],
            [_last(each, "drop", "none") for each in own],
        )
        if own:
            found.append((regret_summary.named(world), *map(_counted, ends)))
    head = ("setting", "used by the clients at the end", "no longer trained")
    return table(head, found) if found else NOT_YET


def _last(chosen: list[list[str]], kind: str, otherwise: str) -> str:
    return next((what for found, what in reversed(chosen) if found == kind), otherwise)


def _counted(ends: list[str]) -> str:
    return ", ".join(
        f"{end}: {ends.count(end)}"
        for end in sorted(set(ends), key=lambda end: (-ends.count(end), end))
    )


def found() -> str:
    """The numbers of the judged method in sentences, by the data and by how many clients answer."""
    sentences = []
    for data, where in (("digits", "Digits"), (FILES, "Data in files")):
        for answers, words in ((1.0, "all clients answer"), (0.3, "three in ten answer")):
            seen = _of(data, answers)
            worlds = regret_summary.by_world(seen)
            lacks = [
                one.regret
                for runs in worlds.values()
                if (one := regret_summary.regret(runs, JUDGED))
            ]
            if lacks:
                seeds = len({row["seed"] for row in seen if row["method"] == JUDGED})
                about = f"{len(worlds)} settings, {seeds} seed{'s' * (seeds > 1)}"
                head = f"- **{where}, {words}** ({about}): {_lacking(lacks)}"
                text = f"{head} {_harmed(list(worlds.values()))} {_paid(list(worlds.values()))}"
                sentences.append(textwrap.fill(text, 125, subsequent_indent="  ") + "\n")
    return "".join(sentences) or NOT_YET


def alike() -> str:
    """In how many runs the judged method reported groups of clients that are all alike."""
    seen = read_results(ALIKE)
    if not seen:
        return NOT_YET
    false, all_answer = (
        sum(row["groups"] > 1 for row in seen),
        sum(row["participation"] == 1 for row in seen),
    )
    text = (
        f"In {len(seen)} further runs of `iid`, all clients have the same data distribution ({all_answer} runs in which all "
        f"answer, {len(seen) - all_answer} in which three in ten do). In {false} of them `auto` reported groups."
    )
    return textwrap.fill(text, 125) + "\n"


def _lacking(lacks: list[float]) -> str:
    close = sum(one <= regret_summary.CLOSE for one in lacks)
    return (
        f"the mean gap of `auto` is {sum(lacks) / len(lacks):.4f}, the greatest {max(lacks):.3f}; in {close} settings it is "
        f"at most {regret_summary.CLOSE:g}."
    )


def _harmed(worlds: list[Runs]) -> str:
    others = regret_summary.ONE, regret_summary.ALONE
    worse = [
        one.by_tests
        for runs in worlds
        for than in others
        if (one := regret_summary.worse(runs, JUDGED, than))
    ]
    return f"In every setting, at most {max(worse):.0%} of the clients are clearly worse off than with one model or alone."


def _paid(worlds: list[Runs]) -> str:
    paid = [one for runs in worlds if (one := regret_summary.bytes_of(runs, JUDGED)) is not None]
    right = sum(_index(runs, JUDGED) >= _index(runs, "split-half") for runs in worlds)
    return (
        f"It sends {min(paid):.2f} to {max(paid):.2f} times the bytes of FedAvg. Its groups are at least as right as those of "
        f"split-half in {right} settings."
    )


def _index(runs: Runs, method: str) -> float:
    """The mean adjusted Rand index to two digits; 0 where there are no true groups."""
    return round(regret_summary.average(list(runs.get(method, {}).values()), "ari") or 0.0, 2)


PARTS: Mapping[str, Callable[..., str]] = {
    "regret": regret,
    "regret-gaps": gaps,
    "regret-choices": choices,
    "regret-found": found,
    "regret-alike": alike,
}
