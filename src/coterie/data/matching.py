"""Names that data carry: the columns, keys and classes of all clients are matched by name, never by their position.

Two clients whose columns are in another order, or whose classes have other numbers, train one model
on different things. The loss does not show it, and methods then find the order of the columns as
groups of clients.

:func:`coterie.from_lists` and the folder of .npz files pass each client through
:meth:`Matching.client`; :func:`coterie.from_frame` and table files have one table for all clients,
and match only an earlier world's names. Refused are clients whose columns, keys or classes differ or
look alike, names at one client and none at another, and tables of pandas whose rows are in another
order. Flower's clients are compared by their ``schema`` instead.
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


def _matrix(table: Any, columns: Sequence[Any], context: str) -> np.ndarray:
    """The columns ``(N, columns)`` of a table, in an order."""
    # A data frame of numbers without missing ones is read in one call.
    if hasattr(table, "to_numpy") and not hasattr(table, "column_names"):
        matrix = table[list(columns)].to_numpy()
        number_kind = matrix.dtype.kind
        if number_kind in "biu" or (number_kind == "f" and not np.isnan(matrix).any()):
            return np.ascontiguousarray(matrix)

    # Any other table column by column, so that a message can name the one that does not fit.
    column_arrays = [values(table, name, context) for name in columns]
    for name, column_array in zip(columns, column_arrays, strict=True):
        if column_array.dtype.kind == "O":
            raise UserError(
                f"{context}: the column {name} is text ({column_array[0]!r:.40}): leave it out, or make numbers of it"
            )
    return np.column_stack(column_arrays)


def check_rows(parts: Mapping[str, Any], context: str) -> None:
    """Check that columns and tables of pandas have the same rows in the same order.

    Args:
        parts: What each part is called -> the part; only those with an index of pandas are
            compared.
        context: Whose parts they are, for the message.

    Raises:
        UserError: The indexes of two of them differ.
    """
    # Only pandas has an index, by which the rows of two parts can be compared.
    indexed_parts: list[tuple[str, Any]] = []
    for name, part in parts.items():
        if hasattr(getattr(part, "index", None), "equals"):
            indexed_parts.append((name, part.index))
    for name, index in indexed_parts[1:]:
        first_name, first_index = indexed_parts[0]
        # Another number of rows is refused elsewhere, with another message.
        if len(first_index) == len(index) and not first_index.equals(index):
            raise UserError(
                f"{context}: the indexes of {first_name} and {name} differ "
                f"({_beginning(first_index)}, ... and {_beginning(index)}, ...), so it is unclear "
                f"which rows belong together: align them by {name}.loc[{first_name}.index], or pass {name}.to_numpy() if they "
                "belong together by position"
            )


def _beginning(index: Any) -> str:
    """The first entries of an index of pandas, for a message."""
    return ", ".join(map(repr, index[:3].tolist()))


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
    # Hugging Face: a column of labels has the names of its classes.
    features = getattr(dataset, "features", None)
    if isinstance(features, Mapping):
        classes_of_column: dict[str, tuple[str, ...]] = {}
        for column, feature in features.items():
            if type(feature).__name__ == "ClassLabel":
                classes_of_column[f"classes of {column}"] = tuple(feature.names)
        return classes_of_column

    # Torchvision: a mapping from names to numbers, or a list of names.
    number_of_class = getattr(dataset, "class_to_idx", None)
    if isinstance(number_of_class, Mapping) and number_of_class:
        ordered_names = sorted(number_of_class, key=lambda name: number_of_class[name])
        return {"classes": tuple(map(str, ordered_names))}
    class_names = getattr(dataset, "classes", None)
    if isinstance(class_names, list | tuple) and class_names:
        return {"classes": tuple(map(str, class_names))}

    # A concatenation has several data sets inside, which must agree, and a subset has one.
    inner_datasets = getattr(dataset, "datasets", None)
    if isinstance(inner_datasets, list | tuple):
        matching = Matching()
        for number, inner_dataset in enumerate(inner_datasets):
            matching.dataset(inner_dataset, f"data set {number} of a concatenation")
        inner_classes: dict[str, tuple[str, ...]] = {}
        for part, (_, class_names) in matching.first_names.items():
            if class_names is not None and part != COLUMNS:
                inner_classes[part] = class_names
        return inner_classes
    return classes_of(dataset.dataset) if hasattr(dataset, "dataset") else {}


# ----------------------------------------------------------------------------------------------------
# The names in the data of all clients.

COLUMNS = "columns"
"""The name under which :class:`Matching` keeps the columns of a data set of Hugging Face."""

CLASSES = ("classes", *(f"classes of {label}" for label in LABELS))
"""The names under which :class:`Matching` keeps the classes of the targets."""

TUPLE_KEYS = ("x", "y", "x_test", "y_test")
"""What the elements of a client's tuple are."""

