import io
from pathlib import Path

from rich.console import Console

from parlmesh.cli.screen.next_commands import next_commands, print_next
from parlmesh.cli.screen.run_summary import print_summary
from parlmesh.cli.up_ending import Ending
from parlmesh.local.process_configs import RunPaths
from parlmesh.v1.training_service_pb2 import (
    TRAINING_STATE_FAILED,
    TRAINING_STATE_FINISHED,
    TRAINING_STATE_RUNNING,
    TRAINING_STATE_STOPPED,
    Training,
    TrainingProgress,
)

PROGRESS = TrainingProgress(
    steps=60_000,
    step_budget=300_000,
    elapsed_seconds=3.0,
    evaluation_return=500,
    goal_return=475,
    policy_version=31,
    max_policy_lag_seen=1,
    received_trajectories=100,
    dropped_trajectories={"too_old": 2, "duplicate": 1},
)


def ended(state: int = TRAINING_STATE_FINISHED, trouble: str = "") -> Ending:
    return Ending(Training(run_id="one", state=state, reason="goal reached", progress=PROGRESS), trouble)  # type: ignore[arg-type]


def printed(ending: Ending, paths: RunPaths) -> str:
    output = io.StringIO()
    console = Console(file=output, width=200, highlight=False)
    print_summary(console, ending, paths, restarts=4, seconds=12.0)
    print_next(console, ending, paths)
    return output.getvalue()


