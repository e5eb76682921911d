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
from coterie.contrib.private.masks.graph import MIN_SUM_CLIENTS, Graph
from coterie.contrib.private.masks.shamir import SHARE_BYTES, join, split
from coterie.contrib.private.masks.streams import KEY_BYTES, KeyPair, mask, opened, sealed


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


def _purpose(sum_name: bytes, key_use: str, first_client: int, second_client: int) -> bytes:
    """What a key of two clients is for: another purpose gives an unrelated key."""
    clients = (str(first_client).encode(), str(second_client).encode())
    return b"|".join((b"coterie", key_use.encode(), sum_name, *clients))


def _common_mask_seed(
    key_pair: KeyPair, other_public_key: bytes, sum_name: bytes, client: int, neighbour: int
) -> bytes:
    """The seed of the mask that two clients have in common, the same for both."""
    # Both clients name the pair in the same order.
    first_client, second_client = sorted((client, neighbour))
    return key_pair.agree(other_public_key, _purpose(sum_name, "mask", first_client, second_client))


class Masker:
    """A client in one masked sum. Its methods are called once each, in the order of the steps.

    Args:
        client: Its id.
        name: The name of the sum, the same for all its clients, and never used again.
    """

    def __init__(self, client: int, name: bytes) -> None:
        self.client = client
        self.name = name
        self.threshold = 0
        self._sealing = KeyPair.new()
        self._masking = KeyPair.new()
        self._seed = secrets.token_bytes(KEY_BYTES)
        self._keys: Mapping[int, Keys] = {}
        # Client -> its shares that this one holds: of the seed, and of the private key.
        self._held: dict[int, tuple[bytes, bytes]] = {}
        self._step = 0

    def saved(self) -> bytes:
        """Return everything that a client must store between two steps, its secrets among them."""
        # The secrets must survive a restart of the client's process between two steps.
        secret_keys = (self._sealing.secret, self._masking.secret, self._seed)
        saved_values = {
            "client": self.client,
            "name": self.name.hex(),
            "threshold": self.threshold,
            "step": self._step,
            "secrets": [secret_bytes.hex() for secret_bytes in secret_keys],
            "keys": {
                client: [public_keys.sealing.hex(), public_keys.masking.hex()]
                for client, public_keys in self._keys.items()
            },
            "held": {
                client: [seed_share.hex(), key_share.hex()]
                for client, (seed_share, key_share) in self._held.items()
            },
        }
        return json.dumps(saved_values).encode()

    @classmethod
    def restored(cls, saved_bytes: bytes) -> Masker:
        """Return a client from what :meth:`saved` has returned, in the same step."""
        # The keys and shares of the client, as they were before.
        saved_values = json.loads(saved_bytes)
        masker = cls(int(saved_values["client"]), bytes.fromhex(saved_values["name"]))
        sealing, masking, masker._seed = map(bytes.fromhex, saved_values["secrets"])
        masker._sealing = KeyPair.of(sealing)
        masker._masking = KeyPair.of(masking)
        masker._keys = {
            int(client): Keys(*map(bytes.fromhex, public_keys))
            for client, public_keys in saved_values["keys"].items()
        }
        masker._held = {
            int(client): (bytes.fromhex(seed_share), bytes.fromhex(key_share))
            for client, (seed_share, key_share) in saved_values["held"].items()
        }
        masker.threshold = int(saved_values["threshold"])
        masker._step = int(saved_values["step"])
        return masker

    def _begin(self, begun_step: int) -> None:
        """Begin a step, counted from 0: each is carried out once, in their order."""
        if self._step != begun_step:
            raise ProtocolError(
                f"client {self.client} was asked for step {begun_step + 1} of a masked sum, after step {self._step}"
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
        self._begin(0)
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
        self._begin(1)
        self._keys = {
            client: neighbour_keys
            for client, neighbour_keys in neighbours.items()
            if client != self.client
        }
        self.threshold = threshold
        holders = sorted({self.client, *self._keys})
        if not len(holders) < 2 * self.threshold <= 2 * len(holders):
            raise ProtocolError(
                f"{self.threshold} of {len(holders)} shares are no majority, or more than there are"
            )
        # The share of a client is the value of the polynomial at its id + 1; at 0 is the secret.
        share_places = [client + 1 for client in holders]
        seed_shares = split(self._seed, self.threshold, share_places)
        key_shares = split(self._masking.secret, self.threshold, share_places)
        self._held[self.client] = (seed_shares[self.client + 1], key_shares[self.client + 1])
        # Each neighbour gets its share of both secrets, which only it can decrypt.
        encrypted = {}
        for neighbour in self._keys:
            plain_shares = seed_shares[neighbour + 1] + key_shares[neighbour + 1]
            purpose = _purpose(self.name, "share", self.client, neighbour)
            encrypted[neighbour] = sealed(
                self._share_key(neighbour, purpose), plain_shares, purpose
            )
        return encrypted

    def _share_key(self, neighbour: int, purpose: bytes) -> bytes:
        """The key with which one of two neighbours encrypts shares for the other."""
        try:
            return self._sealing.agree(self._keys[neighbour].sealing, purpose)
        except ValueError as error:
            raise ProtocolError(f"the public key of client {neighbour} is none: {error}") from None

    def masked(self, sealed_shares: Mapping[int, bytes], plain_numbers: np.ndarray) -> np.ndarray:
        """Step 3: return the numbers under all masks.

        Args:
            sealed_shares: Neighbour -> the shares that it has encrypted for this client; without those
                that fell silent.
            plain_numbers: ``(d,)``, integers modulo 2³².

        Raises:
            ProtocolError: Fewer neighbours than the threshold are left, or shares were changed on
                their way.
        """
        self._begin(2)
        # Decrypt the shares of the neighbours, which are needed only in the last step.
        for neighbour, encrypted in sealed_shares.items():
            purpose = _purpose(self.name, "share", neighbour, self.client)
            try:
                both_shares = opened(self._share_key(neighbour, purpose), encrypted, purpose)
            except (KeyError, ValueError) as error:
                raise ProtocolError(
                    f"the shares of client {neighbour} cannot be read: {error}"
                ) from None
            self._held[neighbour] = (both_shares[:SHARE_BYTES], both_shares[SHARE_BYTES:])
        if len(self._held) < self.threshold:
            raise ProtocolError(
                f"{len(self._held)} clients are left of the {self.threshold} that can unmask a sum"
            )
        # The client's own mask, and those that it has in common with each neighbour.
        masked_total = plain_numbers.astype(WORD) + mask(self._seed, len(plain_numbers))
        for neighbour in self._held.keys() - {self.client}:
            neighbour_key = self._keys[neighbour].masking
            mask_seed = _common_mask_seed(
                self._masking, neighbour_key, self.name, self.client, neighbour
            )
            common_mask = mask(mask_seed, len(plain_numbers))
            # One of both clients adds what the other subtracts.
            masked_total = (
                masked_total + common_mask
                if self.client < neighbour
                else masked_total - common_mask
            )
        return np.asarray(masked_total, dtype=WORD)

    def unmask(self, arrived_clients: Collection[int]) -> Unmasking:
        """Step 4: return the shares with which the server can unmask the sum.

        Args:
            arrived_clients: The clients whose masked numbers have arrived.

        Raises:
            ProtocolError: This client's own numbers have not arrived, or those of fewer than a
                threshold of clients that it knows, or of fewer than three: the sum of few says much
                about each. Or it was asked before: with a second answer the server could learn both
                secrets of a client.
        """
        self._begin(3)
        # Only a sum of enough clients may be unmasked.
        answering_clients = set(arrived_clients) & set(self._held)
        if self.client not in answering_clients or len(answering_clients) < max(
            self.threshold, MIN_SUM_CLIENTS
        ):
            raise ProtocolError(
                f"a sum of {len(answering_clients)} of the clients that client {self.client} knows is not unmasked"
            )
        silent_clients = self._held.keys() - answering_clients
        # Never both shares of one client: with both secrets the server could read its numbers.
        return Unmasking(
            seeds={client: self._held[client][0] for client in sorted(answering_clients)},
            keys={client: self._held[client][1] for client in sorted(silent_clients)},
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
    _keys: dict[int, Keys] = field(init=False, default_factory=dict)
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
        # Clients without usable keys take no part.
        self._keys = {}
        for client, client_keys in received.items():
            if len(client_keys.sealing) == len(client_keys.masking) == KEY_BYTES:
                self._keys[client] = client_keys
        try:
            self.graph = Graph.of(self._keys, self.dropouts, self.colluding)
        except ValueError as error:
            raise ProtocolError(str(error)) from None
        return {
            client: {
                neighbour: self._keys[neighbour] for neighbour in self.graph.neighbours[client]
            }
            for client in self._keys
        }

    def shares(self, received: Mapping[int, Mapping[int, bytes]]) -> dict[int, dict[int, bytes]]:
        """Step 2: return what each client is sent, the shares that its neighbours have encrypted for it."""
        # A client gets shares only of neighbours that have sent some.
        self._shared = frozenset(received)
        shares_for: dict[int, dict[int, bytes]] = {}
        for client in received:
            shares_for[client] = {}
            for neighbour in self.graph.neighbours[client]:
                if client in received.get(neighbour, {}):
                    shares_for[client][neighbour] = received[neighbour][client]
        return shares_for

    def add(self, client: int, masked_numbers: np.ndarray) -> None:
        """Step 3: add a client's masked numbers to the total.

        Raises:
            ProtocolError: The client has sent no shares, or numbers before, or the wrong number of
                numbers.
        """
        if (
            client not in self._shared
            or client in self.arrived
            or masked_numbers.shape != (self.size,)
        ):
            raise ProtocolError(
                f"the masked numbers of client {client} are not wanted: shape {masked_numbers.shape}, not {self.size}"
            )
        self.total += masked_numbers
        self.arrived.add(client)

    def unmasked(self, received: Mapping[int, Unmasking]) -> np.ndarray:
        """Step 4: return the sum ``(d,)`` of the numbers that have arrived, modulo 2³².

        Args:
            received: Client -> its shares.

        Raises:
            ProtocolError: Too few clients have sent shares of a secret that is needed.
        """
        # Shares of a secret come from the neighbours of its owner.
        unmasked_total = self.total.copy()
        seed_shares = {client: unmasking.seeds for client, unmasking in received.items()}
        key_shares = {client: unmasking.keys for client, unmasking in received.items()}
        # The own masks of the clients whose numbers are in the total.
        for client in sorted(self.arrived):
            unmasked_total -= mask(self._secret(client, seed_shares), self.size)
        # The masks that these clients have in common with a silent one: nothing cancels them.
        for silent_client in sorted(self._shared - self.arrived):
            neighbours = [
                client for client in self.graph.neighbours[silent_client] if client in self.arrived
            ]
            if not neighbours:
                continue
            silent_key_pair = KeyPair.of(self._secret(silent_client, key_shares))
            for neighbour in neighbours:
                neighbour_key = self._keys[neighbour].masking
                mask_seed = _common_mask_seed(
                    silent_key_pair, neighbour_key, self.name, silent_client, neighbour
                )
                common_mask = mask(mask_seed, self.size)
                unmasked_total = (
                    unmasked_total - common_mask
                    if neighbour < silent_client
                    else unmasked_total + common_mask
                )
        return unmasked_total

    def _secret(self, secret_owner: int, received: Mapping[int, Mapping[int, bytes]]) -> bytes:
        """The secret of a client from its shares: client that holds one -> owner -> share."""
        # The share of a client is the value of the polynomial at its id + 1.
        owner_shares = {}
        for share_holder in (secret_owner, *self.graph.neighbours[secret_owner]):
            if secret_owner in received.get(share_holder, {}):
                owner_shares[share_holder + 1] = received[share_holder][secret_owner]
        try:
            return join(owner_shares, self.graph.threshold)
        except ValueError as error:
            raise ProtocolError(
                f"the masks of client {secret_owner} cannot be removed: {error}"
            ) from None
