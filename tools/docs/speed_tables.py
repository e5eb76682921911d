"""Tables of speed, of what ``benchmarks/bench.py`` measured, for the documents; :mod:`generate` puts them in."""

from __future__ import annotations

import json
import statistics
import textwrap
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from measured import table

from coterie.report.summary import interval
from coterie.report.terminal import size
from coterie.report.words import plus_minus

SPEED = Path(__file__).resolve().parents[2] / "benchmarks" / "results" / "speed"
TRAINING = ("a", "b", "c100", "c1000", "d", "h-lr", "h-cifar", "h-emnist", "h-resnet")
NONE = "This has not been measured yet: `make bench` does it.\n"
OURS = "Coterie fp32"

Found = Mapping[str, Any]


def read(folder: Path, part_names: Sequence[str], suffix: str = "") -> list[Found]:
    """What is there of the parts called so."""
    result_paths = [folder / f"{part_name}{suffix}.json" for part_name in part_names]
    return [
        json.loads(result_path.read_text()) for result_path in result_paths if result_path.is_file()
    ]


def seconds(duration: float) -> str:
    """Three digits: ``0.0123 s``, ``1.23 s``, ``123 s``; of more than a thousand seconds, all of them."""
    return (f"{duration:,.0f}" if duration >= 999.5 else f"{duration:#.3g}".rstrip(".")) + " s"


def times(ratio: float) -> str:
    """``1.2 x``, with as many digits as tell it from 1."""
    return f"{ratio:.2f} ×" if ratio < 10 else f"{ratio:.0f} ×"


# -- parts a to d, h


def overview(folder: Path = SPEED) -> str:
    """A row per workload for the README: Coterie, the fastest plain loop, Flower's simulation, and the share of GEMM."""
    lines = []
    for result in read(folder, TRAINING):
        measured = result["measured"]
        median_of = {}
        for contender, timing in measured["seconds"].items():
            median_of[contender] = timing["median"]
        other_cells = []
        for other_median in (
            median_of.get("Coterie bf16"),
            fastest(median_of, "plain"),
            median_of.get("Flower simulation"),
            fastest(median_of, "pfl-research"),
        ):
            cell = "-"
            if other_median:
                cell = f"{seconds(other_median)} ({times(other_median / median_of[OURS])})"
            other_cells.append(cell)
        lines.append(
            (
                measured["workload"]["title"],
                seconds(median_of[OURS]),
                *other_cells,
                f"{_rates(measured, 'fp32')[2]:.0%}",
            )
        )
    head = (
        "a round of",
        "Coterie",
        "in bf16",
        "fastest plain loop",
        "Flower's simulation",
        "pfl-research",
        "of matrix products' speed",
    )
    return table(head, lines, "lrrrrrr") if lines else NONE


def fastest(median_of: Mapping[str, float], name_start: str) -> float | None:
    """The least of the medians of contenders of one kind; None if none was measured."""
    medians = [value for name, value in median_of.items() if name.startswith(name_start)]
    return min(medians, default=None)


def training(folder: Path = SPEED, suffix: str = "") -> str:
    """Everyone's seconds a round."""
    lines = []
    for result in read(folder, TRAINING, suffix):
        measured = result["measured"]
        title = measured["workload"]["title"]
        coterie_median = measured["seconds"][OURS]["median"]
        for contender, timing in measured["seconds"].items():
            range_words = f"{seconds(timing['min'])} to {seconds(timing['max'])}"
            lines.append(
                (
                    title,
                    contender,
                    seconds(timing["median"]),
                    range_words,
                    times(timing["median"] / coterie_median),
                    seconds(timing["first"]),
                )
            )
            title = ""
    head = ("a round of", "simulator", "median", "least to greatest", f"of {OURS}'s", "first round")
    return (
        table(head, lines, "llrrrr") + _left_out(read(folder, TRAINING, suffix)) if lines else NONE
    )


def _left_out(results: Sequence[Found]) -> str:
    """The sentences about what was not measured, each once."""
    sentences: dict[str, None] = {}
    for result in results:
        sentences |= dict.fromkeys(result["measured"]["left_out"])
    return "".join(f"\n{sentence}\n" for sentence in sentences)


def _rates(measured: Found, precision: str) -> tuple[float, float, float]:
    """FLOP/s in training, of matrix products, and the first as a share of the second."""
    training_rate = measured["flops"] / measured["train_seconds"][f"Coterie {precision}"]["median"]
    gemm_rate = measured["gemm"][precision]["median"]
    return training_rate, gemm_rate, training_rate / gemm_rate


