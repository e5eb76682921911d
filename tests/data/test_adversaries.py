"""Adversaries: what they do to their data and updates, that it is drawn from keys, and what is told of the honest."""

import io
import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console
from torch import Tensor

from coterie.core import Task
from coterie.data.adversaries import ATTACKS, AdversarySettings, Attack
from coterie.data.scenario import SCENARIOS, Scenario
from coterie.data.world import ClientData, Split, World, with_attacks
from coterie.engines import rounds
from coterie.methods import FedAvg, Independent
from coterie.models.layout import Layout
from coterie.models.nets import factory
from coterie.records.record import Record
from coterie.records.shown import spread
from coterie.report import terminal
from coterie.report.compared import compare
from coterie.report.summary import Summary, isolated, summary, without
from coterie.robust import AS_PUBLISHED
from coterie.runs.experiment import make
from coterie.runs.folders import begin
from coterie.settings import SettingError
from forged import forge
from scripted import Scripted, everyone
from small import made, mlp, normed, world

DIGITS = replace(SCENARIOS["digits/label-permutation"], clients=8, groups=2)


def attacked(share: float = 0.25, attack: str = "sign-flip", **changes: Any) -> Scenario:
    return replace(DIGITS, adversaries=share, attack=attack, **changes)


# -- who, and what they do
# ------------------------------------------------------------------------------------------------


def test_the_share_is_drawn_by_the_seed_alone() -> None:
    found = [tuple(attacked().build(seed).attacks) for seed in range(12)]
    assert all(len(clients) == 2 for clients in found)
    assert found == [
        tuple(attacked(attack="random", attack_scale=3).build(seed).attacks) for seed in range(12)
    ]
    assert len(set(found)) > 6
    assert {client for clients in found for client in clients} > set(range(6))  # of any group
    assert len(attacked(0.01).build(0).attacks) == 1
    assert not DIGITS.build(0).attacks


@pytest.mark.parametrize(
    ("attack", "scale", "kept"),
    [
        ("label-flip", None, 1),
        ("sign-flip", None, 1),
        ("scale", None, 10),
        ("random", None, 1),
        ("sign-flip", 4, 4),
    ],
)
def test_every_attack_has_a_usual_scale(attack: str, scale: float | None, kept: float) -> None:
    assert set(attacked(attack=attack, attack_scale=scale).build(0).attacks.values()) == {
        Attack(kind=attack, scale=kept)
    }


def test_flipped_labels_are_for_training_and_validation_of_adversaries() -> None:
    plain, flipped = DIGITS.build(3), attacked(attack="label-flip").build(3)
    assert flipped.attacks
    for client, data in plain.clients.items():
        other = flipped.clients[client]
        for part in ("train", "validation", "test"):
            was, now = getattr(data, part), getattr(other, part)
            assert torch.equal(now.index, was.index)
            flips = client in flipped.attacks and part != "test"
            assert torch.equal(now.targets, 9 - was.targets if flips else was.targets)
            assert len(was) > 0


@pytest.mark.parametrize("attack", [a for a in ATTACKS if a != "label-flip"])
def test_other_attacks_leave_data_as_they_are(attack: str) -> None:
    plain, tried = DIGITS.build(3), attacked(attack=attack).build(3)
    for client, data in plain.clients.items():
        assert torch.equal(tried.clients[client].train.targets, data.train.targets)


rows = st.lists(st.floats(-100, 100, width=32), min_size=1, max_size=30).map(torch.tensor)


@given(row=rows, scale=st.floats(0.01, 100), cut=st.integers(0, 30), seed=st.integers(0, 99))
def test_attacks_by_their_definition(row: Tensor, scale: float, cut: int, seed: int) -> None:
    sent = torch.arange(len(row)) < cut
    for kind in ATTACKS:
        found = Attack(kind=kind, scale=scale).tampered(row.clone(), sent, seed, 4, 7)
        assert torch.equal(found[~sent], row[~sent])
        before, after = row[sent].double(), found[sent].double()
        if kind == "random":
            assert float(after.norm()) == pytest.approx(
                scale * float(before.norm()), rel=1e-4, abs=1e-6
            )
        elif kind == "huge":
            torch.testing.assert_close(after.abs(), torch.full_like(after, scale))
        else:
            factor = {"sign-flip": -scale, "scale": scale, "examples": -1.0}.get(kind, 1.0)
            torch.testing.assert_close(after, factor * before, rtol=1e-5, atol=1e-6)


