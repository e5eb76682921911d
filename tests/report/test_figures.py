"""``coterie plot``: figures of runs and of data, the same files from the same records, and one sentence for a mistake."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import coterie
from coterie.cli import main
from coterie.report.gathered import gather
from coterie.settings import UserError
from page_runs import cosines, criterion, line, matrices, note, split_run, write

pytest.importorskip(
    "matplotlib", reason="Matplotlib is not installed (pip install 'coterie[report]')"
)

from matplotlib import colors as mcolors

from coterie.report import figures
from coterie.report.figures import plot as drawn
from coterie.report.figures.drawings import blocks, figure, scale
from coterie.report.figures.looks import ENDED, Looks
from coterie.report.figures.style import COLOURS, STYLE


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return split_run(tmp_path_factory.mktemp("figures") / "run")


@pytest.fixture(autouse=True)
def in_style() -> Any:
    """Figures that are looked into, as they are when they are written."""
    import matplotlib

    with matplotlib.rc_context(STYLE):
        yield


members_of_runs = st.integers(1, 6).flatmap(
    lambda n: st.lists(st.lists(st.integers(-1, 2), min_size=n, max_size=n))
)


@given(members_of_runs)
def test_blocks_cover_every_client_in_every_round_once(members: list[list[int]]) -> None:
    seen: dict[tuple[int, int], int] = {}
    for node, top, bottom, first, last in blocks(members):
        for row in range(top, bottom + 1):
            for column in range(first, last + 1):
                assert (row, column) not in seen
                seen[row, column] = node
    assert seen == {
        (i, j): id for i, row in enumerate(members) for j, id in enumerate(row) if id >= 0
    }


@pytest.mark.slow
@pytest.mark.parametrize("kind", [kind for kind in figures.RECORDED_KINDS if kind != "time"])
def test_every_kind_is_drawn_and_the_same_records_make_the_same_file(
    run: Path, kind: str, tmp_path: Path
) -> None:
    begins = {".pdf": b"%PDF", ".png": b"\x89PNG", ".svg": b"<?xml"}
    for suffix in figures.FIGURE_SUFFIXES:
        first, second = (
            drawn(run, kind, tmp_path / name / f"figure{suffix}").read_bytes() for name in "ab"
        )
        assert first.startswith(begins[suffix])
        assert first == second
        assert len(first) > 2000


def test_fonts_are_embedded(run: Path, tmp_path: Path) -> None:
    data = drawn(run, "traffic", tmp_path / "figure.pdf").read_bytes()
    assert b"/FontFile2" in data  # TrueType, which journals take
    assert b"/Type3" not in data
    assert b"CreationDate" not in data


def test_groups_that_are_there_have_colours_and_true_groups_theirs(run: Path) -> None:
    look = Looks(gather(run))
    assert look.area(0) == ENDED
    assert [look.area(node) for node in (1, 2)] == list(COLOURS[:2])
    assert look.colour_of_truth == {0: COLOURS[0], 1: COLOURS[1]}
    assert look.line(1) != look.line(2)
    assert look.line(1)["marker"] != look.line(2)["marker"]


def test_a_line_is_the_mean_of_the_honest_members_of_a_group(tmp_path: Path) -> None:
    lines = [line(1, [[0, 1, 2]]), line(2, [[0, 1, 2]], tested=False), line(3, [[0, 1, 2]])]
    folder = write(tmp_path / "run", lines)
    told = gather(folder)
    told.description["world"]["adversaries"] = [2]
    axes = figure(told, "accuracy").axes[0]
    group = next(one for one in axes.lines if str(one.get_label()).startswith("all"))
    expected = [np.mean([1 - 1 / (client + round + 1) for client in (0, 1)]) for round in (1, 3)]
    assert group.get_label() == "all (3 clients)"
    assert list(group.get_xdata()) == [1, 3]
    np.testing.assert_allclose(group.get_ydata(), expected)


def test_bytes_are_added_up(run: Path) -> None:
    sent = figure(gather(run), "traffic").axes[0].lines
    np.testing.assert_allclose(sent[0].get_ydata(), np.cumsum([6, 6, 7, 7]) / 1000)
    np.testing.assert_allclose(sent[1].get_ydata(), np.cumsum([12, 12, 14, 14]) / 1000)


def test_every_layer_of_the_matrix_is_drawn_ordered_by_group(run: Path) -> None:
    axes = [one for one in figure(gather(run), "similarity").axes if one.get_title()]
    assert [one.get_title() for one in axes] == ["round 2, all", "round 2, fc1"]
    shown = axes[1].images[0].get_array()
    np.testing.assert_allclose(shown.filled(0.5), cosines([0, 0, 0, 0, 1, 1]) / 2, atol=1e-7)
    assert [border.get_ydata()[0] for border in axes[0].lines[::2]] == [3.5]


def test_cosines_have_zero_in_the_middle_and_distances_their_own_scale() -> None:
    assert scale(np.array([[1.0, -0.2], [-0.2, 1.0]])) == {
        "cmap": "PuOr_r",
        "vmin": -1.0,
        "vmax": 1.0,
    }
    assert scale(np.array([[np.nan, 2.0], [4.0, np.nan]])) == {
        "cmap": "YlGnBu",
        "vmin": 2.0,
        "vmax": 4.0,
    }


def test_criteria_are_the_charts_of_the_page(run: Path) -> None:
    axes = figure(gather(run), "criteria").axes
    assert axes[0].get_title(loc="left") == "Mean update"
    assert any(
        list(one.get_ydata()) == [0.2, 0.2] for one in axes[0].lines
    )  # G0's mean norm before its split


def test_criteria_with_long_names_are_wide_enough_to_read(tmp_path: Path) -> None:
    """Of ten criteria eight are drawn, two side by side, and no numbers without a bound."""
    names = [f"held-out loss of candidate {number} less groups, in errors" for number in range(10)]
    lines = []
    for number in (1, 2, 3):
        criteria = [{**criterion(0.6), "name": name} for name in names]
        lines.append(
            line(number, [[0, 1]], note("keep", [0, 1], criteria=criteria, numbers={"own": 1.0}))
        )
    drawing = figure(gather(write(tmp_path / "run", lines)), "criteria")
    assert len(drawing.axes) == 8
    drawing.draw_without_rendering()
    for axes in drawing.axes:
        assert axes.get_position().width * drawing.get_figwidth() > 2.5
        assert axes.get_ylabel() == ""
        assert axes.get_title(loc="left").replace("\n", " ").lower() in names


@pytest.mark.slow
def test_many_clients_stay_small(tmp_path: Path) -> None:
    """600 clients who change places all the time: blocks are drawn as points."""
    rng = np.random.default_rng(0)
    rounds = []
    for number in range(1, 31):
        labels = rng.integers(0, 60, 600)
        rounds.append(
            line(
                number,
                [group for k in range(60) if (group := np.flatnonzero(labels == k).tolist())],
            )
        )
    run = write(tmp_path / "run", rounds)
    assert drawn(run, "groups", tmp_path / "a.pdf").stat().st_size < 1e6
    assert drawn(run, "accuracy", tmp_path / "b.svg").stat().st_size < 1e6


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            ["group", "-o", "x.pdf"],
            "there is no figure 'group'; did you mean groups? (known: groups, score, clients,",
        ),
        (["groups", "-o", "x.jpg"], "--out must end in .pdf, .png or .svg, got x.jpg"),
        (
            ["groups", "-o", "x.pdf", "--round", "2"],
            "--round is for similarity; groups is drawn over all rounds",
        ),
        (
            ["similarity", "-o", "x.pdf", "--round", "3"],
            "--round 3 has no matrix recorded; there is one of round 2",
        ),
    ],
)
def test_mistakes_get_one_sentence(
    run: Path,
    words: list[str],
    said: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["plot", str(run), *words]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"coterie: {said}")
    assert error.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_a_run_without_such_numbers(tmp_path: Path) -> None:
    run = write(tmp_path / "run", [line(1, [[0, 1]], tested=False)], method="fedavg")
    for kind, lacking in (
        ("accuracy", "accuracy"),
        ("loss", "loss"),
        ("similarity", "similarities"),
        ("criteria", "criteria"),
    ):
        with pytest.raises(UserError, match=f"has no {lacking} recorded: "):
            coterie.plot(run, kind, tmp_path / "figure.pdf")
    with pytest.raises(UserError, match="has no completed round yet"):
        coterie.plot(write(tmp_path / "begun", []), "groups", tmp_path / "figure.pdf")
    assert not (tmp_path / "figure.pdf").exists()


def test_an_unknown_metric_is_told_with_the_near_one(tmp_path: Path) -> None:
    run = write(tmp_path / "run", [line(1, [[0, 1]])], method="fedavg")
    with pytest.raises(UserError, match=r"has no los recorded: .*; did you mean loss\? \(known: "):
        coterie.plot(run, "score", tmp_path / "figure.pdf", metric="los")


def test_a_run_whose_rounds_have_no_groups(tmp_path: Path) -> None:
    empty = write(tmp_path / "empty", [line(1, []), line(2, [])])
    with pytest.raises(UserError, match=r"has no groups recorded: .* its 2 rounds"):
        drawn(empty, "groups", tmp_path / "no.pdf")
    for kind in set(figures.RECORDED_KINDS) - {"groups", "traffic"}:
        with pytest.raises(UserError, match=r"has no \w+ recorded"):
            drawn(empty, kind, tmp_path / "no.pdf")
    assert drawn(empty, "traffic", tmp_path / "yes.pdf").exists()
    assert not (tmp_path / "no.pdf").exists()


@pytest.mark.parametrize("metric", ["accuracy", "loss"])
def test_rounds_that_were_tested_without_a_value_are_not_said_to_be_untested(
    metric: str, tmp_path: Path
) -> None:
    lines = [line(1, [[0, 1]]), line(2, [[0, 1]])]
    for one in lines:
        for entry in one["clients"].values():
            entry[metric] = None
    run = write(tmp_path / "run", lines)
    with pytest.raises(
        UserError,
        match=f"has no {metric} recorded: 2 of its 2 rounds were tested for it, and gave no value",
    ):
        drawn(run, metric, tmp_path / "no.pdf")


def test_of_several_runs_one_has_to_be_named(tmp_path: Path) -> None:
    for name in ("a", "b"):
        write(tmp_path / name, [line(1, [[0, 1]])])
    with pytest.raises(
        UserError,
        match=f"has 2 runs and a figure of .* is of one .*: name {tmp_path / 'a'}, {tmp_path / 'b'}",
    ):
        coterie.plot(tmp_path, "groups", tmp_path / "figure.pdf")
    one = tmp_path / "only"
    write(one / "inside", [line(1, [[0, 1]])])
    assert coterie.plot(one, "groups", tmp_path / "figure.svg").exists()


def test_runs_that_differ_in_their_seed_are_one_curve_with_a_band(tmp_path: Path) -> None:
    from coterie.report.figures import several

    runs = []
    for method in ("cfl", "fedavg"):
        for seed, rounds in ((0, 2), (1, 3)):
            lines = [line(number, [[0, 1]]) for number in range(1, rounds + 1)]
            for one in lines:
                one["bytes_up"], one["bytes_down"] = 10**6 * (seed + 1), 0
            folder = tmp_path / f"{method}{seed}"
            runs.append(gather(write(folder, lines, method, seed=seed, rounds=3)))
    axes = several.figure(runs[:3], "traffic").axes[0]
    cfl, fedavg = axes.get_lines()
    assert (cfl.get_label(), fedavg.get_label()) == ("cfl", "fedavg")
    # Rounds that both seeds have.
    assert list(cfl.get_xdata()) == [1, 2]
    np.testing.assert_allclose(cfl.get_ydata(), [1.5, 3.0])
    # Two seeds, 1 and 2 MB a round: the band is from one to the other. One seed has no band.
    (band,) = axes.collections
    heights = band.get_paths()[0].vertices[:, 1]
    assert (heights.min(), heights.max()) == (pytest.approx(1.0), pytest.approx(4.0))
    assert axes.get_ylim()[0] >= 0


def test_a_band_ends_where_the_metric_does(tmp_path: Path) -> None:
    from coterie.report.figures import several

    runs = []
    for seed, accuracy in enumerate((0.2, 0.9, 0.8)):
        lines = [line(number, [[0, 1]]) for number in (1, 2)]
        for one in lines:
            for client in one["clients"].values():
                client["accuracy"] = accuracy
        folder = tmp_path / str(seed)
        runs.append(gather(write(folder, lines, "cfl", seed=seed, rounds=2)))
    axes = several.figure(runs, "accuracy").axes[0]
    (band,) = axes.collections
    heights = band.get_paths()[0].vertices[:, 1]
    assert (heights.min(), heights.max()) == (0, 1)
    assert axes.get_ylim() == (0, 1)


def test_without_matplotlib(
    run: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert main(["plot", str(run), "groups", "-o", "x.pdf"]) == 2
    assert (
        capsys.readouterr().err
        == "coterie: figures need Matplotlib: pip install 'coterie[report]'\n"
    )


@pytest.mark.slow
def test_settings_of_matplotlib_in_the_current_folder_are_not_read(
    run: Path, tmp_path: Path
) -> None:
    """It may be another person's run directory, and versions of Matplotlib below 3.11 evaluate a part of this file."""
    (tmp_path / "matplotlibrc").write_text("lines.linewidth: 77\n")
    code = (
        "import sys, coterie\n"
        "coterie.plot(sys.argv[1], 'accuracy', 'a.svg')\n"
        "import matplotlib\n"
        "print(matplotlib.rcParams['lines.linewidth'])\n"
    )
    command = [sys.executable, "-c", code, str(run.absolute())]
    done = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=True
    )
    assert (tmp_path / "a.svg").exists()
    assert float(done.stdout) < 77


