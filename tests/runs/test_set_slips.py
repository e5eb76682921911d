"""Slips in ``--set`` that ran with other settings than the user meant, or ended in a traceback."""

import pytest

from coterie.cli import main
from coterie.core import Training
from coterie.runs.experiment import make, normal
from coterie.runs.set_option import assign, presets_first
from coterie.settings import SettingError


def test_a_key_with_two_values_is_refused():
    assert presets_first(["lr=.1", "lr=.1", "training.epochs=2"])
    with pytest.raises(SettingError, match=r"--set lr is given twice .*: \.1 and \.2"):
        presets_first(["lr=.1", "lr = .2"])
    with pytest.raises(SettingError, match="different values; give it once"):
        presets_first(["boundary.secret=abc", "boundary.secret=def"])


def test_a_key_that_begins_with_a_dot_is_no_key():
    with pytest.raises(SettingError, match=r"--set takes key=value, got '\.lr=3'"):
        assign(normal({}), ".lr=3")


def test_two_seeds_are_refused(capsys):
    assert main(["run", "--seed", "1", "--seed", "2"]) == 2
    assert "--seed is one seed, got 1 and 2" in capsys.readouterr().err


def test_one_argument_of_an_optimizer():
    spec = normal({})
    for text in (
        "training.optimizer=torch.optim:AdamW",
        "training.optimizer_options=eps=1e-6",
        "training.optimizer_options.weight_decay=0.1",
        "training.optimizer_options.betas=[0.9, 0.95]",
    ):
        spec = assign(spec, text)
    options = make(spec).training.optimizer_options
    assert options == ("eps=1e-06", "weight_decay=0.1", "betas=[0.9, 0.95]")


@pytest.mark.parametrize(
    ("schedule", "options"),
    [
        ("StepLR", {"step_size": 0}),
        ("StepLR", {"step_size": "1,gamma=.1"}),
        ("CosineAnnealingLR", {"T_max": 0}),
    ],
)
def test_arguments_with_which_a_schedule_cannot_step(schedule, options):
    with pytest.raises(SettingError, match=rf"schedule_options must be arguments of .*{schedule}"):
        Training(schedule=f"torch.optim.lr_scheduler:{schedule}", schedule_options=options)


@pytest.mark.parametrize("gamma", [-1, float("inf")])
def test_learning_rates_of_a_schedule_are_finite_and_not_negative(gamma):
    with pytest.raises(SettingError, match="rates must be finite and >= 0"):
        Training(
            schedule="torch.optim.lr_scheduler:ExponentialLR", schedule_options={"gamma": gamma}
        )


def test_a_text_in_place_of_a_list_or_of_one_number():
    spec = assign(normal({"methods": ["timed"]}), "timed.devices=fast=0.5,slow=0.5")
    with pytest.raises(SettingError, match=r'; write \["fast=0.5", "slow=0.5"\]'):
        make(spec)
    with pytest.raises(
        SettingError, match=r"must be a number, got '0\.1,0\.2'; it takes one value"
    ):
        make(assign(normal({}), "training.lr=0.1,0.2"))
