"""What is stored comes back bit for bit, files are whole or not there, and nothing is unpickled."""

import ast
import json
import math
import struct
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

import coterie
from coterie.core import Note, Training, state
from coterie.records import codec, store
from coterie.records.codec import DamagedError, UnknownClassError
from coterie.records.record import Record
from coterie.records.store import BusyError, Checkpoints, locked, write_whole
from coterie.records.text_files import finite, to_json
from coterie.settings import UserError
from page_runs import line, note, write


@state("test.pair")
class Pair:
    """A state to store: two of anything."""

    left: Any
    right: Any = None


# -- values
# ---------------------------------------------------------------------------------------------------------------

TYPES = [np.float32, np.float64, np.float16, np.int64, np.int32, np.uint8, np.bool_]
arrays = st.sampled_from(TYPES).flatmap(
    lambda t: npst.arrays(t, npst.array_shapes(min_dims=0, max_dims=3, min_side=0))
)
# A NaN may carry bits of its own: only hardware floats built from bytes show whether they survive.
floats = st.one_of(
    st.floats(), st.binary(min_size=8, max_size=8).map(lambda b: struct.unpack(">d", b)[0])
)
keys = st.one_of(st.integers(), st.text(), st.booleans(), st.none(), floats)
scalars = st.one_of(keys, arrays.filter(lambda a: a.ndim == 0).map(lambda a: a[()]))
tensors = arrays.map(lambda a: torch.from_numpy(np.array(a)))
simple = st.one_of(
    scalars, arrays, tensors, tensors.map(lambda t: t.to(torch.bfloat16)), tensors.map(lambda t: t.T if t.ndim == 2 else t),
    st.just(Training(lr=0.3, clip=1e-9)),
    st.just(Note(kind="split", effect="divides", clients=(1, 2), text="β", parts=((1,), (2,)))),
)  # fmt: skip
values = st.recursive(
    simple,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4).map(tuple),
        st.dictionaries(keys, inner, max_size=4),
        st.frozensets(st.one_of(st.integers(), st.text()), max_size=4),
        st.builds(Pair, left=inner, right=inner),
    ),
    max_leaves=8,
)


def bits(value: Any) -> Any:
    """Something that is equal exactly where values are of the same types and the same bits."""
    if isinstance(value, torch.Tensor):
        flat = value.contiguous().flatten()
        raw = flat.view(torch.uint8).tolist() if len(flat) else []
        return ("tensor", value.dtype, tuple(value.shape), raw)
    if isinstance(value, np.ndarray):
        return ("array", value.dtype, value.shape, value.tobytes())
    if isinstance(value, np.generic):
        return ("scalar", value.dtype, value.tobytes())
    if isinstance(value, float):
        return struct.pack(">d", value)
    if isinstance(value, Mapping):
        return [(bits(k), bits(v)) for k, v in value.items()]
    if isinstance(value, tuple):
        return ("tuple", [bits(v) for v in value])
    if is_dataclass(value):
        return (type(value), [bits(getattr(value, f.name)) for f in fields(value)])
    return (type(value), value)


def through_json(value: Any, blobs: dict[str, bytes]) -> Any:
    def put(data: bytes) -> str:
        blobs[codec.blob(data)] = data
        return codec.blob(data)

    return json.loads(json.dumps(codec.encode(value, put), allow_nan=False))


@given(values)
def test_what_is_stored_comes_back_bit_for_bit(value: Any) -> None:
    blobs: dict[str, bytes] = {}
    encoded = through_json(value, blobs)
    assert bits(codec.decode(encoded, blobs.__getitem__)) == bits(value)
    assert set(codec.blobs(encoded)) == set(blobs)


def test_equal_arrays_are_one_blob() -> None:
    blobs: dict[str, bytes] = {}
    through_json((torch.ones(5), Pair(left=torch.ones(5), right=torch.zeros(5))), blobs)
    assert len(blobs) == 2


@pytest.mark.parametrize(
    "value", [[1, 2], {1}, object(), b"bytes", np.array(["text"]), np.array([None])]
)
def test_what_a_state_may_not_hold_is_refused(value: Any) -> None:
    with pytest.raises(TypeError, match="stored"):
        through_json(value, {})


