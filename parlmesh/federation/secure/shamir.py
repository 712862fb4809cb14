"""Secrets of 32 bytes in shares of which any `threshold` give the secret back, and fewer say nothing (Shamir 1979).

The field is that of 2^256 + 297, the smallest prime that every secret is below. The share of node k is the polynomial's
value at k, k from 1 on.
"""

from collections.abc import Callable, Mapping

from parlmesh.errors import InvalidInput

SECRET_BYTES = 32
SHARE_BYTES = 33
_PRIME = (1 << 256) + 297
# So many more bits than the field has that no number of it is likelier than another.
_DRAWN_BYTES = 48

RandomBytes = Callable[[int], bytes]


def split(secret: bytes, threshold: int, count: int, random_bytes: RandomBytes) -> list[bytes]:
    """The shares of 1 to `count`, in this order."""
    if len(secret) != SECRET_BYTES:
        raise InvalidInput(f"a secret must have {SECRET_BYTES} bytes, got {len(secret)}")
    if not 1 <= threshold <= count:
        raise InvalidInput(f"the threshold of {count} shares must be 1 to {count}, got {threshold}")
    polynomial = [int.from_bytes(secret, "big")]
    polynomial += [int.from_bytes(random_bytes(_DRAWN_BYTES), "big") % _PRIME for _ in range(threshold - 1)]
    return [_value(polynomial, place).to_bytes(SHARE_BYTES, "big") for place in range(1, count + 1)]


def join(shares: Mapping[int, bytes], threshold: int) -> bytes:
    """The secret from shares by their places; InvalidInput when they are too few or cannot be shares of one."""
    if len(shares) < threshold:
        raise InvalidInput(f"a secret needs {threshold} shares, got {len(shares)}")
    secret = _at({place: shares[place] for place in sorted(shares)[:threshold]}, 0)
    if secret >> (8 * SECRET_BYTES):
        raise InvalidInput("the shares are not of one secret")
    return secret.to_bytes(SECRET_BYTES, "big")


def share_at(shares: Mapping[int, bytes], place: int) -> bytes:
    """What the share of a place must be, by as many right ones as the threshold."""
    return _at(shares, place).to_bytes(SHARE_BYTES, "big")


def _at(shares: Mapping[int, bytes], where: int) -> int:
    """The value there of the polynomial through all of them."""
    total = 0
    for place, share in shares.items():
        above, below = 1, 1
        for other in shares:
            if other != place:
                above = above * (other - where) % _PRIME
                below = below * (other - place) % _PRIME
        total += int.from_bytes(share, "big") * above * pow(below, -1, _PRIME)
    return total % _PRIME


def _value(polynomial: list[int], place: int) -> int:
    value = 0
    for coefficient in reversed(polynomial):
        value = (value * place + coefficient) % _PRIME
    return value
