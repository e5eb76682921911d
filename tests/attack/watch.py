"""``coterie watch`` among other users of the machine and pages of strangers: without the token, no request learns anything."""

from __future__ import annotations

import http.client
import random
import socket
import string
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from attack import Attempt

POINTS = {
    "watch without its token": "Who has not the address that was printed gets nothing of a run, whatever the request.",
    "watch by another name": "A request that calls this machine by another name gets nothing, even with the token.",
    "watch and files": "Nothing but the page and its numbers is served, even with the token.",
    "watch with its token": "Who has the address sees the page and its numbers.",
}

SECRET = "words that only the run has"


def attempts(rng: random.Random, folder: Path) -> Iterator[Attempt]:
    from page_runs import line, note, write

    run = write(
        folder / "run", [line(1, [[0, 1, 2, 3]], note("split", [0, 1], [[0], [1]], text=SECRET))]
    )
    with served(run) as server:
        while True:
            make = rng.choices((without, renamed, files, rightly), (6, 3, 3, 1))[0]
            yield make(rng, server)


@contextmanager
def served(run: Path) -> Iterator[Any]:
    from coterie.report.watch import Server

    with Server(run, 0) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


def whole(server: Any) -> str:
    """The query of the address that is printed."""
    return str(server.address).partition("?")[2]


def say(server: Any, request: bytes) -> bytes:
    """The answer to these bytes."""
    with socket.create_connection(("127.0.0.1", server.server_port), timeout=20) as reader:
        reader.sendall(request)
        reader.shutdown(socket.SHUT_WR)
        out = b""
        while some := reader.recv(65536):
            out += some
    return out


def asked(
    server: Any, path: str, host: str | None = None, method: str = "GET", more: str = ""
) -> bytes:
    host = f"127.0.0.1:{server.server_port}" if host is None else host
    return say(
        server,
        f"{method} {path} HTTP/1.1\r\nHost: {host}\r\n{more}Connection: close\r\n\r\n".encode(
            "latin-1", "replace"
        ),
    )


def learned(server: Any, answer: bytes) -> str | None:
    """What an answer tells that it should not; it must be an answer, too."""
    if (
        SECRET.encode() in answer
        or b"data-live" in answer
        or b'"runs"' in answer
        or b"ETag" in answer
    ):
        return f"it got the run: {answer[:60]!r}"
    if (token := whole(server).partition("=")[2]) and token.encode() in answer:
        return "it got the token"
    return (
        None
        if answer.startswith((b"HTTP/1.0 ", b"HTTP/1.1 ")) or b"<!DOCTYPE" in answer or not answer
        else f"{answer[:60]!r}"
    )


def guess(rng: random.Random, server: Any) -> str:
    """A query that is not the right one."""
    right = whole(server).partition("=")[2] or "x" * 43
    other = "".join(rng.choices(string.ascii_letters + string.digits + "-_", k=43))
    changed = list(right)
    changed[rng.randrange(len(changed))] = "~"
    return rng.choice(
        (
            "",
            "?",
            "?token=",
            "?token",
            f"?token={other}",
            f"?token={''.join(changed)}",
            f"?token={right[:-1]}",
            f"?token={right}x",
            f"?token={right[::-1]}",
            f"?token={right.swapcase()}",
            f"?TOKEN={right}",
            f"?token={other}&token={right}",
            "?token=%00",
            f"?token[]={right}",
            f"?a={right}",
            f"?token=%{rng.randrange(256):02x}{right}",
            "?token=" + "a" * rng.randint(1, 60_000),
            f"?token=\xe9{right}",
            "?" + "&".join(["token=1"] * rng.randint(2, 300)),
            "?token=*",
            "?token=../" + right,
            f"/{right}",
        )
    )


