"""The `parlmesh` command. Talks to the fleet over gRPC only; heavy imports happen inside the commands."""

from parlmesh.optional_packages import require

require("parlmesh", "cli", "typer", "rich")
