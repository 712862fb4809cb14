"""The names of functions and threads in an actor's profile."""

from parlmesh.telemetry.phase_profiler import Phases

PHASES = Phases(
    functions={
        # a slot's thread
        "slot._serve": "wait for tasks",
        "policy_client.policy": "wait for policy",
        "unconfirmed_uploads.make_room": "wait for receipts",
        "numpy_acting.act": "act",
        "vector.step": "environment step",
        "collector.collect": "collect",
        "trajectories.trajectory_to_request": "encode",
        "evaluation.evaluate": "evaluate",
        "attempt_results.call_in_thread": "task",
        # the event loop
        "trajectory_uploads.upload": "upload",
        "trajectory_uploads._write": "upload",
        "trajectory_uploads._read": "upload",
        "policy_download.add": "policy",
        "policy_download.policy": "policy",
        "policy_cache._decoded": "policy",
        "scheduler_stream.run": "scheduler stream",
        "scheduler_stream._read": "scheduler stream",
        "scheduler_stream._write": "scheduler stream",
        "session.receive": "scheduler stream",
        "session.next_request": "scheduler stream",
        "runners.run": "loop and gRPC",
    },
    threads={"MainThread": "event loop", "slot-": "slots"},
    work={"act", "collect", "environment step"},
)
