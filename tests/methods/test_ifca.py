"""IFCA and what it shares with FLSC: choices by loss, both options of averaging, starts and what they cost."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from coterie.core import Cohort, Replies, Task, Training
from coterie.methods import IFCA, FedAvg
from coterie.methods._model_choice import (
    MAX_ATTEMPTS,
    MAX_CENTRES,
    Centres,
    Start,
    mean_losses,
    of_all,
    plan_centre,
    step_centre,
)
from coterie.settings import SettingError
from scripted import play as run
from small import world as small_world
from worlds import THREE, TRUTH, Pull, grouped, last, never, play


def loss(world: Pull, client: int, model: torch.Tensor) -> float:
    return float(((model - world.targets[client]) ** 2).sum()) / 2


def replies(
    models: torch.Tensor, chosen: list[int], means: torch.Tensor, examples: list[int] | None = None
) -> Replies:
    return Replies(
        clients=tuple(range(len(chosen))),
        examples=np.array(examples or [1] * len(chosen)),
        means=means,
        chosen=tuple((row,) for row in chosen),
        mean_counts=np.bincount(chosen, minlength=len(models)),
    )


# -- reductions
# -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("weighting", ["uniform", "data"])
@pytest.mark.parametrize("fraction", [1.0, 0.4])
def test_one_model_is_fedavg(weighting: str, fraction: float) -> None:
    world = grouped(THREE, examples={2: 5, 17: 1, 3: 7, 99: 2})
    one = play(IFCA(models=1, weighting=weighting, fraction=fraction), world, 10)
    for ours, theirs in zip(
        one, play(FedAvg(weighting=weighting, fraction=fraction), world, 10), strict=True
    ):
        assert set(ours.plan.tasks) == set(theirs.plan.tasks)
        assert torch.equal(ours.assignment.models, theirs.assignment.models)
        assert ours.groups == theirs.groups


def test_one_model_is_fedavg_through_the_engine() -> None:
    tried = small_world(sizes=(20, 3, 50, 9), training=Training(lr=0.2, lr_decay=0.5, batch=8))
    for ours, theirs in zip(
        run(IFCA(models=1), tried, 3), run(FedAvg(weighting="uniform"), tried, 3), strict=True
    ):
        assert torch.equal(ours.assignment.models, theirs.assignment.models)
        assert ours.scores == theirs.scores


# -- a round
# ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("weighting", ["uniform", "data"])
def test_a_round_from_the_definition(weighting: str) -> None:
    """Every client: argmin of its losses by hand, the trained model by hand; every model: the mean of those."""
    sizes = {2: 5, 17: 1, 3: 7, 99: 2}
    world = grouped(THREE, examples=sizes, noise=0.0)
    before = last(IFCA(initial="kmeans++", models=4), world, 7).state
    assert before.starts[0].centres is None
    models = before.starts[0].models
    after = last(
        IFCA(initial="kmeans++", models=4, weighting=weighting), world, 1, state=before, first=8
    )
    chosen = {c: int(np.argmin([loss(world, c, w) for w in models])) for c in world.clients}
    for row in range(4):
        members = [c for c, r in chosen.items() if r == row]
        trained = torch.stack(
            [models[row] + world.rate * (world.targets[c] - models[row]) for c in members]
            or [models[row]]
        )
        weights = torch.tensor(
            [float(sizes.get(c, 1)) if weighting == "data" else 1.0 for c in members] or [1.0]
        )
        torch.testing.assert_close(
            after.state.starts[0].models[row], weights @ trained / weights.sum()
        )
    assert after.assignment.row == chosen


def test_ties_go_to_the_first_model() -> None:
    world = grouped(THREE)
    played = next(play(IFCA(initial="same"), world, 1))
    assert played.assignment.row == dict.fromkeys(world.clients, 0)


def test_a_model_that_nobody_chose_stays_bit_for_bit() -> None:
    world = grouped(THREE)
    played = list(play(IFCA(models=8), world, 6))
    idle = set(range(8)) - {row for p in played for (row,) in p.replies.chosen}
    assert idle
    for row in idle:
        assert torch.equal(played[-1].assignment.models[row], world.federation().draw(row))


@given(
    chosen=st.lists(st.integers(0, 3), min_size=1, max_size=8), weighting=st.sampled_from(["uniform", "data"]),
    seed=st.integers(0, 99),
)  # fmt: skip
@settings(max_examples=60, deadline=None)
def test_gradients_are_divided_by_all_participants(
    chosen: list[int], weighting: str, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    models, gradients = (
        torch.tensor(rng.standard_normal((n, 5)), dtype=torch.float32) for n in (4, len(chosen))
    )
    sizes = rng.integers(1, 9, len(chosen))
    share = sizes / sizes.sum() if weighting == "data" else np.full(len(chosen), 1 / len(chosen))
    means, expected = torch.zeros(4, 5), models.clone()
    for row in set(chosen):
        at = [i for i, r in enumerate(chosen) if r == row]
        means[row] = torch.tensor(share[at] / share[at].sum(), dtype=torch.float32) @ gradients[at]
    for i, row in enumerate(chosen):
        expected[row] -= 0.3 * share[i] * gradients[i]
    method = IFCA(averaging="gradients", step_size=0.3, weighting=weighting)
    found = method.aggregate(models, replies(models, chosen, means, sizes.tolist()))
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


def test_a_step_of_gradients_by_hand() -> None:
    """Three of four clients chose model 0: a quarter of γ times the sum of their gradients, not a third."""
    models = torch.zeros(2, 1)
    given = replies(models, [0, 0, 0, 1], torch.tensor([[4.0], [8.0]]))  # gradients 3, 4, 5 and 8
    found = IFCA(models=2, averaging="gradients", step_size=0.1).aggregate(models, given)
    torch.testing.assert_close(found, torch.tensor([[-0.3], [-0.2]]))


def test_gradients_find_the_groups_and_ask_for_no_training() -> None:
    method = IFCA(models=3, initial="kmeans++", averaging="gradients", step_size=1.0)
    *_, end = play(method, grouped(THREE), 40)
    assert end.groups == TRUTH
    assert all(task.gradient and task.measure == "train" for task in end.plan.tasks.values())


def test_one_draw_for_all_models_gathers_everyone_at_the_first() -> None:
    """HCCT's published code starts so: all tie, all train model 0, and the copies never win any client."""
    for played in play(IFCA(initial="same"), grouped(THREE), 10):
        assert played.groups == (tuple(sorted(c for group in THREE for c in group)),)
        assert set(played.assignment.row.values()) == {0}