def flops(folder: Path = SPEED, suffix: str = "") -> str:
    """FLOP/s of local training, and those of matrix products."""
    lines = []
    for result in read(folder, TRAINING, suffix):
        measured = result["measured"]
        title = measured["workload"]["title"]
        work_words = f"{measured['flops'] / 1e9:,.1f}"
        for precision in measured["gemm"]:
            if f"Coterie {precision}" in measured["train_seconds"]:
                training_rate, gemm_rate, share = _rates(measured, precision)
                lines.append(
                    (
                        title,
                        precision,
                        work_words,
                        f"{training_rate / 1e9:,.1f}",
                        f"{gemm_rate / 1e9:,.1f}",
                        f"{share:.0%}",
                    )
                )
                title = work_words = ""
    head = (
        "a round of",
        "precision",
        "GFLOP",
        "GFLOP/s in training",
        "GFLOP/s of matrix products",
        "share",
    )
    return table(head, lines, "llrrrr") if lines else NONE


# -- parts f and g


def experiments(folder: Path = SPEED) -> str:
    """Whole experiments and where their time goes."""
    results = read(folder, ["f"])
    if not results:
        return NONE
    lines = []
    for experiment in results[0]["measured"]["rows"]:
        wall_seconds = experiment["wall"]["median"]
        shares = (
            f"{experiment[phase]['median'] / wall_seconds:.0%}"
            for phase in ("train", "evaluate", "server", "other")
        )
        lines.append(
            (
                experiment["title"],
                f"`{experiment['command']}`",
                str(len(experiment["wall"]["values"])),
                seconds(wall_seconds),
                *shares,
            )
        )
    head = ("experiment", "command", "runs", "wall", "training", "tests", "server", "other")
    return table(head, lines, "llrrrrrr") + _left_out(results)


def scaling(folder: Path = SPEED) -> str:
    """A table per series: what is varied, seconds of a round, and seconds for each unit of it."""
    results = read(folder, ["g"])
    if not results:
        return NONE
    tables = []
    for varied_name, series in results[0]["measured"].items():
        lines = []
        first_median = next(iter(series["seconds"].values()))["median"]
        for varied_value, timing in series["seconds"].items():
            range_words = f"{seconds(timing['min'])} to {seconds(timing['max'])}"
            lines.append(
                (
                    f"{int(varied_value):,}",
                    seconds(timing["median"]),
                    range_words,
                    times(timing["median"] / first_median),
                )
            )
        head = (varied_name, "median", "least to greatest", "of the first row's")
        tables.append(f"{series['title']}:\n\n{table(head, lines, 'rrrr')}")
    return "\n".join(tables)


def losses(folder: Path = SPEED) -> str:
    """Runs of the default method with losses in other spellings."""
    results = read(folder, ["k"])
    if not results:
        return NONE
    measured = results[0]["measured"]
    first_median = next(iter(measured["seconds"].values()))["median"]
    lines = []
    for loss_name, timing in measured["seconds"].items():
        range_words = f"{seconds(timing['min'])} to {seconds(timing['max'])}"
        lines.append(
            (
                loss_name,
                seconds(timing["median"]),
                range_words,
                times(timing["median"] / first_median),
            )
        )
    return f"{measured['title']}:\n\n{table(('loss', 'median', 'least to greatest', 'of the first one'), lines, 'lrrr')}"


# -- part l


def price(folder: Path = SPEED) -> str:
    """A row per world and part of a run: processor seconds and bytes of the default method, and how many times FedAvg's."""
    price_path = _of_scripts(folder) / "price.json"
    if not price_path.is_file():
        return NONE
    found = json.loads(price_path.read_text())
    lines = []
    for world in found["rows"]:
        title = world["title"]
        for rounds_words, measured in world["phases"].items():
            fedavg = measured["fedavg"]
            default = measured["auto"]
            fedavg_median = fedavg["seconds"]["median"]
            default_median = default["seconds"]["median"]
            lines.append(
                (
                    title,
                    rounds_words,
                    seconds(fedavg_median),
                    seconds(default_median),
                    times(default_median / fedavg_median),
                    times(default["bytes"] / fedavg["bytes"]),
                )
            )
            title = ""
    num_repetitions = min(world["repetitions"] for world in found["rows"])
    how_often = f"Medians of {num_repetitions} repetitions."
    if num_repetitions == 1:
        how_often = "One repetition."
    head = ("world", "rounds", "FedAvg", "`auto`", "of FedAvg's seconds", "of FedAvg's bytes")
    return f"{how_often} On {_where(found, '')}\n{table(head, lines, 'llrrrr')}"


