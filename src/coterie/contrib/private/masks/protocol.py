"""The messages of one masked sum, without any transport: what a client computes (:class:`Masker`), and the server.

After K. Bonawitz et al., "Practical Secure Aggregation for Privacy-Preserving Machine Learning",
CCS 2017, protocol 1, for a server that is honest but curious. One sum has four steps, and clients
may fall silent after each of them:

1. **Keys.** Each client sends two public keys. The server sends each client those of its
   neighbours.
2. **Shares.** Each client draws the seed of a mask of its own, and shares it, and the private key
   of its common masks, with its neighbours, encrypted for each of them. The server passes the
   shares on.
3. **Masked numbers.** Each client sends its numbers, plus its own mask, plus or minus the masks
   that it has in common with each neighbour which sent shares: one of the two adds a mask that the
   other subtracts.
4. **Unmasking.** The server says whose numbers have arrived. The neighbours send their shares of
   the own masks of those, and of the private keys of the others: never both of one client. With
   them the server removes the masks that have not cancelled.

All keys are new in each sum. The server holds one total, to which it adds numbers as they arrive.
"""

from __future__ import annotations

import hashlib
import json
import secrets
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

import numpy as np

from coterie.contrib.private.masks.fixed import WORD
from coterie.contrib.private.masks.graph import LEAST, Graph
from coterie.contrib.private.masks.shamir import SHARE, join, split
from coterie.contrib.private.masks.streams import KEY, KeyPair, mask, opened, sealed


class ProtocolError(ValueError):
    """A message of a masked sum that must not be answered, or a sum that cannot be unmasked."""


@dataclass(frozen=True)
class Keys:
    """The public keys of a client in one sum.

    Attributes:
        sealing: The key with which neighbours encrypt shares for it.
        masking: The key of its common masks.
    """

    sealing: bytes
    masking: bytes


@dataclass(frozen=True)
class Unmasking:
    """A client's answer to the last step.

    Attributes:
        seeds: Client whose numbers arrived -> a share of the seed of its own mask.
        keys: Client whose numbers did not arrive -> a share of the private key of its common masks.
    """

    seeds: Mapping[int, bytes]
    keys: Mapping[int, bytes]


def _purpose(sum_: bytes, what: str, one: int, other: int) -> bytes:
    return b"|".join((b"coterie", what.encode(), sum_, str(one).encode(), str(other).encode()))


def _common(pair: KeyPair, public: bytes, sum_: bytes, one: int, other: int) -> bytes:
    """The seed of the mask that two clients have in common."""
    return pair.agree(public, _purpose(sum_, "mask", min(one, other), max(one, other)))