def test_a_summary_has_the_figures_and_only_files_that_exist(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").touch()
    text = printed(ended(), RunPaths(tmp_path))
    assert "finished: goal reached" in text
    assert "60,000 steps in 3.0 s, 20,000 steps/s" in text
    assert "500.0 / goal 475" in text
    assert "version 31, largest lag 1" in text
    assert "1 duplicate, 2 too_old of 100 trajectories" in text
    assert str(tmp_path / "metrics.jsonl") in text
    assert "learning-curve" not in text
    assert "--logdir" not in text


def test_after_a_run_that_learnt_nothing_the_environment_is_to_be_fixed_first(tmp_path: Path) -> None:
    progress = TrainingProgress(failed_rollouts=27, last_failure="KeyError: 'speed'")
    failed = Ending(Training(run_id="one", state=TRAINING_STATE_FAILED, reason="rollouts fail", progress=progress))
    (command, purpose), *others = next_commands(failed, RunPaths(tmp_path), "parlmesh", ("--environment", "my:Env-v0"))
    assert command == "parlmesh up --environment my:Env-v0 --serial"
    assert "fixed" in purpose
    assert others == []


def test_failures_are_counted_told_and_shown_with_the_user_s_own_traceback(tmp_path: Path) -> None:
    ending = ended()
    assert ending.training is not None
    progress = ending.training.progress
    progress.failed_rollouts, progress.last_failure = 3, "ValueError: no such door"
    progress.last_failure_traceback = 'File "maze.py", line 7, in step\nValueError: no such door'
    text = printed(ending, RunPaths(tmp_path))
    assert "3 rollouts; the last one: ValueError: no such door" in text
    assert 'File "maze.py", line 7, in step' in text
    assert ending.exit_code == 0


def test_a_run_none_of_whose_evaluations_came_to_an_end_does_not_end_with_code_0(tmp_path: Path) -> None:
    progress = TrainingProgress(steps=10, failed_evaluations=2)
    ending = Ending(Training(run_id="one", state=TRAINING_STATE_FINISHED, progress=progress))
    assert ending.exit_code == 1
    assert "no evaluation succeeded" in printed(ending, RunPaths(tmp_path))


def test_a_run_many_of_whose_rollouts_failed_does_not_end_with_code_0(tmp_path: Path) -> None:
    progress = TrainingProgress(steps=10, failed_rollouts=30, received_trajectories=100, evaluation_return=1.0)
    ending = Ending(Training(run_id="one", state=TRAINING_STATE_FINISHED, progress=progress))
    assert ending.exit_code == 1
    assert "finished, but 30 rollouts failed: check the environment" in printed(ending, RunPaths(tmp_path))
    progress.received_trajectories = 1_000
    assert Ending(Training(run_id="one", state=TRAINING_STATE_FINISHED, progress=progress)).exit_code == 0


def test_only_a_finished_run_ends_with_code_0() -> None:
    assert ended().exit_code == 0
    assert ended(TRAINING_STATE_STOPPED).exit_code == 1
    assert ended(TRAINING_STATE_RUNNING, "interrupted by Ctrl-C").exit_code == 1
    assert Ending(None, "learner refused its configuration").exit_code == 1


def test_problems_come_first(tmp_path: Path) -> None:
    text = printed(Ending(None, "learner refused its configuration: seed is -1"), RunPaths(tmp_path))
    assert text.split() != []
    assert text.strip().splitlines()[0] == "not finished: learner refused its configuration: seed is -1"


def test_the_next_commands_name_this_run(tmp_path: Path) -> None:
    (tmp_path / "tensorboard").mkdir()
    commands = [command for command, _ in next_commands(ended(), RunPaths(tmp_path), ".venv/bin/parlmesh")]
    assert commands[0] == f".venv/bin/parlmesh up --resume {tmp_path} --steps 600000 --no-goal"
    assert commands[-1] == f".venv/bin/tensorboard --logdir {tmp_path}/tensorboard"


def test_the_next_commands_take_the_options_of_this_run_along(tmp_path: Path) -> None:
    commands = [
        command for command, _ in next_commands(ended(), RunPaths(tmp_path), "parlmesh", ("--config", "a b.yaml"))
    ]
    assert "parlmesh up --config 'a b.yaml' --seed 1 --actors 4" in commands


def test_a_run_that_never_started_is_offered_again_and_nothing_else(tmp_path: Path) -> None:
    ending = Ending(None, "learner refused its configuration: environment 'CartPol-v1' cannot be made")
    again = ("--environment", "CartPol-v1")
    commands = next_commands(ending, RunPaths(tmp_path), "parlmesh", again)
    assert commands == [("parlmesh up --environment CartPol-v1", "once that is fixed")]


def test_an_interrupted_run_is_offered_for_resuming(tmp_path: Path) -> None:
    ending = ended(TRAINING_STATE_RUNNING, "interrupted by Ctrl-C")
    assert next_commands(ending, RunPaths(Path("runs/one")), "parlmesh")[0][0] == "parlmesh up --resume one"


def test_a_short_run_of_which_every_second_rollout_fails_is_no_success() -> None:
    progress = TrainingProgress(steps=20_000, failed_rollouts=10, received_trajectories=12, evaluation_return=20.0)
    ending = Ending(Training(run_id="one", state=TRAINING_STATE_FINISHED, progress=progress))
    assert ending.exit_code == 1
    progress.failed_rollouts = 2
    assert Ending(Training(run_id="one", state=TRAINING_STATE_FINISHED, progress=progress)).exit_code == 0


def test_settings_known_to_learn_an_environment_are_offered_to_users_of_the_defaults(tmp_path: Path) -> None:
    def offered(*again: str) -> list[str]:
        commands = [command for command, _ in next_commands(ended(), RunPaths(tmp_path), "parlmesh", again)]
        return [command for command in commands if "--config" in command and "--seed" not in command]

    assert offered("--environment", "Pendulum-v1", "--steps", "9")[0] == "parlmesh up --config ppo-pendulum"
    assert offered("--environment", "my:World-v0") == []
    assert offered() == []
    assert "ppo-pendulum" not in " ".join(offered("--environment", "Pendulum-v1", "--config", "mine.yaml"))


def test_training_that_earns_far_more_than_its_evaluation_is_shown_with_both_figures(tmp_path: Path) -> None:
    ending = ended()
    assert ending.training is not None
    progress, settings = ending.training.progress, ending.training.configuration
    for drawn, judged, play, shown in (
        (0.94, 0.27, "greedy", "training.evaluation_play: sampled would sample there too"),
        (0.94, 0.27, "sampled", "0.94 by the sampled actions of training, 0.27 in evaluations"),
        (-90.0, -200.0, "greedy", "-90.00 by the sampled actions of training, -200.00 in evaluations; "),
        (0.3, 0.27, "greedy", ""),
        (0.27, 0.94, "greedy", ""),
    ):
        progress.episode_return, progress.evaluation_return = drawn, judged
        settings["evaluation_play"] = play
        text = printed(ending, RunPaths(tmp_path))
        assert shown in text if shown else "differs" not in text
        assert ("sample there too" in text) is (bool(shown) and play == "greedy")
