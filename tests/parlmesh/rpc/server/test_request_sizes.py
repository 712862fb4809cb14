import importlib
import pkgutil

import parlmesh.v1
from parlmesh.limits import TASK_ID, TASK_IDS
from parlmesh.rpc.server.request_sizes import NAMES, OTHER_SIZES, SETTINGS, SMALL, largest_request


def methods() -> set[str]:
    found = set()
    for module in pkgutil.iter_modules(parlmesh.v1.__path__):
        if module.name.endswith("_service_pb2"):
            file = importlib.import_module(f"parlmesh.v1.{module.name}").DESCRIPTOR
            found |= {f"/{s.full_name}/{m.name}" for s in file.services_by_name.values() for m in s.methods}
    return found


def test_every_method_that_is_named_exists_and_all_others_are_small() -> None:
    assert set(OTHER_SIZES) <= methods()
    assert {largest_request(method) for method in methods() - set(OTHER_SIZES)} == {SMALL}
    assert len(OTHER_SIZES) < len(methods()) / 2


def test_what_a_limit_of_names_allows_fits_into_a_message() -> None:
    assert TASK_IDS.most * (TASK_ID.most + 4) < NAMES
    assert SMALL < SETTINGS < NAMES
