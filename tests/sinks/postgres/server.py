"""PostgreSQL itself, as processes of the tests: a primary on a free loopback port, and standbys of it.

The programs are those of Debian's ``postgresql`` packages: installed ones, or downloaded (without root) into
``build/postgresql``. Data lives in a directory of the caller's. PostgreSQL refuses to run as root, so as root the
programs run as another user, who owns that directory.
"""

from __future__ import annotations

import fcntl
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any, Final

import psycopg

from tests.ports import loopback_ports
from tests.suite.patience import patient
from tests.suite.shared import Shareable, Unavailable

_DOWNLOADED: Final = Path(__file__).parents[3] / "build" / "postgresql"
_INSTALLED: Final = Path("/usr/lib/postgresql")
_VERSION_MIN: Final = 15
_USERS: Final = ("postgres", "nobody")
"""Who runs the server where the tests run as root."""
_START_S: Final = 60.0
_STOP_S: Final = 120.0
_DOWNLOAD_S: Final = 300.0
PASSWORD: Final = "not-in-any-log"

_SETTINGS: Final = {
    "listen_addresses": "'127.0.0.1'",
    "unix_socket_directories": "''",
    "max_connections": "60",
    "shared_buffers": "'64MB'",
    "max_wal_size": "'512MB'",
    "wal_level": "replica",
    "max_wal_senders": "4",
    "hot_standby": "on",
    "log_min_messages": "warning",
    "log_line_prefix": "'%m [%p] %a '",
}


SHARED: Final = {
    "wal_level": "logical",
    "max_replication_slots": "40",
    "max_wal_senders": "40",
    "max_prepared_transactions": "40",
    "max_connections": "200",
}
"""Settings of the server that all tests share: for change data capture, and for two-phase commit."""


class PostgresUnavailable(Unavailable):
    """PostgreSQL cannot be run on this machine; the text names the missing package."""


class PostgresDied(Exception):
    """The server ended, or never answered; the text has the end of its log."""


