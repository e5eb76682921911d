"""Rounds on a Ray cluster: the arithmetic and every failure without Ray's processes, and all of it again on two real nodes."""

from __future__ import annotations

import json
import random
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

ray = pytest.importorskip("ray", reason="Ray is not installed")

from ray.exceptions import RayActorError  # noqa: E402

import coterie  # noqa: E402
import small  # noqa: E402
from alone import alone  # noqa: E402
from coterie.boundary import Boundary  # noqa: E402
from coterie.cli import main  # noqa: E402
from coterie.contrib.ray import cluster as engine  # noqa: E402
from coterie.contrib.ray.cluster import Cluster, ClusterNode, Station, divided, means_of  # noqa: E402
from coterie.core import OPTIMIZER, Means, Round, Training  # noqa: E402
from coterie.data.adversaries import Attack  # noqa: E402
from coterie.data.world import World, whole  # noqa: E402
from coterie.engines import exchange as exchanges  # noqa: E402
from coterie.engines import rounds as inprocess  # noqa: E402
from coterie.engines.workers import EngineError, Hardware, WorkerLost  # noqa: E402
from coterie.methods import CFL, FLHC, HCCT, Auto, FedAvg, FedPer, SplitHalf  # noqa: E402
from coterie.records.checksum import sealed_toml  # noqa: E402
from coterie.records.store import SCHEMA_VERSION  # noqa: E402
from coterie.records.text_files import to_toml  # noqa: E402
from coterie.robust import Robust  # noqa: E402
from coterie.runs.experiment import make  # noqa: E402
from coterie.settings import SettingError, UserError  # noqa: E402
from method_examples import slow  # noqa: E402

CLOSE = {"rtol": 2e-4, "atol": 2e-6}
"""Sums in another order: float32 rounding of each exchange, which further training may make larger.
"""

HALVES = CFL(sketch=16, post_split="parent-mean", gamma_max=None)
"""Asks for sketches of the updates of both halves, and for means."""


def same(found: list[Round], expected: list[Round], exact: bool) -> None:
    """The rounds are those of one process, bit for bit or to rounding."""
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        assert (one.asked, one.answered, one.exchanges) == (
            other.asked,
            other.answered,
            other.exchanges,
        )
        assert (one.bytes_up, one.bytes_down, one.evaluations) == (
            other.bytes_up,
            other.bytes_down,
            other.evaluations,
        )
        assert one.assignment.groups == other.assignment.groups
        assert one.refused.keys() == other.refused.keys()
        assert one.scaled.keys() == other.scaled.keys()
        close = {"rtol": 0.0, "atol": 0.0} if exact else CLOSE
        torch.testing.assert_close(one.assignment.models, other.assignment.models, **close)
        assert one.position.kept.keys() == other.position.kept.keys()
        for part, own in other.position.kept.items():
            assert one.position.kept[part].keys() == own.keys()
            for client, row in own.items():
                torch.testing.assert_close(
                    one.position.kept[part][client], row, equal_nan=True, **close
                )
        assert one.scores is not None
        assert other.scores is not None
        for client, scores in other.scores.items():
            assert one.scores[client] == (
                scores if exact else pytest.approx(scores, rel=1e-3, abs=1e-5)
            )


# -- the arithmetic
# -------------------------------------------------------------------------------------------------------


