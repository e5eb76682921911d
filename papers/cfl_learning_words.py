"""A next-word problem without files: four Markov chains over one small vocabulary."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from coterie.core import Training, as_groups
from coterie.data.objective import Objective
from coterie.data.own import from_lists
from coterie.data.shift import deal
from coterie.data.world import World
from coterie.randomness import Purpose, numpy_generator

CHAINS = "chains/topics"
"""What a scenario of chains is called."""

TINY = "papers.cfl_learning_nets:tiny_lstm"
"""The net that its clients train."""


def chains(topics: int, words: int, narrow: float, rng: np.random.Generator) -> np.ndarray:
    """``(topics, words, words)``: of each topic, the probabilities of the next word; the narrower, the fewer words are
    likely."""
    return rng.dirichlet(np.full(words, narrow), (topics, words))


def walk(chain: np.ndarray, sequences: int, length: int, rng: np.random.Generator) -> np.ndarray:
    """``(sequences, length)`` words: the first any word, each next by the chain ``(words, words)``."""
    levels = chain.cumsum(1)
    text = np.empty((sequences, length), np.int64)
    text[:, 0] = rng.integers(len(chain), size=sequences)
    for t in range(1, length):
        draws = rng.random((sequences, 1))
        text[:, t] = np.minimum((draws > levels[text[:, t - 1]]).sum(1), len(chain) - 1)
    return text


def world_of_chains(scenario: Mapping[str, Any], training: Mapping[str, Any], seed: int) -> World:
    """Clients with sequences of one topic each. scenario: clients, topics, words, narrow, length and sequences of a client,
    of which one fifth is to test."""
    rng = numpy_generator(seed, Purpose.DATA)
    topics, words, length = (scenario[name] for name in ("topics", "words", "length"))
    of = chains(topics, words, scenario["narrow"], rng)
    topic = deal(scenario["clients"], topics, rng)
    texts = [walk(of[kind], scenario["sequences"], length + 1, rng) for kind in topic]
    truth = as_groups([np.flatnonzero(topic == kind).tolist() for kind in range(topics)])
    return from_lists(
        [(text[:, :-1], text[:, 1:]) for text in texts],
        model=TINY,
        classes=words,
        train=0.8,
        validation=0.0,
        seed=seed,
        training=Training(**training),
        truth=truth,
        objective=Objective(metrics=("accuracy", "perplexity")),
    )
