"""Which client a node is: claimed, bound to the key that first came with it, or listed by the operator."""

from __future__ import annotations

import json
import random
import subprocess
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr", reason="Flower is not installed")

from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from flwr.supercore.primitives.asymmetric import generate_key_pairs, public_key_to_bytes

from attack import flower_identity
from attack.flower_identity import FIRST, IMPOSTOR, grid_of, strategy
from coterie.engines.flower import MethodStrategy
from coterie.engines.flower.nodes import (
    Identity,
    Refused,
    fingerprint,
    identity_of_file,
    node_identifiers,
)
from coterie.engines.workers import EngineError
from coterie.methods import FedAvg
from coterie.records.record import Record
from coterie.settings import SettingError
from small import mlp
from timed import Clock


def write_key(path: Path) -> bytes:
    """A public key as ``ssh-keygen`` writes it; the same as Flower tells it."""
    _, public = generate_key_pairs()
    path.write_bytes(public.public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH) + b" a comment\n")
    return public_key_to_bytes(public)


# -- keys
# -----------------------------------------------------------------------------------------------------------------


def test_a_fingerprint_is_that_of_ssh_keygen(tmp_path: Path) -> None:
    told = write_key(tmp_path / "key.pub")
    try:
        done = subprocess.run(
            ["ssh-keygen", "-l", "-f", str(tmp_path / "key.pub")],
            capture_output=True,
            text=True,
            check=True,
        )
    except FileNotFoundError:
        pytest.skip("no ssh-keygen here")
    assert done.stdout.split()[1] == fingerprint(told)


def test_a_list_of_key_files_fingerprints_and_node_ids(tmp_path: Path) -> None:
    told = [write_key(tmp_path / f"{i}.pub") for i in range(2)]
    (tmp_path / "clients.toml").write_text(
        f'0 = "0.pub"\n7 = "{fingerprint(told[1])}"\n3 = {2**64 - 1}\n'
    )
    owners = {0: fingerprint(told[0]), 7: fingerprint(told[1]), 3: f"node {2**64 - 1}"}
    assert identity_of_file(tmp_path / "clients.toml") == Identity("listed", owners)
    terms = MethodStrategy.from_config(
        {"method": "fedavg", "clients": str(tmp_path / "clients.toml")}, mlp
    ).settings
    assert terms.identity == Identity("listed", owners)
    identity = Identity.of({0: tmp_path / "0.pub", 7: fingerprint(told[1])})
    assert identity.judge(5, node_identifiers(5, told[1]), None) == 7


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("0 = ", "is not a TOML file"),
        ("\xff", "must list clients by their ids, non-negative integers, got 'Ã¿'|is not a TOML file"),
        ("", "lists no client"),
        ('"" = "0.pub"', "a client: names must have at most 100 characters and no control characters, got ''"),
        ('-1 = "0.pub"', "a client must be a name or a non-negative integer of at most 18 digits, got '-1'"),
        ('a = "0.pub"\nb = "0.pub"', "gives SHA256:.* to client a and to client b; a node can be only one client"),
        ("0 = 1.5", r"must give client 0 a public key file, a fingerprint SHA256:... or a node id, got 1\.5"),
        ("0 = -1", "must give client 0 a public key file, a fingerprint SHA256:... or a node id, got -1"),
        ("0 = true", "must give client 0 a public key file, a fingerprint SHA256:... or a node id, got True"),
        ('0 = "none.pub"', r"gives client 0 the public key file .*none\.pub, which cannot be read: no such file"),
        ('0 = "clients.toml"', r"gives client 0 the public key file .*clients\.toml, which cannot be read"),
        ('0 = "."', "which cannot be read"),
        ('0 = "0.pub"\n1 = "0.pub"', "gives SHA256:.* to client 0 and to client 1; a node can be only one client"),
        ("0 = 5\n1 = 5", "gives node 5 to client 0 and to client 1; a node can be only one client"),
        ("[0]\na = 1", "must give client 0 a public key file"),
        ("0 = " + "[" * 3000, "is not a TOML file"),
    ],
    ids=str,
)  # fmt: skip
def test_a_list_that_is_none_is_told_of(text: str, says: str, tmp_path: Path) -> None:
    write_key(tmp_path / "0.pub")
    path = tmp_path / "clients.toml"
    path.write_text(text)
    with pytest.raises(SettingError, match=says) as told:
        MethodStrategy.from_config({"method": "fedavg", "clients": str(path)}, mlp)
    assert "\n" not in str(told.value).strip()


def test_a_list_that_is_not_there_is_told_of(tmp_path: Path) -> None:
    with pytest.raises(
        SettingError, match=r"the list of clients .*no\.toml cannot be read: no such file"
    ):
        identity_of_file(tmp_path / "no.toml")
    with pytest.raises(SettingError, match="is not a regular file"):
        identity_of_file(tmp_path)