class Masker:
    """A client in one masked sum. Its methods are called once each, in the order of the steps.

    Args:
        client: Its id.
        name: The name of the sum, the same for all its clients, and never used again.
    """

    def __init__(self, client: int, name: bytes) -> None:
        self.client, self.name, self.threshold = client, name, 0
        self._sealing, self._masking, self._seed = (
            KeyPair.new(),
            KeyPair.new(),
            secrets.token_bytes(KEY),
        )
        self._keys: Mapping[int, Keys] = {}
        self._held: dict[int, tuple[bytes, bytes]] = {}
        self._step = 0

    def saved(self) -> bytes:
        """Return everything that a client must store between two steps, its secrets among them."""
        keys = {
            client: [each.sealing.hex(), each.masking.hex()] for client, each in self._keys.items()
        }
        held = {client: [seed.hex(), key.hex()] for client, (seed, key) in self._held.items()}
        secrets_ = [self._sealing.secret.hex(), self._masking.secret.hex(), self._seed.hex()]
        about = {
            "client": self.client,
            "name": self.name.hex(),
            "threshold": self.threshold,
            "step": self._step,
        }
        return json.dumps({**about, "secrets": secrets_, "keys": keys, "held": held}).encode()

    @classmethod
    def restored(cls, data: bytes) -> Masker:
        """Return a client from what :meth:`saved` has returned, in the same step."""
        found = json.loads(data)
        masker = cls(int(found["client"]), bytes.fromhex(found["name"]))
        sealing, masking, masker._seed = map(bytes.fromhex, found["secrets"])
        masker._sealing, masker._masking = KeyPair.of(sealing), KeyPair.of(masking)
        masker._keys = {
            int(c): Keys(*map(bytes.fromhex, each)) for c, each in found["keys"].items()
        }
        masker._held = {
            int(c): (bytes.fromhex(seed), bytes.fromhex(key))
            for c, (seed, key) in found["held"].items()
        }
        masker.threshold, masker._step = int(found["threshold"]), int(found["step"])
        return masker

    def _next(self, step: int) -> None:
        if self._step != step:
            raise ProtocolError(
                f"client {self.client} was asked for step {step + 1} of a masked sum, after step {self._step}"
            )
        self._step += 1

    @property
    def neighbours(self) -> frozenset[int]:
        """The other clients that share secrets with this one."""
        return frozenset(self._keys)

    @property
    def holding(self) -> frozenset[int]:
        """The other clients whose shares this one holds."""
        return frozenset(self._held) - {self.client}

    @property
    def mark(self) -> str:
        """A name of this step of this sum, which nobody else can foresee."""
        return hashlib.sha256(self._seed + b"|step|" + str(self._step).encode()).hexdigest()

    def keys(self) -> Keys:
        """Step 1: return the public keys."""
        self._next(0)
        return Keys(self._sealing.public, self._masking.public)

    def shares(self, neighbours: Mapping[int, Keys], threshold: int) -> dict[int, bytes]:
        """Step 2: return encrypted shares of both secrets for each neighbour.

        Args:
            neighbours: Neighbour -> its public keys.
            threshold: Shares that give back a secret, from :class:`~coterie.contrib.private.masks.graph.Graph`.

        Raises:
            ProtocolError: A threshold of the shares would not be a majority of them, or a key is
                not one.
        """
        self._next(1)
        self._keys = {client: keys for client, keys in neighbours.items() if client != self.client}
        holders, self.threshold = sorted({self.client, *self._keys}), threshold
        if not len(holders) < 2 * self.threshold <= 2 * len(holders):
            raise ProtocolError(
                f"{self.threshold} of {len(holders)} shares are no majority, or more than there are"
            )
        places = [client + 1 for client in holders]
        seeds, keys = (
            split(secret, self.threshold, places) for secret in (self._seed, self._masking.secret)
        )
        self._held[self.client] = seeds[self.client + 1], keys[self.client + 1]
        return {c: self._sealed(c, seeds[c + 1] + keys[c + 1]) for c in self._keys}

    def _sealed(self, to: int, text: bytes) -> bytes:
        about = _purpose(self.name, "share", self.client, to)
        return sealed(self._agreed(to, about), text, about)

    def _agreed(self, other: int, about: bytes) -> bytes:
        try:
            return self._sealing.agree(self._keys[other].sealing, about)
        except ValueError as error:
            raise ProtocolError(f"the public key of client {other} is none: {error}") from None

    def masked(self, shares: Mapping[int, bytes], numbers: np.ndarray) -> np.ndarray:
        """Step 3: return the numbers under all masks.

        Args:
            shares: Neighbour -> the shares that it has encrypted for this client; without those
                that fell silent.
            numbers: ``(d,)``, integers modulo 2³².

        Raises:
            ProtocolError: Fewer neighbours than the threshold are left, or shares were changed on
                their way.
        """
        self._next(2)
        for other, text in shares.items():
            about = _purpose(self.name, "share", other, self.client)
            try:
                both = opened(self._agreed(other, about), text, about)
            except (KeyError, ValueError) as error:
                raise ProtocolError(
                    f"the shares of client {other} cannot be read: {error}"
                ) from None
            self._held[other] = both[:SHARE], both[SHARE:]
        if len(self._held) < self.threshold:
            raise ProtocolError(
                f"{len(self._held)} clients are left of the {self.threshold} that can unmask a sum"
            )
        total = numbers.astype(WORD) + mask(self._seed, len(numbers))
        for other in self._held.keys() - {self.client}:
            common = mask(
                _common(self._masking, self._keys[other].masking, self.name, self.client, other),
                len(numbers),
            )
            total = total + common if self.client < other else total - common
        return np.asarray(total, dtype=WORD)

    def unmask(self, arrived: Collection[int]) -> Unmasking:
        """Step 4: return the shares with which the server can unmask the sum.

        Args:
            arrived: The clients whose masked numbers have arrived.

        Raises:
            ProtocolError: This client's own numbers have not arrived, or those of fewer than a
                threshold of clients that it knows, or of fewer than three: the sum of few says much
                about each. Or it was asked before: with a second answer the server could learn both
                secrets of a client.
        """
        self._next(3)
        there = set(arrived) & set(self._held)
        if self.client not in there or len(there) < max(self.threshold, LEAST):
            raise ProtocolError(
                f"a sum of {len(there)} of the clients that client {self.client} knows is not unmasked"
            )
        gone = self._held.keys() - there
        return Unmasking(
            {c: self._held[c][0] for c in sorted(there)},
            {c: self._held[c][1] for c in sorted(gone)},
        )


