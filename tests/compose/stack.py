"""The project of docker-compose.yml as the test runs it: with its own name, ports and volumes."""

import json
import os
from typing import Any

from tests.compose.engine import BUILD_TIMEOUT_S, docker
from tests.ports import free_port

PROJECT = "orcastream-test"
DRAIN_S = 1


class Stack:
    """Compose commands on the test's project."""

    def __init__(self) -> None:
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.grafana_port = free_port()
        self._environment = {
            "COMPOSE_PROJECT_NAME": PROJECT,
            "GATEWAY_PORT": str(self.port),
            "REDIS_PORT": str(free_port()),
            "GRAFANA_PORT": str(self.grafana_port),
            # Requests are accepted while every worker is stopped, and a drain hands over unfinished requests.
            "ORCASTREAM_REQUIRE_WORKER": "false",
            "ORCASTREAM_DRAIN_GRACE_S": str(DRAIN_S),
            "ORCASTREAM_LOG_LEVEL": "info",
        }

    def give(self, name: str, value: str) -> None:
        """Set a variable of docker-compose.yml for later commands."""
        self._environment[name] = value

    def compose(self, *arguments: str, timeout_s: float = 300) -> str:
        """Run `docker compose`; no .env of the repository is read."""
        environment = {**os.environ, **self._environment}
        return docker("compose", "--env-file", os.devnull, *arguments, environment=environment, timeout_s=timeout_s)

    def config(self) -> dict[str, Any]:
        """Return the services as Compose understands them, including those of profiles."""
        shown = self.compose("--profile", "*", "config", "--format", "json")
        services: dict[str, Any] = json.loads(shown)["services"]
        return services

    def build(self, *services: str) -> None:
        """Build the images of these services one after another, so that later builds reuse layers of earlier ones."""
        for service in services:
            self.compose("build", service, timeout_s=BUILD_TIMEOUT_S)

    def up(self, *services: str) -> None:
        """Start services and their dependencies, and wait until all are healthy."""
        self.compose("up", "--detach", "--no-build", "--wait", "--wait-timeout", "300", *services, timeout_s=400)

    def containers(self, service: str) -> list[str]:
        """Return the ids of the running containers of a service."""
        return self.compose("ps", "--quiet", "--status", "running", service).split()

    def services(self) -> set[str]:
        """Return the names of the running services."""
        return set(self.compose("ps", "--services", "--status", "running").split())

    def down(self) -> None:
        """Remove containers, networks and volumes."""
        self.compose("--profile", "*", "down", "--volumes", "--remove-orphans")
