"""Methods whose clients have models of their own: each is its algorithm in plain torch, and at its limits another method."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from coterie.boundary import Boundary, Wire
from coterie.core import Client, Cohort, Personal, Round, Task, Training
from coterie.data.objective import cross_entropy
from coterie.data.world import Split, World
from coterie.engines.refusals import RefusedError
from coterie.methods import APFL, Ditto, FedAvg, FedBABU, FedPer, FedRep, Independent
from coterie.models.layout import Layout
from coterie.randomness import Purpose, generator, seeded
from coterie.settings import SettingError
from scripted import Scripted, everyone, outcome, play, shown
from small import mlp, normed
from small import world as small_world
from worlds import THREE, grouped, last

IDS, SIZES = (2, 3, 7, 11), (20, 9, 31, 14)
BODY, HEAD = "0", "2"  # the layers of small.mlp
TRAINING = Training(lr=0.2, lr_decay=0.9, batch=8, epochs=2)
OWN = [Ditto(pull=0.5), APFL(), FedRep(head_epochs=3), FedBABU(tune_epochs=2)]


def tried_world(**more: Any) -> World:
    return small_world(IDS, **{"sizes": SIZES, "training": TRAINING, **more})


def layout_of(tried: World) -> Layout:
    return Layout(tried.model())


def first_model(tried: World) -> Tensor:
    with seeded(0, Purpose.INIT, 0):
        module = tried.model()
    return Layout(module).row(module)


def asked(method: Any, exchange: int) -> tuple[Client, ...]:
    return Cohort(present=IDS, exchange=exchange, seed=0).sample(IDS, method.fraction)


def key_of(client: Client, exchange: int) -> tuple[int, ...]:
    return 0, Purpose.TRAIN, exchange, client


def rate(exchange: int) -> float:
    return TRAINING.lr * TRAINING.lr_decay**exchange


def batches(data: Split, epochs: int, gen: torch.Generator) -> Iterable[tuple[Tensor, Tensor]]:
    for _ in range(epochs):
        for at in torch.randperm(len(data), generator=gen).split(TRAINING.batch):
            yield data.inputs[data.index[at]], data.targets[at]


def trained(
    tried: World,
    row: Tensor,
    client: Client,
    exchange: int,
    *,
    draws: Sequence[int] = (),
    stages: Sequence[tuple[tuple[str, ...], int]] = (((BODY, HEAD), 2),),
    toward: Tensor | None = None,
    pull: float = 0.0,
) -> Tensor:
    """The model ``(d,)`` after stages of (layers, epochs), by autograd of the whole loss and torch.optim."""
    module, layout, gen = (
        tried.model(),
        layout_of(tried),
        generator(*key_of(client, exchange), *draws),
    )
    layout.load(module, row)
    parameters = dict(module.named_parameters())
    goal = (
        None
        if toward is None
        else {
            name: toward[slice(*layout.tensors[name])].view_as(p) for name, p in parameters.items()
        }
    )
    for layers, epochs in stages:
        optimizer = torch.optim.SGD(
            [p for name, p in parameters.items() if name.rpartition(".")[0] in layers],
            lr=rate(exchange),
        )
        for x, y in batches(tried.clients[client].train, epochs, gen):
            optimizer.zero_grad()
            loss = cross_entropy(module(x), y)
            if goal is not None:
                loss = (
                    loss
                    + pull
                    / 2
                    * torch.stack([((p - goal[n]) ** 2).sum() for n, p in parameters.items()]).sum()
                )
            loss.backward()
            optimizer.step()
    return layout.row(module)


def mean_of(rows: Mapping[Client, Tensor], weighting: str) -> Tensor:
    weights = {c: float(SIZES[IDS.index(c)]) if weighting == "data" else 1.0 for c in rows}
    return torch.stack([weights[c] / sum(weights.values()) * row for c, row in rows.items()]).sum(0)


def close(found: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


def kept(done: Round) -> Mapping[Client, Tensor]:
    return done.position.kept.get("", {})


# -- Ditto
# ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "method",
    [
        Ditto(pull=0.7),
        Ditto(pull=2.0, epochs=3, fraction=0.5),
        Ditto(pull=0.0, weighting="uniform"),
    ],
    ids=str,
)
@seeded(0)
def test_ditto_is_its_algorithm(method: Ditto) -> None:
    tried = tried_world()
    model, own = first_model(tried), dict[Client, Tensor]()
    for exchange, done in enumerate(play(method, tried, 3)):
        clients = asked(method, exchange)
        rows = {c: trained(tried, model, c, exchange) for c in clients}
        stages = (((BODY, HEAD), method.epochs or TRAINING.epochs),)
        for c in clients:
            start = own.get(c, model)
            own[c] = trained(
                tried, start, c, exchange, draws=(3,), stages=stages, toward=model, pull=method.pull
            )
        model = mean_of(rows, method.weighting)
        close(done.assignment.models[0], model)
        assert set(kept(done)) == set(own)
        for c, row in own.items():
            close(kept(done)[c], row)


def test_ditto_without_a_pull_is_fedavg_and_independent_training() -> None:
    tried = tried_world(
        training=replace(TRAINING, batch=0)
    )  # whole batches: their order has no effect
    ours, shared, alone = (play(m, tried, 3) for m in (Ditto(pull=0.0), FedAvg(), Independent()))
    for one, average, own in zip(ours, shared, alone, strict=True):
        assert torch.equal(one.assignment.models, average.assignment.models)
        assert (one.bytes_up, one.bytes_down) == (average.bytes_up, average.bytes_down)
        for c in IDS:
            close(kept(one)[c], kept(own)[c])


@seeded(0)
def test_a_strong_pull_keeps_a_client_at_the_model_that_it_was_offered() -> None:
    """Published slip: the shared model is trained in place before the client's own one, which is then pulled to the result."""
    tried = tried_world(training=replace(TRAINING, lr=0.05, epochs=8))
    first = first_model(tried)
    (seen,) = shown([everyone(Task(offered=(0,)))(0, IDS)], tried)
    (done,) = play(
        Ditto(pull=20.0), tried, 1
    )  # lr λ = 1: a step ends one gradient step from the model it is pulled to
    (strong,) = play(Ditto(pull=1e5), replace(tried, training=replace(tried.training, lr=1e-5)), 1)
    assert seen.updates is not None
    for c, update in zip(seen.clients, seen.updates, strict=True):
        assert float((kept(done)[c] - first).norm()) < 0.25 * float(update.norm())
        assert float((kept(done)[c] - (first + update)).norm()) > 0.75 * float(update.norm())
        torch.testing.assert_close(kept(strong)[c], first, rtol=0, atol=1e-4)


