"""The screen that explains a run: what was decided, how sure that is, what is open, from hand-made and from trained records."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import coterie
from coterie.records.record import Record
from coterie.report.candidates import Candidates, candidates
from coterie.report.explain import WIDTH, explain, words
from coterie.report.screen import MAX_LINES, QUANTILES, lines
from coterie.runs.experiment import make
from page_runs import line, note, write

RACE = {"name": "race", "methods": ["fedavg", "split-half", "independent"], "patience": 10}

EVERYONE = [[0, 1, 2, 3]]

GROUPS = [[0, 1], [2, 3]]


def numbers(**differences: tuple[float, float]) -> dict[str, float]:
    """Differences and standard errors of pairs, such as ``fedavg__independent``, as a note has them."""
    recorded = {}
    for pair, (difference, error) in differences.items():
        pair_in_words = pair.replace("__", " less ").replace("_", "-")
        recorded[f"loss of {pair_in_words}"] = difference
        recorded[f"standard error of {pair_in_words}"] = error
    return recorded


def standing(reports: int, **differences: tuple[float, float]) -> dict[str, Any]:
    labels = {"held-out examples": 180, "reports of each client": reports}
    return note("standing", [], effect="info", numbers=numbers(**differences), labels=labels)


def lead(arm: int, **differences: tuple[float, float]) -> dict[str, Any]:
    return note("lead", [0, 1, 2, 3], numbers=numbers(**differences), labels={"arm": arm})


def drop(key: str, difference: float, **differences: tuple[float, float]) -> dict[str, Any]:
    criterion = {
        "name": "", "value": 1.0, "sign": ">", "bound": 0.0, "setting": "", "met": "", "unmet": "",
        "key": key, "held": True,
    }  # fmt: skip
    its_numbers = {"difference": difference, **numbers(**differences)}
    return note("drop", [0, 1, 2, 3], numbers=its_numbers, criteria=[criterion])


def shown(rounds: Sequence[Sequence[Mapping[str, Any]]]) -> Candidates:
    records = [line(number, EVERYONE, *notes) for number, notes in enumerate(rounds, start=1)]
    found = candidates(RACE, records)
    assert found is not None
    return found


def test_each_candidate_has_its_last_difference_and_its_end() -> None:
    both = {"fedavg__split_half": (0.3, 0.1), "split_half__independent": (-0.5, 0.1)}
    later = {"fedavg__split_half": (0.02, 0.04)}
    local = drop("held_out_loss", -0.5, **both)
    found = shown([[standing(1, **both), lead(1, **both), local], [standing(2, **later)]])
    assert (found.in_use, found.lead_rounds, found.is_local) == ("groups (split-half)", [1], False)
    one_model, alone = found.compared
    assert (one_model.rival, one_model.gain, one_model.error) == ("one model (fedavg)", 0.02, 0.04)
    assert (one_model.round, one_model.end, one_model.num_examples) == (2, "", 180)
    # The loss of the groups less that of local models is -0.5: groups are better by 0.5.
    assert (alone.rival, alone.gain, alone.round) == ("local models (independent)", 0.5, 1)
    assert (alone.end, alone.is_decided) == ("evidence", True)
    assert found.open_comparisons == [one_model]


def test_a_difference_is_decided_by_as_many_examples_as_its_standard_error_needs() -> None:
    (one_model, _) = shown(
        [[standing(1, fedavg__independent=(-0.1, 0.02), fedavg__split_half=(-0.02, 0.04))]]
    ).compared
    needed = one_model.examples_needed
    assert needed == 180 * 4**2
    # With so many, the standard error is half of the difference.
    assert one_model.error * math.sqrt(180 / needed) == pytest.approx(abs(one_model.gain) / 2)


@pytest.mark.parametrize(
    ("difference", "sureness"),
    [(0.01, "no more than chance"), (0.05, "likely, but may be chance"), (0.1, "beyond chance"), (0.2, "clear")],
)  # fmt: skip
def test_how_sure_a_difference_is(difference: float, sureness: str) -> None:
    found = shown([[standing(1, fedavg__split_half=(-difference, 0.04))]])
    assert [compared.sureness for compared in found.compared] == [sureness]
    assert found.same_models == ["local models (independent)"]


def test_candidates_that_differ_from_a_third_one_alone_have_the_same_models() -> None:
    """FedAvg and split-half without groups train the same model, so only training alone is compared with it."""
    pairs = {"fedavg__independent": (-0.8, 0.1), "split_half__independent": (-0.8, 0.1)}
    found = shown([[standing(1, **pairs), drop("held_out_loss", -0.8, **pairs)], []])
    assert found.same_models == ["groups (split-half)"]
    assert [(each.rival, each.gain) for each in found.compared] == [("local models (independent)", 0.8)]  # fmt: skip


def test_rounds_to_the_end_are_those_at_the_rate_of_the_reports() -> None:
    pair = {"fedavg__split_half": (0.0, 0.04)}
    # Two reports in three rounds: 20 reports need 18 more, so 27 more rounds.
    found = shown([[standing(reports, **pair)] for reports in (0, 1, 1, 2)])
    assert (found.reports, found.reports_to_end, found.rounds_to_end) == (2, 20, 27)
    # Once clients hold nothing out, nothing is open.
    settled = shown([[standing(20, **pair)], []])
    assert (settled.rounds_to_end, settled.compared[0].end) == (None, "time")


def test_other_methods_and_records_without_differences_have_no_candidates() -> None:
    assert candidates({"name": "fedavg", "fraction": 1.0}, [line(1, EVERYONE)]) is None
    assert candidates({"name": "not a method"}, [line(1, EVERYONE)]) is None
    # A record that names code: reading it imports nothing.
    code = {"name": "race", "methods": ["fedavg", "a_module_of_a_stranger:Method"], "patience": 10}
    assert candidates(code, [line(1, EVERYONE)]) is None
    assert candidates({"name": "auto", "class": "a_module:Auto"}, [line(1, EVERYONE)]) is None
    found = shown([[]])
    assert (found.compared, found.in_use) == ([], "one model (fedavg)")


def experiment(folder: Path, seeds: Sequence[int] = (0,)) -> Path:
    """FedAvg, training alone and auto over four clients with 10, 10, 10 and 70 test examples."""
    scores = {"auto": (0.9, 0.8, 0.9, 0.7), "fedavg": (0.8, 0.8, 0.8, 0.8), "independent": (0.7, 0.6, 0.6, 0.6)}  # fmt: skip
    pair = {
        "tuned_fedavg__tuned_split_half": (0.05, 0.05),
        "tuned_split_half__independent": (-0.5, 0.1),
    }
    for method, values in scores.items():
        for seed in seeds:
            race_notes = [standing(1, **pair), lead(1, **pair)] if method == "auto" else []
            made = line(1, GROUPS if method == "auto" else EVERYONE, *race_notes)
            for client, value in enumerate(values):
                made["clients"][str(client)]["accuracy"] = value
            write(
                folder / f"{method}-seed{seed}", [made], method, seed=seed, tests=[10, 10, 10, 70]
            )
    return folder / "auto-seed0"


def test_the_means_quantiles_and_worst_client_are_those_of_the_tests(tmp_path: Path) -> None:
    scores = explain(experiment(tmp_path))["screen"]["scores"]
    assert (scores["metric"], scores["round"], scores["tests"]) == ("accuracy", 1, 100)
    auto, fedavg, alone = scores["rows"]
    values = np.array([0.9, 0.8, 0.9, 0.7])
    assert auto["by_clients"] == pytest.approx(values.mean())
    assert auto["by_examples"] == pytest.approx(values @ [0.1, 0.1, 0.1, 0.7])
    assert auto["quantiles"] == pytest.approx(np.quantile(values, QUANTILES))
    assert (auto["worst"], auto["worst_client"]) == (0.7, 3)
    # The order of the means differs: most test examples are those of client 3.
    assert auto["by_clients"] > fedavg["by_clients"]
    assert auto["by_examples"] < fedavg["by_examples"]
    assert (alone["name"], alone["worst"], alone["worst_client"]) == ("independent", 0.6, 1)


def test_the_screen_says_what_was_decided_how_sure_it_is_and_what_would_decide_the_rest(
    tmp_path: Path,
) -> None:
    found = explain(experiment(tmp_path))["screen"]
    assert found["decided"] == [
        "A model for each of 2 groups, 4 clients in all, since round 1: groups (split-half).",
        "0, 1 | 2, 3.",
    ]
    assert found["sure"][0] == (
        "On 180 held-out examples, the loss is lower by 0.05 ± 0.05 than with one model (fedavg) in round 1: "
        "likely, but may be chance; lower by 0.5 ± 0.1 than with local models (independent) in round 1: clear."
    )
    # 180 examples, with a difference of one standard error: four times as many make it two.
    assert found["open"][0] == (
        "Which of groups (split-half) and one model (fedavg) is better: about 720 held-out examples, not 180, "
        "would decide if the difference stays."
    )
    assert found["open"][1].startswith(
        "The choice itself: it ends after 20 reports of each client (2 patience)"
    )
    assert any(text.startswith("Whether other seeds decide the same") for text in found["open"])
    assert found["changes"] == ["The candidate in use changed once, in round 1."]
    assert found["worst"][0].startswith(
        "Client 3 has 0.700 with auto, 0.800 with one model for all, 0.600 with training alone on 70"
    )


def test_it_is_one_screen_before_the_reasons(tmp_path: Path) -> None:
    run = experiment(tmp_path)
    found = explain(run)
    screen_lines = lines(found["screen"], WIDTH)
    assert len(screen_lines) <= MAX_LINES
    assert max(map(len, screen_lines)) <= WIDTH
    text_lines = words(run).splitlines()
    assert text_lines[0] == "auto in synthetic/groups, seed 0, after round 1 of 1: 2 groups."
    assert text_lines[1 : 1 + len(screen_lines)] == screen_lines
    # With more sentences than fit, fewer open questions are shown.
    many = {**found["screen"], "open": [f"Question {i}: {'very ' * 25}open." for i in range(9)]}
    assert "further questions" in "\n".join(lines(many, WIDTH))


def test_seeds_that_were_run_are_no_open_question(tmp_path: Path) -> None:
    found = explain(experiment(tmp_path, seeds=(0, 1, 2)))["screen"]
    assert not any("seeds" in text for text in found["open"])
    assert "Each of 3 seeds found the same groups." in found["sure"][-1]


def test_methods_without_candidates_say_what_applies(tmp_path: Path) -> None:
    experiment(tmp_path)
    found = explain(tmp_path / "independent-seed0")["screen"]
    assert (found["changes"], found["decided"]) == ([], ["One model for all 4 clients."])
    write(tmp_path / "apart", [line(1, [[0], [1], [2]], tested=False)], "cfl")
    apart = explain(tmp_path / "apart")["screen"]
    assert apart["decided"] == ["Training alone: each of 3 clients has a model of its own."]
    assert apart["scores"] is None


def test_a_race_records_how_its_candidates_stand_in_each_round(tmp_path: Path) -> None:
    """The recorded numbers are those of the state, and the end of the run is open."""
    method = {"name": "auto", "patience": 4}
    (run,) = coterie.begin(
        make({"scenario": "digits/dirichlet", "methods": [method], "rounds": 3, "eval_every": 3}),
        tmp_path / "run",
    ).finish(workers=1)
    description, recorded_lines = Record(run.folder).shown()
    # Clients have validation parts, so these are held out.
    world = coterie.SCENARIOS["digits/dirichlet"].build(0)
    num_held_out = sum(len(data.validation) for data in world.clients.values())
    for recorded_line in recorded_lines:
        (standing_note,) = (each for each in recorded_line["notes"] if each["kind"] == "standing")
        assert standing_note["labels"]["reports of each client"] == recorded_line["round"]
        assert standing_note["labels"]["held-out examples"] == num_held_out
    found = candidates(description["methods"][0], recorded_lines)
    assert found is not None
    assert found.rounds_to_end == 5
    assert {compared.end for compared in found.compared} == {""}