def test_clients_that_rest_keep_their_choice_and_those_never_heard_get_the_most_frequent() -> None:
    world = grouped(THREE)
    quiet = play(
        IFCA(initial="kmeans++", models=3), world, 7, silent=lambda e, c: e == 6 and c % 2 == 1
    )
    first, second = list(quiet)[5:]
    odd = [c for c in world.clients if c % 2]
    assert {c: second.assignment.row[c] for c in odd} == {c: first.assignment.row[c] for c in odd}
    assert of_all((1, 2, 3), {2: (1,), 3: (0,)}, (0,))[1] == (0,)
    assert of_all((1, 2), {}, (0,)) == {1: (0,), 2: (0,)}


# -- starts
# -----------------------------------------------------------------------------------------------------------


def test_a_restart_is_chosen_by_training_loss_over_the_same_clients() -> None:
    world, method = grouped(THREE), IFCA(models=3, initial="kmeans++", restarts=4, restart_rounds=2)
    silence = np.random.default_rng(0).random((60, 100)) < 0.3
    for played in play(method, world, 60, silent=lambda e, c: bool(silence[e, c])):
        if all(task.epochs == 0 and len(task.offered) == 12 for task in played.plan.tasks.values()):
            heard = played.replies.clients
            means = [
                np.mean([min(loss(world, c, w) for w in rows) for c in heard])
                for rows in played.plan.models.split(3)
            ]
            best = int(np.argmin(means))
            assert torch.equal(
                played.assignment.models, played.plan.models[3 * best : 3 * best + 3]
            )
            np.testing.assert_allclose(
                [played.notes[0].numbers[f"start{i + 1}"] for i in range(4)], means, rtol=1e-5
            )
            assert len(heard) < 12
            rows = torch.cat(played.plan.models.split(3)[best : best + 1])
            for c in heard:  # a measurement is a choice
                assert played.assignment.row[c] == int(np.argmin([loss(world, c, w) for w in rows]))
            return
    pytest.fail("the starts were never compared")


