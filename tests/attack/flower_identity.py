"""Nodes over Flower that claim to be who they are not, by a clock that nobody waits for."""

from __future__ import annotations

import inspect
import random
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from attack import Attempt
from attack.flower_waiting import FIRST, METHODS, method_of
from timed import Clock, Timed, timed

POINTS = {
    "a second node claims a name": "Under node keys a name belongs to the key that first came with it: another is refused.",
    "a claim across restarts": "The owner of a name stays its owner when the server is stopped and goes on.",
    "the operator's list": "With a list of clients, a node is the client that the list has for its key, and nobody else is.",
    "one key, one name": "A node that has a name cannot take another one.",
    "the owner comes back": "Whoever has the key is taken in again, also as another node, whoever claimed the name meanwhile.",
    "claimed, as it was": "Without node keys a node is who it says, also with another id after a restart.",
}

IMPOSTOR = FIRST + 1000


def key(number: int) -> bytes:
    """What Flower tells of a node: a simulation's keys are 32 bytes, which are as good for this."""
    return number.to_bytes(32, "big")


def supported(name: str) -> bool:
    from coterie.engines.flower import MethodStrategy

    return name in inspect.signature(MethodStrategy.__init__).parameters


def strategy(method: Any, count: int, identity: Any, **how: Any) -> Any:
    """An older Coterie has no such setting: there a node is who it says."""
    from coterie.core import Training
    from coterie.engines.flower import MethodStrategy
    from small import mlp

    how = {
        "training": Training(lr=0.1, batch=0),
        "wait": 5.0,
        "nodes": count,
        "eval_every": 2,
        **how,
    }
    return MethodStrategy(
        method, mlp, **how, **({"identity": identity} if supported("identity") else {})
    )


def grid_of(count: int, clock: Clock, rng: random.Random) -> Timed:
    grid = Timed(clock)
    for i in rng.sample(range(count), count):
        grid.join(FIRST + i, i, key(i))
    return grid


def stolen(grid: Timed, victim: int, owner: int = -1) -> str | None:
    """What a node was told that was meant for the victim."""
    for kind, node, client, _ in grid.sent:
        if client == victim and node not in (FIRST + victim, owner):
            return f"the {kind} message for client {victim} went to node {node}, which is not its owner"
    return None


def told_of(rounds: list[Any], node: int) -> bool:
    return any(f"node {node}" in note.text for done in rounds for note in done.notes)


def second(rng: random.Random) -> Attempt:
    count, name, rounds = rng.randint(3, 8), rng.choice(METHODS), rng.randint(4, 7)
    victim, come, away, back = (
        rng.randrange(count),
        rng.randint(1, 3),
        rng.randint(0, 3),
        rng.randint(4, 5),
    )
    others, seed, number = rng.randint(1, 3), rng.random(), rng.randint(100, 10**9)

    def run() -> str | None:
        with timed() as clock:
            grid, done = grid_of(count, clock, random.Random(seed)), []
            for one in strategy(method_of(name), count, "first").rounds(grid, rounds):
                done.append(one)
                if one.number == away:
                    grid.nodes[FIRST + victim].online = False
                if one.number == back:
                    grid.nodes[FIRST + victim].online = True
                if one.number == come:
                    for i in range(others):
                        grid.join(IMPOSTOR + i, victim, key(number + i))
        if why := stolen(grid, victim):
            return why
        if come < rounds and not all(told_of(done, IMPOSTOR + i) for i in range(others)):
            return "the records do not tell that the impostor was refused"
        asked = [at for kind, node, _, at in grid.sent if node >= IMPOSTOR]
        if len(asked) > others:
            return f"{others} refused nodes were asked {len(asked)} times"
        last = (away == 0 or rounds > back) and victim in done[-1].silent
        return f"client {victim} is there and was not heard" if last else None

    told = f"of {victim} among {count}: {name}, after {come}, away {away} to {back}, {others} x, {seed:.3f}"
    return Attempt("a second node claims a name", told, run)


def across(rng: random.Random, folder: Path) -> Attempt:
    count, name, victim = rng.randint(3, 6), rng.choice(METHODS), rng.randrange(4) % 3
    stop, rounds, first = rng.randint(1, 3), rng.randint(4, 6), rng.random() < 0.5
    seed, number, out = rng.random(), rng.randint(100, 10**9), folder / f"run-{rng.getrandbits(40)}"

    def run() -> str | None:
        with timed() as clock:
            grid = grid_of(count, clock, random.Random(seed))
            strategy(method_of(name), count, "first", out=out).start(grid, num_rounds=stop)
            owner = grid.nodes.pop(FIRST + victim)
            grid.nodes[IMPOSTOR] = grid.join(IMPOSTOR, victim, key(number))
            if (
                first
            ):  # the impostor is the only one of the two that is there when the server starts
                owner.online = False
            grid.nodes[FIRST + victim] = owner
            again = strategy(method_of(name), count - first, "first", out=out)
            again.start(grid, num_rounds=rounds)
            owner.online = True
            again = strategy(method_of(name), count, "first", out=out)
            again.start(grid, num_rounds=rounds + 2)
        shutil.rmtree(out)
        if why := stolen(grid, victim):
            return why
        heard = (
            again.last is not None
            and victim not in again.last.silent
            and victim in again.last.position.members
        )
        return None if heard else f"client {victim} is there and was not heard"

    told = (
        f"of {victim} among {count}: {name}, stopped after {stop} of {rounds}, {first}, {seed:.3f}"
    )
    return Attempt("a claim across restarts", told, run)


