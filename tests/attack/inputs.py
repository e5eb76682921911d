"""Files, numbers and settings that a user or a stranger hands to a command: each ends in the right result or one sentence."""

from __future__ import annotations

import gzip
import io
import json
import os
import random
import shutil
import string
import struct
import subprocess
import sys
import zipfile
import zlib
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from attack import Attempt
from attack._calls import apart, cli, inside, one_sentence, read_or_refused

POINTS = {
    "settings in files and options": "A number, table or text that no setting has costs one sentence, and nothing is run.",
    "data files": "A data file that is not what it should be costs one sentence, in bounded time, and is never unpickled.",
    "files that fill the memory": "A small file that unpacks to gigabytes, or claims to, is refused before it does.",
    "no regular file": "A named pipe, device or folder in a file's place costs one sentence, and nobody waits for it.",
    "odd paths": "Every command works on paths that are not UTF-8.",
    "surroundings": "Odd variables, a closed or full output and a poor terminal change no result and show no traceback.",
}

Make = Callable[[random.Random, Path], Attempt]

RUN = Path(__file__).parent.parent / "old_runs" / "schema-1" / "cfl"


def attempts(rng: random.Random, folder: Path) -> Iterator[Attempt]:
    number = 0
    while True:
        for make, times in MAKERS:
            for _ in range(times):
                place = folder / str(number)
                number += 1
                yield _cleaned(make(random.Random(rng.random()), place), place)


def _cleaned(attempt: Attempt, place: Path) -> Attempt:
    """The attempt in a folder that is there for it alone."""

    def run() -> str | None:
        with inside(place):
            why = attempt.run()
        shutil.rmtree(place, ignore_errors=True)
        return why

    return Attempt(attempt.point, attempt.name, run)


# -- settings
# -------------------------------------------------------------------------------------------------------------

KEYS = (
    "rounds", "seed", "seeds", "target", "eval_every", "checkpoint_every", "checkpoints_kept", "workers", "width", "device",
    "precision", "engine", "data", "training.lr", "training.epochs", "training.batch_size", "training.momentum",
    "boundary.clip", "boundary.noise", "scenario.clients", "scenario.groups", "scenario.train", "scenario.samples",
    "scenario.alpha", "scenario.sizes", "scenario.swaps", "scenario.angles", "scenario.dataset", "scenario.model",
    "scenario.classes", "scenario.name", "methods",
)  # fmt: skip


def number(rng: random.Random) -> str:
    """A whole number that no setting takes, in one of TOML's ways to write it."""
    digits = rng.choice((20, 100, 310, 4300, 4301, 5000, 20_000))
    sign = rng.choice(("", "", "-", "+"))
    kind = rng.randrange(6)
    if kind == 0:
        return "0x" + "f" * digits
    if kind == 1:
        return "0b1" + "01" * digits
    if kind == 2:
        return "0o" + "7" * digits
    text = rng.choice("123456789") + "".join(rng.choices(string.digits, k=digits))
    return sign + (
        "_".join(text[at : at + 3] for at in range(0, len(text), 3)) if kind == 3 else text
    )


def deep(rng: random.Random) -> str:
    """A value of lists and tables that nobody needs."""
    depth = rng.choice((30, 200, 990, 1000, 3000, 10_000))
    kind = rng.randrange(5)
    if kind == 0:
        return "[" * depth + "]" * depth
    if kind == 1:
        return "[" * depth
    if kind == 2:
        return "{a=" * depth + "1" + "}" * depth
    if kind == 3:
        return "{" + ".".join(["a"] * min(depth, 3000)) + " = 1}"
    return "[{a=" * depth + "1" + "}]" * depth


def odd(rng: random.Random) -> str:
    """A value of a type, or with letters, that no setting has."""
    return rng.choice(
        (
            "1979-05-27T07:32:00Z",
            "07:32:00",
            "1979-05-27",
            "[1979-05-27]",
            "[[]]",
            "[{}]",
            "{}",
            "{a = 1}",
            "[true, 1, 'x']",
            "nan",
            "[nan]",
            '"\\u0000"',
            '"\\u001b[2J"',
            '"\\ud800"',
            "'" + "x" * rng.choice((300, 5000, 100_000)) + "'",
            '"a\\nb"',
            "[inf]",
            "-inf",
            '"../../../../etc/passwd"',
            "'~nosuchuser/x'",
            "[[1, 2], 3]",
            "[" + "1," * 100_000 + "]",
            "1e400",
            "[1e308, -1e308]",
            '"\\u202e\\u2028"',
            "''",
            "[[1, 'a']]",
            "'hub:'",
            "-1",
            "[-1]",
            "0.5.5",
            "\x00",
            "\x1b",
            "=",
            "[",
            "'",
        )
    )


