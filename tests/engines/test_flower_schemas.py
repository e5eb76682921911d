"""Nodes state the schema of their data in their first message; who differs is refused with the difference."""

from __future__ import annotations

import json
import logging
import math
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("flwr", reason="Flower is not installed")

from flwr.app import ConfigRecord, Context, MetricRecord, RecordDict
from torch import nn

import coterie
from coterie.boundary import Boundary
from coterie.contrib.private.split_half_sums import SplitHalfSums
from coterie.data.described import described
from coterie.data.schema import Schema
from coterie.data.world import ClientData
from coterie.engines.flower import MethodStrategy, Participant, boundary_mod, client_app
from coterie.engines.flower.messages import QUERY, SCHEMA, WHO
from coterie.engines.flower.run_directory import read_memory
from coterie.engines.flower.schemas import LONGEST_SCHEMA, Stated, record_of
from coterie.engines.workers import EngineError
from coterie.methods import IFCA, FedAvg, SplitHalf
from coterie.records import checksum
from coterie.records.codec import DamagedError
from coterie.records.record import NODES_FILE, Record
from coterie.report.explain import explain, words
from coterie.report.page.document import document
from coterie.settings import SettingError, UserError
from federation import ROOT, Federation, federation, rounds_of, until
from flowered import FIRST, Here, app_of, foreign, strategy_of
from small import world

pytestmark = pytest.mark.usefixtures("flower_run")

COLUMNS = ("age", "bp", "bmi")
SHARED = (54.1, 130.0, 26.0), (9.0, 15.0, 4.0)


@pytest.fixture(autouse=True)
def _heard(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "flwr.coterie")


def hospital(
    seed: int,
    columns: Sequence[str] = COLUMNS,
    standardize: Any = SHARED,
    classes: Sequence[str] = ("no", "yes"),
    target: str = "ill",
    **more: Any,
) -> ClientData:
    """One hospital's own data, made at its node as a user would."""
    rng = np.random.default_rng(seed)
    values = {
        "age": rng.normal(54, 9, 40),
        "bp": rng.normal(130, 15, 40),
        "bmi": rng.normal(26, 4, 40),
    }
    values |= {"weight": values["bmi"] * 3, "sex": rng.integers(0, 2, 40)}
    outcome = np.array(classes)[np.arange(40) % len(classes)]
    frame = {"site": ["here"] * 40, **{name: values[name] for name in columns}, target: outcome}
    return coterie.from_frame(
        frame | more, client="site", target=target, standardize=standardize
    ).clients[0]


def net() -> nn.Module:
    return nn.Linear(3, 2)


def grid_of(
    data: Sequence[ClientData], config: Mapping[str, Any] | None = None, **how: Any
) -> Here:
    app = client_app(
        model=how.pop("model", net), data=lambda c: data[int(c.node_config["partition-id"])], **how
    )
    grid = Here(app, len(data))
    for context in grid.contexts.values():
        context.node_config.update(config or {})
    return grid


def federated(
    data: Sequence[ClientData],
    rounds: int = 1,
    method: Any = None,
    config: Any = None,
    app: Any = None,
    **how: Any,
) -> Any:
    """The last round of a federation of these nodes."""
    strategy = MethodStrategy(
        method or FedAvg(), how.pop("model", net), **{"nodes": len(data), "wait": 1.0, **how}
    )
    strategy.start(grid_of(data, config, **(app or {})), num_rounds=rounds)
    assert strategy.last is not None
    return strategy.last


ODD: dict[str, tuple[Callable[[], ClientData], str]] = {
    "order": (
        lambda: hospital(9, ("bmi", "bp", "age"), ((26.0, 130.0, 54.1), (4.0, 15.0, 9.0))),
        "it has the same columns in another order: column 1 is 'bmi', the federation's is 'age'",
    ),
    "name": (
        lambda: hospital(9, ("age", "bp", "weight")),
        "column 3 is 'weight', the federation's is 'bmi', it lacks ['bmi'], the federation lacks ['weight']",
    ),
    "classes": (
        lambda: hospital(9, classes=("yes", "no", "unknown")),
        "its classes are ['no', 'unknown', 'yes'], the federation's are ['no', 'yes']",
    ),
    "target": (
        lambda: hospital(9, target="dead"),
        "its targets are ['dead'], the federation's are ['ill']",
    ),
    "scaling": (
        lambda: hospital(9, standardize=((51.0, 130.0, 26.0), (9.0, 15.0, 4.0))),
        "'age' is standardized with mean 51, the federation's with 54.1",
    ),
    "deviation": (
        lambda: hospital(9, standardize=(SHARED[0], (9.0, 15.0, 5.0))),
        "'bmi' is standardized with deviation 5, the federation's with 4",
    ),
    "not standardized": (
        lambda: hospital(9, standardize="none"),
        "its inputs are not standardized, the federation's are, by shared constants",
    ),
    "type": (
        lambda: replace(
            hospital(9),
            schema=replace(hospital(9).schema or Schema(), dtypes=("number", "number", "boolean")),
        ),
        "column 'bmi' is of type boolean, the federation's of number",
    ),
}


