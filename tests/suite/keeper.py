"""Keeps one shared server running until the run of the tests has ended: ``python -m tests.suite.keeper KIND FILE``.

FILE gets the pickled server when it serves, or the error for which there is none.
"""

from __future__ import annotations

import fcntl
import os
import pickle
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from tests.suite.run_directory import wait_for_the_end


def _einmal(**settings: str) -> Callable[[Path], Any]:
    def make(directory: Path) -> Any:
        from tests.interop.einmal_broker import EinmalBroker

        return EinmalBroker(directory, {name.replace("_", "."): value for name, value in settings.items()})

    return make


def _apache(transaction_version: int) -> Callable[[Path], Any]:
    def make(directory: Path) -> Any:
        from tests.interop.apache_kafka import OF_A_WHOLE_RUN, ApacheKafka

        return ApacheKafka(directory, transaction_version=transaction_version, settings=OF_A_WHOLE_RUN)

    return make


def _secure_apache(directory: Path) -> Any:
    from tests.security.secure_kafka import SecureKafka

    return SecureKafka(directory)


def _postgres(_directory: Path) -> Any:
    from tests.sinks.postgres.server import SHARED, PostgresServer

    return PostgresServer(settings=SHARED)


KINDS: Final[dict[str, Callable[[Path], Any]]] = {
    "einmal": _einmal(),
    "einmal-commands": _einmal(),
    "einmal-TV1": _einmal(transaction_version="1"),
    "einmal-two-phase": _einmal(transaction_two_phase_commit_enable="true"),
    "apache": _apache(2),
    "apache-TV1": _apache(1),
    "secure-apache": _secure_apache,
    "postgres": _postgres,
}


def main(kind: str, published: Path) -> int:
    directory = published.parent
    # Held for as long as the server may run: the run ends when it is free.
    with (directory / f"{kind}.running").open("w") as running:
        fcntl.flock(running, fcntl.LOCK_EX)
        server = None
        try:
            server = KINDS[kind](directory / kind)
            server.start()
            _publish(published, server)
        except Exception as error:  # noqa: BLE001 - whatever it is belongs to the test that asked.
            _publish(published, error)
        os.close(sys.stdout.fileno())
        if server is not None:
            wait_for_the_end(directory)
            (server.remove if hasattr(server, "remove") else server.stop)()
    return 0


def _publish(path: Path, value: Any) -> None:
    whole = path.with_suffix(".part")
    whole.write_bytes(pickle.dumps(value))
    whole.rename(path)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], Path(sys.argv[2])))
