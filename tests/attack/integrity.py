"""Files of a run directory or an export that were damaged or edited: every command notices it, or does not need the file.

An attempt changes one file of a copy (or swaps two), calls a command, and compares what it says and
writes with what it says of the untouched copy. It holds if that is the same, or if the command
tells the damage in one sentence.
"""

from __future__ import annotations

import os
import random
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from attack import Attempt
from attack.run_directory import call, experiment, ill, words

POINTS = {
    "damage": "A file that was deleted, emptied, cut, or has other bits is noticed, or not needed.",
    "edits": "A value that was edited, of the same or another type, is noticed by every command that reads it.",
    "order": "Lines and files that were left out, doubled, moved or taken from another run are noticed.",
    "exports": "Exported models that were damaged or edited are not loaded.",
    "begin": "A run that was killed before its first file was there can be begun again; no default fills a damaged file.",
}

COMMANDS = ("report", "compare", "explain", "export", "resume", "plot", "suggest", "check")


class Ground:
    """Runs that are copied; what every command says of them and writes, untouched."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.count = folder, 0
        folder.mkdir(parents=True, exist_ok=True)
        experiment(folder / "run")
        experiment(folder / "other", seeds=[5])
        experiment(folder / "experiment", seeds=[0, 1], rounds=2)
        assert call("export", str(folder / "run"), "--to", str(folder / "models"))[0] == 0
        assert call("export", str(folder / "other"), "--to", str(folder / "others"))[0] == 0
        self.commands = [name for name in COMMANDS if name != "check" or "check" in known()]
        self.sound = {
            (of, name): self.said(of, name, lambda path: None)
            for of in ("run", "experiment")
            for name in self.commands
        }

    def copied(self, of: str) -> Path:
        self.count += 1
        shutil.copytree(self.folder / of, self.folder / f"try-{self.count}" / of)
        return self.folder / f"try-{self.count}" / of

    def said(
        self, of: str, command: str, change: Callable[[Path], None]
    ) -> tuple[int, str, str, dict[str, Any]]:
        """(status, stdout, stderr, what was written) of a command on a changed copy, without the folder's name."""
        run = self.copied(of)
        try:
            change(run)
            to = run.parent / "out"
            to.mkdir()
            place = (
                run / "flhc-seed0"
                if of == "experiment" and command in ("explain", "plot", "suggest")
                else run
            )
            status, out, err = call(*words(command, place, to))
            wrote = written(to, run if command == "resume" else None)
            spoken = [re.sub(r"\s+", " ", text.replace(str(run.parent), "")) for text in (out, err)]
            return (
                status,
                re.sub(r"digest \w+|\d+\.\d+ ?s|seconds.*", "", spoken[0]),
                spoken[1],
                wrote,
            )
        finally:
            shutil.rmtree(run.parent, ignore_errors=True)


def known() -> list[str]:
    from coterie.cli.arguments import parser

    return list(parser()[1])


def plain(text: str) -> str:
    """A text without what differs between equal runs: seconds, checksums, folders."""
    text = re.sub(r"try-\d+", "try", text)
    text = re.sub(r'"seconds[^"]*": ?(\{[^}]*\}|\[[^\]]*\]|[\d.e-]+|null)', "", text)
    text = re.sub(r'"(checksum|run|run_dir|tag|name)": ?"[^"]*"', "", text)
    return re.sub(r'"similarity/[^"]*": ?"[0-9a-f]{32}"', "", text)


def written(to: Path, run: Path | None) -> dict[str, Any]:
    """The files that a command has written, as far as they are the same for equal runs."""
    found: dict[str, Any] = {}
    for path in sorted(to.rglob("*")):
        if path.is_file():
            data = path.read_bytes()
            found[str(path.relative_to(to))] = (
                plain(data.decode()) if path.suffix in (".json", ".html") else data
            )
    for path in sorted(run.rglob("*")) if run else ():
        if path.name == "rounds.jsonl":
            found[str(path.relative_to(run))] = plain(path.read_text(errors="replace"))
    return found


# -- what becomes of a file
# -------------------------------------------------------------------------------------------------


def files_of(run: Path) -> list[str]:
    return sorted(str(path.relative_to(run)) for path in run.rglob("*") if path.is_file())