@pytest.mark.parametrize("pull", [0.1, 1.0])
def test_own_models_are_nearer_to_the_shared_one_the_stronger_the_pull(pull: float) -> None:
    tried = tried_world()
    loose, tight = (play(Ditto(pull=weight), tried, 4)[-1] for weight in (pull, 5 * pull))
    for c in IDS:
        apart = [
            float((kept(done)[c] - done.assignment.models[0]).norm()) for done in (loose, tight)
        ]
        assert apart[1] < apart[0]


def test_a_pull_that_diverges_is_refused() -> None:
    tried = tried_world()
    with pytest.raises(
        SettingError, match=r"Ditto.pull must be at most 2 / lr = 10, got 11: each step would move"
    ) as told:
        play(Ditto(pull=11.0), tried, 1)
    assert "\n" not in str(told.value)
    play(Ditto(pull=11.0), tried_world(training=replace(TRAINING, optimizer="adam", lr=0.01)), 1)


# -- APFL
# -------------------------------------------------------------------------------------------------------------


def mixed(
    tried: World,
    w: Tensor,
    v: Tensor,
    alpha: float,
    client: Client,
    exchange: int,
    adapt: bool,
    slip: bool = False,
) -> tuple[Tensor, Tensor, float]:
    """Local training of APFL: every gradient is autograd's, by w, v and α themselves.

    slip: v moves along the gradient of its own loss, and is then replaced by the mixture.
    """
    module, layout, lr = tried.model(), layout_of(tried), rate(exchange)

    def loss(row: Tensor, x: Tensor, y: Tensor) -> Tensor:
        return cross_entropy(torch.func.functional_call(module, layout.state_dict(row), (x,)), y)

    data, gen = tried.clients[client].train, generator(*key_of(client, exchange))
    for number, (x, y) in enumerate(batches(data, TRAINING.epochs, gen)):
        if adapt and not number:
            weight = torch.tensor(alpha, requires_grad=True)
            (slope,) = torch.autograd.grad(loss(weight * v + (1 - weight) * w, x, y), weight)
            alpha = min(max(alpha - lr * float(slope), 0.0), 1.0)
        w, v = (row.detach().requires_grad_() for row in (w, v))
        (of_w,) = torch.autograd.grad(loss(w, x, y), w)
        (of_v,) = torch.autograd.grad(
            loss(v if slip else alpha * v + (1 - alpha) * w.detach(), x, y), v
        )
        w, v = (w - lr * of_w).detach(), (v - lr * of_v).detach()
    return w, (alpha * v + (1 - alpha) * w if slip else v), alpha


