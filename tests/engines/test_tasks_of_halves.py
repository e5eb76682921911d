"""Tasks that ask for the updates of both halves of a client's data, in every way that an engine may carry them out."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from coterie import training
from coterie.boundary import Boundary
from coterie.core import (
    FEATURES,
    Assignment,
    Cohort,
    Federation,
    HalvedUpdates,
    Holdout,
    Need,
    Needs,
    Note,
    Personal,
    Plan,
    Replies,
    Task,
    Training,
    average,
    state,
    weights,
)
from coterie.data.attendance import Attendance
from coterie.data.world import Split, World
from coterie.engines import rounds as inprocess
from coterie.models.layout import Layout
from coterie.randomness import Purpose, generator, seeded
from coterie.training import Job, Learner, Order
from scripted import Scripted, everyone, play
from small import mlp, normed, world

IDS = (1, 2, 4, 7)


@state("test.seen")
class Seen:
    model: Tensor
    clients: tuple[int, ...]
    halves: Any = None
    halved: tuple[int, ...] = ()
    heard: tuple[int, ...] = ()
    updates: Any = None
    second_halves: Any = None
    notes: tuple[Note, ...] = ()


class Probing:
    """FedAvg whose clients train on halves, but for the ``spared``."""

    name = "probing"
    needs = Needs(occasional=FEATURES, unchanged_by="rotation")

    def __init__(
        self, spared: tuple[int, ...] = (), sketch: int | None = None, keep: tuple[str, ...] = ()
    ) -> None:
        self.spared, self.sketch, self.keep = spared, sketch, keep

    def init(self, federation: Federation) -> Seen:
        return Seen(model=federation.draw(0), clients=federation.clients)

    def plan(self, state: Seen, cohort: Cohort) -> Plan:
        tasks = {
            c: Task(offered=(0,), halves=c not in self.spared, local_layers=self.keep)
            for c in cohort.present
        }
        need: Need = "mean" if self.sketch else "rows"
        return Plan(
            models=state.model[None],
            tasks=tasks,
            need=need,
            sketch=self.sketch,
            second_halves=not self.sketch,
        )

    def step(self, state: Seen, replies: Replies) -> Seen:
        mean = (
            replies.means[0]
            if replies.means is not None
            else average(replies.updates, weights(replies, "data"))
        )  # type: ignore[arg-type]
        updates = None if replies.updates is None else replies.updates.clone()
        return replace(
            state,
            model=state.model + mean,
            halves=None if replies.halves is None else replies.halves.gram,
            halved=() if replies.halves is None else replies.halves.clients,
            heard=replies.clients,
            updates=updates,
            second_halves=None if replies.halves is None else replies.halves.second,
        )

    def assignment(self, state: Seen) -> Assignment:
        return Assignment(
            models=state.model[None], row=dict.fromkeys(state.clients, 0), groups=(state.clients,)
        )

    def explain(self, state: Seen) -> tuple[Note, ...]:
        return ()


def played(method: Probing, tried: World, rounds: int = 2, **how: Any) -> list[inprocess.Round]:
    return list(inprocess.rounds(method, tried, rounds=rounds, **{"workers": 1, "width": 1, **how}))


def by_hand(
    tried: World, model: Tensor, client: int, exchange: int = 0, seed: int = 0
) -> list[Tensor]:
    """Both updates of a client, from the definition."""
    learner = Learner(tried.model(), tried.objective, tried.augment)
    split, key = tried.clients[client].train, (seed, Purpose.TRAIN, exchange, client)
    order = torch.randperm(len(split), generator=generator(*key, 2))
    found = []
    for half in (0, 1):
        at = order[half * (len(split) // 2) : (half + 1) * (len(split) // 2)]
        part = Split(split.inputs, split.index[at], split.targets[at])
        gen = generator(*key, 2, half)
        found.append(
            learner.train(model, part, tried.training, tried.training.lr, gen).clone() - model
        )
    return found


def first_model(tried: World) -> Tensor:
    _, federation = inprocess.setup(Probing(), tried, 0, Boundary())
    return federation.draw(0)


@seeded(0)
def test_halves_are_two_updates_from_disjoint_halves_and_their_mean_is_the_update() -> None:
    tried = world(IDS)
    model = first_model(tried)
    found = played(Probing(), tried, 1)[0].position.state
    pairs = [by_hand(tried, model, client) for client in IDS]
    rows = torch.stack([pair[half] for half in (0, 1) for pair in pairs]).double()
    np.testing.assert_allclose(found.halves, (rows @ rows.T).numpy(), rtol=1e-5, atol=1e-8)
    torch.testing.assert_close(found.updates, torch.stack([(a + b) / 2 for a, b in pairs]))
    torch.testing.assert_close(found.second_halves, torch.stack([b for _, b in pairs]))


def test_the_two_halves_share_no_example_and_leave_out_one_at_most() -> None:
    data = world((3,)).clients[3]
    for size in (2, 5, 8):
        train = Split(data.train.inputs, data.train.index[:size], data.train.targets[:size])
        order = Order(
            task=Task(offered=(0,), halves=True),
            training=Training(),
            lr=0.1,
            key=(0, 1, 0),
            client=3,
        )
        first, second = (set(half.index.tolist()) for half in halves_of(order, train))
        assert len(first) == len(second) == size // 2
        assert not first & second
        assert first | second <= set(train.index.tolist())
        first_later, _ = halves_of(replace(order, key=(0, 2, 0)), train)
        assert size == 2 or set(first_later.index.tolist()) != first
    with pytest.raises(ValueError, match="1 training example cannot be halved"):
        halves_of(order, Split(train.inputs, train.index[:1], train.targets[:1]))


def halves_of(order: Order, train: Split) -> list[Split]:
    """The training data of both halves of an order."""
    job = Job(order, [], replace(world((3,)).clients[3], train=train))
    first, second, *_ = training.divided(order, can_halve=True)
    return [job.of_order(half).data.train for half in (first, second)]


@pytest.mark.parametrize("how", [{"workers": 2}, {"width": 3}, {"width": 8, "workers": 2}], ids=str)
def test_workers_and_blocks_change_no_half(how: dict[str, int]) -> None:
    tried = world(IDS)
    for one, other in zip(
        played(Probing(), tried, 3), played(Probing(), tried, 3, **how), strict=True
    ):
        np.testing.assert_allclose(
            one.position.state.halves, other.position.state.halves, rtol=1e-3, atol=1e-6
        )
        torch.testing.assert_close(
            one.assignment.models, other.assignment.models, rtol=1e-4, atol=1e-6
        )


def test_who_is_not_asked_for_halves_has_none() -> None:
    tried = world(IDS)
    found = played(Probing(spared=(2,)), tried, 1)[0].position.state
    assert found.halved == (IDS[0], *IDS[2:])
    assert len(found.second_halves) == 3
    assert not found.second_halves.isnan().any()
    rest = [0, 2, 3, 4, 6, 7]
    whole = played(Probing(), tried, 1)[0].position.state.halves
    np.testing.assert_allclose(found.halves, whole[np.ix_(rest, rest)], atol=1e-7)


def test_sketches_stand_in_for_halves() -> None:
    tried = world(IDS)
    exact = played(Probing(), tried, 1)[0]
    short = played(Probing(sketch=512), tried, 1)[0]
    torch.testing.assert_close(
        short.assignment.models, exact.assignment.models, rtol=1e-4, atol=1e-6
    )
    scale = np.sqrt(np.diag(exact.position.state.halves))
    off = (short.position.state.halves - exact.position.state.halves) / np.outer(scale, scale)
    assert np.abs(off).max() < 6 / 512**0.5


def test_an_orthonormal_map_leaves_their_products() -> None:
    tried = world(IDS)
    plain = played(Probing(), tried)
    for rotation in ("permute", "blocks"):
        mapped = played(Probing(), tried, boundary=Boundary(rotation=rotation))
        for one, other in zip(plain, mapped, strict=True):
            np.testing.assert_allclose(
                one.position.state.halves, other.position.state.halves, rtol=1e-3, atol=1e-6
            )


@seeded(0)
def test_both_halves_are_clipped_and_have_noise_of_their_own() -> None:
    tried, boundary = world(IDS), Boundary(clip=1e-6, noise=1.0)
    done = played(Probing(), tried, 1, boundary=boundary)[0]
    products, d = done.position.state.halves, Layout(tried.model()).trainable
    np.testing.assert_allclose(np.diag(products), 1e-12 * d, rtol=0.3)
    assert np.abs(products - np.diag(np.diag(products))).max() < 1e-12 * d * 0.5
    assert set(done.released.values()) == {2}


@seeded(0)
def test_layers_that_stay_move_by_the_mean_of_both_and_are_in_no_product() -> None:
    tried = world(IDS)
    layout = Layout(tried.model())
    last = list(layout.columns)[-1]
    done = played(Probing(keep=(last,)), tried, 1)[0]
    model, mask = first_model(tried), layout.mask((last,))
    for client, place in zip(IDS, range(4), strict=True):
        first, second = by_hand(tried, model, client)
        torch.testing.assert_close(
            done.position.kept[""][client][mask], (model + (first + second) / 2)[mask]
        )
        own = float((first[~mask].double() ** 2).sum())
        assert done.position.state.halves[place, place] == pytest.approx(own, rel=1e-5)


def cut(tried: World, client: int, size: int) -> World:
    """With but so many training examples of one client."""
    data = tried.clients[client]
    few = replace(
        data, train=Split(data.train.inputs, data.train.index[:size], data.train.targets[:size])
    )
    return replace(tried, clients={**tried.clients, client: few})


def whole_update(tried: World, client: int) -> Tensor:
    learner, model = Learner(tried.model(), tried.objective, tried.augment), first_model(tried)
    gen = generator(0, Purpose.TRAIN, 0, client)
    return (
        learner.train(
            model, tried.clients[client].train, tried.training, tried.training.lr, gen
        ).clone()
        - model
    )


@pytest.mark.parametrize(("model", "size"), [(mlp, 1), (normed, 3)])
@pytest.mark.parametrize("how", [{}, {"workers": 2}, {"width": 4}], ids=str)
@seeded(0)
def test_who_has_too_few_examples_sends_its_whole_update(
    model: Any, size: int, how: dict[str, int]
) -> None:
    tried = world(IDS, model=model)
    few = cut(tried, 4, size)
    done = played(Probing(), few, 1, **how)[0]
    found = done.position.state
    assert (found.heard, done.refused) == (IDS, {})
    torch.testing.assert_close(found.updates[2], whole_update(few, 4), rtol=1e-4, atol=1e-6)
    assert found.halved == (*IDS[:2], IDS[3])
    rest = np.ix_(*[[0, 1, 3, 4, 5, 7]] * 2)
    every = played(Probing(), tried, 1)[0].position.state
    np.testing.assert_allclose(found.halves, every.halves[rest], rtol=1e-3, atol=1e-6)
    one_more = cut(tried, 4, size + 1)
    assert played(Probing(), one_more, 1, **how)[0].position.state.halved == IDS


def test_sketches_of_halves_and_of_whole_updates_go_together() -> None:
    exact, short = (
        played(Probing(sketch=size), cut(world(IDS), 4, 1), 1)[0] for size in (None, 512)
    )
    torch.testing.assert_close(
        short.assignment.models, exact.assignment.models, rtol=1e-4, atol=1e-6
    )
    assert short.position.state.halved == exact.position.state.halved == (*IDS[:2], IDS[3])


def test_where_nobody_can_be_halved_there_are_no_halves() -> None:
    tried = world(IDS, sizes=[1] * 4)
    found = played(Probing(), tried, 1)[0]
    assert found.position.state.halves is None
    assert found.position.state.second_halves is None
    torch.testing.assert_close(
        found.assignment.models, played(Probing(spared=IDS), tried, 1)[0].assignment.models
    )


@seeded(0)
def test_one_update_costs_and_releases_as_one() -> None:
    tried, boundary = world(IDS), Boundary(clip=1.0, noise=1.0)
    halved, single = (
        played(Probing(), cut(tried, 4, size), 1, boundary=boundary)[0] for size in (2, 1)
    )
    assert halved.bytes_up - single.bytes_up == 4 * Layout(tried.model()).size
    assert single.released == {**halved.released, 4: 1}


def test_replies_tell_whose_halves_they_have() -> None:
    halves = HalvedUpdates(
        clients=(3, 9), gram=np.arange(16.0).reshape(4, 4), second=torch.tensor([[1.0], [2.0]])
    )
    replies = Replies(clients=(3, 5, 9), examples=np.array([1, 2, 3]), halves=halves)
    some = replies.of([5, 9])
    assert some.halves is not None
    assert (some.clients, some.halves.clients) == ((5, 9), (9,))
    assert some.halves.gram.tolist() == [[5.0, 7.0], [13.0, 15.0]]
    assert some.halves.second is not None
    assert some.halves.second.tolist() == [[2.0]]
    assert replies.of([5]).halves is None
    with pytest.raises(ValueError, match=r"halves of 2 clients cannot have the shape \(6, 6\)"):
        replace(halves, gram=np.zeros((6, 6)))
    with pytest.raises(ValueError, match="halves of 2 clients cannot have 3 second updates"):
        replace(halves, second=torch.zeros(3, 1))


@seeded(0)
def test_twice_the_bytes_go_up_and_no_more_come_down() -> None:
    tried = world(IDS)
    halves, plain = played(Probing(), tried, 1)[0], played(Probing(spared=IDS), tried, 1)[0]
    row = 4 * Layout(tried.model()).size * len(IDS)
    assert (halves.bytes_up - plain.bytes_up, halves.bytes_down) == (row, plain.bytes_down)


def test_replies_of_some_have_the_halves_of_some() -> None:
    halves = HalvedUpdates(clients=(3, 5, 9), gram=np.arange(36.0).reshape(6, 6))
    replies = Replies(clients=(3, 5, 9), examples=np.array([1, 2, 3]), halves=halves)
    some = replies.of([9, 3]).halves
    assert some is not None
    assert some.gram.tolist() == halves.gram[np.ix_([0, 2, 3, 5], [0, 2, 3, 5])].tolist()


def test_silence_changes_nobodys_halves() -> None:
    tried = world(IDS)
    whole = played(Probing(), tried, 1)[0].position.state
    some = played(Probing(), replace(tried, attendance=Attendance(silent=0.5)), 1)[0].position.state
    assert set(some.heard) < set(IDS)
    at = [IDS.index(client) for client in some.heard]
    both = [*at, *(4 + i for i in at)]
    np.testing.assert_allclose(some.halves, whole.halves[np.ix_(both, both)], rtol=1e-6)


@pytest.mark.parametrize("task", [{"gradient": True}, {"epochs": 0}])
def test_halves_are_of_training(task: dict[str, Any]) -> None:
    with pytest.raises(
        ValueError, match=r"Task.halves needs a task that trains on updates, not gradients"
    ):
        Task(offered=(0,), halves=True, **task)


@pytest.mark.parametrize(
    "personal",
    [Personal(epochs=2), Personal(start="offered", pull=0.3), Personal(start="own")],
    ids=str,
)
def test_a_personal_model_beside_halves_is_that_of_a_task_without_halves(
    personal: Personal,
) -> None:
    """It is trained on all examples; one that starts from the trained model starts from that of all examples."""
    kept, plain = [], Task(offered=(0,), personal=personal, holdout=Holdout(report_losses=True))
    for task in (replace(plain, halves=True), plain):
        method = Scripted(everyone(task), count=1)
        (done,) = play(method, world(IDS))
        kept.append(done.position.kept[""])
        assert (method.seen[0].halves is not None) == task.halves
        assert method.seen[0].held_out_losses[IDS[0]].models == (("", 0), ("", 1))
    for client in IDS:
        torch.testing.assert_close(kept[0][client], kept[1][client], rtol=1e-5, atol=1e-6)


def test_on_a_half_a_client_only_trains() -> None:
    """A personal model and held-out losses are of all of its data: on the halves they were made and thrown away."""
    task = Task(
        offered=(0,),
        halves=True,
        personal=Personal(epochs=2),
        holdout=Holdout(share=0.25, report_losses=True),
    )
    order = Order(task=task, training=Training(), lr=0.1, key=(0, 1, 0), client=3)
    first, second, beside = training.divided(order, can_halve=True)
    for half in (first, second):
        assert half.task.personal is None
        assert half.task.holdout == Holdout(share=0.25)
    assert (beside.task.personal, beside.task.holdout) == (task.personal, task.holdout)


def flower() -> Any:
    return pytest.importorskip("flowered", reason="Flower is not installed")


@pytest.mark.usefixtures("flower_run")
@pytest.mark.parametrize(
    "how", [{}, {"sketch": 256}, {"spared": (2,)}], ids=["rows", "sketches", "some"]
)
@pytest.mark.parametrize(
    "boundary", [Boundary(), Boundary(clip=0.2, noise=0.1), Boundary(compress="8bit")], ids=str
)
def test_over_flower_halves_are_the_same(how: dict[str, Any], boundary: Boundary) -> None:
    same_over_flower(world(IDS), how, boundary)


def same_over_flower(
    tried: World, how: dict[str, Any], boundary: Boundary
) -> list[inprocess.Round]:
    """Rounds over Flower, after a check that they are those of one process."""
    from coterie.engines.flower import boundary_mod

    mods = [] if boundary == Boundary() else [boundary_mod(boundary, tried.model, simulated=0)]
    found: list[inprocess.Round] = flower().over_flower(
        Probing(**how), tried, 2, mods=mods, boundary=boundary
    )
    for one, other in zip(found, played(Probing(**how), tried, boundary=boundary), strict=True):
        np.testing.assert_allclose(
            one.position.state.halves, other.position.state.halves, rtol=1e-4, atol=1e-7
        )
        torch.testing.assert_close(
            one.assignment.models, other.assignment.models, rtol=1e-4, atol=1e-6
        )
        assert (one.bytes_up, one.bytes_down, one.released) == (
            other.bytes_up,
            other.bytes_down,
            other.released,
        )
    return found


@pytest.mark.usefixtures("flower_run")
@pytest.mark.parametrize("how", [{}, {"sketch": 256}], ids=["rows", "sketches"])
@pytest.mark.parametrize(
    "boundary", [Boundary(), Boundary(clip=0.2, noise=0.1, compress="8bit")], ids=str
)
def test_over_flower_who_has_too_few_examples_sends_its_whole_update(
    how: dict[str, Any], boundary: Boundary
) -> None:
    found = same_over_flower(cut(world(IDS), 4, 1), how, boundary)
    assert [one.position.state.heard for one in found] == [IDS, IDS]


@pytest.mark.usefixtures("flower_run")
def test_an_app_that_would_ignore_halves_is_refused() -> None:
    flowered, tried = flower(), world(IDS)
    grid = flowered.Here(flowered.foreign(tried), 4, named=False)
    with pytest.raises(
        ValueError, match="probing asks a client for updates of both halves of its data"
    ):
        list(flowered.strategy_of(Probing(), tried).rounds(grid, 1))