@given(st.data())
def test_means_of_parts_are_the_mean_of_all(data: st.DataObject) -> None:
    """For every division of the updates among nodes, some of which may have none of a group."""
    n, k = data.draw(st.integers(1, 150)), data.draw(st.integers(1, 4))
    nodes = data.draw(st.lists(st.integers(0, 3), min_size=n, max_size=n))
    groups = data.draw(
        st.lists(st.lists(st.integers(0, k - 1), unique=True, max_size=k), min_size=n, max_size=n)
    )
    rng = np.random.default_rng(data.draw(st.integers(0, 99)))
    rows, amounts = (
        torch.from_numpy(rng.standard_normal((n, 5), dtype=np.float32)),
        rng.integers(1, 100, n).astype(float),
    )
    means = Means(k, 5)
    for node in sorted(set(nodes)):
        at = [i for i in range(n) if nodes[i] == node]
        for group, mean, weight in zip(
            *means_of(rows, at, amounts[at], [groups[i] for i in at]), strict=True
        ):
            means.join(group, torch.from_numpy(mean), weight, sum(group in groups[i] for i in at))
    for group in range(k):
        at = [i for i in range(n) if group in groups[i]]
        expected = (
            np.average(rows[at].double().numpy(), axis=0, weights=amounts[at])
            if at
            else np.zeros(5)
        )
        np.testing.assert_allclose(means.means[group], expected, rtol=0, atol=2e-6)
        assert means.counts[group] == len(at)
        assert means.weight[group] == pytest.approx(amounts[at].sum())


def test_one_node_adds_up_in_the_order_of_one_process() -> None:
    rng = np.random.default_rng(0)
    rows, amounts = (
        torch.from_numpy(rng.standard_normal((200, 7), dtype=np.float32)),
        rng.integers(1, 9, 200).astype(float),
    )
    groups, whole_means, joined = [[i % 3] for i in range(200)], Means(3, 7), Means(3, 7)
    whole_means.add(rows, amounts, groups)
    for group, mean, weight in zip(*means_of(rows, range(200), amounts, groups), strict=True):
        joined.join(group, torch.from_numpy(mean), weight, 0)
    assert torch.equal(joined.means, whole_means.means)


@given(
    st.lists(st.integers(0, 50), max_size=30), st.lists(st.integers(1, 8), min_size=1, max_size=5)
)
def test_every_job_goes_to_one_node_and_none_waits_for_long(
    costs: list[int], speeds: list[int]
) -> None:
    found = list(divided(costs, speeds))
    assert [job for job, _ in found] == list(range(len(costs)))
    assert found == list(divided(costs, speeds))
    loads = [
        sum(costs[job] for job, node in found if node == one) / speed
        for one, speed in enumerate(speeds)
    ]
    fair, longest = sum(costs) / sum(speeds), max(costs, default=0)
    assert (
        max(loads) <= fair + longest + 1e-9
    )  # of list scheduling: the node that ends last had the best end for its last job


# -- without Ray's processes: nodes of this process, that may be lost at any call
# ------------------------------------------


class Nearby:
    """An actor in this process. Its call number ``dies`` and all later ones fail as those of a dead actor do."""

    def __init__(self, dies: int | None = None) -> None:
        self.station, self.dies, self.calls, self.seen = Station(), dies, 0, []  # type: ignore[var-annotated]

    def __getattr__(self, name: str) -> Any:
        def remote(*arguments: Any) -> Any:
            self.calls += 1
            if self.dies is not None and self.calls >= self.dies:
                return Call(RayActorError())
            sent = ray.cloudpickle.loads(ray.cloudpickle.dumps(arguments))
            found = ray.cloudpickle.loads(ray.cloudpickle.dumps(getattr(self.station, name)(*sent)))
            self.seen.append((name, found))
            return Call(found)

        return SimpleNamespace(remote=remote)


class Call:
    """What stands for the result of a call."""

    def __init__(self, found: Any) -> None:
        self.found = found


@pytest.fixture
def nearby(monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[Cluster, list[Nearby]]]:
    """Make a cluster of this process, see :class:`Nearby`."""

    def get(call: Call) -> Any:
        if isinstance(call.found, RayActorError):
            raise call.found
        return call.found

    monkeypatch.setattr(engine.ray, "put", lambda value: value)
    monkeypatch.setattr(engine.ray, "get", get)
    monkeypatch.setattr(engine.ray, "kill", lambda actor: None)
    monkeypatch.setattr(
        engine.ray, "wait", lambda calls, num_returns: (calls[-1:], calls[:-1])
    )  # the last one first

    def made(
        maker: Callable[[], World],
        dies: tuple[int | None, ...] = (None, None),
        boundary: Boundary | None = None,
    ) -> Any:
        actors = [Nearby(at) for at in dies]
        nodes = [ClusterNode(f"node {i}", actor, 1) for i, actor in enumerate(actors)]
        monkeypatch.setattr(Cluster, "_start_actors", lambda *_: nodes)
        return Cluster(maker, boundary or Boundary(), 0, Hardware()), actors

    return made