@pytest.mark.parametrize(
    "method",
    [APFL(), APFL(mixture=0.3, adapt=False, weighting="data"), APFL(mixture=0.8, fraction=0.5)],
    ids=str,
)
@seeded(0)
def test_apfl_is_its_algorithm(method: APFL) -> None:
    tried = tried_world()
    model, own = first_model(tried), dict[Client, tuple[Tensor, float]]()
    for exchange, done in enumerate(play(method, tried, 3)):
        rows = {}
        for c in asked(method, exchange):
            v, alpha = own.get(c, (model, method.mixture))
            w, v, alpha = mixed(tried, model, v, alpha, c, exchange, method.adapt)
            rows[c], own[c] = w, (v, alpha)
        model = mean_of(rows, method.weighting)
        close(done.assignment.models[0], model)
        assert set(kept(done)) == set(own)
        for c, (v, alpha) in own.items():
            close(kept(done)[c][:-1], v)
            assert float(kept(done)[c][-1]) == pytest.approx(alpha, abs=1e-5)
    weights = {round(alpha, 4) for _, alpha in own.values()}
    assert (len(weights) > 1) == method.adapt


@seeded(0)
def test_apfls_own_values_move_by_the_mixture_and_stay_apart_from_it() -> None:
    """Published slip: v moves along the gradient of its own loss, and the mixture is then stored in its place."""
    tried, method = tried_world(), APFL(adapt=False)
    first = first_model(tried)
    (done,) = play(method, tried, 1)
    for c in IDS:
        _, wrong, _ = mixed(tried, first, first, method.mixture, c, 0, False, slip=True)
        _, right, _ = mixed(tried, first, first, method.mixture, c, 0, False)
        assert float((wrong - right).norm()) > 0.05
        close(kept(done)[c][:-1], right)


def test_apfls_weight_does_not_change_while_both_models_are_equal() -> None:
    """Published slip: each step of the weight also subtracts a fiftieth of it, whatever the data say."""
    (done,) = play(APFL(mixture=0.7), tried_world(), 1)
    assert [float(row[-1]) for row in kept(done).values()] == [pytest.approx(0.7, abs=1e-7)] * len(
        IDS
    )


def test_apfls_weight_stays_between_0_and_1() -> None:
    tried = tried_world(training=replace(TRAINING, lr=1.5))
    weights = [float(row[-1]) for done in play(APFL(), tried, 6) for row in kept(done).values()]
    assert all(0 <= weight <= 1 for weight in weights)
    assert {0.0, 1.0} & set(weights)


def test_apfl_without_own_values_is_fedavg() -> None:
    tried = tried_world()
    ours, theirs = (
        play(APFL(mixture=0.0, adapt=False), tried, 3),
        play(FedAvg(weighting="uniform"), tried, 3),
    )
    for one, other in zip(ours, theirs, strict=True):
        close(one.assignment.models, other.assignment.models)
        assert one.scores is not None
        assert other.scores is not None
        for c in IDS:
            assert one.scores[c] == pytest.approx(other.scores[c], rel=1e-4)


@pytest.mark.parametrize("model", [mlp, normed], ids=lambda m: m.__name__)
def test_apfl_without_the_shared_model_is_independent_training(model: Any) -> None:
    tried = tried_world(model=model)
    ours, theirs = play(APFL(mixture=1.0, adapt=False), tried, 3), play(Independent(), tried, 3)
    for one, other in zip(ours, theirs, strict=True):
        for c in IDS:
            close(kept(one)[c][:-1], kept(other)[c])
        assert one.scores is not None
        assert other.scores is not None
        for c in IDS:
            assert one.scores[c] == pytest.approx(other.scores[c], rel=1e-3)