def price_in_short(folder: Path = SPEED) -> str:
    """A sentence: the least and the greatest price of the default method, early, late and in all."""
    price_path = _of_scripts(folder) / "price.json"
    if not price_path.is_file():
        return NONE
    worlds = json.loads(price_path.read_text())["rows"]
    ratios: dict[str, list[float]] = {}
    byte_ratios = []
    for world in worlds:
        for rounds_words, measured in world["phases"].items():
            fedavg = measured["fedavg"]
            default = measured["auto"]
            ratio = default["seconds"]["median"] / fedavg["seconds"]["median"]
            ratios.setdefault(rounds_words, []).append(ratio)
            if rounds_words == "all":
                byte_ratios.append(default["bytes"] / fedavg["bytes"])
    range_words = {}
    for rounds_words, ratios_of_worlds in ratios.items():
        range_words[rounds_words] = f"{min(ratios_of_worlds):.1f} to {max(ratios_of_worlds):.1f}"
    early, late, whole_run = range_words
    text = (
        f"The default method `auto` took {range_words[whole_run]} times the processor time of FedAvg "
        f"in {len(worlds)} kinds of data: {range_words[early]} times in rounds {early}, in which it "
        f"compares candidates, and {range_words[late]} times in rounds {late}. It sent "
        f"{min(byte_ratios):.1f} to {max(byte_ratios):.1f} times the bytes "
        "([table](../notes/speed.md#the-price-of-the-default))."
    )
    return textwrap.fill(text, 125, break_long_words=False, break_on_hyphens=False) + "\n"


# -- two versions


def versions(folder: Path = SPEED) -> str:
    """A row per kind of work: processor seconds before a change and after it."""
    versions_path = _of_scripts(folder) / "two-versions.json"
    if not versions_path.is_file():
        return NONE
    found = json.loads(versions_path.read_text())
    lines = []
    for row in found["rows"]:
        before, now = row["before"], row["now"]
        pairs = zip(before["values"], now["values"], strict=True)
        ratios = [seconds_now / seconds_before for seconds_before, seconds_now in pairs]
        lines.append(
            (
                row["title"],
                seconds(before["median"]),
                seconds(now["median"]),
                times(statistics.median(ratios)),
                f"{times(min(ratios))} to {times(max(ratios))}",
            )
        )
    commits = found["commits"]
    num_repetitions = len(found["rows"][0]["now"]["values"])
    head = ("processor seconds of", "before", "now", "now, of before", "least to greatest")
    return (
        f"Medians of {num_repetitions} pairs, commits {commits['before']} and {commits['now']}. "
        f"On {_where(found, '')}\n{table(head, lines, 'lrrrr')}"
    )


# -- bf16


def precision(folder: Path = SPEED) -> str:
    """Runs in bf16, compared with the same runs in fp32, by benchmarks/bf16.py."""
    runs_path = folder.parent / "bf16.jsonl"
    if not runs_path.is_file():
        return "This has not been measured yet: `python benchmarks/bf16.py --data DIR` does it.\n"
    # The runs of a method in a world, by their number format and seed.
    runs_of_method: dict[tuple[str, str], dict[tuple[str, int], Found]] = {}
    for line in runs_path.read_text().splitlines():
        recorded_run = json.loads(line)
        method_runs = runs_of_method.setdefault((recorded_run["world"], recorded_run["method"]), {})
        method_runs[recorded_run["precision"], recorded_run["seed"]] = recorded_run
    lines = []
    for (world, method), method_runs in runs_of_method.items():
        fp32_accuracies = []
        bf16_accuracies = []
        differences = []
        time_ratios = []
        num_same_groups = 0
        # Compared seed by seed.
        for (number_format, seed), fp32_run in method_runs.items():
            if number_format != "fp32" or ("bf16", seed) not in method_runs:
                continue
            bf16_run = method_runs["bf16", seed]
            fp32_accuracies.append(fp32_run["accuracy"])
            bf16_accuracies.append(bf16_run["accuracy"])
            differences.append(bf16_run["accuracy"] - fp32_run["accuracy"])
            time_ratios.append(bf16_run["seconds"] / fp32_run["seconds"])
            num_same_groups += fp32_run["groups"] == bf16_run["groups"]
        num_pairs = len(differences)
        if not num_pairs:
            continue
        lines.append(
            (
                world,
                f"`{method}`",
                str(num_pairs),
                plus_minus(interval(fp32_accuracies)),
                plus_minus(interval(bf16_accuracies)),
                plus_minus(interval(differences)),
                f"{num_same_groups} of {num_pairs}",
                times(median(time_ratios)),
            )
        )
    return table(
        ("data", "method", "runs", "fp32", "bf16", "difference", "same groups", "time"),
        lines,
        "llrrrrrr",
    )


# -- part e


