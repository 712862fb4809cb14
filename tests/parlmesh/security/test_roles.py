import importlib
import pkgutil

import pytest
from google.protobuf.descriptor import FileDescriptor

import parlmesh.v1
from parlmesh.security import Identity, Role
from parlmesh.security.roles import OPEN_METHODS, ROLES_BY_METHOD, roles_for


def contract_methods() -> set[str]:
    methods = set()
    for module in pkgutil.iter_modules(parlmesh.v1.__path__):
        if module.name.endswith("_pb2"):
            file: FileDescriptor = importlib.import_module(f"parlmesh.v1.{module.name}").DESCRIPTOR
            for service in file.services_by_name.values():
                methods |= {f"/{service.full_name}/{method.name}" for method in service.methods}
    return methods


CONTRACT = sorted(contract_methods())


def test_every_method_of_the_contract_has_a_row_and_no_other_has_one() -> None:
    assert CONTRACT
    assert {method for method in ROLES_BY_METHOD if method.startswith("/parlmesh.")} == set(CONTRACT)


@pytest.mark.parametrize("method", [*CONTRACT, "/foreign.Service/Method"])
def test_an_operator_may_call_everything(method: str) -> None:
    assert Role.OPERATOR in roles_for(method)


def test_a_method_without_a_row_is_the_operators_alone() -> None:
    assert roles_for("/foreign.Service/Method") == {Role.OPERATOR}


@pytest.mark.parametrize("method", CONTRACT)
def test_a_reader_may_look_and_never_touch(method: str) -> None:
    verb = method.rpartition("/")[2]
    looks = verb.startswith(("Get", "List", "Watch", "Query", "Explain"))
    assert (Role.READER in roles_for(method)) == looks


def test_an_actor_may_do_its_work_and_nothing_else() -> None:
    assert {method for method in CONTRACT if Role.ACTOR in roles_for(method)} == {
        "/parlmesh.v1.BlobService/GetBlob",
        "/parlmesh.v1.BlobService/PutBlob",
        "/parlmesh.v1.ExperienceService/UploadTrajectories",
        "/parlmesh.v1.FederationService/GetFederatedModel",
        "/parlmesh.v1.FederationService/SubmitUpdate",
        "/parlmesh.v1.FederationService/SubmitUpdates",
        "/parlmesh.v1.FederationService/WatchFederatedModel",
        "/parlmesh.v1.FleetService/Connect",
        "/parlmesh.v1.PolicyService/GetPolicy",
        "/parlmesh.v1.PolicyService/WatchPolicy",
        "/parlmesh.v1.TrainingService/GetTraining",
        "/parlmesh.v1.TrainingService/ListTrainings",
    }


def test_only_health_is_open() -> None:
    assert {method.rpartition("/")[0] for method in OPEN_METHODS} == {"/grpc.health.v1.Health"}


def test_reflection_is_for_those_who_look() -> None:
    method = "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"
    assert roles_for(method) == {Role.READER, Role.OPERATOR}


@pytest.mark.parametrize(
    ("role", "own", "foreign"), [(Role.OPERATOR, True, True), (Role.ACTOR, True, False), (Role.READER, False, False)]
)
def test_an_actor_speaks_for_its_own_node_only(role: Role, own: bool, foreign: bool) -> None:
    identity = Identity("node-1", role)
    assert (identity.speaks_for("node-1"), identity.speaks_for("node-2")) == (own, foreign)
