"""A PostgreSQL server for a test, from this machine's binaries; can be killed and restarted."""

import contextlib
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Mapping
from itertools import count
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from parlmesh.postgres.connection_settings import Target
from parlmesh.postgres.database import Database
from parlmesh.postgres.schema import migrate

from .servers import free_port

_START_SECONDS = 60.0
_STARTS = 5
_AGAIN_SECONDS = 0.5
_USER = "parlmesh"
_TEMPLATE = "parlmesh_template"
_SERVER_USERS = ("postgres", "nobody")


def binaries() -> Path | None:
    """The folder of `initdb` and `postgres`; None without binaries or without a user to run them."""
    if os.geteuid() == 0 and (_server_user() is None or shutil.which("setpriv") is None):
        return None
    found = shutil.which("initdb")
    folders = [Path(found).resolve().parent] if found else []
    folders += sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    return next((folder for folder in folders if (folder / "postgres").exists()), None)


class Cluster:
    """One server in a temporary folder on a free port; `with` owns it."""

    def __init__(self, *, fsync: bool = False, settings: Mapping[str, str] | None = None) -> None:
        """Without `fsync` it survives a kill of its processes, but not a power cut."""
        found = binaries()
        if found is None:
            raise FileNotFoundError("there are no binaries of PostgreSQL")
        self._binaries = found
        self._user = _server_user() if os.geteuid() == 0 else None
        self.folder = Path(tempfile.mkdtemp(prefix="parlmesh-postgres-"))
        self.data = self.folder / "data"
        self.port = free_port()
        self._settings = {"fsync": "on" if fsync else "off", "synchronous_commit": "on", **(settings or {})}
        self._process: subprocess.Popen[bytes] | None = None
        self._names = count(1)

    def __enter__(self) -> Self:
        try:
            if self._user is not None:
                os.chown(self.folder, self._user.pw_uid, self._user.pw_gid)
            if not self.data.exists():
                self.run(
                    "initdb", "-D", self.data, "-U", _USER, "--auth=trust", "-E", "UTF8", "--no-locale", "--no-sync"
                )
            self.start()
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.kill()
        shutil.rmtree(self.folder, ignore_errors=True)

    def start(self) -> None:
        """Returns once the server takes connections; retries, as remains of a killed server may be in the way."""
        for _ in range(_STARTS - 1):
            with contextlib.suppress(ChildProcessError):
                self._start()
                return
            time.sleep(_AGAIN_SECONDS)
        self._start()

    def _start(self) -> None:
        options = {
            "listen_addresses": "127.0.0.1",
            "port": str(self.port),
            "unix_socket_directories": "",
            "max_connections": "200",
            "logging_collector": "off",
            **self._settings,
        }
        arguments = [part for name, value in options.items() for part in ("-c", f"{name}={value}")]
        log = (self.folder / "log").open("ab")
        self._process = subprocess.Popen(  # noqa: S603
            [*self._as_user(), self._binaries / "postgres", "-D", self.data, *arguments],
            stdout=log,
            stderr=log,
            cwd=self.folder,
        )
        log.close()
        self._until_ready()

    def standby(self, name: str = "standby") -> "Cluster":
        """A copy made with pg_basebackup that follows this server by streaming replication; enter it to start it."""
        found = Cluster(fsync=self._settings["fsync"] == "on")
        if found._user is not None:
            os.chown(found.folder, found._user.pw_uid, found._user.pw_gid)
        source = f"host=127.0.0.1 port={self.port} user={_USER} application_name={name}"
        found.run("pg_basebackup", "-D", found.data, "-d", source, "-X", "stream", "-c", "fast", "-R")
        return found

    def wait_for_standby(self, name: str = "standby") -> None:
        """Makes every commit wait for the standby; returns once the standby is in sync."""
        self.sql("postgres", f"ALTER SYSTEM SET synchronous_standby_names = '{name}'")
        self.sql("postgres", "SELECT pg_reload_conf()")
        self._until("SELECT 1 FROM pg_stat_replication WHERE sync_state = 'sync'")

    def promote(self) -> None:
        """Makes a standby the primary."""
        self.sql("postgres", "SELECT pg_promote()")
        self._until("SELECT 1 WHERE NOT pg_is_in_recovery()")

    def cut_off(self) -> None:
        """Cuts a standby off from its primary; it still answers readers."""
        self.sql("postgres", "ALTER SYSTEM SET primary_conninfo = ''")
        self.sql("postgres", "SELECT pg_reload_conf()")
        self._until("SELECT 1 WHERE NOT EXISTS (SELECT FROM pg_stat_wal_receiver)")

    def _until(self, statement: str) -> None:
        deadline = time.monotonic() + _START_SECONDS
        while not self.sql("postgres", statement):
            if time.monotonic() > deadline:
                raise TimeoutError(f"{statement} had no rows within {_START_SECONDS:g} s")
            time.sleep(0.02)

    def run(self, program: str, *arguments: object) -> None:
        """Runs one of PostgreSQL's programs as the server's user."""
        subprocess.run(  # noqa: S603
            [*self._as_user(), self._binaries / program, *map(str, arguments)],
            check=True,
            capture_output=True,
            cwd=self.folder,
        )

    def kill(self) -> None:
        """Sends SIGKILL to all its processes, like a machine that stops."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        """A fast shutdown, which closes all connections."""
        self._end(signal.SIGINT)

    def url(self, name: str, *, address: str = "") -> str:
        """The URL of a database; pass the `address` of a proxy in front of it."""
        return f"postgresql://{_USER}@{address or f'127.0.0.1:{self.port}'}/{name}"

    def database(self) -> str:
        """Creates a database with parlmesh's tables; returns its URL."""
        number = next(self._names)
        if number == 1:
            self.sql("postgres", f"CREATE DATABASE {_TEMPLATE}")
            database = Database(Target(self.url(_TEMPLATE)))
            migrate(database)
            database.close()
        name = f"parlmesh_{number}"
        self.sql("postgres", f"CREATE DATABASE {name} TEMPLATE {_TEMPLATE}")
        return self.url(name)

    def sql(self, name: str, *statements: str) -> list[Any]:
        """Rows of the last statement."""
        return query(self.url(name), *statements)

    def _as_user(self) -> list[str]:
        """PostgreSQL refuses to run as root. Popen's `user` is no option: it forks, which a process with gRPC's threads
        does not always survive."""
        if self._user is None:
            return []
        return ["setpriv", f"--reuid={self._user.pw_uid}", f"--regid={self._user.pw_gid}", "--clear-groups", "--"]

    def _until_ready(self) -> None:
        deadline = time.monotonic() + _START_SECONDS
        while True:
            assert self._process is not None
            if self._process.poll() is not None:
                code, self._process = self._process.returncode, None
                raise ChildProcessError(f"postgres ended with {code}: {(self.folder / 'log').read_text()[-2000:]}")
            try:
                self.sql("postgres", "SELECT 1")
                return
            except OSError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.02)

    def _end(self, number: signal.Signals) -> None:
        if self._process is None:
            return
        if number is signal.SIGKILL:
            # Stopped first, so that it starts no others; its children have their own sessions and would live on
            # briefly.
            self._process.send_signal(signal.SIGSTOP)
            for child in _children(self._process.pid):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(child, number)
        self._process.send_signal(number)
        self._process.wait(_START_SECONDS)
        self._process = None


def query(url: str, *statements: str) -> list[Any]:
    """Runs statements on a separate connection; returns the rows of the last one."""
    database = Database(Target(url), writes=False)
    try:

        async def ask(connection: Any) -> list[Any]:
            rows: list[Any] = []
            for statement in statements:
                rows = await connection.fetch(statement)
            return rows

        return database.lane().run(ask, _START_SECONDS)
    finally:
        database.close()


def _children(parent: int) -> list[int]:
    found = []
    for status in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            # The name in parentheses may hold anything.
            if int(status.read_text().rpartition(")")[2].split()[1]) == parent:
                found.append(int(status.parent.name))
    return found


def _server_user() -> pwd.struct_passwd | None:
    for name in _SERVER_USERS:
        try:
            return pwd.getpwnam(name)
        except KeyError:
            continue
    return None