class PostgresServer(Shareable):
    """A server that can be killed and started again on the same port and data. ``settings``: of postgresql.conf.

    ``remove`` deletes its directory, which is not one of pytest's: those belong to the user of the tests alone.
    """

    def __init__(self, *, settings: Mapping[str, str] | None = None) -> None:
        self._directory = directory = Path(tempfile.mkdtemp(prefix="einmal-postgres-"))
        self._data = directory / "data"
        self._settings = {**_SETTINGS, **(settings or {})}
        self._process: subprocess.Popen[bytes] | None = None
        self.host = "127.0.0.1"
        (self.port,) = loopback_ports(1)
        _own(directory)
        password = directory / "password"
        password.write_text(PASSWORD)
        _own(password)
        self._make(password)

    def _make(self, password: Path) -> None:
        self._run("initdb", "-D", self._data, "-U", "admin", "-E", "UTF8", "--locale=C", "--pwfile", password,
                  "-A", "scram-sha-256", "--no-sync")  # fmt: skip
        with (self._data / "postgresql.conf").open("a") as file:
            file.writelines(f"{name} = {value}\n" for name, value in self._settings.items())
        with (self._data / "pg_hba.conf").open("a") as file:
            file.write("host replication all 127.0.0.1/32 scram-sha-256\n")

    # --- for clients --------------------------------------------------------------------------------------------

    @property
    def url(self) -> str:
        """Without the password: option ``password``."""
        return self.url_of("postgres")

    def url_of(self, database: str, port: int | None = None) -> str:
        return f"postgresql://admin@{self.host}:{port or self.port}/{database}"

    def connect(self, database: str = "postgres", **settings: Any) -> psycopg.Connection[Any]:
        """A connection in autocommit mode. Raises psycopg.Error."""
        return psycopg.connect(
            self.url_of(database), password=PASSWORD, autocommit=True, connect_timeout=10, **settings
        )

    def rows(
        self, query: str, parameters: Sequence[Any] | None = None, database: str = "postgres"
    ) -> list[tuple[Any, ...]]:
        """The result of one statement, without one: an empty list."""
        with self.connect(database) as connection:
            cursor = connection.execute(query, parameters)
            return cursor.fetchall() if cursor.description else []

    # --- the process --------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start, and return once the server answers. Raises PostgresDied."""
        assert self._process is None, "already running"
        # The postmaster looks only whether the process of this id exists, and another may have got the id.
        (self._data / "postmaster.pid").unlink(missing_ok=True)
        with (self._directory / "server.log").open("ab") as log:
            self._process = subprocess.Popen(
                [_program("postgres"), "-D", self._data, "-p", str(self.port)],
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=self._directory,
                **_as_user(),
            )
        deadline = time.monotonic() + patient(_START_S)
        while True:
            with suppress(psycopg.OperationalError):
                self.connect().close()
                return
            if self._process.poll() is not None or time.monotonic() > deadline:
                self.kill()
                raise PostgresDied(self.log_tail())
            time.sleep(0.02)

    def kill(self) -> None:
        """kill -9 of the postmaster and all its children, as a power cut would end them, and wait until they are
        gone."""
        process, self._process = self._process, None
        if process is None:
            return
        import psutil

        with suppress(psutil.NoSuchProcess):
            children = psutil.Process(process.pid).children(recursive=True)
            process.send_signal(signal.SIGKILL)
            for child in children:
                with suppress(psutil.NoSuchProcess):
                    child.kill()
            psutil.wait_procs(children, _STOP_S)
        process.wait(_STOP_S)

    def stop(self) -> None:
        """A fast shutdown, which ends sessions; kill -9 where that takes too long."""
        if self._process is None:
            return
        self._process.send_signal(signal.SIGINT)
        try:
            self._process.wait(_STOP_S)
            self._process = None
        except subprocess.TimeoutExpired:
            self.kill()

    def reload(self, settings: Mapping[str, str]) -> None:
        """Change settings of the running server, and wait until it has them."""
        with self.connect() as connection:
            for name, value in settings.items():
                connection.execute(f"ALTER SYSTEM SET {name} = {value}")
            (before,) = connection.execute("SELECT pg_conf_load_time()").fetchone() or (None,)
            connection.execute("SELECT pg_reload_conf()")
        until(lambda: self.rows("SELECT pg_conf_load_time()")[0][0] != before, "the settings are loaded")

    def standby(self) -> Standby:
        """A copy that replicates this server asynchronously; started by the caller."""
        return Standby(self)

    def remove(self) -> None:
        """Stop, and delete everything."""
        self.stop()
        shutil.rmtree(self._directory)

    def log_tail(self, characters: int = 4000) -> str:
        return (self._directory / "server.log").read_text(errors="replace")[-characters:]

    def log(self) -> str:
        return (self._directory / "server.log").read_text(errors="replace")

    def _run(self, program: str, *arguments: object, **environment: str) -> None:
        done = subprocess.run(
            [_program(program), *map(str, arguments)],
            capture_output=True,
            text=True,
            timeout=patient(_START_S),
            cwd=self._directory,
            env={**os.environ, "LC_ALL": "C", **environment},
            **_as_user(),
        )
        if done.returncode:
            raise PostgresDied(f"{program}: {done.stderr[-2000:]}")


