"""What an actor's profile calls its functions and threads."""

from parlmesh.telemetry.profiling import Phases

PHASES = Phases(
    functions={
        # a slot's thread
        "slot._serve": "wait for tasks",
        "link.policy": "wait for policy",
        "rollout._make_room": "wait for receipts",
        "acting.act": "act",
        "vector.step": "environment step",
        "collector.collect": "collect",
        "trajectories.trajectory_to_request": "encode",
        "episodes.evaluate": "evaluate",
        "attempts.call_in_thread": "task",
        # the event loop
        "trajectory_uploads.upload": "upload",
        "trajectory_uploads._write": "upload",
        "trajectory_uploads._read": "upload",
        "policy_download.add": "policy",
        "policy_download.policy": "policy",
        "policy_cache._decoded": "policy",
        "uplink.run": "scheduler stream",
        "uplink._read": "scheduler stream",
        "uplink._write": "scheduler stream",
        "worker.receive": "scheduler stream",
        "worker.next_request": "scheduler stream",
        "runners.run": "loop and gRPC",
    },
    threads={"MainThread": "event loop", "slot-": "slots"},
    work={"act", "collect", "environment step"},
)