@pytest.mark.parametrize("case", ODD)
def test_a_node_that_differs_is_refused_with_the_difference(
    case: str, caplog: pytest.LogCaptureFixture
) -> None:
    odd, why = ODD[case]
    done = federated([hospital(0), odd(), hospital(2), hospital(3)])
    assert done.refused == {1: f"its schema differs: {why}"}
    assert done.groups == ((0, 2, 3),)
    assert (done.asked, done.answered) == (3, 3)
    assert [note.clients for note in done.notes if note.kind == "node"] == [(1,)]
    # both sides' logs
    assert f"client 1 refused: its schema differs: {why}" in caplog.text
    (told,) = [
        line for line in caplog.messages if line.startswith("the server refuses this node: ")
    ]
    assert why in told
    assert '; this node\'s schema is {"columns": ' in told


def test_equal_nodes_are_never_refused() -> None:
    """Their data differ, and a constant by rounding."""
    rounded = tuple(
        tuple(float(np.float32(number)) for number in constants) for constants in SHARED
    )
    done = federated([hospital(0), hospital(1, standardize=rounded), hospital(2)])
    assert (done.refused, done.answered) == ({}, 3)
    assert [note for note in done.notes if note.kind == "node"] == []


def test_pooled_constants_of_one_node_alone_are_no_shared_ones() -> None:
    done = federated([hospital(0), hospital(1), hospital(2, standardize="pooled")])
    assert "'age' is standardized with mean" in done.refused[2]


def test_own_constants_are_stated_as_such_and_never_compared() -> None:
    schema = Schema(scaling="own")
    done = federated([hospital(i, standardize="pooled") for i in range(3)], app={"schema": schema})
    assert done.refused == {}
    mixed = [
        replace(hospital(i, standardize="pooled"), schema=Schema(scaling="own")) for i in range(2)
    ]
    assert (
        "by shared constants, the federation's are, by each client's own"
        in federated([*mixed, hospital(2)]).refused[2]
    )


# -- data without names
# -----------------------------------------------------------------------------------------------------


def arrays(inputs: torch.Tensor, targets: torch.Tensor, schema: Schema | None = None) -> ClientData:
    split = coterie.whole(inputs, targets)
    return ClientData(train=split, validation=split, test=split, schema=schema)


X, Y = torch.arange(36.0).view(12, 3) / 36, torch.arange(12) % 2


@pytest.mark.parametrize(
    ("odd", "why"),
    [
        (arrays(X.double(), Y), "its inputs are (3,) float64, the federation's are (3,) float32"),
        (
            arrays((255 * X).to(torch.uint8), Y),
            "its inputs are (3,) uint8, the federation's are (3,) float32",
        ),
        (
            arrays(X[:, :, None], Y),
            "its inputs are (3, 1) float32, the federation's are (3,) float32",
        ),
        (arrays(X, Y.float()), "its targets are for floats, the federation's for whole numbers"),
        (arrays(X, Y.bool()), "its targets are for booleans, the federation's for whole numbers"),
    ],
    ids=["float64", "pixels", "shape", "floats", "booleans"],
)
def test_of_arrays_shape_and_type_are_compared(odd: ClientData, why: str) -> None:
    assert federated([arrays(X, Y), odd, arrays(X, Y)]).refused == {1: f"its schema differs: {why}"}


@pytest.mark.parametrize(
    "other",
    [arrays(X, torch.zeros(12, dtype=torch.int64)), arrays(X[:5], Y[:5])],
    ids=["one class", "fewer"],
)
def test_labels_that_one_client_lacks_are_no_difference(other: ClientData) -> None:
    assert federated([arrays(X, Y), other, arrays(X, Y)]).refused == {}


