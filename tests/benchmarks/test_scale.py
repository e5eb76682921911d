"""The benchmark of the default method with many clients, at tiny sizes; and its table."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "benchmarks"), str(ROOT / "tools" / "docs")]

import scale  # noqa: E402
import scale_table  # noqa: E402


def test_memory_is_that_of_all_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    row = scale.together(scale.run_of(*scale.TOGETHER["small"][0]))
    alone = scale.proportional(
        -1
    )  # no process is of this session (0 is one, where its leader is out of a container)
    assert row["bytes"] > 50 << 20 > alone  # a process that has imported PyTorch
    monkeypatch.setattr(scale_table, "MEASURED", tmp_path / "scale.json")
    assert scale_table.memory().startswith("Not measured yet")
    (tmp_path / "scale.json").write_text(json.dumps({"memory": [{**row, "bytes": 2_600_000_000}]}))
    *_, line = scale_table.memory().splitlines()
    assert line.startswith(
        "| `coterie run --scenario synthetic/groups --set clients=20 --set examples=1000 "
    )
    assert line.endswith("| 2.6 GB |")


def test_rows_that_are_there_are_not_measured_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "scale.json"
    monkeypatch.setattr(
        scale, "alone", lambda work, *sizes: {"clients": sizes[0], "parameters": 4 * (sizes[1] + 1)}
    )
    monkeypatch.setattr(scale, "together", lambda command: {"command": list(command)})
    monkeypatch.setattr(scale.machine, "described", lambda device: {"cores": 1})
    scale.measure("small", out)
    first = json.loads(out.read_text())
    assert (len(first["rows"]), len(first["memory"]), first["machine"]) == (2, 1, {"cores": 1})
    first["memory"] = []
    out.write_text(json.dumps(first))
    monkeypatch.setattr(scale.machine, "described", lambda device: {"cores": 9})
    scale.measure("small", out)
    found = json.loads(out.read_text())
    assert found["memory"][0]["machine"] == {"cores": 9}
    assert found["machine"] == {"cores": 1}  # that of the rows


def test_a_row_has_every_round_and_the_table_has_a_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = scale.default(8, 20)
    assert (row["clients"], row["parameters"]) == (8, 84)
    assert len(row["server"]) == len(row["train"]) == len(row["index"]) == scale.ROUNDS
    assert row["peak_bytes"] >= row["world_bytes"] > 0
    monkeypatch.setattr(scale_table, "MEASURED", tmp_path / "scale.json")
    assert scale_table.scale().startswith("Not measured yet")
    about = {
        "machine": {"system": "Linux", "processor": "one", "cores": 2},
        "versions": {"torch": "2"},
    }
    rows = [
        {**row, "server": [1.0, 2.0, 6.0], "index": [0.0, 1.0, 1.0]},
        {**row, "index": [0.0, 0.25]},
    ]
    (tmp_path / "scale.json").write_text(json.dumps({**about, "rows": rows}))
    *_, first, second = scale_table.scale().splitlines()
    assert first.startswith("| 8 | 84 | 2.00 s | 6.00 s |")
    assert first.endswith("| right from round 2 on |")
    assert second.endswith("| index 0.250 |")


def test_growth_has_a_row_per_method_and_number_of_clients(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = scale.grown("auto", 20, 3)
    assert (row["method"], row["clients"]) == ("auto", 20)
    assert 0 <= row["waiting"] <= 20
    assert len(row["processor"]) == len(row["server"]) == len(row["asked"]) == 3
    assert min(row["processor"]) > 0
    out = tmp_path / "scale.json"
    monkeypatch.setattr(scale_table, "MEASURED", out)
    assert scale_table.growth().startswith("Not measured yet")
    commands = []

    def watched(command: list[str]) -> tuple[int, str]:
        commands.append(command)
        return 2_000_000_000, json.dumps(
            {**row, "method": command[-3], "clients": 100, "waiting": 7}
        )

    monkeypatch.setattr(scale, "watched", watched)
    scale.measure_growth("small", out)
    scale.measure_growth("small", out)  # a row that is there is not measured again
    assert len(commands) == 1
    assert commands[0][-3:] == ["fedavg", "100", "2"]
    *_, line = scale_table.growth().splitlines()
    assert line.startswith("| 100 | `fedavg` | 20 |")
    assert line.endswith("| 2.0 GB | 7 |")
