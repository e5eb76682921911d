"""Memory and bytes of adapters over a large frozen transformer: ``python benchmarks/adapters.py``.

20 clients train LoRA adapters of a BERT of 109 million parameters, built from its configuration,
with two worker processes. Printed are the bytes that a client sends in a round, beside those of the
whole model, and the greatest memory of all processes together (proportional set size, so shared
pages count once).
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from pathlib import Path

import torch
from peft import LoraConfig, TaskType, get_peft_model
from transformers import BertConfig, BertForSequenceClassification

import coterie

CLIENTS, EXAMPLES, WORKERS = 20, 20, 2
CONFIG = BertConfig(
    hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0
)  # 12 layers of 768, a vocabulary of 30,522
ADAPTERS = LoraConfig(task_type=TaskType.SEQ_CLS, r=8, target_modules=["query", "value"])


def model() -> torch.nn.Module:
    """The frozen transformer with adapters and a head."""
    return get_peft_model(BertForSequenceClassification(CONFIG), ADAPTERS)


def world() -> coterie.World:
    """Clients with texts of 16 random tokens."""
    gen = torch.Generator().manual_seed(0)
    clients = {}
    for number in range(CLIENTS):
        tokens = torch.randint(1, CONFIG.vocab_size, (EXAMPLES, 16), generator=gen)
        clients[f"client-{number}"] = ({"input_ids": tokens}, tokens[:, 0] % 2)
    training = coterie.Training(optimizer="adam", lr=1e-3, batch=8)
    return coterie.from_lists(clients, model=model, training=training)


def memory(root: int) -> int:
    """Bytes of a process and its children, each shared page counted once."""
    total, parents = 0, {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            parents[int(folder.name)] = int(
                (folder / "stat").read_text().rpartition(")")[2].split()[1]
            )
        except OSError:
            continue
    family = {root}
    while more := {pid for pid, parent in parents.items() if parent in family} - family:
        family |= more
    for pid in family:
        try:
            lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
        except OSError:
            continue
        total += sum(1024 * int(line.split()[1]) for line in lines if line.startswith("Pss:"))
    return total


def main() -> None:
    """Measure, with the sampling in a process of its own, and print JSON."""
    child = os.fork()
    if child == 0:
        made, began = world(), time.monotonic()
        for done in coterie.run("fedavg", made, rounds=2, workers=WORKERS):
            whole = sum(p.numel() for p in model().parameters()) if done.number == 2 else 0
        sent = done.bytes_up / CLIENTS
        print(json.dumps({
            "parameters": whole, "bytes of a client in a round": sent, "share of the whole model": sent / (4 * whole),
            "seconds": round(time.monotonic() - began, 1),
        }), flush=True)  # fmt: skip
        os._exit(0)
    most, done = 0, threading.Event()
    while not done.is_set():
        most = max(most, memory(child))
        if os.waitpid(child, os.WNOHANG)[0]:
            done.set()
        time.sleep(0.2)
    print(json.dumps({"greatest memory, bytes": most}))


if __name__ == "__main__":
    sys.exit(main())