# -- FedRep
# -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "method",
    [
        FedRep(head_epochs=3),
        FedRep(head_epochs=None, body_epochs=4, weighting="data"),
        FedRep(head_epochs=1, fraction=0.5),
    ],
    ids=str,
)
@seeded(0)
def test_fedrep_is_its_algorithm(method: FedRep) -> None:
    tried = tried_world()
    head = layout_of(tried).mask([HEAD])
    model = first = first_model(tried)
    own = dict[Client, Tensor]()
    stages = (
        ((HEAD,), method.head_epochs or TRAINING.epochs),
        ((BODY,), method.body_epochs or TRAINING.epochs),
    )
    for exchange, done in enumerate(play(method, tried, 3)):
        rows = {
            c: trained(
                tried, torch.where(head, own.get(c, first), model), c, exchange, stages=stages
            )
            for c in asked(method, exchange)
        }
        own |= rows
        model = torch.where(head, first, mean_of(rows, method.weighting))
        close(done.assignment.models[0], model)
        assert set(kept(done)) == set(own)
        for c, row in own.items():
            close(kept(done)[c][head], row[head])
            assert kept(done)[c][~head].isnan().all()


@seeded(0)
def test_fedreps_heads_are_trained_under_the_offered_representation() -> None:
    """Published slip: both are trained in the same steps, which is FedPer."""
    tried = tried_world()
    apart, at_once = play(FedRep(head_epochs=None), tried, 1)[0], play(FedPer(), tried, 1)[0]
    head = layout_of(tried).mask([HEAD])
    assert (apart.bytes_up, apart.bytes_down) == (at_once.bytes_up, at_once.bytes_down)
    for c in IDS:
        assert float((kept(apart)[c] - kept(at_once)[c])[head].norm()) > 1e-3


def test_fedrep_without_a_head_is_fedavg() -> None:
    for weighting in ("data", "uniform"):
        how = {"weighting": weighting, "fraction": 0.5}
        ours, theirs = (
            play(m, tried_world(), 3) for m in (FedRep(personal=0, **how), FedAvg(**how))
        )
        for one, other in zip(ours, theirs, strict=True):
            close(one.assignment.models, other.assignment.models)
            assert (one.bytes_up, one.bytes_down) == (other.bytes_up, other.bytes_down)
            assert not kept(one)


def test_fedrep_with_all_layers_in_the_head_is_independent_training() -> None:
    ours, theirs = (
        play(FedRep(personal=2, head_epochs=None), tried_world(), 3),
        play(Independent(), tried_world(), 3),
    )
    for one, other in zip(ours, theirs, strict=True):
        for c in IDS:
            close(kept(one)[c], kept(other)[c])
        assert (one.bytes_up, one.bytes_down) == (0, 0)


# -- FedBABU
# ----------------------------------------------------------------------------------------------------------

TUNED = {"full": (BODY, HEAD), "head": (HEAD,), "body": (BODY,)}


@pytest.mark.parametrize(
    "method",
    [
        FedBABU(tune_epochs=2),
        FedBABU(tune="head", tune_epochs=3, fraction=0.5),
        FedBABU(tune="body", tune_epochs=1, weighting="uniform"),
    ],
    ids=str,
)
@seeded(0)
def test_fedbabu_is_its_algorithm(method: FedBABU) -> None:
    tried = tried_world()
    head = layout_of(tried).mask([HEAD])
    model = first = first_model(tried)
    own = dict[Client, Tensor]()
    for exchange, done in enumerate(play(method, tried, 3)):
        clients = asked(method, exchange)
        rows = {
            c: trained(tried, model, c, exchange, stages=(((BODY,), TRAINING.epochs),))
            for c in clients
        }
        tuning = ((TUNED[method.tune], method.tune_epochs),)
        own |= {c: trained(tried, model, c, exchange, draws=(3,), stages=tuning) for c in clients}
        model = mean_of(rows, method.weighting)
        close(done.assignment.models[0], model)
        assert torch.equal(done.assignment.models[0][head], first[head])
        assert set(kept(done)) == set(own)
        for c, row in own.items():
            close(kept(done)[c], row)


