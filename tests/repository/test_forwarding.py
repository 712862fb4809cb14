"""A function that only passes its arguments on adds a layer for nothing, unless it names an idea or guards a door."""

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
SOURCES = [
    file
    for top in ("scheduler", "learner", "actor", "parlmesh")
    for file in sorted((ROOT / top).rglob("*.py"))
    if "v1" not in file.parts
]
# Each is required by an interface, or keeps its caller from reaching through an object that it owns.
ALLOWED = {
    "learner/federation/rules/update_checks.py:refusal": "the one error of all checks",
    "learner/metrics.py:unwatch_runs": "the inverse of watch_runs",
    "learner/policies/league.py:rating": "the matches belong to the league",
    "learner/policies/version_numbers.py:give_back": "says what writing a lower number means",
    "learner/runs/evaluation_result.py:promote": "evaluations keep models through their result alone",
    "learner/runs/training_loop.py:policy_blob": "the trainer belongs to the loop",
    "parlmesh/api/policy.py:choose_action": "another name of the public API",
    "parlmesh/api/policy.py:load_model": "another name of the public API",
    "parlmesh/api/train_call.py:start": "the thread belongs to the handle",
    "parlmesh/blobs/references.py:digest_of": "one place names the digest of blobs",
    "parlmesh/client/loop_thread.py:__await__": "Python's interface of what can be awaited",
    "parlmesh/client/large_arrays.py:use": "the uses belong to the arrays",
    "parlmesh/environments/vector.py:close": "the interface of environments",
    "parlmesh/federation/secure/accusation.py:accuse": "one place has the sentence and its reader",
    "parlmesh/function_tasks.py:__call__": "a decorated function is still called",
    "parlmesh/mapek/node/node_memory.py:exists": "the folder belongs to the memory",
    "parlmesh/orchestration/numpy_or_torch.py:clip": "one set of operations over two libraries",
    "parlmesh/orchestration/numpy_or_torch.py:where": "one set of operations over two libraries",
    "parlmesh/orchestration/numpy_or_torch.py:zeros_like": "one set of operations over two libraries",
    "parlmesh/policies/custom_networks.py:custom_network": "the table belongs to its module",
    "parlmesh/policies/numpy_networks.py:outputs": "the interface of networks",
    "parlmesh/processes/process_exit.py:poll": "subprocess' interface",
    "parlmesh/processes/process_exit.py:send_signal": "subprocess' interface",
    "parlmesh/rollouts/collector.py:close": "the environments belong to the collector",
    "parlmesh/rollouts/collector.py:finished": "the environments belong to the collector",
    "parlmesh/rollouts/evaluation.py:evaluate": "a public door narrower than what matches use",
    "parlmesh/rpc/caller_identity.py:set_caller": "the variable belongs to its module",
    "parlmesh/rpc/channel/bearer_channel.py:__aexit__": "gRPC's interface of channels",
    "parlmesh/rpc/channel/bearer_channel.py:channel_ready": "gRPC's interface of channels",
    "parlmesh/rpc/channel/bearer_channel.py:close": "gRPC's interface of channels",
    "parlmesh/rpc/channel/bearer_channel.py:get_state": "gRPC's interface of channels",
    "parlmesh/rpc/channel/bearer_channel.py:wait_for_state_change": "gRPC's interface of channels",
    "parlmesh/rpc/channel/failover_calls.py:__await__": "gRPC's interface of calls",
    "parlmesh/rpc/channel/failover_calls.py:code": "gRPC's interface of calls",
    "parlmesh/rpc/channel/failover_calls.py:details": "gRPC's interface of calls",
    "parlmesh/rpc/channel/leader_discovery.py:enter": "the calls belong to the server",
    "parlmesh/rpc/channel/leader_discovery.py:leave": "the calls belong to the server",
    "parlmesh/rpc/server/server.py:set_serving": "health belongs to the server",
    "parlmesh/rpc/server/time_and_byte_quotas.py:set_account": "the variable belongs to its module",
    "parlmesh/security/reloading_verifier.py:holds": "the interface of verifiers",
    "parlmesh/selfplay/environment.py:face": "the seats belong to the environment",
    "parlmesh/selfplay/search/search_policy.py:initial_state": "the interface of policies",
    "parlmesh/telemetry/logging.py:get_logger": "the one way to a logger",
    "parlmesh/telemetry/phase_profiler.py:start": "the thread belongs to the profiler",
    "parlmesh/testing/fleet.py:end": "says what an error in the queue means",
    "parlmesh/testing/processes.py:signal": "subprocess' interface",
    "parlmesh/testing/processes.py:terminate": "subprocess' interface",
    "parlmesh/training/continuous/policy_network.py:forward": "the layers belong to the network",
    "parlmesh/training/continuous/sac_model.py:policy_weights": "the interface of models",
    "parlmesh/training/continuous/td3_model.py:policy_weights": "the interface of models",
    "parlmesh/training/continuous/trainer.py:_learn": "the interface of trainers",
    "parlmesh/training/dqn_trainer.py:_explored": "the interface of trainers",
    "parlmesh/training/numpy_model.py:named_weights": "the interface of models",
    "parlmesh/training/numpy_q_model.py:follow": "the interface of models",
    "parlmesh/training/replay/replay.py:restore": "checkpoints know the replay alone",
    "parlmesh/training/replay/replay.py:tensors": "checkpoints know the replay alone",
    "parlmesh/tuning/study.py:finished": "the library's study belongs to ours",
    "parlmesh/worlds/placement/evaluation.py:_make": "one function for several worlds",
    "parlmesh/worlds/placement/world_versions.py:act": "the interface of world versions",
    "scheduler/core/actors/known_actors.py:judge": "what is decided belongs to the roster",
    "scheduler/shell.py:fail": "servicers know the shell alone",
    "scheduler/simulation/invariants.py:promise": "what was promised belongs to the checks",
    "scheduler/store/postgres/store.py:keep": "the interface of stores",
    "scheduler/store/postgres/store.py:trusted": "the interface of stores",
    "scheduler/store/sqlite.py:check": "the interface of stores",
    "scheduler/store/sqlite_tables.py:close": "the database belongs to the tables",
    "scheduler/store/sqlite_tables.py:execute": "the database belongs to the tables",
}


