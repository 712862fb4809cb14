"""Splits 32-byte secrets into shares: any `threshold` of them restore the secret, fewer reveal nothing (Shamir 1979).

The field's prime is 2^256 + 297, the smallest above every secret. The share of node k is the polynomial's value at k,
starting from 1.
"""

from collections.abc import Callable, Mapping

from parlmesh.errors import InvalidInput

SECRET_BYTES = 32
SHARE_BYTES = 33
_PRIME = (1 << 256) + 297
# Enough more bits than the field has to make the draw practically uniform.
_DRAWN_BYTES = 48

RandomBytes = Callable[[int], bytes]


def split(secret: bytes, threshold: int, count: int, random_bytes: RandomBytes) -> list[bytes]:
    """The shares of places 1 to `count`, in order."""
    if len(secret) != SECRET_BYTES:
        raise InvalidInput(f"a secret must have {SECRET_BYTES} bytes, got {len(secret)}")
    if not 1 <= threshold <= count:
        raise InvalidInput(f"the threshold of {count} shares must be 1 to {count}, got {threshold}")
    polynomial = [int.from_bytes(secret, "big")]
    polynomial += [int.from_bytes(random_bytes(_DRAWN_BYTES), "big") % _PRIME for _ in range(threshold - 1)]
    return [_value(polynomial, place).to_bytes(SHARE_BYTES, "big") for place in range(1, count + 1)]


def join(shares: Mapping[int, bytes], threshold: int) -> bytes:
    """The secret from shares by place; raises InvalidInput when they are too few or inconsistent."""
    if len(shares) < threshold:
        raise InvalidInput(f"a secret needs {threshold} shares, got {len(shares)}")
    secret = _at({place: shares[place] for place in sorted(shares)[:threshold]}, 0)
    if secret >> (8 * SECRET_BYTES):
        raise InvalidInput("the shares are not of one secret")
    return secret.to_bytes(SECRET_BYTES, "big")


def share_at(shares: Mapping[int, bytes], place: int) -> bytes:
    """The share of a place, computed from `threshold` correct shares."""
    return _at(shares, place).to_bytes(SHARE_BYTES, "big")


def _at(shares: Mapping[int, bytes], where: int) -> int:
    """The value at `where` of the polynomial through all shares."""
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
