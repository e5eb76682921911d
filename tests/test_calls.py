"""Whatever is public answers a wrong call with one sentence: the setting, its value, what there is, the likely slip."""

from __future__ import annotations

import importlib
import inspect
import pickle
import typing
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

import coterie
from coterie.core import Training
from coterie.methods import FedAvg, method_class
from coterie.methods._named import EQUIVALENTS, OTHER_ALGORITHMS
from coterie.settings import MAX_NAMES_LISTED, UserError, setting
from coterie.settings.calls import CallError, public

MODULES = (
    "coterie",
    "coterie.clustering",
    "coterie.core",
    "coterie.engines.flower",
    "coterie.contrib.tracking",
)
"""Modules with a list of what is public."""

FREE = {
    "state": "a decorator of classes, used before there is a call",
    "train_from": "its names are those of a Plan",
}
"""What takes any name, and why."""


def public_names() -> Iterator[tuple[str, Any]]:
    for module_name in MODULES:
        module = importlib.import_module(module_name)
        for name in module.__all__:
            yield f"{module_name}.{name}", name
    for cls in coterie.METHODS.values():
        yield f"{cls.__module__.rpartition('.')[0]}.{cls.__name__}", cls.__name__


def is_called(thing: Any) -> bool:
    """Whether users call it: no constant, protocol, base class, error, result (a named tuple) or name of a type."""
    if isinstance(thing, type):
        return not (
            issubclass(thing, Exception | int | tuple)
            or getattr(thing, "_is_protocol", False)
            or inspect.isabstract(thing)
        )
    return inspect.isfunction(thing)


@pytest.mark.parametrize(
    ("path", "name"), [pytest.param(path, name, id=path) for path, name in public_names()]
)
def test_an_unknown_name_is_one_sentence_wherever_it_is_given(path: str, name: str) -> None:
    thing = getattr(importlib.import_module(path.rpartition(".")[0]), name)
    if not is_called(thing) or name in FREE:
        return
    # Further names are settings of the experiment, of a scenario that there is.
    of_an_experiment = {"begin": ("digits/iid", "unused"), "tune": ("digits/iid", "cfl", "unused")}
    if name in of_an_experiment:
        with pytest.raises(UserError, match="has no setting 'nonsuch'"):
            thing(*of_an_experiment[name], nonsuch=17)
        return
    with pytest.raises(CallError) as caught:
        thing(nonsuch=17)
    assert str(caught.value).startswith(f"{name} has no setting 'nonsuch'")
    # A list of many names would hide the sentence.
    assert str(caught.value).partition("known: ")[2].count(",") < MAX_NAMES_LISTED
    secret = "secret" in inspect.signature(thing).parameters
    assert ("got 17" in str(caught.value)) == (not secret)


def test_every_public_function_is_called_by_the_test_above() -> None:
    tried = [
        path
        for path, name in public_names()
        if is_called(getattr(importlib.import_module(path.rpartition(".")[0]), name))
    ]
    assert len(tried) > 100


def world() -> coterie.World:
    rng = np.random.default_rng(0)
    return coterie.from_lists([(rng.random((20, 5), "f"), np.arange(20) % 2) for _ in range(2)])


FRAME = {"site": ["a", "b"] * 20, "age": np.arange(40.0), "ill": [0, 1] * 20}

