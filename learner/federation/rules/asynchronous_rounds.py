"""Asynchronous rounds (FedBuff): every `buffer_size` updates make a version, whichever nodes sent them. Pure."""

from collections.abc import Mapping

from parlmesh.federation.config import FederationConfig

from .nodes.voters import voter_of
from .records import Answer
from .update_checks import refusal


def is_full(answers: Mapping[str, Answer], config: FederationConfig) -> bool:
    """Whether a version can be made: enough updates, of enough voters."""
    if len(answers) < config.buffer_size:
        return False
    voters = {voter_of(answer.node_id, config) for answer in answers.values()}
    return len(voters) >= config.rule.fewest_voters


def may_answer_again(node_id: str, answers: Mapping[str, Answer], config: FederationConfig) -> bool:
    """Whether a node may send another update; if updates are votes, it has one per buffer."""
    return not config.rule.by_votes or all(answer.node_id != node_id for answer in answers.values())


def check_staleness(answer: Answer, version: int, config: FederationConfig) -> None:
    """Raises FleetError if the update's base version is too old."""
    staleness = version - answer.base_version
    if staleness > config.max_staleness:
        raise refusal("STALE", f"the update is {staleness} versions old; the limit is {config.max_staleness}")