def test_tokens_may_be_padded_to_other_lengths() -> None:
    def text(length: int) -> ClientData:
        return arrays(torch.zeros(12, length, dtype=torch.int64), Y)

    assert described(text(7), None) == described(text(9), None)
    assert described(text(7), None).inputs == "1 dimensions of int64"


def test_an_app_may_give_names() -> None:
    def names(context: Context) -> Schema:
        return Schema(
            columns=COLUMNS[:: -1 if context.node_config["partition-id"] == 2 else 1],
            classes=("no", "yes"),
        )

    done = federated([arrays(X, Y)] * 4, app={"schema": names})
    assert done.refused == {
        2: "its schema differs: it has the same columns in another order: column 1 is 'bmi', the federation's is 'age'"
    }


def test_apps_with_their_own_functions_are_compared_by_what_their_items_show() -> None:
    def load(context: Context) -> Any:
        inputs = X.double() if context.node_config["partition-id"] == 1 else X
        data = torch.utils.data.TensorDataset(inputs, Y)
        return data, data

    app = client_app(model=net, data=load, train=lambda *_: None, test=lambda *_: (0.5, 0.5))
    strategy = MethodStrategy(FedAvg(), net, nodes=3, wait=1.0)
    strategy.start(Here(app, 3), num_rounds=1)
    assert strategy.last is not None
    why = "its schema differs: its inputs are 1 dimensions of float64, the federation's are 1 dimensions of float32"
    assert strategy.last.refused == {1: why}


def test_data_that_cannot_be_loaded_are_told_of_when_the_client_trains() -> None:
    def load(context: Context) -> ClientData:
        if context.node_config["partition-id"] == 1:
            raise OSError("no such folder: /data")
        return hospital(0)

    strategy = MethodStrategy(FedAvg(), net, nodes=3, wait=1.0)
    strategy.start(Here(client_app(model=net, data=load), 3), num_rounds=1)
    assert strategy.last is not None
    assert strategy.last.refused == {1: "its app failed: no such folder: /data"}
    assert "client 1 states no schema" in strategy.last.notes[0].text


# -- the objective, the model and versions
# ----------------------------------------------------------------------------------


def test_another_objective_is_refused() -> None:
    tried = world(range(3))
    other = replace(tried, objective=coterie.Objective(metrics=("F1Score", "accuracy")))
    mine, its = app_of(tried), app_of(other)
    grid = Here(mine, 3)
    grid.app = lambda message, context: (its if context.node_config["partition-id"] == 1 else mine)(
        message, context
    )  # type: ignore[assignment,arg-type]
    done = next(strategy_of(FedAvg(), tried).rounds(grid, 1))
    assert done.refused == {
        1: "its schema differs: its metrics are ['F1Score', 'accuracy'], the federation's are ['accuracy']"
    }


@pytest.mark.parametrize(
    ("model", "why"),
    [
        (
            lambda: nn.Linear(3, 4),
            "'weight' of its model has shape (4, 3), and (2, 3) in the server's model",
        ),
        (
            lambda: nn.Sequential(nn.Linear(3, 2)),
            "its model has no tensor 'weight', which the server's model has",
        ),
        (
            lambda: nn.Linear(3, 2, bias=False),
            "its model has no tensor 'bias', which the server's model has",
        ),
    ],
    ids=["classes", "names", "fewer"],
)
def test_another_model_is_refused_before_it_trains(model: Any, why: str) -> None:
    data = [hospital(i) for i in range(3)]
    mine, its = grid_of(data).app, grid_of(data, model=model).app
    grid = grid_of(data)
    grid.app = lambda message, context: (its if context.node_config["partition-id"] == 0 else mine)(
        message, context
    )  # type: ignore[assignment,arg-type]
    strategy = MethodStrategy(FedAvg(), net, nodes=3, wait=1.0)
    done = next(strategy.rounds(grid, 1))
    assert set(done.refused) == {0}
    assert why in done.refused[0]
    assert done.groups == ((1, 2),)