def test_only_known_classes_are_restored() -> None:
    encoded = through_json(Pair(left=1), {})
    encoded["is"] = "subprocess.Popen"
    with pytest.raises(UnknownClassError, match=r"subprocess\.Popen, which this version"):
        codec.decode(encoded, {}.__getitem__)


def test_a_class_with_other_fields_is_refused() -> None:
    encoded = through_json(Pair(left=1), {})
    encoded["fields"]["middle"] = 2
    with pytest.raises(UnknownClassError, match="'middle' differs"):
        codec.decode(encoded, {}.__getitem__)


@pytest.mark.parametrize(
    "damage", [{"is": "tensor"}, {"is": "mapping", "items": [1]}, {}, {"is": "float", "bits": "0"}]
)
def test_damaged_values_are_refused(damage: Any) -> None:
    with pytest.raises(DamagedError):
        codec.decode(damage, {}.__getitem__)


def test_nothing_is_unpickled() -> None:
    """No module imports a pickle, torch.load or np.load with pickles."""
    for path in Path(coterie.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, (ast.Import, ast.ImportFrom)):
                names = [alias.name for alias in node.names] + [getattr(node, "module", None) or ""]
                assert not {n.partition(".")[0] for n in names} & {
                    "pickle",
                    "cPickle",
                    "dill",
                    "joblib",
                    "shelve",
                    "marshal",
                }
            if (
                isinstance(node, ast.Attribute)
                and node.attr == "load"
                and isinstance(node.value, ast.Name)
            ):
                assert node.value.id != "torch", path
            if isinstance(node, ast.keyword) and node.arg == "allow_pickle":
                assert ast.unparse(node.value) == "False", path


# -- files
# ----------------------------------------------------------------------------------------------------------------


def test_a_file_is_written_whole_or_left_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "file"
    write_whole(path, b"old")
    monkeypatch.setattr(
        store.os,
        "fsync",
        lambda handle: (_ for _ in ()).throw(OSError(28, "No space left on device")),
    )
    with pytest.raises(OSError, match="No space"):
        write_whole(path, b"new")
    assert path.read_bytes() == b"old"
    assert names(tmp_path) == ["file"]


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_two_checkpoints_are_kept_and_no_blob_that_none_refers_to(tmp_path: Path) -> None:
    checkpoints, shared = Checkpoints(tmp_path / "state"), torch.arange(3.0)
    (tmp_path / "state" / "blobs").mkdir(parents=True)
    (tmp_path / "state" / "blobs" / f"{40 * 'a'}.safetensors.part").write_bytes(
        b""
    )  # of a killed process
    for round in (1, 2, 3):
        checkpoints.save(round, Pair(left=shared, right=torch.tensor(float(round))))
    assert checkpoints.rounds() == [2, 3]
    assert len(names(checkpoints.blobs)) == 3  # the shared one, and one each
    loaded = checkpoints.load()
    assert loaded is not None
    assert loaded[0] == 3
    assert bits(loaded[1]) == bits(Pair(left=shared, right=torch.tensor(3.0)))


def test_as_many_checkpoints_are_kept_as_asked_for(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path)
    for round in range(1, 6):
        checkpoints.save(round, Pair(left=round), num_kept=3)
    assert checkpoints.rounds() == [3, 4, 5]
    checkpoints.prune(1)
    assert checkpoints.rounds() == [5]


