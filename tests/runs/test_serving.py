"""Exports in use: calibration, predictions for files, the default model, cards, and groups for new sites."""

import json
import math
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy
import torch

import coterie
from coterie.cli import main
from coterie.randomness import seeded
from coterie.records.checksum import sealed_json
from coterie.runs.calibration import best_temperature, calibration_error
from coterie.runs.experiment import make
from coterie.runs.folders import begin
from coterie.runs.group_profiles import SiteMoments, group_profiles
from coterie.runs.loading import read_document
from coterie.runs.model_cards import mean_interval, wilson_interval
from coterie.runs.placing import Placement
from coterie.runs.run import Run
from coterie.runs.served_facts import constant_losses
from coterie.runs.site_moments import fitted_description, with_spread
from coterie.settings import UserError
from coterie.training.outputs import CLASS_LOGITS, LABEL_LOGITS

# ----------------------------------------------------------------------------------------------------
# Arithmetic, from the definitions.


@seeded(0)
def test_the_temperature_undoes_overconfidence() -> None:
    logits = torch.randn(4000, 3)
    classes = torch.multinomial(logits.softmax(1), 1)[:, 0]
    assert best_temperature(CLASS_LOGITS, 3 * logits, classes) == pytest.approx(3, rel=0.1)
    labels = torch.bernoulli(logits.sigmoid())
    assert best_temperature(LABEL_LOGITS, 2 * logits, labels) == pytest.approx(2, rel=0.1)
    before = calibration_error(CLASS_LOGITS, 3 * logits, classes, 1)
    assert calibration_error(CLASS_LOGITS, 3 * logits, classes, 3) < 0.3 * before


@seeded(1)
def test_the_calibration_error_is_that_of_its_definition() -> None:
    logits = torch.randn(50, 4)
    classes = torch.randint(4, (50,))
    probabilities, predictions = logits.double().softmax(1).max(1)
    expected = 0.0
    for number in range(15):
        in_bin = (probabilities >= number / 15) & (probabilities < (number + 1) / 15)
        if in_bin.any():
            right = (predictions == classes)[in_bin].double().mean()
            expected += float(in_bin.sum() / 50 * (right - probabilities[in_bin].mean()).abs())
    assert calibration_error(CLASS_LOGITS, logits, classes, 1) == pytest.approx(expected)


def test_intervals_of_scores() -> None:
    low, high = wilson_interval(0.9, 100)
    # The ends are the shares from which 0.9 is 1.96 standard errors away.
    for end in (low, high):
        assert abs(0.9 - end) == pytest.approx(1.96 * math.sqrt(end * (1 - end) / 100))
    assert wilson_interval(1.0, 5)[1] == 1
    interval = mean_interval([0.8, 0.9, 1.0])
    assert interval is not None
    assert interval[0] == pytest.approx(0.6516, abs=1e-4)
    assert mean_interval([0.8]) is None


def test_the_constant_prediction_of_a_row_does_not_know_the_row() -> None:
    shares = [0.5, 0.3, 0.2]
    losses = constant_losses(np.array([0, 0, 2]), shares)
    assert losses == pytest.approx([-math.log(1.5 / 3), -math.log(1.5 / 3), -math.log(0.2 / 3)])
    assert constant_losses(np.array([1]), shares) == pytest.approx([-math.log(0.3)])


def moments(means: list[float], rows: float, variance: float = 1.0) -> SiteMoments:
    size = len(means)
    return SiteMoments(np.array(means), np.full(size, variance), np.full(size, rows))


