"""docs/deploy/network.md, followed to the letter on one machine: TLS, keys, who is kept out, stopping and going on."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="Flower is not installed")

from alone import alone
from federation import ROOT, ended, environment, free_ports, rounds_of, until

pytestmark = pytest.mark.slow

PAGE = (ROOT / "docs" / "deploy" / "network.md").read_text()
BLOCKS = re.findall(r"^```bash\n# ([^\n]*)\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
"""(where, what) of the page's blocks, in order. Everything a reader copies is ```bash; outputs are
```text."""

COMMANDS = {
    "coterie": f'exec {sys.executable} -c "import sys; from coterie.cli import main; sys.exit(main())" "$@"',
    # Another host's folder is another home on this one.
    "scp": 'HOMES=$(dirname "$HOME"); cp "$(echo "$1" | sed "s,^localhost:,$HOMES/server/,")" '
    '"$(echo "$2" | sed "s,^localhost:,$HOMES/server/,")"',
}
"""What installing would put on the PATH, and what has no other host to talk to here."""


class Terminal:
    """A terminal on one of the hosts: a bash with a home of its own, in a clone of Coterie."""

    def __init__(self, home: Path, number: int, port: int) -> None:
        home.mkdir()
        self.home, self.number, self.port, self.count = home, number, port, 0
        search = {"HOME": str(home)}
        told = environment(home.parent, **search)
        told["PATH"] = f"{home.parent / 'bin'}:{told['PATH']}"
        told.pop("FLWR_HOME", None)
        self.shell = subprocess.Popen(
            ["bash", "--norc", "--noprofile", "-e"],
            stdin=subprocess.PIPE,
            cwd=ROOT,
            env=told,
            start_new_session=True,
        )

    def __call__(self, text: str) -> str:
        """Copy a text there; what it printed, once it is done. The variables of the page that are a reader's own are set."""
        own = {"SERVER": "localhost", "PORT": self.port, "CLIENT": self.number}
        for name, value in own.items():
            text = re.sub(
                rf"^export {name}=\S+$", f"export {name}={value}", text, flags=re.MULTILINE
            )
        self.count += 1
        script, said, done = (self.home / f"{self.count}.{what}" for what in ("sh", "out", "done"))
        script.write_text(text)
        assert self.shell.stdin is not None
        self.shell.stdin.write(f". {script} < /dev/null > {said} 2>&1; touch {done}\n".encode())
        self.shell.stdin.flush()
        until(
            done.exists,
            f"this is done:\n{text}",
            lambda: f"{text}\n{said.read_text()}" if self.shell.poll() else None,
        )
        return said.read_text()

    def log(self, name: str) -> str:
        return (self.home / "federation" / name).read_text(errors="replace")


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[dict[str, Terminal]]:
    """The server and two clients; one whose key nobody has registered, one that has no certificate of the CA, and one that
    is registered as they are and claims to be client 1."""
    (tmp_path / "bin").mkdir()
    for name, script in COMMANDS.items():
        (tmp_path / "bin" / name).write_text(f"#!/bin/bash\n{script}\n")
        (tmp_path / "bin" / name).chmod(0o755)
    with alone(), ended(tmp_path):
        port = free_ports(6, together=True)[0]
        names = ("server", "client0", "client1", "stranger", "unsure", "impostor")
        made = {
            name: Terminal(tmp_path / name, max(0, i - 1), port) for i, name in enumerate(names)
        }
        yield made
    for terminal in made.values():
        terminal.shell.communicate()


def test_the_page_leads_to_a_federation_that_keeps_strangers_out(
    hosts: dict[str, Terminal],
) -> None:
    server, stranger, unsure, impostor = (
        hosts[name] for name in ("server", "stranger", "unsure", "impostor")
    )
    said = []
    for where, what in BLOCKS:
        places = {
            "server": ["server"],
            "each client": ["client0", "client1"],
            "every host": ["server", "client0", "client1"],
        }
        if "pip install" in what:
            continue
        if what.startswith("flwr supernode list\nflwr run"):
            strangers(stranger, unsure)
        for name in places[re.split("[,:]", where)[0]]:
            said.append(hosts[name](what))
        if where.startswith(("each client", "every host")):
            impostor(what.replace("partition-id=$CLIENT", "partition-id=1"))
    run = server.home / "federation" / "run"
    lines = rounds_of(run)
    print(*said, sep="\n-----\n")

    assert [(line["round"], line["asked"], line["answered"]) for line in lines] == [
        (1, 2, 2),
        (2, 2, 2),
        (3, 2, 2),
    ]
    assert [line["groups"] for line in lines] == [[[0, 1]]] * 3
    assert sorted(json.loads((run / "nodes.json").read_text())["nodes"].values()) == [0, 1]
    assert (server.home / "federation" / "models" / "models.json").exists()
    assert server("flwr supernode list --format json").count('"online"') == 3

    key = impostor("ssh-keygen -l -f client-$CLIENT.key.pub").split()[1]
    notes = {note["text"] for line in lines for note in line["notes"] if note["kind"] == "node"}
    who = rf"node \d+ with key {re.escape(key)}"
    (told,) = (note for note in notes if note.endswith("does not take part"))
    assert re.fullmatch(
        rf"{who} claims to be client 1, but is not in the list of clients; it does not take part",
        told,
    )

    for terminal, reason in ((stranger, "Exit Code: 305"), (unsure, "certificate verify failed")):
        assert "ended with 1" in terminal(
            'wait "$(cat supernode-$CLIENT.pid)" || echo "ended with $?"'
        )
        assert reason in terminal.log(f"supernode-{terminal.number}.log")
    assert "unavailable" in unsure("flwr supernode list || true")


def strangers(stranger: Terminal, unsure: Terminal) -> None:
    """They do as the clients did, but nobody registers them, and one does not ask for the CA's certificate."""
    for where, what in BLOCKS:
        if where.startswith(("each client", "every host")) and "pip install" not in what:
            stranger(what)
            unsure(what.replace("--root-certificates ca.pem", ""))
    (config,) = (what for _, what in BLOCKS if "config.toml" in what)
    unsure("\n".join(line for line in config.splitlines() if "root-certificates" not in line))