def world_of_six() -> World:
    return small.world(ids=(1, 2, 4, 7, 8, 11), sizes=(20, 16, 24, 20, 9, 31))


def both(
    cluster: Cluster, method: Any, world: World, number: int = 3, **more: Any
) -> tuple[list[Round], list[Round]]:
    """The rounds on the cluster, and those of one process."""
    found = list(inprocess.rounds(method, world, rounds=number, remote=cluster, **more))
    return found, list(inprocess.rounds(method, world, rounds=number, workers=1, **more))


def rows_sent(actors: list[Nearby]) -> int:
    """The number of updates and personal models that nodes have sent."""
    return sum(len(found.rows) for actor in actors for name, found in actor.seen if name == "work")


def test_every_method_finds_what_it_finds_in_one_process(method: Any, nearby: Any) -> None:
    cluster, _ = nearby(world_of_six)
    same(*both(cluster, method, world_of_six()), exact=False)


@pytest.mark.parametrize(
    "method",
    [CFL(eps1=10.0, eps2=0.0, gamma_max=0.0), HCCT(), FLHC(warmup=0)],
    ids=lambda m: m.name,
)
def test_methods_that_need_every_update_have_the_bits_of_one_process(
    method: Any, nearby: Any
) -> None:
    cluster, actors = nearby(world_of_six)
    same(*both(cluster, method, world_of_six()), exact=True)
    assert rows_sent(actors)


def test_one_node_has_the_bits_of_one_process(nearby: Any) -> None:
    cluster, actors = nearby(world_of_six, dies=(None,))
    same(*both(cluster, FedAvg(), world_of_six()), exact=True)
    assert not rows_sent(actors)


@pytest.mark.parametrize(
    "method",
    [FedAvg(), FedPer(), CFL(sketch=16, post_split="parent-mean"), HCCT(sketch=16)],
    ids=["fedavg", "fedper", "cfl", "hcct"],
)
def test_nodes_send_means_and_sketches(method: Any, nearby: Any) -> None:
    """No update leaves a node; each sends a mean per group."""
    cluster, actors = nearby(world_of_six)
    same(*both(cluster, method, world_of_six()), exact=False)
    assert not rows_sent(actors)
    means = [found for actor in actors for name, found in actor.seen if name == "reduce"]
    assert all(len(rows) == len(groups) <= 6 for groups, rows, _ in means)
    assert len(means) >= 6


def of_adam() -> World:
    training = Training(optimizer="adam", keep_optimizer=True, lr=0.01)
    return replace(world_of_six(), training=training)


def test_states_of_optimizers_go_to_nodes_and_come_back(nearby: Any) -> None:
    # With one node also the means, from which the next training starts, have the same bits.
    cluster, _ = nearby(of_adam, dies=(None,))
    found, expected = both(cluster, FedAvg(), of_adam())
    same(found, expected, exact=True)
    assert found[-1].position.kept[OPTIMIZER].keys() == of_adam().clients.keys()