WRONG: dict[str, tuple[Callable[[], Any], str]] = {
    "unknown": (
        lambda: Training(nesterov=True),
        "Training has no setting 'nesterov' (got True; known: lr, lr_decay",
    ),  # type: ignore[call-arg]
    "value": (lambda: Training(nesterov=True), "weight_decay, clip, proximal, "),  # type: ignore[call-arg]
    "of the method": (
        lambda: coterie.run("fedavg", world(), rounds=1, fraction=0.1),  # type: ignore[call-arg]
        "run has no setting 'fraction'; it is a setting of the method fedavg: give coterie.methods.FedAvg(fraction=...)",
    ),
    "of training": (
        lambda: coterie.run("fedavg", world(), rounds=1, learning_rate=0.1),  # type: ignore[call-arg]
        "run has no setting 'learning_rate'; it is a setting of Training: give training=coterie.Training(lr=...)",
    ),
    "one letter": (lambda: coterie.Objective(metric="AUROC"), "did you mean metrics?"),  # type: ignore[call-arg]
    "of the objective": (
        lambda: coterie.from_frame(FRAME, "site", "ill", metrics=["AUROC"]),
        "from_frame has no setting 'metrics'; it is a setting of Objective: give objective=coterie.Objective(metrics=...)",
    ),
    "elsewhere": (
        lambda: coterie.from_frame(FRAME, "site", "ill", columns=["age"]),
        "'columns'; did you mean features?",
    ),
    "in a paper": (
        lambda: coterie.methods.IFCA(k=3),
        "IFCA has no setting 'k'; did you mean models?",
    ),  # type: ignore[call-arg]
    "of a world": (
        lambda: coterie.from_lists([], truht=[]),
        "from_lists has no setting 'truht'; did you mean truth?",
    ),
    "of an experiment": (
        lambda: coterie.begin("digits/iid", "unused", num_rounds=3),
        "'num_rounds'; did you mean rounds?",
    ),
    "missing": (
        lambda: coterie.run("fedavg", world()),
        "run needs rounds",
    ),  # type: ignore[call-arg]
    "missing two": (lambda: coterie.World(), "World needs clients and model"),  # type: ignore[call-arg]
    "by place": (
        lambda: coterie.World({}),
        "World got 1 value without a name, and takes none: give the others by name, such as clients=...",
    ),  # type: ignore[call-arg,misc]
    "too many": (
        lambda: coterie.run("fedavg", world(), 3),  # type: ignore[call-arg,misc]
        "run got 3 values without a name, and takes at most 2 (method, scenario): give the others by name, such as rounds=...",
    ),
    "twice": (lambda: coterie.summary("a", run="b"), "summary got run twice"),  # type: ignore[misc]
    "text": (
        lambda: coterie.run("fedavg", world(), rounds="3"),
        "rounds must be an integer, got '3'; write 3 without quotes",
    ),  # type: ignore[arg-type]
    "none": (
        lambda: coterie.run("fedavg", world(), rounds=None),
        "rounds must be an integer, got None",
    ),  # type: ignore[arg-type]
    "truth value": (
        lambda: coterie.run("fedavg", world(), rounds=True),
        "rounds must be an integer, got True",
    ),
    "float": (
        lambda: coterie.run("fedavg", world(), rounds=1e3),
        "rounds must be an integer, got 1000.0; write 1000",
    ),  # type: ignore[arg-type]
    "path": (lambda: coterie.summary(3), "run must be a path, got 3"),  # type: ignore[arg-type]
    "array": (
        lambda: Training(lr=np.array([1.0, 2.0])),
        "Training.lr must be a number, got array([1., 2.])",
    ),  # type: ignore[arg-type]
    "method": (lambda: typing.cast(Any, coterie.Round).to_pandas(rows=3), "has no setting 'rows'"),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_call_is_one_sentence(case: str) -> None:
    call, sentence = WRONG[case]
    with pytest.raises(UserError) as caught:
        call()
    assert sentence in str(caught.value)
    assert "\n" not in str(caught.value)


def test_no_message_shows_a_secret() -> None:
    for call in (
        lambda: coterie.Boundary(secrt=271828),  # type: ignore[call-arg]
        lambda: coterie.Boundary(rotation="permute", key=271828),  # type: ignore[call-arg]
        lambda: coterie.reopen("nowhere", secret="271828"),  # type: ignore[arg-type]
        lambda: coterie.reopen("nowhere", 271828),  # type: ignore[misc]
    ):
        with pytest.raises(UserError) as caught:
            call()
        assert "271828" not in str(caught.value)


def test_numbers_of_numpy_are_numbers() -> None:
    rounds = list(
        coterie.run("fedavg", world(), rounds=np.int64(2), seed=np.uint8(1), workers=np.int32(1))
    )  # type: ignore[arg-type]
    same = list(coterie.run("fedavg", world(), rounds=2, seed=1, workers=1))
    assert [one.scores for one in rounds] == [one.scores for one in same]
    assert coterie.Scenario(shuffle=np.False_).shuffle is False  # type: ignore[arg-type]


# ----------------------------------------------------------------------------------------------------
# What the decorator leaves as it is.


@public
def area(width: float, height: float = 1.0, *, name: str | None = None) -> float:
    """The area."""
    if name == "fail":
        raise TypeError("from within")
    return width * height


def test_signature_help_and_identity_stay() -> None:
    assert (
        str(inspect.signature(area))
        == "(width: 'float', height: 'float' = 1.0, *, name: 'str | None' = None) -> 'float'"
    )
    assert (area.__doc__, area.__name__, area.__module__) == ("The area.", "area", __name__)
    assert pickle.loads(pickle.dumps(area)) is area
    assert list(inspect.signature(Training).parameters)[:2] == ["lr", "lr_decay"]
    assert pickle.loads(pickle.dumps(FedAvg(fraction=0.5))) == FedAvg(fraction=0.5)


def test_an_error_within_the_function_is_not_touched() -> None:
    with pytest.raises(TypeError, match=r"^from within$") as caught:
        area(1, name="fail")
    assert not isinstance(caught.value, UserError)


def test_an_error_of_a_call_is_also_what_python_would_raise() -> None:
    with pytest.raises(TypeError):
        area(3, widht=4)  # type: ignore[call-arg]
    with pytest.raises(ValueError, match="did you mean width"):
        area(widht=4)  # type: ignore[call-arg]


def test_values_of_the_annotated_types_arrive_as_they_were_given() -> None:
    assert area(2, 3.5) == 7.0
    assert area(width=np.float32(0.5)) == 0.5
    with pytest.raises(CallError, match="height must be a number, got 'high'"):
        area(1, "high")  # type: ignore[arg-type]
    with pytest.raises(CallError, match="name must be a string or none, got 3"):
        area(1, name=3)  # type: ignore[arg-type]


# ----------------------------------------------------------------------------------------------------
# Names of methods.


@pytest.mark.parametrize("name", sorted(OTHER_ALGORITHMS))
def test_an_algorithm_that_is_not_included_is_no_slip_of_one_that_is(name: str) -> None:
    with pytest.raises(UserError) as caught:
        method_class(name)
    assert "did you mean" not in str(caught.value)
    assert (
        EQUIVALENTS.get(name) or "which is not included; a method of your own runs by its place"
    ) in str(caught.value)


@pytest.mark.parametrize(
    "name", ["fednova", "FedDyn", "scaffnew", "fed-sam", "Moon", "kmeans", "nothing"]
)
def test_no_absurd_method_is_suggested(name: str) -> None:
    with pytest.raises(UserError) as caught:
        method_class(name)
    assert "did you mean" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "likely"),
    [
        ("FedAvg", "fedavg"),
        ("fedagv", "fedavg"),
        ("split_half", "split-half"),
        ("ifac", "ifca"),
        ("FedProx", "fedprox"),
        ("fed-opt", "fedopt"),
        ("CFLGP", "cfl-gp"),
    ],
)
def test_a_slip_of_a_method_is_still_found(name: str, likely: str) -> None:
    with pytest.raises(UserError, match=f"did you mean {likely}\\?"):
        method_class(name)


