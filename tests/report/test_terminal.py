"""The tree of groups by the notes of a run, and tables that say what summaries say."""

import io
from typing import Any

import pytest
from rich.console import Console

from coterie.report import listing, terminal
from coterie.report.compared import COMPARED_NUMBERS
from coterie.report.group_tree import history
from coterie.report.setting_differences import differences


def shown(renderable: Any, width: int = 200) -> str:
    stream = io.StringIO()
    Console(file=stream, width=width).print(renderable)
    return "\n".join(line.rstrip() for line in stream.getvalue().splitlines())


def note(
    kind: str, clients: list[int], parts: list[list[int]], text: str = "why"
) -> dict[str, Any]:
    return {
        "kind": kind,
        "effect": "divides" if parts else "keeps",
        "clients": clients,
        "parts": parts,
        "text": text,
        "criteria": [],
        "numbers": {},
    }


def line(
    round: int, groups: list[list[int]], *notes: dict[str, Any], **scores: Any
) -> dict[str, Any]:
    """A round in which client ``c`` of the ``g``-th group has accuracy ``c / 10``, unless ``accuracy`` says otherwise."""
    accuracy = scores.get("accuracy", lambda client: client / 10)
    clients = {
        str(c): {"group": g, "accuracy": accuracy(c)}
        for g, group in enumerate(groups)
        for c in group
    }
    return {
        "round": round,
        "groups": groups,
        "notes": list(notes),
        "clients": clients,
        "tested": True,
    }


def test_splits_of_splits_are_a_tree() -> None:
    lines = [
        line(1, [[0, 1, 2, 3]], note("keep", [0, 1, 2, 3], [])),
        line(
            2,
            [[0, 1], [2, 3]],
            note("split", [0, 1, 2, 3], [[0, 1], [2, 3]], "at odds [0.9 >= 0.5]"),
        ),
        line(
            5,
            [[0, 1], [2], [3]],
            note("split", [2, 3], [[3], [2]], "again"),
            note("keep", [0, 1], []),
        ),
    ]
    assert shown(terminal.tree(lines)) == "\n".join(
        [
            "0-3 (4 clients)  accuracy 0.150",
            "round 2: at odds [0.9 >= 0.5]",
            "├── 0, 1 (2 clients)  accuracy 0.050",
            "└── 2, 3 (2 clients)  accuracy 0.250",
            "    round 5: again",
            "    ├── 2 (1 client)  accuracy 0.200",
            "    └── 3 (1 client)  accuracy 0.300",
        ]
    )


def test_without_a_split_the_last_reason_stands() -> None:
    lines = [line(r, [[0, 1]], note("keep", [0, 1], [], f"not in round {r}")) for r in (1, 2)]
    assert shown(terminal.tree(lines)) == "0, 1 (2 clients)  accuracy 0.050\nnot in round 2"


def test_a_partition_made_anew_replaces_the_old_one_and_a_confirmed_one_keeps_its_round() -> None:
    def everyone(parts: list[list[int]], text: str) -> dict[str, Any]:
        return note("cluster", [0, 1, 2], parts, text)

    old, new = [[0], [1, 2]], [[0, 1], [2]]
    lines = [
        line(1, old, everyone(old, "a")),
        line(2, new, everyone(new, "b")),
        line(3, new, everyone(new, "c")),
    ]
    found = history(lines)
    assert (found.round, found.why) == (2, "b")
    assert [leaf.clients for leaf in found.leaves()] == [(0, 1), (2,)]
    one = [[0, 1, 2]]
    assert history([*lines, line(4, one, everyone(one, "d"))]).leaves()[0].clients == (0, 1, 2)


def test_groups_that_no_note_explains_are_shown_flat() -> None:
    lines = [line(1, [[0, 1], [2]]), line(2, [[0], [1], [2]], note("split", [0, 1], [[0], [1]]))]
    assert [leaf.clients for leaf in history(lines).leaves()] == [(0,), (1,), (2,)]
    assert "groups of the last round" in shown(terminal.tree(lines))


def test_what_was_not_measured_is_not_shown() -> None:
    assert (
        shown(terminal.tree([line(1, [[0, 1]], accuracy=lambda client: None)]))
        == "0, 1 (2 clients)"
    )


def test_words_of_a_text_are_no_markup() -> None:
    assert "[bold]" in shown(
        terminal.tree([line(1, [[0]], note("keep", [0], [], "[bold] and [/]"))])
    )


