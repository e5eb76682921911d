"""Sequences to sequences of different lengths: a small T5 of Hugging Face that learns two ways to spell words."""

import random

import torch
from torch.nn.utils.rnn import pad_sequence
from transformers import T5Config, T5ForConditionalGeneration

import coterie

CONFIG = T5Config(
    vocab_size=20,
    d_model=32,
    d_kv=16,
    d_ff=64,
    num_layers=1,
    num_heads=2,
    dropout_rate=0.0,
    decoder_start_token_id=0,
)


def words(seed, school):
    """Made up: 300 words of 3 to 6 letters and their spelling, which moves each letter by one, up or down."""
    rng, step = random.Random(100 * seed + school), 1 if school < 3 else -1
    made = [[rng.randrange(2, 18) for _ in range(rng.randrange(3, 7))] for _ in range(300)]
    return [(torch.tensor(word), torch.tensor([letter + step for letter in word])) for word in made]


def padded(items):
    """A batch of words: 0 fills up the inputs, and -100 the targets, which no loss and no metric counts."""
    inputs = pad_sequence([word for word, _ in items], batch_first=True)
    targets = pad_sequence([spelled for _, spelled in items], batch_first=True, padding_value=-100)
    before = torch.nn.functional.pad(targets[:, :-1].clamp(min=0), (1, 0))
    return {
        "input_ids": inputs,
        "attention_mask": (inputs > 0).long(),
        "decoder_input_ids": before,
    }, targets


class Words(torch.utils.data.Dataset):
    def __init__(self, made):
        self.made = made

    def __len__(self):
        return len(self.made)

    def __getitem__(self, at):
        return self.made[at]


def world(seed):
    schools = {f"school {i}": Words(words(seed, i)) for i in range(6)}
    objective = coterie.Objective(metrics=["ExactMatch", "accuracy"])
    training = coterie.Training(optimizer="adam", lr=0.01, batch=20, epochs=3)
    return coterie.from_lists(
        schools,
        model=lambda: T5ForConditionalGeneration(CONFIG),
        objective=objective,
        training=training,
        collate=padded,
        seed=seed,
    )
