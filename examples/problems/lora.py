"""LoRA: a frozen transformer with small adapters, of which only the adapters and the head are trained and sent."""

import torch
from peft import LoraConfig, TaskType, get_peft_model
from transformers import BertConfig, BertForSequenceClassification

import coterie

CONFIG = BertConfig(
    vocab_size=2000,
    hidden_size=128,
    num_hidden_layers=2,
    num_attention_heads=4,
    intermediate_size=512,
    max_position_embeddings=16,
    num_labels=2,
    hidden_dropout_prob=0.0,
    attention_probs_dropout_prob=0.0,
)
ADAPTERS = LoraConfig(
    task_type=TaskType.SEQ_CLS, r=4, lora_alpha=16, target_modules=["query", "value"]
)


def reviews(seed, shop):
    """Made up: 200 texts of 8 tokens; the first one is praise or blame, and half of the shops mix them up."""
    gen = torch.Generator().manual_seed(100 * seed + shop)
    first, rest = (
        torch.randint(1, 9, (200, 1), generator=gen),
        torch.randint(9, 2000, (200, 7), generator=gen),
    )
    tokens, praise = torch.cat([first, rest], 1), (first[:, 0] < 5).long()
    return {"input_ids": tokens}, praise if shop < 3 else 1 - praise


def model():
    return get_peft_model(BertForSequenceClassification(CONFIG), ADAPTERS)


def world(seed):
    shops = {f"shop {i}": reviews(seed, i) for i in range(6)}
    training = coterie.Training(optimizer="adam", lr=0.005, batch=20, epochs=2)
    return coterie.from_lists(shops, model=model, training=training, seed=seed)
