import json
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parlmesh.harmless_text import indented, visible, visible_json, visible_lines

NASTY = "a\x1b[31mred\x9b2J\u202egnp\u2066x\u2028y\u2029\x00\x7f\r\n\ud800 é [bold]✓"


def is_calm(text: str) -> bool:
    return all(unicodedata.category(one) not in ("Cc", "Cf", "Cs", "Zl", "Zp") for one in text)


def test_plain_text_is_left_as_it_is() -> None:
    assert visible("Zoë's node-1 [bold] ✓ 日本") == "Zoë's node-1 [bold] ✓ 日本"


def test_what_does_not_show_is_written_as_an_escape() -> None:
    assert visible("a\x1b[31m\x9b\u202e\u2028\nb\ud800") == "a\\x1b[31m\\x9b\\u202e\\u2028\\nb\\ud800"
    assert visible_lines("a\x1b\nb\r") == "a\\x1b\nb\\r"


@given(st.text(alphabet=st.characters(exclude_categories=())))
def test_no_text_stays_harmful(text: str) -> None:
    assert is_calm(visible(text))


@given(st.text())
def test_json_means_what_it_meant(text: str) -> None:
    line = visible_json(json.dumps({"a": text, text: 1}, ensure_ascii=False))
    assert is_calm(line)
    assert json.loads(line) == {"a": text, text: 1}


@pytest.mark.parametrize("character", ["\U000e0041", "\ud800"])
def test_json_escapes_what_lies_beyond_sixteen_bits_and_lone_surrogates(character: str) -> None:
    assert json.loads(visible_json(json.dumps(character, ensure_ascii=False))) == character


def test_what_follows_the_first_line_never_begins_where_the_program_s_own_lines_do() -> None:
    assert indented("it broke\nerror: all is lost\n") == "it broke\n    error: all is lost\n    "
