"""Augmentation of training batches: the usual ones of images by name, or a function of the user's own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial

import torch

from coterie.data.world import World
from coterie.extensions import imported
from coterie.settings import SettingError, nearest

Augmentation = Callable[["torch.Tensor", "torch.Generator"], "torch.Tensor"]
"""Function of a batch of inputs and the generator of a client's task; returns inputs of the same shape."""


def augmented(world: World) -> World:
    """Return a world whose training batches are augmented as its ``training.augment`` says.

    Args:
        world: The world. Without this setting it stays as it is, with its own augmentation if it has one.

    Raises:
        SettingError: There is no such augmentation, or it is one of images and the inputs are none.
        UserError: A function of the user's own cannot be imported.
    """
    name = world.training.augment
    if name is None:
        return world
    if ":" in name:
        function = imported(name, "augmentation")
        if not callable(function):
            raise SettingError(f"Training.augment must be a function, got {name!r}, which is none")
        return replace(world, augment=function)
    if name not in AUGMENTATIONS:
        known_names = ", ".join(AUGMENTATIONS)
        raise SettingError(
            f"Training.augment must be one of {known_names}, or package.module:function, got {name!r}"
            f"{nearest(name, AUGMENTATIONS)}"
        )
    inputs = next(iter(world.clients.values())).train.inputs
    shape = tuple(inputs.shape[1:]) if isinstance(inputs, torch.Tensor) else None
    if shape is None or len(shape) != 3:
        difference = "are read one by one" if shape is None else f"have shape {shape}"
        raise SettingError(
            f"Training.augment {name} needs images (channels, height, width), and the inputs {difference}"
        )
    return replace(world, augment=AUGMENTATIONS[name])


def crop_and_flip(
    images: torch.Tensor, generator: torch.Generator, margin: int = 4
) -> torch.Tensor:
    """Augment images: a random crop of the zero-padded image, and a horizontal flip of half of the images.

    This is the usual augmentation of CIFAR.

    Args:
        images: The images ``(b, C, H, W)``.
        generator: Draws the crops and the flips.
        margin: Greatest shift, and width of the padding, in pixels.

    Returns:
        Images of the same shape.
    """
    image_count, _, height, width = images.shape
    offsets = torch.randint(0, 2 * margin + 1, (2, image_count), generator=generator)
    is_mirrored = torch.randint(0, 2, (image_count,), generator=generator).bool()
    # For each image, the columns and rows of the padded image from which the result's come.
    source_columns = torch.arange(width).expand(image_count, width)
    mirrored_columns = source_columns.flip(1)
    source_columns = torch.where(is_mirrored[:, None], mirrored_columns, source_columns)
    source_columns = source_columns + offsets[1][:, None]
    source_rows = torch.arange(height) + offsets[0][:, None]
    image_numbers = torch.arange(image_count)[:, None, None]
    # Take each image's window from the image with a black margin.
    padded = torch.nn.functional.pad(images, (margin,) * 4)
    channels_last = padded.permute(0, 2, 3, 1)
    windows = channels_last[image_numbers, source_rows[:, :, None], source_columns[:, None, :]]
    return windows.permute(0, 3, 1, 2).contiguous()


AUGMENTATIONS: Mapping[str, Augmentation] = {
    "crop-flip": crop_and_flip,
    "flip": partial(crop_and_flip, margin=0),
}
"""Augmentations of images by name."""
