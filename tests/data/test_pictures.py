"""Folders of pictures: client, class, file. What is read, and what is refused in one sentence."""

from __future__ import annotations

import os
import struct
import sys
import zlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from coterie.cli import main
from coterie.data.datasets import images as pictures
from coterie.data.scenario import SCENARIOS, Scenario
from coterie.data.world import World
from coterie.randomness import seeded
from coterie.settings import UserError

IMAGES = SCENARIOS["images/clients"]
KINDS = {"A": ("cat", "dog"), "B": ("cat", "emu"), "C": ("cat", "dog", "emu")}


def pixels(number: int, size: tuple[int, int] = (16, 20)) -> np.ndarray:
    return np.random.default_rng(number).integers(0, 256, (*size, 3), np.uint8)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Three clients with four pictures of each of their classes."""
    made = tmp_path / "pictures"
    for client, kinds in KINDS.items():
        for kind in kinds:
            place = made / f"hospital {client}" / kind
            place.mkdir(parents=True)
            for number in range(4):
                Image.fromarray(pixels(len(list(made.rglob("*.png"))))).save(
                    place / f"{number}.png"
                )
    return made


def scenario(**settings: Any) -> Scenario:
    return replace(IMAGES, **{"model": "linear", **settings})


def test_each_folder_is_a_client_and_each_folder_in_it_a_class(folder: Path) -> None:
    (folder / "hospital A" / ".hidden").write_text("no picture")
    (folder / "hospital A" / "cat" / "Thumbs.db").write_text("no picture")
    world = scenario().build(0, folder)
    assert [data.name for data in world.clients.values()] == [
        "hospital A",
        "hospital B",
        "hospital C",
    ]
    assert world.about == {"task": "classification", "classes": ["cat", "dog", "emu"]}
    number = 0
    for data in world.clients.values():
        inputs = data.train.inputs
        assert inputs.shape == (4 * len(KINDS[data.name[-1]]), 3, 16, 20)
        for picture in inputs:
            assert torch.equal(
                picture, torch.from_numpy(pixels(number).transpose(2, 0, 1) / np.float32(255))
            )
            number += 1
        split = torch.cat([data.train.index, data.validation.index, data.test.index])
        targets = torch.cat([data.train.targets, data.validation.targets, data.test.targets])[
            split.argsort()
        ]
        assert targets.tolist() == [
            ["cat", "dog", "emu"].index(kind) for kind in KINDS[data.name[-1]] for _ in range(4)
        ]
    with seeded(0):
        assert world.model()(torch.zeros(1, 3, 16, 20)).shape == (1, 3)


def test_grey_and_resized(folder: Path) -> None:
    inputs = scenario(grey=True, resize=8).build(0, folder).clients[0].train.inputs
    assert inputs.shape == (8, 1, 8, 8)
    wanted = Image.fromarray(pixels(0)).convert("L").resize((8, 8), Image.Resampling.BILINEAR)
    assert torch.equal(inputs[0, 0], torch.from_numpy(np.asarray(wanted) / np.float32(255)))


def test_jpeg_as_a_camera_turned_it(folder: Path) -> None:
    turned = Image.Exif()
    turned[0x0112] = 6  # to be shown turned by 90 degrees
    for path in folder.rglob("*.png"):
        Image.fromarray(pixels(1, (20, 16))).save(
            path.with_suffix(".JPG"), "jpeg", exif=turned, quality=95
        )
        path.unlink()
    picture = scenario().build(0, folder).clients[0].train.inputs[0]
    wanted = torch.from_numpy(
        np.rot90(pixels(1, (20, 16)), -1).transpose(2, 0, 1) / np.float32(255)
    )
    assert picture.shape == (3, 16, 20)
    assert (picture - wanted).abs().mean() < 0.25  # of noise, JPEG keeps the rough values only
    assert torch.corrcoef(torch.stack([picture.flatten(), wanted.flatten()]))[0, 1] > 0.5


@pytest.mark.parametrize("mode", ["L", "LA", "P", "RGBA", "1", "CMYK"])
def test_other_kinds_of_pictures_become_colour(folder: Path, mode: str) -> None:
    path = next(folder.rglob("*.png"))
    suffix = ".jpg" if mode == "CMYK" else ".png"
    path.unlink()
    Image.fromarray(pixels(0)).convert(mode).save(path.with_name(f"0{suffix}"))
    assert scenario().build(0, folder).clients[0].train.inputs.shape[1:] == (3, 16, 20)


def test_pictures_of_different_sizes_are_refused_unless_resized(folder: Path) -> None:
    path = sorted(folder.rglob("*.png"))[5]
    Image.fromarray(pixels(0, (30, 10))).save(path)
    sentence = f"all pictures must have one size: {path} has 10 x 30 pixels and .*0.png has 20 x 16; set resize"
    with pytest.raises(UserError, match=sentence):
        scenario().build(0, folder)
    assert scenario(resize=8).build(0, folder).clients[0].train.inputs.shape == (8, 3, 8, 8)


def test_pictures_are_read_again_only_if_one_has_changed(folder: Path) -> None:
    first, again = (scenario().build(seed, folder).clients[0].train.inputs for seed in (0, 1))
    assert first is again
    Image.fromarray(pixels(99)).save(min(folder.rglob("*.png")))
    assert not torch.equal(scenario().build(0, folder).clients[0].train.inputs, first)


def png(width: int, height: int, data: bytes = b"") -> bytes:
    """A PNG file that claims this size."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        return (
            struct.pack(">I", len(content))
            + kind
            + content
            + struct.pack(">I", zlib.crc32(kind + content))
        )

    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", head)
        + chunk(b"IDAT", zlib.compress(data))
        + chunk(b"IEND", b"")
    )