def test_events_are_changes_of_groups() -> None:
    assert terminal.event(note("keep", [0, 1], []), 3) is None
    assert terminal.event(note("cluster", [0, 1], [[0, 1]]), 3) is None
    text = terminal.event(note("split", [0, 1, 2], [[0, 1], [2]]), 3)
    assert text is not None
    assert text.plain == "round 3 split: 0, 1 (2 clients) | 2 (1 client)"


@pytest.mark.parametrize(
    ("clients", "text"),
    [
        ([3], "3 (1 client)"),
        ([4, 3], "3, 4 (2 clients)"),
        ([1, 2, 3, 9], "1-3, 9 (4 clients)"),
        ([], " (0 clients)"),
    ],
)
def test_members(clients: list[int], text: str) -> None:
    assert terminal.members(clients) == text


SUMMARY: dict[str, Any] = {
    "method": "cfl", "scenario": "digits/iid", "settings": {}, "seed": 0, "rounds": 9, "groups": [[0], [1]], "ari": None,
    "metric": "accuracy", "better": "greater", "score": {"mean": 0.91, "std": 0.1, "worst": 0.75, "per_client": {}},
    "accuracy": {"mean": 0.91}, "loss": 0.3, "perplexity": 12.5,
    "bytes_up": 2_000_000, "bytes_down": 3_000, "exchanges": 9, "seconds": 1.25,
}  # fmt: skip


def test_a_row_per_run() -> None:
    header, row = shown(terminal.table([SUMMARY])).splitlines()
    assert header.split() == [
        "method",
        "rounds",
        "accuracy",
        "worst",
        "perplexity",
        "groups",
        "ARI",
        "up",
        "down",
        "seconds",
    ]
    usual = {name: value for name, value in SUMMARY.items() if name != "perplexity"}
    assert "…" not in shown(
        terminal.table([{**usual, "method": "independent", "bytes_up": 123_400_000}]), width=80
    )
    assert row.split() == [
        "cfl",
        "9",
        "0.910",
        "0.750",
        "12.500",
        "2",
        "-",
        "2.0",
        "MB",
        "3.0",
        "kB",
        "1.2",
    ]
    assert "seed" in shown(terminal.table([SUMMARY, {**SUMMARY, "seed": 1}]))
    assert "-" in shown(terminal.table([{**SUMMARY, "score": None}]))


def test_a_comparison_says_what_sets_entries_apart() -> None:
    value = {"mean": 0.5, "low": 0.4, "high": 0.6}
    entry = {
        "method": "cfl",
        "scenario": "digits/iid",
        "metric": "accuracy",
        "training": {"lr": 0.1},
        "scenario_settings": {},
        "limits": {"rounds": 9},
        "seeds": [0, 1],
        "rounds": [9],
        **dict.fromkeys(COMPARED_NUMBERS, value),
    }
    one, two = (
        {**entry, "settings": {"eps1": 0.1, "eps2": 1}},
        {**entry, "settings": {"eps1": 0.2, "eps2": 1}},
    )
    assert differences([one, two]) == ["eps1 0.1", "eps1 0.2"]
    text = shown(terminal.comparison([one, two]))
    assert "cfl 1: eps1 0.1\ncfl 2: eps1 0.2" in text
    assert "0.500 ± 0.100" in text
    assert "eps1" not in shown(terminal.comparison([one]))


def test_a_narrow_terminal_shows_costs_in_a_table_of_their_own() -> None:
    value = {"mean": 0.5, "low": None, "high": None, "sd": None}
    entry: dict[str, Any] = {
        "method": "independent",
        "scenario": "digits/iid",
        "settings": {},
        "metric": "accuracy",
        "training": {"lr": 0.1},
        "scenario_settings": {},
        "limits": {"rounds": 9},
        "seeds": [0],
        "rounds": [9],
        **dict.fromkeys(COMPARED_NUMBERS, value),
        "isolated": {"mean": None},
    }
    wide = shown(terminal.comparison([entry]), width=120)
    narrow = shown(terminal.comparison([entry]), width=80)
    assert sum(line.startswith("independent") for line in wide.splitlines()) == 1
    assert sum(line.startswith("independent") for line in narrow.splitlines()) == 2
    # The same words, and nothing is cut off.
    assert set(wide.split()) == set(narrow.split())
    assert "…" not in narrow


