"""What FL+HC's tables say, beside what came out here: the rules of the verdicts."""

from __future__ import annotations

from collections.abc import Sequence

from coterie.studies.flhc_printed import ByLinkage, Printed
from coterie.studies.numbers import mean, picked, spread, values
from coterie.studies.study import Claim, Row, Table

SAME = "MNIST"
"""The problem that the paper's numbers are of; another one's are not held against them."""

NEAR = 0.5
"""Percentage points within which an accuracy is the printed one."""

SLACK = 0.01
"""By which an accuracy may be lower and not count as lower: the paper's factors have one decimal."""

MAIN = (0.2, 10)
"""Client fraction and round of clustering that the paper goes on with."""


def last(rows: Sequence[Row]) -> str:
    """The last round tested, as rows name it."""
    return str(rows[0]["cell"]["tested"][-1])


# -- tables I and II -------------------------------------------------------------------------------------------------------


def of_fractions(rows: Sequence[Row], printed: Printed, gain: float) -> tuple[Claim, ...]:
    end, problem = last(rows), rows[0]["cell"]["problem"]
    fractions, befores = values(rows, "fraction"), [n for n in values(rows, "rounds_before") if n]
    joint = {c: mean(picked(rows, fraction=c, rounds_before=0), end, "accuracy") for c in fractions}
    mine = {(c, n): mean(picked(rows, fraction=c, rounds_before=n), end, "accuracy") for c in fractions for n in befores}
    least = min(mine, key=lambda place: mine[place] - joint[place[0]])
    main = picked(rows, fraction=MAIN[0], rounds_before=MAIN[1])
    return (
        _main(main, (end, "accuracy"), f"C = {MAIN[0]:g}, n = {MAIN[1]}: accuracy in round {end}", printed[MAIN][1],
              problem, joint[MAIN[0]], gain),
        Claim(what="FL+HC beside FL, every C and n", printed=_factors(printed, problem),
              ours=f"at least {mine[least] - joint[least[0]]:+.3f} (C = {least[0]:g}, n = {least[1]}: {mine[least]:.3f} beside "
                   f"{joint[least[0]]:.3f})",
              rule=f"nowhere less accurate than FL by {SLACK:g} or more", holds=mine[least] - joint[least[0]] > -SLACK),
        _at_once(rows, fractions, befores, printed),
    )  # fmt: skip


def _factors(printed: Printed, problem: str) -> str:
    least, most = (pick(end for _, end, _, _ in printed.values()) for pick in (min, max))
    return f"at least as accurate everywhere, {least:g} to {most:g} %" + (f" on {SAME}" if problem != SAME else "")


def _at_once(rows: Sequence[Row], fractions: Sequence[float], befores: Sequence[int], printed: Printed) -> Claim:
    """Clustering later gives better models at once."""
    def post(n: int) -> float:
        return sum(mean(picked(rows, fraction=c, rounds_before=n), str(n + 1), "accuracy") for c in fractions) / len(fractions)

    def told(n: int) -> float:
        known = [printed[place][0] for place in printed if place[1] == n]
        return sum(known) / len(known)

    first, final = befores[0], befores[-1]
    return Claim(
        what="directly after clustering, early and late",
        printed=f"n = {first}: {told(first):.1f} %, n = {final}: {told(final):.1f} %",
        ours=f"{post(first):.3f} and {post(final):.3f}", rule="more accurate with the later one",
        holds=post(final) > post(first),
    )  # fmt: skip


def _main(
    rows: Sequence[Row], path: tuple[str, ...], what: str, printed: float, problem: str, joint: float, gain: float
) -> Claim:
    """One printed accuracy; where the problem is another, that FL+HC is above FL, whose accuracy is ``joint``, by ``gain``."""
    ours = f"{spread(rows, *path, digits=3)} (FL {joint:.3f})"
    got = mean(rows, *path)
    if problem == SAME:
        return Claim(what=what, printed=f"{printed:g} %", ours=ours, rule=f"within {NEAR:g} points of it",
                     holds=abs(100 * got - printed) <= NEAR)  # fmt: skip
    return Claim(what=what, printed=f"{printed:g} % on {SAME}", ours=ours, rule=f"above FL by {gain:g} or more",
                 holds=got - joint >= gain)  # fmt: skip


