"""``python -m tests.fuzz``: a run with its figures. Exit status 1: something does not hold."""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
from pathlib import Path

from tests.fuzz.run import fuzz


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--frames", type=int, default=1_000_000, help="requests in all")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--attackers", type=int, default=1, help="processes")
    parser.add_argument(
        "--keep", type=Path, help="write figures, the broker's diagnostics and, after problems, its data to this folder"
    )
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="einmal-fuzz-") as folder:
        verdict = fuzz(Path(folder), options.frames, options.seed, options.attackers)
        if options.keep is not None:
            options.keep.mkdir(parents=True, exist_ok=True)
            (options.keep / f"fuzz-{options.seed}.json").write_text(json.dumps(verdict.figures, indent=1))
            shutil.copy(Path(folder) / "stderr.log", options.keep / f"fuzz-{options.seed}.log")
            if verdict.problems:
                shutil.copytree(Path(folder) / "broker-1", options.keep / f"data-{options.seed}", dirs_exist_ok=True)
    print(f"seed {options.seed}: {verdict}")
    return 1 if verdict.problems else 0


if __name__ == "__main__":
    sys.exit(main())
