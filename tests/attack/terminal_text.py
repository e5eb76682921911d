"""Text of strangers (clients, records, names, settings) on its way to a terminal, log or page: it is shown, not obeyed."""

from __future__ import annotations

import json
import logging
import os
import random
import re
import shutil
import unicodedata
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from attack import Attempt
from attack._calls import cli, inside

POINTS = {
    "records in a terminal": "What records and settings say moves no cursor, hides nothing and is no markup, in any command.",
    "errors that quote": "A sentence about a mistake quotes names and values without their control characters, on one line.",
    "logs and trackers": "The server's log, failure.txt and what trackers are told have no control characters of a client's.",
    "records in JSON and pages": "JSON and pages hold the same text, escaped: in UTF-8, and nothing ends its element.",
}

SEQUENCES = (
    "\x1b[2J\x1b[H", "\x1b]0;title\x07", "\x1b]8;;http://evil.example\x1b\\link\x1b]8;;\x1b\\", "\x1b[8mhidden",
    "\x1b[9A\x1b[1K",
    "\x1b]52;c;ZXZpbA==\x07", "\x1bP+q544e\x1b\\", "\x1b[?1049h", "\x1b[6n", "\x1bc", "\x9b2J", "\x9d0;t\x9c", "\x90q\x9c",
    "\r", "\r\n",
    "\x08\x08\x08", "\x07", "\x7f", "\x00", "\x0b\x0c", "\x85", "\u2028", "\u2029", "\u202e", "\u2066\u2069", "\u200b",
    "\u200f", "\ufeff",
    "\u2060", "\U000e0041\U000e0042", "\ud800", "\udc80", "\udcff", "\ud83d", "\ue000", "\x0e", "\x1b(0", "\x1b#8", "\xad",
    "\u061c",
)  # fmt: skip
MARKUP = (
    "[red]",
    "[/red]",
    "[/]",
    "[link=http://evil.example]x[/link]",
    "[bold",
    "[[",
    "\\[",
    ":smile:",
    "[@click=a]b[/]",
    "</script>",
    "<img>",
)
FORGED = ("\ncoterie: all is well", "\nround 99 split: forged", "\n\n\n")


def hostile(rng: random.Random) -> str:
    """A text with several of these in it, among letters."""
    parts = [
        rng.choice(
            (
                rng.choice(SEQUENCES),
                rng.choice(SEQUENCES),
                rng.choice(MARKUP),
                rng.choice(FORGED),
                "word ",
                "é",
            )
        )
    ]
    for _ in range(rng.randint(1, 4)):
        parts += [rng.choice(("a", "words ", "0")), rng.choice(SEQUENCES + MARKUP)]
    return "".join(parts)


STYLE = re.compile(
    r"\x1b\[(?:0|[1234](?:;3[0-7])?|3[0-7]|9[0-7]|(?:1;|2;)?3[0-7]|38;5;\d+|38;2;\d+;\d+;\d+|[0-9;]*4[0-9])?m"
)
"""Colours and weights as rich writes them, none of which is among the attempts."""


DRAWN = re.compile(r"\x1b\[\?25[lh]|\x1b\[2K|\x1b\[1A|\r(?=\x1b\[|\n|$)")
"""How a display that is written anew hides the cursor, goes up and clears."""


def controls(text: str, terminal: bool = False) -> str | None:
    """None if a text has nothing but letters, marks, signs, spaces and ends of lines."""
    text = STYLE.sub("", text) if terminal else text
    bad = sorted(
        {
            letter
            for letter in text
            if letter != "\n"
            and unicodedata.category(letter) in ("Cc", "Cf", "Cs", "Co", "Zl", "Zp")
        }
    )
    return f"it shows {bad[:6]!r}" if bad else None


def attempts(rng: random.Random, folder: Path) -> Iterator[Attempt]:
    number = 0
    while True:
        number += 1
        own, place = random.Random(rng.random()), folder / str(number)
        make: Callable[[random.Random, Path], Attempt] = rng.choices(
            (shown, quoted, logged, embedded), (5, 4, 2, 2)
        )[0]
        attempt = make(own, place)

        def run(attempt: Attempt = attempt, place: Path = place) -> str | None:
            with inside(place):
                why = attempt.run()
            shutil.rmtree(place, ignore_errors=True)
            return why

        yield Attempt(attempt.point, attempt.name, run)


