import os
import socket
from pathlib import Path
from typing import Any, cast

import pytest
from prometheus_client import CollectorRegistry

from actor.build import identities_of, make_handlers
from actor.config import ActorConfig
from actor.federation.federation_client import FederationLink
from actor.federation.local_nodes import LearningTasks, Participants
from actor.handlers.builtin import HANDLERS, HandlerResources
from actor.learner.policy_client import PolicyLink
from actor.learner.trajectory_uploads import Uploads
from actor.metrics import ActorMetrics
from actor.session.actor_identity import ActorIdentity
from parlmesh.errors import ConfigError
from parlmesh.handlers import Handler

_HANDLERS = """
class Shout:
    kind = "shout"
    runs_in = "thread"
    def run(self, parameters, tensors, context):
        return {"text": parameters["text"].upper()}

shout = Shout()

class Nowhere(Shout):
    runs_in = "nowhere"

def not_a_handler():
    pass
"""


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "build_test_handlers.py").write_text(_HANDLERS)
    monkeypatch.syspath_prepend(str(tmp_path))


def _handlers(**config: Any) -> dict[str, Handler]:
    identity = ActorIdentity("node", "node-1", 1)
    resources = HandlerResources(
        identity,
        cast(PolicyLink, None),
        cast(Uploads, None),
        ActorMetrics(CollectorRegistry()),
        Participants(["node"], cast(FederationLink, None), LearningTasks({})),
    )
    return make_handlers(ActorConfig(**config), resources)


def test_every_builtin_kind_is_offered_by_default_under_its_own_name() -> None:
    handlers = _handlers()
    assert handlers.keys() == HANDLERS.keys()
    assert all(handler.kind == kind for kind, handler in handlers.items())
    assert all(isinstance(handler, Handler) for handler in handlers.values())


def test_only_the_kinds_asked_for_are_offered() -> None:
    assert _handlers(kinds=("noop", "echo")).keys() == {"noop", "echo"}


def test_a_kind_that_is_not_installed_is_refused() -> None:
    with pytest.raises(
        ConfigError,
        match="kinds has 'shogi'; installed are echo, evaluate, fail, federated_evaluate, federated_fit, federated_mas",
    ):
        _handlers(kinds=("shogi",))


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize("name", ["Shout", "shout"])
def test_an_operators_handler_is_offered_beside_the_builtin_ones(name: str) -> None:
    handlers = _handlers(handlers={"shout": f"build_test_handlers:{name}"})
    assert handlers.keys() == {*HANDLERS, "shout"}
    assert handlers["shout"].kind == "shout"


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize(
    ("kind", "source", "text"),
    [
        ("shout", "build_test_handlers", "must be module:attribute"),
        ("shout", "no_such_module:Shout", "cannot be imported"),
        ("shout", "build_test_handlers:Missing", "cannot be imported"),
        ("shout", "build_test_handlers:not_a_handler", "needs kind, run and runs_in"),
        ("shout", "build_test_handlers:Nowhere", "one of inline, loop, thread, process"),
        ("whisper", "build_test_handlers:Shout", "is of the kind 'shout'"),
    ],
)
def test_a_handler_that_cannot_be_used_is_named(kind: str, source: str, text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        _handlers(handlers={kind: source})


def test_one_actor_has_the_actor_id_itself_and_several_are_numbered() -> None:
    config = ActorConfig(node_id="n", actor_id="a", incarnation=5)
    assert identities_of(config) == [ActorIdentity("n", "a", 5)]
    several = identities_of(config.model_copy(update={"actors": 3}))
    assert [identity.actor_id for identity in several] == ["a-0", "a-1", "a-2"]


def test_names_left_out_come_from_the_host_and_the_process() -> None:
    (identity,) = identities_of(ActorConfig())
    assert identity.node_id == socket.gethostname()
    assert identity.actor_id == f"{identity.node_id}-{os.getpid()}"


def test_an_incarnation_from_the_clock_grows() -> None:
    (first,), (second,) = identities_of(ActorConfig()), identities_of(ActorConfig())
    assert 0 < first.incarnation < second.incarnation < 1 << 64


def test_a_host_of_virtual_nodes_is_a_node_named_as_its_actor_is() -> None:
    (found,) = identities_of(ActorConfig(actor_id="sim", node_id="host", virtual_nodes=500, incarnation=3))
    assert found == ActorIdentity("sim", "sim", 3)
    two = identities_of(ActorConfig(actor_id="sim", node_id="host", actors=2, virtual_nodes=500, incarnation=3))
    assert two == [ActorIdentity("sim-0", "sim-0", 3), ActorIdentity("sim-1", "sim-1", 3)]
