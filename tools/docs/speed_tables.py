"""Tables of speed, of what ``benchmarks/bench.py`` measured, for the documents; :mod:`generate` puts them in."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from measured import table

from coterie.report.summary import interval
from coterie.report.terminal import plus_minus, size

SPEED = Path(__file__).resolve().parents[2] / "benchmarks" / "results" / "speed"
TRAINING = ("a", "b", "c100", "c1000", "d", "h-lr", "h-cifar", "h-emnist")
NONE = "This has not been measured yet: `make bench` does it.\n"
OURS = "Coterie fp32"

Found = Mapping[str, Any]


def read(folder: Path, names: Sequence[str], suffix: str = "") -> list[Found]:
    """What is there of the parts called so."""
    paths = [folder / f"{name}{suffix}.json" for name in names]
    return [json.loads(path.read_text()) for path in paths if path.is_file()]


def seconds(value: float) -> str:
    """Three digits: ``0.0123 s``, ``1.23 s``, ``123 s``; of more than a thousand seconds, all of them."""
    return (f"{value:,.0f}" if value >= 999.5 else f"{value:#.3g}".rstrip(".")) + " s"


def times(value: float) -> str:
    """``1.2 x``, with as many digits as tell it from 1."""
    return f"{value:.2f} ×" if value < 10 else f"{value:.0f} ×"


# -- parts a to d, h
# ------------------------------------------------------------------------------------------------------


def overview(folder: Path = SPEED) -> str:
    """A row per workload for the README: Coterie, the fastest plain loop, Flower's simulation, and the share of GEMM."""
    rows = []
    for found in read(folder, TRAINING):
        one = found["measured"]
        median = {name: of["median"] for name, of in one["seconds"].items()}
        plain = _fastest(median, "plain")
        others = (
            median.get("Coterie bf16"),
            plain,
            median.get("Flower simulation"),
            _fastest(median, "pfl-research"),
        )
        cells = [
            f"{seconds(value)} ({times(value / median[OURS])})" if value else "-"
            for value in others
        ]
        rows.append(
            (
                one["workload"]["title"],
                seconds(median[OURS]),
                *cells,
                f"{_rates(one, 'fp32')[2]:.0%}",
            )
        )
    others = ("in bf16", "fastest plain loop", "Flower's simulation", "pfl-research")
    return (
        table(("a round of", "Coterie", *others, "of matrix products' speed"), rows, "lrrrrrr")
        if rows
        else NONE
    )


def _fastest(median: Mapping[str, float], kind: str) -> float | None:
    return min((value for name, value in median.items() if name.startswith(kind)), default=None)


def training(folder: Path = SPEED, suffix: str = "") -> str:
    """Everyone's seconds a round."""
    rows = []
    for found in read(folder, TRAINING, suffix):
        one = found["measured"]
        title, base = one["workload"]["title"], one["seconds"][OURS]["median"]
        for name, of in one["seconds"].items():
            span = f"{seconds(of['min'])} to {seconds(of['max'])}"
            rows.append(
                (
                    title,
                    name,
                    seconds(of["median"]),
                    span,
                    times(of["median"] / base),
                    seconds(of["first"]),
                )
            )
            title = ""
    head = ("a round of", "who", "median", "least to greatest", f"of {OURS}'s", "first round")
    return table(head, rows, "llrrrr") + _left_out(read(folder, TRAINING, suffix)) if rows else NONE


def _left_out(results: Sequence[Found]) -> str:
    sentences = dict.fromkeys(text for found in results for text in found["measured"]["left_out"])
    return "".join(f"\n{text}\n" for text in sentences)


def _rates(one: Found, precision: str) -> tuple[float, float, float]:
    """FLOP/s in training, of matrix products, and the first as a share of the second."""
    reached = one["flops"] / one["train_seconds"][f"Coterie {precision}"]["median"]
    return reached, one["gemm"][precision]["median"], reached / one["gemm"][precision]["median"]


def flops(folder: Path = SPEED, suffix: str = "") -> str:
    """FLOP/s of local training beside those of matrix products."""
    rows = []
    for found in read(folder, TRAINING, suffix):
        one = found["measured"]
        title, work = one["workload"]["title"], f"{one['flops'] / 1e9:,.1f}"
        for precision in one["gemm"]:
            if f"Coterie {precision}" in one["train_seconds"]:
                reached, gemm, share = _rates(one, precision)
                rows.append(
                    (
                        title,
                        precision,
                        work,
                        f"{reached / 1e9:,.1f}",
                        f"{gemm / 1e9:,.1f}",
                        f"{share:.0%}",
                    )
                )
                title = work = ""
    head = (
        "a round of",
        "precision",
        "GFLOP",
        "GFLOP/s in training",
        "GFLOP/s of matrix products",
        "share",
    )
    return table(head, rows, "llrrrr") if rows else NONE