def test_starts_are_trained_for_as_many_rounds_and_the_first_serves_meanwhile() -> None:
    world, method = grouped(THREE), IFCA(models=2, restarts=3, restart_rounds=2)
    played = list(play(method, world, 8))
    assert [p.plan.ends_round for p in played] == [True] * 6 + [False, True]
    draws = [world.federation().draw(i) for i in range(6)]
    assert all(
        torch.equal(played[2 * i].plan.models, torch.stack(draws[2 * i : 2 * i + 2]))
        for i in range(3)
    )
    for p in played[1:6]:
        assert torch.equal(p.assignment.models, played[1].assignment.models)
    assert [task.lr_round for p in played for task in p.plan.tasks.values() if p.plan.ends_round][
        ::12
    ] == [0, 1] * 3 + [2]
    assert len(played[7].state.starts) == 1


def test_means_of_losses_leave_out_who_has_none_and_punish_what_is_no_number() -> None:
    nan, inf = float("nan"), float("inf")
    given_losses = ((1.0, 3.0, nan, 2.0), (5.0, 4.0, 6.0, 8.0), (nan, nan, nan, inf))
    three = replace(replies(torch.zeros(2, 1), [0, 0, 0], torch.zeros(2, 1)), losses=given_losses)
    assert mean_losses(three, 2, 1).tolist() == [2.5, 4.0]
    assert mean_losses(three, 2, 2).tolist() == [3.25, inf]
    hopeless = replace(three, losses=((1.0, 3.0, nan, nan),) * 3)
    assert mean_losses(hopeless, 2, 1).tolist() == [1.0, inf]
    assert mean_losses(replace(three, losses=((nan,) * 4,) * 3), 2, 1).tolist() == [0.0, 0.0]
    assert mean_losses(three.of(()), 2, 1).tolist() == [0.0, 0.0]


def drawn(least: dict[int, float], seeds: int = 600) -> dict[int, float]:
    """How often each client is drawn to train a second model."""
    centres = Centres(made=1, losses={c: (value,) for c, value in least.items()})
    found = dict.fromkeys(least, 0.0)
    for seed in range(seeds):
        cohort = Cohort(present=tuple(least), exchange=3, seed=seed)
        (client,) = plan_centre(
            centres, torch.zeros(2, 1), tuple(least), tuple(least), cohort, 4
        ).tasks
        found[client] += 1 / seeds
    return found


def test_the_next_model_comes_from_clients_in_proportion_to_their_excess_loss() -> None:
    found = drawn({3: 0.5, 8: 1.5, 20: 2.5})
    assert found[3] == 0.0
    assert found[8] == pytest.approx(1 / 3, abs=0.06)
    assert found[20] == pytest.approx(2 / 3, abs=0.06)
    assert (
        drawn({3: 0.5, 8: 1.5, 20: 3e38}) == found
    )  # no more than twice the second greatest, whatever it claims
    assert drawn({3: 0.5, 8: 0.5})[8] == pytest.approx(0.5, abs=0.06)  # all alike: uniformly


