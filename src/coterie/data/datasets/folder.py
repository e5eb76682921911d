"""Your own data: a folder with one .npz file per client."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from coterie.data import readers
from coterie.data.datasets.source import DatasetSettings, OwnSource, register
from coterie.data.examples import Pool
from coterie.data.matching import Matching, check_scale
from coterie.data.own import OwnData, of_pools, pools
from coterie.data.time_order import about_order, window_hints
from coterie.data.times import check_gap
from coterie.settings import UserError, setting


# The files: a folder with one .npz file per client, ``hospital-A.npz``, with arrays x and y or,
# where the user has divided the examples, x_train, y_train, x_validation, y_validation, x_test,
# y_test.
#
# From files to clients: a file is a client, and its name without the ending is the client's name.
# Nothing is divided among clients. What a client has not divided itself, ``OwnData.world`` cuts
# into training, validation and test examples by the scenario's shares.
@dataclass(frozen=True, kw_only=True)
class FolderSettings(DatasetSettings):
    """The order in time of a folder's examples."""

    gap: float | str | None = setting(
        None,
        "later parts are later by more than this: a number, or for dates such as 7D or 12h; "
        "none: no gap",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        check_gap(self.gap)


def clients_of_folder(path: Path, options: FolderSettings, takes_tokens: bool) -> OwnData:
    """Read the clients of a folder, and check that they belong together.

    Args:
        path: See :func:`read_folder`.
        options: The gap between parts.
        takes_tokens: Whether the model takes tokens; otherwise whole numbers are features.

    Returns:
        The clients' data.

    Raises:
        UserError: A file is not valid, clients differ, or there is a gap and no client has an
            order.
    """
    # Read the clients, and find out whether their files have times of examples.
    clients = read_folder(path, options.gap)
    about = about_order("", options.gap, clients)
    if options.gap is not None and not about:
        raise UserError(
            f"gap {options.gap!r} needs an order: no file of {path} has an array order with the "
            "times of its examples"
        )
    # Clients belong together if their inputs have one shape and their labels one meaning.
    data = of_pools(clients, as_features=not takes_tokens)
    return replace(data, about=about, hints=window_hints(clients))


def read_folder(path: Path, gap: Any = None) -> dict[str, tuple[Pool | None, ...]]:
    """Read every .npz file of a folder; each file is one client.

    Keys are x_train, y_train (or x, y) and, optionally, x_validation, y_validation, x_test, y_test;
    subject: numbers or names ``(N,)`` of the subjects of x, such as patients, see
    :func:`coterie.from_frame`; and order, order_validation and order_test, the times of x,
    x_validation and x_test, see :func:`coterie.from_lists`.

    Args:
        path: The folder.
        gap: See :func:`coterie.from_lists`.

    Returns:
        Name of the client -> its (training, validation, test) pools; a pool that the file lacks is
        None.

    Raises:
        UserError: The folder has no .npz file, or a file is not valid.
    """
    # The order of the names is the order of the clients' ids.
    files = sorted(path.glob("*.npz"))
    if not files:
        raise UserError(
            f"{path} holds no .npz file; each client is one, with arrays x and y (or x_train and y_train)"
        )
    # Each file is compared with the first: the same arrays, of the same kinds.
    matching = Matching()
    arrays = {file: matching.client(readers.npz(file), str(file)) for file in files}
    # Pixels of 0 to 255 in one file and of 0 to 1 in another would be two different inputs.
    check_scale({str(file): client_arrays for file, client_arrays in arrays.items()})
    return {
        file.stem: pools(client_arrays, file, gap=gap) for file, client_arrays in arrays.items()
    }


register("folder", OwnSource("one per file", clients_of_folder, FolderSettings))
