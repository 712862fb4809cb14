"""One table of limits: its refusals, their wording, and the same table in the documentation."""

from pathlib import Path

import pytest

from parlmesh import limits
from parlmesh.errors import InvalidInput

DOCUMENT = Path(__file__).parents[2] / "docs" / "errors.md"


def test_the_document_has_every_limit_and_no_other() -> None:
    assert "\n".join(limits.table()) in DOCUMENT.read_text()


@pytest.mark.parametrize("limit", limits.ALL, ids=lambda limit: limit.field)
def test_both_ends_are_allowed_and_what_lies_beyond_is_not(limit: limits.Limit) -> None:
    limit.check(limit.least)
    limit.check(limit.most)
    for beyond in (limit.most * 2, limit.least - 1, float("nan")):
        with pytest.raises(InvalidInput) as caught:
            limit.check(beyond)
        assert caught.value.reason == limit.reason
        assert caught.value.metadata["field"] == limit.field
        assert caught.value.metadata["most"] == str(limit.most)


def test_a_refusal_names_field_owner_value_and_range() -> None:
    with pytest.raises(InvalidInput) as caught:
        limits.KIND.check_text("k" * 300, 'task "t"')
    assert caught.value.message == f'kind "{"k" * 40}…" of task "t" has 300 bytes; it must have 1 to 128'


def test_names_that_are_kept_for_long_are_measured_in_bytes() -> None:
    limits.KIND.check_text("ü" * 64)
    with pytest.raises(InvalidInput, match=r"has 130 bytes"):
        limits.LABEL_VALUE.check_text("ü" * 65)


def test_a_text_that_is_cut_is_as_long_as_allowed() -> None:
    assert len(limits.FAILURE_REASON.shorten("r" * 1000)) == limits.FAILURE_REASON.most
    assert limits.FAILURE_REASON.shorten("short") == "short"
