from typing import Any

import pytest
from typer.testing import CliRunner

from parlmesh.cli.__main__ import app
from parlmesh.cli.commands.federation import _values
from parlmesh.cli.commands.federation_simulate import cost
from parlmesh.cli.screen.federation_chart import draw_rounds
from parlmesh.cli.screen.federation_view import headline, print_federations, print_rounds, print_updates, sentence
from parlmesh.errors import ConfigError, Unavailable
from parlmesh.v1 import federation_service_pb2 as pb
from parlmesh.wire import struct_to_proto


def a_round(number: int, seconds: float = 0.5) -> pb.Round:
    found = pb.Round(
        number=number,
        state=pb.ROUND_STATE_AGGREGATED,
        seconds=seconds,
        policy_version=number + 1,
        metrics=struct_to_proto({"evaluation/accuracy": 0.5 + number / 100}),
        updates=[
            pb.UpdateRecord(node_id="a", node_weight=1.0, samples=10, norm=0.5),
            pb.UpdateRecord(node_id="b", refusal="NOT_FINITE", message="the update has a number that is not finite"),
        ],
    )
    found.start_time.FromSeconds(1000 + number)
    return found


def test_rounds_are_shown_with_refused_nodes(capsys: pytest.CaptureFixture[str]) -> None:
    print_rounds([a_round(2), a_round(1)])
    shown = capsys.readouterr().out
    assert "1 NOT_FINITE" in shown
    assert "0.52" in shown
    print_updates([a_round(1)])
    assert "accepted" in capsys.readouterr().out


def test_federations_are_listed_with_why_they_ended(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    ended = pb.Federation(
        federation_id="digits-1",
        state=pb.FEDERATION_STATE_FAILED,
        round=4,
        aggregated_rounds=3,
        reason="too few nodes",
        configuration=struct_to_proto({"task": "digits"}),
    )
    print_federations([ended, pb.Federation(federation_id="two", state=pb.FEDERATION_STATE_RUNNING)])
    head, _, first, *_, last = [line for line in capsys.readouterr().out.splitlines() if line.strip()]
    assert head.split()[:4] == ["federation", "state", "round", "aggregated"]
    assert first.split()[:4] == ["digits-1", "failed", "4", "3"]
    assert last == "digits-1: too few nodes"


def test_the_message_of_the_newest_failed_task_is_below_the_rounds(capsys: pytest.CaptureFixture[str]) -> None:
    first, second = a_round(1), a_round(2)
    for each, line in ((first, 3), (second, 12)):
        message = f"USER_ERROR: ValueError: no data (spirals.py:{line})"
        each.updates.append(pb.UpdateRecord(node_id="c", refusal="TASK_FAILED", message=message))
    print_rounds([first, second])
    assert capsys.readouterr().out.endswith("round 2, c: USER_ERROR: ValueError: no data (spirals.py:12)\n")


def test_the_chart_is_a_picture(tmp_path) -> None:
    draw_rounds([a_round(1), a_round(2)], tmp_path / "chart.png", "digits")
    assert (tmp_path / "chart.png").read_bytes().startswith(b"\x89PNG")


def test_the_legend_of_the_chart_lies_on_no_bar(tmp_path, monkeypatch) -> None:
    from matplotlib.figure import Figure

    drawn: list[Figure] = []
    real = Figure.savefig

    def save(figure: Figure, picture: Any) -> None:
        real(figure, picture)
        drawn.append(figure)

    monkeypatch.setattr(Figure, "savefig", save)
    draw_rounds([a_round(number) for number in range(1, 6)], tmp_path / "chart.png", "digits")
    (figure,) = drawn
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == ["accepted", "refused or silent"]
    assert not any(legend.get_window_extent().overlaps(axes.get_window_extent()) for axes in figure.axes)


def test_the_headline_prefers_accuracy_and_may_be_missing() -> None:
    assert headline(struct_to_proto({"fit/loss": 2.0, "evaluation/accuracy": 0.9})) == ("accuracy", 0.9)
    assert headline(struct_to_proto({"other": 1.0})) is None


def test_a_federation_is_one_sentence() -> None:
    federation = pb.Federation(
        federation_id="f",
        state=pb.FEDERATION_STATE_FAILED,
        round=3,
        aggregated_rounds=2,
        policy_version=3,
        reason="why",
    )
    assert sentence(federation) == "f is failed: round 3, 2 aggregated, model version 3 (); why"


def test_the_cost_of_a_node_is_printed() -> None:
    assert cost(100, [a_round(1), a_round(2)]) == "100 nodes, 2 rounds in 1.5 s; a round 0.500 s, 5.00 ms per node"


def test_impossible_settings_need_no_learner_to_be_refused() -> None:
    with pytest.raises(ConfigError, match="Krum against 2 liars needs at least 7 updates"):
        _values(None, ["rule.name=krum", "rule.liars=2", "quorum=6", "selection.min_nodes=6"])
    assert _values(None, ["rule.name=median"])["rule"] == {"name": "median"}


def test_a_missing_learner_is_reported_in_a_sentence() -> None:
    result = CliRunner().invoke(app, ["federation", "status", "--learner", "127.0.0.1:1"])
    assert isinstance(result.exception, Unavailable)
