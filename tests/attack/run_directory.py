"""A run directory from a stranger: code that it names, links and pipes in it, names that lead out of it.

One run is made with the version that is attacked, and copied for every attempt. Beside the copy
lies a folder of the victim's; Coterie holds if no byte of it was read into an answer, changed or
removed, nothing was imported, and the command ended soon, either as without the attack or in one
sentence.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import random
import re
import resource
import shutil
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from attack import Attempt

POINTS = {
    "code": "A model that a run directory or an export names is imported only with the caller's consent.",
    "links": "No link in a run directory is followed: no file outside is read, overwritten or removed.",
    "pipes": "Named pipes, sockets and devices in a run directory stop no command.",
    "names": "No file outside is reached by a name in a record, a checkpoint or an export.",
    "secret": "A boundary's secret is in no file that Coterie writes and in nothing that it prints.",
}

SECRET = 48151623421082469
MARK = "the victim's words 7f3a"
FILES = ("run.toml", "rounds.jsonl", "state/000003.json", "state/000002.json", "lock")
COMMANDS = ("report", "compare", "explain", "export", "resume", "plot", "suggest")
LIMIT = 60
"""Seconds that a command may take: it hangs beyond."""


def experiment(folder: Path, method: str = "flhc", **more: Any) -> None:
    """A run of three rounds."""
    from coterie import begin
    from coterie.runs.experiment import make

    settings = {"warmup": 1, "groups": 2, "threshold": "none"} if method == "flhc" else {}
    scenario = {
        "name": "synthetic/groups",
        "clients": 4,
        "groups": 2,
        "examples": 200,
        "features": 4,
    }
    spec = {
        "scenario": scenario,
        "methods": [{"name": method, **settings}],
        "rounds": 3,
        "workers": 1,
        **more,
    }
    for one in begin(make(spec), folder):
        for _ in one.rounds():
            pass


def words(command: str, folder: Path, to: Path) -> list[str]:
    """The words of a command on a run directory; what it writes is in ``to``."""
    more = {
        "report": ["-o", str(to / "page.html")],
        "export": ["--to", str(to / "models")],
        "resume": ["--workers", "1"],
        "plot": ["accuracy", "-o", str(to / "figure.svg")],
        "suggest": ["--workers", "1"],
    }
    return [command, str(folder), *more.get(command, [])]


class Hang(BaseException):
    """No exception that anybody takes for one of theirs."""


ROOM = 2 << 30
"""Bytes that a command may take besides: one that reads /dev/zero ends in a traceback, and not the
machine."""


@contextlib.contextmanager
def bounded() -> Iterator[None]:
    """Memory for this process, with a bound where the system has such."""
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    taken = Path("/proc/self/statm")
    if taken.exists():
        most = int(taken.read_text().split()[0]) * resource.getpagesize() + ROOM
        resource.setrlimit(
            resource.RLIMIT_AS, (most if hard == resource.RLIM_INFINITY else min(most, hard), hard)
        )
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def call(*arguments: str) -> tuple[int, str, str]:
    """(status, stdout, stderr) of a command in this process; a traceback is status -1, a hang is -2."""
    from coterie.cli import main

    def end(number: int, frame: object) -> None:
        raise Hang

    out, err, told = (
        io.StringIO(),
        io.StringIO(),
        threading.current_thread() is threading.main_thread(),
    )
    before = signal.signal(signal.SIGALRM, end) if told else None
    if told:
        signal.alarm(LIMIT)
    try:
        with bounded(), contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            status = main(arguments)
    except Hang:
        status = -2
    except SystemExit as error:
        status = int(error.code or 0)
    except Exception:
        status = -1
        err.write(traceback.format_exc())
    finally:
        if told:
            signal.alarm(0)
            signal.signal(signal.SIGALRM, before)
    return status, out.getvalue(), err.getvalue()


def ill(status: int, err: str) -> str | None:
    """Why the end of a command is none that a user should see."""
    if status == -2:
        return f"it hangs for more than {LIMIT} s"
    if status not in (0, 1, 2) or "Traceback" in err:
        return f"a traceback: {err.strip().splitlines()[-1][:160]}"
    if status == 2 and len(err.strip().splitlines()) != 1:
        return f"no single sentence: {err.strip()[:160]!r}"
    return None


class Ground:
    """The run that is copied, and the victim's folder beside each copy."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self.run = folder / "made"
        experiment(self.run)
        self.sound = {
            command: call(
                *words(command, self.copied(f"sound-{command}"), folder / f"sound-{command}")
            )[0]
            for command in COMMANDS
        }
        assert not any(self.sound.values()), self.sound
        assert call("export", str(self.run), "--to", str(folder / "models"))[0] == 0
        self.count = 0

    def copied(self, name: str) -> Path:
        """A fresh copy of the run, with the victim's folder beside it."""
        home = self.folder / name
        shutil.copytree(self.run, home / "run", symlinks=True)
        victim = home / "victim"
        (victim / "blobs").mkdir(parents=True)
        for path in (
            "thesis.txt",
            "000009.json",
            "notes.safetensors",
            "blobs/own.safetensors",
            "rounds.jsonl",
            "run.toml",
        ):
            (victim / path).write_text(f"{MARK} {path}\n")
        return home / "run"

    def next(self) -> Path:
        self.count += 1
        return self.copied(f"try-{self.count}")