def test_kmeans_takes_turns_training_and_measuring_what_is_new() -> None:
    world, method = grouped(THREE), IFCA(models=3, initial="kmeans++", initial_epochs=7)
    played = list(play(method, world, 6))
    assert [p.plan.ends_round for p in played] == [False] * 5 + [True]
    assert [len(p.plan.tasks) for p in played] == [1, 12, 1, 12, 1, 12]
    for step, p in enumerate(played[:5]):
        row = step // 2
        expected = {
            "offered": (row,),
            "epochs": 0 if step % 2 else 7,
            "measure": "train" if step % 2 else None,
        }
        assert all(
            {name: getattr(t, name) for name in expected} == expected for t in p.plan.tasks.values()
        )
    first = played[5].plan.models
    trainers = [next(iter(p.plan.tasks)) for p in played[:5:2]]
    assert {next(i for i, g in enumerate(THREE) if c in g) for c in trainers} == {0, 1, 2}
    for model, client in zip(first, trainers, strict=True):
        assert loss(world, client, model) < 0.05


def test_who_was_silent_measures_what_it_missed() -> None:
    world, method = grouped(THREE), IFCA(models=4, initial="kmeans++")
    played = list(play(method, world, 6, silent=lambda e, c: e == 1 and c == 40))
    assert played[3].plan.tasks[40].offered == (0, 1)
    assert played[3].plan.tasks[2].offered == (1,)
    assert next(iter(played[2].plan.tasks)) != 40  # unknown losses are drawn last


def test_a_silent_federation_does_not_wait_for_ever() -> None:
    world, method = grouped(THREE), IFCA(models=3, initial="kmeans++")
    played = list(play(method, world, 30, silent=lambda *_: True))
    ends = [i for i, p in enumerate(played) if p.plan.ends_round]
    assert ends[0] == MAX_ATTEMPTS + 2 * 2
    assert all(torch.equal(row, world.federation().draw(0)) for row in played[-1].assignment.models)


def test_an_infinite_loss_is_not_known() -> None:
    models, centres = torch.zeros(2, 1), Centres(made=1, measuring=True)
    heard = replace(replies(models, [0, 0], models), losses=((float("nan"),), (1.0,)))
    found, _ = step_centre(centres, models, heard)
    assert found is not None
    assert dict(found.losses) == {1: (1.0,)}


def test_a_start_up_is_in_the_bill() -> None:
    """Exchanges and bytes of a first round with two starts: 2 · (k trainings, k - 1 measurements), and the comparison."""
    tried, k, n, number = small_world(), 3, 4, 4
    first, second, third = run(
        IFCA(models=k, initial="kmeans++", restarts=2, restart_rounds=1), tried, 3
    )
    d = first.assignment.models.shape[1]
    assert [r.exchanges for r in (first, second, third)] == [2 * k, 2 * k, 2]
    of_round = {"down": n * k * d, "up": n * (d + 1 + 2 * k + 1)}
    of_start = {"down": k * d + (k - 1) * n * d, "up": k * (d + 1) + (k - 1) * n * 3}
    of_end = {"down": n * 2 * k * d, "up": n * (1 + 2 * 2 * k + 1)}
    for done, extra in ((first, of_start), (second, of_start), (third, of_end)):
        assert done.bytes_down == number * (of_round["down"] + extra["down"])
        assert done.bytes_up == number * (of_round["up"] + extra["up"])
    assert first.asked == k + (k - 1) * n + n


# -- comings and goings
# -----------------------------------------------------------------------------------------------


def test_newcomers_choose_when_first_asked_and_leavers_are_forgotten() -> None:
    world, method = grouped(THREE), IFCA(models=3, initial="kmeans++")
    some = Pull(
        targets={c: t for c, t in world.targets.items() if c not in (40, 51)}, noise=world.noise
    )
    state = last(method, some, 20).state
    state = method.admit(state, (51, 40))
    assert state.clients == world.clients
    assert method.assignment(state).row[40] in {0, 1, 2}
    joined = last(method, world, 1, state=state, first=20)
    assert joined.groups == TRUTH
    left = method.retire(joined.state, (2, 99))
    assert sorted(c for g in method.assignment(left).groups for c in g) == [
        c for c in world.clients if c not in (2, 99)
    ]
    assert torch.equal(method.assignment(left).models, joined.assignment.models)


