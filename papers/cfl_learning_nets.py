"""Nets of CFL's figures 8 and 9 where time is short; named in settings as ``package.module:name``."""

from __future__ import annotations

from torch import Tensor, nn

from coterie.models.nets import next_word


def small_cnn(shape: tuple[int, ...], classes: int) -> nn.Module:
    """Five layers, three of them convolutions, of which the first takes the image patch by patch: 40,454 parameters for
    CIFAR-10."""
    channels, height, width = shape
    return nn.Sequential(
        nn.Conv2d(channels, 12, 4, stride=4),
        nn.ReLU(),
        nn.Conv2d(12, 16, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(32 * (height // 8) * (width // 8), 64),
        nn.ReLU(),
        nn.Linear(64, classes),
    )


def tiny_lstm(shape: tuple[int, ...], classes: int) -> nn.Module:
    """Two layers for chains of a few words."""
    return next_word(shape, classes, embedding=16, hidden=32)


class NextWordGRU(nn.Module):
    """Embedding of 32 numbers, one GRU layer of 64 units, and a dense layer."""

    def __init__(self, words: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(words, 32)
        self.gru = nn.GRU(32, 64, batch_first=True)
        self.out = nn.Linear(64, words)

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits ``(b, t, words)`` of the next word after each of the tokens ``(b, t)``."""
        logits: Tensor = self.out(self.gru(self.embedding(tokens))[0])
        return logits


def small_gru(shape: tuple[int, ...], classes: int) -> nn.Module:
    """One layer for articles, which learns in fewer steps than two: 115,816 parameters with 1,000 words."""
    return NextWordGRU(classes)