def test_several_matrices_of_a_round_are_drawn_together(tmp_path: Path) -> None:
    parts = [[0, 1], [2, 3], [4, 5], [6, 7]]
    splits = [
        note("split", [0, 1, 2, 3], parts[:2], similarity="similarity/a.safetensors"),
        note("split", [4, 5, 6, 7], parts[2:], similarity="similarity/b.safetensors"),
    ]
    run = write(tmp_path / "run", [line(1, [[0, 1, 2, 3], [4, 5, 6, 7]]), line(2, parts, *splits)])
    matrices(run, "a.safetensors", [0, 1, 2, 3], all=cosines([0, 0, 1, 1]))
    matrices(run, "b.safetensors", [4, 5, 6, 7], all=cosines([0, 0, 1, 1]))
    titles = [
        one.get_title() for one in figure(gather(run), "similarity", 2).axes if one.get_title()
    ]
    assert titles == ["round 2, 4 clients", "round 2, 4 clients"]


def test_a_strip_has_a_dot_for_each_client_in_the_colour_of_its_curve(tmp_path: Path) -> None:
    from coterie.report.compared import same_but_seed
    from coterie.report.figures import clients

    folders = []
    for method in ("cfl", "fedavg"):
        for seed in (0, 1):
            lines = [line(1, [[0, 1, 2]])]
            for client, entry in lines[0]["clients"].items():
                entry["accuracy"] = (int(client) + 1) * (0.1 + 0.1 * seed)
                entry["loss"] = 2.0
            folders.append(write(tmp_path / f"{method}{seed}", lines, method, seed=seed))
    axes = clients.figure(same_but_seed(map(coterie.summary, folders))).axes[0]
    assert [label.get_text() for label in axes.get_yticklabels()] == ["cfl", "fedavg"]
    cfl, _, fedavg, _ = axes.collections
    # The mean of both seeds.
    np.testing.assert_allclose(cfl.get_offsets()[:, 0], [0.15, 0.3, 0.45])
    assert mcolors.to_hex(cfl.get_facecolor()[0]).upper() == COLOURS[0]
    assert mcolors.to_hex(fedavg.get_facecolor()[0]).upper() == COLOURS[1]
    # Any metric; equal scores are beside each other.
    summaries = [coterie.summary(folder, metric="loss") for folder in folders[:1]]
    (dots, _) = clients.figure(same_but_seed(summaries)).axes[0].collections
    assert set(dots.get_offsets()[:, 0]) == {2.0}
    assert len(set(dots.get_offsets()[:, 1])) == 3
    assert coterie.plot(folders, "clients", tmp_path / "clients.svg", metric="loss").exists()
    with pytest.raises(
        UserError, match="--metric is for score, time and clients, and not for groups"
    ):
        coterie.plot(folders[0], "groups", tmp_path / "no.svg", metric="loss")