def file_of_settings(rng: random.Random, place: Path) -> Attempt:
    key, make = rng.choice(KEYS), rng.choice((number, number, deep, deep, odd))
    value = make(rng)
    table, _, name = key.rpartition(".")
    text = (
        f"[{table}]\n{name} = {value}\n" if table and rng.random() < 0.5 else f"{key} = {value}\n"
    )
    if make is deep and rng.random() < 0.3:
        parts = ".".join(["a"] * rng.choice((50, 500, 3000)))
        text = rng.choice(
            (
                f"[{parts}]\n",
                f"[[{parts}]]\n",
                f"training.{parts} = 1\n",
                f"'{parts}'.{parts} = 1\n",
            )
        )
    if "seeds" not in key:
        text = f"seeds = 1\n{text}"
    file = partial(_run_file, text.encode("utf-8", "surrogateescape"))
    return Attempt(
        "settings in files and options",
        f"{key} = {value[:30]} ({make.__name__}, {len(value)} letters)",
        file,
    )


def _run_file(text: bytes) -> str | None:
    """An experiment that is none; where it is one after all, what it takes is told."""
    Path("experiment.toml").write_bytes(text)
    said = cli(["run", "experiment.toml", "--out", "here", "--estimate"])
    if said[0] == 0 and "nothing was run" in said[1]:  # this value is allowed
        return None
    return one_sentence(*said, unwritten=Path("here"))


def broken_file(rng: random.Random, place: Path) -> Attempt:
    """Bytes that are no TOML in UTF-8."""
    good = b'scenario = "digits/label-swap"\nmethods = ["cfl"]\nrounds = 3\n[training]\nlr = 0.05\n'
    data = bytearray(good)
    for _ in range(rng.randint(1, 6)):
        at = rng.randrange(len(data))
        change = rng.randrange(4)
        if change == 0:
            data[at] = rng.randrange(256)
        elif change == 1:
            del data[at : at + rng.randint(1, 10)]
        elif change == 2:
            data[at:at] = bytes(rng.randrange(256) for _ in range(rng.randint(1, 5)))
        else:
            data[at:at] = rng.choice(
                (
                    b"\xff\xfe",
                    b"\x00",
                    b"\xef\xbb\xbf",
                    b"\r",
                    b"\xc0\x80",
                    b"\xed\xa0\x80",
                    b"\x1b[31m",
                )
            )
    return Attempt(
        "settings in files and options",
        f"bytes changed, {zlib.crc32(data):08x}",
        partial(_run_file, bytes(data)),
    )


def option(rng: random.Random, place: Path) -> Attempt:
    if rng.random() < 0.6:
        key, make = rng.choice(KEYS), rng.choice((number, deep, odd))
        value = make(rng).replace("\x00", "")
        words = ["--set", f"{key}={value}"]
    else:
        name = rng.choice(
            (
                "--rounds",
                "--seed",
                "--seeds",
                "--target",
                "--eval-every",
                "--width",
                "--workers",
                "--device",
                "--data",
            )
        )
        value = rng.choice(
            (
                number(rng),
                str(10 ** rng.randint(19, 400)),
                "nan",
                "1e999",
                "\udcff",
                "\x1b[2J",
                "²",
                "٣" * 5,
                "0x10",
            )
        )
        words = [f"{name}={value}"]

    def run() -> str | None:
        said = cli(["run", *words, "--out", "here", "--estimate"])
        if said[0] == 0 and "nothing was run" in said[1]:
            return None
        return one_sentence(*said, unwritten=Path("here"))

    return Attempt(
        "settings in files and options",
        f"{words[0][:20]} {words[-1][:40]} ({len(value)} letters)",
        run,
    )


def option_of_a_run(rng: random.Random, place: Path) -> Attempt:
    value = rng.choice((number(rng), str(10 ** rng.randint(19, 400)), "-1", "1e5", "\udcff", "nan"))
    words = rng.choice(
        (
            ["explain", str(RUN), f"--client={value}"],
            ["explain", str(RUN), f"--round={value}"],
            ["plot", str(RUN), "similarity", "-o", "x.png", f"--round={value}"],
            ["plot", str(RUN), "groups", "-o", "x.png", f"--round={10 ** rng.randint(5, 400)}"],
        )
    )
    return Attempt(
        "settings in files and options",
        f"{words[0]} {words[-1][:40]} ({len(value)} letters)",
        lambda: one_sentence(*cli(words), unwritten=Path("x.png")),
    )


# -- data files
# -----------------------------------------------------------------------------------------------------------


def load(name: str, **options: Any) -> object:
    from coterie.data import datasets

    return datasets.load(name, Path.cwd(), **options)


