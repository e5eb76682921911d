"""A language model: the next letter, for writers of two languages; the perplexity judges the models."""

import torch
from torch import nn

import coterie

LETTERS = 12


def texts(seed, writer):
    """Made up: 120 lines of 21 letters; each letter is followed by one of three, which depend on the language."""
    language = torch.Generator().manual_seed(1000 * seed + (writer < 3))
    follows = torch.stack([torch.randperm(LETTERS, generator=language)[:3] for _ in range(LETTERS)])
    own = torch.Generator().manual_seed(1000 * seed + 2 + writer)
    lines = torch.randint(LETTERS, (120, 21), generator=own)
    for at in range(1, 21):
        choice = torch.randint(3, (120,), generator=own)
        lines[:, at] = follows[lines[:, at - 1], choice]
    return lines


class Writer(nn.Module):
    def __init__(self):
        super().__init__()
        self.letters, self.recurrent = nn.Embedding(LETTERS, 16), nn.GRU(16, 32, batch_first=True)
        self.head = nn.Linear(32, LETTERS)

    def forward(self, lines):
        return self.head(self.recurrent(self.letters(lines))[0])


def world(seed):
    lines = {f"writer {i}": texts(seed, i) for i in range(6)}
    objective = coterie.Objective(metrics=["perplexity", "accuracy"])
    training = coterie.Training(optimizer="adam", lr=0.01, batch=16, epochs=2)
    return coterie.from_lists(
        {name: (text[:, :-1], text[:, 1:]) for name, text in lines.items()},
        model=Writer,
        objective=objective,
        training=training,
        seed=seed,
    )