def test_settings_in_which_rows_of_different_methods_differ_are_said_once() -> None:
    blank = {name: {"mean": None, "low": None, "high": None} for name in COMPARED_NUMBERS}
    about: dict[str, Any] = {
        "scenario_settings": {},
        "boundary": {},
        "settings": {},
        "limits": {"rounds": 9},
        "metric": "loss",
    }
    entry = {**about, "scenario": "digits/iid", "seeds": [0], "rounds": [9], **blank}
    rates = {"fedavg": 0.1, "cfl": 0.2, "ifca": 0.1}
    rows = [
        {**entry, "method": name, "training": {"lr": lr, "batch": 32}} for name, lr in rates.items()
    ]
    text = shown(terminal.comparison(rows))
    assert (
        text.splitlines()[-1]
        == "The rows differ in more than the method: lr 0.1 (fedavg, ifca), 0.2 (cfl)"
    )
    assert "differ" not in shown(terminal.comparison(rows[:1]))


def test_a_comparison_is_a_table_per_scenario_of_at_most_116_columns() -> None:
    def entry(scenario: str, method: str, **values: float) -> dict[str, Any]:
        known = {
            name: {"mean": value, "low": value - 0.1, "high": value + 0.1}
            for name, value in values.items()
        }
        blank = {name: {"mean": None, "low": None, "high": None} for name in COMPARED_NUMBERS}
        about: dict[str, Any] = {
            name: {} for name in ("training", "scenario_settings", "limits", "settings")
        }
        about |= {"metric": "accuracy", "better": "greater"}
        return {
            **about,
            "method": method,
            "scenario": scenario,
            "seeds": [0, 1, 2],
            "rounds": [100, 200],
            **blank,
            **known,
        }

    full = entry(
        "digits/iid",
        "independent",
        score=0.9,
        worst=0.75,
        std=0.0123,
        ari=1,
        groups=20,
        exchanges=200,
        bytes_up=999.9e6,
        bytes_down=999.9e6,
        evaluations=123_456,
    )
    text = shown(
        terminal.comparison([full, entry("digits/label-swap", "cfl"), entry("digits/iid", "cfl")])
    )
    assert max(map(len, text.splitlines())) <= 116
    lines = [line.split() for line in text.splitlines()]
    assert lines[0] == ["digits/iid"]
    assert lines[3] == [
        "independent",
        "3",
        "100-200",
        "0.900",
        "±",
        "0.100",
        "0.750",
        "0.012",
        "1.00",
        "20.0",
        "200",
        "999.9",
        "MB",
        "999.9",
        "MB",
        "123456",
    ]
    assert lines[4] == ["cfl", "3", "100-200", *["-"] * 9]
    assert lines[5:7] == [[], ["digits/label-swap"]]


def test_a_comparison_tells_of_isolated_adversaries_where_there_are_any() -> None:
    blank = {name: {"mean": None, "low": None, "high": None} for name in COMPARED_NUMBERS}
    about: dict[str, Any] = {
        name: {} for name in ("training", "boundary", "scenario_settings", "limits", "settings")
    }
    about |= {"metric": "accuracy"}
    entry = {
        **about,
        "method": "cfl",
        "scenario": "digits/iid",
        "seeds": [0],
        "rounds": [9],
        **blank,
    }
    assert "isolated" not in shown(terminal.comparison([entry]))
    text = shown(
        terminal.comparison(
            [{**entry, "isolated": {"mean": 0.75, "low": None, "high": None}}, entry]
        )
    )
    assert "isolated" in text
    assert [line.split()[-1] for line in text.splitlines()[-2 - text.count("cfl 1:") :][:2]] == [
        "0.75",
        "-",
    ]


def test_settings_are_listed_with_their_limits() -> None:
    from coterie.methods import FLHC

    text = shown(listing.settings(FLHC))
    assert "single, complete, average, ward" in text
    assert "an integer >= 0" in text
    assert "none" in text


def test_newcomers_join_the_leaves_and_those_who_wait_hang_below_the_root() -> None:
    lines = [
        line(1, [[0, 1, 2, 3]]),
        line(2, [[0, 1], [2, 3]], note("split", [0, 1, 2, 3], [[0, 1], [2, 3]])),
        line(3, [[0, 1], [2, 3], [7]]),  # 7 has come, and waits
        line(4, [[0, 1, 7], [3]]),  # it has arrived, and 2 has gone
    ]
    assert [leaf.clients for leaf in history(lines[:3]).leaves()] == [(0, 1), (2, 3), (7,)]
    whole = history(lines)
    assert (whole.clients, whole.round, whole.why) == ((0, 1, 3, 7), 2, "why")
    assert [leaf.clients for leaf in whole.leaves()] == [(0, 1, 7), (3,)]
