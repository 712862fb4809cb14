"""Key agreement between the nodes of a round: X25519, HKDF-SHA256 bound to the round's list of nodes, AES-256-GCM.

Every derived key is bound to the digest of the list, so two nodes that were shown different lists share no key.
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
    """A node's public keys for one round: one for sealing shares to it, one for pairwise masks."""

    seal: bytes
    mask: bytes


class PrivateKey:
    """A node's private key. Caches the secret shared with each peer, which is the most expensive part."""

    def __init__(self, secret: bytes) -> None:
        self._key = X25519PrivateKey.from_private_bytes(secret)
        self._shared: dict[bytes, bytes] = {}

    @property
    def public(self) -> bytes:
        return self._key.public_key().public_bytes_raw()

    def shared_with(self, public: bytes) -> bytes:
        """The shared secret; raises InvalidInput for an unusable public key."""
        if public not in self._shared:
            self._shared[public] = _exchanged(self._key, public)
        return self._shared[public]


def check_public(public: bytes) -> None:
    """Raises InvalidInput for an unusable public key."""
    _exchanged(_ANY_KEY, public)


def list_digest(federation_id: str, round_number: int, threshold: int, keys: Mapping[str, PublicKeys]) -> bytes:
    """Digest of what all nodes of a round must have been shown identically."""
    rows = [[node, keys[node].seal.hex(), keys[node].mask.hex()] for node in sorted(keys)]
    text = json.dumps([federation_id, round_number, threshold, rows], separators=(",", ":"))
    return hashlib.sha256(text.encode()).digest()


def sealing_key(private: PrivateKey, public: bytes, digest: bytes, sender: str, receiver: str) -> bytes:
    """The key for messages from one node to another; each direction has its own."""
    return _derived(private, public, digest, ["seal", sender, receiver])


def mask_key(private: PrivateKey, public: bytes, digest: bytes, one: str, other: str) -> bytes:
    """The key of two nodes' mask, the same on both sides."""
    return _derived(private, public, digest, ["mask", *sorted((one, other))])


def seal(key: bytes, plain: bytes, random_bytes: RandomBytes) -> bytes:
    """Encrypts and authenticates."""
    nonce = random_bytes(_NONCE_BYTES)
    return nonce + AESGCM(key).encrypt(nonce, plain, None)


def unseal(key: bytes, sealed: bytes) -> bytes:
    """The inverse of `seal`; raises InvalidInput when it was not sealed with this key."""
    try:
        return AESGCM(key).decrypt(sealed[:_NONCE_BYTES], sealed[_NONCE_BYTES:], None)
    except (InvalidTag, ValueError) as error:
        raise InvalidInput("a message sealed for this node cannot be opened", reason="BAD_SHARE") from error


def _derived(private: PrivateKey, public: bytes, digest: bytes, purpose: list[str]) -> bytes:
    info = json.dumps(["parlmesh secure aggregation 1", *purpose]).encode()
    return HKDF(algorithm=hashes.SHA256(), length=KEY_BYTES, salt=digest, info=info).derive(private.shared_with(public))


def _exchanged(private: X25519PrivateKey, public: bytes) -> bytes:
    try:
        return private.exchange(X25519PublicKey.from_public_bytes(public))
    except ValueError as error:
        # A point of small order, for which any party could compute the secret.
        raise InvalidInput("a node's public key is not usable", reason="BAD_KEY") from error