def a_run(rng: random.Random) -> Path:
    """A run directory whose records and settings say such things, in the present folder."""
    from forged import forge
    from page_runs import line, note, write

    def text() -> str:  # JSON has no half of a pair: such a record is damaged, and nothing is shown
        return "".join(letter for letter in hostile(rng) if not 0xD800 <= ord(letter) < 0xE000)

    kind = rng.choice(("split", "cluster", "join", text()))
    parts = [[0, 1], [2, 3]]
    lines: list[dict[str, Any]] = [
        line(1, [[0, 1, 2, 3]], note("keep", [0, 1, 2, 3], text=text(), numbers={text(): 0.5})),
        line(
            2,
            parts,
            note(kind, [0, 1, 2, 3], parts, text=text(), values={text(): {"0": 1.0}}),
            refused={"1": text()},
        ),
    ]
    for one in lines:
        if rng.random() < 0.5:
            one["clients"]["0"][text()] = 0.5
        if rng.random() < 0.3:
            one["seconds"][text()] = 0.5
    run = write(Path("run"), [], method=rng.choice(("cfl", "flhc", "split-half")))
    # As a stranger writes them: with a tool of their own.
    with open(run / "rounds.jsonl", "w", encoding="ascii") as file:
        file.writelines(json.dumps(one) + "\n" for one in lines)
    _hostile_settings(rng, run)
    forge(run)
    return run


def _hostile_settings(rng: random.Random, run: Path) -> None:
    import tomllib

    import tomli_w

    path = run / "run.toml"
    document = tomllib.loads(path.read_text())
    document["rounds"] = 2
    text = lambda: "".join(c for c in hostile(rng) if not 0xD800 <= ord(c) < 0xE000)  # noqa: E731
    document["world"].update({"clients": [0, 1, 2, 3], "examples": [10, 10, 10, 10]})
    if rng.random() < 0.6:
        document["world"]["names"] = [f"{text()[:90]}{i}" for i in range(4)]
    if rng.random() < 0.5:
        document["scenario"]["name"] = text()
    if rng.random() < 0.4:
        document["versions"]["coterie"] = text()
    if rng.random() < 0.3:
        document["methods"][0][text()] = text()
    if rng.random() < 0.2:
        document["methods"][0]["name"] = text()
    path.write_text(tomli_w.dumps(document), encoding="utf-8")


def shown(rng: random.Random, place: Path) -> Attempt:
    words = rng.choice(
        (
            ["compare", "run"],
            ["compare", "run", "run"],
            ["explain", "run"],
            ["explain", "run", "--client", "2"],
            ["resume", "run"],
            ["report", "run"],
            ["plot", "run", "groups", "-o", "x.svg"],
            ["explain", "run", "--client", "77"],
            ["suggest", "run"],
            ["plot", "run", "criteria", "-o", "x.png"],
            ["export", "run", "--to", "models"],
            ["tree"],
            ["tree"],
            ["round"],
        )
    )
    terminal = rng.random() < 0.5

    def run() -> str | None:
        folder = a_run(rng)
        if words[0] in ("tree", "round"):
            return _drawn(folder, words[0])
        status, out, err = cli(words, terminal)
        if status not in (0, 1, 2):
            return f"exit status {status}"
        if terminal:  # what goes on is drawn on stderr: the cursor is hidden, and lines are cleared
            err = DRAWN.sub("", err)
        elif any(not line.startswith("coterie: ") for line in err.splitlines()):
            return f"no sentences but {err[:100]!r}"
        return controls(out, terminal) or controls(err, terminal)

    return Attempt(
        "records in a terminal",
        f"{' '.join(words)}{' in a terminal' if terminal else ''} {rng.random():.6f}",
        run,
    )


def _drawn(folder: Path, what: str) -> str | None:
    """What ``coterie run`` draws of its runs: the tree of groups, the table, the lines of rounds."""
    import io

    from coterie.records.record import Record
    from coterie.report import terminal
    from coterie.report.live import Live

    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    stream = Terminal()
    console = terminal.console(stream)
    lines = Record(folder).lines()
    if what == "tree":
        console.print(terminal.tree(lines))
        for note in (note for one in lines for note in one["notes"]):
            if (event := terminal.event(note, 1)) is not None:
                console.print(event)
    else:
        with Live(console, [lines[1]["notes"][0]["text"]], 2) as live:
            live.begin(0, 0)
            live.show(0, lines[1])
            live.tell(lines[1]["notes"][0]["text"])
            live.end(0)
    return controls(
        DRAWN.sub("", stream.getvalue()) if what == "round" else stream.getvalue(), terminal=True
    )


