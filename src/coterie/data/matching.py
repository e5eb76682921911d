"""Names that data carry: the columns, keys and classes of all clients are matched by name, never by their position.

Two clients whose columns are in another order, or whose classes have other numbers, train one model
on different things. The loss does not show it, and methods then find the order of the columns as
groups of clients.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from coterie.data.arrays import ordinary
from coterie.data.batches import LABELS
from coterie.data.columns import listed, values
from coterie.data.spelling import both, check_unlike, likeness
from coterie.settings import UserError

EARLIER = "the earlier world"
"""The holder of the names in a world that is passed as ``after``."""


# ----------------------------------------------------------------------------------------------------
# The names in one client's data.


def is_table(data: Any) -> bool:
    """Whether data are a data frame of pandas or polars, a table of pyarrow, or an array with named fields."""
    if isinstance(data, np.ndarray):
        return data.dtype.names is not None
    return hasattr(data, "columns") and (hasattr(data, "to_numpy") or hasattr(data, "to_pandas"))


def _is_series(data: Any) -> bool:
    """Whether data are one column of pandas or polars."""
    return hasattr(data, "to_numpy") and hasattr(data, "name") and not hasattr(data, "columns")


def column_names(table: Any) -> list[Any]:
    """The names of a table's columns."""
    if isinstance(table, np.ndarray):
        return list(table.dtype.names or ())
    return list(table.column_names if hasattr(table, "column_names") else table.columns)


def _matrix(table: Any, order: Sequence[Any], where: str) -> np.ndarray:
    """The columns ``(N, columns)`` of a table, in an order."""
    if hasattr(table, "to_numpy") and not hasattr(table, "column_names"):
        whole = table[list(order)].to_numpy()
        if whole.dtype.kind in "biu" or (whole.dtype.kind == "f" and not np.isnan(whole).any()):
            return np.ascontiguousarray(whole)
    columns = [values(table, name, where) for name in order]
    for name, column in zip(order, columns, strict=True):
        if column.dtype.kind == "O":
            raise UserError(
                f"{where}: the column {name} is text ({column[0]!r:.40}): leave it out, or make numbers of it"
            )
    return np.column_stack(columns)


def check_rows(parts: Mapping[str, Any], where: str) -> None:
    """Check that columns and tables of pandas have the same rows in the same order.

    Args:
        parts: What each part is called -> the part; only those with an index of pandas are
            compared.
        where: Whose parts they are, for the message.

    Raises:
        UserError: The indexes of two of them differ.
    """
    indexed = [
        (name, part.index)
        for name, part in parts.items()
        if hasattr(getattr(part, "index", None), "equals")
    ]
    for name, index in indexed[1:]:
        first, rows = indexed[0]
        if len(rows) == len(index) and not rows.equals(index):
            begin = [", ".join(map(repr, some[:3].tolist())) for some in (rows, index)]
            raise UserError(
                f"{where}: the indexes of {first} and {name} differ ({begin[0]}, ... and {begin[1]}, ...), so it is unclear "
                f"which rows belong together: align them by {name}.loc[{first}.index], or pass {name}.to_numpy() if they "
                "belong together by position"
            )


def classes_of(dataset: Any) -> dict[str, tuple[str, ...]]:
    """Return the names of the classes of a data set of PyTorch or Hugging Face, in the order of their numbers.

    Args:
        dataset: The data set. Of subsets and concatenations, the data sets inside are read.

    Returns:
        ``"classes"``, or ``"classes of COLUMN"`` for a column of labels -> the names; empty if the
        data set has none.

    Raises:
        UserError: The data sets inside a concatenation have different classes.
    """
    features = getattr(dataset, "features", None)
    if isinstance(features, Mapping):
        labels = {
            name: kind for name, kind in features.items() if type(kind).__name__ == "ClassLabel"
        }
        return {f"classes of {name}": tuple(kind.names) for name, kind in labels.items()}
    numbers, names = getattr(dataset, "class_to_idx", None), getattr(dataset, "classes", None)
    if isinstance(numbers, Mapping) and numbers:
        return {
            "classes": tuple(str(name) for name in sorted(numbers, key=lambda name: numbers[name]))
        }
    if isinstance(names, list | tuple) and names:
        return {"classes": tuple(map(str, names))}
    inside = getattr(dataset, "datasets", None)
    if isinstance(inside, list | tuple):
        together = Matching()
        for number, one in enumerate(inside):
            together.dataset(one, f"data set {number} of a concatenation")
        return {
            name: known
            for name, (_, known) in together.first.items()
            if known is not None and name != COLUMNS
        }
    return classes_of(dataset.dataset) if hasattr(dataset, "dataset") else {}


# ----------------------------------------------------------------------------------------------------
# The names in the data of all clients.

COLUMNS = "columns"
"""The name under which :class:`Matching` keeps the columns of a data set of Hugging Face."""

CLASSES = ("classes", *(f"classes of {label}" for label in LABELS))
"""The names under which :class:`Matching` keeps the classes of the targets."""

