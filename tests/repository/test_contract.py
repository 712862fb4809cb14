"""The code does what the contract's comments say, as far as a machine can tell."""

import ast
import re
from collections.abc import Iterable, Mapping
from enum import IntEnum
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from actor.session import attempt_results
from learner import config as learner_config
from learner.federation import messages as federation_messages
from learner.federation import model_versions as federation_models
from learner.federation.rules import records, update_checks
from learner.services import metrics_servicer, model_servicer, page_tokens, training_servicer
from parlmesh import limits, upload_files
from parlmesh.distribution import encoding_numbers as policy_encodings
from parlmesh.distribution import policy_messages
from parlmesh.v1 import (
    federation_service_pb2,
    model_service_pb2,
    policy_service_pb2,
    scheduler_service_pb2,
    task_pb2,
    tensor_pb2,
    training_service_pb2,
)
from parlmesh.wire import tensors, trajectories
from scheduler.config import SchedulerConfig
from scheduler.core import chrome_trace
from scheduler.core.placement import ActorCommand, ActorState
from scheduler.core.task import Priority, TaskState
from scheduler.wire import blob_servicer, messages, queries

ROOT = Path(__file__).parents[2]
_BLOCK = re.compile(r"(?:message|enum|service|oneof) (\w+) \{")
_MEMBER = re.compile(r"(?:(?:repeated |optional )?(?P<type>[\w.]+|map<.*>) )?(?P<name>\w+) = \d+;")
_NUMBER = re.compile(r"\b(?:at most|cut at) (\d[\d,]*)( MiB)?", re.IGNORECASE)
_DEFAULT = re.compile(r"\b0 = (\d[\d,]*)\b")


def comments() -> Iterable[tuple[str, str, str]]:
    """(name such as TaskSpec.kind, its type, its comment), of everything in the contract."""
    for file in sorted((ROOT / "protos/parlmesh/v1").glob("*.proto")):
        blocks: list[str] = []
        said: list[str] = []
        for line in map(str.strip, file.read_text().splitlines()):
            if line.startswith("//"):
                said.append(line.removeprefix("//").strip())
                continue
            if block := _BLOCK.match(line):
                blocks.append(block[1])
                yield ".".join(blocks), "", " ".join(said)
                if line.endswith("}"):
                    blocks.pop()
            elif line == "}":
                blocks.pop()
            elif line.startswith("rpc "):
                yield f"{blocks[-1]}.{line.split('(')[0].removeprefix('rpc ')}", "", " ".join(said)
            elif member := _MEMBER.match(line):
                yield f"{blocks[0]}.{member['name']}", member["type"] or "", " ".join(said)
            said = []


COMMENTS = {name: comment for name, _, comment in comments()}
TYPES = {name: kind for name, kind, _ in comments()}