def _only_forwards(function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    body = [each for each in function.body if not (isinstance(each, ast.Expr) and isinstance(each.value, ast.Constant))]
    if len(body) != 1 or not isinstance(body[0], ast.Return | ast.Expr):
        return False
    call = body[0].value.value if isinstance(body[0].value, ast.Await) else body[0].value
    if not isinstance(call, ast.Call):
        return False
    own = function.args
    taken = [each.arg for each in own.posonlyargs + own.args if each.arg not in ("self", "cls")]
    taken += [each.arg for each in own.kwonlyargs]
    taken += [each.arg for each in (own.vararg, own.kwarg) if each is not None]
    values = [each.value if isinstance(each, ast.Starred) else each for each in call.args]
    values += [keyword.value for keyword in call.keywords]
    given = [each.id if isinstance(each, ast.Name) else "" for each in values]
    called = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
    same_name = called.lstrip("_") == function.name.lstrip("_")
    return sorted(given) == sorted(taken) and (bool(taken) or same_name)


def _forwarding(files: list[Path]) -> Iterator[str]:
    for file in files:
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and _only_forwards(node):
                yield f"{file.relative_to(ROOT).as_posix()}:{node.name}"


def test_no_function_only_forwards_but_those_that_an_interface_asks_for() -> None:
    found = set(_forwarding(SOURCES))
    assert found - ALLOWED.keys() == set()
    assert ALLOWED.keys() - found == set(), "listed without need"


def test_a_function_that_only_forwards_is_seen() -> None:
    renamed = ast.parse("def strike(self, node):\n    self._strikes.bad(node)").body[0]
    assert isinstance(renamed, ast.FunctionDef)
    assert _only_forwards(renamed)
    seen = ast.parse("def put(self, a, *, b):\n    '''Says more.'''\n    return self._inner.put(a, b=b)").body[0]
    changed = ast.parse("def put(self, a):\n    return self._inner.put(a + 1)").body[0]
    assert isinstance(seen, ast.FunctionDef)
    assert isinstance(changed, ast.FunctionDef)
    assert _only_forwards(seen)
    assert not _only_forwards(changed)
