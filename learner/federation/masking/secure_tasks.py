"""The requests to nodes of a secure round besides training, and their answers, which are checked before use."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from parlmesh.errors import InvalidInput
from parlmesh.federation.config import FederationConfig
from parlmesh.federation.secure.keys import check_public
from parlmesh.federation.secure.shamir import SHARE_BYTES
from parlmesh.v1 import task_pb2 as pb
from parlmesh.wire import struct_from_proto

from ..rules.masked_round import KEYS, REVEAL, SHARES, MaskedRound, NodeKeys, NodeShares
from ..rules.records import Assignment
from ..task_specs import MASK, NodesTask, grouped_tasks

# Nonce, two shares, tag.
_SEALED_BYTES = 12 + 2 * SHARE_BYTES + 16
_KEY_BYTES = 32


def step_tasks(
    federation_id: str,
    config: FederationConfig,
    step: str,
    round_: MaskedRound,
    assignments: Sequence[Assignment],
    survivors: Sequence[str] = (),
) -> list[NodesTask]:
    """One step of a secure round for these nodes."""
    parameters: dict[str, Any] = {"federation_id": federation_id, "step": step, "round": assignments[0].round}
    if step == SHARES:
        parameters["threshold"] = round_.threshold
        parameters["keys"] = {node: {"seal": each.seal, "mask": each.mask} for node, each in round_.keys.items()}
    if step == REVEAL:
        parameters["survivors"] = list(survivors)
    members = {each.node_id: {"node_id": each.node_id, "nonce": each.nonce} for each in assignments}
    return grouped_tasks(MASK, parameters, config.secure.step_seconds, assignments, members, step=step)


def answer_of(step: str, found: object, node: str, round_: MaskedRound) -> NodeKeys | NodeShares:
    """A node's keys or shares; InvalidInput when they are malformed."""
    if not isinstance(found, Mapping):
        raise _bad(f"its {step} are missing")
    if step == KEYS:
        return _keys_of(found, node, round_)
    sealed = found.get("sealed")
    if not isinstance(sealed, Mapping) or set(sealed) != set(round_.keys) - {node}:
        raise _bad(f"its shares are not for the {len(round_.keys) - 1} other nodes")
    boxes = {peer: _hex(box, _SEALED_BYTES) for peer, box in sealed.items()}
    return NodeShares(_hex(found.get("commitment"), _KEY_BYTES), boxes)


def _keys_of(found: Mapping[str, Any], node: str, round_: MaskedRound) -> NodeKeys:
    """Checks a node's keys: one bad key would make every other node refuse the list, round after round."""
    keys = NodeKeys(_hex(found.get("seal"), _KEY_BYTES), _hex(found.get("mask"), _KEY_BYTES))
    for key in (keys.seal, keys.mask):
        check_public(bytes.fromhex(key))
    taken = {key for other, each in round_.keys.items() if other != node for key in (each.seal, each.mask)}
    if keys.seal == keys.mask or not taken.isdisjoint((keys.seal, keys.mask)):
        raise _bad("its two keys must differ from each other and from those of other nodes")
    return keys


def revealed_in(found: object) -> tuple[dict[str, bytes], dict[str, bytes]]:
    """Shares of seeds and of keys, by the node they belong to; InvalidInput when they are malformed."""
    both = []
    for name in ("seeds", "keys"):
        shares = found.get(name) if isinstance(found, Mapping) else None
        if not isinstance(shares, Mapping):
            raise _bad(f"its shares of {name} are missing")
        both.append({node: bytes.fromhex(_hex(share, SHARE_BYTES)) for node, share in shares.items()})
    return both[0], both[1]


def answers_in(result: pb.Payload) -> Mapping[str, Any]:
    """The answers in a result, by node."""
    answers = struct_from_proto(result.parameters).get("answers")
    return answers if isinstance(answers, Mapping) else {}


def _hex(value: object, size: int) -> str:
    if not isinstance(value, str) or not re.fullmatch(f"[0-9a-f]{{{2 * size}}}", value):
        raise _bad(f"a value must be {size} bytes in hexadecimal digits")
    return value


def _bad(message: str) -> InvalidInput:
    return InvalidInput(message, reason="BAD_ANSWER")
