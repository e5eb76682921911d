"""AG News as next-word prediction."""

from pathlib import Path

import pytest

from coterie.data import datasets
from coterie.data.datasets import ag_news
from coterie.settings import UserError

ROWS = '"3","Oil up","Oil prices rise"\n"1","Vote","Oil vote"\n"3","","Prices fall"\n'


def write(folder: Path, train: str = ROWS, test: str = ROWS) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "train.csv").write_text(train)
    (folder / "test.csv").write_text(test)
    return folder


def test_targets_are_the_next_words(tmp_path: Path) -> None:
    write(tmp_path / "ag_news_csv", test='"3","","Oil zebra prices rise oil up"\n')
    data = datasets.load("ag_news", tmp_path, vocabulary=100, length=3)
    assert data.words[:4] == (
        ag_news.UNKNOWN,
        ag_news.END,
        "oil",
        "prices",
    )  # 3 times, 2 times (vote as well, later in abc)
    sentence = [[data.words[t] for t in row] for row in data.train.inputs.tolist()]
    targets = [[data.words[t] for t in row] for row in data.train.targets.tolist()]
    # Topic 0: vote oil vote <end>. Topic 2: oil up oil prices rise <end> prices fall <end>.
    assert sentence == [
        ["vote", "oil", "vote"],
        ["oil", "up", "oil"],
        ["prices", "rise", ag_news.END],
    ]
    assert targets == [
        ["oil", "vote", ag_news.END],
        ["up", "oil", "prices"],
        ["rise", ag_news.END, "prices"],
    ]
    assert data.train.meta["topic"].tolist() == [0, 2, 2] == data.train.labels.tolist()
    assert data.test is not None
    assert data.words[data.test.inputs[0, 1]] == ag_news.UNKNOWN


def test_the_vocabulary_is_bounded(tmp_path: Path) -> None:
    data = datasets.load("ag_news", write(tmp_path), vocabulary=3, length=2)
    assert data.words == (ag_news.UNKNOWN, ag_news.END, "oil")
    assert data.classes == 3
    assert data.train.inputs.max() < 3


def test_rows_that_are_no_articles(tmp_path: Path) -> None:
    write(tmp_path, train='"5","a","b"\n')
    with pytest.raises(
        UserError, match=r"train.csv is mislabelled: row 1 has class '5' where 1 to 4 were expected"
    ):
        datasets.load("ag_news", tmp_path)
    write(tmp_path, train='"1","a","b"\n')
    with pytest.raises(UserError, match="fewer than 31 words of any topic"):
        datasets.load("ag_news", tmp_path)


def test_the_real_articles(data_folder: Path) -> None:
    data = datasets.load("ag_news", data_folder, vocabulary=5000, length=20)
    assert data.classes == 5000
    assert data.shape == (20,)
    assert data.train.targets.shape == data.train.inputs.shape
    assert data.train.meta["topic"].unique().tolist() == [0, 1, 2, 3]
