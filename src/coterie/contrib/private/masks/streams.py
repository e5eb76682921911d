"""Keys that two clients have in common, and the masks made of them: X25519, HKDF, ChaCha20.

All from the `cryptography` package.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from coterie.contrib.private.masks.fixed import WORD

KEY_BYTES = 32
"""Bytes of a key, private or public, and of the seed of a mask."""


@dataclass(frozen=True, repr=False)
class KeyPair:
    """A private key of X25519 and its public key."""

    private: X25519PrivateKey

    @classmethod
    def new(cls) -> KeyPair:
        """Draw a new private key."""
        return cls(X25519PrivateKey.generate())

    @classmethod
    def of(cls, private: bytes) -> KeyPair:
        """Return the pair of a private key."""
        return cls(X25519PrivateKey.from_private_bytes(private))

    @property
    def secret(self) -> bytes:
        """The private key."""
        return self.private.private_bytes_raw()

    @property
    def public(self) -> bytes:
        """The public key."""
        return self.private.public_key().public_bytes_raw()

    def agree(self, other_public_key: bytes, purpose: bytes) -> bytes:
        """Return the key of 32 bytes that this pair has in common with another one.

        Args:
            other_public_key: The other public key.
            purpose: What the key is for, and for which sum; the same for both. Other purposes give
                unrelated keys.

        Raises:
            ValueError: The public key has another length, or is of a kind that gives the same key
                to all.
        """
        # The common secret of Diffie and Hellman becomes a key by HKDF.
        common_secret = self.private.exchange(X25519PublicKey.from_public_bytes(other_public_key))
        return HKDF(algorithm=hashes.SHA256(), length=KEY_BYTES, salt=None, info=purpose).derive(
            common_secret
        )


def mask(mask_seed: bytes, mask_length: int) -> np.ndarray:
    """Return a mask: integers modulo 2³² from ChaCha20's key stream.

    Args:
        mask_seed: 32 bytes, used for one mask only.
        mask_length: d, the number of integers.
    """
    # The encryption of zeros is the key stream. The nonce is zero: a seed is used once.
    cipher = Cipher(algorithms.ChaCha20(mask_seed, bytes(16)), mode=None)
    key_stream = cipher.encryptor().update(bytes(WORD.itemsize * mask_length))
    return np.frombuffer(key_stream, dtype=WORD)


def sealed(text_key: bytes, plain_text: bytes, purpose: bytes) -> bytes:
    """Return a text encrypted and authenticated with a key that is used for this text only."""
    # So the nonce may be zero.
    return ChaCha20Poly1305(text_key).encrypt(bytes(12), plain_text, purpose)


def opened(text_key: bytes, sealed_text: bytes, purpose: bytes) -> bytes:
    """Return the text that :func:`sealed` encrypted.

    Raises:
        ValueError: It was changed, or made with another key or ``purpose`` something else.
    """
    try:
        return ChaCha20Poly1305(text_key).decrypt(bytes(12), sealed_text, purpose)
    except InvalidTag:
        raise ValueError(
            "it was changed on its way, or is meant for another client or another sum"
        ) from None
