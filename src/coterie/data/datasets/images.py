"""Your own data: a folder of pictures per client, with a folder per class: ``hospital-A/cat/1.png``.

Pictures need Pillow (``pip install 'coterie[images]'``).
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from coterie.data import readers
from coterie.data.datasets.source import DatasetSettings, OwnSource, register
from coterie.data.examples import Pool, pool
from coterie.data.own import OwnData
from coterie.data.spelling import check_unlike
from coterie.data.tasks import in_order
from coterie.data.world import check_name
from coterie.files import available_memory, check_links, reason
from coterie.settings import UserError, setting

# The files: a folder for each client, in it a folder for each class, in it PNG or JPEG pictures.
# The names of the folders are the names of the clients and of the classes.
#
# From files to clients: a folder is a client, and nothing is divided among clients. All clients
# together decide which classes there are, so that a label means the same for everyone. Each client
# gets one pool, which ``OwnData.world`` cuts into training, validation and test pictures.
ENDINGS = (".png", ".jpg", ".jpeg")
"""What the names of pictures end in, in lower or upper case."""

SYSTEM_FILES = ("thumbs.db", "desktop.ini")
"""Files that operating systems put beside pictures. They are left out, and so are files whose names
begin with a dot."""

Stamp = tuple[Path, int, int]
"""A file, the time of its last change, and its size."""

ClientFiles = tuple[str, tuple[tuple[str, tuple[Stamp, ...]], ...]]
"""A client, and its classes with their pictures."""


@dataclass(frozen=True, kw_only=True)
class ImageSettings(DatasetSettings):
    """The size and the channels of pictures."""

    resize: int | None = setting(
        None, "height and width that pictures get; none: they have one size", ge=1, le=4096
    )
    grey: bool = setting(False, "make pictures grey, with one channel; false: three channels")


def clients_of_images(folder: Path, options: ImageSettings, takes_tokens: bool = False) -> OwnData:
    """Read the clients of a folder.

    The last folder stays in memory, and is read again only if a file has changed.

    Args:
        folder: A folder with a folder for each client, with a folder for each class, with PNG or
            JPEG files. No link in it may lead out of it.
        options: The size and the channels of the pictures.
        takes_tokens: Not used.

    Returns:
        The clients' data. The classes are those of all clients together, in the order of their
        names.

    Raises:
        UserError: A picture cannot be read, has another size than the others, or is at another
            place.
    """
    del takes_tokens
    # Step 1: list clients, classes and pictures, with the time and the size of each picture. They
    # are the key of the cache.
    folder = folder.resolve()
    check_links(folder)
    files_of_clients: list[ClientFiles] = []
    try:
        for client_folder in _folders(folder):
            files_of_classes = [
                (folder_of_class.name, _files(folder_of_class))
                for folder_of_class in _folders(client_folder)
            ]
            files_of_clients.append((client_folder.name, tuple(files_of_classes)))
    except OSError as error:
        raise UserError(f"{error.filename} cannot be read: {reason(error)}") from error
    # Step 2: read the pictures, unless the same ones are still in memory.
    return _clients(folder, tuple(files_of_clients), options)


def _folders(folder: Path) -> list[Path]:
    """The folders in a folder, which has at least one and no pictures."""
    # A picture in the wrong place would be left out without a word, so it is an error.
    entries = list(_visible(folder))
    for entry in entries:
        if not entry.is_dir():
            raise UserError(
                f"{entry} must be in the folder of a class, in the folder of a client: CLIENT/CLASS/{entry.name}"
            )
    if not entries:
        raise UserError(
            f"{folder} is empty; it must have a folder for each client, with a folder of pictures for each class"
        )
    # Names that are whole numbers are sorted as numbers.
    by_name = {entry.name: entry for entry in entries}
    for folder_name in by_name:
        check_name(folder_name, str(folder))
    return [by_name[folder_name] for folder_name in in_order(by_name)]


def _files(folder: Path) -> tuple[Stamp, ...]:
    """The pictures in a folder, in the order of their names."""
    picture_paths = sorted(_visible(folder))
    for picture_path in picture_paths:
        if picture_path.suffix.lower() not in ENDINGS:
            raise UserError(
                f"{picture_path} is not a picture: its name must end in {', '.join(ENDINGS)}"
            )
    picture_stamps = []
    for picture_path in picture_paths:
        status = picture_path.stat()
        # The time and the size of a picture show whether it has changed.
        picture_stamps.append((picture_path, status.st_mtime_ns, status.st_size))
    return tuple(picture_stamps)


def _visible(folder: Path) -> Iterator[Path]:
    """What a folder holds, without hidden files and files of the operating system."""
    with os.scandir(folder) as entries:
        for entry in entries:
            if not entry.name.startswith(".") and entry.name.lower() not in SYSTEM_FILES:
                yield Path(entry.path)


@lru_cache(maxsize=1)
def _clients(
    folder: Path, files_of_clients: tuple[ClientFiles, ...], options: ImageSettings
) -> OwnData:
    # The classes and the number of pictures of all clients together.
    names_of_classes: set[str] = set()
    picture_count = 0
    for _, classes in files_of_clients:
        for class_name, stamps in classes:
            names_of_classes.add(class_name)
            picture_count += len(stamps)
    all_classes = in_order(names_of_classes)
    check_unlike(all_classes, f"classes in {folder}")
    if len(all_classes) < 2:
        raise UserError(
            f"{folder} must have pictures of at least two classes, and has only {all_classes[0]!r}"
        )

    # One pool for each client.
    reader = _Reader(picture_count, options)
    pool_of_client: dict[str, Pool] = {}
    # Read class after class; a label is the position of the class's name in the sorted list.
    for client, classes in files_of_clients:
        pictures: list[np.ndarray] = []
        labels: list[int] = []
        for class_name, stamps in classes:
            pictures += [reader.read(path) for path, _, _ in stamps]
            labels += [all_classes.index(class_name)] * len(stamps)
        if not pictures:
            raise UserError(f"{folder / client} holds no picture")
        pool_of_client[client] = pool(
            np.stack(pictures), np.array(labels), folder / client, len(all_classes)
        )
    # All pictures have one size, so any client's pool shows it.
    picture_shape = tuple(next(reversed(pool_of_client.values())).inputs.shape[1:])
    return OwnData(
        pools={client: (client_pool, None, None) for client, client_pool in pool_of_client.items()},
        shape=picture_shape,
        outputs=len(all_classes),
        about={"task": "classification", "classes": all_classes},
    )


class _Reader:
    """Reads pictures of one size, and checks with the first that all of them fit into the memory.

    Args:
        picture_count: Number of pictures of all clients.
        options: The size and the channels that all pictures get.
    """

    def __init__(self, picture_count: int, options: ImageSettings) -> None:
        self.count = picture_count
        self.resize = options.resize
        self.grey = options.grey
        self.pillow = _pillow()
        self.first: tuple[Path, tuple[int, ...]] | None = None

    def read(self, path: Path) -> np.ndarray:
        """Read a picture.

        Args:
            path: The file.

        Returns:
            The picture ``(channels, height, width)`` uint8.

        Raises:
            UserError: The file is not a picture, is too large, or has another size than the first.
        """
        with readers.opened(path) as picture_file:
            try:
                picture = self._array(picture_file)
            except Exception as error:
                # Pillow raises errors of many kinds, and the first line has the reason.
                cause = (str(error).splitlines() or [type(error).__name__])[0]
                raise UserError(f"{path} is not a readable PNG or JPEG file ({cause})") from error
        # The first picture sets the size of all, and shows how much memory they take.
        if self.first is None:
            self.first = path, picture.shape
            self._check_memory(path, picture.size)
        if picture.shape != self.first[1]:
            first_path, (_, first_height, first_width) = self.first
            _, height, width = picture.shape
            raise UserError(
                f"all pictures must have one size: {path} has {width} x {height} pixels and "
                f"{first_path} has {first_width} x {first_height}; set resize, for example to 64"
            )
        return picture

    def _array(self, picture_file: Any) -> np.ndarray:
        image_module, operations = self.pillow
        with warnings.catch_warnings():
            # Pillow only warns of a picture of more pixels than its limit, up to twice the limit.
            warnings.simplefilter("error", image_module.DecompressionBombWarning)
            with image_module.open(picture_file, formats=("PNG", "JPEG")) as opened_picture:
                if opened_picture.mode.startswith("I"):
                    raise ValueError("it has more than 8 bits per pixel: convert it to 8 bits")
                upright = operations.exif_transpose(opened_picture).convert(
                    "L" if self.grey else "RGB"
                )
        # Cameras store some pictures lying down; from here on they are upright, and of one size.
        if self.resize is not None:
            upright = upright.resize((self.resize, self.resize), image_module.Resampling.BILINEAR)
        pixels = np.asarray(upright)
        # The channels come first, as PyTorch has it.
        return pixels[None] if self.grey else pixels.transpose(2, 0, 1)

    def _check_memory(self, path: Path, picture_bytes: int) -> None:
        # A pixel takes one byte, and four more when it becomes a float32.
        needed_bytes = 5 * picture_bytes * self.count
        allowed_bytes = available_memory() / 2
        if needed_bytes > allowed_bytes:
            raise UserError(
                f"{self.count:,} pictures as large as {path} take {needed_bytes:,} bytes, and half "
                f"of the free memory is {allowed_bytes:,.0f} bytes; set a smaller resize"
            )


def _pillow() -> tuple[Any, Any]:
    try:
        from PIL import Image, ImageOps
    except ImportError as error:
        raise UserError("pictures need Pillow: pip install 'coterie[images]'") from error
    return Image, ImageOps


register("images", OwnSource("one per folder", clients_of_images, ImageSettings))
