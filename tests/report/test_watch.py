"""``coterie watch``: the report of a run that goes on, to this machine alone, and in a real browser."""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from html import escape
from pathlib import Path
from typing import Any

import pytest

from coterie.cli import main
from coterie.records.record import ROUNDS, Record
from coterie.report import watch
from coterie.report.watch import HOST, Following, Server
from coterie.settings import UserError
from page_runs import line, note, write

GROUPS = [[0, 1, 2, 3]]


@pytest.fixture
def serve() -> Iterator[Callable[[Path], Server]]:
    """Starts servers, each in a thread; they end with the test."""
    with_threads: list[tuple[Server, threading.Thread]] = []

    def start(folder: Path) -> Server:
        server = Server(folder, 0)
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        with_threads.append((server, thread))
        return server

    yield start
    for server, thread in with_threads:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A page is made anew however long the last one took."""
    monkeypatch.setattr(watch, "REST", 0)


def ask(
    server: Server, path: str = "/", method: str = "GET", query: str | None = None, **headers: str
) -> tuple[int, dict[str, str], bytes]:
    """The answer to somebody who has the address that is printed; query: in place of what that has."""
    path += f"?token={server.token}" if query is None else query
    connection = http.client.HTTPConnection(HOST, server.server_port, timeout=30)
    try:
        connection.request(method, path, headers=headers)
        answer = connection.getresponse()
        return answer.status, dict(answer.getheaders()), answer.read()
    finally:
        connection.close()


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return write(tmp_path / "run", [line(1, GROUPS)])


def test_the_page_and_its_document(run: Path, serve: Callable[[Path], Server]) -> None:
    server = serve(run)
    status, headers, page = ask(server)
    assert (status, headers["Content-Type"]) == (200, "text/html; charset=utf-8")
    status, headers, text = ask(server, "/document.json")
    assert f'data-live="{escape(headers["ETag"])}"'.encode() in page
    assert (status, headers["Content-Type"]) == (200, "application/json; charset=utf-8")
    assert [len(one["clients"]) for one in json.loads(text)["runs"]] == [4]
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert headers["Content-Security-Policy"] == "frame-ancestors 'none'"
    assert "Python" not in headers["Server"]
    assert ask(server, "/", "HEAD")[2] == b""
    for name in ("localhost", "LOCALHOST", "LocalHost"):
        assert ask(server, "/", Host=f"{name}:{server.server_port}")[0] == 200


@pytest.mark.usefixtures("at_once")
def test_what_has_not_changed_is_not_sent_again(run: Path, serve: Callable[[Path], Server]) -> None:
    server = serve(run)
    tag = ask(server, "/document.json")[1]["ETag"]
    assert ask(server, "/document.json", **{"If-None-Match": tag})[0::2] == (304, b"")
    Record(run).append(line(2, GROUPS))
    status, headers, text = ask(server, "/document.json", **{"If-None-Match": tag})
    assert status == 200
    assert headers["ETag"] != tag
    assert json.loads(text)["runs"][0]["rounds"]["groups"] == [1, 1]


def test_only_what_has_grown_is_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "REST", 0)
    read: list[str] = []
    monkeypatch.setattr(watch, "one", lambda run, one=watch.one: read.append(run.name) or one(run))
    for name in "ab":
        write(tmp_path / name, [line(1, GROUPS)])
    shown = Following(tmp_path)
    first = shown.shown()
    assert shown.shown() is first
    Record(tmp_path / "b").append(line(2, GROUPS))
    assert shown.shown() is not first
    assert read == ["a", "b", "b"]


def test_a_page_that_took_long_is_not_made_again_at_once(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch, "REST", 1e9)
    shown = Following(run)
    first = shown.shown()
    Record(run).append(line(2, GROUPS))
    assert shown.shown() is first


@pytest.mark.usefixtures("at_once")
def test_a_run_without_a_round_becomes_the_report_by_itself(
    tmp_path: Path, serve: Callable[[Path], Server]
) -> None:
    (tmp_path / "experiment.toml").write_text("schema = 1\n", encoding="utf-8")
    server = serve(tmp_path)
    assert b"No round is completed yet" in ask(server)[2]
    assert ask(server, "/document.json")[0] == 204
    run = write(tmp_path / "cfl-seed0", [])
    assert b"No round is completed yet" in ask(server)[2]
    Record(run).append(line(1, GROUPS))
    whole = (run / ROUNDS).read_bytes()
    (run / ROUNDS).write_bytes(whole[:40])
    assert b"No round is completed yet" in ask(server)[2]
    (run / ROUNDS).write_bytes(whole + whole[:40])
    assert b"No round is completed yet" not in ask(server)[2]
    assert json.loads(ask(server, "/document.json")[2])["runs"][0]["rounds"]["groups"] == [1]
    write(tmp_path / "fedavg-seed0", [line(1, GROUPS)], method="fedavg")
    assert [one["method"] for one in json.loads(ask(server, "/document.json")[2])["runs"]] == [
        "fedavg",
        "cfl",
    ]


def test_without_the_token_there_is_a_sentence_and_no_data(
    run: Path, serve: Callable[[Path], Server], capfd: pytest.CaptureFixture[str]
) -> None:
    server, other = serve(run), serve(run)
    assert server.token != other.token
    assert len(server.token) >= 40
    token = server.token
    wrong = (
        "",
        "?",
        "?token=",
        "?token",
        f"?Token={token}",
        f"?token={token[:-1]}",
        f"?token={token}a",
        f"?token={other.token}",
        f"?token={token}&token={token}",
        f"?token={token}&token=x",
        "?token=%ff%fe",
        f"?token=%00{token}",
        "?token=%C3%A9",
        "&".join(["?a=1"] * 50),
        f"#token={token}",
    )
    for query in wrong:
        for path in ("/", "/document.json", "/run.toml"):
            for how in ("GET", "HEAD"):
                status, headers, body = ask(server, path, how, query=query, Cookie=f"token={token}")
                assert status == 403, (path, query)
                assert "ETag" not in headers
                assert token not in str(headers)
                assert body in (
                    b"",
                    b"The token is missing or wrong: open the full address that coterie watch printed.\n",
                )
    assert ask(server)[0] == ask(server, "/document.json")[0] == 200
    assert ask(server, query="", Host="evil.example")[0] == 403
    assert ask(server, Host="evil.example")[0] == 403
    assert ask(server)[1]["Referrer-Policy"] == "no-referrer"
    assert "Set-Cookie" not in ask(server)[1]
    assert capfd.readouterr() == ("", "")


def test_other_names_methods_and_paths_are_refused(
    run: Path, serve: Callable[[Path], Server]
) -> None:
    server = serve(run)
    for host in ("evil.example", f"evil.example:{server.server_port}", HOST, f"{HOST}:1", ""):
        status, _, body = ask(server, "/document.json", Host=host)
        assert status == 403
        assert b"clients" not in body
    for path in (
        "/run.toml",
        "/../run.toml",
        "/%2e%2e/run.toml",
        "/rounds.jsonl",
        "//etc/passwd",
        "/state",
    ):
        assert ask(server, path)[0] == 404
    for method in ("POST", "PUT", "DELETE", "OPTIONS", "PATCH"):
        status, headers, _ = ask(server, "/", method)
        assert status == 501
        assert headers["X-Content-Type-Options"] == "nosniff"


def test_the_port_of_http_may_be_left_out(
    run: Path, serve: Callable[[Path], Server], monkeypatch: pytest.MonkeyPatch
) -> None:
    server = serve(run)
    for host in (HOST, "localhost", "Localhost"):
        assert ask(server, Host=host)[0] == 403
    monkeypatch.setattr(watch, "HTTP_PORT", server.server_port)
    for host in (HOST, "localhost", "Localhost"):
        assert ask(server, Host=host)[0] == 200
    for host in ("evil.example", "", f"{HOST}:1"):
        assert ask(server, Host=host)[0] == 403


def test_it_listens_to_this_machine_alone(run: Path) -> None:
    with Server(run, 0) as server:
        assert server.server_address[0] == "127.0.0.1"


def test_a_reader_who_leaves_is_no_error(
    run: Path, serve: Callable[[Path], Server], capfd: pytest.CaptureFixture[str]
) -> None:
    server = serve(run)
    for _ in range(5):
        with socket.create_connection((HOST, server.server_port)) as reader:
            reader.setsockopt(
                socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0)
            )  # closing sends a reset
            reader.sendall(
                f"GET /?token={server.token} HTTP/1.0\r\nHost: {HOST}:{server.server_port}\r\n\r\n".encode()
            )
    assert ask(server)[0] == 200
    assert capfd.readouterr() == ("", "")


def test_damaged_records_are_one_sentence(
    run: Path, serve: Callable[[Path], Server], capfd: pytest.CaptureFixture[str]
) -> None:
    first, *_ = (run / ROUNDS).read_bytes().splitlines(keepends=True)
    (run / ROUNDS).write_bytes(first + b"nothing\n{}\n")
    status, _, text = ask(serve(run))
    assert status == 503
    assert text.decode().startswith(f"line 2 of {run / ROUNDS} is damaged")
    assert capfd.readouterr() == ("", "")


def test_a_port_in_use_and_an_invalid_port(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with Server(run, 0) as server:
        assert main(["watch", str(run), "--port", str(server.server_port)]) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"coterie: port {server.server_port} is not available (")
    assert said.endswith("; --port 0 picks a free one\n")
    assert main(["watch", str(run), "--port", "70000"]) == 2
    assert capsys.readouterr().err == "coterie: --port must be from 0 to 65535, got 70000\n"


def test_a_folder_without_runs_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["watch", str(tmp_path / "nothing"), "--port", "0"]) == 2
    assert "is not a run directory and contains none" in capsys.readouterr().err
    with pytest.raises(UserError, match="is not a run directory"):
        Server(tmp_path, 0)


class Command:
    """``coterie`` in a process of its own."""

    def __init__(self, *words: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "coterie", *words],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
            preexec_fn=lambda: signal.signal(
                signal.SIGINT, signal.default_int_handler
            ),  # which a shell's job may ignore
        )

    def end(self, how: signal.Signals | None = None) -> tuple[int, str, str]:
        if how is not None:
            self.process.send_signal(how)
        out, err = self.process.communicate(timeout=120)
        return self.process.returncode, out, err


@pytest.mark.slow
@pytest.mark.usefixtures("at_once")
def test_a_run_is_watched_while_another_process_goes_on_with_it(
    tmp_path: Path, serve: Callable[[Path], Server]
) -> None:
    folder = tmp_path / "runs"
    going = Command(
        "run",
        "--scenario",
        "synthetic/groups",
        "--method",
        "fedavg",
        "--method",
        "cfl",
        "--rounds",
        "60",
        "--workers",
        "1",
        "--out",
        str(folder),
    )
    while not (folder / "experiment.toml").exists():
        assert going.process.poll() is None
        time.sleep(0.02)
    server, seen, tag = serve(folder), [], ""
    until = time.monotonic() + 120
    while not (seen and seen[-1] == [True, True]) and time.monotonic() < until:
        status, headers, text = ask(server, "/document.json", **{"If-None-Match": tag})
        assert status in (200, 204, 304)
        if status == 200:
            tag = headers["ETag"]
            seen.append([one["finished"] for one in json.loads(text)["runs"]])
        time.sleep(0.05)
    assert going.end()[0] == 0
    assert seen[-1] == [True, True]
    assert len(seen) > 2


@pytest.mark.slow
def test_the_command_prints_its_address_and_ends_by_ctrl_c(run: Path) -> None:
    watching = Command("watch", str(run), "--port", "0")
    assert watching.process.stdout is not None
    first = watching.process.stdout.readline()
    port, _, path = first.partition(f"http://{HOST}:")[2].partition(" ")[0].partition("/")
    for asked, status in ((path, b"200 OK"), ("", b"403 Fo")):
        with socket.create_connection((HOST, int(port)), timeout=30) as reader:
            reader.sendall(f"GET /{asked} HTTP/1.0\r\nHost: {HOST}:{port}\r\n\r\n".encode())
            assert reader.recv(15) == b"HTTP/1.0 " + status
    assert watching.end(signal.SIGINT) == (0, "stopped\n", "")


@pytest.fixture
def tab(browser: Any) -> Iterator[Any]:
    """A tab, with the errors and the requests of its page."""
    page = browser.new_page()
    page.wrong, page.asked = [], []
    page.on("console", lambda message: page.wrong.append(message.text))
    page.on("pageerror", lambda error: page.wrong.append(str(error)))
    page.on("request", lambda request: page.asked.append(request.url))
    yield page
    page.close()


@pytest.mark.slow
def test_a_browser_sees_rounds_as_they_come(
    tmp_path: Path, serve: Callable[[Path], Server], tab: Any
) -> None:
    run = write(tmp_path / "run", [])
    server = serve(run)
    tab.goto(server.address)
    tab.get_by_text("No round is completed yet").wait_for()
    Record(run).append(line(1, GROUPS))
    tab.locator("section.run").wait_for()
    tab.locator(
        "#live", has_text="ended"
    ).wait_for()  # what is said of a run whose settings ask for one round
    split = note("split", GROUPS[0], [[0, 1], [2, 3]], text="they pull apart")
    Record(run).append(line(2, [[0, 1], [2, 3]], split))
    tab.get_by_text("they pull apart").first.wait_for()
    tiles = " ".join(tab.locator("section.run .tiles").inner_text().split())
    assert "2 groups" in tiles
    assert tab.wrong == []
    origin, known = f"http://{HOST}:{server.server_port}/", f"?token={server.token}"
    assert {url.removeprefix(origin) for url in tab.asked} <= {
        known,
        f"document.json{known}",
        "favicon.ico",
    }