def table_of_fractions(rows: Sequence[Row], printed: Printed) -> Table:
    """A row per C and n: printed and found, directly after clustering and at the end."""
    end, lines = last(rows), []
    for c in values(rows, "fraction"):
        joint = picked(rows, fraction=c, rounds_before=0)
        for n in [n for n in values(rows, "rounds_before") if n]:
            own, told = picked(rows, fraction=c, rounds_before=n), printed.get((c, n), ("–",) * 4)
            after = str(n + 1)
            lines.append((
                f"{c:g}", str(n), f"{told[0]}", _percent(own, after, "accuracy"), f"{told[1]}", _percent(own, end, "accuracy"),
                _percent(joint, end, "accuracy"), f"{told[3]}", _percent(own, end, "share", digits=0),
                spread(own, end, "groups", digits=1),
            ))  # fmt: skip
    head = ("C", "n", "paper, after", "after", "paper, 50", f"round {end}", "FL", "paper, at target", "at target", "groups")
    return Table(head, tuple(lines), "r" * len(head))


def _percent(rows: Sequence[Row], *path: str, digits: int = 1) -> str:
    """A share in percent, with its interval."""
    hundred = [{**row, "found": {"percent": 100 * mean([row], *path)}} for row in rows]
    return spread(hundred, "percent", digits=digits)


# -- tables IV and V -------------------------------------------------------------------------------------------------------


def of_linkages(rows: Sequence[Row], printed: ByLinkage, gain: float) -> tuple[Claim, ...]:
    problem, names = rows[0]["cell"]["problem"], [name for name in rows[0]["found"] if name != "fedavg"]
    joint = mean(rows, "fedavg", "end", "accuracy")
    mine = {name: mean(rows, name, "end", "accuracy") for name in names}
    told = {name: end for name, (_, end, _, _) in printed.items()}
    best, least = max(mine, key=lambda name: mine[name]), min(mine, key=lambda name: mine[name])
    theirs = max(told.values())
    top = [name for name in told if told[name] == theirs]
    behind = mine[best] - max(mine[name] for name in top)
    return (
        _main(rows, (best, "end", "accuracy"), "the best metric and linkage, at the end: accuracy", theirs, problem, joint,
              gain),
        Claim(what="the paper's best beside the best here", printed=f"{', '.join(top)}: {theirs:g} %",
              ours=f"{best}: {mine[best]:.3f}; the paper's best are {behind:.3f} behind", rule="0.01 behind at most",
              holds=behind <= 0.01),
        Claim(what="every metric and linkage beside FL", printed=f"{min(told.values()):g} % or more, none behind FL",
              ours=f"least {mine[least]:.3f} ({least}), FL {joint:.3f}",
              rule=f"none less accurate than FL by {SLACK:g} or more", holds=mine[least] - joint > -SLACK),
    )  # fmt: skip


def table_of_linkages(rows: Sequence[Row], printed: ByLinkage) -> Table:
    """A row per metric and linkage: printed and found, directly after clustering and at the end."""
    lines = []
    for name in rows[0]["found"]:
        told = printed.get(name, ("–",) * 4)
        right = [row["found"][name]["end"]["ari"] for row in rows]
        lines.append((
            "FL" if name == "fedavg" else name, f"{told[0]}", _percent(rows, name, "post", "accuracy"), f"{told[1]}",
            _percent(rows, name, "end", "accuracy"), f"{told[3]}", _percent(rows, name, "end", "share", digits=0),
            spread(rows, name, "end", "groups", digits=1),
            "–" if None in right else spread(rows, name, "end", "ari"),
        ))  # fmt: skip
    paper = ("metric, linkage", "paper, after", "after", "paper, 50", "end", "paper, at target", "at target")
    head = (*paper, "groups", "adjusted Rand")
    return Table(head, tuple(lines), "l" + "r" * (len(head) - 1))
