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


@pytest.mark.parametrize(("labels", "count"), [({}, 0), ({LABEL: ""}, 0), ({LABEL: "500"}, 500), ({LABEL: "0"}, 0)])
def test_labels_say_how_many_nodes_an_actor_stands_for(labels: dict[str, str], count: int) -> None:
    assert count_in(labels, 500) == count


@pytest.mark.parametrize(
    ("text", "most", "sentence"),
    [
        ("501", 500, "is 501; at most 500 are allowed"),
        ("1", 0, "is 1; none are allowed"),
        ("1000000000", 500, "at most 6 digits"),
        ("9" * 5_000, 500, "at most 6 digits"),
        ("-1", 500, "whole number"),
        ("²", 500, "whole number"),
        ("1e3", 500, "whole number"),
    ],
)
def test_a_label_that_claims_too_much_is_refused_before_anything_is_made_of_it(
    text: str, most: int, sentence: str
) -> None:
    with pytest.raises(InvalidInput, match=sentence):
        count_in({LABEL: text}, most)