def own() -> object:
    from coterie.data import own
    from coterie.data.datasets.folder import read_folder

    return own.of_pools(read_folder(Path.cwd()), True)


def mangled(rng: random.Random, data: bytes) -> bytes:
    """Good bytes cut, flipped, repeated or grown."""
    out, kind = bytearray(data), rng.randrange(5)
    if kind == 0:
        return bytes(out[: rng.randrange(len(out))])
    if kind == 1:
        return bytes(out) + bytes(rng.randrange(256) for _ in range(rng.randint(1, 100)))
    for _ in range(rng.choice((1, 1, 2, 8, 40))):
        at = rng.randrange(min(len(out), rng.choice((16, 64, 300, len(out)))))
        out[at] = (
            rng.choice((0, 255, 127, 128, rng.randrange(256)))
            if kind < 4
            else out[rng.randrange(len(out))]
        )
    return bytes(out)


def npy(
    shape: str,
    descr: str = "'<f4'",
    data: bytes = b"",
    order: str = "False",
    version: bytes = b"\x01\x00",
) -> bytes:
    head = f"{{'descr': {descr}, 'fortran_order': {order}, 'shape': {shape}, }}".encode()
    size = struct.pack(
        "<H" if version[0] == 1 else "<I", min(len(head) + 1, 65535 if version[0] == 1 else 1 << 31)
    )
    return b"\x93NUMPY" + version + size + head + b"\n" + data


def hostile_npy(rng: random.Random) -> bytes:
    many = rng.choice((2**31, 2**40, 2**43, 2**62, 2**63, 2**70, 10**30))
    shapes = (
        f"({many},)",
        f"({many}, {many})",
        "(-1,)",
        "(-1, -1)",
        f"({2**32}, {2**32})",
        "(1,)*9",
        "(" + "1," * 70 + ")",
        f"({'9' * 5000},)",
        "(" * 3000 + "1" + ")" * 3000,
        "(1.5,)",
        "('a',)",
        "None",
        "(True,)",
        f"(0, {many})",
        "(3,)",
        "()",
        "[3]",
        "(4, 2,",
    )
    types = (
        "'<f4'",
        "'<f4'",
        "'<f4'",
        "'|O'",
        "'<f16'",
        "'<c8'",
        "'<U1000000'",
        "'|V0'",
        "'<U0'",
        "'<M8[s]'",
        "[('a', '|O')]",
        "'>i8'",
        "'x'",
        "[('a', '<f4', (1000000,))]",
        "'" + "f" * 5000 + "'",
        "5",
        "'<f4', 'descr': '|O'",
        "'|S0'",
    )
    version = rng.choice((b"\x01\x00", b"\x01\x00", b"\x02\x00", b"\x03\x00", b"\x09\x00"))
    data = rng.choice((b"", bytes(12), bytes(64), b"cos\nsystem\n(S'true'\ntR."))
    return npy(
        rng.choice(shapes),
        rng.choice(types),
        data,
        rng.choice(("False", "False", "True", "None", "2")),
        version,
    )


def zipped(members: list[tuple[str, bytes]], how: int = zipfile.ZIP_DEFLATED) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", how) as file:
        for name, data in members:
            file.writestr(zipfile.ZipInfo(name), data, how)  # without the time of day
    return out.getvalue()


def array(values: Any) -> bytes:
    import numpy as np

    out = io.BytesIO()
    np.save(out, np.asarray(values))
    return out.getvalue()


def good_npz(rng: random.Random) -> bytes:
    rows = rng.randint(4, 30)
    x = [[rng.gauss(0, 1) for _ in range(4)] for _ in range(rows)]
    y = [at % 3 for at in range(rows)]
    return zipped(
        [("x.npy", array(x)), ("y.npy", array(y))],
        rng.choice((zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)),
    )


def set_everywhere(data: bytes, local: int, central: int, value: bytes) -> bytes:
    """A field of every header of a zip file."""
    out = bytearray(data)
    for mark, offset in ((b"PK\x03\x04", local), (b"PK\x01\x02", central)):
        at = -1
        while (at := out.find(mark, at + 1)) >= 0:
            out[at + offset : at + offset + len(value)] = value
    return bytes(out)


