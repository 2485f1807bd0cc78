"""``python -m tests.schemas.beside_java --pairs 100000 --seed 1``: exit status 0 where every difference is listed."""

from __future__ import annotations

import argparse
import os
import sys
import time

from tests.schemas.beside_java.campaign import run


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=100_000, help="of each format")
    parser.add_argument("--seed", type=int, default=int.from_bytes(os.urandom(3), "big"))
    asked = parser.parse_args()
    print(f"seed {asked.seed}, {asked.pairs:,} pairs of each format", flush=True)
    started = time.monotonic()

    def progress(name: str, done: int) -> None:
        if done % 10_000 == 0:
            print(f"{name}: {done:,} pairs after {time.monotonic() - started:.0f} s", file=sys.stderr, flush=True)

    verdict = run(asked.pairs, asked.seed, progress)
    print(verdict.in_words())
    return 1 if verdict.unlisted else 0


if __name__ == "__main__":
    sys.exit(main())