def damaged(rng: random.Random, data: bytes) -> tuple[str, bytes | None]:
    """(what is done, the bytes after it, or None of a file that is gone)."""
    at = rng.randrange(max(len(data), 1))
    bit = 1 << rng.randrange(8)
    kinds: list[tuple[str, Callable[[], bytes | None]]] = [
        ("gone", lambda: None),
        ("empty", lambda: b""),
        (f"cut at {at}", lambda: data[:at]),
        (
            f"flipped at {at}",
            lambda: data[:at] + bytes([data[at] ^ bit]) + data[at + 1 :] if data else b"x",
        ),
        (f"a byte more at {at}", lambda: data[:at] + bytes([rng.randrange(256)]) + data[at:]),
        (f"without {at}:{at + 9}", lambda: data[:at] + data[at + 9 :]),
        (f"zeros from {at}", lambda: data[:at] + bytes(len(data) - at)),
        ("twice", lambda: data + data),
        ("UTF-16", lambda: data.decode("latin-1").encode("utf-16")),
        ("a BOM", lambda: b"\xef\xbb\xbf" + data),
        ("noise", lambda: rng.randbytes(200)),
        ("no last line", lambda: data[: data.rstrip(b"\n").rfind(b"\n") + 1]),
        ("another end", lambda: data.replace(b"\n", b"\r\n")),
        ("deep", lambda: b"[" * 100_000),
        ("deep objects", lambda: b'{"a":' * 50_000),
    ]
    name, make = rng.choice(kinds)
    return name, make()


VALUES = (
    "1e400",
    "-1",
    "0",
    "NaN",
    "1" + "0" * 5000,
    "9223372036854775808",
    '"text"',
    "true",
    "null",
    "[]",
    "{}",
    "[[[1]]]",
    '""',
    "0.5",
)


def edited(rng: random.Random, name: str, data: bytes) -> tuple[str, bytes]:
    """A value that is another: a number, or any value after a key."""
    text = data.decode("utf-8", errors="surrogateescape")
    pattern = (
        r"(?m)^(\w+ = )(.+)$"
        if name.endswith(".toml")
        else r'("[\w.]+": )("[^"]*"|-?[\d.e-]+|true|false|null|\[[^\[\]]*\])'
    )
    found = list(re.finditer(pattern, text))
    if not found:
        return "nothing to edit", data + b" "
    match = rng.choice(found)
    number = re.fullmatch(r"-?[\d.]+", match[2])
    value = rng.choice(VALUES)
    if number and rng.random() < 0.5:
        value = str(float(match[2]) + 1) if "." in match[2] else str(int(match[2]) + 1)
    if rng.random() < 0.1:
        value = (
            f"{value}, {match[1]}{match[2]}"
            if not name.endswith(".toml")
            else f"{value}\n{match[1]}{match[2]}"
        )
    out = text[: match.start(2)] + value + text[match.end(2) :]
    return f"{match[1]}{match[2][:20]} -> {value[:20]}", out.encode(
        "utf-8", errors="surrogateescape"
    )


def replaced(run: Path, name: str, data: bytes | None) -> None:
    if data is None:
        (run / name).unlink()
    else:
        (run / name).write_bytes(data)


def judged(ground: Ground, of: str, command: str, change: Callable[[Path], None]) -> str | None:
    status, out, err, wrote = ground.said(of, command, change)
    if why := ill(status, err):
        return why
    if status == 2:
        return (
            None
            if not wrote or command == "resume"
            else f"it refused and wrote {next(iter(wrote))}"
        )
    if status == 1:
        return None if command == "check" else f"status 1: {err[:100]}"
    _, sound_out, _, sound_wrote = ground.sound[of, command]
    if wrote == sound_wrote and (
        out == sound_out or command == "resume"
    ):  # what was damaged and is made again is the same
        return None
    if err.strip() or command == "check":
        return None  # it said so, in a sentence
    return (
        f"another result in silence: {differing(sound_out, out)}"
        if wrote == sound_wrote
        else f"other {differing(sound_wrote, wrote)}"
    )


