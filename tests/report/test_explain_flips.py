"""What would have changed a decision, as told, does change it: the setting is changed as said, and the method run anew."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from coterie.core import Note
from coterie.methods import ACFL, CFL, FLHC, HCCT, SplitHalf
from coterie.report.explain import explain
from coterie.settings import plain
from told_runs import recorded
from worlds import THREE, Played, grouped, play

TINY = 1e-5
"""By how much a setting is moved past what is told: matrices are kept in float32."""


def kept(folder: Path, method: Any, played: Sequence[Played]) -> Path:
    return recorded(
        folder, {"name": method.name, **plain(method)}, [(p.groups, p.notes) for p in played]
    )


def changed(method: Any, flip: Mapping[str, Any]) -> Any:
    """The method with the settings that a flip tells, just on the side told."""
    values = {}
    for change in flip["changes"]:
        step = TINY * max(abs(change["value"]), TINY) * (1 if change["sign"] in (">", ">=") else -1)
        values[change["setting"]] = change["value"] + (
            0 if isinstance(change["value"], int) else step
        )
    return replace(method, **values)


def same(notes: Sequence[Note], decision: Mapping[str, Any]) -> Note | None:
    """The note about the decision's clients; None where they are no group any more."""
    return next((note for note in notes if list(note.clients) == decision["clients"]), None)


@pytest.mark.parametrize(
    ("persistence", "scale"), [(1, "relative"), (3, "relative"), (2, "absolute")]
)
def test_cfl_would_not_have_split(tmp_path: Path, persistence: int, scale: str) -> None:
    world = grouped(THREE, noise=0.05)
    method = CFL(
        persistence=persistence,
        scale=scale,
        eps1=0.6 if scale == "absolute" else 0.5,
        min_cluster_size=2,
    )
    run = kept(tmp_path / "run", method, list(play(method, world, 25)))
    first = explain(run)["decisions"][0]
    assert first["kind"] == "split"
    flips = first["would_change"]
    assert {c["setting"] for flip in flips for c in flip["changes"]} == {
        "eps1",
        "eps2",
        "gamma_max",
        "min_cluster_size",
        *(["persistence"] if persistence > 1 else []),
    }
    for flip in flips:
        other = changed(method, flip)
        note = same(list(play(other, world, first["round"]))[-1].notes, first)
        assert note is not None
        assert note.kind != "split", flip


@pytest.mark.parametrize("eps1", [0.0, 0.2, 0.9])
@pytest.mark.parametrize("eps2", [0.0, 1.1])
@pytest.mark.parametrize("gamma_max", [0.3, 0.9])
@pytest.mark.parametrize("least", [1, 3])
def test_cfl_would_have_split(
    tmp_path: Path, eps1: float, eps2: float, gamma_max: float, least: int
) -> None:
    world = grouped(((1, 2, 3), (7, 8)), noise=0.3)
    method = CFL(persistence=1, eps1=eps1, eps2=eps2, gamma_max=gamma_max, min_cluster_size=least)
    played = list(play(method, world, 1))
    found = explain(kept(tmp_path / "run", method, played))
    kind = played[0].notes[0].kind
    decision = (
        found["decisions"][0] if kind == "split" else found["standing"]["groups"][0]["decision"]
    )
    assert (
        [c["held"] for c in decision["criteria"]].count(False) == 0
        if kind == "split"
        else decision["would_change"]
    )
    for flip in decision["would_change"]:
        note = next(play(changed(method, flip), world, 1)).notes[0]
        assert (note.kind == "split") != (kind == "split")
        if kind != "split":  # each of the changes was needed
            for one in flip["changes"]:
                less = [other for other in flip["changes"] if other != one]
                assert (
                    not less
                    or next(play(changed(method, {"changes": less}), world, 1)).notes[0].kind
                    == "keep"
                )


@pytest.mark.parametrize("linkage", ["single", "complete", "average", "ward"])
def test_the_clustering_of_flhc(tmp_path: Path, linkage: str) -> None:
    world = grouped(THREE, noise=0.3)
    method = FLHC(
        warmup=0, fraction=1.0, linkage=linkage, threshold=1.2 if linkage == "single" else 2.0
    )
    played = list(play(method, world, 1))
    run = kept(tmp_path / "run", method, played)
    groups = len(played[0].groups)
    (decision,) = explain(run)["decisions"]
    more, fewer = (
        len(next(play(changed(method, flip), world, 1)).groups) for flip in decision["would_change"]
    )
    assert more > groups > fewer


def test_the_clustering_of_acfl(tmp_path: Path) -> None:
    world = grouped(THREE, noise=0.3)
    method = ACFL(threshold=0.7)
    played = list(play(method, world, 1))
    run = kept(tmp_path / "run", method, played)
    (decision,) = explain(run)["decisions"]
    more, fewer = (
        len(next(play(changed(method, flip), world, 1)).groups) for flip in decision["would_change"]
    )
    assert more > len(played[0].groups) > fewer


def test_the_partition_of_hcct(tmp_path: Path) -> None:
    world = grouped(THREE, noise=0.5, examples={2: 30, 5: 40, 8: 10, 99: 25})
    method = HCCT(tradeoff=0.2)
    played = list(play(method, world, 1))
    (decision,) = explain(kept(tmp_path / "run", method, played))["decisions"]
    parts = played[0].notes[-1].parts
    assert 1 < len(parts) < 12
    (flip,) = decision["would_change"]
    assert flip["changes"][0]["sign"] == ">"
    assert next(play(changed(method, flip), world, 1)).notes[-1].parts != parts
    back = {
        "changes": [{**one, "sign": "<="} for one in flip["changes"]]
    }  # on the other side they are what they were
    assert next(play(changed(method, back), world, 1)).notes[-1].parts == parts


def test_split_half_and_its_level(tmp_path: Path) -> None:
    world = grouped(THREE, d=60, noise=0.3)
    method = SplitHalf(first_probe=2, probe_every=1, review_every=0, level=1e-3)
    found = explain(kept(tmp_path / "run", method, list(play(method, world, 6))))
    first = found["decisions"][0]
    assert first["kind"] == "split"
    (flip,) = first["would_change"]
    note = same(list(play(changed(method, flip), world, first["round"]))[-1].notes, first)
    assert note is not None
    assert note.kind != "split"
    calm = found["standing"]["groups"][0]["decision"]
    (flip,) = calm["would_change"]
    assert "tested again" in flip["then"]
    again = list(play(changed(method, flip), world, calm["round"]))
    assert all(p.notes for p in again if p.replies.halves)
    note = same(again[-1].notes, calm)
    assert note is None or note.kind in (
        "hold",
        "split",
    )  # None: with so high a level it has been split before
