"""Nodes over Flower that keep silent, are late, wake up or are slow, by a clock that nobody waits for."""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from attack import Attempt
from timed import Clock, Timed, paced, timed

POINTS = {
    "a mute node": "A node that answers no task costs at most the grace time, for two tasks, and then nothing.",
    "a mute newcomer": "A node that does not say who it is holds no round up for longer than the others took to say so, once.",
    "retired and back": "Who was retired for silence is taken in once it answers something, and not before.",
    "slow but honest": "Clients that take up to three times as long as the share that is waited for are all heard.",
    "late answers": "An answer to an earlier task is never taken for one to a newer task.",
    "all mute": "If nobody answers, all are waited for until the timeout, and heard when they are back.",
}

LEAST, TIMES = 60.0, 2.0
"""The grace time of the defaults: so many seconds at least, and so many times what the share took.
"""

SLACK = 3.1
"""Seconds between two looks for replies, at most: of Flower's own loop."""

FIRST = 1 << 40


@dataclass
class Trial:
    """One federation by its clock. paces: seconds that each node takes for every message. log: (round, its seconds)."""

    paces: list[float]
    clock: Clock
    grid: Timed
    seconds: list[float] = field(default_factory=list)
    rounds: list[Any] = field(default_factory=list)

    def play(
        self,
        method: Any,
        count: int,
        after: Callable[[int], None] = lambda number: None,
        **how: Any,
    ) -> None:
        from coterie.core import Training
        from coterie.engines.flower import MethodStrategy
        from small import mlp

        how = {"nodes": len(self.paces), "training": Training(lr=0.1, batch=0), **how}
        strategy = MethodStrategy(method, mlp, **how)
        begun = self.clock.time
        for done in strategy.rounds(self.grid, count):
            self.seconds.append(self.clock.time - begun)
            self.rounds.append(done)
            after(done.number)
            begun = self.clock.time

    @property
    def quiet(self) -> float:
        """What a round may take where nobody is silent: a task and a test."""
        return 2 * (max(self.paces) + SLACK)


def trial(paces: list[float], clock: Clock) -> Trial:
    grid = Timed(clock)
    for i, pace in enumerate(paces):
        grid.join(FIRST + i, i, delay=pace)
    return Trial(paces, clock, grid)


def method_of(name: str) -> Any:
    from coterie.methods import METHODS

    return METHODS[name]()


METHODS = ("fedavg", "cfl", "flhc", "hcct")


def silent_in(
    state: dict[str, int],
    kinds: tuple[str, ...],
    start: int,
    stop: float,
    pace: float,
    held: bool = False,
) -> Any:
    """A node's delay: silent from after round ``start`` to round ``stop``, of these kinds of messages."""

    def delay(message: Any) -> float | None:
        kind = message.metadata.message_type
        if (kind if kind in ("train", "evaluate") else "query") in kinds and start <= state[
            "round"
        ] < stop:
            return math.inf if held else None
        return paced(pace, message)

    return delay


def paces_of(rng: random.Random, count: int) -> list[float]:
    """Clients that differ by a factor of two at most."""
    base = 10 ** rng.uniform(-0.5, 2.3)
    return [base * rng.uniform(1, 2) for _ in range(count)]


def grace(paces: list[float]) -> float:
    return max(LEAST, TIMES * max(paces))


# -- attempts
# -------------------------------------------------------------------------------------------------------------


