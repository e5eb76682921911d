"""AG News as next-word prediction: articles in, sequences of tokens out."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import torch

from coterie.data import readers
from coterie.data.pool import Dataset, Pool
from coterie.settings import UserError

UNKNOWN, END = "<unknown>", "<end>"
_WORD = re.compile(r"[a-z0-9]+(?:'[a-z]+)?")


def files(folder: Path) -> tuple[Path, ...]:
    """train.csv and test.csv of AG News under ``folder``."""
    places = ("ag_news_csv", "ag_news", "")
    return tuple(readers.find(folder, places, (name,), "ag_news") for name in ("train.csv", "test.csv"))


def read(paths: tuple[Path, ...], vocabulary: int = 10_000, length: int = 30) -> Dataset:
    """Rows of class (1-4), title, description -> inputs and targets ``(N, length)``, targets one word ahead.

    The vocabulary is the most frequent lower-case words of the training articles, after ``<unknown>`` and ``<end>``. A
    topic's articles, each closed by ``<end>``, are joined and cut every ``length`` words, so no sequence is padded.
    meta ``topic``: 0 World, 1 Sports, 2 Business, 3 Sci/Tech.
    """
    articles = [_articles(path) for path in paths]
    counts = Counter(word for _, words in articles[0] for word in words)
    ranked = sorted(counts, key=lambda word: (-counts[word], word))
    words = (UNKNOWN, END, *ranked[: max(vocabulary - 2, 0)])
    number = {word: i for i, word in enumerate(words)}
    train, test = (_sequences(some, number, length, path) for some, path in zip(articles, paths, strict=True))
    return Dataset(name="ag_news", train=train, test=test, classes=len(words), words=words)


def tokens(text: str) -> list[str]:
    """Lower-case words and numbers.

    >>> tokens("It's 28\\\\000 strong.")
    ["it's", '28', '000', 'strong']
    """
    return _WORD.findall(text.lower().replace("\\", " "))


def _articles(path: Path) -> list[tuple[int, list[str]]]:
    """(topic, words) of each article."""
    out = []
    for number, (topic, title, description) in enumerate(readers.rows(path, 3), 1):
        if topic not in ("1", "2", "3", "4"):
            raise UserError(f"{path} is mislabelled: row {number} has class {topic!r} where 1 to 4 were expected")
        out.append((int(topic) - 1, tokens(f"{title} {description}")))
    return out


def _sequences(articles: Iterable[tuple[int, list[str]]], number: dict[str, int], length: int, path: Path) -> Pool:
    streams: dict[int, list[int]] = {}
    for topic, words in articles:
        streams.setdefault(topic, []).extend([number.get(word, 0) for word in words] + [1])
    inputs, targets, topics = [], [], []
    for topic, stream in sorted(streams.items()):
        count = (len(stream) - 1) // length
        inputs.append(np.array(stream[: count * length], np.int64).reshape(count, length))
        targets.append(np.array(stream[1 : count * length + 1], np.int64).reshape(count, length))
        topics.append(np.full(count, topic, np.int64))
    if not sum(map(len, inputs)):
        raise UserError(f"{path} holds fewer than {length + 1} words of any topic, too few for one sequence")
    whole = [torch.from_numpy(np.concatenate(parts)) for parts in (inputs, targets, topics)]
    return Pool(whole[0], whole[1], {"topic": whole[2]})