def test_one_damaged_checkpoint_is_skipped_and_two_are_an_error(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(1, Pair(left=torch.ones(2)))
    checkpoints.save(2, Pair(left=torch.zeros(2)))
    newest = json.loads((tmp_path / "000002.json").read_bytes())["value"]
    (blob,) = codec.blobs(newest)
    (checkpoints.blobs / f"{blob}.safetensors").write_bytes(b"not what was written")
    loaded = checkpoints.load()
    assert loaded is not None
    assert loaded[0] == 1
    (tmp_path / "000001.json").write_bytes(b'{"schema": 1, "rou')
    with pytest.raises(DamagedError, match=r"000001\.json cannot be read"):
        checkpoints.load()


def test_a_newer_schema_is_refused(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(1, Pair(left=1))
    path = tmp_path / "000001.json"
    path.write_text(path.read_text().replace('"schema": 1', '"schema": 99'))
    with pytest.raises(UserError, match="schema version 99, this version of Coterie reads up to 1"):
        checkpoints.load()


def test_a_run_directory_has_one_writer_in_a_process(tmp_path: Path) -> None:
    with locked(tmp_path):
        with pytest.raises(BusyError, match="by this process already"), locked(tmp_path):
            pass
        assert names(tmp_path) == ["lock"]
    with locked(tmp_path):
        pass
    assert names(tmp_path) == []


HOLDER = """
import sys, time, pathlib
from coterie.records.store import locked
with locked(pathlib.Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(60)
"""


def test_a_run_directory_has_one_writer_among_processes_until_it_is_killed(tmp_path: Path) -> None:
    arguments = [sys.executable, "-c", HOLDER, str(tmp_path)]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "held\n"
        with (
            pytest.raises(BusyError, match=rf"another process \(id {other.pid}\)"),
            locked(tmp_path),
        ):
            pass
        other.kill()
    assert names(tmp_path) == ["lock"]  # left behind, by nobody
    with locked(tmp_path):
        pass


# -- rounds
# ---------------------------------------------------------------------------------------------------------------


def round_line(number: int) -> dict[str, Any]:
    return line(number, [[0, 1]], note("keep", [0, 1], text="split: ε1\n"), seconds={"x": math.nan})


def recorded(folder: Path, rounds: int) -> Record:
    run = write(folder / "run", [round_line(number) for number in range(1, rounds + 1)])
    return Record(run)


@pytest.mark.slow
@given(cut=st.integers(min_value=0))
def test_a_line_cut_short_is_left_out_and_then_cut_off(
    tmp_path_factory: pytest.TempPathFactory, cut: int
) -> None:
    record = recorded(tmp_path_factory.mktemp("run"), 3)
    path = record.folder / "rounds.jsonl"
    data = path.read_bytes()
    path.write_bytes(data[: cut % len(data)])
    whole = len(record.lines())
    assert whole == data[: cut % len(data)].count(b"\n")
    record.rewind(whole)
    record.append(round_line(whole + 1))
    assert [line["round"] for line in record.lines()] == list(range(1, whole + 2))


def test_a_last_line_that_was_never_filled_counts_as_cut_short(tmp_path: Path) -> None:
    record = recorded(tmp_path, 2)
    with open(record.folder / "rounds.jsonl", "ab") as file:
        file.write(b"\0\0\0\0\n")
    assert len(record.lines()) == 2


def test_rewind_needs_the_records_to_reach_the_checkpoint(tmp_path: Path) -> None:
    with pytest.raises(DamagedError, match="ends at round 2, but the checkpoint is of round 3"):
        recorded(tmp_path, 2).rewind(3)


def test_a_line_damaged_in_the_middle_is_an_error(tmp_path: Path) -> None:
    record = recorded(tmp_path, 3)
    path = record.folder / "rounds.jsonl"
    path.write_bytes(path.read_bytes().replace(b'"round": 2', b'"round": x'))
    with pytest.raises(DamagedError, match="line 2 of"):
        record.lines()


def test_a_description_that_lacks_something_is_damaged(tmp_path: Path) -> None:
    record = Record(tmp_path)
    about = {
        "methods": [{"name": "cfl"}],
        "scenario": {"name": "by-hand"},
        "seeds": [0],
        "rounds": 3,
        "eval_every": 1,
    }
    record.describe({**about, "training": {}, "boundary": {}})
    with pytest.raises(DamagedError, match=r"run\.toml lacks 'robust'"):
        record.description()
    record.describe({**about, "training": {}, "boundary": {}, "robust": {}})
    with pytest.raises(
        DamagedError, match=r"run\.toml is damaged: object missing required field `world`"
    ):
        record.description()


def test_json_has_no_numbers_that_json_does_not_know() -> None:
    value = {"a": (math.inf, np.float32("nan"), np.int64(3)), 7: {"b": -math.inf}}
    assert json.loads(to_json(value)) == finite(value) == {"a": [None, None, 3], "7": {"b": None}}