def test_probabilities_of_groups_are_those_of_the_hierarchy() -> None:
    client_means = [[0.0, 1.0, -1.0], [4.0, 6.0]]
    profiles = group_profiles([[moments([mean], 10) for mean in means] for means in client_means])
    normal = scipy.stats.norm.pdf
    # The variance between clients, by its prior and the density of the clients' means.
    ratios = np.geomspace(0.01, 1, 25)
    weights = []
    for ratio in ratios:
        weight = math.sqrt(ratio) * scipy.stats.halfcauchy.pdf(math.sqrt(ratio), scale=0.25)
        for means in client_means:
            # The integral over their centre, which may lie anywhere.
            deviation = math.sqrt(ratio + 0.1)
            centres = np.linspace(-10, 16, 2001)
            densities = np.prod([normal(mean, centres, deviation) for mean in means], axis=0)
            weight *= densities.sum() * (centres[1] - centres[0])
        weights.append(weight)
    assert profiles.between_weights[:, 0] == pytest.approx(np.array(weights) / sum(weights))
    # The density of a site's mean of 5 rows, by integration over the centre of its group.
    known_centres = np.array([0.0, 5.0])
    overall = known_centres.mean()
    spread = (1 + 2 * 2.5**2) / 2 * (1 + 1 / 2)
    centres = np.linspace(-30, 35, 4001)
    densities = np.zeros(3)
    for ratio, weight in zip(ratios, profiles.between_weights[:, 0], strict=True):
        of_site = normal(1.5, centres, math.sqrt(ratio + 1 / 5))
        for group in range(3):
            of_centre = normal(centres, overall, math.sqrt(spread))
            if group < 2:
                clients = len(client_means[group])
                error = math.sqrt((ratio + 0.1) / clients)
                of_centre = of_centre * normal(known_centres[group], centres, error)
            densities[group] += weight * (of_centre * of_site).sum() / of_centre.sum()
    # With one number, the power is 1.
    assert profiles.powers == pytest.approx([1])
    expected = densities * [3 / 6, 2 / 6, 1 / 6]
    site = moments([1.5], 5)
    assert profiles.probabilities(site) == pytest.approx(expected / expected.sum(), rel=1e-6)


def test_more_rows_make_a_placement_surer_and_what_is_like_none_is_none() -> None:
    rng = np.random.default_rng(0)
    groups = []
    for centre in (0.0, 2.0):
        groups.append([moments(list(centre + rng.normal(0, 0.2, 2)), 30) for _ in range(6)])
    profiles = group_profiles(groups)
    assert profiles.accuracy == 1
    chances = [profiles.probabilities(moments([0.1] * 2, rows))[0] for rows in (1, 5, 100)]
    assert chances == sorted(chances)
    assert chances[0] < 0.95 < chances[2]
    assert profiles.probabilities(moments([9.0] * 2, 30)).argmax() == 2


def test_groups_that_do_not_differ_are_not_told_apart() -> None:
    rng = np.random.default_rng(1)
    groups = [[moments(list(rng.normal(0, 1, 8)), 30) for _ in range(8)] for _ in range(2)]
    profiles = group_profiles(groups)
    for _ in range(20):
        assert profiles.probabilities(moments(list(rng.normal(0, 1, 8)), 30)).max() < 0.9


@pytest.mark.parametrize(
    ("probabilities", "none", "accuracy", "expected"),
    [
        ([0.6, 0.3], 0.1, 0.9, 0),
        # Naming the group of 3 of the 5 clients would be right as often, and was as likely before.
        ([0.6, 0.3], 0.1, 0.6, None),
        # The odds of the group of 2 clients were 2 to 4, and are more than 3 to 2, and 1 to 1.
        ([0.28, 0.62], 0.1, 0.2, 1),
        ([0.4, 0.5], 0.1, 0.2, None),
        ([0.3, 0.6], 0.1, 0.61, 1),
        # Sure of this site, though not of the training clients.
        ([0.97, 0.02], 0.01, 0.2, 0),
        ([0.2, 0.3], 0.5, 0.9, None),
    ],
)
def test_the_group_to_use_is_one_that_can_be_told(
    probabilities: list[float], none: float, accuracy: float, expected: int | None
) -> None:
    groups: list[dict[str, Any]] = [
        {"group": number, "clients": clients, "probability": probability}
        for number, (clients, probability) in enumerate(zip((3, 2), probabilities, strict=True))
    ]
    placement = Placement(groups, none, 40, "inputs", accuracy, None)
    assert placement.group_to_use == expected


@seeded(2)
def test_rows_are_described_by_principal_components() -> None:
    inputs = torch.randn(200, 6) * torch.tensor([5.0, 3.0, 1.0, 1.0, 1.0, 1.0])
    net = torch.nn.Linear(6, 2)
    description = fitted_description([net], [inputs[:100], inputs[100:]])
    numbers = description.numbers([net], inputs)
    # They are uncorrelated over the rows from which they come, each with variance 1.
    assert np.cov(numbers.T, bias=True) == pytest.approx(np.eye(numbers.shape[1]), abs=1e-3)
    # The expected logarithm of the variance of few rows is that of many.
    few = [with_spread(numbers[start : start + 4]).means[-6:] for start in range(0, 200, 4)]
    many = with_spread(numbers).means[-6:]
    assert np.mean(few, 0) == pytest.approx(many, abs=0.6)