# -- parts f and g
# --------------------------------------------------------------------------------------------------------


def experiments(folder: Path = SPEED) -> str:
    """Whole experiments and where their time goes."""
    results = read(folder, ["f"])
    if not results:
        return NONE
    rows = []
    for one in results[0]["measured"]["rows"]:
        wall = one["wall"]["median"]
        shares = (
            f"{one[name]['median'] / wall:.0%}" for name in ("train", "evaluate", "server", "other")
        )
        rows.append(
            (
                one["title"],
                f"`{one['command']}`",
                str(len(one["wall"]["values"])),
                seconds(wall),
                *shares,
            )
        )
    head = ("experiment", "command", "runs", "wall", "training", "tests", "server", "other")
    return table(head, rows, "llrrrrrr") + _left_out(results)


def scaling(folder: Path = SPEED) -> str:
    """A table per series: what is varied, seconds of a round, and seconds for each unit of it."""
    results = read(folder, ["g"])
    if not results:
        return NONE
    out = []
    for name, series in results[0]["measured"].items():
        rows = []
        first = next(iter(series["seconds"].values()))["median"]
        for value, of in series["seconds"].items():
            span = f"{seconds(of['min'])} to {seconds(of['max'])}"
            rows.append(
                (f"{int(value):,}", seconds(of["median"]), span, times(of["median"] / first))
            )
        head = (name, "median", "least to greatest", "of the first row's")
        out.append(f"{series['title']}:\n\n{table(head, rows, 'rrrr')}")
    return "\n".join(out)


def losses(folder: Path = SPEED) -> str:
    """Runs of the default method with losses in other spellings."""
    results = read(folder, ["k"])
    if not results:
        return NONE
    found = results[0]["measured"]
    base = next(iter(found["seconds"].values()))["median"]
    rows = []
    for name, of in found["seconds"].items():
        span = f"{seconds(of['min'])} to {seconds(of['max'])}"
        rows.append((name, seconds(of["median"]), span, times(of["median"] / base)))
    return f"{found['title']}:\n\n{table(('loss', 'median', 'least to greatest', 'of the first one'), rows, 'lrrr')}"


# -- bf16
# -----------------------------------------------------------------------------------------------------------------


def precision(folder: Path = SPEED) -> str:
    """Runs in bf16 beside the same runs in fp32, by benchmarks/bf16.py."""
    path = folder.parent / "bf16.jsonl"
    if not path.is_file():
        return "This has not been measured yet: `python benchmarks/bf16.py --data DIR` does it.\n"
    found = [json.loads(line) for line in path.read_text().splitlines()]
    lines = []
    for world, method in dict.fromkeys((row["world"], row["method"]) for row in found):
        own = {
            (row["precision"], row["seed"]): row
            for row in found
            if (row["world"], row["method"]) == (world, method)
        }
        pairs = [
            (own["fp32", seed], own["bf16", seed])
            for of, seed in own
            if of == "fp32" and ("bf16", seed) in own
        ]
        if not pairs:
            continue
        accuracies = [[row["accuracy"] for row in rows] for rows in zip(*pairs, strict=True)]
        apart = [low - full for full, low in zip(*accuracies, strict=True)]
        same = sum(full["groups"] == low["groups"] for full, low in pairs)
        means = (plus_minus(interval(values)) for values in (*accuracies, apart))
        took = median(low["seconds"] / full["seconds"] for full, low in pairs)
        lines.append(
            (world, f"`{method}`", str(len(pairs)), *means, f"{same} of {len(pairs)}", times(took))
        )
    return table(
        ("world", "method", "runs", "fp32", "bf16", "difference", "same groups", "time"),
        lines,
        "llrrrrrr",
    )


# -- part e
# ---------------------------------------------------------------------------------------------------------------


