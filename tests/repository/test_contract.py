"""The code does what the contract's comments say, as far as a machine can tell."""

import ast
import functools
import re
import time
from collections.abc import Iterable, Iterator, Mapping
from enum import IntEnum
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pydantic import BaseModel

from actor.session import attempt_results
from learner import config as learner_config
from learner.experience.trajectory_schema import TrajectorySchema
from learner.federation import messages as federation_messages
from learner.federation import model_versions as federation_models
from learner.federation.rules import records, update_checks
from learner.services import metrics_servicer, model_servicer, page_tokens, training_servicer
from parlmesh import action_masks, limits, rpc, types, upload_files
from parlmesh.blobs import Blobs, Reference, store
from parlmesh.config.field_help import help_of
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
from scheduler.blob_ledger import BlobLedger
from scheduler.config import BlobConfig, SchedulerConfig
from scheduler.core import chrome_trace
from scheduler.core.actors import placement
from scheduler.core.actors.placement import ActorCommand, ActorState
from scheduler.core.task import Priority, TaskState
from scheduler.wire import blob_servicer, messages, queries

ROOT = Path(__file__).parents[2]
_BLOCK = re.compile(r"(?:message|enum|service|oneof) (\w+) \{")
_MEMBER = re.compile(r"(?:(?:repeated |optional )?(?P<type>[\w.]+|map<.*>) )?(?P<name>\w+) = \d+;")
_NUMBER = re.compile(r"\b(?:at most|cut at) (\d[\d,]*)( MiB)?", re.IGNORECASE)
_DEFAULT = re.compile(r"\b0 = (\d[\d,]*)( MiB)?\b")
_PAGE = re.compile(r"\bA page ends before it exceeds (\d+)( MiB)")
_IF_ZERO = re.compile(r"\b0 = ([^.;]*)")
_COLUMN = re.compile(r"//   (\w+) +\[(.*?)\] +(.*)")


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
    "Trajectory.columns": types._MOST_TARGETS,
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
    "Hello.message_bytes": placement.UNTOLD_MESSAGE_BYTES,
    "Welcome.message_bytes": rpc.UNTOLD_MESSAGE_BYTES,
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
            found[name] = number << 20 if match[2] else number
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


def test_other_sizes_in_comments_are_those_of_the_code() -> None:
    lists = ("ListTrainingsRequest", "ListFederationsRequest", "ListModelsRequest")
    assert numbers(_PAGE) == {f"{name}.page_size": page_tokens._MOST_BYTES for name in lists}
    assert f"Every actor must accept {placement._SMALL_BYTES >> 10} KiB." in COMMENTS["Hello.message_bytes"]
    assert f"names and values of {limits.LABEL_NAME.most} bytes each" in COMMENTS["Placement.labels"]
    assert limits.LABEL_NAME.most == limits.LABEL_VALUE.most
    assert f"up to {limits.RUN_TIMEOUT.most / 86_400:g} days" in COMMENTS["TaskSpec.run_timeout"]


def test_what_0_means_in_terms_is_what_it_means_in_the_settings() -> None:
    fields = BlobConfig.model_fields.keys() & {name.split(".")[1] for name in COMMENTS if name.startswith("BlobTerms.")}
    assert fields == {"folder", "least_bytes", "largest_bytes"}
    for field in fields:
        assert _IF_ZERO.findall(COMMENTS[f"BlobTerms.{field}"]) == _IF_ZERO.findall(help_of(BlobConfig, field)), field


def test_a_process_shares_a_folder_of_blobs_as_the_comments_say(tmp_path: Path) -> None:
    (name,) = re.findall(r'"(\.[^"]+)"', COMMENTS["BlobTerms.proof"])
    ledger = BlobLedger(BlobConfig(), tmp_path / "blobs", time.monotonic)
    ledger.open(())
    assert name == store.PROOF
    assert (ledger.folder.path / name).read_text() == ledger.proof
    array = np.zeros(1 << 20, np.uint8)
    for least_bytes, kept in ((1, Reference), (0, np.ndarray)):
        blobs = Blobs()
        assert blobs.share(str(ledger.folder.path), ledger.proof, "c", least_bytes, 1 << 30)
        assert isinstance(blobs.kept({"array": array}, "1")["array"], kept)
    ledger.close(forget=True)