def differing(sound: Any, now: Any) -> str:
    """Where two results differ."""
    if isinstance(sound, dict) and isinstance(now, dict):
        name = next(name for name in {**sound, **now} if sound.get(name) != now.get(name))
        return f"{name} in silence: {differing(sound.get(name), now.get(name))}"
    if not isinstance(sound, str) or not isinstance(now, str):
        return "another file"
    at = next(
        (i for i, (one, other) in enumerate(zip(sound, now, strict=False)) if one != other), 0
    )
    return f"{sound[max(at - 40, 0) : at + 20]!r} is {now[max(at - 40, 0) : at + 20]!r}"


def damaging(ground: Ground, rng: random.Random, edit: bool) -> Attempt:
    of = rng.choice(("run", "run", "run", "experiment"))
    command, name = rng.choice(ground.commands), rng.choice(files_of(ground.folder / of))
    if rng.random() < 0.5:
        name = rng.choice([one for one in files_of(ground.folder / of) if "blobs" not in one])
    data = (ground.folder / of / name).read_bytes()
    if edit and name.endswith((".toml", ".json", ".jsonl")):
        what, now = edited(rng, name, data)
        point = "edits"
    else:
        point = "damage"
        what, gone = damaged(rng, data)
        return Attempt(
            point,
            f"{command} {of}: {name} is {what}",
            lambda: judged(ground, of, command, lambda run: replaced(run, name, gone)),
        )
    return Attempt(
        point,
        f"{command} {of}: {name}: {what}",
        lambda: judged(ground, of, command, lambda run: replaced(run, name, now)),
    )


def ordering(ground: Ground, rng: random.Random) -> Attempt:
    command = rng.choice(ground.commands)
    way = rng.choice(
        (
            "drop",
            "double",
            "swap",
            "other line",
            "other file",
            "swap files",
            "other state",
            "swap runs",
            "drop last",
        )
    )
    i, j = rng.sample(range(3), 2)
    names = files_of(ground.folder / "run")
    one, two = rng.sample(names, 2)

    def lines(run: Path, change: Callable[[list[bytes]], None]) -> None:
        rows = (run / "rounds.jsonl").read_bytes().splitlines(keepends=True)
        change(rows)
        (run / "rounds.jsonl").write_bytes(b"".join(rows))

    def plant(run: Path) -> None:
        other = ground.folder / "other"
        if way == "drop":
            lines(run, lambda rows: rows.pop(i) and None)
        elif way == "drop last":
            lines(run, lambda rows: rows.pop() and None)
        elif way == "double":
            lines(run, lambda rows: rows.insert(j, rows[i]))
        elif way == "swap":
            lines(
                run,
                lambda rows: rows.__setitem__(
                    slice(None), [rows[{i: j, j: i}.get(k, k)] for k in range(3)]
                ),
            )
        elif way == "other line":
            row = (other / "rounds.jsonl").read_bytes().splitlines(keepends=True)[i]
            lines(run, lambda rows: rows.__setitem__(i, row))
        elif way == "other file":
            shutil.copy(other / one if (other / one).exists() else other / "run.toml", run / one)
        elif way == "swap files":
            (run / one).rename(run / "between")
            (run / two).rename(run / one)
            (run / "between").rename(run / two)
        elif way == "other state":
            shutil.rmtree(run / "state")
            shutil.copytree(other / "state", run / "state")
        else:
            first, second = run / "flhc-seed0", run / "flhc-seed1"
            first.rename(run / "between")
            second.rename(first)
            (run / "between").rename(second)

    of = "experiment" if way == "swap runs" else "run"
    if (
        of == "experiment"
    ):  # to a report, an experiment is the runs that are in it, whatever their folders are called
        command = rng.choice(
            [name for name in ground.commands if name in ("resume", "export", "check")]
        )
    return Attempt(
        "order",
        f"{command}: {way}, {i} and {j}, {one} and {two}",
        lambda: judged(ground, of, command, plant),
    )


