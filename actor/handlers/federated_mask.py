"""Nodes' part in secure sums besides training: keys, shares for the others, and what unmasks the sum."""

import secrets
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Literal, Self

from pydantic import Field, model_validator

from parlmesh.errors import FailedPrecondition, FleetError
from parlmesh.exception_text import cut
from parlmesh.federation.secure.fixed_point import MOST_NODES
from parlmesh.handlers import Context, Result, RunsIn
from parlmesh.types import Array

from ..federation.local_nodes import Kept, Participants
from .federated import NONCE
from .parameters import Parameters

if TYPE_CHECKING:
    from ..federation.masking import Masking

_LONGEST_FAILURE = 300
_KEY = r"^[0-9a-f]{64}$"


class Keys(Parameters):
    """A node's public keys."""

    seal: str = Field(pattern=_KEY)
    mask: str = Field(pattern=_KEY)


class Member(Parameters):
    """A node that is asked; the nonce is its update's in this round."""

    node_id: str = Field(min_length=1, max_length=128)
    nonce: str = Field(pattern=NONCE)


class MaskParameters(Parameters):
    """One step of a round."""

    federation_id: str = Field(min_length=1, max_length=200)
    round: int = Field(ge=0, lt=1 << 53)
    step: Literal["keys", "shares", "reveal"]
    members: list[Member] = Field(min_length=1, max_length=MOST_NODES)
    threshold: int = Field(default=0, ge=0, le=MOST_NODES)
    keys: dict[str, Keys] = Field(default_factory=dict, max_length=MOST_NODES)
    survivors: list[str] = Field(default_factory=list, max_length=MOST_NODES)

    @model_validator(mode="after")
    def _survivors_are_named_once(self) -> Self:
        if len(set(self.survivors)) != len(self.survivors):
            raise ValueError("survivors must be named once each")
        return self


class FederatedMask:
    """The kind `federated_mask`."""

    kind = "federated_mask"
    runs_in = RunsIn.THREAD

    def __init__(self, participants: Participants, random_bytes: Callable[[int], bytes] = secrets.token_bytes) -> None:
        self._participants = participants
        self._random = random_bytes

    def run(self, parameters: dict[str, Any], tensors: dict[str, Array], context: Context) -> Result:
        """{federation_id, round, step, members: [{node_id, nonce}], threshold, keys, survivors}

        A node that refuses does not keep the others from answering.
        """
        wanted = MaskParameters.of(self.kind, parameters)
        self._participants.check(member.node_id for member in wanted.members)
        answers: dict[str, Any] = {}
        failed: dict[str, str] = {}
        for member in wanted.members:
            context.check()
            try:
                kept = self._participants.kept(wanted.federation_id, member.node_id)
                with kept.turn:
                    answers[member.node_id] = self._answer(wanted, member, kept)
            except FleetError as error:
                failed[member.node_id] = cut(f"{error.reason}: {error.message}", _LONGEST_FAILURE)
        return Result({"answers": answers, **({"failed": failed} if failed else {})})

    def _answer(self, wanted: MaskParameters, member: Member, kept: Kept) -> dict[str, Any]:
        match wanted.step:
            case "keys":
                return self._keys(wanted, member, kept)
            case "shares":
                return self._shares(wanted, kept.masking_of(member.nonce))
            case "reveal":
                revealed = kept.masking_of(member.nonce).reveal(wanted.survivors)
                return {"seeds": _hex(revealed.seeds), "keys": _hex(revealed.keys)}

    def _keys(self, wanted: MaskParameters, member: Member, kept: Kept) -> dict[str, Any]:
        try:
            from ..federation.masking import Masking
        except ImportError as error:
            text = f"secure sums need the package {error.name}: pip install 'parlmesh[security]'"
            raise FailedPrecondition(text, reason="MISSING_PACKAGE") from error
        if kept.masking is None or kept.masking_nonce != member.nonce:
            # This drops the secrets of the last round.
            kept.masking = Masking(wanted.federation_id, wanted.round, member.node_id, self._random)
            kept.masking_nonce = member.nonce
        keys = kept.masking.keys
        return {"seal": keys.seal.hex(), "mask": keys.mask.hex()}

    def _shares(self, wanted: MaskParameters, masking: "Masking") -> dict[str, Any]:
        from parlmesh.federation.secure.keys import PublicKeys

        self._participants.floor.check_sum(wanted.threshold)
        keys = {n: PublicKeys(bytes.fromhex(k.seal), bytes.fromhex(k.mask)) for n, k in wanted.keys.items()}
        given = masking.shares(keys, wanted.threshold)
        return {"commitment": given.commitment.hex(), "sealed": _hex(given.by_peer)}


def _hex(by_node: Mapping[str, bytes]) -> dict[str, str]:
    return {node: value.hex() for node, value in by_node.items()}