def hostile_npz(rng: random.Random) -> tuple[str, bytes]:
    good, kind = good_npz(rng), rng.randrange(9)
    x, y = ("x.npy", array([[1.0, 2.0]] * 6)), ("y.npy", array([0, 1] * 3))
    if kind == 0:
        return "an array's header", zipped([("x.npy", hostile_npy(rng)), y])
    if kind == 1:
        return "the labels' header", zipped([x, ("y.npy", hostile_npy(rng))])
    if kind == 2:
        return "encrypted", set_everywhere(
            good, 6, 8, struct.pack("<H", rng.choice((1, 0x41, 0x2001)))
        )
    if kind == 3:
        method = rng.choice((1, 6, 9, 12, 14, 93, 95, 97, 98, 99, 65535))
        return f"method {method}", set_everywhere(good, 8, 10, struct.pack("<H", method))
    if kind == 4:
        size = rng.choice((0, 1, 2**20, 2**31, 2**32 - 2, 2**32 - 1))
        return f"size {size}", set_everywhere(
            good, rng.choice((18, 22)), rng.choice((20, 24)), struct.pack("<I", size)
        )
    if kind == 5:
        names = rng.choice(
            (
                ("../../x.npy", "/y.npy"),
                ("x.npy", "x"),
                ("x", "y.npy/"),
                ("_", "y"),
                ("x.npy" * 5000, "y"),
                ("\x1b[2J", "y"),
            )
        )
        return f"names {names[0][:12]!r}", zipped([(names[0], x[1]), (names[1], y[1])])
    if kind == 6:
        return "a lone array", rng.choice(
            (hostile_npy(rng), x[1], b"\x80\x04cos\nsystem\n", b"PK\x05\x06" + bytes(18))
        )
    if kind == 7:
        version = struct.pack("<H", rng.choice((46, 63, 255, 65535)))
        return "a version of zip", set_everywhere(good, 4, 6, version)
    return "bytes changed", mangled(rng, good)


def npz_file(rng: random.Random, place: Path) -> Attempt:
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of names that occur twice
        name, data = hostile_npz(rng)

    def run() -> str | None:
        Path("client.npz").write_bytes(data)
        return apart(lambda: read_or_refused(own)) if "header" in name else read_or_refused(own)

    return Attempt("data files", f"npz: {name}, {zlib.crc32(data):08x}", run)


def honest_npz(rng: random.Random, place: Path) -> Attempt:
    """Arrays as people write them: they must be read, and be what they were."""

    def run() -> str | None:
        import numpy as np

        from coterie.data import readers

        draw = np.random.default_rng(rng.randrange(2**32))
        made = {}
        for name in ("x", "y", "z"):
            shape = tuple(rng.choices((0, 1, 2, 3, 7), k=rng.randint(0, 4)))
            kind = rng.choice(("<f4", ">f4", "<f8", "<i8", "|u1", "|b1", "<U3", "<f2", ">i2"))
            made[name] = draw.integers(0, 2, shape).astype(kind, order=rng.choice("CF"))
        rng.choice((np.savez, np.savez_compressed))("a.npz", **made)
        found = readers.npz(Path("a.npz"))
        right = list(found) == list(made) and all(
            found[name].dtype == made[name].dtype and np.array_equal(found[name], made[name])
            for name in made
        )
        return None if right else "the arrays are others"

    return Attempt("data files", f"npz: an honest one, {rng.random():.6f}", run)


def gzipped(data: bytes) -> bytes:
    return gzip.compress(data, mtime=0)  # without the time of day


def idx_file(rng: random.Random, place: Path) -> Attempt:
    images = struct.pack(">BBBBIII", 0, 0, 8, 3, 6, 28, 28) + bytes(6 * 784)
    labels = struct.pack(">BBBBI", 0, 0, 8, 1, 6) + bytes(range(6))
    stems = (
        "train-images-idx3-ubyte",
        "train-labels-idx1-ubyte",
        "t10k-images-idx3-ubyte",
        "t10k-labels-idx1-ubyte",
    )
    which, data = rng.randrange(4), [images, labels, images, labels]
    kind = rng.randrange(4)
    if kind == 0:
        sizes = [rng.choice((0, 1, 28, 2**16, 2**31, 2**32 - 1)) for _ in range(3 - which % 2 * 2)]
        data[which] = struct.pack(
            f">BBBB{len(sizes)}I", 0, 0, rng.choice((8, 9, 11, 12, 13, 14, 99)), len(sizes), *sizes
        ) + bytes(20)
    else:
        data[which] = mangled(rng, data[which])
    packed = rng.random() < 0.3
    if packed:
        data[which] = (
            mangled(rng, gzipped(data[which])) if rng.random() < 0.7 else gzipped(data[which])
        )

    def run() -> str | None:
        for stem, one in zip(stems, data, strict=True):
            Path(stem).write_bytes(one)
        return read_or_refused(lambda: load("mnist"))

    return Attempt(
        "data files",
        f"idx: {stems[which]}{' packed' if packed else ''}, {zlib.crc32(data[which]):08x}",
        run,
    )


