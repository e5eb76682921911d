"""Changes made to training images on the way to the model."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad


def crop_and_flip(images: Tensor, generator: torch.Generator, margin: int = 4) -> Tensor:
    """Images ``(b, C, H, W)`` moved by up to ``margin`` pixels, zeros coming in, and mirrored left-right half the time.

    The usual augmentation of CIFAR: a random crop of the zero-padded image, and a horizontal flip.
    """
    count, _, height, width = images.shape
    draws = torch.randint(0, 2 * margin + 1, (2, count), generator=generator)
    mirrored = torch.randint(0, 2, (count,), generator=generator).bool()
    across = torch.arange(width).expand(count, width)
    across = torch.where(mirrored[:, None], across.flip(1), across) + draws[1][:, None]
    down = torch.arange(height) + draws[0][:, None]
    which = torch.arange(count)[:, None, None]
    padded = pad(images, (margin,) * 4)
    return padded.permute(0, 2, 3, 1)[which, down[:, :, None], across[:, None, :]].permute(0, 3, 1, 2).contiguous()