@pytest.mark.parametrize(
    "boundary",
    [
        Boundary(clip=1.0, noise=1.0),
        Boundary(compress="sign"),
        Boundary(rotation="permute-tensors", compress="8bit"),
    ],
    ids=str,
)
@seeded(0)
def test_fedbabus_head_never_moves(boundary: Boundary) -> None:
    """Neither noise nor compression leaves the zeros of an update as they are."""
    tried = tried_world()
    layout, first = layout_of(tried), first_model(tried)
    opened, head = Wire(boundary, layout, 0).open, layout.mask([HEAD])
    done = play(FedBABU(tune_epochs=1), tried, 3, boundary=boundary)
    for round in done:
        model = opened(round.assignment.models[0])
        assert torch.equal(model[head], first[head])
        assert not torch.equal(model[~head], first[~head])


def test_fedbabu_without_a_head_and_fine_tuning_is_fedavg() -> None:
    ours, theirs = (
        play(FedBABU(head=0, tune_epochs=0), tried_world(), 3),
        play(FedAvg(), tried_world(), 3),
    )
    for one, other in zip(ours, theirs, strict=True):
        assert torch.equal(one.assignment.models, other.assignment.models)
        assert one.scores == other.scores
        assert not kept(one)


def test_fedbabu_with_all_layers_in_the_head_fine_tunes_the_first_model() -> None:
    once, twice = play(FedBABU(head=2, tune_epochs=1), tried_world(), 2)
    assert torch.equal(once.assignment.models, twice.assignment.models)
    for c in IDS:
        assert not torch.equal(kept(once)[c], once.assignment.models[0])


@seeded(0)
def test_running_statistics_follow_the_examples_in_stages() -> None:
    tried = tried_world(model=normed)
    layout = layout_of(tried)
    first, names = (
        first_model(tried),
        [piece for piece in layout.pieces if piece.name in layout.statistics],
    )
    for method in (FedBABU(), FedRep()):
        (done,) = play(method, tried, 1)
        for piece in names:
            part = slice(piece.start, piece.stop)
            assert not torch.allclose(done.assignment.models[0][part], first[part])


# -- all of them
# ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("model", [mlp, normed], ids=lambda m: m.__name__)
@pytest.mark.parametrize("method", [*OWN, FedBABU(tune="head")], ids=lambda m: m.name)
def test_a_block_of_clients_is_the_plain_loop(method: Any, model: Any) -> None:
    """With a pull, with stages, and with personal models of some layers."""
    sizes = (17, 17, 17, 17) if model is normed else SIZES
    one, other = (
        play(method, tried_world(model=model, sizes=sizes), 3, width=width)[-1] for width in (1, 4)
    )
    close(one.assignment.models, other.assignment.models)
    assert set(kept(one)) == set(kept(other)) == set(IDS)
    for c in IDS:
        torch.testing.assert_close(
            kept(one)[c], kept(other)[c], rtol=1e-4, atol=1e-5, equal_nan=True
        )


def served(method: str, shared: Tensor, own: Tensor, head: Tensor) -> Tensor:
    if method == "apfl":
        return own[-1] * own[:-1] + (1 - own[-1]) * shared
    return torch.where(head, own, shared) if method == "fedrep" else own


@pytest.mark.parametrize("method", OWN, ids=lambda m: m.name)
@seeded(0)
def test_what_serves_a_client_is_what_it_keeps(method: Any) -> None:
    tried = tried_world()
    head = layout_of(tried).mask([HEAD])
    done = play(method, tried, 2)[-1]
    for c in IDS:
        net = done.model(c)
        close(
            layout_of(tried).row(net),
            served(method.name, done.assignment.models[0], kept(done)[c], head),
        )
        data = tried.clients[c].test
        with torch.no_grad():
            loss = float(nn.functional.cross_entropy(net(data.inputs[data.index]), data.targets))
        assert done.scores is not None
        assert done.scores[c]["loss"] == pytest.approx(loss, rel=1e-4)


