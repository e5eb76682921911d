"""The boundary in the engine: maps change no result, the server sees no plain row, noise is noise, and what is refused."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from coterie.boundary import Boundary, Wire, packed_bytes
from coterie.boundary.rules import ROTATIONS, WHOLE_ROW
from coterie.core import Federation, Plan, Replies, Task, Training
from coterie.data.attendance import Attendance
from coterie.data.world import World
from coterie.engines.rounds import rehearse
from coterie.methods import CFL, FLHC, HCCTE, MAXFL, FedAvg, FedFA, FedPer, Independent
from coterie.models.layout import Layout
from coterie.randomness import seeded
from coterie.settings import SettingError
from scripted import everyone, outcome, play, shown
from small import mlp, normed, spoiled, world

MAPS = [name for name in ROTATIONS if name != "none"]
SIZES = (20, 12, 50, 9)
BLOCK = 16
BY_LAYERS = ("acfl", "fedbabu", "fedbn", "fedper", "fedrep", "hcct-e", "hcct-p")
"""Methods that look at single layers, or leave them at the client."""


@dataclass
class Spy:
    """A method that keeps every row of ``(d,)`` that it is told, in order."""

    method: Any
    told: list[Tensor] = field(default_factory=list)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.method, name)

    def init(self, federation: Federation) -> Any:
        self.told += [federation.draw(i) for i in range(3)]
        return self.method.init(federation)

    def plan(self, state: Any, cohort: Any) -> Plan:
        plan: Plan = self.method.plan(state, cohort)
        for _, part in plan.leaves():
            self.told += list(part.models.clone())
        return plan

    def step(self, state: Any, replies: Replies) -> Any:
        self._shown(replies)
        return self.method.step(state, replies)

    def _shown(self, replies: Replies) -> None:
        for rows in (replies.means, replies.updates):
            self.told += [] if rows is None else list(rows.clone())
        for part in replies.parts.values():
            self._shown(part)


def wired(boundary: Boundary, model: Any = normed, seed: int = 0) -> Wire:
    return Wire(boundary, Layout(model()), seed)


# -- maps
# -----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rotation", MAPS)
@seeded(0)
def test_a_map_changes_no_result_and_the_server_sees_no_plain_row(
    method: Any, rotation: str
) -> None:
    tried, boundary = world(model=normed, sizes=SIZES), Boundary(rotation=rotation, block=BLOCK)
    if method.name in ("split-half-sums", "split-half-private"):
        with pytest.raises(SettingError, match=f"must be none for {method.name}"):
            play(method, tried, 1, boundary=boundary)
        return
    if rotation in WHOLE_ROW and method.name in BY_LAYERS:
        with pytest.raises(SettingError, match="must be none or permute-tensors"):
            play(method, tried, 4, boundary=boundary)
        return
    if method.name == "fedopt" and rotation == "blocks":
        # An adaptive server optimizer treats each parameter by itself.
        with pytest.raises(SettingError, match="must be none or permute or permute-tensors"):
            play(method, tried, 4, boundary=boundary)
        return
    wire, plain, sealed = wired(boundary), Spy(method), Spy(method)
    for a, b in zip(play(plain, tried, 4), play(sealed, tried, 4, boundary=boundary), strict=True):
        assert a.assignment.groups == b.assignment.groups
        assert a.assignment.row == b.assignment.row
        opened = torch.stack([wire.open(row) for row in b.assignment.models])
        torch.testing.assert_close(opened, a.assignment.models, rtol=3e-4, atol=1e-5)
        assert a.scores is not None
        assert b.scores is not None
        for client, scores in a.scores.items():
            assert b.scores[client] == pytest.approx(scores, rel=1e-3, abs=1e-4)
        assert (a.bytes_up, a.bytes_down) == (b.bytes_up, b.bytes_down)
    assert len(plain.told) == len(sealed.told) > 4
    parameters = wire.layout.trainable
    for a_row, b_row in zip(plain.told, sealed.told, strict=True):
        torch.testing.assert_close(wire.open(b_row), a_row, rtol=3e-4, atol=1e-5)
        moved = a_row[:parameters][a_row[:parameters].abs() > 1e-3]
        same = b_row[:parameters][a_row[:parameters].abs() > 1e-3] == moved
        # A tensor of one size or value (BatchNorm's first scales) has entries that nothing can hide
        # but their sign.
        assert not len(moved) or same.double().mean() < 0.35


@pytest.mark.parametrize(
    "method",
    [
        FLHC(warmup=1, metric="l1", linkage="complete", threshold=None, groups=2),
        CFL(
            similarity="gradients",
            post_split="parent-mean",
            eps1=10.0,
            eps2=0.0,
            gamma_max=0.0,
            persistence=1,
        ),
    ],
)
@seeded(0)
def test_l1_and_gradients_under_a_permutation(method: Any) -> None:  # fmt: skip
    tried, boundary = world(sizes=SIZES), Boundary(rotation="permute")
    wire = wired(boundary, mlp)
    for a, b in zip(play(method, tried, 4), play(method, tried, 4, boundary=boundary), strict=True):
        assert a.assignment.groups == b.assignment.groups
        opened = torch.stack([wire.open(row) for row in b.assignment.models])
        torch.testing.assert_close(opened, a.assignment.models, rtol=1e-4, atol=1e-5)
    assert len(b.assignment.groups) > 1


@pytest.mark.parametrize("rotation", MAPS)
@pytest.mark.parametrize(
    "method",
    [
        CFL(eps1=10.0, eps2=0.0, gamma_max=0.0, persistence=1),
        FLHC(warmup=1, threshold=None, groups=2),
    ],
)
def test_a_newcomer_finds_the_same_group_under_a_map(method: Any, rotation: str) -> None:  # fmt: skip
    tried = world(ids=(2, 3, 5, 7, 11), attendance=Attendance(joins={5: 4}, silent=0.1))
    boundary = Boundary(rotation=rotation, block=BLOCK)
    groups = [
        [done.assignment.groups for done in play(method, tried, 8, boundary=how)]
        for how in (Boundary(), boundary)
    ]
    assert groups[0] == groups[1]
    assert sorted(c for group in groups[0][-1] for c in group) == [2, 3, 5, 7, 11]


def test_a_secret_draws_other_first_models_and_another_map() -> None:
    tried, told = world(), []
    for secret in (None, 1, 2):
        spy = Spy(FedAvg())
        play(spy, tried, 1, boundary=Boundary(rotation="permute", secret=secret))
        told.append(spy.told[0].abs().sort().values)  # the values without their places
    assert not any(torch.equal(told[i], told[j]) for i in range(3) for j in range(i))


# -- clipping, noise, compression
# -----------------------------------------------------------------------------------------


def updates(tried: World, exchange: int = 1, **boundary: Any) -> Replies:
    task = everyone(Task(offered=(0,)))(0, tuple(tried.clients))
    return shown([task] * exchange, tried, boundary=Boundary(**boundary))[-1]


def test_updates_are_clipped_and_the_small_ones_left_alone() -> None:
    tried = world(sizes=SIZES)
    plain = updates(tried).updates
    assert plain is not None
    norms = plain.double().norm(dim=1)
    limit = float(norms.median())
    clipped = updates(tried, clip=limit).updates
    assert clipped is not None
    assert (clipped.double().norm(dim=1) <= limit).all()
    small = norms <= limit
    assert 0 < small.sum() < len(small)
    assert torch.equal(clipped[small], plain[small])
    assert torch.cosine_similarity(clipped, plain).min() > 1 - 1e-6


@seeded(0)
def test_noise_has_the_scale_that_was_asked_for_and_is_never_the_same() -> None:
    layout = Layout(nn.Linear(200, 100))
    wire = Wire(Boundary(clip=2.0, noise=1.5), layout, 0)
    drawn = [
        wire.send(torch.zeros(layout.size), client, exchange)
        for client, exchange in ((1, 0), (2, 0), (1, 1))
    ]
    for noise in drawn:
        assert float(noise.mean()) == pytest.approx(0, abs=5 * 3.0 / layout.size**0.5)
        assert float(noise.std()) == pytest.approx(3.0, rel=5 / (2 * layout.size) ** 0.5)
    for i in range(3):
        for j in range(i):
            assert abs(np.corrcoef(drawn[i], drawn[j])[0, 1]) < 5 / layout.size**0.5
    again = Wire(Boundary(clip=2.0, noise=1.5), layout, 0).send(torch.zeros(layout.size), 2, 0)
    assert torch.equal(again, drawn[1])


def test_with_noise_the_server_learns_no_example_counts() -> None:
    tried = world(sizes=SIZES)
    assert updates(tried, clip=1.0).examples.tolist() == list(SIZES)
    noised = updates(tried, clip=1.0, noise=0.1)
    assert noised.examples.tolist() == [1] * 4
    clipped = updates(tried, clip=1.0).updates
    assert clipped is not None
    assert noised.updates is not None
    assert float((noised.updates - clipped).std()) == pytest.approx(0.1, rel=0.3)


@seeded(0)
def test_the_order_is_clip_noise_map_compress() -> None:
    layout = Layout(mlp())
    row = torch.randn(layout.size, generator=torch.Generator().manual_seed(0))
    how = {"clip": 0.5, "noise": 0.2}
    step_by_step = Wire(Boundary(**how), layout, 3).send(row, 1, 4)
    step_by_step = Wire(Boundary(rotation="blocks"), layout, 3).send(step_by_step, 1, 4)
    step_by_step = Wire(Boundary(compress="sign"), layout, 3).send(step_by_step, 1, 4)
    at_once = Wire(Boundary(**how, rotation="blocks", compress="sign"), layout, 3).send(row, 1, 4)
    assert torch.equal(at_once, step_by_step)


@seeded(0)
def test_a_useless_update_is_refused_and_under_noise_is_noise() -> None:
    tried = world()
    tried = replace(tried, clients={**tried.clients, 3: spoiled(tried.clients[3], "train")})
    for boundary in (
        {"clip": 1.0},
        {"rotation": "blocks"},
        {"compress": "8bit"},
        {"compress": "topk"},
        {"compress": "sign"},
    ):
        replies = updates(tried, **boundary)
        assert replies.clients == (2, 7, 11)
        assert "NaN, infinite or enormous" in replies.refused[3]
    replies = updates(tried, clip=1.0, noise=0.5)
    assert replies.clients == (2, 3, 7, 11)
    assert replies.updates is not None
    wire = wired(Boundary(clip=1.0, noise=0.5), mlp)
    assert torch.equal(replies.updates[1], wire.send(torch.zeros(wire.layout.size), 3, 0))


ALL = Boundary(rotation="blocks", block=BLOCK, clip=0.5, noise=0.05, compress="8bit")


def test_the_number_of_workers_changes_no_bit() -> None:
    tried = world(sizes=SIZES)
    method = CFL(eps1=10.0, eps2=0.0, gamma_max=0.0, persistence=1)
    alone, two = (outcome(play(method, tried, 3, workers, boundary=ALL)) for workers in (1, 2))
    assert alone == two


def test_a_run_with_noise_may_stop_and_go_on() -> None:
    tried, method = world(sizes=SIZES), FLHC(warmup=1, threshold=None, groups=2, fraction=0.6)
    whole = play(method, tried, 5, seed=3, boundary=ALL)
    assert outcome(
        play(method, tried, 5, seed=3, boundary=ALL, start=whole[1].position)
    ) == outcome(whole[2:])
    assert outcome(whole) != outcome(play(method, tried, 5, seed=4, boundary=ALL))


@pytest.mark.parametrize("kind", ["none", "topk", "sign", "8bit"])
@seeded(0)
def test_bytes_up_are_counted_as_compressed(kind: str) -> None:
    parameters, buffers = Layout(normed()).trainable, 16
    (done,) = play(FedAvg(), world(model=normed), boundary=Boundary(compress=kind, share=0.25))
    assert done.bytes_up == 4 * (packed_bytes(kind, parameters, 0.25) + 4 * buffers + 4)
    assert done.bytes_down == 4 * 4 * (parameters + buffers)
    (done,) = play(
        FedAvg(), world(), boundary=Boundary(compress=kind, share=0.25, clip=1.0, noise=1.0)
    )
    assert done.bytes_up == 4 * packed_bytes(
        kind, Layout(mlp()).trainable, 0.25
    )  # and no example count


@seeded(0)
def test_layers_that_stay_are_neither_clipped_nor_noised_nor_sent() -> None:
    tried = world(sizes=SIZES)
    boundary = Boundary(clip=0.01, noise=1.0, rotation="permute-tensors", compress="8bit")
    wire, layout = wired(boundary, mlp), Layout(mlp())
    head = layout.mask(["2"])
    (plain,), (sent,) = play(FedPer(), tried), play(FedPer(), tried, boundary=boundary)
    for client, kept in plain.position.kept[""].items():
        torch.testing.assert_close(
            wire.open(sent.position.kept[""][client])[head], kept[head], rtol=0, atol=1e-7
        )
    assert sent.bytes_up == 4 * packed_bytes("8bit", layout.size - int(head.sum()))
    (alone,), (same,) = (
        play(Independent(), tried),
        play(Independent(), tried, boundary=replace(boundary, rotation="blocks")),
    )
    assert alone.scores is not None
    assert same.scores is not None
    for client, scores in alone.scores.items():
        assert same.scores[client] == pytest.approx(scores, rel=1e-4)
    assert same.bytes_up == 0
    assert not same.released


def test_updates_that_noise_covers_are_counted_for_each_client() -> None:
    tried = world()
    boundary = Boundary(clip=1.0, noise=1.0)
    for done in play(FedAvg(fraction=0.5), tried, 3, boundary=boundary):
        assert sum(done.released.values()) == 2
    # In its clustering exchange everybody is asked, and in the same round a part of each group
    # again.
    first, second = play(
        FLHC(warmup=1, threshold=None, groups=2, fraction=0.5), tried, 2, boundary=boundary
    )
    assert sorted(first.released.values()) == [1, 1]
    assert sum(second.released.values()) == second.asked > 4
    assert max(second.released.values()) == 2
    assert not play(FedAvg(), tried, boundary=Boundary(clip=1.0))[0].released


# -- refusals
# -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"rotation": "permutes"}, "must be one of none, permute, .*did you mean permute?"),
        ({"noise": 1.0}, r"Boundary.noise 1 needs Boundary.clip, got none"),
        ({"noise": -1.0, "clip": 1.0}, "Boundary.noise must be >= 0"),
        ({"clip": 0.0}, "Boundary.clip must be > 0"),
        ({"secret": 3}, "Boundary.secret needs Boundary.rotation, got none"),
        ({"compress": "topk", "share": 0.6}, "Boundary.share must be > 0 and <= 0.5"),
        ({"block": 1}, "Boundary.block must be >= 2"),
        ({"delta": 1.0}, "Boundary.delta must be > 0 and < 1"),
    ],
)
def test_wrong_settings_get_one_sentence(settings: dict[str, Any], sentence: str) -> None:
    with pytest.raises(SettingError, match=sentence) as told:
        Boundary(**settings)
    assert "\n" not in str(told.value)


L1 = FLHC(metric="l1", linkage="complete")
NOISE = {"clip": 1.0, "noise": 1.0}


@pytest.mark.parametrize(
    ("method", "model", "settings", "sentence"),
    [
        (
            L1,
            mlp,
            {"rotation": "blocks"},
            "none or permute or permute-tensors for flhc with these settings, got blocks",
        ),
        (
            HCCTE(layer="paper-code"),
            mlp,
            {"rotation": "permute-tensors"},
            "must be none for hcct-e with these settings",
        ),
        (
            HCCTE(),
            mlp,
            {"rotation": "permute"},
            "must be none or permute-tensors if a method uses single layers, got",
        ),
        (
            FedPer(),
            mlp,
            {"rotation": "blocks"},
            "must be none or permute-tensors if fedper keeps some layers",
        ),
        (
            FedFA(),
            mlp,
            NOISE,
            "Boundary.noise 1 cannot be used with fedfa and these settings: clients would send losses",
        ),
        (MAXFL(), mlp, NOISE, "Boundary.noise 1 cannot be used with maxfl"),
        (
            CFL(fallback=True),
            mlp,
            NOISE,
            "Boundary.noise 1 cannot be used with cfl and these settings",
        ),
        (
            FedAvg(),
            normed,
            NOISE,
            "needs a model without running statistics .BatchNorm., got '1.running_mean'",
        ),
    ],
)
def test_what_does_not_go_together_is_refused_before_anybody_trains(
    method: Any, model: Any, settings: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(SettingError, match=sentence) as told:
        rehearse(method, world(model=model), 0, Boundary(**settings))
    assert "\n" not in str(told.value)
    with pytest.raises(SettingError):
        play(method, world(model=model), boundary=Boundary(**settings))


def test_noise_is_refused_at_once_or_never(method: Any) -> None:
    tried, boundary = world(), Boundary(**NOISE)
    refused = ""
    try:
        rehearse(method, tried, 0, boundary)
    except SettingError as error:
        refused = str(error)
    if refused:
        assert "cannot be used with" in refused or "it asks for sums over clients" in refused
    else:
        play(method, tried, 6, boundary=boundary)


def test_what_goes_together_is_not_refused() -> None:
    for method in (L1, CFL(), FedAvg()):
        rehearse(method, world(), 0, Boundary(rotation="permute", **NOISE))
    rehearse(HCCTE(), world(), 0, Boundary(rotation="permute-tensors", **NOISE))
    rehearse(Independent(), world(), 0, Boundary(rotation="blocks", **NOISE))
    rehearse(CFL(fallback=True), world(model=normed), 0, Boundary(rotation="blocks", clip=1.0))


@seeded(0)
def test_similarity_by_some_columns_needs_them_where_they_were() -> None:
    layout, plan = (
        Layout(normed()),
        {"tasks": dict.fromkeys((1, 2), Task(offered=(0,))), "models": torch.zeros(1, 115)},
    )
    mapped, whole = Boundary(rotation="permute"), slice(0, layout.trainable)
    for columns in (None, whole):
        mapped.check_plan(Plan(**plan, need="gram", columns=columns), layout, "any")
    for wrong in (slice(0, 8), slice(8, layout.trainable), slice(0, layout.size)):
        with pytest.raises(SettingError, match="any compares updates by some of their columns"):
            mapped.check_plan(Plan(**plan, need="gram", columns=wrong), layout, "any")
        Boundary(rotation="permute-tensors").check_plan(
            Plan(**plan, need="gram", columns=wrong), layout, "any"
        )


def test_training_clips_gradients_and_the_boundary_updates() -> None:
    tried = world(training=Training(lr=0.1, batch=8, clip=1e-3))
    replies = updates(tried, clip=10.0)
    assert replies.updates is not None
    assert replies.updates.norm(dim=1).max() <= 3 * 0.1 * 1.001e-3  # three steps
