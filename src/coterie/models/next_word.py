"""The word model of CFL, the one network that is a class and not a sequence of layers."""

from __future__ import annotations

from torch import Tensor, nn


class NextWord(nn.Module):
    """A word model: embedding, LSTM, dense layer; tokens ``(b, t)`` -> logits ``(b, t, words)``."""

    def __init__(self, words: int, embedding: int, hidden: int, layers: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(words, embedding)
        self.lstm = nn.LSTM(embedding, hidden, layers, batch_first=True)
        self.fc = nn.Linear(hidden, words)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the logits ``(b, t, words)`` of tokens ``(b, t)``."""
        states, _ = self.lstm(self.embedding(tokens))
        return self.fc(states)