MOST: Mapping[str, float] = {
    "UploadFile.size_bytes": upload_files.MOST_BYTES,
    "Payload.tensors": tensors.DEFAULT_LIMITS.max_tensors,
    "Tensor.name": tensors.DEFAULT_LIMITS.max_name,
    "Tensor.shape": tensors.DEFAULT_LIMITS.max_rank,
    "Placement.node_id": limits.NODE_ID.most,
    "Placement.labels": limits.LABELS.most,
    "TaskSpec.task_id": limits.TASK_ID.most,
    "TaskSpec.kind": limits.KIND.most,
    "TaskSpec.submitter": limits.SUBMITTER.most,
    "Failure.reason": limits.FAILURE_REASON.most,
    "Failure.message": limits.FAILURE_MESSAGE.most,
    "SubmitTasksRequest.tasks": limits.TASKS.most,
    "SubmitTaskStreamRequest.tasks": limits.TASKS.most,
    "WatchTasksRequest.task_ids": limits.TASK_IDS.most,
    "CancelTasksRequest.task_ids": limits.TASK_IDS.most,
    "UpdateActorsRequest.actor_ids": limits.ACTOR_IDS.most,
    "UpdateActorsRequest.reason": limits.REASON.most,
    "ListTasksRequest.page_size": queries.MAX_PAGE,
    "ListActorsRequest.page_size": queries.MAX_PAGE,
    "GetTraceRequest.seconds": queries.MAX_TRACE_SECONDS,
    "Hello.node_id": limits.NODE_ID.most,
    "Hello.actor_id": limits.ACTOR_ID.most,
    "Hello.slots": limits.SLOTS.most,
    "Hello.kinds": limits.KINDS.most,
    "Hello.labels": limits.LABELS.most,
    "Hello.leases": limits.LEASES.most,
    "Heartbeat.leases": limits.LEASES.most,
    "ConnectRequest.credits": limits.CREDITS.most,
    "SubmitUpdatesRequest.parts": limits.PARTS.most,
    "HoldBlobsRequest.names": limits.BLOBS.most,
    "HoldBlobsRequest.seconds": limits.HOLD_SECONDS.most,
    "PutBlobRequest.data": blob_servicer.CHUNK_BYTES,
    "Trajectory.episodes": trajectories._MAX_EPISODES,
    "QueryMetricsRequest.names": metrics_servicer._MOST_NAMES,
    "QueryMetricsRequest.max_points": metrics_servicer._MOST_POINTS,
    "GetPolicyResponse.data": policy_messages.CHUNK_BYTES,
    "WatchPolicyResponse.data": policy_messages.CHUNK_BYTES,
    "ExportModelResponse.data": policy_messages.CHUNK_BYTES,
    "ListTrainingsRequest.page_size": page_tokens.MOST_ITEMS,
    "ListFederationsRequest.page_size": page_tokens.MOST_ITEMS,
    "ListModelsRequest.page_size": page_tokens.MOST_ITEMS,
    "ListRoundsRequest.page_size": federation_messages._LARGEST_PAGE,
    "UpdateRecord.message": records.LONGEST_MESSAGE,
    "UpdateHeader.node_id": federation_messages._LONGEST_NAME,
    "UpdateHeader.metrics": update_checks.MOST_METRICS,
    "UpdateHeader.tensors": federation_messages._MOST_TENSORS,
}
# Less may be sent than promised.
NO_MORE_THAN: Mapping[str, float] = {
    "GetFederatedModelResponse.data": federation_models.CHUNK_BYTES,
    "WatchFederatedModelResponse.data": federation_models.CHUNK_BYTES,
}
DEFAULTS: Mapping[str, float] = {
    "ListTasksRequest.page_size": queries.DEFAULT_PAGE,
    "GetTraceRequest.seconds": queries.DEFAULT_TRACE_SECONDS,
    "GetTraceRequest.max_attempts": chrome_trace.MAX_EVENTS,
    "QueryMetricsRequest.max_points": metrics_servicer._DEFAULT_POINTS,
    "ListTrainingsRequest.page_size": page_tokens.MOST_ITEMS,
    "ListFederationsRequest.page_size": page_tokens.MOST_ITEMS,
    "ListModelsRequest.page_size": page_tokens.MOST_ITEMS,
    "ListRoundsRequest.page_size": federation_messages._DEFAULT_PAGE,
}


def numbers(pattern: re.Pattern[str]) -> dict[str, int]:
    found = {}
    for name, comment in COMMENTS.items():
        for match in pattern.finditer(comment):
            assert name not in found, f"{name} names two limits"
            number = int(match[1].rstrip(",").replace(",", ""))
            found[name] = number << 20 if pattern is _NUMBER and match[2] else number
    return found


def test_every_limit_in_a_comment_is_the_limit_in_the_code() -> None:
    said = numbers(_NUMBER)
    # Checked by a pattern below.
    assert said.pop("CreateTrainingRequest.run_id") == 100
    assert {name: number for name, number in said.items() if name not in NO_MORE_THAN} == dict(MOST)
    for name, sent in NO_MORE_THAN.items():
        assert sent <= said[name], name