KEY_ENDINGS = ("", "_train", "_validation", "_test")
"""The ends of the keys of inputs (x) and targets (y)."""


class Matching:
    """The names in the inputs and targets of clients, as the first client has them; the others get its order.

    Args:
        about: The facts of an earlier world, whose names come first; None if there is no such
            world.

    Attributes:
        first_names: Which names, such as those of the columns of x -> who has them first, and the names;
            None if that client has data without names.
    """

    def __init__(self, about: Mapping[str, Any] | None = None) -> None:
        # Names of an earlier world come before those of the first client.
        self.first_names: dict[str, tuple[str, tuple[str, ...] | None]] = {}
        if about is not None:
            features = about.get("features")
            self.first_names["x"] = EARLIER, None if features is None else tuple(features)
            if "targets" in about:
                self.first_names["y"] = EARLIER, tuple(about["targets"])
            if "classes" in about:
                classes = EARLIER, tuple(about["classes"])
                self.first_names |= dict.fromkeys(CLASSES, classes)

    @property
    def about(self) -> dict[str, list[str]]:
        """The names, as facts of a world: those of features, targets and classes, as far as they are known."""
        facts: dict[str, list[str]] = {}
        # Classes may be known under several names; the first of them counts.
        fact_of_part = {"x": "features", "y": "targets", **dict.fromkeys(CLASSES, "classes")}
        for part, fact in fact_of_part.items():
            _, names = self.first_names.get(part, ("", None))
            if names is not None:
                facts.setdefault(fact, list(names))
        return facts

    def client(self, data: Any, context: str) -> Any:
        """Return a client's data with plain arrays in place of tables, in the order of the first client's names.

        Args:
            data: As for :func:`coterie.from_lists`.
            context: The client, for messages.

        Returns:
            The data.

        Raises:
            UserError: Columns, keys or classes are not those of the first client, two of them look
                alike, or the rows of x and y are not the same.
        """
        # Data sets are only compared: their items are read when they are needed.
        if isinstance(data, Mapping) and "train" in data:
            for part_name in ("train", "validation", "test"):
                if data.get(part_name) is not None:
                    part_context = context if part_name == "train" else f"{context}: {part_name}"
                    self.dataset(data[part_name], part_context)
            return data
        if not isinstance(data, Mapping | Sequence):
            self.dataset(data, context)
            return data

        # Arrays and tables. A tuple of another length is refused elsewhere.
        if not isinstance(data, Mapping):
            if len(data) not in (2, 4):
                return data
            data = dict(zip(TUPLE_KEYS, data, strict=False))
        letter_of_key: dict[Any, str] = {}
        for ending in KEY_ENDINGS:
            letter_of_key |= {f"x{ending}": "x", f"y{ending}": "y"}
            keys_of_rows = [f"x{ending}", f"y{ending}"]
            if ending in ("_validation", "_test"):
                keys_of_rows.append(f"order{ending}")
            else:
                keys_of_rows += ["order", "subject"]
            arrays_of_rows = {key: data[key] for key in keys_of_rows if key in data}
            check_rows(_leaves(arrays_of_rows), context)

        # Inputs and targets are matched by name; subjects and orders stay as they are.
        matched_data: dict[str, Any] = {}
        for key, table in data.items():
            part_letter = letter_of_key.get(key)
            matched_data[key] = (
                table if part_letter is None else self.part(table, part_letter, f"{context}: {key}")
            )
        return matched_data

    def part(self, table: Any, part_name: str, context: str) -> Any:
        """Return inputs or targets with plain arrays in place of tables, in the order of the first client's names.

        Args:
            table: An array, a table, or a tuple or dict of them.
            part_name: Which part of a client's data they are: x or y, or a part of these.
            context: The client and the part, for messages.

        Raises:
            UserError: See :meth:`client`.
        """
        # Tuples and dicts: each entry is a part of its own, under its key or position.
        if isinstance(table, Mapping):
            keys = self.order(f"the keys of {part_name}", list(table), context, "keys")
            matched_parts = {}
            for key in keys:
                matched_parts[key] = self.part(table[key], f"{part_name}[{str(key)!r}]", context)
            return matched_parts
        if isinstance(table, tuple):
            matched_entries = []
            for number, entry in enumerate(table):
                matched_entries.append(self.part(entry, f"{part_name}[{number}]", context))
            return tuple(matched_entries)
        if hasattr(table, "dims") and hasattr(table, "coords"):
            raise UserError(
                f"{context} has named dimensions: pass .to_pandas(), with the names of columns, or .to_numpy()"
            )
        if isinstance(table, list):
            table = _rows(table, context)

        # Columns with names are put in the first client's order; an array has none.
        if is_table(table):
            columns = self.order(part_name, column_names(table), context)
            return _matrix(table, columns, context)
        if _is_series(table):
            name = getattr(table, "name", None)
            if name is not None and name != "":
                self.order(part_name, [name], context)
            array = np.asarray(ordinary(table, context))
            return values({name: table}, name, context) if array.dtype.kind == "O" else array
        self.unnamed(part_name, context)
        return ordinary(table, context)

    def order(
        self, part_name: str, names: Sequence[Any], context: str, noun: str = "columns"
    ) -> list[Any]:
        """Return names in the order in which the first client has them.

        Args:
            part_name: Which names they are; their first holder's are kept under it.
            names: This client's names.
            context: The client and the part, for messages.
            noun: What has the names, in the plural.

        Raises:
            UserError: They are not the same names, one occurs twice, or two look alike.
        """
        for name, occurrences in Counter(names).items():
            if occurrences > 1:
                raise UserError(f"{context} has {occurrences} {noun} with the name {name!r}")
        check_unlike(names, f"{noun} of {context}")
        name_of_text = {str(name): name for name in names}
        # The first names of a part are the rule for all later clients.
        first_holder, first_names = self.first_names.setdefault(
            part_name, (context, tuple(name_of_text))
        )
        # A target of one column needs no name, as nothing can be in another order.
        if first_names is None:
            if len(names) > 1 or part_name == "x":
                self._refuse_unnamed(context, list(name_of_text), first_holder)
            return list(names)
        if set(first_names) != set(name_of_text):
            raise UserError(
                _difference(context, list(name_of_text), first_holder, first_names, noun)
            )
        return [name_of_text[text] for text in first_names]

    def unnamed(self, part_name: str, context: str) -> None:
        """Note that a client's inputs or targets have no names of columns, and refuse this where another's have them."""
        first_holder, first_names = self.first_names.setdefault(part_name, (context, None))
        if first_names is not None and (len(first_names) > 1 or part_name == "x"):
            self._refuse_unnamed(first_holder, first_names, context)

    def _refuse_unnamed(self, named: str, names: Sequence[str], unnamed: str) -> None:
        raise UserError(
            f"{named} has columns by name ({listed(names)}), and {unnamed} has none, so their order cannot be compared: pass "
            "data frames for all clients, or arrays, as by frame.to_numpy(), for all"
        )

    def dataset(self, dataset: Any, context: str) -> None:
        """Compare the classes, and the columns, of a data set with those of the data sets before it.

        Args:
            dataset: A data set of PyTorch or Hugging Face.
            context: The client, for messages.

        Raises:
            UserError: The classes are others or in another order, or the columns are others; or the
                data set is a table.
        """
        if is_table(dataset):
            raise UserError(
                f"{context} is a table without its target: pass (frame[FEATURES], frame[TARGET]), or use coterie.from_frame"
            )
        # Hugging Face's data sets have features and columns.
        has_features = isinstance(getattr(dataset, "features", None), Mapping)
        if has_features and hasattr(dataset, "column_names"):
            self.order(COLUMNS, list(dataset.column_names), context)
        for part_name, class_names in classes_of(dataset).items():
            holder, first_classes = self.first_names.setdefault(part_name, (context, class_names))
            if first_classes != class_names:
                raise UserError(
                    f"the {part_name} of all clients must be the same, in the same order: "
                    f"{context} has {listed(class_names)}, and {holder} has "
                    f"{listed(first_classes or ())}; number them alike, and give every client all "
                    "of them"
                )