def test_a_partition_has_a_bar_for_each_client_in_parts_of_its_classes() -> None:
    from coterie.report.figures import partition

    labels = [[0, 0, 0, 2, 2], [1, 1, 1, 1, 2], [0, 1, 2, 2, 2]]
    world = coterie.from_lists(
        {
            name: {"train": (np.ones((5, 2), "f"), np.array(y))}
            for name, y in zip("abc", labels, strict=True)
        }
    )
    axes = partition.figure(world).axes[0]
    heights = [[bar.get_height() for bar in part] for part in axes.containers]
    targets = [data.train.targets.tolist() for data in world.clients.values()]
    assert heights == [[client.count(label) for client in targets] for label in (0, 1, 2)]
    assert sum(map(sum, heights)) == sum(map(len, targets))
    assert [label.get_text() for label in axes.get_xticklabels()] == ["a", "b", "c"]
    assert [part.get_label() for part in axes.containers] == ["0", "1", "2"]
    many = coterie.from_lists([(np.ones((30, 2), "f"), np.arange(30) % 15)])
    (matrix, _) = partition.figure(many).axes
    assert matrix.images[0].get_array().shape == (15, 1)
    numbers = coterie.from_lists([(np.ones((9, 2), "f"), np.linspace(0, 1, 9))])
    with pytest.raises(UserError, match="labels are counted of one class per example"):
        partition.figure(numbers)