def test_models_are_put_once_for_all_nodes(nearby: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster, _ = nearby(world_of_six)
    sent: list[Any] = []
    monkeypatch.setattr(engine.ray, "put", lambda value: sent.append(value) or value)
    list(inprocess.rounds(FedAvg(), world_of_six(), rounds=2, remote=cluster))
    assert [value.shape[0] for value in sent] == [
        1
    ] * 4  # the model of each round, before and after


@pytest.mark.parametrize(
    "more",
    [
        {"boundary": Boundary(clip=0.05)},
        {"boundary": Boundary(rotation="permute-tensors", secret=3)},
        {"robust": Robust(mean="median")},
        {"robust": Robust(norms=1.01)},
    ],
    ids=["clip", "rotation", "median", "norms"],
)
@pytest.mark.parametrize("method", [FedAvg(), FedPer()], ids=["fedavg", "fedper"])
def test_bounds_and_the_boundary_are_those_of_one_process(
    method: Any, more: Any, nearby: Any
) -> None:
    cluster, _ = nearby(world_of_six, boundary=more.get("boundary"))
    same(
        *both(cluster, method, world_of_six(), **more),
        exact=more == {"robust": Robust(mean="median")},
    )


def of_liars(kind: str) -> World:
    return replace(world_of_six(), attacks={2: Attack(kind=kind), 11: Attack(kind=kind)})


@pytest.mark.parametrize("kind", ["sign-flip", "little-is-enough"])
def test_adversaries_lie_as_in_one_process(kind: str, nearby: Any) -> None:
    cluster, actors = nearby(partial(of_liars, kind))
    same(*both(cluster, FedAvg(), of_liars(kind)), exact=kind == "little-is-enough")
    assert bool(rows_sent(actors)) == (
        kind == "little-is-enough"
    )  # who colludes knows the updates of the others


def of_broken() -> World:
    tried = world_of_six()
    return replace(tried, clients={**tried.clients, 7: small.spoiled(tried.clients[7], "train")})


def test_a_broken_update_is_refused_and_counts_nowhere(nearby: Any) -> None:
    cluster, _ = nearby(of_broken)
    found, expected = both(cluster, FedAvg(), of_broken())
    same(found, expected, exact=False)
    assert all(list(done.refused) == [7] for done in found)


@pytest.mark.parametrize("dies", range(2, 9))
@pytest.mark.parametrize("method", [FedAvg(), HALVES, *slow(FedPer(), CFL())], ids=lambda m: m.name)
def test_a_node_may_be_lost_at_any_call(method: Any, dies: int, nearby: Any) -> None:
    """While it makes the world (its first call is that), trains, averages or tests: its clients run on the others."""
    cluster, _ = nearby(world_of_six, dies=(dies, None, dies + 3))
    found, expected = both(cluster, method, world_of_six(), 4)
    same(found, expected, exact=False)
    notes = [note for done in found for note in done.notes if note.kind == "node"]
    assert [note.text.partition(" of ")[0] for note in notes][:1] == ["node node 0"]
    assert all("was lost" in note.text and note.clients for note in notes)


def test_a_node_lost_before_the_first_round_is_not_used(nearby: Any) -> None:
    cluster, _ = nearby(world_of_six, dies=(1, None))
    found, expected = both(cluster, CFL(), world_of_six())
    same(found, expected, exact=True)
    assert [(note.kind, note.clients) for note in found[0].notes if note.kind == "node"] == [
        ("node", ())
    ]


def test_without_a_node_the_run_fails_in_one_sentence(nearby: Any) -> None:
    cluster, _ = nearby(world_of_six, dies=(3, 4))
    with pytest.raises(
        EngineError, match=r"no node of the Ray cluster is left; the last was node [01]: The actor"
    ):
        both(cluster, FedAvg(), world_of_six())


def test_a_dead_worker_process_makes_its_node_a_lost_one(
    nearby: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster, actors = nearby(world_of_six)

    def dead(*_: Any, **__: Any) -> Any:
        raise WorkerLost("a worker process ended with exit code -9")

    actors[1].station.pool.put = dead
    found, expected = both(cluster, FedAvg(), world_of_six(), 2)
    same(found, expected, exact=False)
    assert "exit code -9" in found[0].notes[-1].text


def of_failing() -> World:
    tried = world_of_six()
    data = tried.clients[7]
    wrong = whole(data.train.inputs, torch.full_like(data.train.targets, 99))
    return replace(tried, clients={**tried.clients, 7: replace(data, train=wrong)})


def failure_of(run: Callable[[], Any]) -> str:
    with pytest.raises(EngineError) as caught:
        run()
    return str(caught.value)


def test_the_failure_of_a_client_is_that_of_one_process_and_is_not_tried_again(nearby: Any) -> None:
    cluster, actors = nearby(of_failing)
    found = failure_of(
        lambda: list(inprocess.rounds(FedAvg(), of_failing(), rounds=1, remote=cluster, width=1))
    )
    assert found == failure_of(
        lambda: list(inprocess.rounds(FedAvg(), of_failing(), rounds=1, workers=1, width=1))
    )
    assert found.startswith("client 7 failed in its task")
    assert sum(name == "work" for actor in actors for name, _ in actor.seen) == 2


def test_exchanges_that_hold_several_windows(nearby: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a window of 64 updates per node, and clients that are refused in some of them."""
    monkeypatch.setattr(exchanges, "WINDOW_BYTES", 1)
    many = partial(small.world, ids=range(150), sizes=[8 + i % 5 for i in range(150)])
    cluster, actors = nearby(many, dies=(None, 4))
    same(*both(cluster, FedAvg(), many(), 2), exact=False)
    assert sum(name == "reduce" for name, _ in actors[0].seen) >= 2 * 2


CLIENTS_ON_DEMAND = 400

MADE: list[int] = []
"""The clients whose data were made, in their order."""


def make_counted(client: int, generator: np.random.Generator) -> tuple[np.ndarray, ...]:
    """The data of a client that is made on demand, and counted."""
    MADE.append(client)
    inputs = generator.normal(size=(12, 4)).astype("f")
    labels = (inputs[:, 0] > 0).astype(int)
    return inputs[:8], labels[:8], inputs[8:], labels[8:]


def world_on_demand() -> World:
    return coterie.from_function(make_counted, CLIENTS_ON_DEMAND, model="linear", classes=2)


def test_a_node_makes_only_the_clients_that_it_serves(nearby: Any) -> None:
    """Clients are made for their jobs, and those of one node not on the other."""
    cluster, actors = nearby(world_on_demand)
    # Checks look at some clients, evenly spaced.
    examined = set(world_on_demand().clients.examples) | {CLIENTS_ON_DEMAND - 1}
    assert set(MADE) == examined
    method = FedAvg(fraction=0.05)
    found, expected = both(cluster, method, world_on_demand(), 2, eval_every=2, eval_clients=10)
    same(found[-1:], expected[-1:], exact=False)
    assert found[-1].asked == 20
    # The data that each node keeps are those of its own clients.
    made = [set(actor.station.pool.world.clients._kept) - examined for actor in actors]
    assert all(made)
    served = 2 * 20 + 10
    assert len(made[0]) < len(made[0] | made[1]) <= served


def test_nodes_compare_the_data_of_some_clients_on_demand() -> None:
    spec = {
        "scenario": f"{__name__}:world_of_a_seed",
        "methods": ["fedavg"],
        "rounds": 1,
        "eval_clients": 10,
    }
    experiment = make(spec)
    run = coterie.Run(Path("unused"), experiment)
    maker = run._elsewhere(experiment.world(0))
    MADE.clear()
    made = maker()
    assert len(made.clients) == CLIENTS_ON_DEMAND
    assert set(MADE) == {*made.clients.examples, CLIENTS_ON_DEMAND - 1}
    function, (spec_json, seed, digest) = maker.func, maker.args  # type: ignore[attr-defined]
    with pytest.raises(UserError, match="not those of the machine where the run began"):
        function(spec_json, seed, digest[::-1])


def world_of_a_seed(seed: int) -> World:
    return world_on_demand()


def unknown() -> World:
    raise UserError("the scenario 'mine:world' cannot be imported: No module named 'mine'")


def test_a_world_that_cannot_be_made_on_a_node_is_a_mistake_of_the_user(nearby: Any) -> None:
    with pytest.raises(
        UserError,
        match=r"node node 0 of the Ray cluster cannot make the world: the scenario 'mine:world'",
    ):
        nearby(unknown)


def test_a_node_needs_this_version_of_coterie(nearby: Any) -> None:
    cluster, _ = nearby(world_of_six)
    (node, _), here = cluster.nodes, engine.version("coterie")
    assert engine._obstacle(node, Call(here)) is None
    assert "The actor" in str(engine._obstacle(node, Call(RayActorError())))
    with pytest.raises(
        UserError, match=f"node node 0 of the Ray cluster has Coterie 9, this machine has {here}"
    ):
        engine._obstacle(node, Call("9"))


# -- settings
# -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"device": "cuda"}, "Experiment.device needs engine inprocess, got cuda with engine ray"),
        (
            {"address": "ray://there:10001"},
            r"Experiment.address must be HOST:PORT, auto or local, got 'ray://there:10001'",
        ),
        (
            {"engine": "inprocess", "address": "auto"},
            "Experiment.address needs engine ray, got 'auto' with engine inprocess",
        ),
    ],
)
def test_what_ray_has_no_use_for_is_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingError, match=message):
        make({"engine": "ray", **settings})


def test_a_world_without_a_name_is_refused(tmp_path: Path) -> None:
    with pytest.raises(
        UserError,
        match="engine ray needs a function that makes the world, in a module that can be imported",
    ):
        coterie.begin(world_of_six(), tmp_path / "run", "fedavg", rounds=1, engine="ray")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("address", "message"),
    [
        ("127.0.0.1:1", r"there is no Ray cluster at address 127\.0\.0\.1:1: .*refused"),
        ("nowhere", "address must be HOST:PORT, auto or local, got 'nowhere'"),
        ("127.0.0.1:99999999", r"there is no Ray cluster at address 127\.0\.0\.1:99999999"),
    ],
)
def test_a_cluster_out_of_reach_is_one_sentence_and_leaves_no_file(
    address: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    assert (
        main(["run", "--engine", "ray", "--address", address, "--rounds", "1", "--out", str(out)])
        == 2
    )
    error = capsys.readouterr().err
    assert len(error.splitlines()) == 1
    assert re.search(message, error)
    assert not out.exists()


def test_an_address_is_not_recorded_and_not_taken_from_a_record(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    experiment = make(
        {"engine": "ray", "address": "auto", "scenario": {"name": "digits/iid", "clients": 4}}
    )
    assert experiment.address == "auto"
    assert "address" not in experiment.spec()
    file = tmp_path / "experiment.toml"
    file.write_bytes(
        sealed_toml(
            to_toml({"schema": SCHEMA_VERSION, **experiment.spec(), "address": "there:6379"})
        )
    )
    assert main(["resume", str(tmp_path)]) == 2
    assert (
        "has an address of a Ray cluster, which Coterie does not record" in capsys.readouterr().err
    )


# -- two real nodes
# -------------------------------------------------------------------------------------------------------

real = [
    pytest.mark.slow,
    # Ray's own: files and processes that it leaves to the garbage collector.
    pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning"),
    pytest.mark.filterwarnings(r"ignore:subprocess \d+ is still running:ResourceWarning"),
    pytest.mark.filterwarnings(
        "ignore:Exception ignored in:pytest.PytestUnraisableExceptionWarning"
    ),
    pytest.mark.filterwarnings("ignore:Tip. In future versions of Ray:FutureWarning"),
]


def on_nodes(test: Any) -> Any:
    for mark in real:
        test = mark(test)
    return test


NODE = {"num_cpus": 1, "object_store_memory": 80 << 20, "include_dashboard": False}


@contextmanager
def drawing() -> Iterator[None]:
    """Ray draws from Python's global generator as it starts processes; the state before is put back."""
    before = random.getstate()
    try:
        yield
    finally:
        random.setstate(before)


class Two:
    """A Ray cluster of two raylets with one core each, which talk over sockets of this machine."""

    def __init__(self) -> None:
        from ray.cluster_utils import Cluster as Raylets

        self.raylets = Raylets(initialize_head=True, head_node_args=dict(NODE))
        self.second = self.raylets.add_node(**NODE)
        self.address = self.raylets.address
        with engine._undisturbed():
            ray.init(address=self.address, log_to_driver=False, logging_level="ERROR")
        self.cluster: Cluster | None = None

    def nodes(self) -> Cluster:
        """Actors on both nodes, with the world of this module; made again if a test has ended one."""
        self.complete()
        if self.cluster is None or self.cluster.machines < 2:
            self.free()
            self.cluster = Cluster(world_of_six, Boundary(), 0, Hardware())
        return self.cluster

    def complete(self) -> None:
        """Start a node in place of one that was lost."""
        if self.second is None:
            with drawing():
                self.second = self.raylets.add_node(**NODE)

    def free(self) -> None:
        """Give the cores back."""
        if self.cluster is not None:
            self.cluster.close()
        self.cluster = None

    def lose_second(self) -> None:
        """Kill the second node and all of its processes."""
        node, self.second = self.second, None
        with drawing():
            self.raylets.remove_node(node, allow_graceful=False)

    def close(self) -> None:
        self.free()
        ray.shutdown()
        self.raylets.shutdown()


@pytest.fixture(scope="module")
def two() -> Iterator[Two]:
    with alone(), pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        for module in (sys.modules[__name__], small):  # the nodes need not find the tests
            ray.cloudpickle.register_pickle_by_value(module)
        with drawing():
            made = Two()
        yield made
        with drawing():
            made.close()


@pytest.mark.parametrize(
    ("method", "exact"),
    [
        (FedAvg(), False),
        (CFL(eps1=10.0, eps2=0.0, gamma_max=0.0), True),
        (HCCT(), True),
        (HCCT(sketch=16), False),
        (SplitHalf(level=0.5, probe_every=1), False),
        (Auto(patience=2), False),
        (FedPer(), False),
    ],
    ids=["fedavg", "cfl", "hcct", "sketches", "split-half", "auto", "fedper"],
)
@on_nodes
def test_two_nodes_find_what_one_process_finds(method: Any, exact: bool, two: Two) -> None:
    same(*both(two.nodes(), method, world_of_six(), 3), exact=exact)


def end_actor(actor: Any) -> None:
    """Kill an actor and wait until it is dead: Ray kills in the background, and calls may overtake it."""
    ray.kill(actor)
    with suppress(RayActorError):
        while True:
            ray.get(actor.ready.remote())


def broken_by(harm: Callable[[], None], rounds: Iterator[Round]) -> list[Round]:
    """The rounds, with some harm after the first."""
    first = next(rounds)
    harm()
    return [first, *rounds]


@pytest.mark.parametrize("what", ["actor", "actor that holds updates", "node"])
@on_nodes
def test_clients_of_a_lost_node_run_on_the_other(
    what: str, two: Two, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = two.nodes()

    def harm() -> None:
        if what == "node":
            two.lose_second()
        elif what == "actor":
            end_actor(cluster.nodes[0].actor)
        else:  # after it has trained, before it is asked for means
            add_means, actor = cluster.add_means, cluster.nodes[0].actor

            def end_actor_and_add_means(*arguments: Any) -> None:
                end_actor(actor)
                add_means(*arguments)

            monkeypatch.setattr(cluster, "add_means", end_actor_and_add_means, raising=False)

    running = inprocess.rounds(FedAvg(), world_of_six(), rounds=3, remote=cluster)
    found = broken_by(harm, running)
    same(found, list(inprocess.rounds(FedAvg(), world_of_six(), rounds=3, workers=1)), exact=False)
    (note,) = (note for done in found for note in done.notes if note.kind == "node")
    assert "was lost" in note.text
    assert 0 < len(note.clients) < 6
    assert cluster.machines == 1


@on_nodes
def test_a_client_that_fails_on_a_node_is_the_error_of_one_process(two: Two) -> None:
    cluster = two.nodes()
    cluster._begin(
        of_failing, Boundary(), 0, Hardware()
    )  # in the same actors, which take seconds to start
    found = failure_of(
        lambda: next(inprocess.rounds(FedAvg(), of_failing(), rounds=1, remote=cluster, width=1))
    )
    two.free()
    assert found == failure_of(
        lambda: next(inprocess.rounds(FedAvg(), of_failing(), rounds=1, workers=1, width=1))
    )


@on_nodes
def test_the_command_line_runs_on_a_cluster(
    two: Two, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    two.complete()
    two.free()
    call = [
        "run",
        "--method",
        "cfl",
        "--set",
        "scenario.clients=4",
        "--rounds",
        "2",
        "--width",
        "1",
        "--json",
    ]
    out = tmp_path / "ray"
    assert main([*call, "--engine", "ray", "--address", two.address, "--out", str(out)]) == 0
    (found,) = json.loads(capsys.readouterr().out)
    assert main([*call, "--out", str(tmp_path / "here")]) == 0
    (expected,) = json.loads(capsys.readouterr().out)
    assert (found["groups"], found["accuracy"], found["bytes_up"]) == (
        expected["groups"],
        expected["accuracy"],
        expected["bytes_up"],
    )
    (run,) = coterie.reopen(out, address=two.address)
    assert run.experiment.engine == "ray"
    assert two.address not in (out / "run.toml").read_text()


@on_nodes
def test_nothing_is_imported_from_the_current_folder(tmp_path: Path) -> None:
    """Not even by the processes of a cluster that the command starts; the user's own net is found there all the same."""
    (tmp_path / "coterie").mkdir()
    (tmp_path / "coterie" / "__init__.py").write_text(
        f"open({str(tmp_path / 'imported')!r}, 'w').close()\nraise ImportError\n"
    )
    net = "from torch import nn\n\n\ndef Net(shape, classes):\n    return nn.Linear(*shape, classes)\n"
    (tmp_path / "users_net_on_nodes.py").write_text(net)
    scenario = {
        "name": "synthetic/groups",
        "clients": 4,
        "groups": 2,
        "examples": 200,
        "model": "users_net_on_nodes:Net",
    }
    spec = {"scenario": scenario, "methods": ["fedavg"], "rounds": 1, "engine": "ray", "workers": 1}
    (tmp_path / "mine.toml").write_text(to_toml(spec))
    command = [
        Path(sys.executable).with_name("coterie"),
        "run",
        "mine.toml",
        "--address",
        "local",
        "--out",
        "run",
    ]
    done = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False
    )
    assert not (tmp_path / "imported").exists()
    assert done.returncode == 0, done.stderr


@on_nodes
def test_a_run_that_was_stopped_continues_on_a_cluster(
    two: Two, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    two.complete()
    two.free()
    settings = {
        "methods": ["cfl"],
        "scenario": {"name": "digits/label-permutation", "clients": 4},
        "rounds": 4,
        "width": 1,
    }
    (stopped,) = coterie.begin(
        make({**settings, "engine": "ray", "address": two.address}), tmp_path / "ray"
    )
    rounds = stopped.rounds()
    for _ in range(2):
        next(rounds)
    rounds.close()
    assert main(["resume", str(tmp_path / "ray"), "--address", two.address, "--json"]) == 0
    (found,) = json.loads(capsys.readouterr().out)
    (whole,) = coterie.begin(make(settings), tmp_path / "here")
    list(whole.rounds())
    expected = coterie.summary(tmp_path / "here")
    assert found["rounds"] == expected["rounds"] == 4
    for name in ("groups", "accuracy", "bytes_up"):
        assert found[name] == expected[name]
