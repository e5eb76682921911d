"""What CFL's figures 8 and 9 say, beside what came out here: the rules of the verdicts."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from coterie.report.summary import interval
from coterie.report.words import plus_minus
from papers.comparing import ONE_MODEL, labels, of, sent
from papers.numbers import found, mean, spread, surely_less
from papers.study import Claim, Row, Table

SOON = 5
"""Rounds after a split within which its effect counts as being there at once."""

CRITERIA, COMPLETE, MIXED_UP = "CFL, by criteria", "CFL, complete linkage", "CFL, ids mixed up"
"""Labels of what is compared beside CFL with split rounds."""

SETTING_CHANGED = {("CIFAR-10", 140), ("chains", 50)}
"""(problem, rounds) of runs whose setting was changed after a trial in which the groups were wrong.
What right groups are enough for does not count there; what fails in spite of them does."""


def by_schedule(rows: Sequence[Row]) -> list[Row]:
    """The rows of CFL as the figures have it: with split rounds and a constant learning rate."""
    return [
        row
        for row in rows
        if row["cell"]["method"]["name"] == "cfl"
        and "split_rounds" in row["cell"]["method"]
        and not row["cell"].get("halve_after")
    ]


def splits(rows: Sequence[Row]) -> list[int]:
    """The rounds in which CFL splits."""
    return list(by_schedule(rows)[0]["cell"]["method"]["split_rounds"])


def before_and_after(row: Row, split: int) -> tuple[int, int]:
    """Positions in ``tested``: the last before a split round, and the last at most :data:`SOON` rounds after it.

    >>> before_and_after({"found": {"tested": [45, 50, 55, 60]}}, 50)
    (0, 2)
    """
    tested = row["found"]["tested"]
    before = [i for i, round in enumerate(tested) if round < split]
    after = [i for i, round in enumerate(tested) if split <= round <= split + SOON]
    return (before or [0])[-1], (after or [len(tested) - 1])[-1]


def after_a_trial(rows: Sequence[Row]) -> str:
    """Why what right groups are enough for does not count; empty if it does."""
    cell = rows[0]["cell"]
    changed = (cell["problem"], cell["rounds"]) in SETTING_CHANGED
    return "the setting was changed after a failing trial" if changed else ""


# -- figure 8
# --------------------------------------------------------------------------------------------------------------


def of_permutations(rows: Sequence[Row]) -> tuple[Claim, ...]:
    cfl, joint, first = by_schedule(rows), of(rows, ONE_MODEL), splits(rows)[0]
    until = before_and_after(joint[0], first + 1)[0]
    before, after = (float(found(joint, "scores")[:, i].mean()) for i in (until, -1))
    ratio = mean(cfl, "accuracy") / before
    at_once = float(np.mean([_best_gain(row, first) for row in cfl]))
    return (
        Claim(
            what="accuracy at the end, CFL beside FL",
            printed="close to 60 % beside 20 %: more than doubled",
            ours=f"{spread(cfl, 'accuracy', digits=3)} beside {before:.3f} after round {first}: {ratio:.2f} times",
            rule=f"at least twice FL's after round {first}",
            holds=ratio >= 2,
        ),
        Claim(
            what=f"FL after round {first}",
            printed="converged, stagnates at around 20 %",
            ours=f"{after - before:+.3f} until the end",
            rule="at most 0.025 more or less",
            holds=abs(after - before) <= 0.025,
        ),
        Claim(
            what="the first split, for the group that gains most",
            printed="+25 points at once",
            ours=f"{at_once:+.3f}",
            rule=f"at least +0.15 after {SOON} rounds",
            holds=at_once >= 0.15,
        ),
        _right(
            "the groups after three splits",
            "all incongruent clients separated",
            cfl,
            after_a_trial(cfl),
        ),
        *_cosines(cfl, first),
        *(
            [
                _right(
                    "CFL by its criteria: groups",
                    "– (the figures split in given rounds)",
                    criteria,
                    "no claim of the paper",
                )
            ]
            if (criteria := of(rows, CRITERIA))
            else []
        ),
        *(_ablation(rows, cfl, name) for name in (COMPLETE, MIXED_UP) if name in labels(rows)),
        *_limits(rows, cfl, before, first),
    )


def _limits(
    rows: Sequence[Row], cfl: Sequence[Row], before: float, first: int
) -> tuple[Claim, ...]:
    """What the clients of one true group reach alone, which no grouping can be expected to exceed, beside FL and CFL.

    before: FL's accuracy in round ``first``, that of the first split.
    """
    alone = [row for row in rows if row["cell"].get("group") is not None]
    claims: list[Claim] = []
    for name in labels(alone):
        own = of(alone, name)
        end, curve = mean(own, "accuracy"), found(own, "scores").mean(0)
        best = int(curve.argmax())
        claims.append(
            Claim(
                what=f"{name}, beside FL",
                printed="– (what any grouping can reach on these images with this net)",
                ours=f"{spread(own, 'accuracy', digits=3)} at the end: {end / before:.2f} times; at most {curve[best]:.3f}, "
                f"in round {own[0]['found']['tested'][best]}: {curve[best] / before:.2f} times",
                rule=f"at least twice FL's after round {first}, at the end",
                holds=end >= 2 * before,
                aside="no claim of the paper",
            )
        )
        # CFL is as good as a known grouping only where both train at the same learning rate.
        if own[0]["cell"].get("halve_after"):
            continue
        more = mean(cfl, "accuracy") - end
        claims.append(
            Claim(
                what=f"CFL at the end, beside {name}",
                printed="– (how near CFL comes to that)",
                ours=f"{mean(cfl, 'accuracy'):.3f} beside {end:.3f}: {more:+.3f}",
                rule="at most 0.025 less",
                holds=more >= -0.025,
                aside="no claim of the paper",
            )
        )
    return tuple(claims)


def _best_gain(row: Row, split: int) -> float:
    """Of the true groups: the greatest gain at once after a split."""
    before, after = before_and_after(row, split)
    return max(curve[after] - curve[before] for curve in row["found"]["by_group"])


def _right(what: str, printed: str, rows: Sequence[Row], aside: str) -> Claim:
    right = [row["found"]["ari"] == 1.0 for row in rows]
    return Claim(
        what=what,
        printed=printed,
        ours=f"exactly the true groups in {sum(right)} of {len(right)} runs, adjusted Rand {spread(rows, 'ari')}",
        rule="in all runs",
        holds=all(right),
        aside=aside,
    )


def _cosines(rows: Sequence[Row], first: int) -> tuple[Claim, ...]:
    """What g(α) and the cosines within groups are before the first split and at the end."""
    early = [_last(leaf, "gap", first) for row in rows for leaf in row["found"]["leaves"][:1]]
    final = [
        leaf
        for row in rows
        for leaf in row["found"]["leaves"]
        if leaf["rounds"][-1] == row["found"]["tested"][-1]
    ]
    late, alike = ([leaf[name][-1] for leaf in final] for name in ("gap", "mean"))
    furthest = max(alike, key=abs)
    return (
        Claim(
            what="the separation gap before the first split",
            printed="a distinct gap has developed",
            ours=f"{np.mean(early):.2f}, least {min(early):.2f}",
            rule="above zero in every run",
            holds=min(early) > 0,
        ),
        Claim(
            what="the separation gap within each group at the end",
            printed="below zero in all clusters",
            ours=f"{np.mean(late):.2f}, greatest {max(late):.2f}",
            rule="below zero in every group of every run",
            holds=max(late) < 0,
            aside="true of all right groups",
        ),
        Claim(
            what="cosines within the groups at the end",
            printed="close to zero (workshop paper)",
            ours=f"mean {np.mean(alike):.2f}, of one group {furthest:.2f}",
            rule="their mean within 0.1 of zero in every group of every run",
            holds=abs(furthest) <= 0.1,
        ),
    )


def _last(leaf: dict[str, list[float]], name: str, until: int) -> float:
    """A number of a group in the last tested round up to ``until``, or in its first."""
    known = [
        value for round, value in zip(leaf["rounds"], leaf[name], strict=True) if round <= until
    ]
    return (known or leaf[name])[-1]


def _ablation(rows: Sequence[Row], cfl: Sequence[Row], name: str) -> Claim:
    own = of(rows, name)
    more = mean(own, "accuracy") - mean(cfl, "accuracy")
    return Claim(
        what=f"{name}: accuracy beside CFL's",
        printed="– (published code)",
        ours=f"{spread(own, 'accuracy', digits=3)}, {more:+.3f}; adjusted Rand {spread(own, 'ari')}",
        rule="less than CFL's: the 95 % interval of the differences is below zero",
        holds=surely_less(found(own, "accuracy"), found(cfl, "accuracy")),
        aside="no claim of the paper",
    )


# -- figure 9
# --------------------------------------------------------------------------------------------------------------


def of_words(rows: Sequence[Row]) -> tuple[Claim, ...]:
    cfl, joint, marks = by_schedule(rows), of(rows, ONE_MODEL), splits(rows)
    ratio = mean(cfl, "perplexity") / mean(joint, "perplexity")
    until = before_and_after(joint[0], marks[0] + 1)[0]
    stalls = float(np.mean(found(joint, "scores")[:, -1] / found(joint, "scores")[:, until]))
    worst = float(np.mean([max(row["found"]["clients"]) for row in cfl]))
    unserved = worst / mean(joint, "perplexity")
    falls = [
        tuple(float(np.mean([_fall(row, split) for row in own])) for own in (cfl, joint))
        for split in marks
    ]
    aside = after_a_trial(cfl)
    return (
        Claim(
            what="perplexity at the end, CFL beside FL",
            printed="below 36 beside 42: 0.86 of it",
            ours=f"{spread(cfl, 'perplexity', digits=1)} beside {spread(joint, 'perplexity', digits=1)}: {ratio:.2f} of it",
            rule="at most 0.9 of it",
            holds=ratio <= 0.9,
            aside=aside,
        ),
        Claim(
            what=f"FL after round {marks[0]}",
            printed="stationary: 43, and 42 at the end",
            ours=f"{stalls:.2f} of it at the end",
            rule="0.95 to 1.05 of it",
            holds=0.95 <= stalls <= 1.05,
        ),
        Claim(
            what="perplexity of CFL at each split",
            printed="falls (figure)",
            ours="; ".join(
                f"{fall:+.1%} beside {joint_fall:+.1%} of FL" for fall, joint_fall in falls
            ),
            rule=f"falls, and by more than FL's, from the last test before a split to {SOON} rounds after it, all three times",
            holds=all(fall < min(joint_fall, 0) for fall, joint_fall in falls),
            aside=aside,
        ),
        Claim(
            what="the client that CFL serves worst",
            printed="all clients below 36, FL 42 on average",
            ours=f"{worst:.1f} beside FL's mean of {mean(joint, 'perplexity'):.1f}: {unserved:.2f} of it",
            rule="at most 0.9 of it",
            holds=unserved <= 0.9,
        ),
        _right("the groups after three splits", "the four true clusters", cfl, aside),
        *_best_rounds(rows, cfl, joint),
    )


def _best_rounds(
    rows: Sequence[Row], cfl: Sequence[Row], joint: Sequence[Row]
) -> tuple[Claim, ...]:
    """CFL beside FL in the best round of each run, where clients have validation data that choose it.

    cfl, joint: the rows at a constant learning rate, whose clients have none; their least
    perplexity on test data is told beside.
    """
    validated = [row for row in rows if "chosen" in row["found"]]
    if not validated:
        return ()
    ours, fl = (
        [row for row in validated if ("split_rounds" in row["cell"]["method"]) == splits]
        for splits in (True, False)
    )
    one, other = (np.array([_at_best(row) for row in own]) for own in (ours, fl))
    ratio = float(one.mean() / other.mean())
    least, fl_least = (found(own, "scores").min(1).mean() for own in (cfl, joint))
    return (
        Claim(
            what="in the best round by validation, with the learning rate halved at each split: perplexity, CFL beside FL",
            printed="below 36 beside 42: 0.86 of it",
            ours=f"{best_round(ours)} beside {best_round(fl)}: {ratio:.2f} of it (at a constant rate, best "
            f"round by the test data themselves: {least:.1f} beside {fl_least:.1f}, {least / fl_least:.2f} of it)",
            rule="at most 0.9 of it",
            holds=ratio <= 0.9,
            aside="the setting was changed after a look at the results",
        ),
        Claim(
            what="the same: whether CFL is ahead at all",
            printed="ahead",
            ours=f"{float((one - other).mean()):+.1f}; in {int((one < other).sum())} of {len(one)} runs",
            rule="less than FL's: the 95 % interval of the differences is below zero",
            holds=surely_less(one, other),
            aside="the setting was changed after a look at the results",
        ),
        _right(
            "the same: the groups after three splits",
            "the four true clusters",
            ours,
            "the setting was changed after a look at the results",
        ),
    )


def _at_best(row: Row) -> float:
    """The mean over clients of the test score in the round that is best by validation."""
    return float(np.mean(row["found"]["chosen"]["clients"]))


def best_round(rows: Sequence[Row]) -> str:
    """The test score in the rounds that are best by validation, with its interval, and these rounds; – if none was chosen."""
    if any("chosen" not in row["found"] for row in rows):
        return "–"
    text = plus_minus(interval([_at_best(row) for row in rows]), 1)
    chosen = sorted({row["found"]["chosen"]["round"] for row in rows})
    return f"{text} (round{'s' * (len(chosen) > 1)} {', '.join(map(str, chosen))})"


def _fall(row: Row, split: int) -> float:
    """By which share the mean score grows at once after a split."""
    before, after = before_and_after(row, split)
    return float(row["found"]["scores"][after] / row["found"]["scores"][before] - 1)


def word_table(rows: Sequence[Row]) -> Table:
    """A row per method: perplexity, for whom, in which groups, at what cost."""
    lines = []
    validated = any("chosen" in row["found"] for row in rows)
    for name in labels(rows):
        own = of(rows, name)
        lines.append(
            (
                name,
                spread(own, "perplexity", digits=1),
                *([best_round(own)] if validated else []),
                f"{np.mean([max(row['found']['clients']) for row in own]):.1f}",
                f"{mean(own, 'perplexity') / mean(of(rows, ONE_MODEL), 'perplexity'):.2f}",
                spread(own, "accuracy", digits=3),
                spread(own, "ari"),
                spread(own, "groups", digits=1),
                f"{mean(own, 'exchanges'):.0f}",
                sent(own),
            )
        )
    head = (
        "method",
        "perplexity",
        *(["in the best round by validation"] if validated else []),
        "worst client",
        "to FedAvg",
        "right words",
        "adjusted Rand",
        "groups",
        "exchanges",
        "MB",
    )
    return Table(head, tuple(lines), "l" + "r" * (len(head) - 1))
