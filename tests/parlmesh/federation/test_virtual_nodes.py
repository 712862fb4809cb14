import pytest
from hypothesis import given
from hypothesis import strategies as st

from parlmesh.errors import InvalidInput
from parlmesh.federation.virtual_nodes import LABEL, count_in, host_of, nodes_of
from parlmesh.security.identity import check_name


@given(st.from_regex(r"[A-Za-z0-9._-]{1,20}", fullmatch=True), st.integers(0, 50))
def test_every_node_names_its_host(host: str, count: int) -> None:
    nodes = nodes_of(host, count)
    assert len(set(nodes)) == max(1, count)
    assert {host_of(node) for node in nodes} == {host}


def test_no_identity_can_have_the_name_of_a_virtual_node() -> None:
    with pytest.raises(InvalidInput):
        check_name(nodes_of("host", 1)[0])


@pytest.mark.parametrize(("labels", "count"), [({}, 0), ({LABEL: "500"}, 500), ({LABEL: "-1"}, 0), ({LABEL: "²"}, 0)])
def test_labels_say_how_many_nodes_an_actor_stands_for(labels: dict[str, str], count: int) -> None:
    assert count_in(labels) == count