@pytest.mark.parametrize("identity", ["frist", "", 3, None])
def test_wrong_settings_are_told(identity: Any) -> None:
    with pytest.raises(
        SettingError, match=r"MethodStrategy\.identity must be claimed, first or a mapping"
    ):
        MethodStrategy(FedAvg(), mlp, identity=identity)


# -- rules
# ----------------------------------------------------------------------------------------------------------------


def test_who_is_refused_is_told_in_one_sentence() -> None:
    identity = Identity("first", {3: "SHA256:a", 4: "node 9"})
    cases = {
        (
            1,
            ("SHA256:b", "node 1"),
            3,
        ): "node 1 with key SHA256:b claims to be client 3, but client 3 is the node with key "
        "SHA256:a; it does not take part",
        (
            1,
            ("node 1",),
            4,
        ): "node 1 claims to be client 4, but client 4 is node 9; it does not take part",
        (
            1,
            ("SHA256:a", "node 1"),
            5,
        ): "node 1 with key SHA256:a claims to be client 5, but belongs to client 3; it does not "
        "take part",
    }
    for (node, its, claim), says in cases.items():
        with pytest.raises(Refused) as told:
            identity.judge(node, its, claim)
        assert str(told.value) == says
    listed = Identity("listed", {3: "SHA256:a"})
    with pytest.raises(
        Refused,
        match=r"^node 1 with key SHA256:b is not in the list of clients; it does not take part$",
    ):
        listed.judge(1, ("SHA256:b", "node 1"), None)


def test_one_key_is_told_under_another_curve_too() -> None:
    public = ec.generate_private_key(ec.SECP256R1()).public_key()
    assert fingerprint(public_key_to_bytes(public)) != fingerprint(public_key_to_bytes(public)[:-5])


def test_a_federation_of_refused_nodes_says_why_nobody_is_there(clock: Clock) -> None:
    grid = grid_of(3, clock, random.Random(0))
    made = strategy(FedAvg(), 3, {i: f"SHA256:{i}" for i in range(3)})
    with pytest.raises(
        EngineError,
        match=r"waited 5 s for 3 clients, and 3 nodes connected; node \d+ with key SHA256:.* claims to be",
    ):
        next(made.rounds(grid, 1))


def test_a_node_without_a_name_keeps_its_number_by_its_key(clock: Clock, tmp_path: Path) -> None:
    grid = grid_of(2, clock, random.Random(0))
    grid.join(900, None, b"plain")
    made = strategy(FedAvg(), 3, "first", out=tmp_path)
    made.start(grid, num_rounds=1)
    del grid.nodes[900]
    grid.join(100, None, b"another")
    grid.join(901, None, b"plain")  # the same key under a new node id
    again = strategy(FedAvg(), 4, "first", out=tmp_path)
    again.start(grid, num_rounds=2)
    nodes = json.loads((tmp_path / "nodes.json").read_text())["nodes"]
    assert (nodes["901"], nodes["100"]) == (2, 3)


def test_nodes_of_a_run_that_took_their_claims_are_bound_by_their_ids(
    clock: Clock, tmp_path: Path
) -> None:
    grid = grid_of(3, clock, random.Random(0))
    strategy(FedAvg(), 3, "claimed", out=tmp_path).start(grid, num_rounds=1)
    path = tmp_path / "nodes.json"
    assert json.loads(path.read_text())["owners"] == {}
    grid.join(IMPOSTOR, 1, b"impostor")
    again = strategy(FedAvg(), 3, "first", out=tmp_path)
    again.start(grid, num_rounds=2)
    notes = [
        note["text"]
        for line in Record(tmp_path).lines()
        for note in line["notes"]
        if note["kind"] == "node"
    ]
    assert [note.split(" with ")[0] for note in notes] == [f"node {IMPOSTOR}"]
    owners = json.loads(path.read_text())["owners"]
    assert owners == {
        str(i): node_identifiers(FIRST + i, flower_identity.key(i))[0] for i in range(3)
    }


def test_a_refused_node_that_comes_back_is_asked_again(clock: Clock) -> None:
    """Its operator may have put right what it is called."""
    grid = grid_of(3, clock, random.Random(0))
    rounds = strategy(FedAvg(), 3, "first").rounds(grid, 5)
    next(rounds)
    grid.join(IMPOSTOR, 1, b"mine")
    assert next(rounds).position.members == (0, 1, 2)
    del grid.nodes[IMPOSTOR]
    next(rounds)
    grid.join(IMPOSTOR, 3, b"mine")
    next(rounds)  # which nobody holds up for it a second time
    assert next(rounds).position.members == (0, 1, 2, 3)