def test_a_run_id_is_as_long_as_its_comment_allows() -> None:
    assert "At most 100 characters" in COMMENTS["CreateTrainingRequest.run_id"]
    assert re.fullmatch(learner_config.RUN_ID, "a" * 100)
    assert not re.fullmatch(learner_config.RUN_ID, "a" * 101)
    assert not re.fullmatch(learner_config.RUN_ID, ".a")


def test_every_default_in_a_comment_is_the_default_in_the_code() -> None:
    assert numbers(_DEFAULT) == dict(DEFAULTS)


def test_a_run_is_watched_as_often_as_the_comment_says() -> None:
    assert "at most ten times a second" in COMMENTS["TrainingService.WatchTraining"]
    assert training_servicer._WATCH_INTERVAL_SECONDS == 0.1


def _named(enum: Any, prefix: str) -> dict[str, int]:
    return {name.removeprefix(prefix): number for name, number in enum.items() if number}


@pytest.mark.parametrize(
    ("proto", "prefix", "code"),
    [
        (task_pb2.TaskState, "TASK_STATE_", TaskState),
        (task_pb2.Priority, "PRIORITY_", Priority),
        (scheduler_service_pb2.ActorState, "ACTOR_STATE_", ActorState),
        (scheduler_service_pb2.ActorCommand, "ACTOR_COMMAND_", ActorCommand),
    ],
    ids=["TaskState", "Priority", "ActorState", "ActorCommand"],
)
def test_an_enum_of_the_core_is_that_of_the_contract(proto: Any, prefix: str, code: type[IntEnum]) -> None:
    assert _named(proto, prefix) == {member.name: member.value for member in code}


@pytest.mark.parametrize(
    ("proto", "known"),
    [
        (training_service_pb2.TrainingState, training_servicer._STATES.values()),
        (federation_service_pb2.FederationState, federation_messages._STATES.values()),
        (federation_service_pb2.RoundState, federation_messages._ROUND_STATES.values()),
        (federation_service_pb2.UpdateEncoding, federation_messages._ENCODINGS.keys()),
        (policy_service_pb2.PolicyEncoding, policy_encodings.ENCODINGS.keys()),
        (tensor_pb2.DataType, tensors._DTYPES.keys()),
    ],
    ids=["TrainingState", "FederationState", "RoundState", "UpdateEncoding", "PolicyEncoding", "DataType"],
)
def test_the_code_knows_every_value_of_an_enum(proto: Any, known: Iterable[int]) -> None:
    assert set(known) | {0} == set(proto.values())


def test_the_comments_say_which_states_are_final() -> None:
    assert "The last four are final." in COMMENTS["TaskState"]
    assert [state.name for state in TaskState if state >= TaskState.SUCCEEDED] == list(TaskState.__members__)[-4:]
    assert "The last three are final." in COMMENTS["TrainingState"]
    assert sorted(training_servicer._FINAL) == sorted(training_service_pb2.TrainingState.values())[-3:]
    assert "All but RUNNING are final." in COMMENTS["FederationState"]


def test_a_value_that_is_not_given_is_read_as_the_comment_says() -> None:
    assert COMMENTS["Priority.PRIORITY_UNSPECIFIED"] == "Read as NORMAL."
    assert messages.task_from_proto(task_pb2.TaskSpec(kind="echo"), "").priority == Priority.NORMAL
    assert COMMENTS["PolicyEncoding.POLICY_ENCODING_UNSPECIFIED"] == "Read as SAFETENSORS."
    assert policy_encodings.ENCODINGS[0] == policy_encodings.ENCODINGS[policy_service_pb2.POLICY_ENCODING_SAFETENSORS]
    assert COMMENTS["ModelFormat.MODEL_FORMAT_UNSPECIFIED"] == "Read as SAFETENSORS."
    assert model_servicer._WRITERS[0] is model_servicer._WRITERS[model_service_pb2.MODEL_FORMAT_SAFETENSORS]
    assert model_service_pb2.MODEL_FORMAT_TORCHSCRIPT not in model_servicer._WRITERS
    assert COMMENTS["UpdateEncoding.UPDATE_ENCODING_UNSPECIFIED"] == "Read as FLOAT32."
    encodings = federation_messages._ENCODINGS
    unspecified, float32 = (federation_service_pb2.UpdateEncoding.ValueType(number) for number in (0, 1))
    assert encodings[unspecified] == encodings[float32]


