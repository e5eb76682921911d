"""Arrays of any stride, order, byte order and class give the same world; what has no numbers is one sentence."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import coterie
from coterie import clustering
from coterie.data.arrays import ordinary
from coterie.settings import UserError

RNG = np.random.default_rng(0)
X = RNG.integers(-16, 16, (20, 4)).astype(np.float32) / 8  # exact in every format of floats
Y = RNG.integers(0, 3, 20)
PICTURES = RNG.integers(0, 256, (20, 1, 6, 6)).astype(np.uint8)


def frozen(array: np.ndarray) -> np.ndarray:
    array = array.copy()
    array.flags.writeable = False
    return array


def matrix(array: np.ndarray) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PendingDeprecationWarning)
        return np.matrix(array)


SAME: dict[str, Callable[[np.ndarray], Any]] = {
    "rows read backwards": lambda a: a[::-1].copy()[::-1],
    "last axis read backwards": lambda a: np.flip(np.flip(a, -1).copy(), -1),
    "Fortran's order": np.asfortranarray,
    "every second row": lambda a: np.repeat(a, 2, axis=0)[::2],
    "transposed": lambda a: a.T.copy().T,
    "big-endian": lambda a: a.astype(a.dtype.newbyteorder(">")),
    "big-endian, backwards": lambda a: a[::-1].copy().astype(a.dtype.newbyteorder(">"))[::-1],
    "read-only": frozen,
    "double": lambda a: a.astype(np.float64) if a.dtype.kind == "f" else a.astype(np.int32),
    "half": lambda a: a.astype(np.float16) if a.dtype.kind == "f" else a.astype(np.uint8),
    "long double": lambda a: a.astype(np.longdouble) if a.dtype.kind == "f" else a,
    "masked, none missing": lambda a: np.ma.array(a, mask=np.zeros(a.shape, bool)),
    "objects": lambda a: a.astype(object),
    "list": lambda a: a.tolist(),
    "list of rows": list,
    "list of tensors": lambda a: [torch.as_tensor(row) for row in a],
    "tensor": torch.tensor,
    "tensor with a gradient": lambda a: torch.tensor(a, requires_grad=a.dtype.kind == "f"),
    "parameter": lambda a: torch.nn.Parameter(torch.tensor(a), requires_grad=a.dtype.kind == "f"),
    "tensor, transposed": lambda a: torch.tensor(a.T.copy()).permute(*reversed(range(a.ndim))),
    "tensor of half precision": lambda a: (
        torch.tensor(a).bfloat16() if a.dtype.kind == "f" else torch.tensor(a).short()
    ),
}


def numbers_of(world: coterie.World) -> list[torch.Tensor]:
    parts = (
        part for data in world.clients.values() for part in (data.train, data.validation, data.test)
    )
    return [tensor for part in parts for tensor in part.batch(torch.arange(len(part)))]


def of_lists(x: Any, y: Any, **settings: Any) -> list[torch.Tensor]:
    return numbers_of(coterie.from_lists([(x, y)] * 2, **settings))


FORMS = [*SAME, "np.matrix"]
ROLES = ["inputs", "targets", "both, of an own loss"]


def forms_and_roles() -> Iterator[Any]:
    """Every form in every role; the quick tests have every form in one of them."""
    for number, form in enumerate(FORMS):
        for role in ROLES:
            is_quick = role == ROLES[number % len(ROLES)]
            yield pytest.param(form, role, marks=() if is_quick else pytest.mark.slow)


@pytest.mark.parametrize(("form", "which"), list(forms_and_roles()))
def test_every_form_of_an_array_gives_the_same_world(form: str, which: str) -> None:
    made = SAME.get(form, lambda a: matrix(a) if a.ndim == 2 else matrix(a).T)
    x, y = (
        (made(X), Y)
        if which == "inputs"
        else (X, made(Y))
        if which == "targets"
        else (made(X), made(X))
    )
    plain = (X, X) if which.startswith("both") else (X, Y)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # such as PyTorch's about memory that cannot be written
        found, expected = of_lists(x, y), of_lists(*plain)
    assert all(torch.equal(one, two) for one, two in zip(found, expected, strict=True))


@pytest.mark.parametrize("axis", [0, 2, 3])
def test_flipped_pictures_are_copied(axis: int) -> None:
    for pictures in (PICTURES, PICTURES.astype(np.float32) / 255):
        found = of_lists(np.flip(pictures, axis), Y)
        assert all(
            torch.equal(a, b)
            for a, b in zip(found, of_lists(np.flip(pictures, axis).copy(), Y), strict=True)
        )


def test_a_memory_mapped_file_is_not_read_into_memory_unless_it_is_read_backwards(
    tmp_path: Path,
) -> None:
    np.save(tmp_path / "x.npy", X)
    mapped = np.load(tmp_path / "x.npy", mmap_mode="r")
    assert np.shares_memory(ordinary(mapped, "x"), mapped)
    assert not np.shares_memory(ordinary(mapped[::-1], "x"), mapped)
    assert all(
        torch.equal(a, b)
        for a, b in zip(of_lists(mapped[::-1], Y), of_lists(X[::-1].copy(), Y), strict=True)
    )


def test_an_array_that_needs_no_copy_is_not_copied() -> None:
    tensor = torch.tensor(X)
    assert ordinary(tensor, "x") is tensor
    assert ordinary(X, "x") is X


class Pairs(torch.utils.data.Dataset[Any]):
    def __init__(self, form: Callable[[np.ndarray], Any]) -> None:
        self.form = form

    def __len__(self) -> int:
        return 20

    def __getitem__(self, index: int) -> tuple[Any, Any]:
        return self.form(X[index]), Y[index]


@pytest.mark.parametrize(
    "form",
    [
        lambda row: row[::-1].copy()[::-1],
        lambda row: row.astype(">f4"),
        lambda row: row.tolist(),
        lambda row: torch.tensor(row, requires_grad=True),
        frozen,
    ],
)
def test_items_of_a_data_set_are_copied_too(form: Callable[[np.ndarray], Any]) -> None:
    def batches(form: Callable[[np.ndarray], Any]) -> list[torch.Tensor]:
        world = coterie.from_lists([Pairs(form)], model=lambda: torch.nn.Linear(4, 3))
        return numbers_of(world)

    assert all(torch.equal(a, b) for a, b in zip(batches(form), batches(np.copy), strict=True))


@pytest.mark.parametrize("form", SAME)
def test_columns_of_a_frame_may_have_every_form(form: str) -> None:
    def frame(made: Callable[[np.ndarray], Any]) -> list[torch.Tensor]:
        table = {"site": ["a", "b"] * 10, "age": made(X[:, 0].copy()), "ill": made(Y)}
        return numbers_of(coterie.from_frame(table, "site", "ill"))

    assert all(torch.equal(a, b) for a, b in zip(frame(SAME[form]), frame(np.copy), strict=True))


def test_whole_takes_arrays_and_keeps_tensors() -> None:
    x, y = torch.tensor(X), torch.tensor(Y)
    assert (coterie.whole(x, y).inputs is x, coterie.whole(x, y).targets is y) == (True, True)
    for inputs, targets in (
        (X[::-1], Y[::-1]),
        (X[::-1].tolist(), Y[::-1].tolist()),
        (x.flip(0).requires_grad_(), y.flip(0)),
    ):
        split = coterie.whole(inputs, targets)
        assert torch.equal(split.inputs, x.flip(0))
        assert torch.equal(split.targets, y.flip(0))
        assert not split.inputs.requires_grad


NO_ARRAY: dict[str, tuple[Any, str]] = {
    "masked": (
        np.ma.array(X, mask=X > 1),
        "x has .* masked values: remove such rows, or fill them in",
    ),
    "sparse": (torch.tensor(X).to_sparse(), r"x is a sparse tensor: pass its \.to_dense\(\)"),
    "meta": (torch.tensor(X).to("meta"), "x is a tensor on the device meta, which has no numbers"),
    "generator": (
        (row for row in X),
        "x must be an array, a tensor or a list, got a generator: pass a list",
    ),
    "set": ({1, 2}, r"x must be an array, a tensor or a list, got \{1, 2\}: pass a list"),
    "text": ("abc", "x must be an array, a tensor or a list, got 'abc'"),
    "none": (None, "x must be an array, a tensor or a list, got None"),
    "number": (np.array(3.0), "holds no examples"),
    "complex": (X.astype(complex), "must hold numbers"),
    "words": (np.array([["a"] * 4] * 20, object), "must hold numbers"),
    "rows in a tuple": (tuple(X), "a tuple has several inputs of one model: pass rows in a list"),
}


@pytest.mark.parametrize("case", NO_ARRAY)
def test_what_is_no_array_of_numbers_is_one_sentence(case: str) -> None:
    given, sentence = NO_ARRAY[case]
    with pytest.raises(UserError, match=sentence) as caught:
        coterie.from_lists([(given, Y)])
    assert str(caught.value).startswith("client 0")


def test_masked_targets_are_refused() -> None:
    with pytest.raises(UserError, match="client 0: y has 1 masked value: remove such rows"):
        coterie.from_lists([(X, np.ma.array(Y, mask=np.arange(20) == 3))])
    column = np.ma.array(X[:, 0], mask=np.arange(20) == 3)
    with pytest.raises(UserError, match="the column age has 1 masked value"):
        coterie.from_frame({"site": ["a", "b"] * 10, "age": column, "ill": Y}, "site", "ill")


@pytest.mark.parametrize(("part", "name"), [(2, "test"), (0, "train")])
def test_an_empty_part_is_named(part: int, name: str) -> None:
    arrays = [X, Y, X, Y]
    arrays[part], arrays[part + 1] = X[:0], Y[:0]
    for objective in (None, coterie.REGRESSION):
        with pytest.raises(UserError, match=f"^client 0: its {name} part holds no examples$"):
            coterie.from_lists([tuple(arrays)], objective=objective)
    with pytest.raises(UserError, match=r"^client 0 holds no examples$"):
        coterie.from_lists([(X[:0], Y[:0])])
    with pytest.raises(UserError, match="its test data set has no items"):
        coterie.from_lists(
            [{"train": Pairs(np.copy), "test": []}], model=lambda: torch.nn.Linear(4, 3)
        )


# ----------------------------------------------------------------------------------------------------
# Public functions of coterie.clustering.


@pytest.mark.parametrize(
    "form", [form for form in SAME if form not in ("objects", "list of tensors")]
)
@pytest.mark.parametrize(
    "function",
    [clustering.gram, clustering.norms, clustering.manhattan, lambda x: clustering.sketch(x, 8)],
)
def test_updates_may_have_every_form(form: str, function: Callable[[Any], Any]) -> None:
    if function is clustering.norms:
        given, expected = SAME[form](clustering.gram(X)), clustering.gram(X)
        assert np.allclose(function(given), function(expected), rtol=1e-2)
        return
    found, expected = torch.as_tensor(function(SAME[form](X))), torch.as_tensor(function(X))
    assert torch.allclose(found.detach().double(), expected.double())


def test_clustering_refuses_what_is_masked_or_sparse() -> None:
    masked, sparse = np.ma.array(X, mask=X > 1), torch.tensor(X).to_sparse()
    for function in (
        clustering.gram,
        clustering.manhattan,
        lambda x: clustering.agglomerative(x, metric="cosine", linkage="average", threshold=1),
    ):
        with pytest.raises(ValueError, match="masked entries: fill them in"):
            function(masked)
        with pytest.raises(ValueError, match=r"is sparse: pass its \.to_dense\(\)"):
            function(sparse)
    square = clustering.gram(X)
    with pytest.raises(ValueError, match="masked entries"):
        clustering.cosine(np.ma.array(square, mask=square < 0))
    with pytest.raises(ValueError, match="columns must be layer"):
        clustering.layer_grams(X, [(0, 2)])  # type: ignore[arg-type]