def clustering(folder: Path = SPEED) -> str:
    """The Gram matrix, compared with a bare product, sketches, what follows, and what one would write instead."""
    clustering_path = _of_scripts(folder) / "clustering.json"
    if not clustering_path.is_file():
        return NONE
    measured = json.loads(clustering_path.read_text())["measured"]
    lines = []
    for case in measured["exact"]:
        gram_words = seconds(case["gram"]["median"])
        over_bare = times(case["over_bare"]["median"])
        lines.append((*_sizes(case), "-", gram_words, over_bare, *_after(case)))
    # With sketches, the time to make them counts as well.
    for case in measured["sketched"]:
        gram_words = seconds(case["sketching"]["median"] + case["gram"]["median"])
        lines.append((*_sizes(case), f"{case['size']:,}", gram_words, "-", *_after(case)))
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
    # What one would write instead, from the definitions.
    replaced_lines = []
    for about, case in (
        ("cosine similarities in two loops", measured["pairwise"]),
        ("HCCT's merge from its definition", measured["literal"]),
    ):
        their_time = seconds(case["theirs"]["median"])
        our_time = seconds(case["ours"]["median"])
        faster = times(case["faster"]["median"])
        replaced_lines.append((about, *_sizes(case), their_time, our_time, faster))
    replaced_table = table(
        ("in place of", "clients", "parameters", "its time", "Coterie's", "faster"),
        replaced_lines,
        "lrrrrr",
    )
    return f"{table(head, lines, 'r' * len(head))}\n{replaced_table}"


def _of_scripts(folder: Path) -> Path:
    """The folder of the files of e and l: their scripts stand alone, and so does what they keep."""
    return folder.parent if folder == SPEED else folder


def _sizes(case: Found) -> tuple[str, str]:
    return f"{case['clients']:,}", f"{case['parameters']:,}"


def _after(case: Found) -> tuple[str, ...]:
    """Memory beyond the rows and one matrix, and seconds of the steps that follow the Gram matrix."""
    return (
        size(case["extra_bytes"]),
        *(seconds(case["steps"][method]["median"]) for method in ("cfl", "flhc", "hcct")),
    )


# -- on what, and all together


def machine(folder: Path = SPEED, suffix: str = "") -> str:
    """A sentence per machine: parts, processor, cores, instruction sets, versions; a warning where it was no measurement."""
    part_names = (*TRAINING, "f", "g", "k")
    result_of_part = {}
    for part_name in part_names:
        # A part that was not measured has no file.
        for result in read(folder, [part_name], suffix):
            result_of_part[part_name] = result
    if not suffix:
        result_of_part |= dict(zip("e", read(_of_scripts(folder), ["clustering"]), strict=False))
    if not result_of_part:
        return NONE
    titles_on_machine: dict[str, list[str]] = {}
    for part_name, result in result_of_part.items():
        titles_on_machine.setdefault(_where(result, suffix), []).append(
            TITLES.get(part_name) or result["measured"]["workload"]["title"]
        )
    machine_sentences = []
    for machine_words, titles in titles_on_machine.items():
        # With one machine, all parts were measured there.
        one_machine = len(titles_on_machine) == 1
        on_machine = (
            f"On {machine_words}" if one_machine else f"{'; '.join(titles)}: on {machine_words}"
        )
        machine_sentences.append(on_machine)
    sentences = "\n".join(machine_sentences)
    if any(result["scale"] != "full" for result in result_of_part.values()):
        sentences += (
            "\nThe sizes were tiny: this shows that the code works and says nothing of speed.\n"
        )
    busiest = max(result["machine"]["busy"] for result in result_of_part.values())
    if busiest > 0.1:
        sentences += f"\nThese numbers are rough: before a part, others kept {busiest:.0%} of the machine busy.\n"
    return sentences


TITLES = {"e": "Clustering", "f": "Whole experiments", "g": "Scaling", "k": "Losses"}


def _where(result: Found, suffix: str) -> str:
    machine_facts = result["machine"]
    num_cores = machine_facts["cores"]
    core_words = f"{num_cores} {'cores' if num_cores > 1 else 'core'}"
    processor = machine_facts.get("device", machine_facts["processor"])
    processor_words = f"{processor}, {core_words}"
    bf16 = ", no bf16 instructions"
    if machine_facts["bf16"]:
        bf16 = f", bf16 by {' and '.join(machine_facts['bf16'])}"
    version_words = ", ".join(
        f"{package} {version}" for package, version in result["versions"].items()
    )
    return (
        f"{machine_facts['system']}, {processor_words}{'' if suffix else bf16}; {version_words}.\n"
    )


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
    "price": price,
    "price-in-short": price_in_short,
    "versions": versions,
    "cuda": cuda,
    "precision": precision,
}


def page(folder: Path) -> str:
    """All tables, for those who measure."""
    return "\n".join(f"## {name}\n\n{make(folder)}" for name, make in PARTS.items())
