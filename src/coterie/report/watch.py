"""The report of a running experiment, served to this machine alone.

``/`` is the page, and ``/document.json`` the document that it draws. The page requests the document
every two seconds, and receives it if it has changed. Nothing of the file system is served. A
request with another host name is refused: otherwise a page elsewhere, whose name was made to
resolve to this machine, could read the answers.

Other users of this machine can also send requests to 127.0.0.1. So a request must contain a token,
which is new for each server. The token is in the printed address and stays there: a browser sends a
cookie to every port of a machine, also to that of another user's server.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
import sys
import threading
import time
from dataclasses import dataclass
from http.client import HTTP_PORT
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from socketserver import TCPServer
from typing import Any
from urllib.parse import parse_qs

from coterie.files import descriptor, reason, within
from coterie.printable import say
from coterie.records.record import ROUNDS, RUN, to_json
from coterie.report.page import page
from coterie.report.page.document import one, together
from coterie.report.summary import expand
from coterie.runs.experiment import EXPERIMENT
from coterie.settings import UserError

HOST = "127.0.0.1"
NAMES = (HOST, "localhost")

GUARDS = {
    "Cache-Control": "no-cache",
    "Content-Security-Policy": "frame-ancestors 'none'",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}
"""Headers of every answer. The page itself states what it may load and run."""

WAITING = """\
<!doctype html>
<html lang="en">
<head><meta charset="utf-8"><meta name="color-scheme" content="light dark"><meta http-equiv="refresh" content="2">
<title>Waiting – Coterie</title></head>
<body style="font: 1rem system-ui, sans-serif; margin: 4rem auto; max-width: 36rem">
<h1>No round is completed yet</h1>
<p>This page shows the report after the first round.</p>
</body>
</html>
"""


def hosts(port: int) -> set[str]:
    """Return the host names in requests of a browser on this machine.

    A browser appends the port, but omits the default port of HTTP.

    Args:
        port: The port of the server.

    Example:
        >>> sorted(hosts(80))
        ['127.0.0.1', '127.0.0.1:80', 'localhost', 'localhost:80']
    """
    return {f"{name}:{port}" for name in NAMES} | (set(NAMES) if port == HTTP_PORT else set())


class Server(ThreadingHTTPServer):
    """An HTTP server of :class:`~coterie.report.watch.Following`, at 127.0.0.1.

    Args:
        folder: The directory of a run or an experiment.
        port: The port, or 0 for any that is free.

    Raises:
        UserError: If ``folder`` is not the directory of a run or an experiment, or the port is not
            available.
    """

    daemon_threads = True
    allow_reuse_address = (
        os.name != "nt"
    )  # frees a released port at once; on Windows it would take ports in use

    def __init__(self, folder: Path, port: int) -> None:
        if not 0 <= port <= 65535:
            raise UserError(f"--port must be from 0 to 65535, got {port}")
        self.following, self.token = Following(folder), secrets.token_urlsafe(32)
        try:
            super().__init__((HOST, port), RequestHandler)
        except OSError as error:
            why = reason(error)
            raise UserError(
                f"port {port} is not available ({why}); --port 0 picks a free one"
            ) from error

    def server_bind(self) -> None:
        """Bind as :class:`http.server.HTTPServer` does, but without requesting this machine's name from the network."""
        TCPServer.server_bind(self)
        self.server_name, self.server_port = HOST, self.server_address[1]

    @property
    def address(self) -> str:
        """The address of the page, with the token."""
        return f"http://{HOST}:{self.server_port}/?token={self.token}"

    def knows(self, query: str) -> bool:
        """Return whether a request's query has the token, and no other."""
        try:
            said = parse_qs(query, max_num_fields=8).get("token", [])
        except ValueError:
            return False
        return len(said) == 1 and hmac.compare_digest(said[0].encode(), self.token.encode())

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore a reader that closed the connection; print one line for any other error."""
        error = sys.exception()
        if not isinstance(error, ConnectionError | TimeoutError):
            say(f"coterie: a request failed: {type(error).__name__}: {error}", sys.stderr)


class RequestHandler(BaseHTTPRequestHandler):
    """One request. Only GET and HEAD have a method here; all others are answered with 501."""

    server: Server
    timeout = 10.0

    def do_GET(self) -> None:
        """Answer with the page, the document, or a refusal."""
        if self.headers.get("Host", "").lower() not in hosts(self.server.server_port):
            return self._say(
                403,
                b"Open this page on the same machine, with the address that coterie watch printed.\n",
            )
        path, _, query = self.path.partition("?")
        if path == "/favicon.ico":  # which browsers request on their own
            return self._say(204)
        if not self.server.knows(query):
            return self._say(
                403,
                b"The token is missing or wrong: open the full address that coterie watch printed.\n",
            )
        if path not in ("/", "/document.json"):
            return self._say(404, b"Only / and /document.json exist.\n")
        try:
            shown = self.server.following.shown()
        except UserError as error:
            return self._say(503, f"{error}\n".encode())
        return self._page(shown) if path == "/" else self._document(shown)

    do_HEAD = do_GET

    def _page(self, shown: Shown | None) -> None:
        self._say(200, shown.page if shown else WAITING.encode(), "text/html")

    def _document(self, shown: Shown | None) -> None:
        if shown is None:
            return self._say(204)
        if shown.tag in [
            tag.strip().removeprefix("W/")
            for tag in self.headers.get("If-None-Match", "").split(",")
        ]:
            return self._say(304, tag=shown.tag)
        return self._say(200, shown.document, "application/json", shown.tag)

    def _say(
        self, status: int, body: bytes = b"", kind: str = "text/plain", tag: str | None = None
    ) -> None:
        self.send_response(status)
        if tag:
            self.send_header("ETag", tag)
        if status not in (204, 304):
            self.send_header("Content-Type", f"{kind}; charset=utf-8")
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    def end_headers(self) -> None:
        """Add the headers of :data:`GUARDS`."""
        for name, value in GUARDS.items():
            self.send_header(name, value)
        super().end_headers()

    def version_string(self) -> str:
        """Return the server's name, without a version."""
        return "coterie"

    def log_message(self, format: str, *args: Any) -> None:
        """Print nothing, because a page sends many requests."""