def quoted(rng: random.Random, place: Path) -> Attempt:
    text = hostile(rng).replace("\x00", "")
    plain = "".join(
        letter
        for letter in text
        if not 0xD800 <= ord(letter) < 0xDC80 and not 0xDD00 <= ord(letter) < 0xE000
    )
    name = os.fsdecode(plain.replace("/", "").encode("utf-8", "surrogateescape"))[:60] or "x"
    in_toml = json.dumps(
        "".join(letter for letter in text if not 0xD800 <= ord(letter) < 0xE000)
    ).replace("\x7f", "\\u007f")
    calls: dict[str, list[str]] = {
        "command": [plain],
        "option": ["run", f"--{plain}"],
        "argument": ["methods", "cfl", plain],
        "method": ["methods", plain],
        "scenario": ["run", "--scenario", plain],
        "set": ["run", "--set", plain],
        "set key": ["run", "--set", f"{plain}=1"],
        "set value": ["run", "--set", f"rounds={plain}"],
        "path": ["compare", name],
        "explain": ["explain", name],
        "track": ["run", "--track", plain],
        "number": ["run", "--rounds", plain],
        "plot": ["plot", ".", plain, "-o", "x.png"],
        "out": ["plot", ".", "groups", "-o", name],
        "data": ["run", "--scenario", "mnist/label-swap", "--data", name],
        "shell": ["completion", plain],
        "study": ["study", plain],
        "dataset": ["run", "--set", f"dataset={plain}", "--data", "."],
        "model": ["run", "--set", f"scenario.model={plain}"],
        "file": ["run", name],
        "follow": ["report", name, "--follow", "-o", "x.html"],
        "toml": ["run", "a.toml"],
        "toml key": ["run", "b.toml"],
        "npz": ["run", "--scenario", "folder/clients", "--data", "data"],
        "folders": ["explain", "."],
        "device": ["run", "--device", plain],
    }
    which = rng.choice(list(calls))

    def run() -> str | None:
        Path("a.toml").write_text(f"scenario = {in_toml}\n", encoding="utf-8")
        Path("b.toml").write_text(f"{in_toml} = 1\n", encoding="utf-8")
        if which == "npz":
            import zipfile

            Path("data").mkdir()
            with zipfile.ZipFile(Path("data", "a.npz"), "w") as file:
                file.writestr(plain.encode("utf-8", "replace").decode() or "x", b"no array")
        if which == "folders":
            Path(name).mkdir()
            Path(name, "run.toml").write_text("schema = 1\n")
            Path("b").mkdir()
            Path("b", "run.toml").write_text("schema = 1\n")
        status, out, err = cli(calls[which])
        if status == 0:
            return controls(out)
        if status != 2 or out or err.count("\n") != 1:
            return f"exit status {status}, {(out + err)[:120]!r}"
        return controls(err)

    return Attempt("errors that quote", f"{which}: {text!r}"[:90], run)


def logged(rng: random.Random, place: Path) -> Attempt:
    text, kind = hostile(rng), rng.choice(("log", "log", "tracker", "failure", "warning"))

    def run() -> str | None:
        said: list[str] = []
        if kind == "log":
            from coterie.engines.flower.tolerant_grid import log

            handler = logging.Handler()
            handler.emit = lambda record: said.append(record.getMessage())  # type: ignore[method-assign]
            log.addHandler(handler)
            before, log.propagate = log.propagate, False
            try:
                log.warning("client %s refused: %s", 3, text)
            finally:
                log.removeHandler(handler)
                log.propagate = before
        elif kind == "tracker":
            from coterie.contrib.tracking.metrics import words
            from page_runs import line, note

            said.append(words(line(1, [[0]], note("split", [0], text=text))))
            if said[0].count("\n"):
                return f"a line is forged: {said[0]!r}"
        elif kind == "failure":
            from coterie.cli.running import _keep_details

            class Failed:
                folder = Path()

            said.append(_keep_details(Failed(), f"Traceback\n{text}\n"))  # type: ignore[arg-type]
            said.append(Path("failure.txt").read_bytes().decode("utf-8"))
        else:
            from coterie.settings import UserError

            said.append(str(UserError(f"the file {text} is no file")))
            if "\n" in said[0]:
                return f"a line is forged: {said[0]!r}"
        return controls("".join(said))

    return Attempt("logs and trackers", f"{kind}: {text!r}"[:90], run)


def embedded(rng: random.Random, place: Path) -> Attempt:
    what = rng.choice(("page", "page", "explain", "compare", "record"))

    def run() -> str | None:
        folder = a_run(rng)
        if what == "page":
            status, _, err = cli(["report", "run"])
            if status:
                return (
                    None
                    if status == 2 and err.count("\n") == 1
                    else f"exit status {status}: {err[:150]!r}"
                )
            page = (folder / "report.html").read_bytes().decode("utf-8")
            inner = page.partition('<script type="application/json" id="document">')[2].partition(
                "</script>"
            )[0]
            json.loads(inner)
            ends = page.count("</script>")
            return None if "<" not in inner and ends == 2 else f"{ends} elements end"
        if what == "record":
            from coterie.records.text_files import to_json

            text = hostile(rng)
            data = to_json({"why": text, text: 1}, rng.choice((None, 1)))
            data.encode("utf-8")
            known = json.loads(data)
            return controls(data) or (
                None if known == {"why": text, text: 1} else "it says something else"
            )
        status, out, err = cli([what, "run", "--json"])
        if status:
            return (
                None
                if status == 2 and err.count("\n") == 1
                else f"exit status {status}: {err[:150]!r}"
            )
        json.loads(out)
        return controls(out)

    return Attempt("records in JSON and pages", f"{what} {rng.random():.6f}", run)
