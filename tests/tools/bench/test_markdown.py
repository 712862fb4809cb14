from tools.bench.ground.markdown import markdown


def test_every_figure_is_a_row_and_the_rest_is_left_out() -> None:
    found = {
        "fast": 31_000,
        "slow": None,
        "ratio": 12.35,
        "spread": {"fast": [30_000, 32_000]},
        "runs": {"fast": 3},
        "quick": True,
        "machine": {"cores": 2},
    }
    assert markdown(found).splitlines()[2:] == [
        "| `fast` | 31,000 | 30,000..32,000 | 3 |",
        "| `slow` | not measured | | |",
        "| `ratio` | 12.35 | | |",
    ]
