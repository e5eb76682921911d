"""AG News for next-word prediction: from articles to sequences of tokens."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from coterie.data import readers
from coterie.data.datasets.source import DatasetSettings, Paths, Source, register
from coterie.data.examples import Dataset, Pool
from coterie.settings import UserError, setting

# Upstream: the files train.csv (120,000 rows) and test.csv (7,600 rows) of AG News. A row is a
# class from 1 to 4, a title and a description.
#
# From rows to examples: the text of a row becomes lower-case words, words become tokens, and the
# tokens of all articles of a topic become one stream, which is cut into sequences.
#
# From examples to clients: the partition ``topic`` gives each client sequences of one topic only,
# and the topics are the true groups. Partitions by label use the topics as labels.
UNKNOWN = "<unknown>"
END = "<end>"
END_TOKEN = 1
"""Tokens 0 and 1 are unknown words and the end of an article."""

_WORD = re.compile(r"[a-z0-9]+(?:'[a-z]+)?")

Article = tuple[int, list[str]]
"""The topic of an article, 0 to 3, and its words."""


@dataclass(frozen=True, kw_only=True)
class TextSettings(DatasetSettings):
    """The size of the vocabulary and of the sequences."""

    vocabulary: int = setting(10_000, "number of words", ge=3, le=10_000_000)
    length: int = setting(30, "words of a sequence", ge=1, le=1_000_000)


def text_files(folder: Path) -> Paths:
    """Find ``train.csv`` and ``test.csv`` of AG News under ``folder``."""
    places = ("ag_news_csv", "ag_news", "")
    train_path = readers.find(folder, places, ("train.csv",), "ag_news")
    test_path = readers.find(folder, places, ("test.csv",), "ag_news")
    return train_path, test_path


def read_text(paths: Paths, options: TextSettings, seed: int = 0) -> Dataset:
    """Read AG News as a data set for next-word prediction.

    A row of a file is a class (1-4), a title and a description. Inputs and targets have shape ``(N,
    length)``; targets are the inputs shifted by one word. The vocabulary is ``<unknown>``,
    ``<end>`` and the most frequent lower-case words of the training articles. The articles of one
    topic, each followed by ``<end>``, are joined and cut every ``length`` words, so no sequence is
    padded.

    Args:
        paths: The training file and the test file.
        options: The size of the vocabulary, ``<unknown>`` and ``<end>`` included, and of the
            sequences.
        seed: Not used.

    Returns:
        The data set. Its meta ``topic`` is 0 World, 1 Sports, 2 Business or 3 Sci/Tech.

    Raises:
        UserError: A file is not such a csv file, has another class, or is too short for one
            sequence.
    """
    del seed
    # Step 1: read both files, and split every article into words.
    train_path, test_path = paths
    train_articles = _articles(train_path)
    test_articles = _articles(test_path)
    # Step 2: number the words. Only training articles decide which words have a token of their own.
    vocabulary = _vocabulary(train_articles, options.vocabulary)
    token_of = {word: token for token, word in enumerate(vocabulary)}
    # Step 3: join the articles of each topic and cut them into sequences, both pools alike.
    return Dataset(
        name=options.name,
        train=_sequences(train_articles, token_of, options.length, train_path),
        test=_sequences(test_articles, token_of, options.length, test_path),
        classes=len(vocabulary),
        words=vocabulary,
    )


def _vocabulary(articles: list[Article], vocabulary_size: int) -> tuple[str, ...]:
    counts = Counter(word for _, words in articles for word in words)
    # The most frequent words come first; words of one frequency are in alphabetical order.
    by_frequency = sorted(counts, key=lambda word: (-counts[word], word))
    return (UNKNOWN, END, *by_frequency[: max(vocabulary_size - 2, 0)])


def words_of(text: str) -> list[str]:
    r"""Return the lower-case words and numbers of a text.

    Example:
        >>> words_of("It's 28\\\\000 strong.")
        ["it's", '28', '000', 'strong']
    """
    # Upstream writes some line breaks as a backslash, which separates words.
    return _WORD.findall(text.lower().replace("\\", " "))


def _articles(path: Path) -> list[Article]:
    articles = []
    for row_number, (topic, title, description) in enumerate(readers.rows(path, 3), 1):
        # Upstream counts topics from 1, and we count from 0.
        if topic not in ("1", "2", "3", "4"):
            raise UserError(
                f"{path} is mislabelled: row {row_number} has class {topic!r} where 1 to 4 were expected"
            )
        articles.append((int(topic) - 1, words_of(f"{title} {description}")))
    return articles


def _sequences(articles: list[Article], token_of: dict[str, int], length: int, path: Path) -> Pool:
    # Topic -> the tokens of its articles.
    streams: dict[int, list[int]] = {}
    # Join the articles of each topic.
    for topic, words in articles:
        stream = streams.setdefault(topic, [])
        stream += [token_of.get(word, 0) for word in words]
        stream.append(END_TOKEN)
    # Cut each stream; a target is the word that follows.
    inputs: list[np.ndarray] = []
    targets: list[np.ndarray] = []
    topics: list[np.ndarray] = []
    for topic, stream in sorted(streams.items()):
        sequence_count = (len(stream) - 1) // length
        tokens = np.array(stream[: sequence_count * length + 1], np.int64)
        inputs.append(tokens[: sequence_count * length].reshape(sequence_count, length))
        targets.append(tokens[1:].reshape(sequence_count, length))
        topics.append(np.full(sequence_count, topic, np.int64))
    # A topic with fewer words than one sequence needs gives none; at least one topic must give
    # some.
    if not sum(map(len, inputs)):
        raise UserError(
            f"{path} holds fewer than {length + 1} words of any topic, too few for one sequence"
        )
    return Pool(
        torch.from_numpy(np.concatenate(inputs)),
        torch.from_numpy(np.concatenate(targets)),
        {"topic": torch.from_numpy(np.concatenate(topics))},
    )


register(
    "ag_news",
    Source(
        "news articles of four topics, for next-word prediction (csv)",
        read_text,
        text_files,
        options=TextSettings,
    ),
)
