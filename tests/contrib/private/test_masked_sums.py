"""Masked sums: exact if clients fall silent at any step, refused where they would tell too much, and nothing but a sum."""

from __future__ import annotations

import gc
import itertools
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coterie.contrib.private.masks import FixedPoint, Graph, MaskedSum, Masker, ProtocolError
from coterie.contrib.private.masks import protocol as messages
from coterie.contrib.private.masks.fixed import WORD
from coterie.contrib.private.masks.graph import MAX_COMPLETE_CLIENTS, degree, threshold
from coterie.contrib.private.masks.shamir import PRIME, join, split
from coterie.contrib.private.masks.streams import KeyPair, mask, opened, sealed

NAME = b"sum 1"


class Played:
    """One masked sum of clients, some of which fall silent before a step; every message is kept as the server sees it."""

    def __init__(
        self,
        numbers: Mapping[int, np.ndarray],
        silent: Mapping[int, int] | None = None,
        **how: float,
    ) -> None:
        self.silent, size = silent or {}, len(next(iter(numbers.values())))
        self.numbers, self.clients = numbers, {c: Masker(c, NAME) for c in numbers}
        self.server = MaskedSum(NAME, size, **how)
        self.keys = self.server.keys({c: self.clients[c].keys() for c in self.there(numbers, 1)})
        least = self.server.graph.threshold
        self.sealed = {
            c: self.clients[c].shares(self.keys[c], least) for c in self.there(self.keys, 2)
        }
        self.shares = self.server.shares(self.sealed)
        self.masked = {
            c: self.clients[c].masked(self.shares[c], numbers[c])
            for c in self.there(self.shares, 3)
        }
        for client, words in self.masked.items():
            self.server.add(client, words)
        self.unmaskings = {
            c: self.clients[c].unmask(self.server.arrived) for c in self.there(self.masked, 4)
        }

    def there(self, clients: Iterable[int], step: int) -> list[int]:
        return [c for c in clients if self.silent.get(c, 5) > step]

    @property
    def found(self) -> np.ndarray:
        return self.server.unmasked(self.unmaskings)

    @property
    def expected(self) -> np.ndarray:
        return np.sum([self.numbers[c] for c in self.masked], axis=0, dtype=WORD)


def words(clients: Iterable[int], size: int = 40, seed: int = 0) -> dict[int, np.ndarray]:
    draw = np.random.default_rng(seed)
    return {c: draw.integers(0, 2**32, size, dtype=np.uint32) for c in clients}


# -- the sum
# ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [3, 4, 8, 25])
def test_the_sum_is_exact(n: int) -> None:
    played = Played(words(range(0, 7 * n, 7)))
    np.testing.assert_array_equal(played.found, played.expected)


@settings(max_examples=40, deadline=None)
@given(st.integers(3, 9), st.lists(st.integers(1, 4), max_size=9))
def test_the_sum_is_that_of_those_whose_numbers_arrived(n: int, steps: list[int]) -> None:
    """Whoever falls silent at whatever step: the sum is exact, or it is not unmasked."""
    numbers = words(range(n), size=5)
    try:
        played = Played(numbers, dict(zip(range(n), steps, strict=False)))
        found = played.found
    except ProtocolError:
        begun = n - sum(step == 1 for step in steps[:n])
        left = n - len(steps[:n])
        arrived = n - sum(step < 4 for step in steps[:n])
        assert begun < 3 or left < threshold(begun - 1) or arrived < 3
    else:
        np.testing.assert_array_equal(found, played.expected)


def test_a_sum_of_two_is_not_unmasked() -> None:
    with pytest.raises(ProtocolError):
        _ = Played(words(range(3)), {2: 3}).found
    np.testing.assert_array_equal(
        (played := Played(words(range(3)), {2: 4})).found, played.expected
    )