def few_examples(client: int, generator: np.random.Generator) -> tuple[np.ndarray, ...]:
    """Two training examples and a test example of a client made on demand."""
    inputs = generator.normal(size=(3, 2)).astype("f")
    return inputs[:2], np.array([0, client % 3]), inputs[2:], np.array([2])


def test_a_partition_of_a_million_clients_draws_and_makes_few_of_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from coterie.report.figures import partition

    world = coterie.from_function(few_examples, 1_000_000, model="linear", classes=3)
    axes = partition.figure(world).axes[0]
    assert len(axes.patches) == 3 * 100
    assert axes.get_xlabel() == "100 of 1,000,000 clients"
    # Of data that are in memory there are bars for all, up to a number.
    monkeypatch.setattr(partition, "MAX_CLIENTS_DRAWN", 3)
    examples = [([[0.0]] * 4, [client % 2] * 4) for client in range(7)]
    seven = coterie.from_lists(examples, model="linear", classes=2)
    assert sorted(partition.drawn_clients(seven).clients) == [0, 3, 6]
    three = coterie.from_lists(examples[:3], model="linear", classes=2)
    assert sorted(partition.drawn_clients(three).clients) == [0, 1, 2]


def test_a_partition_of_a_scenario_a_file_or_a_run_is_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("experiment.toml").write_text('scenario = "synthetic/groups"\nmethods = ["cfl"]\n')
    run = [
        "--scenario",
        "synthetic/groups",
        "--method",
        "fedavg",
        "--rounds",
        "1",
        "--workers",
        "1",
    ]
    assert main(["run", *run, "--out", "run"]) == 0
    files = []
    for source in ("synthetic/groups", "experiment.toml", "run"):
        files.append(Path(f"{source.partition('/')[0]}.svg"))
        assert main(["plot", source, "partition", "-o", str(files[-1])]) == 0
    drawings = [file.read_bytes() for file in files]
    assert drawings[0] == drawings[1] == drawings[2]
    world = coterie.SCENARIOS["synthetic/groups"].build(0)
    assert coterie.plot(world, "partition", "world.svg").read_bytes() == drawings[0]
    # A world of Python has to be given again.
    coterie.begin(world, "own", "fedavg", rounds=1, workers=1).finish()
    capsys.readouterr()
    assert main(["plot", "own", "partition", "-o", "no.svg"]) == 2
    assert "draw that, coterie.plot(world, 'partition', FILE)" in capsys.readouterr().err
    assert main(["plot", "digits/iidd", "partition", "-o", "no.svg"]) == 2
    assert "did you mean digits/iid?" in capsys.readouterr().err
    assert not Path("no.svg").exists()