class Standby(PostgresServer):
    """A streaming, asynchronous standby. ``pause`` lets it lag behind."""

    def __init__(self, primary: PostgresServer) -> None:
        self._primary = primary
        super().__init__()

    def _make(self, password: Path) -> None:
        self._run("pg_basebackup", "-D", self._data, "-h", self._primary.host, "-p", self._primary.port, "-U", "admin",
                  "-R", "-X", "stream", "-c", "fast", "--no-sync", PGPASSWORD=PASSWORD)  # fmt: skip

    def pause(self) -> None:
        """Stop receiving: what the primary commits from here on is lost at a promotion."""
        with self.connect() as connection:
            connection.execute("ALTER SYSTEM SET primary_conninfo = ''")
            connection.execute("SELECT pg_reload_conf()")
        until(lambda: not self.rows("SELECT 1 FROM pg_stat_wal_receiver"), "the standby has stopped receiving")

    def catch_up(self) -> None:
        """Wait until the standby has replayed all that the primary has written so far."""
        ((lsn,),) = self._primary.rows("SELECT pg_current_wal_lsn()::text")
        until(
            lambda: self.rows("SELECT pg_last_wal_replay_lsn() >= %s::pg_lsn", (lsn,))[0][0],
            "the standby has caught up",
        )

    def promote(self) -> None:
        """Make it a primary, and wait until it accepts writes."""
        self.rows("SELECT pg_promote(true, 60)")
        until(lambda: not self.rows("SELECT pg_is_in_recovery()")[0][0], "the standby is promoted")


@contextmanager
def running(**settings: str) -> Iterator[PostgresServer]:
    server = PostgresServer(settings=settings)
    try:
        server.start()
        yield server
    finally:
        server.remove()


def until(condition: Callable[[], object], what: str, timeout_s: float = 60.0) -> None:
    """Wait for a condition on a real process."""
    timeout_s = patient(timeout_s)
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, f"not within {timeout_s:.0f} s: {what}"
        time.sleep(0.02)


# --- programs and users -----------------------------------------------------------------------------------------


def _program(name: str) -> str:
    return str(programs() / name)


@cache
def programs() -> Path:
    """The folder of initdb and postgres. Raises PostgresUnavailable."""
    folder = _newest(_INSTALLED) or _newest(_DOWNLOADED / "usr/lib/postgresql")
    if folder is None:
        _download()
        folder = _newest(_DOWNLOADED / "usr/lib/postgresql")
    if folder is None:
        raise PostgresUnavailable(
            f"PostgreSQL {_VERSION_MIN} or later is not installed, and could not be downloaded: "
            "apt-get install postgresql"
        )
    return folder


def _newest(root: Path) -> Path | None:
    found = [path.parent for path in root.glob("*/bin/initdb") if int(path.parts[-3]) >= _VERSION_MIN]
    return max(found, key=lambda path: int(path.parts[-2]), default=None)


def _download() -> None:
    """Debian's packages, unpacked without root, by one process of a run for all."""
    if not shutil.which("apt-get") or not shutil.which("dpkg"):
        return
    _DOWNLOADED.mkdir(parents=True, exist_ok=True)
    with (_DOWNLOADED / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if _newest(_DOWNLOADED / "usr/lib/postgresql"):
            return
        names = subprocess.run(
            ["apt-cache", "depends", "postgresql"], capture_output=True, text=True, timeout=_DOWNLOAD_S
        ).stdout.split()
        server = [name for name in names if name.startswith("postgresql-") and name[11:].isdigit()]
        for package in server[:1]:
            subprocess.run(["apt-get", "download", package], cwd=_DOWNLOADED, timeout=_DOWNLOAD_S, check=False)
        for archive in _DOWNLOADED.glob("*.deb"):
            subprocess.run(["dpkg", "-x", archive, _DOWNLOADED], timeout=_DOWNLOAD_S, check=False)
            archive.unlink()


@cache
def _user() -> pwd.struct_passwd | None:
    """Who runs the server; None: the user of the tests."""
    if os.geteuid() != 0:
        return None
    for name in _USERS:
        with suppress(KeyError):
            return pwd.getpwnam(name)
    raise PostgresUnavailable(f"PostgreSQL does not run as root, and none of the users {', '.join(_USERS)} exists")


def _as_user() -> dict[str, Any]:
    user = _user()
    return {} if user is None else {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}


def _own(path: Path) -> None:
    user = _user()
    if user is not None:
        os.chown(path, user.pw_uid, user.pw_gid)