def test_standardized_targets_are_compared() -> None:
    def numbers(seed: int, how: Any) -> Any:
        rng = np.random.default_rng(seed)
        frame = {
            "site": ["here"] * 40,
            "age": rng.normal(54, 9, 40),
            "cost": rng.normal(900, 50, 40),
        }
        return coterie.from_frame(frame, client="site", target="cost", standardize_target=how)

    worlds = [
        numbers(0, (900, 50)),
        numbers(1, (900, 50)),
        numbers(2, (850, 50)),
        numbers(3, "none"),
    ]

    def participant(context: Context) -> Participant:
        world = worlds[int(context.node_config["partition-id"])]
        return Participant(world.clients[0], lambda: nn.Linear(1, 1), world.objective)

    strategy = MethodStrategy(FedAvg(), lambda: nn.Linear(1, 1), nodes=4, wait=1.0)
    done = next(strategy.rounds(Here(client_app(participant=participant), 4), 1))
    ours = "coterie.data.objective.squared_error"
    assert done.refused == {
        2: "its schema differs: 'cost' is standardized with mean 850, the federation's with 900",
        3: f"its schema differs: its loss is {ours}, the federation's is {ours} (standardized)",
    }


def test_a_model_that_no_node_has_is_an_error_at_once() -> None:
    with pytest.raises(
        EngineError,
        match=r"all 3 clients are refused, for example client 0: its schema differs: 'weight' of its",
    ):
        federated([hospital(i) for i in range(3)], model=lambda: nn.Linear(3, 4))


def test_other_versions_are_noted_and_not_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "coterie.engines.flower.client.versions",
        lambda: {"torch": "1.0.0+cpu", "numpy": np.__version__},
    )
    done = federated([hospital(0), hospital(1)])
    assert done.refused == {}
    texts = [note.text for note in done.notes]
    server = torch.__version__
    assert texts == [
        f"client {i} has other versions: torch 1.0.0+cpu, the server has {server}" for i in range(2)
    ]


# -- which schema is the federation's
# ---------------------------------------------------------------------------------------


def test_of_equally_many_nodes_the_smallest_id_decides_and_it_is_said() -> None:
    done = federated([ODD["order"][0](), ODD["order"][0](), hospital(2), hospital(3)])
    assert set(done.refused) == {2, 3}
    text = "as many clients share another schema as share that of client 0, which counts because its id is smaller"
    assert any(note.text.startswith(text) for note in done.notes)


def test_the_schema_of_the_server_decides(tmp_path: Path) -> None:
    path = tmp_path / "schema.toml"
    path.write_text('columns = ["age", "bp", "bmi"]\nclasses = ["no", "yes"]\n')
    odd = ODD["order"][0]
    data = [odd(), odd(), odd(), hospital(3)]
    for schema in (Schema(columns=COLUMNS), {"columns": COLUMNS}, path, str(path)):
        done = federated(data, schema=schema)
        assert set(done.refused) == {0, 1, 2}
        assert done.groups == ((3,),)
    strategy = MethodStrategy.from_config({"method": "fedavg", "schema": str(path)}, net)
    assert strategy.settings.schema == Schema(columns=COLUMNS, classes=("no", "yes"))
    with pytest.raises(
        EngineError,
        match="all 3 clients are refused, for example client 0: its schema differs: it has the same",
    ):
        federated(data[:3], schema=path)


@pytest.mark.parametrize(
    ("schema", "why"),
    [
        (
            {"colums": ["a"]},
            r"MethodStrategy.schema: a schema has no field 'colums'; did you mean columns\?",
        ),
        (
            {"columns": "age"},
            "MethodStrategy.schema: Schema.columns must be a list of texts, got 'age'",
        ),
        ({"columns": ["a", "a"]}, "Schema.columns must have each name once, got 'a' twice"),
        ({"columns": [3]}, "Schema.columns must be a list of texts"),
        ({"means": [1.0], "deviations": [0]}, "Schema.deviations must be > 0, got 0"),
        ({"means": [math.nan], "deviations": [1]}, "Schema.means must be a list of finite numbers"),
        ({"means": [10**400], "deviations": [1]}, "Schema.means must be a list of finite numbers"),
        ({"means": [1.0]}, "must have as many numbers as the other, got 1 and 0"),
        (
            {"columns": ["a", "b", "c"], "means": [1.0, 2.0], "deviations": [1, 1]},
            "must have one number, or one for each of 3",
        ),
        (
            {"columns": ["a"], "dtypes": ["number", "number"]},
            "Schema.dtypes must have one entry per column, 1, got 2",
        ),
        (
            {"scaling": "shard"},
            r"Schema.scaling must be none, shared or own, got 'shard'; did you mean shared\?",
        ),
        ({"loss": 3}, "Schema.loss must be a text, got 3"),
        (3, "MethodStrategy.schema: a schema must be a mapping from fields to values, got 3"),
        (
            "/nowhere/schema.toml",
            "the schema /nowhere/schema.toml cannot be read: no such file or directory",
        ),
    ],
    ids=lambda value: str(value)[:30],
)
def test_a_wrong_schema_is_one_sentence(schema: Any, why: str) -> None:
    with pytest.raises(SettingError, match=why) as found:
        MethodStrategy(FedAvg(), net, schema=schema)
    assert len(str(found.value).splitlines()) == 1