def _rows(given_rows: list[Any], context: str) -> np.ndarray:
    """A list of rows as an array."""
    if any(_is_series(row) for row in given_rows):
        raise UserError(
            f"{context} is a list of rows with names, which would be lost: pass them as one data frame"
        )
    try:
        return np.asarray(given_rows)
    except ValueError:
        raise UserError(
            f"{context} must be an array, or a list of rows of the same shape; its rows differ in shape"
        ) from None


def _leaves(named_parts: Mapping[str, Any]) -> dict[str, Any]:
    """The arrays and tables in tuples and dicts, by what they are called."""
    # Entries are called as in Python, such as x['age'] or x[0].
    leaves: dict[str, Any] = {}
    for name, part in named_parts.items():
        if isinstance(part, Mapping):
            leaves |= _leaves({f"{name}[{key!r}]": entry for key, entry in part.items()})
        elif isinstance(part, tuple):
            leaves |= _leaves({f"{name}[{number}]": entry for number, entry in enumerate(part)})
        else:
            leaves[name] = part
    return leaves


def _difference(
    context: str, names: Sequence[str], holder: str, first_names: Sequence[str], noun: str
) -> str:
    """How two sets of names differ, in one sentence."""
    # Which names are missing, and which are new.
    missing_names = [name for name in first_names if name not in names]
    added_names = [name for name in names if name not in first_names]
    differences = []
    if missing_names:
        differences.append(f"lacks {listed(missing_names)}")
    if added_names:
        differences.append(f"also has {listed(added_names)}")

    # A missing name that looks like an added one is probably the same name in another spelling.
    spelling_hint = ""
    missing_by_look = {likeness(name).casefold(): name for name in missing_names}
    for name in added_names:
        similar_name = missing_by_look.get(likeness(name).casefold())
        if similar_name is not None:
            spelling_hint = f"; {both(similar_name, name)} look alike: give both one spelling"
            break
    return (
        f"{context} {' and '.join(differences)}: all clients must have the same {noun} "
        f"(it has {listed(names)}, and {holder} has {listed(first_names)}){spelling_hint}"
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
    # Images are compared with images, and tables with tables: is it an image -> its first inputs
    # that are divided by 255, and all inputs that are not.
    first_scaled: dict[bool, tuple[str, Any]] = {}
    unscaled: dict[bool, list[tuple[str, Any]]] = {}
    for context, data in clients.items():
        if not isinstance(data, Mapping):
            continue
        for key, array in data.items():
            if not key.startswith("x") or not isinstance(array, np.ndarray | torch.Tensor):
                continue
            # An image may have one dimension more or less, without its channels.
            is_image = array.ndim > 2
            dtype = str(array.dtype).removeprefix("torch.")
            if dtype == "uint8" or (is_image and dtype.startswith(("int", "uint", "bool"))):
                first_scaled.setdefault(is_image, (f"{context}: {key}", array))
            elif array.ndim > 1 and len(array):
                unscaled.setdefault(is_image, []).append((f"{context}: {key}", array))

    # Images with values from 0 to 1 have the scale of pixels that are divided.
    for is_image, (context, scaled_array) in first_scaled.items():
        for other_context, array in unscaled.get(is_image, ()):
            if not is_image or float(array.min()) < 0 or float(array.max()) > 1:
                raise UserError(
                    f"the inputs of all clients must have one type: {context} has {scaled_array.dtype}, which counts as pixels "
                    f"of 0 to 255 and is divided by 255, and {other_context} has {array.dtype}, which is not"
                )
