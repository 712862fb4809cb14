"""The configuration files of a fleet's services, as mappings."""

from typing import Any

from .settings import DeploySettings

SCHEDULER_PORT, LEARNER_PORT, RELAY_PORT = 50051, 50052, 50053
RELAY_METRICS, SCHEDULER_METRICS, LEARNER_METRICS, ACTOR_METRICS = 9100, 9101, 9102, 9103
RUN_ID = "first"


class Layout:
    """The paths and addresses of a fleet in one kind of deployment."""

    def __init__(
        self,
        settings: DeploySettings,
        *,
        scheduler: str,
        learner: str,
        relay: str,
        data: str,
        certificates: str,
        open_metrics: bool,
    ) -> None:
        self.settings = settings
        self.scheduler_address = f"{scheduler}:{SCHEDULER_PORT}"
        self.learner_address = f"{learner}:{LEARNER_PORT}"
        self.relay_address = f"{relay}:{RELAY_PORT}"
        self._data = data
        self._certificates = certificates
        self._open_metrics = open_metrics

    def scheduler(self) -> dict[str, Any]:
        return {
            "listen": {"host": "0.0.0.0", "port": SCHEDULER_PORT},  # noqa: S104  # of a container or a host of its own
            "metrics": self._metrics(SCHEDULER_METRICS),
            "security": self._of_a_server("scheduler"),
            "store": {"path": f"{self._data}/scheduler.sqlite"},
        }

    def learner(self) -> dict[str, Any]:
        settings = self.settings
        return {
            "listen": {"host": "0.0.0.0", "port": LEARNER_PORT},  # noqa: S104  # as above
            "metrics": self._metrics(LEARNER_METRICS),
            "scheduler": self.scheduler_address,
            "security": self._of_a_server("learner"),
            "run_dir": f"{self._data}/{RUN_ID}",
            "run_id": RUN_ID,
            "training": {
                "environment": {"id": settings.environment},
                "step_budget": settings.step_budget,
                "goal_return": settings.goal_return,
            },
        }

    def relay(self) -> dict[str, Any]:
        return {
            "listen": {"host": "0.0.0.0", "port": RELAY_PORT},  # noqa: S104  # as above
            "metrics": self._metrics(RELAY_METRICS),
            "learner": self.learner_address,
            "security": self._of_a_server("relay"),
            # A third of its memory: policies in flight to readers take more.
            "limits": {"held_bytes": 256 << 20},
        }

    def actor(self) -> dict[str, Any]:
        """The part that all actors share, without certificate and name."""
        found: dict[str, Any] = {
            "scheduler": self.scheduler_address,
            "learner": self.learner_address,
            "relay": self.relay_address,
            "slots": self.settings.slots,
            "metrics": self._metrics(ACTOR_METRICS),
        }
        if self.settings.secure:
            found["security"] = {"ca": f"{self._certificates}/ca.crt"}
        return found

    def _of_a_server(self, name: str) -> dict[str, Any]:
        if not self.settings.secure:
            return {"insecure": True}
        folder = self._certificates
        return {
            "ca": f"{folder}/ca.crt",
            "certificate": f"{folder}/{name}.crt",
            "key": f"{folder}/{name}.key",
            "tokens": f"{folder}/tokens.yaml",
        }

    def _metrics(self, port: int) -> dict[str, Any]:
        return {"host": "0.0.0.0", "port": port, "insecure": True} if self._open_metrics else {"port": port}  # noqa: S104