PARTS = ("x", "y", "x_test", "y_test")
"""What the elements of a client's tuple are."""


class Matching:
    """The names in the inputs and targets of clients, as the first client has them; the others get its order.

    Args:
        about: The facts of an earlier world, whose names come first; None if there is no such
            world.

    Attributes:
        first: Which names, such as those of the columns of x -> who has them first, and the names;
            None if that client has data without names.
    """

    def __init__(self, about: Mapping[str, Any] | None = None) -> None:
        self.first: dict[str, tuple[str, tuple[str, ...] | None]] = {}
        if about is not None:
            features = about.get("features")
            self.first["x"] = EARLIER, None if features is None else tuple(features)
            if "targets" in about:
                self.first["y"] = EARLIER, tuple(about["targets"])
            if "classes" in about:
                self.first |= dict.fromkeys(CLASSES, (EARLIER, tuple(about["classes"])))

    @property
    def about(self) -> dict[str, list[str]]:
        """The names, as facts of a world: those of features, targets and classes, as far as they are known."""
        facts: dict[str, list[str]] = {}
        for part, fact in (
            ("x", "features"),
            ("y", "targets"),
            *((name, "classes") for name in CLASSES),
        ):
            _, names = self.first.get(part, ("", None))
            if names is not None:
                facts.setdefault(fact, list(names))
        return facts

    def client(self, data: Any, where: str) -> Any:
        """Return a client's data with plain arrays in place of tables, in the order of the first client's names.

        Args:
            data: As for :func:`coterie.from_lists`.
            where: The client, for messages.

        Returns:
            The data.

        Raises:
            UserError: Columns, keys or classes are not those of the first client, two of them look
                alike, or the rows of x and y are not the same.
        """
        if isinstance(data, Mapping) and "train" in data:
            for name in ("train", "validation", "test"):
                if data.get(name) is not None:
                    self.dataset(data[name], where if name == "train" else f"{where}: {name}")
            return data
        if not isinstance(data, Mapping | Sequence):
            self.dataset(data, where)
            return data
        if not isinstance(data, Mapping):
            if len(data) not in (2, 4):
                return data
            data = dict(zip(PARTS, data, strict=False))
        for ending in ("", "_train", "_validation", "_test"):
            later = ending in ("_validation", "_test")
            of_rows = [
                f"x{ending}",
                f"y{ending}",
                *((f"order{ending}",) if later else ("order", "subject")),
            ]
            check_rows(_leaves({name: data[name] for name in of_rows if name in data}), where)
        known = {
            f"{part}{ending}": part
            for part in "xy"
            for ending in ("", "_train", "_validation", "_test")
        }
        return {
            key: self.part(part, known[key], f"{where}: {key}") if key in known else part
            for key, part in data.items()
        }

    def part(self, given: Any, what: str, where: str) -> Any:
        """Return inputs or targets with plain arrays in place of tables, in the order of the first client's names.

        Args:
            given: An array, a table, or a tuple or dict of them.
            what: Which part of a client's data they are: x or y, or a part of these.
            where: The client and the part, for messages.

        Raises:
            UserError: See :meth:`client`.
        """
        if isinstance(given, Mapping):
            order = self.order(f"the keys of {what}", list(given), where, "keys")
            return {name: self.part(given[name], f"{what}[{str(name)!r}]", where) for name in order}
        if isinstance(given, tuple):
            return tuple(
                self.part(one, f"{what}[{number}]", where) for number, one in enumerate(given)
            )
        if hasattr(given, "dims") and hasattr(given, "coords"):
            raise UserError(
                f"{where} has named dimensions: pass .to_pandas(), with the names of columns, or .to_numpy()"
            )
        if isinstance(given, list):
            given = _rows(given, where)
        if is_table(given):
            return _matrix(given, self.order(what, column_names(given), where), where)
        if _is_series(given):
            name = getattr(given, "name", None)
            if name is not None and name != "":
                self.order(what, [name], where)
            array = np.asarray(ordinary(given, where))
            return values({name: given}, name, where) if array.dtype.kind == "O" else array
        self.unnamed(what, where)
        return ordinary(given, where)

    def order(
        self, what: str, names: Sequence[Any], where: str, noun: str = "columns"
    ) -> list[Any]:
        """Return names in the order in which the first client has them.

        Args:
            what: Which names they are; their first holder's are kept under it.
            names: This client's names.
            where: The client and the part, for messages.
            noun: What has the names, in the plural.

        Raises:
            UserError: They are not the same names, one occurs twice, or two look alike.
        """
        for name, times in Counter(names).items():
            if times > 1:
                raise UserError(f"{where} has {times} {noun} with the name {name!r}")
        check_unlike(names, f"{noun} of {where}")
        by_text = {str(name): name for name in names}
        holder, first = self.first.setdefault(what, (where, tuple(by_text)))
        if first is None:
            if len(names) > 1 or what == "x":
                self._refuse_unnamed(where, list(by_text), holder)
            return list(names)
        if set(first) != set(by_text):
            raise UserError(_difference(where, list(by_text), holder, first, noun))
        return [by_text[name] for name in first]

    def unnamed(self, what: str, where: str) -> None:
        """Note that a client's inputs or targets have no names of columns, and refuse this where another's have them."""
        holder, first = self.first.setdefault(what, (where, None))
        if first is not None and (len(first) > 1 or what == "x"):
            self._refuse_unnamed(holder, first, where)

    def _refuse_unnamed(self, named: str, names: Sequence[str], unnamed: str) -> None:
        raise UserError(
            f"{named} has columns by name ({listed(names)}), and {unnamed} has none, so their order cannot be compared: pass "
            "data frames for all clients, or arrays, as by frame.to_numpy(), for all"
        )

    def dataset(self, dataset: Any, where: str) -> None:
        """Compare the classes, and the columns, of a data set with those of the data sets before it.

        Args:
            dataset: A data set of PyTorch or Hugging Face.
            where: The client, for messages.

        Raises:
            UserError: The classes are others or in another order, or the columns are others; or the
                data set is a table.
        """
        if is_table(dataset):
            raise UserError(
                f"{where} is a table without its target: pass (frame[FEATURES], frame[TARGET]), or use coterie.from_frame"
            )
        if isinstance(getattr(dataset, "features", None), Mapping) and hasattr(
            dataset, "column_names"
        ):
            self.order(COLUMNS, list(dataset.column_names), where)
        for name, classes in classes_of(dataset).items():
            holder, first = self.first.setdefault(name, (where, classes))
            if first != classes:
                raise UserError(
                    f"the {name} of all clients must be the same, in the same order: {where} has {listed(classes)}, and "
                    f"{holder} has {listed(first or ())}; number them alike, and give every client all of them"
                )