def test_bombs_are_refused(folder: Path) -> None:
    path = min(folder.rglob("*.png"))
    for size in (
        10_000,
        20_000,
        2_000_000_000,
    ):  # beyond Pillow's limit, twice beyond it, and what no memory holds
        path.write_bytes(png(size, size, bytes(1000)))
        with pytest.raises(
            UserError,
            match=r"is not a readable PNG or JPEG file \(.*(exceeds limit|could be decompression bomb)",
        ):
            scenario(resize=8).build(0, folder)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (
            lambda path: path.write_bytes(b""),
            r"is not a readable PNG or JPEG file \(cannot identify",
        ),
        (
            lambda path: path.write_bytes(path.read_bytes()[:300]),
            r"0\.png is not a readable PNG or JPEG file",
        ),
        (
            lambda path: Image.fromarray(pixels(0)).save(path, "bmp"),
            r"is not a readable PNG or JPEG file \(cannot identify",
        ),
        (
            lambda path: path.rename(path.with_suffix(".gif")),
            r"0\.gif is not a picture: its name must end in \.png, \.jpg",
        ),
        (
            lambda path: path.rename(path.parents[1] / "0.png"),
            r"0\.png must be in the folder of a class, in the folder of a cl",
        ),
        (
            lambda path: path.rename(path.parents[2] / "0.png"),
            r"must be in the folder of a class.*CLIENT/CLASS/0\.png",
        ),
        (
            lambda path: (path.parents[2] / "empty").mkdir(),
            "empty is empty; it must have a folder for each client",
        ),
        (
            lambda path: (path.parents[2] / "one" / "cat").mkdir(parents=True),
            "one holds no picture",
        ),
        (
            lambda path: path.parent.rename(path.parents[1] / "c\x1b[2J"),
            "names must have at most 100 characters and no control",
        ),
        (
            lambda path: path.parent.rename(path.parents[1] / os.fsdecode(b"\xff")),
            "names must have at most 100 characters",
        ),
        (
            lambda path: (path.unlink(), path.symlink_to("/etc/hostname")),
            "is a symbolic link that leads out of",
        ),
        (
            lambda path: (path.parents[2] / "away").symlink_to("/etc"),
            "is a symbolic link that leads out of",
        ),
        (lambda path: (path.unlink(), os.mkfifo(path)), r"0\.png is not a regular file"),
        (
            lambda path: Image.fromarray(np.zeros((16, 20), np.uint16)).save(path),
            "it has more than 8 bits per pixel: convert it to 8 bits",
        ),
    ],
    ids=range(14),
)
def test_what_is_no_folder_of_pictures(
    folder: Path, change: Callable[[Path], object], sentence: str
) -> None:
    change(folder / "hospital A" / "cat" / "0.png")
    with pytest.raises(UserError, match=sentence):
        scenario().build(0, folder)


def test_links_inside_are_followed(folder: Path) -> None:
    (folder / "hospital D").symlink_to("hospital A")
    world = scenario().build(0, folder)
    assert torch.equal(world.clients[3].train.inputs, world.clients[0].train.inputs)


def test_one_class_is_nothing_to_learn(tmp_path: Path) -> None:
    (tmp_path / "A" / "cat").mkdir(parents=True)
    with pytest.raises(
        UserError, match="must have pictures of at least two classes, and has only 'cat'"
    ):
        scenario().build(0, tmp_path)


def test_pictures_have_room_in_the_memory(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pictures, "available_memory", lambda: 100_000.0)
    with pytest.raises(
        UserError,
        match=r"28 pictures as large as .* take 134,400 bytes, and half of the free memory is 50,000",
    ):
        scenario().build(0, folder)
    assert len(scenario(resize=8, grey=True).build(0, folder).clients) == 3


def test_without_pillow_a_sentence_names_the_extra(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(UserError, match=r"pictures need Pillow: pip install 'coterie\[images\]'"):
        scenario().build(0, folder)


def test_from_the_command_line(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(folder.parent)
    words = [
        "run",
        "--scenario",
        "images/clients",
        "--data",
        "pictures",
        "--set",
        "resize=16",
        "--set",
        "grey=true",
    ]
    assert (
        main([*words, "--method", "fedavg", "--rounds", "1", "--workers", "1", "--out", "a"]) == 0
    )
    assert "hospital A, hospital B, hospital C (3 clients)" in capsys.readouterr().out


def test_the_usual_model_is_convolutional(folder: Path) -> None:
    world: World = IMAGES.build(0, folder)
    with seeded(0):
        assert isinstance(next(iter(world.model().children())), torch.nn.Conv2d)
