"""The pages by path: each finds the contents of its template. None of them writes HTML."""

from collections.abc import Mapping

from ..page_request import Page
from . import jobs, logs, mesh, overview, rounds, runs, tasks

PAGES: Mapping[str, Page] = {
    "": Page("Fleet", "overview.html", overview.overview, nav=""),
    "tasks": Page("Tasks", "tasks.html", tasks.tasks, nav="tasks"),
    "task": Page("Task", "task.html", tasks.task, nav="tasks"),
    "runs": Page("Runs", "runs.html", runs.runs, nav="runs"),
    "run": Page("Run", "run.html", runs.run, nav="runs"),
    "models": Page("Models", "models.html", runs.models, nav="models"),
    "rounds": Page("Rounds", "rounds.html", rounds.rounds, nav="rounds"),
    "round": Page("Round", "round.html", rounds.one_round, nav="rounds"),
    "mesh": Page("Mesh", "mesh.html", mesh.mesh, nav="mesh"),
    "jobs": Page("Jobs", "jobs.html", jobs.jobs, nav="jobs"),
    "job": Page("Job", "job.html", jobs.job, nav="jobs"),
    "logs": Page("Logs", "logs.html", logs.logs, nav="logs"),
}
NAVIGATION = ("", "tasks", "runs", "models", "rounds", "mesh", "jobs", "logs")

__all__ = ["NAVIGATION", "PAGES"]