def mat_bytes(rng: random.Random) -> bytes:
    import numpy as np
    from scipy.io import savemat

    out = io.BytesIO()
    images, labels = np.zeros((32, 32, 3, 5), np.uint8), np.arange(1, 6).reshape(-1, 1)
    odd = (
        {"X": images, "y": labels},
        {"X": {"a": 1}, "y": labels},
        {"X": np.array(["b", "a"], dtype=object), "y": labels},
        {"X": "text", "y": labels},
        {"X": images, "y": "12345"},
        {"X": images},
        {"X": images.astype(complex), "y": labels},
        {"X": np.zeros((0, 0)), "y": labels},
    )
    savemat(out, rng.choice(odd + odd[:1] * 8), do_compression=rng.random() < 0.5)
    return b"MATLAB 5.0 MAT-file".ljust(116) + out.getvalue()[116:]  # without the time of day


def mat_file(rng: random.Random, place: Path) -> Attempt:
    good, data = mat_bytes(random.Random(1)), mat_bytes(rng)
    if rng.random() < 0.8:
        data = mangled(rng, data)
    if rng.random() < 0.3:  # sizes of arrays, where a file says them
        out = bytearray(mat_bytes(rng))
        at = rng.randrange(128, min(len(out) - 4, 240))
        out[at : at + 4] = struct.pack("<i", rng.choice((2**31 - 1, -1, 2**28, 2**16)))
        data = bytes(out)

    def run() -> str | None:
        Path("train_32x32.mat").write_bytes(data)
        Path("test_32x32.mat").write_bytes(good)
        return apart(lambda: read_or_refused(lambda: load("svhn")))

    return Attempt("data files", f"mat: {zlib.crc32(data):08x}", run)


def leaf_file(rng: random.Random, place: Path) -> Attempt:
    image, depth = [0.5] * 784, rng.choice((1000, 3000, 100_000))
    digits = "9" * rng.choice((400, 4301, 9000))
    texts = (
        "[" * depth,
        "[" * depth + "]" * depth,
        '{"user_data": ' * depth + "1" + "}" * depth,
        f'{{"user_data": {digits}}}',
        f'{{"user_data": {{"a": {{"x": [[{digits}]], "y": [{digits}]}}}}}}',
        '{"user_data": {"a": {"x": ' + "[" * depth + "]" * depth + ', "y": [1]}}}',
        '{"user_data": {"a": {"x": [[1e999]], "y": [1]}}}',
        '{"user_data": {"\\ud800": {"x": [], "y": [1]}}}',
        json.dumps(
            {
                "user_data": {
                    "a": {
                        "x": [image],
                        "y": [rng.choice((62, -1, 1.5, 1e30, "1", None, [1], True, 10**25))],
                    }
                }
            }
        ),
        json.dumps(
            {"user_data": {"a": {"x": [image] * 2, "y": [1]}, "b": {"x": [image], "y": [1, 2]}}}
        ),
        json.dumps(
            {
                "user_data": rng.choice(
                    (
                        [],
                        None,
                        5,
                        "a",
                        {"a": 1},
                        {"a": {}},
                        {"a": {"x": 1, "y": 1}},
                        {"a": {"x": [[1]], "y": [1]}},
                    )
                )
            }
        ),
        "\x00",
        '{"user_data": NaN}',
        "",
    )
    at = rng.randrange(len(texts) + 6)
    if at < len(texts):
        data, wrong = texts[at].encode(), True
    else:
        data, wrong = (
            mangled(
                rng, json.dumps({"user_data": {"a": {"x": [image] * 3, "y": [1, 2, 3]}}}).encode()
            ),
            False,
        )
    if rng.random() < 0.2:
        data = gzipped(data)

    def run() -> str | None:
        Path("all_data").mkdir()
        Path("all_data", "a.json").write_bytes(data)
        accepted = []
        why = read_or_refused(lambda: accepted.append(load("femnist")))
        plain = data if data[:2] != b"\x1f\x8b" else gzip.decompress(data)
        if why is None and accepted and wrong and b"[true]" not in plain and b": [1, " not in plain:
            return "it was accepted"
        if why is None and accepted and b'"b"' in plain:
            return "labels of one writer went to another"
        return why

    return Attempt("data files", f"LEAF: {zlib.crc32(data):08x}, {len(data)} bytes", run)