def test_a_node_that_comes_later_is_compared(tmp_path: Path) -> None:
    data = [hospital(0), hospital(1), hospital(2), ODD["scaling"][0]()]
    grid = grid_of(data)
    late = grid.contexts.pop(FIRST + 7 * 3)
    strategy = MethodStrategy(FedAvg(), net, nodes=3, wait=1.0)
    rounds = strategy.rounds(grid, 3)
    assert next(rounds).refused == {}
    grid.contexts[FIRST + 7 * 3] = late
    done = next(rounds)
    assert done.refused == {3: f"its schema differs: {ODD['scaling'][1]}"}
    assert done.groups == ((0, 1, 2),)
    # once its operator has mended it, it comes back and takes part
    del grid.contexts[FIRST + 7 * 3]
    data[3] = hospital(3)
    grid.app = grid_of(data).app
    grid.join(3, node=FIRST + 1000)
    done = next(rounds)
    assert (done.refused, done.groups) == ({}, ((0, 1, 2, 3),))


def test_a_run_that_continues_keeps_its_schema(tmp_path: Path) -> None:
    data = [hospital(0), hospital(1), hospital(2)]
    federated(data, out=tmp_path)
    odd = ODD["order"][0]
    done = federated(
        [odd(), odd(), hospital(2)], rounds=2, out=tmp_path
    )  # now most nodes have another one
    assert set(done.refused) == {0, 1}
    with pytest.raises(
        SettingError,
        match=r"MethodStrategy.schema is not that of the run that continues: it has the same columns",
    ):
        federated(data, rounds=3, out=tmp_path, schema=Schema(columns=("bp", "age", "bmi")))


def test_a_run_from_before_schemas_continues(tmp_path: Path) -> None:
    federated([hospital(0), hospital(1)], out=tmp_path)
    edited(tmp_path, lambda found: found.pop("schema"))
    memory = read_memory(tmp_path)
    assert memory is not None
    assert memory.schema is None
    assert federated([hospital(0), hospital(1)], rounds=2, out=tmp_path).refused == {}


@pytest.mark.parametrize(
    "schema",
    [3, {}, {"words": {}, "digests": {}}, {"words": {"columns": 3}, "digests": {}}],
    ids=str,
)
def test_a_damaged_schema_in_the_file_of_nodes_is_told_of(schema: Any, tmp_path: Path) -> None:
    federated([hospital(0), hospital(1)], out=tmp_path)
    edited(tmp_path, lambda found: found.update(schema=schema))
    with pytest.raises(DamagedError, match=r"nodes\.json is damaged"):
        read_memory(tmp_path)


def edited(folder: Path, change: Any) -> None:
    """Change ``nodes.json``, with a checksum that fits."""
    found = json.loads((folder / NODES_FILE).read_text())
    del found["checksum"]
    change(found)
    (folder / NODES_FILE).write_bytes(checksum.sealed_json(json.dumps(found).encode()))


# -- where people look
# ------------------------------------------------------------------------------------------------------