def mute(rng: random.Random) -> Attempt:
    count, name = rng.choice((5, 8, 12, 20)), rng.choice(METHODS)
    paces, start, rounds = paces_of(rng, count), rng.choice((0, 0, 1, 2)), rng.randint(5, 7)
    start = max(
        start, int(name == "flhc")
    )  # it asks so few at once that nobody is left out before a first answer
    who = rng.sample(range(count), rng.randint(1, count // 5 if name != "flhc" else 1))
    kinds = rng.choice((("train", "evaluate"), ("train",), ("train", "evaluate", "query")))
    how = {"timeout": rng.choice((600.0, 3600.0)), "patience": rng.choice((1, 2, 3, 10))}

    def run() -> str | None:
        with timed() as clock:
            made, state = trial(paces, clock), {"round": 0}
            for i in who:
                made.grid.nodes[FIRST + i].delay = silent_in(
                    state, kinds, start, math.inf, paces[i]
                )
            nodes = count - (len(who) if "query" in kinds and start == 0 else 0)
            made.play(
                method_of(name),
                rounds,
                lambda number: state.update(round=number),
                nodes=nodes,
                **how,
            )
        missing = {c for done in made.rounds for c in done.silent} - set(who)
        if missing:
            return f"clients {sorted(missing)} answered in {max(paces):.0f} s and were not heard"
        exchanges = sum(made.rounds[i].exchanges + 1 for i in range(rounds))
        more = sum(made.seconds) - exchanges * (max(paces) + SLACK)
        most = 4 * grace(paces) + LEAST  # two tasks and two tests, and the question who it is
        asked_at: dict[float, set[int]] = {}
        for kind, node, _, at in made.grid.sent:
            if kind == "train":
                asked_at.setdefault(at, set()).add(node - FIRST)
        alone = sum(nodes <= set(who) for nodes in asked_at.values())
        most += (
            min(2, alone) * how["timeout"]
        )  # where a method asks nobody else, nobody answers, and the timeout counts
        if more > most:
            return f"{len(who)} mute of {count} stopped the others for {more:.0f} s"
        last = made.seconds[-1] - (made.rounds[-1].exchanges + 1) * (max(paces) + SLACK)
        begun = clock.time - made.seconds[-1]
        asked = Counter(
            (kind, node)
            for kind, node, _, at in made.grid.sent
            if at < begun and node - FIRST in who
        )
        now = {
            (kind, node)
            for kind, node, _, at in made.grid.sent
            if at >= begun and node - FIRST in who
        }
        if last > 0 and all(asked[one] >= 2 + start or one[0] not in kinds for one in now):
            return f"{len(who)} mute of {count} still cost {last:.0f} s in round {rounds}"
        return None

    return Attempt(
        "a mute node",
        f"{len(who)} of {count} after round {start}: {name}, {kinds}, {how}, {rng.random():.3f}",
        run,
    )


def newcomer(rng: random.Random) -> Attempt:
    count, name, rounds = rng.choice((3, 6, 12)), rng.choice(METHODS), rng.randint(4, 6)
    paces, come, new = paces_of(rng, count), rng.randint(0, 2), rng.randint(1, 3)

    def run() -> str | None:
        with timed() as clock:
            made = trial(paces, clock)

            def after(number: int) -> None:
                if number == come:
                    for i in range(new):
                        made.grid.join(FIRST + 100 + i, 100 + i, delay=lambda message: None)

            after(0)
            made.play(method_of(name), rounds, after, nodes=count)
        exchanges = sum(done.exchanges + 1 for done in made.rounds)
        more = sum(made.seconds) - exchanges * (max(paces) + SLACK) - max(paces)
        most = min(60.0, max(LEAST, grace(paces) + max(paces))) + SLACK
        if more > most:
            return f"{new} nodes that did not say who they are stopped the others for {more:.0f} s, more than {most:.0f} s"
        return (
            None
            if made.rounds[-1].position.members == tuple(range(count))
            else "it became a member"
        )

    return Attempt(
        "a mute newcomer",
        f"{new} beside {count} after round {come}: {name}, {rng.random():.3f}",
        run,
    )


def retired(rng: random.Random) -> Attempt:
    count, name, patience = (
        rng.choice((6, 10)),
        rng.choice(("fedavg", "cfl", "hcct")),
        rng.randint(1, 3),
    )
    paces, held = [rng.uniform(5, 30) for _ in range(count)], rng.random() < 0.5
    wake = patience + rng.randint(2, 4)
    kinds = ("train", "evaluate", "query")

    def run() -> str | None:
        with timed() as clock:
            made, state, woken = trial(paces, clock), {"round": 0}, [0.0]
            made.grid.nodes[FIRST].delay = silent_in(state, kinds, 1, wake, paces[0], held)

            def after(number: int) -> None:
                state["round"] = number
                if number == wake:
                    made.grid.wake(FIRST)
                    woken[0] = clock.time

            rounds = wake + 3 + math.ceil(75 / min(paces))
            made.play(method_of(name), rounds, after, patience=patience)
        asleep = [
            done.number
            for done in made.rounds
            if 1 + patience < done.number <= wake and 0 in done.position.members
        ]
        if asleep:
            return f"it was a member again in rounds {asleep} and had answered nothing"
        heard = [
            done.number
            for done in made.rounds
            if 0 not in done.silent and 0 in done.position.members
        ]
        back = [number for number in heard if number > wake]
        if not back:
            return f"it answers since round {wake} and was not heard by round {rounds}"
        return None if made.rounds[-1].number in back else "it was not heard in the last round"

    told = f"of {count}: {name}, patience {patience}, back after {wake}, {held}, {rng.random():.3f}"
    return Attempt("retired and back", told, run)


def slow(rng: random.Random) -> Attempt:
    count, name, rounds = rng.choice((4, 8, 20)), rng.choice(METHODS), 3
    base, share = 10 ** rng.uniform(0, 2.3), rng.uniform(0.05, 1)
    paces = [base * (rng.uniform(2, 2.9) if rng.random() < share else 1.0) for _ in range(count)]

    def run() -> str | None:
        with timed() as clock:
            made = trial(paces, clock)
            made.play(method_of(name), rounds)
        missing = {c for done in made.rounds for c in done.silent}
        untested = {
            c
            for done in made.rounds
            for c, score in (done.scores or {}).items()
            if score["loss"] != score["loss"]
        }
        return (
            f"clients {sorted(missing | untested)} are honest and were not heard"
            if missing | untested
            else None
        )

    return Attempt(
        "slow but honest",
        f"{count}: {name}, {base:.1f} s, {share:.2f} of them slow, {rng.random():.3f}",
        run,
    )


def late(rng: random.Random) -> Attempt:
    count, rounds, timeout = rng.choice((5, 10)), rng.randint(3, 6), rng.choice((40.0, 3600.0))
    paces = [rng.uniform(1, 8) for _ in range(count)]
    who, pace, patience = rng.randrange(count), rng.uniform(100, 200), rng.choice((2, 10))

    def models(delay: Any) -> list[Any]:
        with timed() as clock:
            made = trial(paces, clock)
            made.grid.nodes[FIRST + who].delay = lambda m: (
                delay(m) if m.metadata.message_type in ("train", "evaluate") else 1.0
            )
            made.play(method_of("fedavg"), rounds, timeout=timeout, patience=patience)
        return [done.assignment.models for done in made.rounds]

    def run() -> str | None:
        # Unhurried, Flower's own loop takes what comes within its timeout: then nothing is late,
        # and all is as it should be.
        found, lost = models(lambda m: pace), models(lambda m: None)
        heard = models(lambda m: 1.0)
        same = [
            bool((a == b).all()) or bool((a == c).all())
            for a, b, c in zip(found, lost, heard, strict=True)
        ]
        return (
            None
            if all(same)
            else f"after round {same.index(False) + 1} the model is neither with its answers nor without"
        )

    told = f"client {who} of {count}: {pace:.0f} s, timeout {timeout:g}, {patience}, {rng.random():.3f}"
    return Attempt("late answers", told, run)


def all_mute(rng: random.Random) -> Attempt:
    count, timeout, start = rng.choice((2, 5, 9)), rng.choice((100.0, 600.0)), rng.randint(1, 2)
    paces, back = [rng.uniform(1, 20) for _ in range(count)], start + rng.randint(1, 3)

    def run() -> str | None:
        with timed() as clock:
            made, state = trial(paces, clock), {"round": 0}
            for i in range(count):
                made.grid.nodes[FIRST + i].delay = silent_in(
                    state, ("train", "evaluate"), start, back, paces[i]
                )
            made.play(
                method_of("fedavg"),
                back + 2,
                lambda number: state.update(round=number),
                timeout=timeout,
            )
        for done, took in zip(made.rounds, made.seconds, strict=True):
            if start < done.number <= back and not 2 * timeout - 0.1 <= took <= 2 * (
                timeout + SLACK
            ):
                return f"round {done.number}, in which nobody answered, took {took:.0f} s of {2 * timeout:g}"
        return (
            None if made.rounds[-1].answered == count else "not all were heard when they were back"
        )

    return Attempt(
        "all mute",
        f"{count}, timeout {timeout:g}, rounds {start + 1} to {back}, {rng.random():.3f}",
        run,
    )


KINDS = (mute, newcomer, retired, slow, late, all_mute)


def attempts(rng: random.Random, folder: Path) -> Iterator[Attempt]:
    """All kinds in turn."""
    while True:
        for kind in KINDS:
            yield kind(rng)