def _reasons_of_failures(folder: Path) -> set[str]:
    """The literal reasons at the places that make a Failure."""
    found = set()
    for file in folder.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Failure":
                given = [*node.args[:1], *(word.value for word in node.keywords if word.arg == "reason")]
                found |= {str(each.value) for each in given if isinstance(each, ast.Constant)}
    return found


def test_the_reasons_of_a_failure_are_those_that_the_code_gives() -> None:
    listed = set(re.findall(r"\b[A-Z]+_?[A-Z]+\b", COMMENTS["Failure.reason"]))
    of_scheduler = set().union(
        *(_reasons_of_failures(ROOT / "scheduler" / part) for part in ("core", "journal", "wire"))
    )
    of_actor = {value for name, value in vars(attempt_results).items() if name.isupper() and name == value}
    assert _reasons_of_failures(ROOT / "actor" / "worker") == set(), "words of an actor stand in attempts.py"
    assert listed == of_scheduler | of_actor


def test_what_was_done_to_an_update_is_told_in_the_words_of_the_comment() -> None:
    listed = set(re.findall(r"\b[A-Z]+_[A-Z]+\b", COMMENTS["UpdateRecord.notes"]))
    assert listed == set(
        re.findall(r'notes\.append\("(\w+)"\)', (ROOT / "learner/federation/rules/counted_updates.py").read_text())
    )


def test_times_and_sizes_have_their_unit_in_type_or_name() -> None:
    for name, comment in COMMENTS.items():
        if (
            re.match(r"(Time|Seconds|From its start|How far back)\b", comment)
            and TYPES[name] != "google.protobuf.Duration"
        ):
            assert re.search(r"(^|[._])(seconds|ms)$", name), f"{name}: {comment}"
        if re.match(r"(Length|Bytes|Largest message)\b", comment):
            assert name.endswith("_bytes"), f"{name}: {comment}"


def _has(config: type[BaseModel], path: str) -> bool:
    head, _, rest = path.partition(".")
    field = config.model_fields.get(head)
    return field is not None and (not rest or _has(field.annotation, rest))  # type: ignore[arg-type]


def test_the_settings_that_comments_name_exist() -> None:
    named = {
        setting for comment in COMMENTS.values() for setting in re.findall(r"\b[a-z]+\.[a-z]+(?:_[a-z]+)*", comment)
    }
    sections = set(SchedulerConfig.model_fields)
    of_scheduler = {setting for setting in named if setting.split(".")[0] in sections}
    assert {"retries.quarantine_losses", "leases.reconnect_seconds"} <= of_scheduler
    assert [setting for setting in of_scheduler if not _has(SchedulerConfig, setting)] == []
    assert {"max_runs", "max_running_runs"} <= set(learner_config.LearnerConfig.model_fields)
    assert "goal_evaluations" in learner_config.TrainingConfig.model_fields


def test_fields_that_a_comment_refers_to_exist() -> None:
    for name, comment in COMMENTS.items():
        for referred in re.findall(r"\b([A-Z][A-Za-z]+\.[a-z_]+)\b", comment):
            assert referred in COMMENTS, f"{name} refers to {referred}"
        siblings = {other.split(".")[-1] for other in COMMENTS}
        for word in re.findall(r"`([a-z_.]+)`", comment):
            assert word.split(".")[-1] in siblings | {"goal_evaluations", "training"}, f"{name} refers to {word}"