def test_random_updates_are_of_no_direction_and_drawn_from_their_key() -> None:
    row, sent = (
        torch.randn(4000, generator=torch.Generator().manual_seed(1)),
        torch.ones(4000, dtype=torch.bool),
    )
    attack = Attack(kind="random")
    draw = {(e, c): attack.tampered(row, sent, 0, e, c) for e in (0, 1) for c in (3, 5)}
    assert torch.equal(draw[0, 3], attack.tampered(row, sent, 0, 0, 3))
    for one in draw.values():
        for other in (row, *(d for d in draw.values() if d is not one)):
            assert (
                abs(float(torch.cosine_similarity(one, other, dim=0))) < 0.08
            )  # standard deviation 0.016


# -- through the engine
# ---------------------------------------------------------------------------------------------------


def updates(tried: World, task: Task, workers: int = 1) -> dict[int, Tensor]:
    """Every client's update of one exchange, as the server sees it."""
    method = Scripted(everyone(task))
    for _ in rounds.rounds(method, tried, rounds=1, workers=workers, robust=AS_PUBLISHED):
        pass
    (seen,) = method.seen
    assert seen.updates is not None
    return dict(zip(seen.clients, seen.updates, strict=True))


ATTACKERS: Mapping[int, Attack] = {3: Attack(kind="sign-flip", scale=2), 11: Attack(kind="random")}


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize(
    "task", [Task(offered=(0,)), Task(offered=(0,), gradient=True)], ids=["update", "gradient"]
)
def test_updates_are_tampered_with_at_the_client(task: Task, workers: int) -> None:
    honest, found = (updates(world(attacks=who), task, workers) for who in ({}, ATTACKERS))
    assert torch.equal(found[2], honest[2])
    assert torch.equal(found[7], honest[7])
    assert torch.equal(found[3], -2 * honest[3])
    assert float(found[11].norm()) == pytest.approx(float(honest[11].norm()), rel=1e-5)
    assert not torch.equal(found[11], honest[11])


def test_running_statistics_and_layers_that_stay_are_spared() -> None:
    layout = Layout(made(normed))
    task = Task(offered=(0,), local_layers=("3",))
    honest, found = (updates(world(model=normed, attacks=who), task) for who in ({}, ATTACKERS))
    sent = (torch.arange(layout.size) < layout.trainable) & ~layout.mask(("3",))
    assert torch.equal(found[3][sent], -2 * honest[3][sent])
    assert torch.equal(found[3][~sent], honest[3][~sent])
    assert honest[3][layout.trainable :].any()
    # What stays at an adversary is what it has trained: attacks are on others.
    (alone,), (spared,) = (
        list(rounds.rounds(Independent(), world(model=mlp, attacks=who), rounds=1, workers=1))
        for who in ({}, ATTACKERS)
    )
    assert alone.scores == spared.scores


def test_an_enormous_update_is_refused_as_any_other() -> None:
    huge = Attack(kind="scale")
    object.__setattr__(huge, "scale", 1e30)  # more than a setting may say
    (done,) = rounds.rounds(FedAvg(), world(attacks={3: huge}), rounds=1, workers=1)
    assert set(done.refused) == {3}
    assert "enormous" in done.refused[3]
    assert done.adversaries == (3,)


# -- what is told
# ---------------------------------------------------------------------------------------------------------

SPEC: dict[str, Any] = {
    "scenario": {
        "name": "digits/label-permutation",
        "clients": 6,
        "groups": 2,
        "adversaries": 0.34,
        "attack": "label-flip",
    },
    "training": {"epochs": 1},
    "rounds": 2,
    "workers": 1,
}


def test_numbers_are_those_of_the_honest(tmp_path: Path) -> None:
    (one,) = begin(
        make({**SPEC, "methods": [{"name": "cfl", "split_rounds": [1]}]}), tmp_path / "run"
    )
    for _ in one.rounds():
        pass
    found, last = summary(tmp_path / "run"), Record(tmp_path / "run").lines()[-1]
    adversaries = Record(tmp_path / "run").description()["world"]["adversaries"]
    assert found["adversaries"] == adversaries == sorted(one.experiment.world(0).attacks)
    assert len(adversaries) == 2
    honest = [entry for client, entry in last["clients"].items() if int(client) not in adversaries]
    values = [entry["accuracy"] for entry in honest]
    assert found["accuracy"]["mean"] == spread(last)["mean"] == pytest.approx(np.mean(values))
    assert found["accuracy"]["std"] == pytest.approx(np.std(values))
    assert found["accuracy"]["worst"] == min(values)
    assert found["loss"] == pytest.approx(np.mean([entry["loss"] for entry in honest]))
    assert set(found["accuracy"]["per_client"]) == set("012345")
    assert {client for client, entry in last["clients"].items() if "adversary" in entry} == {
        str(c) for c in adversaries
    }
    assert "adversary" not in found
    assert "isolated" in printed(found)
    (alike,) = compare([tmp_path / "run"])
    assert alike["isolated"]["mean"] == found["isolated"] == isolated(found["groups"], adversaries)


