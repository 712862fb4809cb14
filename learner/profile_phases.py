"""Names of the learner's functions and threads in its profile."""

from parlmesh.telemetry.phase_profiler import Phases

PHASES = Phases(
    functions={
        # the training thread
        "thread._worker": "wait for experience",
        "ppo_trainer._prepare": "prepare",
        "ppo_trainer._minibatches": "prepare",
        "ppo_trainer.update": "update",
        "replay_trainer._transitions": "prepare",
        "replay_trainer.update": "update",
        "q_learning_trainer.update": "update",
        "checkpoint.save": "checkpoint",
        "recorder.finish": "checkpoint",
        # the event loop
        "gate.parse": "decode",
        "trajectory_reader.request": "decode",
        "trajectory_reader.trajectory": "decode",
        "trajectories.trajectory_from_request": "decode",
        "trajectories.trajectory_from_proto": "decode",
        "queue._check": "check",
        "experience_servicer._read": "receipts",
        "experience_servicer.UploadTrajectories": "receipts",
        "training_loop.publish": "publish",
        "policy_messages._message": "publish",
        "policy_servicer.WatchPolicy": "publish",
        "recorder.record": "record",
        "training_loop._account": "account",
        "scheduler_client.submit": "tasks",
        "scheduler_client._settle": "tasks",
        "training_servicer.WatchTraining": "progress",
        # a serial run
        "vector.step": "environment step",
        "numpy_acting.act": "act",
        "collector.collect": "collect",
        "runners.run": "loop and gRPC",
    },
    threads={"MainThread": "event loop", "training": "training", "collecting": "collecting"},
    work={"update"},
)