def test_record_page_and_explanation_say_who_takes_no_part(tmp_path: Path) -> None:
    odd, why = ODD["order"]
    grid = grid_of([hospital(0), odd(), hospital(2)])
    for i, context in enumerate(grid.contexts.values()):
        context.node_config["client-id"] = f"hospital-{i}"
    MethodStrategy(FedAvg(), net, nodes=3, wait=1.0, out=tmp_path).start(grid, num_rounds=2)
    for line in Record(tmp_path).shown()[1]:
        assert line["refused"] == {"hospital-1": f"its schema differs: {why}"}
    assert explain(tmp_path)["left_out"] == {"hospital-1": f"its schema differs: {why}"}
    assert (
        "CLIENTS THAT ARE EXCLUDED\n  Client hospital-1: its schema differs: it has the same columns"
        in words(tmp_path)
    )
    with pytest.raises(
        UserError,
        match="client hospital-1 is excluded: its schema differs: it has the same columns",
    ):
        explain(tmp_path, client="hospital-1")
    assert "same columns in another order" in json.dumps(document([tmp_path]), default=str)
    assert coterie.check(tmp_path).damaged == []


# -- boundaries, sums, and nodes that say less
# ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "boundary"),
    [
        (FedAvg(), Boundary(masks=True)),
        (FedAvg(), Boundary(clip=1.0, noise=1.0)),
        (FedAvg(), Boundary(rotation="permute", secret=2**127 + 5)),
        (SplitHalfSums(), Boundary()),
        (SplitHalfSums(), Boundary(masks=True)),
        (SplitHalf(), Boundary()),
        (IFCA(models=2), Boundary()),
    ],
    ids=["masks", "noise", "rotation", "sums", "masked sums", "halves", "several models"],
)
def test_schemas_are_compared_under_every_boundary(method: Any, boundary: Boundary) -> None:
    data = [hospital(0), ODD["order"][0](), hospital(2), hospital(3), hospital(4)]
    mods = [] if boundary == Boundary() else [boundary_mod(boundary, net)]
    grid = grid_of(data, mods=mods)
    strategy = MethodStrategy(
        method, net, nodes=5, wait=1.0, boundary=replace(boundary, secret=None)
    )
    done = next(strategy.rounds(grid, 1))
    assert set(done.refused) == {1}
    hidden = boundary.masks or boundary.noise
    says = "its columns differ: digest " if hidden else ODD["order"][1]
    assert done.refused[1].startswith(f"its schema differs: {says}")
    replies = [
        reply.content
        for message, reply in grid.messages
        if reply and message.metadata.message_type == QUERY
    ]
    assert replies
    assert not [
        content for content in replies if "bmi" in str(content) and hidden
    ]  # of the data, only digests leave


@pytest.mark.parametrize("config", [{}, {"schema": "digest"}], ids=["words", "digest"])
def test_an_operator_need_not_know_how_tensors_hold_the_target(config: Any) -> None:
    agreed = Schema(columns=COLUMNS, targets=("ill",), classes=("no", "yes"))
    known = Schema(columns=COLUMNS, targets=("ill",), classes=("no", "yes"))
    data = [replace(arrays(X, Y), schema=known) for _ in range(3)]
    assert federated(data, config=config, schema=agreed).refused == {}
    odd = replace(arrays(X, Y), schema=replace(known, targets=("dead",)))
    (why,) = federated([*data, odd], config=config, schema=agreed).refused.values()
    assert "its target" in why


def test_a_node_may_state_digests_or_nothing(caplog: pytest.LogCaptureFixture) -> None:
    data = [hospital(0), ODD["classes"][0](), hospital(2)]
    done = federated(data, config={"schema": "digest"})
    ours, theirs = (
        described(one, coterie.CLASSIFICATION).field_digests()["classes"][:8]
        for one in (data[1], data[0])
    )
    assert done.refused == {
        1: f"its schema differs: its classes differ: digest {ours}, the federation's is {theirs}"
    }
    (told,) = [
        line for line in caplog.messages if line.startswith("the server refuses this node: ")
    ]
    assert (
        '"classes": ["no", "unknown", "yes"]' in told
    )  # at the node itself, for a comparison by its people
    data[1] = ODD["order"][0]()
    assert federated(data, config={"schema": "none"}).refused == {}


AGREED = {
    "columns": list(COLUMNS),
    "targets": ["ill"],
    "classes": ["no", "yes"],
    "scaling": "shared",
    "means": list(SHARED[0]),
    "deviations": list(SHARED[1]),
}
"""The fields of schema.toml that the page From simulation writes: no task, no types."""