def clustering(folder: Path = SPEED) -> str:
    """The Gram matrix beside a bare product, sketches, what follows, and what one would write instead."""
    path = _clusterings(folder) / "clustering.json"
    if not path.is_file():
        return NONE
    found = json.loads(path.read_text())["measured"]
    rows = [
        (
            *_sizes(one),
            "-",
            seconds(one["gram"]["median"]),
            times(one["over_bare"]["median"]),
            *_after(one),
        )
        for one in found["exact"]
    ]
    rows += [
        (
            *_sizes(one),
            f"{one['size']:,}",
            seconds(one["sketching"]["median"] + one["gram"]["median"]),
            "-",
            *_after(one),
        )
        for one in found["sketched"]
    ]
    head = (
        "clients",
        "parameters",
        "sketch",
        "Gram matrix",
        "of a bare product's",
        "extra memory",
        "CFL",
        "FL+HC",
        "HCCT",
    )
    instead = [
        (
            about,
            *_sizes(one),
            seconds(one["theirs"]["median"]),
            seconds(one["ours"]["median"]),
            times(one["faster"]["median"]),
        )
        for about, one in (
            ("cosine similarities in two loops", found["pairwise"]),
            ("HCCT's merge from its definition", found["literal"]),
        )
    ]
    against = table(
        ("in place of", "clients", "parameters", "its time", "Coterie's", "faster"),
        instead,
        "lrrrrr",
    )
    return f"{table(head, rows, 'r' * len(head))}\n{against}"


def _clusterings(folder: Path) -> Path:
    """The folder of part e's file: its script stands alone, and so does what it keeps."""
    return folder.parent if folder == SPEED else folder


def _sizes(one: Found) -> tuple[str, str]:
    return f"{one['clients']:,}", f"{one['parameters']:,}"


def _after(one: Found) -> tuple[str, ...]:
    """Memory beyond the rows and one matrix, and seconds of the steps that follow the Gram matrix."""
    return (
        size(one["extra_bytes"]),
        *(seconds(one["steps"][name]["median"]) for name in ("cfl", "flhc", "hcct")),
    )


# -- on what, and all together
# --------------------------------------------------------------------------------------------


def machine(folder: Path = SPEED, suffix: str = "") -> str:
    """A sentence per machine: parts, processor, cores, instruction sets, versions; a warning where it was no measurement."""
    names = (*TRAINING, "f", "g", "k")
    results = {name: found for name in names for found in read(folder, [name], suffix)}
    if not suffix:
        results |= dict(zip("e", read(_clusterings(folder), ["clustering"]), strict=False))
    if not results:
        return NONE
    parts: dict[str, list[str]] = {}
    for name, found in results.items():
        parts.setdefault(_where(found, suffix), []).append(
            TITLES.get(name) or found["measured"]["workload"]["title"]
        )
    text = "\n".join(
        f"{'; '.join(of)}: on {where}" if len(parts) > 1 else f"On {where}"
        for where, of in parts.items()
    )
    if any(found["scale"] != "full" for found in results.values()):
        text += "\nThe sizes were tiny: this shows that the code works and says nothing of speed.\n"
    busiest = max(found["machine"]["busy"] for found in results.values())
    if busiest > 0.1:
        text += f"\nThese numbers are rough: before a part, others kept {busiest:.0%} of the machine busy.\n"
    return text


TITLES = {"e": "Clustering", "f": "Whole experiments", "g": "Scaling", "k": "Losses"}


def _where(found: Found, suffix: str) -> str:
    on = found["machine"]
    where = f"{on.get('device', on['processor'])}, {on['cores']} {'cores' if on['cores'] > 1 else 'core'}"
    bf16 = f", bf16 by {' and '.join(on['bf16'])}" if on["bf16"] else ", no bf16 instructions"
    told = ", ".join(f"{name} {version}" for name, version in found["versions"].items())
    return f"{on['system']}, {where}{'' if suffix else bf16}; {told}.\n"


def speed(part: str) -> str:
    """A table of :data:`PARTS`, from the results that are kept."""
    return PARTS[part](SPEED)


def cuda(folder: Path = SPEED) -> str:
    """Parts a to d on a GPU."""
    if not read(folder, TRAINING, "-cuda"):
        return "Not measured yet: `python benchmarks/bench.py --device cuda` does it.\n"
    return f"{machine(folder, '-cuda')}\n{training(folder, '-cuda')}\n{flops(folder, '-cuda')}"


PARTS: Mapping[str, Callable[[Path], str]] = {
    "machine": machine,
    "overview": overview,
    "training": training,
    "flops": flops,
    "clustering": clustering,
    "experiments": experiments,
    "scaling": scaling,
    "losses": losses,
    "cuda": cuda,
    "precision": precision,
}


def page(folder: Path) -> str:
    """All tables, for those who measure."""
    return "\n".join(f"## {name}\n\n{make(folder)}" for name, make in PARTS.items())