def by_list(rng: random.Random) -> Attempt:
    count, name, rounds, seed = (
        rng.randint(3, 7),
        rng.choice(METHODS),
        rng.randint(2, 4),
        rng.random(),
    )
    victim, number, early, by_id = (
        rng.randrange(count),
        rng.randint(100, 10**9),
        rng.random() < 0.5,
        rng.random() < 0.3,
    )
    says = rng.choice((victim, victim, count + 5, None))

    def run() -> str | None:
        import base64
        import hashlib

        def badge(i: int) -> Any:
            digest = base64.b64encode(hashlib.sha256(key(i)).digest()).decode().rstrip("=")
            return FIRST + i if by_id else f"SHA256:{digest}"

        with timed() as clock:
            grid = grid_of(count, clock, random.Random(seed))
            if early:  # first, and alone
                owner = grid.nodes.pop(FIRST + victim)
                grid.join(IMPOSTOR, says, key(number))
            done = []
            made = strategy(method_of(name), count - early, {i: badge(i) for i in range(count)})
            for one in made.rounds(grid, rounds + 2):
                done.append(one)
                if one.number == 1 and early:
                    grid.nodes[FIRST + victim] = owner
                elif one.number == 1:
                    grid.join(IMPOSTOR, says, key(number))
        if any(
            node == IMPOSTOR and kind in ("train", "evaluate") for kind, node, _, _ in grid.sent
        ):
            return "a node that is in no line of the list got a task"
        if done[-1].position.members != tuple(range(count)) or done[-1].silent:
            return f"members are {done[-1].position.members}, silent {done[-1].silent}"
        return (
            None if told_of(done, IMPOSTOR) else "the records do not tell that the node was refused"
        )

    return Attempt(
        "the operator's list",
        f"{count}, says {says}: {name}, {early}, {by_id}, {rounds}, {seed:.3f}",
        run,
    )


def hoarding(rng: random.Random, folder: Path) -> Attempt:
    count, name, stop, seed = (
        rng.randint(3, 6),
        rng.choice(METHODS),
        rng.randint(1, 2),
        rng.random(),
    )
    thief = rng.randrange(count)
    free, out = count + rng.randint(1, 50), folder / f"run-{rng.getrandbits(40)}"

    def run() -> str | None:
        with timed() as clock:
            grid = grid_of(count, clock, random.Random(seed))
            strategy(method_of(name), count, "first", out=out).start(grid, num_rounds=stop)
            grid.nodes.pop(FIRST + thief)
            grid.join(
                FIRST + thief, free, key(thief)
            )  # with the same key under a name that nobody has yet
            again = strategy(method_of(name), count - 1, "first", out=out)
            again.start(grid, num_rounds=stop + 2)
        shutil.rmtree(out)
        assert again.last is not None
        return (
            f"node of client {thief} is client {free} as well"
            if free in again.last.position.members
            else None
        )

    return Attempt(
        "one key, one name", f"{thief} of {count} as {free}: {name}, {stop}, {seed:.3f}", run
    )


def comes_back(rng: random.Random) -> Attempt:
    count, name, seed, victim = (
        rng.randint(3, 8),
        rng.choice(METHODS),
        rng.random(),
        rng.randrange(3),
    )
    leave, again, fresh = rng.randint(1, 2), rng.randint(3, 4), rng.random() < 0.5
    number, claims = rng.randint(100, 10**9), rng.random() < 0.5

    def run() -> str | None:
        with timed() as clock:
            grid, done, owner = grid_of(count, clock, random.Random(seed)), [], FIRST + victim
            for one in strategy(method_of(name), count, "first").rounds(grid, again + 3):
                done.append(one)
                if one.number == leave:
                    left = grid.nodes.pop(FIRST + victim)
                    if claims:
                        grid.join(IMPOSTOR, victim, key(number))
                if one.number == again:  # a key that is registered anew has another node id
                    owner = FIRST + 500 if fresh else owner
                    grid.nodes[owner] = left if not fresh else grid.join(owner, victim, key(victim))
        why = stolen(grid, victim, owner)
        heard = victim in done[-1].position.members and victim not in done[-1].silent
        return why or (None if heard else f"client {victim} has its key and was not heard")

    told = f"{victim} of {count}: {name}, {leave} to {again}, {fresh}, {claims}, {seed:.3f}"
    return Attempt("the owner comes back", told, run)


def as_it_was(rng: random.Random) -> Attempt:
    count, name, seed, who = rng.randint(3, 8), rng.choice(METHODS), rng.random(), rng.randrange(3)
    leave, again = rng.randint(1, 2), rng.randint(2, 4)

    def run() -> str | None:
        with timed() as clock:
            grid = grid_of(count, clock, random.Random(seed))
            for one in strategy(method_of(name), count, "claimed").rounds(grid, again + 3):
                if one.number == leave:
                    grid.nodes.pop(FIRST + who)
                if one.number == again:
                    grid.join(FIRST + 700, who, key(700))
        heard = one.position.members == tuple(range(count)) and not one.silent
        return (
            None
            if heard
            else f"client {who} is not there again: {one.position.members}, silent {one.silent}"
        )

    return Attempt(
        "claimed, as it was", f"{who} of {count}: {name}, {leave} to {again}, {seed:.3f}", run
    )


def attempts(rng: random.Random, folder: Path) -> Iterator[Attempt]:
    """All kinds in turn."""
    while True:
        yield second(rng)
        yield across(rng, folder)
        yield by_list(rng)
        yield hoarding(rng, folder)
        yield comes_back(rng)
        yield as_it_was(rng)
