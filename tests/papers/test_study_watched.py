"""FedAvg as an observer sees it trains as FedAvg does, and tells what its replies say."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from coterie.clustering import cosine, gram
from coterie.core import Cohort, Federation, Replies, Training
from coterie.data.scenario import Scenario
from coterie.engines import rounds
from coterie.engines.workers import Hardware
from coterie.methods import FedAvg
from papers.halved import seen
from papers.study import Resources
from papers.watched import GRADIENTS, UPDATES, Watched, cosines_of
from small import world


@pytest.mark.parametrize("asked", [None, 1, 2])
def test_it_trains_as_fedavg_does(asked: int | None) -> None:
    watched = list(rounds.rounds(Watched(gradients_from=asked), world(), rounds=3, workers=1))
    plain = list(rounds.rounds(FedAvg(), world(), rounds=3, workers=1))
    # An exchange of gradients in between draws other mini-batches, so only what came before is the
    # same bit by bit.
    same = 3 if asked is None else asked - 1
    for one, other in zip(watched[:same], plain[:same], strict=True):
        assert torch.equal(one.assignment.models, other.assignment.models)
    assert [done.exchanges for done in watched] == [
        1 + (asked is not None and n >= asked) for n in (1, 2, 3)
    ]
    names = [set(done.notes[-1].similarity) for done in watched]
    assert names == [
        {UPDATES} | ({GRADIENTS} if asked is not None and n >= asked else set()) for n in (1, 2, 3)
    ]


def test_what_it_tells_is_of_the_replies_by_hand() -> None:
    federation = Federation(clients=(3, 5), draw=lambda i: torch.zeros(3), columns={"all": (0, 2)})
    method = Watched(gradients_from=1)
    state = method.init(federation)
    cohort = Cohort(present=(3, 5), exchange=0, seed=0)
    sent = torch.tensor([[3.0, 4.0, 9.0], [3.0, -4.0, 9.0]])

    def replies(rows: torch.Tensor) -> Replies:
        return Replies(
            clients=(3, 5),
            examples=np.array([1, 3]),
            chosen=((0,), (0,)),
            gram=gram(rows, columns=slice(0, 2)),
            means=(torch.tensor([0.25, 0.75]) @ rows)[None],
        )

    first = method.plan(state, cohort)
    assert (first.ends_round, first.tasks[3].gradient, first.columns) == (False, True, slice(0, 2))
    state = method.step(state, replies(torch.tensor([[1.0, 0.0, 0.0], [0.0, 2.0, 0.0]])))
    assert not method.explain(state)
    assert torch.equal(state.model, torch.zeros(3))
    second = method.plan(state, cohort)
    assert (second.ends_round, second.tasks[5].gradient) == (True, False)
    state = method.step(state, replies(sent))
    (note,) = method.explain(state)
    # The mean is 0.25 (3, 4) + 0.75 (3, -4) = (3, -2), the third column being no parameter; both
    # norms are 5.
    assert state.model.tolist() == [3.0, -2.0, 9.0]
    assert note.numbers["mean_norm"] == pytest.approx(13**0.5)
    assert note.numbers["client_norm"] == pytest.approx(5.0)
    assert cosines_of(note, UPDATES)[0, 1] == pytest.approx(-7 / 25)
    assert cosines_of(note, GRADIENTS)[0, 1] == pytest.approx(0.0)
    assert np.allclose(cosine(gram(sent[:, :2])), cosines_of(note, UPDATES), atol=1e-7)


def test_a_probe_after_it_tells_groups_apart_where_there_are_any() -> None:
    def probed(shift: str) -> dict[str, Any]:
        there = Scenario(
            shift=shift, groups=2, clients=8, training=Training(lr=0.1, batch=10, epochs=2)
        ).build(0)
        *_, last = rounds.rounds(Watched(), there, rounds=20, workers=1)
        return seen(Resources(hardware=Hardware(workers=1)), last.position, there, 0)

    found = probed("label-permutation")
    assert found["p"] < 1e-10
    assert (found["groups"], found["ari"]) == (2, 1.0)
    alike = probed("none")
    assert alike["p"] > 1e-4
    assert alike["groups"] == 1


def test_a_probe_of_who_cannot_be_halved_says_nothing() -> None:
    there = Scenario(
        samples=3, clients=4, train=0.3, validation=0.0, training=Training(lr=0.1, batch=0, steps=1)
    ).build(0)
    *_, last = rounds.rounds(Watched(), there, rounds=1, workers=1)
    found = seen(Resources(hardware=Hardware(workers=1)), last.position, there, 0)
    assert found == {"p": None, "groups": None, "ari": None}


def test_it_needs_somebody() -> None:
    method = Watched()
    state = method.init(
        Federation(clients=(0,), draw=lambda i: torch.zeros(2), columns={"all": (0, 2)})
    )
    with pytest.raises(ValueError, match="clients that answer"):
        method.step(state, Replies(clients=(), examples=np.array([])))