def printed(found: Summary) -> str:
    stream = io.StringIO()
    Console(file=stream, width=160).print(terminal.table([found]))
    return stream.getvalue()


def test_a_run_without_adversaries_says_nothing_of_them(tmp_path: Path) -> None:
    plain = {
        **SPEC,
        "scenario": {**SPEC["scenario"], "adversaries": 0},
        "rounds": 1,
        "methods": ["fedavg"],
    }
    (one,) = begin(make(plain), tmp_path / "run")
    for _ in one.rounds():
        pass
    found = summary(tmp_path / "run")
    assert (found["adversaries"], found["isolated"]) == ([], None)
    assert "isolated" not in printed(found)
    assert "adversar" not in Record(tmp_path / "run").folder.joinpath("rounds.jsonl").read_text()
    assert "adversaries" not in Record(tmp_path / "run").description()["world"]


def test_agreement_is_that_of_the_honest(tmp_path: Path) -> None:
    (one,) = begin(make({**SPEC, "methods": ["independent"], "rounds": 1}), tmp_path / "run")
    for _ in one.rounds():
        pass
    path = tmp_path / "run" / "rounds.jsonl"
    about = Record(tmp_path / "run").description()["world"]
    bad = about["adversaries"]
    groups = [*without(about["true_groups"], bad), [bad[0]], [bad[1]]]
    old = Record(tmp_path / "run").lines()[0]
    path.unlink()
    place = {str(client): number for number, group in enumerate(groups) for client in group}
    clients = {
        client: {**entry, "group": place[client]} for client, entry in old["clients"].items()
    }
    Record(tmp_path / "run").append({**old, "groups": groups, "clients": clients})
    forge(tmp_path / "run")
    found = summary(tmp_path / "run")
    assert (found["ari"], found["isolated"]) == (1.0, 1.0)


@pytest.mark.parametrize(
    ("groups", "adversaries", "share"),
    [
        ([[0, 1, 2]], [1], 0.0), ([[0, 2], [1]], [1], 1.0), ([[0], [1, 2]], [1, 2], 1.0), ([[0, 1], [2]], [1, 2], 0.5),
        ([[0, 1]], [], None), ([[0]], [1], None),  # client 1 has not come yet
    ],
)  # fmt: skip
def test_isolated(groups: list[list[int]], adversaries: list[int], share: float | None) -> None:
    assert isolated(groups, adversaries) == share


def test_without_an_honest_client_there_is_no_number() -> None:
    line = {"clients": {"0": {"group": 0, "accuracy": 0.5, "adversary": True}}}
    assert math.isnan(spread(line)["mean"])


# -- mistakes
# -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        (
            {"adversaries": 0.2},
            r"adversaries 0\.2 needs Scenario\.attack, one of label-flip, .*, inner-product, got none",
        ),
        (
            {"attack": "labelflip"},
            r"Scenario\.attack must be one of none, label-flip, .*; did you mean label-flip\?",
        ),
        (
            {"adversaries": 1.0, "attack": "scale"},
            r"Scenario\.adversaries must be >= 0 and < 1, got 1\.0",
        ),
        (
            {"adversaries": 0.2, "attack": "scale", "attack_scale": 0},
            r"Scenario\.attack_scale must be > 0 and < 1e\+18, got 0",
        ),
    ],
)
def test_contradictions_are_refused_at_birth(changes: dict[str, Any], sentence: str) -> None:
    with pytest.raises(SettingError, match=sentence):
        replace(DIGITS, **changes)


def test_words_have_no_labels_to_flip() -> None:
    words = Split(
        torch.zeros(4, 3, dtype=torch.int64), torch.arange(4), torch.zeros(4, 3, dtype=torch.int64)
    )
    clients = dict.fromkeys(range(5), ClientData(train=words, validation=words, test=words))
    tried = World(clients=clients, model=factory("cfl-lstm", (3,), 9))
    with pytest.raises(SettingError, match="label-flip needs one class label per example"):
        with_attacks(tried, dict.fromkeys((0, 1), Attack(kind="label-flip")))
    assert (
        len(
            with_attacks(
                tried, AdversarySettings(fraction=0.4, attack="scale").draw(range(5), 0)
            ).attacks
        )
        == 2
    )


def test_somebody_must_be_honest_and_labels_must_be_classes() -> None:
    with pytest.raises(
        SettingError, match=r"must leave at least one of the 8 clients honest, got 0\.99"
    ):
        attacked(0.99).build(0)
    with pytest.raises(ValueError, match=r"World\.attacks has client 5, which does not exist"):
        world(attacks={5: Attack()})