def without(rng: random.Random, server: Any) -> Attempt:
    path = rng.choice(
        (
            "/",
            "/document.json",
            "//",
            "/document.json/",
            "/./",
            "/index.html",
            "/favicon.ico",
            "/run.toml",
        )
    )
    query, method = (
        guess(rng, server),
        rng.choice(("GET", "GET", "GET", "HEAD", "POST", "OPTIONS", "get", "TRACE", "GET\t")),
    )
    right = whole(server).partition("=")[2] or "x"
    more = rng.choice(
        (
            "",
            f"Cookie: token={right}\r\n",
            f"Authorization: token {right[:-1]}\r\n",
            "If-None-Match: *\r\n",
            f"Referer: /?token={right}\r\n",
            "X-Forwarded-For: 127.0.0.1\r\n",
            f"X-Original-URL: /?token={right}\r\n",
            "Content-Length: 99999\r\n",
            "Range: bytes=0-\r\n",
        )
    )
    return Attempt(
        "watch without its token",
        f"{method!r} {path}{query[:20]} {more[:12]!r} {rng.random():.6f}",
        lambda: learned(server, asked(server, path + query, method=method, more=more)),
    )


def renamed(rng: random.Random, server: Any) -> Attempt:
    port = server.server_port
    host = rng.choice(
        (
            "evil.example",
            f"evil.example:{port}",
            "127.0.0.1.evil.example",
            f"127.0.0.1:{port + 1}",
            "localhost.evil",
            "",
            f"0.0.0.0:{port}",
            f"[::1]:{port}",
            f"2130706433:{port}",
            f"127.1:{port}",
            f"localhost:{port}@evil",
            f"127.0.0.1:{port}\\evil",
            f"local\xadhost:{port}",
            f"127.0.0.1:{port}, evil",
            f"evil:{port}#localhost",
            f"a.localhost:{port}",
            f"localhost.:{port}",
        )
    )
    path = rng.choice(("/", "/document.json")) + rng.choice(
        ("", f"?{whole(server)}", f"?{whole(server)}")
    )
    more = rng.choice(
        (
            "",
            f"X-Forwarded-Host: 127.0.0.1:{port}\r\n",
            f"Origin: http://127.0.0.1:{port}\r\n",
            f"X-Host: localhost:{port}\r\n",
        )
    )
    return Attempt(
        "watch by another name",
        f"{host.replace(str(port), 'PORT')!r} {path[:5]} {more[:8]!r} {rng.random():.6f}",
        lambda: learned(server, asked(server, path, host, more=more)),
    )


def files(rng: random.Random, server: Any) -> Attempt:
    steps = (
        "..",
        "%2e%2e",
        ".",
        "%2e.",
        "..%2f..",
        "run",
        "\\..",
        "..;",
        "%252e%252e",
        "etc",
        "state",
        "",
        "%00",
        "~",
        "\xff",
    )
    name = rng.choice(
        (
            "run.toml",
            "rounds.jsonl",
            "passwd",
            "document.json.bak",
            "state",
            "report.html",
            "",
            "document.json",
        )
    )
    path = "/" + "/".join([*rng.choices(steps, k=rng.randint(1, 6)), name])
    if path.strip("/.") in ("", "document.json") or path.lstrip("/") == "document.json":
        path += "/x"

    def run() -> str | None:
        answer = asked(server, f"{path}?{whole(server)}")
        if b" 200 " in answer[:20]:
            return f"{path} is served"
        return (
            None
            if SECRET.encode() not in answer and b"root:" not in answer
            else f"{path} is served"
        )

    return Attempt("watch and files", f"{path!r} {rng.random():.6f}", run)


def rightly(rng: random.Random, server: Any) -> Attempt:
    name, path = (
        rng.choice(("127.0.0.1", "localhost", "LOCALHOST")),
        rng.choice(("/", "/document.json")),
    )

    def run() -> str | None:
        connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=20)
        connection.request(
            "GET", f"{path}?{whole(server)}", headers={"Host": f"{name}:{server.server_port}"}
        )
        answer = connection.getresponse()
        text = answer.read()
        connection.close()
        return (
            None if answer.status == 200 and SECRET.encode() in text else f"status {answer.status}"
        )

    return Attempt("watch with its token", f"{path} of {name} {rng.random():.6f}", run)