@pytest.mark.parametrize("how", ["digest", "masks", "noise"])
def test_digests_of_an_agreed_schema_compare_only_what_it_knows(how: str) -> None:
    boundary = Boundary(masks=how == "masks", noise=0.1 if how == "noise" else 0.0, clip=1.0)
    hides = how != "digest"
    app: dict[str, Any] = {"mods": [boundary_mod(boundary, net)]} if hides else {}
    more = {"boundary": boundary} if hides else {"config": {"schema": "digest"}}
    data = [hospital(0), hospital(1), hospital(2), hospital(3), ODD["target"][0]()]
    done = federated(data, app=app, schema=AGREED, **more)
    (refusal,) = done.refused.values()
    assert set(done.refused) == {4}
    assert refusal.startswith("its schema differs: its targets differ: digest ")
    assert "form of targets" not in refusal
    assert done.answered == 4


def test_digests_of_an_older_node_are_those_of_parts() -> None:
    older = replace(Stated.of(described(hospital(0), None), "digest"), field_digests={})
    assert Stated.read(older.to_json()) == older
    same = Stated.of(described(hospital(1), None))
    assert older.difference(same) is None
    other = Stated.of(Schema(targets=("dead",)))
    assert str(older.difference(other)).startswith("its target differs: digest ")


def test_a_wrong_setting_of_the_node_is_told_of() -> None:
    with pytest.raises(
        EngineError,
        match=r"schema in the node's config must be words, digest or none, got 'digests'; did you mean",
    ):
        federated([hospital(0), hospital(1)], config={"schema": "digests"}, wait=300.0)


def test_a_node_without_a_schema_takes_part_and_it_is_said() -> None:
    data = [hospital(0), ODD["order"][0](), hospital(2)]
    grid = grid_of(data)
    grid.contexts[FIRST + 7].node_config["schema"] = "none"
    strategy = MethodStrategy(FedAvg(), net, nodes=3, wait=1.0)
    done = next(strategy.rounds(grid, 1))
    assert (done.refused, done.answered) == ({}, 3)
    text = "client 1 states no schema: columns, types, classes and scaling are not compared with the federation's"
    assert [note.text for note in done.notes if note.kind == "node"] == [text]


def test_apps_that_know_nothing_of_coterie_are_not_compared() -> None:
    tried = world(range(3))
    done = next(strategy_of(FedAvg(), tried).rounds(Here(foreign(tried), 3, named=False), 1))
    assert (done.refused, done.notes) == ({}, ())


# -- answers that are not to be believed
# ------------------------------------------------------------------------------------


def stated(change: Callable[[dict[str, Any]], Any]) -> ConfigRecord:
    found = Stated.of(described(hospital(0), coterie.CLASSIFICATION)).to_json()
    changed = change(found)
    return ConfigRecord({"stated": json.dumps(found if changed is None else changed)})


