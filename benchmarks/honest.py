"""What honest clients send, and what default limits make of it: benchmarks/results/honest.json.

The page notes/hostile.md quotes it.

    python benchmarks/honest.py [NEWS.csv [PART ...]]      NEWS.csv has the columns source, topic
    and text: a client per source

Part ``norms``: the greatest norm of an honest update beside what is usual for a client of as many
steps, over all clients and rounds. Part ``accuracy``: FedAvg with default settings, in each engine,
beside FedAvg as published, without any limit.
"""

import collections
import csv
import json
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

import coterie
from coterie.contrib.ray import cluster as ray
from coterie.core import Client, Round, Training
from coterie.data.world import World
from coterie.engines.flower import simulation
from coterie.methods import FedAvg
from coterie.robust import AS_PUBLISHED, NORMS, Length, Limited, Robust, Usual

OUT = Path(__file__).parent / "results" / "honest.json"
METHODS = ("fedavg", "cfl", "ifca", "hcct", "split-half")
DIGITS = ("iid", "quantity", "dirichlet", "label-permutation", "rotation", "class-groups")
ROUNDS = 60
NEWS_ROUNDS = 45
WORDS = {"mlp": 1500, "embedding": 8000}
LENGTH = 60
"""The greatest number of words of an article."""


# -- worlds
# ---------------------------------------------------------------------------------------------------------------


class Embedding(nn.Module):
    """The mean of the embeddings of an article's words, with dropout, and a linear layer."""

    def __init__(self, words: int, size: int = 32, topics: int = 4) -> None:
        super().__init__()
        self.words = nn.Embedding(words, size)
        self.dropout = nn.Dropout(0.2)
        self.topics = nn.Linear(size, topics)

    def forward(self, articles: torch.Tensor) -> torch.Tensor:
        """Return the logits ``(n, topics)`` of articles ``(n, LENGTH)`` of word numbers, -1 after the last one."""
        there = (articles >= 0).float()[..., None]
        vectors = self.words(articles.long().clamp(min=0)) * there
        return self.topics(self.dropout(vectors.sum(1) / there.sum(1).clamp(min=1)))


def mlp(words: int) -> nn.Module:
    return nn.Sequential(nn.Linear(words, 64), nn.ReLU(), nn.Linear(64, 4))


def news(path: str, net: str) -> World:
    """Make a world of news sources, each with its own articles.

    Args:
        path: The table.
        net: ``"mlp"`` on which of 1,500 words occur, by SGD with .1; or ``"embedding"`` of 8,000
            words, by Adam with .003.
    """
    with open(path, encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    topics = sorted({row["topic"] for row in rows})
    texts = [re.findall("[a-z]+", row["text"].lower()) for row in rows]
    # In the order of the alphabet, since sets are ordered otherwise in every process.
    occurring = collections.Counter(word for text in texts for word in sorted(set(text)))
    number = {word: i for i, (word, _) in enumerate(occurring.most_common(WORDS[net]))}
    inputs = (
        np.zeros((len(rows), WORDS[net]), np.float32)
        if net == "mlp"
        else np.full((len(rows), LENGTH), -1, np.float32)
    )
    for i, text in enumerate(texts):
        known = [number[word] for word in text if word in number]
        if net == "mlp":
            inputs[i, known] = 1
        else:
            inputs[i, : len(known)] = known[:LENGTH]
    places: dict[str, list[int]] = collections.defaultdict(list)
    for i, row in enumerate(rows):
        places[row["source"]].append(i)
    targets = np.array([topics.index(row["topic"]) for row in rows])
    clients = {source: (inputs[chosen], targets[chosen]) for source, chosen in places.items()}
    adam = Training(lr=0.003, optimizer="adam", batch=16)
    training = Training(lr=0.1, batch=16) if net == "mlp" else adam
    return coterie.from_lists(
        clients, model=partial(mlp if net == "mlp" else Embedding, WORDS[net]), training=training
    )


# -- the greatest norms
# ---------------------------------------------------------------------------------------------------


class Watching(Robust):
    """Limits that change nothing, and keep the greatest norm in multiples of the usual one."""

    greatest = 0.0

    def limited(
        self,
        lengths: Mapping[Client, Length],
        claims: Mapping[Client, int],
        usual: Usual | None = None,
    ) -> Limited:
        usual = usual or Usual()
        usual.add(lengths.values())
        for length in lengths.values():
            compared = usual.same_start(length)
            if compared is not None and compared[0]:
                Watching.greatest = max(Watching.greatest, length.update / compared[0])
        return Limited({}, {})


def norms(worlds: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    for name, world in worlds.items():
        for method in METHODS:
            Watching.greatest = 0.0
            rounds = NEWS_ROUNDS if name.startswith("news") else ROUNDS
            for _ in coterie.run(
                method,
                world,
                rounds=rounds,
                workers=1,
                eval_every=rounds,
                robust=Watching(norms=NORMS),
            ):
                pass
            yield {
                "world": name,
                "method": method,
                "rounds": rounds,
                "greatest": round(Watching.greatest, 2),
            }


# -- accuracies
# -----------------------------------------------------------------------------------------------------------


def engines(world: Callable[[], World], rounds: int) -> Iterator[tuple[str, Iterator[Round]]]:
    """Name of a column -> the rounds of FedAvg with default settings in an engine, or as published."""
    how: dict[str, Any] = {"rounds": rounds, "workers": 1, "eval_every": rounds}
    yield "as published", coterie.run("fedavg", world(), **how, robust=AS_PUBLISHED)
    yield "in process", coterie.run("fedavg", world(), **how)
    yield "Flower", simulation.rounds(FedAvg(), world, **how)
    with ray.connected(cores=1):
        yield "Ray", ray.rounds(FedAvg(), world(), world, **how)


def accuracies(worlds: Mapping[str, Callable[[], World]]) -> Iterator[dict[str, Any]]:
    for name, world in worlds.items():
        sizes = {client: len(data.test) for client, data in world().clients.items()}
        for engine, rounds in engines(world, NEWS_ROUNDS):
            *_, last = rounds
            assert last.scores is not None
            each = {client: score["accuracy"] for client, score in last.scores.items()}
            by_examples = sum(each[client] * sizes[client] for client in each) / sum(
                sizes[client] for client in each
            )
            row = {
                "world": name,
                "engine": engine,
                "mean": round(float(np.mean(list(each.values()))), 4),
            }
            yield {
                **row,
                "by_examples": round(by_examples, 4),
                "limited": len(last.scaled) + len(last.claimed),
            }


def main(path: str | None, chosen: Sequence[str] = ()) -> None:
    worlds: dict[str, Any] = {
        f"digits/{name}": coterie.SCENARIOS[f"digits/{name}"] for name in DIGITS
    }
    unequal: dict[str, Callable[[], World]] = {
        "digits/quantity": partial(coterie.SCENARIOS["digits/quantity"].build, 0)
    }
    if path is not None:
        nets = {f"news, {net}": partial(news, path, net) for net in WORDS}
        worlds |= {name: made() for name, made in nets.items()}
        unequal |= nets
    found = json.loads(OUT.read_text()) if OUT.is_file() else {}
    parts = {"norms": lambda: norms(worlds), "accuracy": lambda: accuracies(unequal)}
    for part, rows in ((name, parts[name]()) for name in chosen or parts):
        found[part] = []
        for row in rows:
            found[part].append(row)
            print(json.dumps(row), flush=True)
            OUT.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else None, sys.argv[2:])
