import json

from hypothesis import given
from hypothesis import strategies as st

from learner.files.curves import Curve, draw_learning_curve, read_curves


def write(path, *rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def points(curve):
    return list(zip(curve.steps, curve.values, strict=True))


def test_curves_are_read_by_name_and_range(tmp_path):
    file = write(tmp_path / "m", *({"time": 1.0, "step": step, "a": step / 2, "b": 1.0} for step in (10, 20, 30, 40)))
    assert set(read_curves(file)) == {"a", "b"}
    curves = read_curves(file, ["a"], 20, 30)
    assert {name: points(curve) for name, curve in curves.items()} == {"a": [(20, 10.0), (30, 15.0)]}
    assert points(read_curves(file, ["a"], 30)["a"]) == [(30, 15.0), (40, 20.0)]


def test_what_is_not_there_is_an_empty_curve(tmp_path):
    assert points(read_curves(tmp_path / "nothing", ["a"])["a"]) == []


def test_a_later_life_of_a_run_replaces_what_the_earlier_one_recorded_past_its_checkpoint(tmp_path):
    rows = [{"step": step, "a": 1.0} for step in (10, 20, 30, 40)] + [{"step": step, "a": 2.0} for step in (25, 35)]
    file = write(tmp_path / "m", *rows)
    assert points(read_curves(file)["a"]) == [(10, 1.0), (20, 1.0), (25, 2.0), (35, 2.0)]
    assert points(read_curves(file, ["a"], 28, 38)["a"]) == [(35, 2.0)]


def test_a_line_that_was_cut_off_is_passed_over(tmp_path):
    file = tmp_path / "m"
    file.write_text('{"step": 1, "a": 1.0}\n{"step": 2, "a"\n[1]\n{"step": 3, "a": 3.0}\n')
    assert points(read_curves(file)["a"]) == [(1, 1.0), (3, 3.0)]


@given(st.integers(1, 300), st.integers(1, 50))
def test_a_thinned_curve_is_even_and_keeps_its_ends(count, most):
    curve = Curve()
    for step in range(count):
        curve.steps.append(step)
        curve.values.append(float(step))
    thin = curve.thinned(most)
    assert len(thin.steps) == min(count, most)
    assert list(thin.steps) == [int(value) for value in thin.values]
    assert thin.steps[0] == 0
    if most > 1:
        assert thin.steps[-1] == count - 1
        gaps = {b - a for a, b in zip(thin.steps, list(thin.steps)[1:], strict=False)}
        assert not gaps or max(gaps) - min(gaps) <= 1


def test_the_picture_shows_how_far_the_episodes_of_an_evaluation_lie_apart(tmp_path):
    means = [{"time": 1.0, "step": step, "return/evaluation": float(step)} for step in (10, 20, 30)]
    spread = [{**row, "return/evaluation_worst": 5.0, "return/evaluation_best": 25.0} for row in means]
    pictures = []
    for name, rows in (("without", means), ("with", spread)):
        draw_learning_curve(write(tmp_path / name, *rows), tmp_path / f"{name}.png", "a run", None)
        pictures.append((tmp_path / f"{name}.png").read_bytes())
    assert pictures[0] != pictures[1]


def test_no_picture_is_drawn_of_a_run_without_returns(tmp_path):
    draw_learning_curve(
        write(tmp_path / "metrics", {"time": 1.0, "step": 3, "loss": 1.0}), tmp_path / "p.png", "a run", 1.0
    )
    assert not (tmp_path / "p.png").exists()
