"""An untrusted actor's report of an evaluation, a match or a failure, checked before it is used."""

import math

from parlmesh.errors import InvalidInput
from parlmesh.v1 import task_pb2 as pb
from parlmesh.wire import payload_from_proto

from .experience_source import Evaluation, MatchResult


def evaluation_of(version: int, outcome: pb.Outcome) -> Evaluation:
    """The evaluation that an untrusted actor reports; raises InvalidInput when it is none."""
    result, _ = payload_from_proto(outcome.result)
    try:
        mean, least, most = (float(result[f"{name}_return"]) for name in ("mean", "min", "max"))
        episodes = int(result["episodes"])
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        message = f"actor {outcome.actor_id} answered with no evaluation: {error!r}"
        raise InvalidInput(message, reason="INVALID_RESULT") from None
    if not all(map(math.isfinite, (mean, least, most))) or episodes < 1:
        message = f"actor {outcome.actor_id} answered with the mean return {mean} of {episodes} episodes"
        raise InvalidInput(message, reason="INVALID_RESULT")
    return Evaluation(version, mean, least, most, episodes)


def match_of(version: int, opponent: int, outcome: pb.Outcome) -> MatchResult:
    """The match that an untrusted actor reports; raises InvalidInput when it is not a match of these two."""
    result, _ = payload_from_proto(outcome.result)
    try:
        found = MatchResult(version, opponent, *(int(result[name]) for name in ("won", "drawn", "lost")))
        named = int(result["version"]), int(result["opponent"])
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        message = f"actor {outcome.actor_id} answered with no match: {error!r}"
        raise InvalidInput(message, reason="INVALID_RESULT") from None
    if named != (version, opponent) or not all(0 <= count <= 10_000 for count in (found.won, found.drawn, found.lost)):
        message = f"actor {outcome.actor_id} answered with a match of {named[0]} and {named[1]}, or with negative games"
        raise InvalidInput(message, reason="INVALID_RESULT")
    return found


def told(failure: pb.Failure) -> tuple[str, str]:
    """One sentence, and the traceback of the handler's code, if the actor sent one."""
    sentence, _, traceback = failure.message.partition("\n")
    return sentence, traceback
