"""What the learner's profile calls its functions and threads."""

from parlmesh.telemetry.profiling import Phases

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
        "handlers.parse": "decode",
        "trajectories.trajectory_from_proto": "decode",
        "admission.admit": "check",
        "experience_servicer._read": "receipts",
        "experience_servicer.UploadTrajectories": "receipts",
        "run.publish": "publish",
        "broadcast._message": "publish",
        "policy_servicer.WatchPolicy": "publish",
        "recorder.record": "record",
        "run._account": "account",
        "dispatch.submit": "tasks",
        "dispatch._settle": "tasks",
        "training_servicer.WatchTraining": "progress",
        # a serial run
        "vector.step": "environment step",
        "acting.act": "act",
        "collector.collect": "collect",
        "runners.run": "loop and gRPC",
    },
    threads={"MainThread": "event loop", "training": "training", "collecting": "collecting"},
    work={"update"},
)