@pytest.mark.parametrize(
    ("table", "name", "words"),
    [
        (
            "SCENARIOS",
            "digits/dirichlett",
            "no scenario 'digits/dirichlett'; did you mean digits/dirichlet?",
        ),
        ("METHODS", "clf", "no method 'clf'; did you mean cfl?"),
        (
            "METHODS",
            "direction-means",
            "no method 'direction-means', which is not included; a method of your own",
        ),
    ],
)
def test_a_table_of_names_says_which_name_is_meant(table: str, name: str, words: str) -> None:
    named = getattr(coterie, table)
    with pytest.raises(KeyError) as caught:
        named[name]
    assert isinstance(caught.value, UserError)
    assert words in str(caught.value)
    assert len(str(caught.value)) < 250
    assert (name in named, named.get(name)) == (False, None)


@public
@dataclass(frozen=True, kw_only=True)
class OwnMethod(FedAvg):
    """A method of a user's own."""

    groups: int = setting(3, "number of groups", ge=1)


def test_a_misspelt_setting_of_an_own_method_is_one_sentence() -> None:
    with pytest.raises(CallError, match=r"OwnMethod has no setting 'group'; did you mean groups\?"):
        OwnMethod(group=3)  # type: ignore[call-arg]
    assert OwnMethod(groups=2).groups == 2


def test_a_comparison_of_no_runs_is_refused() -> None:
    """It was an empty table."""
    with pytest.raises(UserError, match="a comparison needs at least one run, got none"):
        coterie.compare([])
