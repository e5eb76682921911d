"""Networks for small images that are no plain sequences of layers: residual networks and a vision transformer."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

Norm = Callable[[int], nn.Module]
"""Function of a number of channels that makes the norm after a convolution."""


class ResidualBlock(nn.Module):
    """Two 3 x 3 convolutions with a shortcut past both, which has no parameters.

    Where the shape changes, the shortcut takes every second pixel and adds channels of zeros (option
    A of the paper).
    """

    def __init__(self, channels_in: int, channels: int, stride: int, norm: Norm) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels_in, channels, 3, stride, padding=1, bias=False)
        self.norm1 = norm(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.norm2 = norm(channels)
        self.stride = stride
        self.added_channels = channels - channels_in

    def forward(self, images: Tensor) -> Tensor:
        """Return feature maps ``(b, channels, h / stride, w / stride)``."""
        hidden = torch.relu(self.norm1(self.conv1(images)))
        hidden = self.norm2(self.conv2(hidden))
        shortcut = images[:, :, :: self.stride, :: self.stride]
        if self.added_channels:
            # Half of the new channels before the others, and half behind them.
            before = self.added_channels // 2
            after = self.added_channels - before
            shortcut = nn.functional.pad(shortcut, (0, 0, 0, 0, before, after))
        return torch.relu(hidden + shortcut)


class ResNet(nn.Module):
    """The residual network of He et al. for CIFAR: three stages of 16, 32 and 64 channels, ``6 n + 2`` layers deep.

    K. He, X. Zhang, S. Ren, J. Sun, "Deep Residual Learning for Image Recognition", CVPR 2016, arXiv
    1512.03385, section 4.2.

    Args:
        channels: Channels of an image.
        classes: Number of outputs.
        blocks: n, the number of blocks in each stage.
        norm: Makes the norm after each convolution.
    """

    def __init__(self, channels: int, classes: int, blocks: int, norm: Norm) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, 16, 3, padding=1, bias=False)
        self.norm1 = norm(16)
        self.stage1 = _stage(16, 16, 1, blocks, norm)
        self.stage2 = _stage(16, 32, 2, blocks, norm)
        self.stage3 = _stage(32, 64, 2, blocks, norm)
        self.fc = nn.Linear(64, classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, nonlinearity="relu")

    def forward(self, images: Tensor) -> Tensor:
        """Return the logits ``(b, classes)`` of images ``(b, channels, h, w)``."""
        features = torch.relu(self.norm1(self.conv1(images)))
        features = self.stage3(self.stage2(self.stage1(features)))
        # The mean over all pixels.
        return self.fc(features.mean((2, 3)))


def _stage(channels_in: int, channels: int, stride: int, blocks: int, norm: Norm) -> nn.Sequential:
    """Blocks of one width; the first one changes the shape."""
    first = ResidualBlock(channels_in, channels, stride, norm)
    further_blocks = [ResidualBlock(channels, channels, 1, norm) for _ in range(blocks - 1)]
    return nn.Sequential(first, *further_blocks)


def batch_norm(channels: int) -> nn.Module:
    """BatchNorm, as in the paper."""
    return nn.BatchNorm2d(channels)


def group_norm(channels: int) -> nn.Module:
    """GroupNorm with two groups, whose statistics do not mix examples (as in arXiv 2003.00295, appendix C)."""
    return nn.GroupNorm(2, channels)


class EncoderBlock(nn.Module):
    """A block of a transformer: attention, then two dense layers, each after LayerNorm and with a shortcut."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1 = nn.LayerNorm(width)
        self.queries_keys_values = nn.Linear(width, 3 * width)
        self.projection = nn.Linear(width, width)
        self.norm2 = nn.LayerNorm(width)
        self.fc1 = nn.Linear(width, 4 * width)
        self.fc2 = nn.Linear(4 * width, width)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return tokens ``(b, t, width)``."""
        tokens = tokens + self.projection(self.attention(self.norm1(tokens)))
        hidden = nn.functional.gelu(self.fc1(self.norm2(tokens)))
        return tokens + self.fc2(hidden)

    def attention(self, tokens: Tensor) -> Tensor:
        """Return for each token the values of all, weighted by how its query fits their keys."""
        batch, length, width = tokens.shape
        # (3, b, heads, t, width / heads)
        split = self.queries_keys_values(tokens).view(batch, length, 3, self.heads, -1)
        queries, keys, values = split.permute(2, 0, 3, 1, 4)
        # Written out, because blocks of clients are trained under vmap.
        scores = queries @ keys.transpose(-2, -1) * (width // self.heads) ** -0.5
        mixed = scores.softmax(-1) @ values
        return mixed.transpose(1, 2).reshape(batch, length, width)


class PatchTokens(nn.Module):
    """The tokens of an image: a class token, then one for each patch, with learned positions."""

    def __init__(self, shape: tuple[int, int, int], patch: int, width: int) -> None:
        super().__init__()
        channels, height, width_of_image = shape
        patch_count = (height // patch) * (width_of_image // patch)
        self.class_token = nn.Parameter(torch.zeros(1, 1, width))
        self.positions = nn.Parameter(0.02 * torch.randn(1, patch_count + 1, width))
        self.patches = nn.Conv2d(channels, width, patch, stride=patch)

    def forward(self, images: Tensor) -> Tensor:
        """Return tokens ``(b, t, width)`` of images ``(b, channels, h, w)``."""
        patch_tokens = self.patches(images).flatten(2).transpose(1, 2)
        class_tokens = self.class_token.expand(len(images), -1, -1)
        return torch.cat([class_tokens, patch_tokens], dim=1) + self.positions


class VisionTransformer(nn.Module):
    """A small vision transformer, which classifies an image by its class token.

    A. Dosovitskiy et al., "An Image is Worth 16x16 Words: Transformers for Image Recognition at
    Scale", ICLR 2021, arXiv 2010.11929.

    Args:
        shape: Shape of an image, (channels, height, width); both sides multiples of ``patch``.
        classes: Number of outputs.
        patch: Side of a patch in pixels.
        width: Width of a token.
        depth: Number of blocks.
        heads: Number of heads of attention.
    """

    def __init__(
        self,
        shape: tuple[int, int, int],
        classes: int,
        *,
        patch: int,
        width: int,
        depth: int,
        heads: int,
    ) -> None:
        super().__init__()
        self.tokens = PatchTokens(shape, patch, width)
        self.blocks = nn.Sequential(*[EncoderBlock(width, heads) for _ in range(depth)])
        self.norm = nn.LayerNorm(width)
        self.fc = nn.Linear(width, classes)

    def forward(self, images: Tensor) -> Tensor:
        """Return the logits ``(b, classes)`` of images ``(b, channels, h, w)``."""
        tokens = self.blocks(self.tokens(images))
        return self.fc(self.norm(tokens[:, 0]))