def columns_of_the_comment() -> dict[str, tuple[list[str], str]]:
    """The axes and the text of each column of a trajectory."""
    found: dict[str, tuple[list[str], str]] = {}
    last = ""
    for line in (ROOT / "protos/parlmesh/v1/experience_service.proto").read_text().splitlines():
        if column := _COLUMN.search(line):
            last = column[1]
            found[last] = column[2].split(", "), column[3]
        elif last and (more := re.search(r"//    +(.*)", line)):
            found[last] = found[last][0], f"{found[last][1]} {more[1]}"
        else:
            last = ""
    return found


@pytest.mark.parametrize("choices", [9, 300])
def test_the_columns_of_a_trajectory_are_those_of_the_comment(choices: int) -> None:
    spec = types.EnvironmentSpec((7,), "float32", types.ActionSpec("discrete", (choices,)), masked=True)
    schema = TrajectorySchema(spec, 5, trajectory_steps=3, num_envs=2, earned=True, searched=True)
    packed = choices >= action_masks._LEAST_PACKED
    told = columns_of_the_comment()
    assert told.keys() == schema._columns.keys()
    (widest,) = re.findall(r"W is C, but at most (\d+)", COMMENTS["Trajectory.columns"])
    sizes = {"T": 3, "T+1": 4, "E": 2, "C": choices, "W": min(choices, int(widest)), "S": 5}
    for name, (dtype, shape) in schema._columns.items():
        axes, text = told[name]
        dtypes = re.findall(r"\b(?:bool|u?int\d+|float\d+)\b", text)
        if axes[-1] == "...":
            expected = tuple(sizes[axis] for axis in axes[:-1])
            assert shape[: len(expected)] == expected, name
        elif name == types.ACTION_MASK and packed:
            assert shape == (4, 2, -(-choices // 8))
        else:
            assert shape == tuple(sizes[axis] for axis in axes), name
        # The environment decides the types of the first two.
        if name not in (types.OBSERVATION, types.ACTION):
            assert [dtype] == (dtypes[-1:] if packed else dtypes[:1]), name


def test_masks_are_packed_as_the_comment_says() -> None:
    text = columns_of_the_comment()[types.ACTION_MASK][1]
    assert f"from {action_masks._LEAST_PACKED} choices on" in text
    assert "8 choices to a byte, the first in the highest bit" in text
    assert action_masks.pack_mask(np.arange(256) == 0).tolist() == [0x80] + 31 * [0]


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


@functools.cache
def _tree(file: Path) -> ast.Module:
    return ast.parse(file.read_text())


def _words(node: ast.AST, file: Path) -> set[str]:
    """The words in capitals in an expression: literals, and constants of its file."""
    constants = {
        target.id: line.value.value
        for line in _tree(file).body
        if isinstance(line, ast.Assign) and isinstance(line.value, ast.Constant)
        for target in line.targets
        if isinstance(target, ast.Name)
    }
    found = (
        constants.get(each.id, each.id) if isinstance(each, ast.Name) else getattr(each, "value", "")
        for each in ast.walk(node)
        if isinstance(each, ast.Constant | ast.Name)
    )
    return {word for word in found if isinstance(word, str) and re.fullmatch(r"[A-Z]+(_[A-Z]+)*", word)}


def _files(*folders: str) -> Iterator[Path]:
    return (file for folder in folders for file in (ROOT / folder).rglob("*.py"))


def _calls(file: Path, *names: str) -> Iterator[ast.Call]:
    for node in ast.walk(_tree(file)):
        if isinstance(node, ast.Call):
            name = node.func.id if isinstance(node.func, ast.Name) else getattr(node.func, "attr", "")
            if name in names:
                yield node


def _reasons(file: Path, *errors: str) -> set[str]:
    """The reasons of these errors, where a file makes them."""
    given = (word.value for call in _calls(file, *errors) for word in call.keywords if word.arg == "reason")
    return set().union(*(_words(each, file) for each in given))


def _reasons_of_failures(file: Path) -> set[str]:
    """The reasons at the places that make a Failure; one that is an error's is that of a ResourceExhausted."""
    found = _reasons(file, "Failure")
    for call in _calls(file, "Failure"):
        for reason in call.args[:1]:
            found |= _words(reason, file)
            if any(ast.unparse(each) == "error.reason" for each in ast.walk(reason)):
                found |= _reasons(file, "ResourceExhausted")
    return found


def test_the_reasons_of_a_failure_are_those_that_the_code_gives() -> None:
    comment = COMMENTS["Failure.reason"]
    of_actor = {value for name, value in vars(attempt_results).items() if name.isupper() and name == value}
    of_worker = set().union(*map(_reasons_of_failures, _files("actor/worker")))
    assert of_worker <= of_actor, "words of an actor stand in attempt_results.py"
    of_scheduler = set().union(*map(_reasons_of_failures, _files("scheduler")))
    errors = ("NotFound", "FailedPrecondition", "ResourceExhausted")
    of_blobs = set().union(*(_reasons(file, *errors) for file in _files("parlmesh/blobs")))
    given = of_scheduler | of_actor | of_blobs
    assert {"BLOBS_FULL", "BLOB_FOLDER_FULL", "BLOB_GONE"} <= given
    assert "or one that begins with BLOB," in comment
    listed = set(re.findall(r"\b[A-Z]+(?:_[A-Z]+)*\b", comment)) - {"BLOB"}
    assert listed == {reason for reason in given if not reason.startswith("BLOB")}


# Reasons of refused trajectories, and the comment's words for them.
_REFUSALS = {
    "UNKNOWN_POLICY_VERSION": "unknown policy version",
    "POLICY_LAG": "past the lag limit",
    "DUPLICATE_TRAJECTORY": "received before",
    "UNASKED": "nobody asked for it",
    "OLD_TASK": "nobody asked for it",
    "UNKNOWN_RUN": "no such run",
    "OTHER_RUN": "run started again",
    "OLD_INCARNATION": "older incarnation",
}


def test_why_a_trajectory_is_refused_is_what_the_comment_says() -> None:
    comment = COMMENTS["UploadTrajectoriesResponse.status"]
    failed = set().union(*(_reasons(file, "FailedPrecondition") for file in _files("learner/experience")))
    assert failed == _REFUSALS.keys()
    (words,) = re.findall(r"FAILED_PRECONDITION \((.*?)\)", comment)
    assert set(words.split(", ")) == set(_REFUSALS.values())
    denied = set().union(*(_reasons(file, "PermissionDenied") for file in _files("learner/experience")))
    assert denied == {"WRONG_NODE"}
    assert "PERMISSION_DENIED (an actor of another node)" in comment


def test_what_was_done_to_an_update_is_told_in_the_words_of_the_comment() -> None:
    given = set()
    for file in _files("learner/federation"):
        lines = (node for node in ast.walk(_tree(file)) if isinstance(node, ast.stmt) and not hasattr(node, "body"))
        for line in lines:
            named = (getattr(each, key, "") for each in ast.walk(line) for key in ("id", "attr", "arg"))
            if "notes" in named:
                given |= _words(line, file)
    assert set(re.findall(r"\b[A-Z]+(?:_[A-Z]+)*\b", COMMENTS["UpdateRecord.notes"])) == given


def test_a_federation_stops_for_the_reasons_in_the_comment() -> None:
    comment = COMMENTS["FederationState.FEDERATION_STATE_STOPPED"]
    words = {"self.stop.reason": "on request", "self.spending.reason()": "no privacy budget is left"}
    ends = [call.args for file in _files("learner/federation/rules") for call in _calls(file, "_end")]
    others = ("FederationState.FAILED", "FederationState.FINISHED")
    assert {ast.unparse(reason) for state, reason in ends if ast.unparse(state) not in others} == words.keys()
    assert [each for each in words.values() if each not in comment] == []


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
