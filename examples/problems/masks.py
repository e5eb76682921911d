"""Tokens and masks: a small BERT of Hugging Face, built without a download, for texts of different lengths."""

import torch
from transformers import BertConfig, BertForSequenceClassification

import coterie

CONFIG = BertConfig(
    vocab_size=30,
    hidden_size=32,
    num_hidden_layers=1,
    num_attention_heads=2,
    intermediate_size=64,
    max_position_embeddings=16,
    num_labels=2,
    hidden_dropout_prob=0.0,
    attention_probs_dropout_prob=0.0,
)


def reviews(seed, shop):
    """Made up: 300 texts of 4 to 16 tokens; a text is praise or blame by its first token, and half of the shops mix them up."""
    gen = torch.Generator().manual_seed(100 * seed + shop)
    tokens = torch.randint(2, 30, (300, 16), generator=gen)
    lengths = torch.randint(4, 17, (300,), generator=gen)
    mask = (torch.arange(16) < lengths[:, None]).long()
    praise = (tokens[:, 0] < 16).long()
    return {"input_ids": tokens * mask, "attention_mask": mask}, praise if shop < 3 else 1 - praise


def world(seed):
    shops = {f"shop {i}": reviews(seed, i) for i in range(6)}
    training = coterie.Training(optimizer="adam", lr=0.003, batch=32, epochs=2)
    return coterie.from_lists(
        shops, model=lambda: BertForSequenceClassification(CONFIG), training=training, seed=seed
    )