def csv_file(rng: random.Random, place: Path) -> Attempt:
    good = "".join(
        f'"{1 + at % 4}","title {at}","some words about it, {"more " * 12}"\n' for at in range(40)
    ).encode()
    rows = (
        b'"1","' + b"x" * 200_000 + b'","y"\n',
        b'"1","a\x00b","c"\n',
        b'"1","a\xff","c"\n',
        b'"1","open\n',
        b'"1"\n',
        b'"9","a","b"\n',
        b'"' + b"9" * 5000 + b'","a","b"\n',
        b'"\xd9\xa3","a","b"\n',
        b"\n\n\n",
        b'"1",' * 100_000 + b"\n",
        b'\xef\xbb\xbf"1","a","b"\n',
    )
    data = (
        mangled(rng, good)
        if rng.random() < 0.5
        else good[: rng.randrange(3) * 100] + rng.choice(rows) + good
    )

    def run() -> str | None:
        Path("train.csv").write_bytes(data)
        Path("test.csv").write_bytes(good)
        return read_or_refused(lambda: load("ag_news", vocabulary=50, length=5))

    return Attempt("data files", f"csv: {zlib.crc32(data):08x}", run)


# -- files that fill the memory
# -------------------------------------------------------------------------------------------


def zeros(count: int) -> bytes:
    """A raw deflate stream of so many MiB of zeros, made in no time: of pieces that each end at a byte."""
    packer = zlib.compressobj(9, zlib.DEFLATED, -15)
    piece = packer.compress(bytes(1 << 20)) + packer.flush(zlib.Z_FULL_FLUSH)
    return piece * count + zlib.compressobj(9, zlib.DEFLATED, -15).flush()


def zip_bomb(count: int, claimed: int) -> bytes:
    head = npy(f"({(count << 20) // 4},)")
    packer = zlib.compressobj(9, zlib.DEFLATED, -15)
    data = packer.compress(head) + packer.flush(zlib.Z_FULL_FLUSH) + zeros(count)
    fields = struct.pack("<HHHHHIIIHH", 20, 0, 8, 0, 33, 0, len(data), claimed & 0xFFFFFFFF, 5, 0)
    central = b"PK\x01\x02\x14\x00" + fields + struct.pack("<HHHII", 0, 0, 0, 0, 0) + b"x.npy"
    local = b"PK\x03\x04" + fields + b"x.npy" + data
    return (
        local
        + central
        + b"PK\x05\x06"
        + struct.pack("<HHHHIIH", 0, 0, 1, 1, len(central), len(local), 0)
    )


def gzip_bomb(count: int, parts: int) -> bytes:
    size = (count << 20) & 0xFFFFFFFF
    one = (
        b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\x03"
        + zeros(count)
        + struct.pack("<II", zlib.crc32(bytes(1 << 20)), size)
    )
    return one * parts


def mat_bomb(count: int, claimed: int) -> bytes:
    """A compressed element that goes on with zeros after the head of an array."""
    inner = struct.pack("<II", 14, claimed)
    inner += struct.pack("<IIII", 6, 8, 9, 0) + struct.pack(
        "<IIIIII", 5, 16, 32, 32, 3, claimed // 3072
    )
    inner += struct.pack("<HHI", 1, 1, ord("X")) + struct.pack("<II", 2, claimed)
    packer = zlib.compressobj(9)
    data = packer.compress(inner) + packer.flush(zlib.Z_FULL_FLUSH) + zeros(count)
    return (
        b"MATLAB 5.0 MAT-file".ljust(124) + b"\x00\x01IM" + struct.pack("<II", 15, len(data)) + data
    )


def bomb(rng: random.Random, place: Path) -> Attempt:
    count, kind = rng.choice((4096, 6000, 8192)) + rng.randrange(100), rng.randrange(6)

    def run() -> str | None:
        read: Callable[[], object] = own
        if kind == 0:
            Path("client.npz").write_bytes(
                zip_bomb(count % 4096, (count % 4096) << 20 if count % 4096 else 1)
            )
            data = zip_bomb(count, min((count << 20) + 200, 0xFFFFFFF0))
            Path("client.npz").write_bytes(data)
        elif kind == 1:
            claim = rng.choice(("(4000000000000,)", "(8000000, 1000000)", "(1, 32000000000)"))
            Path("client.npz").write_bytes(
                zipped([("x.npy", npy(claim, "'<f8'", bytes(64))), ("y.npy", array([0]))])
            )
        elif kind == 2:
            Path("train-images-idx3-ubyte.gz").write_bytes(gzip_bomb(count, 1))
            for stem in (
                "train-labels-idx1-ubyte",
                "t10k-images-idx3-ubyte",
                "t10k-labels-idx1-ubyte",
            ):
                Path(stem).write_bytes(b"x")
            read = partial(load, "mnist")
        elif kind == 3:
            Path("all_data").mkdir()
            Path("all_data", "a.json.gz").write_bytes(gzip_bomb(count, 1))
            read = partial(load, "femnist")
        elif kind == 4:
            for name in ("train_32x32.mat", "test_32x32.mat"):
                Path(name).write_bytes(mat_bomb(count, 0xFFFFFFF0))
            read = partial(load, "svhn")
        else:
            with open("client.npz", "wb") as file:
                file.write(b"PK\x03\x04")
                file.truncate((count << 20) * rng.choice((1, 100)))
        return apart(lambda: read_or_refused(read), room=2 << 30)

    names = (
        "zip of zeros",
        "npz that claims terabytes",
        "gzipped idx",
        "gzipped JSON",
        "MATLAB element",
        "file with a hole",
    )
    return Attempt("files that fill the memory", f"{names[kind]}, {count} MiB", run)


