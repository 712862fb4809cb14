"""Seconds of a steady round of Flower's deployment: a SuperLink and SuperNodes on the loopback."""

# mypy: ignore-errors
# Runs in the peer's venv, whose packages are unknown to ours.

import argparse
import json
import os
import pathlib
import socket
import statistics
import subprocess
import sys
import tempfile
import time

APP = pathlib.Path(__file__).resolve().parent / "flower_app"
LONGEST_SECONDS = 450.0


def free_ports(count):
    probes = [socket.socket() for _ in range(count)]
    for probe in probes:
        probe.bind(("127.0.0.1", 0))
    ports = [probe.getsockname()[1] for probe in probes]
    for probe in probes:
        probe.close()
    return ports


def rows(path):
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--parameters", type=int, default=100_000)
    parser.add_argument("--nodes", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=4)
    arguments = parser.parse_args()
    programs = pathlib.Path(sys.executable).parent
    # The port is the link's control port; its other ports are the defaults.
    control, *doors = free_ports(1 + arguments.nodes)
    with tempfile.TemporaryDirectory() as folder:
        home, found = pathlib.Path(folder), pathlib.Path(folder, "rounds.jsonl")
        (home / "config.toml").write_text(
            f'[superlink]\ndefault = "bench"\n[superlink.bench]\naddress = "127.0.0.1:{control}"\ninsecure = true\n'
        )
        environment = dict(
            os.environ,
            FLWR_HOME=folder,
            FLWR_TELEMETRY_ENABLED="0",
            GRPC_VERBOSITY="NONE",
            FLOWER_ROUNDS=str(found),
            PATH=f"{programs}:{os.environ['PATH']}",
        )
        with open(home / "log", "w") as log:
            options = {"env": environment, "stdout": log, "stderr": log}
            link = [programs / "flower-superlink", "--insecure", "--disable-runtime-dependency-installation"]
            running = [subprocess.Popen([*link, "--host", "127.0.0.1", "--port", str(control)], **options)]
            try:
                time.sleep(6.0)
                node = [programs / "flower-supernode", "--insecure", "--superlink", f"127.0.0.1:{control}", "--port"]
                running += [subprocess.Popen([*node, str(door)], **options) for door in doors]
                time.sleep(3.0 + 1.5 * arguments.nodes)
                settings = f"rounds={arguments.rounds} parameters={arguments.parameters} nodes={arguments.nodes}"
                subprocess.run([programs / "flwr", "run", str(APP), "bench", "-c", settings], check=True, **options)
                deadline = time.monotonic() + LONGEST_SECONDS
                while len(rows(found)) < arguments.rounds and time.monotonic() < deadline:
                    time.sleep(0.2)
            finally:
                for process in reversed(running):
                    process.terminate()
                for process in running:
                    try:
                        process.wait(10)
                    except subprocess.TimeoutExpired:
                        process.kill()
        done = rows(found)
    assert done, "no round ended"
    assert all(row["updates"] == arguments.nodes for row in done), done
    seconds = [row["seconds"] for row in done][1:] or [row["seconds"] for row in done]
    print(json.dumps({"round_seconds": statistics.median(seconds), "rounds": seconds}))


if __name__ == "__main__":
    main()