@pytest.mark.parametrize(
    "method", [Ditto(pull=0.5), APFL(), FedBABU(head=0, tune_epochs=2)], ids=lambda m: m.name
)
def test_own_models_are_the_same_under_a_map(method: Any) -> None:
    boundary = Boundary(rotation="blocks")
    plain, mapped = (
        play(method, tried_world(), 3)[-1],
        play(method, tried_world(), 3, boundary=boundary)[-1],
    )
    with seeded(0):
        wire = Wire(boundary, layout_of(tried_world()), 0)
    for c in IDS:
        sealed, own = kept(mapped)[c], kept(plain)[c]
        close(wire.open(sealed[: wire.layout.size]), own[: wire.layout.size])
        close(sealed[wire.layout.size :], own[wire.layout.size :])
        assert plain.scores is not None
        assert mapped.scores is not None
        assert mapped.scores[c]["loss"] == pytest.approx(plain.scores[c]["loss"], rel=1e-3)


@pytest.mark.parametrize("method", OWN, ids=lambda m: m.name)
def test_a_run_goes_on_where_it_was(method: Any) -> None:
    whole = play(method, tried_world(), 4)
    assert outcome(play(method, tried_world(), 4, start=whole[1].position)) == outcome(whole[2:])


@pytest.mark.parametrize(
    "method", [replace(method, fraction=0.5) for method in OWN], ids=lambda m: m.name
)
def test_clients_that_were_not_asked_keep_what_they_have(method: Any) -> None:
    before: Mapping[Client, Tensor] = {}
    for exchange, done in enumerate(play(method, tried_world(), 5)):
        clients = asked(method, exchange)
        assert set(kept(done)) == {*before, *clients}
        for c, row in before.items():
            same = torch.equal(kept(done)[c].nan_to_num(7.0), row.nan_to_num(7.0))
            assert same == (c not in clients)
        before = kept(done)


@pytest.mark.parametrize("method", OWN, ids=lambda m: m.name)
def test_silent_clients_and_those_that_come_and_go(method: Any) -> None:
    world = grouped(THREE, examples={2: 5})
    present = Cohort(present=world.clients, exchange=0, seed=0)
    state = last(method, world, 2).state
    assert (
        method.step(state, world.replies(method.plan(state, present), 2, lambda e, c: True))
        is state
    )
    fewer = method.retire(state, (2, 99))
    assert sorted(method.assignment(fewer).row) == sorted(set(world.clients) - {2, 99})
    back = method.admit(fewer, (99, 2, 5))
    assert method.assignment(back).groups == (world.clients,)
    assert torch.equal(back.model, state.model)
    assert not method.plan(method.retire(state, world.clients), present).tasks


# -- personal models in the engine
# ------------------------------------------------------------------------------------


def test_a_personal_model_that_diverges_is_refused_and_under_noise_not_kept() -> None:
    tried, task = tried_world(), Task(offered=(0,), personal=Personal(start="own", pull=1e30))
    method = Scripted(everyone(task))
    sentence = r"all 4 replies were refused.*its personal model has a NaN or infinite entry \(a smaller lr, or clip, may help\)"
    with pytest.raises(RefusedError, match=sentence):
        play(method, tried, 1)
    (done,) = play(method, tried, 1, boundary=Boundary(clip=1.0, noise=0.1))
    assert not done.refused  # a refusal would reveal something about the data
    assert done.answered == len(IDS)
    assert not kept(done)


@pytest.mark.parametrize(
    ("method", "sentence"),
    [
        (FedRep(personal=3), "FedRep.personal must be at most the 2 layers of the model, got 3"),
        (FedBABU(head=3), "FedBABU.head must be at most the 2 layers of the model, got 3"),
        (
            FedBABU(head=2, tune="body"),
            "FedBABU.tune must be full or head if FedBABU.head is all 2 layers, got body",
        ),
    ],
)
def test_more_layers_than_there_are_are_refused(method: Any, sentence: str) -> None:
    with pytest.raises(SettingError, match=sentence):
        method.init(grouped(THREE).federation())


def test_a_head_that_does_not_exist_is_not_fine_tuned() -> None:
    with pytest.raises(
        SettingError, match=r"FedBABU\.tune must be full or body if FedBABU\.head is 0, got head"
    ):
        FedBABU(head=0, tune="head")