def key_of_many_parts(rng: random.Random, place: Path) -> Attempt:
    count = rng.randint(30_000, 60_000)
    text = (".".join(["a"] * count) + " = 1\n").encode()
    return Attempt(
        "files that fill the memory",
        f"a TOML key of {count} parts",
        lambda: apart(lambda: _run_file(text)),
    )


# -- what is no regular file
# ----------------------------------------------------------------------------------------------


def special(rng: random.Random, place: Path) -> Attempt:
    names = (
        "client.npz",
        "train-images-idx3-ubyte",
        "train.csv",
        "a.json",
        "train_32x32.mat",
        "experiment.toml",
        "run.toml",
        "report.toml",
    )
    name, kind = (
        rng.choice(names),
        rng.choice(
            (
                "pipe",
                "pipe",
                "folder",
                "/dev/zero",
                "/dev/tty",
                "loop",
                "/dev/full",
                "socket",
                "nowhere",
            )
        ),
    )

    def run() -> str | None:
        path = Path("all_data", name) if name == "a.json" else Path(name)
        path.parent.mkdir(exist_ok=True)
        _put(path, kind)
        if name in ("experiment.toml", "report.toml"):
            return one_sentence(*cli(["run", name, "--out", "here"]), unwritten=Path("here"))
        if name == "run.toml":
            command = rng.choice(
                (
                    ["compare"],
                    ["resume"],
                    ["explain"],
                    ["report", "-o", "r.html"],
                    ["report", "--follow", "-o", "r.html"],
                )
            )
            return one_sentence(*cli([command[0], ".", *command[1:]]), unwritten=Path("r.html"))
        sets = {
            "a.json": "femnist",
            "train.csv": "ag_news",
            "train_32x32.mat": "svhn",
            "client.npz": "",
            names[1]: "mnist",
        }
        return apart(lambda: read_or_refused(partial(load, sets[name]) if sets[name] else own))

    return Attempt("no regular file", f"{name} is a {kind}, {rng.random():.6f}", run)


def _put(path: Path, kind: str) -> None:
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    elif kind == "socket":
        import socket

        with socket.socket(socket.AF_UNIX) as made:
            made.bind(str(path))
    else:
        path.symlink_to({"loop": path.name, "nowhere": "nothing"}.get(kind, kind))


# -- paths
# ----------------------------------------------------------------------------------------------------------------


def odd_path(rng: random.Random, place: Path) -> Attempt:
    letters = (
        b"\xff",
        b"\xfe\x80",
        b"\xed\xa0\x80",
        b"\x1b[31m",
        b"\n",
        b"[red]",
        b"\xe2\x80\xae",
        b"caf\xe9",
        b"\x7f",
        b"[/]",
        b" ",
    )
    name = os.fsdecode(b"run" + b"".join(rng.choices(letters, k=rng.randint(1, 4))))
    command = rng.choice(
        (
            "report",
            "report",
            "report two",
            "compare",
            "explain",
            "plot",
            "export",
            "resume",
            "json",
            "missing",
            "data",
        )
    )

    def run() -> str | None:
        if command != "data":
            shutil.copytree(RUN, name)
        calls = {
            "report": ["report", name],
            "report two": ["report", name, str(RUN), "-o", f"{name}/r.html"],
            "compare": ["compare", name],
            "explain": ["explain", name],
            "plot": ["plot", name, "groups", "-o", f"{name}/x.png"],
            "export": ["export", name, "--to", f"{name}-models"],
            "resume": ["resume", name],
            "json": ["explain", name, "--json"],
            "missing": ["explain", f"{name}/none"],
            "data": ["run", "--scenario", "folder/clients", "--data", name, "--out", "here"],
        }
        if command == "data":
            Path(name).mkdir(parents=True)
            for client in range(3):
                Path(name, f"{client}.npz").write_bytes(good_npz(rng))
        said = cli(calls[command])
        if command == "missing" or (command == "data" and not os.fsencode(name).isascii()):
            return (
                one_sentence(*said, unwritten=Path("here"))
                if said[0] or command == "missing"
                else None
            )
        if command == "data":
            return None if said[0] == 0 else one_sentence(*said, unwritten=Path("here"))
        if said[0]:
            return f"exit status {said[0]}: {said[2][:150]!r}"
        if command.startswith("report"):
            Path(name, "report.html" if command == "report" else "r.html").read_text(
                encoding="utf-8"
            )
        if command == "json":
            json.loads(said[1])
        return None

    return Attempt("odd paths", f"{command} of {os.fsencode(name)!r}, {rng.random():.6f}", run)