@dataclass
class MaskedSum:
    """The server of one masked sum.

    Args:
        name: The name of the sum, as in :class:`Masker`.
        size: d, how many numbers a client sends.
        dropouts: Share of the clients that may fall silent after they have sent their keys.
        colluding: Share of the clients that may help the server.

    Attributes:
        total: ``(d,)``, the sum of the masked numbers that have arrived.
        arrived: The clients that they are of.
        graph: Which clients have common masks: those that have sent keys.
    """

    name: bytes
    size: int
    dropouts: float = 0.1
    colluding: float = 0.1
    graph: Graph = field(init=False)
    total: np.ndarray = field(init=False)
    arrived: set[int] = field(init=False, default_factory=set)
    _keys: Mapping[int, Keys] = field(init=False, default_factory=dict)
    _shared: frozenset[int] = field(init=False, default=frozenset())

    def __post_init__(self) -> None:
        self.total = np.zeros(self.size, dtype=WORD)

    def keys(self, received: Mapping[int, Keys]) -> dict[int, dict[int, Keys]]:
        """Step 1: return what each client is sent, the public keys of its neighbours.

        Args:
            received: Client -> its keys, of all that have answered. Those with keys of another
                length are left out.

        Raises:
            ProtocolError: They are fewer than three.
        """
        self._keys = {c: k for c, k in received.items() if len(k.sealing) == len(k.masking) == KEY}
        try:
            self.graph = Graph.of(self._keys, self.dropouts, self.colluding)
        except ValueError as error:
            raise ProtocolError(str(error)) from None
        return {
            c: {other: self._keys[other] for other in self.graph.neighbours[c]} for c in self._keys
        }

    def shares(self, received: Mapping[int, Mapping[int, bytes]]) -> dict[int, dict[int, bytes]]:
        """Step 2: return what each client is sent, the shares that its neighbours have encrypted for it."""
        self._shared = frozenset(received)
        return {
            c: {o: received[o][c] for o in self.graph.neighbours[c] if c in received.get(o, {})}
            for c in received
        }

    def add(self, client: int, masked: np.ndarray) -> None:
        """Step 3: add a client's masked numbers to the total.

        Raises:
            ProtocolError: The client has sent no shares, or numbers before, or the wrong number of
                numbers.
        """
        if client not in self._shared or client in self.arrived or masked.shape != (self.size,):
            raise ProtocolError(
                f"the masked numbers of client {client} are not wanted: shape {masked.shape}, not {self.size}"
            )
        self.total += masked
        self.arrived.add(client)

    def unmasked(self, received: Mapping[int, Unmasking]) -> np.ndarray:
        """Step 4: return the sum ``(d,)`` of the numbers that have arrived, modulo 2³².

        Args:
            received: Client -> its shares.

        Raises:
            ProtocolError: Too few clients have sent shares of a secret that is needed.
        """
        total = self.total.copy()
        seeds, keys = (
            {c: one.seeds for c, one in received.items()},
            {c: one.keys for c, one in received.items()},
        )
        for client in sorted(self.arrived):
            total -= mask(self._secret(client, seeds), self.size)
        for client in sorted(self._shared - self.arrived):
            neighbours = [other for other in self.graph.neighbours[client] if other in self.arrived]
            if not neighbours:
                continue
            pair = KeyPair.of(self._secret(client, keys))
            for (
                other
            ) in neighbours:  # who has added or subtracted a mask in common with the silent client
                common = mask(
                    _common(pair, self._keys[other].masking, self.name, client, other), self.size
                )
                total = total - common if other < client else total + common
        return total

    def _secret(self, of: int, received: Mapping[int, Mapping[int, bytes]]) -> bytes:
        holders = (of, *self.graph.neighbours[of])
        shares = {
            client + 1: received[client][of] for client in holders if of in received.get(client, {})
        }
        try:
            return join(shares, self.graph.threshold)
        except ValueError as error:
            raise ProtocolError(f"the masks of client {of} cannot be removed: {error}") from None
