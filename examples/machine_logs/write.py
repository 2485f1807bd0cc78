"""Write numbered lines into log files, as three services of a machine do, which rotate them in three ways.

``web`` renames its file, ``mail`` renames and compresses it, ``cron`` copies and truncates it. Nothing is deleted.
"""

import argparse
import gzip
import os
import random
import shutil
import time
import zlib
from pathlib import Path

from examples.program import FRESH, fail

SERVICES = ("web", "mail", "cron")
_ROTATED_BYTES = 50_000


def line_of(service: str, number: int) -> str:
    """Its number determines a line to the last character, so that a torn one can be recognized."""
    start = f"{service} {number} "
    return start + "." * (zlib.crc32(start.encode()) % 61)


def _age(path: Path) -> int:
    return int(path.name.split(".")[2])


def rotate(folder: Path, service: str) -> None:
    """A file keeps its number plus one for each rotation since."""
    path = folder / f"{service}.log"
    for old in sorted(folder.glob(f"{service}.log.*"), key=_age, reverse=True):
        name, number, *rest = old.name.removeprefix(f"{service}.").split(".")
        old.rename(folder / ".".join([service, name, str(int(number) + 1), *rest]))
    first = folder / f"{service}.log.1"
    if service == "cron":
        shutil.copy(path, first)
        os.truncate(path, 0)
        return
    path.rename(first)
    if service == "mail":
        packed = folder / "mail.log.1.gz.part"
        packed.write_bytes(gzip.compress(first.read_bytes()))
        packed.rename(folder / "mail.log.1.gz")
        first.unlink()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--lines", type=int, default=20_000, help="Of each service.")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    if any(options.folder.iterdir()):
        fail(f"{options.folder} has files of an earlier run. {FRESH}")
    chance = random.Random()
    numbers = dict.fromkeys(SERVICES, 0)
    while min(numbers.values()) < options.lines:
        for service in SERVICES:
            path = options.folder / f"{service}.log"
            with path.open("a") as file:
                for _ in range(min(chance.randint(1, 40), options.lines - numbers[service])):
                    numbers[service] += 1
                    # In two pieces: a reader sees half a line at times.
                    line = line_of(service, numbers[service])
                    file.write(line[: len(line) // 2])
                    file.flush()
                    file.write(line[len(line) // 2 :] + "\n")
            if path.stat().st_size > _ROTATED_BYTES:
                rotate(options.folder, service)
        time.sleep(0.03)


if __name__ == "__main__":
    main()
