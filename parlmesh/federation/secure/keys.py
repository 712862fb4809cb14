"""Keys that nodes of one round agree on: X25519, HKDF-SHA256 bound to the round's list of nodes, AES-256-GCM.

Every derived key is bound to the digest of the list, so that two nodes that were shown different lists share nothing.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from parlmesh.errors import InvalidInput

from .shamir import RandomBytes

KEY_BYTES = 32
_NONCE_BYTES, _TAG_BYTES = 12, 16
SEALING_BYTES = _NONCE_BYTES + _TAG_BYTES
_ANY_KEY = X25519PrivateKey.from_private_bytes(bytes(range(KEY_BYTES)))


@dataclass(frozen=True, slots=True)
class PublicKeys:
    """A node's keys for one round: what shares are sealed to, and what pairwise masks are made of."""

    seal: bytes
    mask: bytes


class PrivateKey:
    """A node's half of a pair. What it shares with a peer is computed once: that is most of what keys cost."""

    def __init__(self, secret: bytes) -> None:
        self._key = X25519PrivateKey.from_private_bytes(secret)
        self._shared: dict[bytes, bytes] = {}

    @property
    def public(self) -> bytes:
        return self._key.public_key().public_bytes_raw()

    def shared_with(self, public: bytes) -> bytes:
        """The secret of the two; InvalidInput for a key that no node can agree on a secret with."""
        if public not in self._shared:
            self._shared[public] = _exchanged(self._key, public)
        return self._shared[public]


def check_public(public: bytes) -> None:
    """InvalidInput for a key that no node can agree on a secret with."""
    _exchanged(_ANY_KEY, public)


def list_digest(federation_id: str, round_number: int, threshold: int, keys: Mapping[str, PublicKeys]) -> bytes:
    """What all nodes of a round must have been told alike."""
    rows = [[node, keys[node].seal.hex(), keys[node].mask.hex()] for node in sorted(keys)]
    text = json.dumps([federation_id, round_number, threshold, rows], separators=(",", ":"))
    return hashlib.sha256(text.encode()).digest()


def sealing_key(private: PrivateKey, public: bytes, digest: bytes, sender: str, receiver: str) -> bytes:
    """For what one node sends to another; the two directions have different keys."""
    return _derived(private, public, digest, ["seal", sender, receiver])


def mask_key(private: PrivateKey, public: bytes, digest: bytes, one: str, other: str) -> bytes:
    """For the mask of two nodes, the same on both sides."""
    return _derived(private, public, digest, ["mask", *sorted((one, other))])


def seal(key: bytes, plain: bytes, random_bytes: RandomBytes) -> bytes:
    """Encrypted and authenticated."""
    nonce = random_bytes(_NONCE_BYTES)
    return nonce + AESGCM(key).encrypt(nonce, plain, None)


def unseal(key: bytes, sealed: bytes) -> bytes:
    """The inverse; InvalidInput when it was not sealed with this key."""
    try:
        return AESGCM(key).decrypt(sealed[:_NONCE_BYTES], sealed[_NONCE_BYTES:], None)
    except (InvalidTag, ValueError) as error:
        raise InvalidInput("what was sealed for this node cannot be opened", reason="BAD_SHARE") from error


def _derived(private: PrivateKey, public: bytes, digest: bytes, purpose: list[str]) -> bytes:
    info = json.dumps(["parlmesh secure aggregation 1", *purpose]).encode()
    return HKDF(algorithm=hashes.SHA256(), length=KEY_BYTES, salt=digest, info=info).derive(private.shared_with(public))


def _exchanged(private: X25519PrivateKey, public: bytes) -> bytes:
    try:
        return private.exchange(X25519PublicKey.from_public_bytes(public))
    except ValueError as error:
        # A point of small order, with which anybody could compute the secret.
        raise InvalidInput("a node's public key is not usable", reason="BAD_KEY") from error
