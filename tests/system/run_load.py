"""One client of the load as a process: see ``load.py``. On SIGUSR1 it prints its stack."""

from __future__ import annotations

import argparse
import faulthandler
import signal
from collections.abc import Callable, Mapping
from pathlib import Path

from tests.system import confluent_load, own_load
from tests.system.load import Report, stopped

Role = Callable[[str, Report, int], None]
LIBRARIES: dict[str, Mapping[str, Role]] = {"confluent": confluent_load.ROLES, "einmal": own_load.ROLES}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("role", choices=confluent_load.ROLES)
    parser.add_argument("--library", choices=LIBRARIES, required=True)
    parser.add_argument("--bootstrap", required=True)
    parser.add_argument("--report", type=Path, required=True)
    parser.add_argument("--seed", type=int, required=True)
    arguments = parser.parse_args()
    faulthandler.register(signal.SIGUSR1)
    signal.signal(signal.SIGTERM, lambda *_: stopped.set())
    LIBRARIES[arguments.library][arguments.role](arguments.bootstrap, Report(arguments.report), arguments.seed)


if __name__ == "__main__":
    main()