# -- surroundings
# ---------------------------------------------------------------------------------------------------------


def variables(rng: random.Random, place: Path) -> Attempt:
    odd_values = ("", "0", "-1", "1", "²", "9" * 5000, "abc", "1e9", " 80", "\udcff", "100000000")
    changed = {
        name: rng.choice(odd_values)
        for name in rng.sample(
            (
                "COLUMNS",
                "LINES",
                "TERM",
                "NO_COLOR",
                "FORCE_COLOR",
                "COTERIE_DATA",
                "LC_ALL",
                "LANG",
                "HOME",
            ),
            k=2,
        )
    }
    words = rng.choice(
        (
            ["methods"],
            ["methods", "cfl"],
            ["scenarios"],
            ["compare", str(RUN)],
            ["explain", str(RUN)],
            ["--help"],
            ["run", "--help"],
        )
    )

    def run() -> str | None:
        status, out, err = cli(words, terminal=rng.random() < 0.3, environment=changed)
        return None if status == 0 and out else f"exit status {status}: {err[:100]!r}"

    return Attempt("surroundings", f"{' '.join(words[:1])} with {changed!r}"[:120], run)


def data_variable(rng: random.Random, place: Path) -> Attempt:
    value = rng.choice(
        (
            "~nosuchuser/x",
            "/nowhere",
            "\udcff",
            "x" * 5000,
            "/dev/null",
            "a\nb",
            "\x1b[2J",
            "~",
            "/proc/1/mem",
        )
    )
    value += rng.choice(("", "/", "/.."))
    words = rng.choice(
        (
            ["run", "--scenario", "mnist/label-swap"],
            ["run", "--scenario", "folder/clients"],
            ["study", "flhc/fig1", "--scale=data"],
        )
    )

    def run() -> str | None:
        return one_sentence(*cli([*words, "--out", "here"], environment={"COTERIE_DATA": value}))

    return Attempt(
        "surroundings", f"{words[-1]} of data in {value[:20]!r}, {rng.random():.6f}", run
    )


def streams(rng: random.Random, place: Path) -> Attempt:
    """The command in a process of its own, whose output is full, closed or poor."""
    words = rng.choice(
        (
            "methods",
            "scenarios",
            f"compare {RUN}",
            f"explain {RUN}",
            f"compare {RUN} --json",
            "--help",
            "compare nowhere",
        )
    )
    where = rng.choice(
        (
            ">/dev/full",
            ">&-",
            "2>&-",
            ">&- 2>&-",
            "2>/dev/full",
            ">/dev/full 2>&1",
            "| head -c 1 >/dev/null",
            "</dev/null",
        )
    )
    poor = rng.choice(
        (
            "",
            "LC_ALL=C PYTHONUTF8=0 PYTHONCOERCECLOCALE=0",
            "PYTHONIOENCODING=ascii",
            "TERM=dumb",
            "COLUMNS=1",
        )
    )
    line = f"{poor} {sys.executable} -m coterie {words} {where}"

    def run() -> str | None:
        done = subprocess.run(
            ["bash", "-o", "pipefail", "-c", line], capture_output=True, timeout=600
        )
        wanted = (
            2 if "nowhere" in words or ("/dev/full" in where and not where.startswith("2")) else 0
        )
        err = done.stderr.decode(errors="replace")
        if "Traceback" in err or "Exception ignored" in err or "Error" in err:
            return err.strip().splitlines()[-1][:150]
        return (
            None if done.returncode == wanted else f"exit status {done.returncode}, {err[:100]!r}"
        )

    return Attempt("surroundings", f"{poor} coterie {words[:12]} {where}, {rng.random():.6f}", run)


MAKERS: tuple[tuple[Make, int], ...] = (
    (file_of_settings, 6), (broken_file, 3), (option, 4), (option_of_a_run, 2), (npz_file, 8), (honest_npz, 2), (idx_file, 4),
    (mat_file, 2), (leaf_file, 4), (csv_file, 3), (bomb, 2), (special, 3), (odd_path, 3), (variables, 2), (data_variable, 1),
    (streams, 1), (key_of_many_parts, 1),
)  # fmt: skip
"""How to make an attempt, and how many of them in each turn."""