@pytest.mark.parametrize("exchange", range(1, 12))
def test_comings_and_goings_in_the_midst_of_a_start_up(exchange: int) -> None:
    world, method = grouped(THREE), IFCA(models=3, initial="kmeans++", restarts=2, restart_rounds=1)
    state = method.admit(method.retire(last(method, world, exchange).state, (2, 3, 8)), (3,))
    here = Pull(
        targets={c: t for c, t in world.targets.items() if c not in (2, 8)}, noise=world.noise
    )
    end = last(method, here, 20, state=state, first=exchange)
    assert sorted(end.assignment.row) == list(here.clients)
    assert 2 not in end.state.starts[0].chosen


def test_nobody_is_left() -> None:
    world = grouped([[7]])
    for method in (IFCA(), IFCA(initial="kmeans++", restarts=2)):
        state = method.retire(last(method, world, 2).state, (7,))
        plan = method.plan(state, Cohort(present=(), exchange=2, seed=0))
        assert not plan.tasks
        state = method.step(state, world.replies(plan, 2, never))
        assert method.assignment(state).groups == ()


# -- reasons and settings
# ---------------------------------------------------------------------------------------------


def test_a_note_tells_the_choices_and_groups_only_where_they_changed() -> None:
    played = list(play(IFCA(models=3, initial="kmeans++"), grouped(THREE), 9))
    (first,), (second,) = played[5].notes, played[6].notes
    assert first.kind == "cluster"
    assert first.parts == TRUTH
    assert second.kind == "keep"
    assert second.parts == ()
    assert (
        "12 clients answered, 0 changed their choice; models are chosen by 4, 4, 4 clients"
        in second.text
    )
    assert dict(second.values["model"]) == {
        c: float(row) for c, row in played[6].assignment.row.items()
    }
    least = {
        c: min(values)
        for c, values in zip(played[6].replies.clients, played[6].replies.losses, strict=True)
    }
    assert dict(second.values["loss"]) == least
    assert second.numbers["loss"] == pytest.approx(np.mean(list(least.values())))


@pytest.mark.parametrize("losses", [(float("nan"), 0.5), (0.5, float("nan"))])
def test_a_note_tells_the_least_loss_that_is_a_number(losses: tuple[float, float]) -> None:
    method, world = IFCA(models=2), grouped([[7]])
    state = method.init(world.federation())
    means = torch.zeros(2, world.size)
    replies = Replies(
        clients=(7,),
        examples=np.ones(1),
        chosen=((losses.index(0.5),),),
        losses=(losses,),
        means=means,
    )
    (note,) = method.explain(method.step(state, replies))
    assert note.values["loss"] == {7: 0.5}
    assert note.numbers["loss"] == 0.5


def test_a_start_that_serves_nobody_tells_no_groups() -> None:
    played = list(
        play(IFCA(models=3, initial="kmeans++", restarts=2, restart_rounds=1), grouped(THREE), 14)
    )
    notes = [n for p in played for n in p.notes]
    assert [bool(n.parts) for n in notes[:3]] == [True, False, True]
    assert notes[1].text.startswith("start 2 of 2: ")
    assert "goes on" in notes[2].text


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"models": 0}, "IFCA.models must be >= 1"),
        ({"initial": "kmeans"}, "did you mean kmeans"),
        (
            {"models": MAX_CENTRES + 1, "initial": "kmeans++"},
            f"must be at most {MAX_CENTRES} with initial kmeans",
        ),
        ({"averaging": "gradient"}, "did you mean gradients"),
        ({"step_size": 0}, "IFCA.step_size must be > 0"),
    ],
)
def test_settings_that_cannot_be(wrong: dict[str, Any], said: str) -> None:
    with pytest.raises(SettingError, match=said):
        IFCA(**wrong)


def test_a_task_measures_on_training_data_even_for_one_model() -> None:
    start = Start(models=torch.zeros(1, 3), round=4)
    plan = IFCA(models=1).plan_round(start, (5,), Cohort(present=(5,), exchange=0, seed=0))
    assert plan.tasks[5] == Task(offered=(0,), measure="train", lr_round=4)