def _rows(rows: list[Any], where: str) -> np.ndarray:
    """A list of rows as an array."""
    if any(_is_series(row) for row in rows):
        raise UserError(
            f"{where} is a list of rows with names, which would be lost: pass them as one data frame"
        )
    try:
        return np.asarray(rows)
    except ValueError:
        raise UserError(
            f"{where} must be an array, or a list of rows of the same shape; its rows differ in shape"
        ) from None


def _leaves(parts: Mapping[str, Any]) -> dict[str, Any]:
    """The arrays and tables in tuples and dicts, by what they are called."""
    found: dict[str, Any] = {}
    for name, part in parts.items():
        if isinstance(part, Mapping):
            found |= _leaves({f"{name}[{key!r}]": one for key, one in part.items()})
        elif isinstance(part, tuple):
            found |= _leaves({f"{name}[{number}]": one for number, one in enumerate(part)})
        else:
            found[name] = part
    return found


def _difference(
    where: str, names: Sequence[str], holder: str, first: Sequence[str], noun: str
) -> str:
    """How two sets of names differ, in one sentence."""
    lacking = [name for name in first if name not in names]
    more = [name for name in names if name not in first]
    parts = [
        f"{word} {listed(some)}" for word, some in (("lacks", lacking), ("also has", more)) if some
    ]
    looks = {likeness(name).casefold(): name for name in lacking}
    alike = [
        both(looks[look], name) for name in more if (look := likeness(name).casefold()) in looks
    ]
    hint = f"; {alike[0]} look alike: give both one spelling" if alike else ""
    return (
        f"{where} {' and '.join(parts)}: all clients must have the same {noun} (it has {listed(names)}, and {holder} has "
        f"{listed(first)}){hint}"
    )


# ----------------------------------------------------------------------------------------------------
# Types that decide how numbers are read.


def check_scale(clients: Mapping[str, Any]) -> None:
    """Check that the inputs of all clients are scaled alike: bytes, and images of whole numbers, are divided by 255.

    Args:
        clients: Each client, for messages -> its data, with arrays by key, see
            :func:`coterie.data.own.folder`.

    Raises:
        UserError: Some inputs would be divided by 255, and others are not of the same scale.
    """
    scaled: dict[bool, tuple[str, Any]] = {}
    others: dict[bool, list[tuple[str, Any]]] = {}
    for where, data in clients.items():
        for key, part in data.items() if isinstance(data, Mapping) else ():
            if not key.startswith("x") or not isinstance(part, np.ndarray | torch.Tensor):
                continue
            images = (
                part.ndim > 2
            )  # an image may have one dimension more or less, without its channels
            kind = str(part.dtype).removeprefix("torch.")
            if kind == "uint8" or (images and kind.startswith(("int", "uint", "bool"))):
                scaled.setdefault(images, (f"{where}: {key}", part))
            elif part.ndim > 1 and len(part):
                others.setdefault(images, []).append((f"{where}: {key}", part))
    for images, (where, part) in scaled.items():
        for other, unscaled in others.get(images, ()):
            if not images or float(unscaled.min()) < 0 or float(unscaled.max()) > 1:
                raise UserError(
                    f"the inputs of all clients must have one type: {where} has {part.dtype}, which counts as pixels of 0 to "
                    f"255 and is divided by 255, and {other} has {unscaled.dtype}, which is not"
                )