def test_a_client_may_be_stored_between_any_two_steps() -> None:
    numbers, server = words(range(4), size=6), MaskedSum(b"one", 6)
    maskers = {c: Masker(c, b"one") for c in numbers}
    again = {c: Masker.restored(each.saved()) for c, each in maskers.items()}
    near = server.keys({c: each.keys() for c, each in again.items()})
    again = {c: Masker.restored(each.saved()) for c, each in again.items()}
    ready = server.shares(
        {c: each.shares(near[c], server.graph.threshold) for c, each in again.items()}
    )
    again = {c: Masker.restored(each.saved()) for c, each in again.items()}
    for c in (0, 1, 3):
        server.add(c, again[c].masked(ready[c], numbers[c]))
    again = {c: Masker.restored(again[c].saved()) for c in (0, 1, 3)}
    found = server.unmasked({c: each.unmask(server.arrived) for c, each in again.items()})
    np.testing.assert_array_equal(found, numbers[0] + numbers[1] + numbers[3])
    with pytest.raises(ProtocolError):
        Masker.restored(again[0].saved()).unmask(server.arrived)  # asked twice


@pytest.mark.parametrize("step", [1, 2, 3, 4])
def test_all_but_the_threshold_may_fall_silent_at_a_step(step: int) -> None:
    """Of nine, five can unmask: four may go at any step; who goes before the keys does not even count."""
    played = Played(words(range(9)), dict.fromkeys(range(4), step))
    np.testing.assert_array_equal(played.found, played.expected)
    with pytest.raises(ProtocolError):
        _ = Played(words(range(9)), {c: max(step, 2) for c in range(5)}).found


def test_a_sparse_graph_gives_the_same_sum_and_mends_who_is_silent() -> None:
    n = MAX_COMPLETE_CLIENTS + 30
    silent = {3: 1, 8: 2, 9: 2, 20: 3, 21: 3, 22: 3, 40: 4}
    played = Played(words(range(n), size=9), silent, dropouts=0.06, colluding=0.02)
    assert len(played.server.graph.neighbours[0]) < n / 2
    np.testing.assert_array_equal(played.found, played.expected)


def test_real_numbers_are_summed_to_half_a_step_each() -> None:
    code, draw = FixedPoint(bound=3.0, clients=8), np.random.default_rng(1)
    values = {c: draw.uniform(-3, 3, 100) for c in range(8)}
    played = Played({c: code.encode(v) for c, v in values.items()})
    np.testing.assert_allclose(
        code.decode(played.found), sum(values.values()), atol=8 * code.step / 2
    )


# -- what the server sees
# ------------------------------------------------------------------------------------------------


def objects_of(thing: Any, seen: set[int]) -> Iterable[Any]:
    """All objects that can be reached from one."""
    waiting = [thing]
    while waiting:
        one = waiting.pop()
        if id(one) not in seen and not isinstance(one, type):
            seen.add(id(one))
            yield one
            waiting += [o for o in gc.get_referents(one) if not callable(o)]


def test_the_server_holds_no_numbers_of_any_client() -> None:
    """Neither the numbers, nor a client's masked numbers, nor a common mask is in its memory; one total is."""
    played = Played(words(range(6)), {5: 3})
    _ = played.found
    rows = [o for o in objects_of(played.server, set()) if isinstance(o, np.ndarray)]
    assert [row.shape for row in rows] == [(40,)]
    for other in (*played.numbers.values(), *played.masked.values()):
        assert not np.array_equal(rows[0], other)


def test_what_arrives_says_nothing_of_a_client() -> None:
    """Of the same numbers, masked ones are different in each sum, and every bit of them is a coin."""
    numbers = {c: np.zeros(4000, dtype=WORD) for c in range(3)}
    one, other = Played(numbers), Played(numbers)
    for client in numbers:
        assert not np.array_equal(one.masked[client], other.masked[client])
        ones = np.unpackbits(one.masked[client].view(np.uint8)).mean()
        assert abs(ones - 0.5) < 5 * 0.5 / np.sqrt(32 * 4000)
    assert not one.found.any()


def test_no_two_messages_give_the_numbers_of_one() -> None:
    """Differences and sums of any two clients' masked numbers keep a mask: only all together cancel."""
    played = Played({c: np.zeros(4000, dtype=WORD) for c in range(4)})
    for size in (1, 2, 3, 4):
        for some in itertools.combinations(played.masked.values(), size):
            assert np.sum(some, axis=0, dtype=WORD).any()  # own masks stay, even of all


def test_shares_are_read_by_whom_they_are_for() -> None:
    played = Played(words(range(4)))
    text = played.sealed[0][1]
    reader = played.clients[2]
    with pytest.raises(ValueError, match="changed on its way"):
        opened(reader._share_key(0, b"x"), text, b"x")