# ----------------------------------------------------------------------------------------------------
# The page of running experiments, which is made again only when a record has grown.


REST = 4
"""The pause before a page is made again, as a multiple of the time that making it took: for large
runs it takes seconds."""

Stamp = tuple[tuple[int, int], ...]
"""(time of change, bytes) of each file of a run's records."""


@dataclass(frozen=True)
class Shown:
    """A page as served.

    Attributes:
        tag: The document's tag.
        page: The page as bytes.
        document: Its document as bytes.
    """

    tag: str
    page: bytes
    document: bytes


class Following:
    """The page of the runs in ``folder``, kept up to date; used by several threads at the same time.

    Raises:
        UserError: If ``folder`` is not the directory of a run or an experiment.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._lock = threading.Lock()
        self._parts: dict[Path, tuple[Stamp, Any]] = {}
        self._shown: tuple[dict[Path, Stamp], Shown] | None = None
        self._again = 0.0
        self.runs()

    def runs(self) -> list[Path]:
        """Return the run directories that exist now."""
        begun = (self.folder / RUN).is_file() or any(self.folder.glob(f"*/{RUN}"))
        return [] if not begun and (self.folder / EXPERIMENT).is_file() else expand([self.folder])

    def shown(self) -> Shown | None:
        """Return the present page, or one made a moment ago; None while no round of any run is completed."""
        with self._lock:
            stamps = {run: stamp for run in self.runs() if (stamp := stamped(run))}
            known = self._shown
            if known and (known[0] == stamps or time.monotonic() < self._again):
                return known[1]
            began = time.monotonic()
            made = self._made(stamps)
            self._shown = (stamps, made) if made else None
            now = time.monotonic()
            self._again = now + REST * (now - began)
            return made

    def _made(self, stamps: dict[Path, Stamp]) -> Shown | None:
        """Make the page; only runs whose records have changed are read again."""
        parts: dict[Path, tuple[Stamp, Any]] = {}
        for run, stamp in stamps.items():
            known = self._parts.get(run)
            if known and known[0] == stamp:
                parts[run] = known
            else:
                parts[run] = (stamp, one(run))
        self._parts = parts
        if not parts:
            return None
        document = together(list(parts), [part for _, part in parts.values()])
        text = to_json(document).encode()
        tag = f'"{hashlib.sha256(text).hexdigest()[:32]}"'
        return Shown(tag, page(document, live=tag).encode(), text)


def stamped(run: Path) -> Stamp | None:
    """Return when the run's records last changed; None before its first round is complete."""
    try:
        with open(descriptor(within(run, ROUNDS), os.O_RDONLY), "rb") as file:
            if not file.readline().endswith(b"\n"):
                return None
        return tuple(
            (stat.st_mtime_ns, stat.st_size)
            for stat in ((run / name).stat() for name in (RUN, ROUNDS))
        )
    except FileNotFoundError:
        return None