def exporting(ground: Ground, rng: random.Random) -> Attempt:
    models = ground.folder / "models"
    name = rng.choice(files_of(models))
    data = (models / name).read_bytes()
    way = (
        rng.choice(("damage", "edit", "other", "swap"))
        if name == "models.json"
        else rng.choice(("damage", "other"))
    )
    what, now = (
        damaged(rng, data)
        if way == "damage"
        else edited(rng, name, data)
        if way == "edit"
        else (way, b"")
    )
    client = rng.randrange(4)

    def run() -> str | None:
        import torch

        import coterie
        from coterie.settings import UserError

        to = ground.copied("models")
        if way == "other":
            shutil.copy(
                ground.folder / "others" / name
                if (ground.folder / "others" / name).exists()
                else models / name,
                to / name,
            )
        elif way == "swap":
            text = (to / name).read_text()
            first, *rest = sorted({path.name for path in to.glob("*.safetensors")})
            (to / name).write_text(
                text.replace(first, "\0")
                .replace(rest[0] if rest else first, first)
                .replace("\0", (rest or [first])[0])
            )
        else:
            replaced(to, name, now)
        x = torch.arange(8.0).reshape(2, 4)
        try:
            found = coterie.load(to, client)(x)
            return (
                None
                if torch.equal(found, coterie.load(models, client)(x))
                else "another model was loaded in silence"
            )
        except UserError as error:
            return (
                None
                if "\n" not in str(error).strip()
                else f"no single sentence: {str(error)[:100]!r}"
            )
        finally:
            shutil.rmtree(to.parent, ignore_errors=True)

    return Attempt("exports", f"client {client}: {name} is {way}, {what}", run)


def beginning(ground: Ground, rng: random.Random) -> Attempt:
    """Folders in which a process was killed before there was a run.toml, and files that say too little."""
    way = rng.choice(
        ("killed", "killed several", "resume killed", "empty", "lacking", "comment", "cut")
    )
    seed, share = rng.randrange(1000), rng.random()
    lacks = rng.choice(("methods", "scenario", "rounds", "seeds", "training", "world"))
    command = rng.choice(("resume", "report", "export", "compare", "suggest", "explain", "plot"))

    def run() -> str | None:
        ground.count += 1
        folder = ground.folder / f"begin-{ground.count}"
        left = "run.toml.part" if way != "killed several" else "experiment.toml.part"
        try:
            if way.startswith("killed"):
                folder.mkdir()
                (folder / left).write_bytes(
                    (ground.folder / "run" / "run.toml").read_bytes()[: int(share * 500)]
                )
                if share < 0.5:
                    (folder / "lock").write_text("1\n")
                experiment(folder, "fedavg", seeds=[seed] if way == "killed" else [seed, seed + 1])
                status, _, err = call("compare", str(folder))
                return ill(status, err) or (None if status == 0 else "it has no runs")
            if way == "resume killed":
                folder.mkdir()
                (folder / left).write_bytes(b"schema")
                status, _, err = call("resume", str(folder))
                return ill(status, err) or (None if status == 2 else "it resumed nothing")
            shutil.copytree(ground.folder / "run", folder)
            text = (folder / "run.toml").read_bytes()
            words_ = {
                "empty": b"",
                "comment": b"# nothing\n",
                "cut": text[: int(share * len(text))],
                "lacking": without(text, lacks),
            }
            (folder / "run.toml").write_bytes(words_[way])
            (ground.folder / f"out-{ground.count}").mkdir()
            status, _, err = call(*words(command, folder, ground.folder / f"out-{ground.count}"))
            trained = len((folder / "rounds.jsonl").read_bytes().splitlines()) != 3
            return (
                ill(status, err)
                or ("it trained something else" if trained else None)
                or (None if status == 2 else "not noticed")
            )
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    return Attempt("begin", f"{way}, {command}, without {lacks}, {share:.4f}, seed {seed}", run)


def without(text: bytes, key: str) -> bytes:
    """A TOML file without a key or table, and with a new checksum."""
    import tomllib

    from coterie.records.checksum import sealed_toml
    from coterie.records.text_files import to_toml

    document = tomllib.loads(text.decode())
    document.pop(key)
    return sealed_toml(to_toml(document))


def attempts(rng: random.Random, folder: Path) -> Iterator[Attempt]:
    os.environ.pop("COTERIE_SECRET", None)
    ground, number = Ground(folder), 0
    while True:
        number += 1
        turn = number % 10
        if turn in (3, 7):
            yield ordering(ground, rng)
        elif turn == 5:
            yield exporting(ground, rng)
        elif turn == 9:
            yield beginning(ground, rng)
        else:
            yield damaging(ground, rng, edit=turn % 2 == 0)