def test_never_both_secrets_of_a_client() -> None:
    played = Played(words(range(7)), {2: 3, 4: 3})
    for one in played.unmaskings.values():
        assert set(one.seeds) == {0, 1, 3, 5, 6}
        assert set(one.keys) == {2, 4}


# -- what is refused
# -----------------------------------------------------------------------------------------------------


def test_a_sum_of_few_is_not_unmasked() -> None:
    client = Played(words(range(7)), dict.fromkeys(range(7), 4)).clients[0]
    with pytest.raises(
        ProtocolError, match="a sum of 3 of the clients that client 0 knows is not unmasked"
    ):
        client.unmask({0, 1, 2})


def test_a_client_whose_numbers_are_not_in_the_sum_does_not_help() -> None:
    client = Played(words(range(7)), dict.fromkeys(range(7), 4)).clients[0]
    with pytest.raises(ProtocolError, match="is not unmasked"):
        client.unmask({1, 2, 3, 4, 5, 6})


def test_a_second_answer_is_refused() -> None:
    played = Played(words(range(7)))
    with pytest.raises(ProtocolError, match="after step 4"):
        played.clients[0].unmask({0, 1, 2, 3, 4})


@pytest.mark.parametrize("least", [0, 1, 2, 5])
def test_a_threshold_that_is_no_majority_is_refused(least: int) -> None:
    client, others = Masker(0, NAME), {c: Masker(c, NAME).keys() for c in (1, 2, 3)}
    client.keys()
    with pytest.raises(ProtocolError, match="no majority"):
        client.shares(others, least)


def test_steps_are_taken_in_order() -> None:
    client = Masker(0, NAME)
    with pytest.raises(ProtocolError, match="asked for step 3 of a masked sum, after step 0"):
        client.masked({}, np.zeros(3, dtype=WORD))


def test_changed_shares_are_refused() -> None:
    played = Played(words(range(4)), dict.fromkeys(range(4), 3))
    shares = dict(played.shares[0])
    shares[1] = bytes([shares[1][0] ^ 1, *shares[1][1:]])
    with pytest.raises(ProtocolError, match="the shares of client 1 cannot be read"):
        played.clients[0].masked(shares, np.zeros(3, dtype=WORD))


def test_a_key_that_is_none_is_refused() -> None:
    """The point of order one gives the same secret to everybody."""
    client = Masker(0, NAME)
    client.keys()
    others = {c: Masker(c, NAME).keys() for c in (1, 2)}
    with pytest.raises(ProtocolError, match="the public key of client 2 is none"):
        client.shares({**others, 2: messages.Keys(bytes(32), others[2].masking)}, 2)


def test_the_server_takes_numbers_once_and_of_the_right_shape() -> None:
    played = Played(words(range(4), size=3), {3: 2})
    for client, row in (
        (0, np.zeros(3, dtype=WORD)),
        (3, np.zeros(3, dtype=WORD)),
        (9, np.zeros(3, dtype=WORD)),
    ):
        with pytest.raises(ProtocolError, match="not wanted"):
            played.server.add(client, row)
    with pytest.raises(ProtocolError, match="not wanted"):
        Played(words(range(4), size=3), dict.fromkeys(range(4), 3)).server.add(
            0, np.zeros(4, dtype=WORD)
        )


def test_two_clients_are_too_few() -> None:
    with pytest.raises(ProtocolError, match="three clients or more, got 2"):
        Played(words(range(2)))


# -- its parts
# -----------------------------------------------------------------------------------------------------------


@given(st.binary(min_size=32, max_size=32), st.integers(1, 6), st.integers(0, 4), st.randoms())
def test_enough_shares_give_a_secret_back(secret: bytes, least: int, more: int, draw: Any) -> None:
    shares = split(secret, least, range(1, least + more + 1))
    chosen = draw.sample(sorted(shares), least)
    assert join({place: shares[place] for place in chosen}, least) == secret