# ----------------------------------------------------------------------------------------------------
# An export in use.

NAMES = ["age", "pressure", "rate"]


def table(rows: int, flipped: bool, seed: int) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    values = rng.normal(100, 15, (rows, 3))
    ill = ((values - 100) @ [1.0, -1.0, 0.5] > 0) != flipped
    columns: dict[str, Any] = dict(zip(NAMES, values.T, strict=True))
    return {**columns, "finding": np.where(ill, "yes", "no")}


def write_csv(path: Path, columns: dict[str, Any], without: tuple[str, ...] = ()) -> None:
    names = [name for name in columns if name not in without]
    lines = [",".join(names)]
    for number in range(len(columns["age"])):
        lines.append(",".join(str(columns[name][number]) for name in names))
    path.write_text("\n".join(lines) + "\n")


@pytest.fixture(scope="module")
def export(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An export of six sites, of which the last two code the finding the other way."""
    folder = tmp_path_factory.mktemp("sites")
    parts = []
    for number, name in enumerate("ABCDEF"):
        columns = table(200, name > "D", number)
        parts.append({"site": [name] * 200, **columns})
    frame = {key: np.concatenate([part[key] for part in parts]) for key in parts[0]}
    world = coterie.from_frame(
        frame,
        client="site",
        target="finding",
        standardize="pooled",
        model="linear",
        training=coterie.Training(lr=0.5, batch=20, epochs=3),
    )
    (run,) = coterie.begin(
        world, folder / "run", [coterie.METHODS["cfl"](split_rounds=(2,))], rounds=5, workers=1
    )
    for _ in run.rounds():
        pass
    return coterie.save(run, folder / "models")


def test_an_export_says_what_its_models_are(export: Path) -> None:
    about = json.loads((export / "models.json").read_text())
    assert about["groups"] == [["A", "B", "C", "D"], ["E", "F"]]
    assert about["default"] == {
        "name": "group-0",
        "group": 0,
        "files": ["group-0.safetensors"],
    }
    assert about["outputs"] == "classes"
    assert about["torch"] == torch.__version__
    entry = about["calibration"]["group-1.safetensors"]
    assert entry["rows"] == 40
    assert entry["shared"]
    assert entry["test_rows"] == 40
    assert entry["loss_after"] <= entry["loss_before"] + 0.02
    scores = about["scores"]
    assert scores["metric"] == "accuracy"
    assert len(scores["groups"]) == 2
    accuracy = scores["clients"]["A"]["metrics"]["accuracy"]
    assert scores["clients"]["A"]["interval"] == list(wilson_interval(accuracy, 20))
    card = (export / "card-1.md").read_text()
    for text in ("| `E` | 160 | 20 | 20 |", "`split_rounds = [2]`", "95% interval", "temperature"):
        assert text in card
    assert not coterie.check(export).damaged
    (copy := export.parent / "edited").mkdir()
    for file in export.iterdir():
        (copy / file.name).write_bytes(file.read_bytes())
    (copy / "card-0.md").write_text("better")
    assert coterie.check(copy).damaged


def test_predictions_of_a_table_are_those_of_the_net(export: Path, tmp_path: Path) -> None:
    columns = table(30, True, 9)
    # Columns may come in any order, with others between.
    write_csv(tmp_path / "new.csv", {"note": ["x"] * 30, **dict(reversed(columns.items()))})
    predictions = coterie.predict(export, tmp_path / "new.csv", client="F")
    about = json.loads((export / "models.json").read_text())
    values = np.stack([columns[name] for name in about["data"]["features"]], 1)
    scaled = (values - about["data"]["means"]) / about["data"]["deviations"]
    temperature = about["calibration"]["group-1.safetensors"]["temperature"]
    net = coterie.load(export, "F")
    expected = (net(torch.tensor(scaled, dtype=torch.float32)) / temperature).softmax(1)
    assert predictions.values == pytest.approx(expected.detach().numpy(), abs=1e-5)
    assert predictions.names == ["no", "yes"]
    assert predictions.is_calibrated
    assert np.mean(np.array(predictions.classes) == columns["finding"]) > 0.85
    # The group's model is the client's, and the default model is that of the largest group.
    assert coterie.predict(export, tmp_path / "new.csv", group=1).classes == predictions.classes
    default = coterie.predict(export, tmp_path / "new.csv")
    assert default.classes == coterie.predict(export, tmp_path / "new.csv", "A").classes
    np.save(tmp_path / "new.npy", values)
    of_array = coterie.predict(export, tmp_path / "new.npy", "F")
    assert of_array.values == pytest.approx(predictions.values, abs=1e-5)


def test_the_command_predict(
    export: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_csv(tmp_path / "new.csv", table(3, False, 9))
    out = tmp_path / "out.csv"
    assert main(["predict", str(export), str(tmp_path / "new.csv"), "-o", str(out)]) == 0
    assert "3 predictions written" in capsys.readouterr().out
    header, *lines = out.read_text().splitlines()
    assert header == "no,yes,prediction"
    assert len(lines) == 3
    command = ["predict", str(export), str(tmp_path / "new.csv"), "--client", "B", "--json"]
    assert main(command) == 0
    rows = json.loads(capsys.readouterr().out)
    assert rows[0]["no"] + rows[0]["yes"] == pytest.approx(1)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        ({"client": "G"}, "no model for client 'G'.*default model"),
        ({"group": 7}, r"no model of group 7 \(known: 0, 1\)"),
        ({"client": "A", "group": 0}, "only one of client and group"),
    ],
)
def test_a_model_that_there_is_not(
    export: Path, tmp_path: Path, call: dict[str, Any], words: str
) -> None:
    write_csv(tmp_path / "new.csv", table(3, False, 9))
    with pytest.raises(UserError, match=words):
        coterie.predict(export, tmp_path / "new.csv", **call)


def test_files_that_do_not_fit_are_refused(export: Path, tmp_path: Path) -> None:
    columns = table(3, False, 9)
    write_csv(tmp_path / "lacks.csv", columns, without=("rate",))
    with pytest.raises(UserError, match="lacks 1 of the 3 columns of the model: rate"):
        coterie.predict(export, tmp_path / "lacks.csv")
    write_csv(tmp_path / "gap.csv", {**columns, "age": ["50", "", "60"]})
    with pytest.raises(
        UserError, match="age must have a number in each row, and row 3 has nothing"
    ):
        coterie.predict(export, tmp_path / "gap.csv")
    np.save(tmp_path / "wide.npy", np.zeros((2, 4)))
    with pytest.raises(UserError, match=r"rows of shape \[4\], and the model takes .* \[3\]"):
        coterie.predict(export, tmp_path / "wide.npy")
    np.save(tmp_path / "objects.npy", np.array([{}], object), allow_pickle=True)
    with pytest.raises(UserError, match=r"not a readable \.npy file"):
        coterie.predict(export, tmp_path / "objects.npy")
    (tmp_path / "a.txt").write_text("1")
    with pytest.raises(UserError, match=r"must be a \.csv, \.csv\.gz, \.npz or \.npy file"):
        coterie.predict(export, tmp_path / "a.txt")
    write_csv(tmp_path / "classes.csv", {**columns, "finding": ["yes", "no", "maybe"]})
    with pytest.raises(
        UserError, match="row 4 has the class 'maybe', which the model does not know"
    ):
        coterie.place(export, tmp_path / "classes.csv", labels="finding")
    with pytest.raises(UserError, match="no column 'findings'; did you mean finding"):
        coterie.place(export, tmp_path / "classes.csv", labels="findings")


def test_labels_place_a_site_where_inputs_cannot(
    export: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for flipped in (False, True):
        write_csv(tmp_path / "site.csv", table(40, flipped, 20))
        placement = coterie.place(export, tmp_path / "site.csv", labels="finding")
        assert placement.best == int(flipped)
        assert placement.groups[flipped]["probability"] > 0.9
        assert placement.groups[flipped]["loss"] < placement.groups[not flipped]["loss"]
    # The rows without a label are left out; with few labels it is less sure.
    columns = table(40, True, 20)
    columns["finding"] = ["", *columns["finding"][1:3], *[""] * 37]
    write_csv(tmp_path / "few.csv", columns)
    few = coterie.place(export, tmp_path / "few.csv", labels="finding")
    assert few.rows == 2
    assert few.groups[1]["probability"] < placement.groups[1]["probability"]
    # Both groups have the same inputs.
    unlabelled = coterie.place(export, tmp_path / "site.csv")
    assert max(entry["probability"] for entry in unlabelled.groups) < 0.95
    assert unlabelled.best is not None
    assert unlabelled.group_to_use is None
    assert "cannot be told apart" in unlabelled.verdict()
    assert placement.group_to_use == 1
    # Findings that no column tells are like no group.
    write_csv(tmp_path / "odd.csv", {**columns, "finding": ["yes", "no"] * 20})
    assert coterie.place(export, tmp_path / "odd.csv", labels="finding").best is None
    assert main(["place", str(export), str(tmp_path / "odd.csv"), "--labels", "finding"]) == 0
    assert "like the clients of no group" in capsys.readouterr().out


def test_a_site_is_like_others_at_which_the_model_is_no_better_than_a_constant(
    tmp_path: Path,
) -> None:
    pd = pytest.importorskip("pandas", reason="pandas is not installed")
    rng = np.random.default_rng(0)

    # No column tells who is late, and sites differ in how many are.
    def site(name: str, rows: int, share: float) -> Any:
        frame = pd.DataFrame(rng.normal(size=(rows, 8)), columns=list("stuvwxyz"))
        return frame.assign(site=name, late=np.where(rng.random(rows) < share, "yes", "no"))

    shares = rng.uniform(0.05, 0.6, 10)
    sites = [site(name, 300, share) for name, share in zip("ABCDEFGHIJ", shares, strict=True)]
    world = coterie.from_frame(pd.concat(sites), client="site", target="late")
    (run,) = coterie.begin(world, tmp_path / "run", ["fedavg"], rounds=5).finish()
    export = coterie.save(run, tmp_path / "models")
    facts = json.loads((export / "models.json").read_text())["placement"]
    assert facts["constant_is_better"][0] > 0.5
    # So it is no sign that a site is like none of them.
    probabilities = []
    worse_at = 0
    for share in rng.uniform(0.05, 0.6, 10):
        site("new", 40, share).to_csv(tmp_path / "new.csv", index=False)
        placement = coterie.place(export, tmp_path / "new.csv", labels="late")
        probabilities.append(placement.groups[0]["probability"])
        worse = placement.constant_loss < placement.groups[0]["loss"]
        assert ("than a constant prediction" in placement.verdict()) == worse
        worse_at += worse
    assert min(probabilities) > 0.6
    assert worse_at >= 3


def test_an_export_of_an_earlier_version_is_loaded(export: Path, tmp_path: Path) -> None:
    for file in export.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    about = json.loads((tmp_path / "models.json").read_text())
    later = ("torch", "group_models", "default", "outputs", "scores", "calibration", "placement")
    for entry in (*later, "without_data", "cards", "checksum"):
        del about[entry]
    document = json.dumps(about).encode()
    (tmp_path / "models.json").write_bytes(sealed_json(document) + b"\n")
    assert read_document(tmp_path)["calibration"] == {}
    write_csv(tmp_path / "new.csv", table(3, False, 9))
    predictions = coterie.predict(tmp_path, tmp_path / "new.csv", "A")
    assert not predictions.is_calibrated
    assert predictions.names == ["no", "yes"]
    with pytest.raises(UserError, match="has no default model; name a client"):
        coterie.load(tmp_path)
    with pytest.raises(UserError, match=r"cannot place a site by inputs: .* earlier version"):
        coterie.place(tmp_path, tmp_path / "new.csv")


# ----------------------------------------------------------------------------------------------------
# How many sites come into their own group, measured on sites that never trained.


def stopped(folder: Path, scenario: str, rounds: int = 15) -> Run:
    """A run that is stopped before 12 of 28 clients join: sites that nobody has seen."""
    document = {
        "scenario": {
            "name": scenario,
            "clients": 28,
            "newcomers": 12,
            "join_round": rounds + 1,
        },
        "methods": [{"name": "split-half"}],
        "rounds": rounds + 1,
        "workers": 1,
        "eval_every": rounds,
    }
    (run,) = begin(make(document), folder)
    for finished_round in run.rounds():
        if finished_round.number == rounds:
            break
    return run


def placed(run: Run, folder: Path, rows: int, labels: str | None) -> tuple[int, int, float]:
    """(sites that come into the group of their true group, sites, share of their mean probability there)."""
    export = coterie.save(run, folder / f"models-{run.folder.name}")
    world = run.experiment.world(run.seed)
    assert world.truth is not None
    groups = json.loads((export / "models.json").read_text())["groups"]
    true_group = {c: number for number, group in enumerate(world.truth) for c in group}
    trained = {client for group in groups for client in group}
    # The found groups are the true ones, or this test says nothing.
    group_of_truth = {}
    for number, group in enumerate(groups):
        assert len({true_group[client] for client in group}) == 1
        group_of_truth[true_group[group[0]]] = number
    right = 0
    chance = 0.0
    sites = sorted(set(world.clients) - trained)
    for site in sites:
        split = world.clients[site].train
        inputs, targets = split.batch(torch.arange(min(rows, len(split))))
        np.savez(folder / "site.npz", x=inputs.numpy(), y=np.asarray(targets))
        placement = coterie.place(export, folder / "site.npz", labels=labels)
        wanted = group_of_truth[true_group[site]]
        right += placement.best == wanted
        chance += placement.groups[wanted]["probability"]
    return right, len(sites), chance / len(sites)


@pytest.mark.slow
def test_unseen_sites_are_placed_by_labels_where_labels_differ(tmp_path: Path) -> None:
    run = stopped(tmp_path / "run", "digits/label-permutation")
    right, sites, chance = placed(run, tmp_path, rows=5, labels="y")
    assert sites == 12
    assert right >= 11
    assert chance > 0.9
    (tmp_path / "models-run").rename(tmp_path / "first")
    # All groups have the same inputs: the prior says how sure one can be.
    _, _, chance = placed(run, tmp_path, rows=40, labels=None)
    assert chance < 0.4


@pytest.mark.slow
def test_unseen_sites_are_placed_without_labels_where_inputs_differ(tmp_path: Path) -> None:
    run = stopped(tmp_path / "run", "digits/rotation")
    right, sites, chance = placed(run, tmp_path, rows=40, labels=None)
    assert sites == 12
    assert right >= 11
    assert chance > 0.9
    (tmp_path / "models-run").rename(tmp_path / "first")
    # Fewer rows are right less often, and say so.
    right, _, chance = placed(run, tmp_path, rows=5, labels=None)
    assert right >= 8
    assert chance < 0.95
    np.savez(tmp_path / "noise.npz", x=np.random.default_rng(0).random((30, 1, 8, 8)))
    assert coterie.place(tmp_path / "first", tmp_path / "noise.npz").best is None


@pytest.mark.slow
def test_an_onnx_file_predicts_what_the_export_predicts(export: Path, tmp_path: Path) -> None:
    runtime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    file = coterie.to_onnx(export, tmp_path / "site.onnx", client="F")
    columns = table(30, True, 9)
    write_csv(tmp_path / "new.csv", columns)
    expected = coterie.predict(export, tmp_path / "new.csv", client="F").values
    names = json.loads((export / "models.json").read_text())["data"]["features"]
    values = np.stack([columns[name] for name in names], 1).astype(np.float32)
    session = runtime.InferenceSession(file, providers=["CPUExecutionProvider"])
    (probabilities,) = session.run(None, {"inputs": values})
    assert probabilities == pytest.approx(expected, abs=1e-5)


def test_without_onnx_one_sentence_says_what_to_install(
    export: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(UserError, match=r"to_onnx needs pip install 'coterie\[onnx\]'"):
        coterie.to_onnx(export, tmp_path / "site.onnx")
    assert not list(tmp_path.iterdir())


def test_rows_in_another_unit_are_told(
    export: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    columns = table(4, False, 9)
    columns["pressure"] = columns["pressure"] / 7.5
    columns["age"][2] = 1e30
    write_csv(tmp_path / "unit.csv", columns)
    found = coterie.predict(export, tmp_path / "unit.csv")
    (caution,) = found.cautions
    assert "age is more than 10 standard deviations" in caution
    assert "in 1 of 4 rows, such as 1e+30" in caution
    columns["age"][2] = 100
    columns["pressure"] = columns["pressure"] * 100
    write_csv(tmp_path / "unit.csv", columns)
    placement = coterie.place(export, tmp_path / "unit.csv", labels="finding")
    assert ["pressure" in caution for caution in placement.cautions] == [True]
    capsys.readouterr()
    assert main(["predict", str(export), str(tmp_path / "unit.csv")]) == 0
    assert "pressure is more than 10 standard deviations" in capsys.readouterr().err
    write_csv(tmp_path / "usual.csv", table(30, False, 9))
    assert coterie.predict(export, tmp_path / "usual.csv").cautions == ()