def contents(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def harmed(victim: Path, before: dict[str, bytes], *said: str) -> str | None:
    """What became of the victim's files."""
    now = contents(victim)
    if gone := sorted(set(before) - set(now)):
        return f"removed the victim's {gone[0]}"
    if new := sorted(set(now) - set(before)):
        return f"wrote {new[0]} into the victim's folder"
    if other := [name for name in before if now[name] != before[name]]:
        return f"changed the victim's {other[0]}"
    return "told what a file of the victim's says" if any(MARK in text for text in said) else None


def tried(
    ground: Ground, command: str, plant: Callable[[Path, Path], None], refused: bool = False
) -> str | None:
    """Plant something in a copy of the run, call the command, look at the victim's files. refused: it must not succeed."""
    run = ground.next()
    victim, to = run.parent / "victim", run.parent / "out"
    to.mkdir()
    before = contents(victim)
    try:
        plant(run, victim)
        before = before if contents(victim) == before else contents(victim)
        status, out, err = call(*words(command, run, to))
        pages = [path.read_text(errors="replace") for path in to.rglob("*.html")]
        why = ill(status, err) or harmed(victim, before, out, err, *pages)
        return why or ("it was not refused" if refused and status == 0 else None)
    finally:
        shutil.rmtree(run.parent, ignore_errors=True)


# -- code
# -----------------------------------------------------------------------------------------------------------------

_IMPORTED: list[str] = []
"""What was imported from the folders of attempts."""


def importing(ground: Ground, rng: random.Random, number: int) -> Attempt:
    """A run directory, or an export, that names a module of the current folder as its model or scenario."""
    commands = [
        "export",
        "suggest",
        "resume",
        "run",
        "run --estimate",
        "load",
        "resume unfinished",
        "export world",
    ]
    command = rng.choice(
        commands + [f"{one} scenario" for one in ("export", "suggest", "resume", "run")]
    )
    depth = rng.choice((0, 1, 2))
    name = f"evil_{number}_{rng.randrange(10**6)}"
    module = ".".join([name] + ["inner"] * depth)
    attribute = rng.choice(("Net", "net", "__init__", "os"))

    def run() -> str | None:
        folder = ground.next()
        home, here, path = folder.parent, os.getcwd(), list(sys.path)
        package = home.joinpath(*module.split("."))
        package.parent.mkdir(parents=True, exist_ok=True)
        proof = home / "imported"
        code = f"open({str(proof)!r}, 'w').close()\nfrom torch import nn\n"
        code += f"def {attribute}(shape, classes):\n    return nn.Linear(shape[0], classes)\n"
        for parent in [package, *package.parents][: depth + 1]:
            if parent != package:
                (parent / "__init__.py").write_text(f"open({str(proof)!r}, 'w').close()\n")
        package.with_suffix(".py").write_text(code)
        try:
            os.chdir(home)
            ended = _named(ground, folder, f"{module}:{attribute}", command)
            if proof.exists():
                return f"{command} imported {module}"
            return ended
        finally:
            os.chdir(here)
            sys.path[:] = path
            shutil.rmtree(home, ignore_errors=True)

    return Attempt("code", f"{command}, {module}:{attribute}", run)


def _named(ground: Ground, folder: Path, model: str, command: str) -> str | None:
    """Let a copy of the run or of its export name this model, and use it."""
    if command == "load":
        import coterie
        from coterie.settings import UserError

        models = folder.parent / "models"
        shutil.copytree(ground.folder / "models", models)
        rewrite(
            models / "models.json",
            lambda text: text.replace('"linear"', f'"{model}"').replace('"mlp"', f'"{model}"'),
        )
        try:
            coterie.load(models, 0)
        except UserError:
            return None
        return "nothing was asked"
    if command.endswith(
        " scenario"
    ):  # without the settings of training, which the scenario would be made for
        rewrite(
            folder / "run.toml",
            lambda text: re.sub(r"(?ms)^\[training\]\n.*?(?=^\[|\Z)", "[training]\n", text),
        )
        rewrite(
            folder / "run.toml",
            lambda text: re.sub(
                r"(?ms)^\[scenario\]\n.*?(?=^\[)", f'[scenario]\nname = "{model}"\n', text
            ),
        )
        command = command.removesuffix(" scenario")
    world = "mlp" if command == "export world" else model
    own = "mlp" if command != "export world" else model
    rewrite(
        folder / "run.toml",
        lambda text: re.sub(r'(\[world\.model\]\s*name = )"[^"]*"', rf'\1"{own}"', text),
    )
    rewrite(
        folder / "run.toml", lambda text: re.sub(r'(?m)^(model = )"[^"]*"', rf'\1"{world}"', text)
    )
    if command in ("export", "export world"):
        rewrite(
            folder / "run.toml",
            lambda text: re.sub(r'(\[world\.model\]\s*name = )"[^"]*"', rf'\1"{model}"', text),
        )
    if command == "resume unfinished":
        rewrite(folder / "run.toml", lambda text: re.sub(r"(?m)^rounds = 3$", "rounds = 4", text))
    reforge(folder)
    to = folder.parent / "out"
    to.mkdir()
    if command.startswith("run"):
        status, _, err = call(
            *command.split(), str(folder / "run.toml"), "--out", str(to / "new"), "--workers", "1"
        )
    else:
        status, _, err = call(*words(command.split()[0], folder, to))
    return ill(status, err)


def rewrite(path: Path, change: Callable[[str], str]) -> None:
    """Edit a file's text and, where this version has checksums, forge that of ``models.json``."""
    text = change(path.read_text())
    data = text.encode()
    if path.name == "models.json":
        with contextlib.suppress(ImportError):
            from coterie.records.checksum import of_json, sealed_json

            body, found = of_json(data.rstrip())
            data = sealed_json(body + b"\n}") if found else data
    path.write_bytes(data)


def reforge(folder: Path) -> None:
    """Checksums that fit again, where this version has any."""
    with contextlib.suppress(ImportError):
        from forged import forge

        forge(folder)


# -- links and pipes
# ---------------------------------------------------------------------------------------------------------


def linking(ground: Ground, rng: random.Random, number: int) -> Attempt:
    """A link to a file or folder of the victim's, in place of a file or folder of the run."""
    command = rng.choice(COMMANDS)
    kind = rng.choice(("file", "part", "folder", "hard", "matrix", "blob", "lock", "report"))
    target = rng.choice(("thesis.txt", "rounds.jsonl", "run.toml", "000009.json"))
    name = rng.choice(FILES)
    fresh = rng.random() < 0.5

    def plant(run: Path, victim: Path) -> None:
        if command == "resume" or fresh:
            (run / "state" / "000003.json").unlink(missing_ok=True)  # there is a round to make
        place = {
            "file": run / name,
            "part": run / f"{name}.part",
            "lock": run / "lock",
            "hard": run / "rounds.jsonl",
            "folder": run / ("state", "similarity", "state/blobs")[number % 3],
            "matrix": run / "similarity" / "round-2.safetensors",
            "blob": next((run / "state" / "blobs").iterdir()),
            "report": run / "report.html.part",
        }[kind]
        if kind == "folder":
            shutil.rmtree(place)
            if fresh:
                shutil.copytree(
                    ground.run / place.relative_to(run), victim / "blobs", dirs_exist_ok=True
                )
            place.symlink_to(victim / "blobs" if "blobs" in place.name or fresh else victim)
        elif kind == "hard":
            shutil.copy(place, victim / "own.jsonl")
            place.unlink()
            os.link(victim / "own.jsonl", place)
        else:
            if kind == "matrix" and fresh:
                shutil.copy(place, victim / target)
            place.unlink(missing_ok=True)
            place.symlink_to(victim / target)

    def run() -> str | None:
        if kind != "report":
            return tried(ground, command, plant)
        folder = ground.next()
        victim = folder.parent / "victim"
        before = contents(victim)
        try:
            for name in ("report.html", "report.html.part"):
                (folder / name).symlink_to(victim / target)
            status, out, err = call("report", str(folder))
            return ill(status, err) or harmed(victim, before, out, err)
        finally:
            shutil.rmtree(folder.parent, ignore_errors=True)

    return Attempt(
        "links",
        f"{command}: {kind} {name if kind in ('file', 'part') else ''} -> {target}, {fresh}",
        run,
    )


def piping(ground: Ground, rng: random.Random, number: int) -> Attempt:
    """A pipe, a device, a socket or a folder in place of a file."""
    command, kind = rng.choice(COMMANDS), rng.choice(("fifo", "folder", "zero", "socket", "part"))
    name = rng.choice((*FILES, "similarity/round-2.safetensors", "blob"))
    later = rng.random() < 0.5

    def plant(run: Path, victim: Path) -> None:
        if later:
            (run / "state" / "000003.json").unlink()
        path = run / name if name != "blob" else next((run / "state" / "blobs").iterdir())
        path = path.with_name(f"{path.name}.part") if kind == "part" else path
        path.unlink(missing_ok=True)
        if kind in ("fifo", "part"):
            os.mkfifo(path)
        elif kind == "folder":
            path.mkdir()
        elif kind == "zero":
            path.symlink_to("/dev/zero")
        else:
            import socket

            here = os.getcwd()
            os.chdir(path.parent)
            with socket.socket(socket.AF_UNIX) as made:
                made.bind(path.name)
            os.chdir(here)

    return Attempt(
        "pipes", f"{command}: {name} is a {kind}, {later}", lambda: tried(ground, command, plant)
    )


# -- names
# ----------------------------------------------------------------------------------------------------------------

WAYS = (
    "../victim/notes", "../../victim/notes", "similarity/../../victim/notes", "{victim}/notes", "/dev/zero",
    "../victim/thesis.txt", "similarity/round-2.safetensors/../../../victim/notes", "~/notes", "similarity/\x00",
    "file:///etc/passwd", "/proc/self/mem", "similarity/" + "x" * 300,
)  # fmt: skip


def naming(ground: Ground, rng: random.Random, number: int) -> Attempt:
    """A record, checkpoint or export that names a file outside."""
    what = rng.choice(("similarity", "blob", "model", "others"))
    way, command = (
        rng.choice(WAYS),
        rng.choice(("report", "explain", "plot similarity", "export", "resume", "suggest")),
    )
    drop = rng.randrange(3)

    def plant(run: Path, victim: Path) -> None:
        shutil.copy(run / "similarity" / "round-2.safetensors", victim / "notes")
        name = way.format(victim=victim)
        if what == "blob":
            for path in run.glob("state/*.json"):
                path.write_text(
                    re.sub(
                        r'"blob": "[0-9a-f]{40}"',
                        lambda _: f'"blob": {json.dumps(name)}',
                        path.read_text(),
                    )
                )
        else:
            path = run / "rounds.jsonl"
            lines = [json.loads(line) for line in path.read_text().splitlines()]
            for line in lines[drop:]:
                for note in line["notes"]:
                    note["similarity"] = name
            path.write_text("".join(json.dumps(line) + "\n" for line in lines))
        reforge(run)

    def shown() -> str | None:
        run = ground.next()
        victim, to = run.parent / "victim", run.parent / "out"
        to.mkdir()
        try:
            plant(run, victim)
            before = contents(victim)
            told = ["plot", str(run), "similarity", "-o", str(to / "figure.svg")]
            status, out, err = call(
                *(told if command == "plot similarity" else words(command, run, to))
            )
            named = what == "similarity" and drop < 2  # round 2 is the one that has a matrix
            outside = named and status == 0 and command == "plot similarity" and "/notes" in way
            return (
                ill(status, err)
                or harmed(victim, before, out, err)
                or ("it drew a file outside" if outside else None)
            )
        finally:
            shutil.rmtree(run.parent, ignore_errors=True)

    def loaded() -> str | None:
        import coterie
        from coterie.settings import UserError

        home = ground.next().parent
        try:
            models = home / "models"
            shutil.copytree(ground.folder / "models", models)
            shutil.copy(next(models.glob("*.safetensors")), home / "victim" / "notes")
            name = way.format(victim=home / "victim")
            swap = re.compile(r'"[\w-]+\.safetensors"')
            rewrite(models / "models.json", lambda text: swap.sub(lambda _: json.dumps(name), text))
            try:
                coterie.load(models, drop)
            except UserError:
                return None
            return "it loaded a file that is not in the folder"
        finally:
            shutil.rmtree(home, ignore_errors=True)

    return Attempt(
        "names",
        f"{what}: {way!r:.60} by {command}, {drop}",
        loaded if what in ("model", "others") else shown,
    )


# -- secrets
# --------------------------------------------------------------------------------------------------------------


def telling(ground: Ground, rng: random.Random, number: int) -> Attempt:
    """A run with a secret: whether a file that it writes, or a command prints, has it."""
    rotation, method = (
        rng.choice(("permute", "permute-tensors")),
        rng.choice(("fedavg", "flhc", "cfl", "split-half")),
    )
    secret = SECRET + rng.randrange(10**9)
    wrong = rng.choice(("plain", "Boundary", "again", "mistake", "experiment"))

    def run() -> str | None:
        home = ground.folder / f"secret-{number}"
        texts = [repr_of(rotation, secret)] if wrong == "Boundary" else []
        if wrong == "mistake":
            status, out, err = call(
                "run",
                "--set",
                f"boundary.secret={secret}",
                "--out",
                str(home / "run"),
                "--rounds",
                "1",
            )
            texts += [out, err]
        elif wrong != "Boundary":
            seeds = {"seeds": [0, 1]} if wrong == "experiment" else {}
            experiment(
                home / "run", method, boundary={"rotation": rotation, "secret": secret}, **seeds
            )
            for command in ("report", "compare", "explain", "resume", "plot", "export", "check"):
                if command == "check" and "check" not in known():
                    continue
                if wrong == "again":
                    os.environ["COTERIE_SECRET"] = str(secret)
                try:
                    status, out, err = call(*words(command, home / "run", home))
                finally:
                    os.environ.pop("COTERIE_SECRET", None)
                if why := ill(status, err):
                    return why
                texts += [out, err]
        files = (
            [
                path.read_bytes().decode(errors="replace")
                for path in home.rglob("*")
                if path.is_file()
            ]
            if home.exists()
            else []
        )
        shutil.rmtree(home, ignore_errors=True)
        shown = [text for text in (*texts, *files) if str(secret) in text]
        return f"the secret is in {len(shown)} files and answers" if shown else None

    return Attempt("secret", f"{wrong}: {rotation}, {method}, {secret % 10**9}", run)


def known() -> list[str]:
    from coterie.cli.arguments import parser

    return list(parser()[1])


def repr_of(rotation: str, secret: int) -> str:
    from coterie.boundary import Boundary

    return f"{Boundary(rotation=rotation, secret=secret)!r} {Boundary(rotation=rotation, secret=secret)}"


KINDS = (importing, linking, linking, linking, piping, piping, naming, naming)


def attempts(rng: random.Random, folder: Path) -> Iterator[Attempt]:
    ground = Ground(folder)
    number = 0
    while True:
        number += 1
        kind = telling if number % 20 == 0 else KINDS[number % len(KINDS)]
        yield kind(ground, rng, number)