def test_fewer_shares_say_nothing() -> None:
    """For one share less, every secret has a polynomial through the shares: the last share decides."""
    shares = split(bytes(32), 3, (1, 2, 3))
    with pytest.raises(ValueError, match="3 shares are needed to give back a secret, got 2"):
        join({1: shares[1], 2: shares[2]}, 3)
    found = {
        join({1: shares[1], 2: shares[2], 3: (value % PRIME).to_bytes(33, "big")}, 3)
        for value in (5, 6, 7)
    }
    assert len(found) == 3


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ((b"short", 2, (1, 2)), "a secret has 32 bytes, got 5"),
        ((bytes(32), 2, (0, 1)), "different positive integers"),
        ((bytes(32), 2, (1, 1)), "different positive integers"),
        ((bytes(32), 3, (1, 2)), "from 1 to the number of shares, 2, got 3"),
    ],
)
def test_wrong_shares_are_refused(how: tuple[bytes, int, tuple[int, ...]], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        split(*how)


@given(st.integers(1, 2000), st.floats(1e-6, 1e6), st.integers(1, 20))
def test_no_sum_of_so_many_clients_overflows(clients: int, bound: float, size: int) -> None:
    code = FixedPoint(bound, clients)
    row = code.encode(np.full(size, bound))
    np.testing.assert_allclose(
        code.decode((row.astype(np.uint64) * clients).astype(WORD)), clients * bound, rtol=1e-9
    )
    np.testing.assert_allclose(
        code.decode((-row.astype(np.int64) * clients & 0xFFFFFFFF).astype(WORD)), -clients * bound
    )


def test_numbers_beyond_the_bound_are_clipped_and_counted() -> None:
    code = FixedPoint(1.0, 10)
    values = np.array([0.5, -3.0, 1.0, 1.5])
    np.testing.assert_allclose(
        code.decode(code.encode(values)), [0.5, -1.0, 1.0, 1.0], atol=code.step
    )
    assert code.clipped(values) == 2
    for bad in (np.nan, np.inf):
        with pytest.raises(ValueError, match="must be finite"):
            code.encode(np.array([bad]))


@pytest.mark.parametrize("how", [(0.0, 3), (float("inf"), 3), (-1.0, 3), (1.0, 0), (1.0, 2**31)])
def test_an_encoding_that_cannot_be_is_refused(how: tuple[float, int]) -> None:
    with pytest.raises(ValueError, match="must be"):
        FixedPoint(*how)


def test_masks_are_the_key_stream_of_their_seed() -> None:
    one, other = mask(bytes(32), 1000), mask(b"\1" * 32, 1000)
    np.testing.assert_array_equal(one[:10], mask(bytes(32), 10))
    assert (one != other).mean() > 0.99
    assert (
        one[:2].tobytes().hex() == "76b8e0ada0f13d90"
    )  # RFC 7539, appendix A.1, the first test vector


def test_both_ends_agree_on_a_key_for_each_purpose() -> None:
    one, other = KeyPair.new(), KeyPair.new()
    assert (
        one.agree(other.public, b"a")
        == other.agree(one.public, b"a")
        != one.agree(other.public, b"b")
    )
    assert KeyPair.of(one.secret).public == one.public
    assert opened(b"k" * 32, sealed(b"k" * 32, b"text", b"about"), b"about") == b"text"


# -- who masks with whom
# -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [3, 50, MAX_COMPLETE_CLIENTS])
def test_few_clients_all_have_common_masks(n: int) -> None:
    graph = Graph.of(range(n))
    assert all(len(near) == n - 1 for near in graph.neighbours.values())
    assert 2 * graph.threshold > n


def test_many_clients_have_some_neighbours_each() -> None:
    graph = Graph.of(range(1000))
    k = degree(1000, 0.1, 0.1)
    assert k < 80
    assert {len(near) for near in graph.neighbours.values()} == {k}
    assert all(
        c in graph.neighbours[o] and c != o for c, near in graph.neighbours.items() for o in near
    )
    assert 2 * graph.threshold > k + 1
    assert graph.neighbours != Graph.of(range(1000)).neighbours  # nobody can choose its neighbours


def test_the_degree_grows_slowly_and_with_the_danger() -> None:
    assert degree(200, 0.1, 0.1) <= degree(2000, 0.1, 0.1) <= 2 * degree(200, 0.1, 0.1)
    assert degree(500, 0.1, 0.2) > degree(500, 0.1, 0.05)
    assert (
        degree(500, 0.6, 0.4) == 499
    )  # not even the complete graph is safe enough, but there is none better
