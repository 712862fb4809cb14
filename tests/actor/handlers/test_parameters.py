import pytest
from pydantic import Field

from actor.handlers.parameters import Parameters
from parlmesh.errors import InvalidInput


class Wanted(Parameters):
    name: str
    count: int = Field(default=1, ge=1)


def test_numbers_of_json_become_whole_where_they_are() -> None:
    assert Wanted.of("k", {"name": "a", "count": 3.0}) == Wanted(name="a", count=3)


@pytest.mark.parametrize(
    ("parameters", "text"),
    [
        ({}, "k needs the parameter 'name'"),
        ({"name": "a", "cuont": 1}, "k has no parameter 'cuont'; it has: count, name"),
        ({"name": "a", "count": 0}, "parameter 'count' of k is 0: Input should be greater than or equal to 1"),
        ({"name": 3}, "parameter 'name' of k is 3: Input should be a valid string"),
    ],
)
def test_the_first_thing_wrong_is_named(parameters: dict[str, object], text: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        Wanted.of("k", parameters)
    assert caught.value.message == text
