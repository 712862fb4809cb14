import json

from tools.bench.ground.report import Row, json_line, rounded, table
from tools.bench.ground.samples import Samples

ROWS = [
    Row("fast", "steps/s  fast", Samples((31_000.4, 30_000.0, 32_000.0)), "64 environments"),
    Row("slow", "steps/s  slow", None, "not asked for"),
]


def test_the_json_line_has_every_key_and_null_for_what_was_not_measured() -> None:
    found = json.loads(json_line(ROWS, {"ratio": 12.345678, "none": None}, {"quick": True}))
    assert found == {
        "fast": 31_000,
        "slow": None,
        "ratio": 12.35,
        "none": None,
        "spread": {"fast": [30_000, 32_000]},
        "runs": {"fast": 3},
        "quick": True,
    }


def test_the_json_line_is_one_line() -> None:
    assert "\n" not in json_line(ROWS, {}, {"reasons": {"slow": "two\nlines"}})


def test_the_table_says_why_a_figure_is_missing() -> None:
    _, fast, slow = table(ROWS).splitlines()
    assert fast.split("  ")[-1] == "64 environments"
    assert "31,000" in fast
    assert "30,000..32,000" in fast
    assert slow.endswith("not asked for")


def test_small_numbers_keep_four_digits_and_large_ones_are_whole() -> None:
    assert [rounded(value) for value in (0.00123456, 1.23456, 999.99, 1234.5)] == [0.001235, 1.235, 1000.0, 1234]