HOSTILE: dict[str, tuple[Any, str]] = {
    "another record": (MetricRecord({"stated": 3}), "its schema must be a text of at most"),
    "a number": (ConfigRecord({"stated": 3}), "its schema must be a text of at most"),
    "bytes": (ConfigRecord({"stated": b"{}"}), "its schema must be a text of at most"),
    "too long": (
        ConfigRecord({"stated": " " * (LONGEST_SCHEMA + 1)}),
        "its schema must be a text of at most",
    ),
    "no JSON": (ConfigRecord({"stated": "{"}), "its schema must be JSON"),
    "deep": (ConfigRecord({"stated": "[" * 200_000}), "its schema must be JSON"),
    "a list": (stated(lambda found: []), "its schema must have words and digests"),
    "more": (stated(lambda found: found.update(other=1)), "its schema must have words and digests"),
    "a digest": (
        stated(lambda found: found["digests"].update(columns="x" * 32)),
        "its schema must have a digest of each part",
    ),
    "no digest": (
        stated(lambda found: found.update(digests={})),
        "its schema must have a digest of each part",
    ),
    "another digest": (
        stated(lambda found: found["digests"].update(columns="0" * 32)),
        "its schema is not valid: the digest of its columns is not that of the words",
    ),
    "a digest of a field": (
        stated(lambda found: found["fields"].update(columns="x" * 32)),
        "its schema must have digests of its fields",
    ),
    "a digest of no field": (
        stated(lambda found: found["fields"].update(other="0" * 32)),
        "its schema must have digests of its fields",
    ),
    "another digest of a field": (
        stated(lambda found: found["fields"].update(task="0" * 32)),
        "its schema is not valid: the digest of its task is not that of the words",
    ),
    "a field": (
        stated(lambda found: found["words"].update(other=1)),
        "its schema is not valid: a schema has no field 'other'",
    ),
    "twice": (
        stated(lambda found: found["words"].update(columns=["a", "a", "b"])),
        "its schema is not valid: Schema.columns",
    ),
    "nan": (
        stated(lambda found: found["words"].update(means=[math.nan] * 3)),
        "its schema is not valid: Schema.means",
    ),
    "huge": (
        stated(lambda found: found["words"].update(means=[10**400] * 3)),
        "its schema is not valid: Schema.means",
    ),
    "versions": (
        stated(lambda found: found.update(versions={"torch": 3})),
        "its versions must be texts",
    ),
    "model": (
        stated(lambda found: found.update(model=[])),
        "the difference of its model must be a text",
    ),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_a_hostile_schema_is_refused_in_one_sentence(
    case: str, caplog: pytest.LogCaptureFixture
) -> None:
    record, why = HOSTILE[case]
    grid = grid_of([hospital(i) for i in range(3)])
    odd = RecordDict({WHO: MetricRecord({"client": 0}), SCHEMA: record})
    grid.fate = lambda m: (
        odd if m.metadata.dst_node_id == FIRST and m.metadata.message_type == QUERY else None
    )
    strategy = MethodStrategy(FedAvg(), net, nodes=2, wait=1.0)
    strategy.start(grid, num_rounds=3)
    assert strategy.last is not None
    assert strategy.last.groups == ((1, 2),)
    (told,) = [line for line in caplog.messages if f"node {FIRST} " in line]
    assert why in told
    assert len(told) < 500
    assert told.isprintable()


def test_names_of_a_hostile_schema_are_short_and_printable() -> None:
    names = ("\x1b[2J\u202e", "x" * 10_000, "client 0")
    shown = Stated.of(
        replace(described(hospital(0), coterie.CLASSIFICATION), columns=names, dtypes=())
    )
    grid = grid_of([hospital(i) for i in range(3)])
    odd = RecordDict({WHO: MetricRecord({"client": 0}), SCHEMA: record_of(shown)})
    grid.fate = lambda m: (
        odd if m.metadata.dst_node_id == FIRST and m.metadata.message_type == QUERY else None
    )
    done = next(MethodStrategy(FedAvg(), net, nodes=3, wait=1.0).rounds(grid, 1))
    assert done.refused[0].isprintable()
    assert len(done.refused[0]) <= 300


def test_a_schema_with_very_many_columns_is_stated_as_digests() -> None:
    schema = Schema(columns=tuple(f"a long name of a column {i}" for i in range(20_000)))
    told = Stated.of(schema)
    assert told.words == Schema()
    assert told.digests == schema.digests()
    assert len(told.text()) < 1_000


# -- real processes
# ------------------------------------------------------------------------------------------------------

NAMED = """
from coterie import Schema
from coterie.engines.flower import client_app
from digits_app.task import load, net


def names(context):
    digits = [str(digit) for digit in range(10)]
    return Schema(classes=digits[::-1] if context.node_config["partition-id"] == 1 else digits)


app = client_app(model=net, data=load, schema=names)
"""


@pytest.mark.slow
def test_over_a_network_who_differs_is_refused_and_told_so(tmp_path: Path) -> None:
    made = tmp_path / "made"
    shutil.copytree(
        ROOT / "examples" / "flower", made, ignore=shutil.ignore_patterns("__pycache__")
    )
    (made / "digits_app" / "client_app.py").write_text(NAMED)
    with federation(tmp_path / "here", made, 3, Federation) as here:
        for i in range(3):
            here.node(i)
        here.run("run", nodes=3, rounds=1, out=str(tmp_path / "run"))
        until(lambda: len(rounds_of(tmp_path / "run")) == 1, "a round is recorded", here.failed)
        (line,) = rounds_of(tmp_path / "run")
        until(
            lambda: "the server refuses this node" in here.log("node1"),
            "the node logs why",
            here.failed,
        )
    assert line["groups"] == [[0, 2]]
    assert set(line["refused"]) == {"1"}
    why = "its schema differs: it has the same classes in another order: class 0 is '9', the federation's is '0'"
    assert line["refused"]["1"] == why
