"""What the tests of all targets with staged files do to their staging."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Final

COPY: Final = 900_000
"""Added to the id of an attempt."""


def staged_in(staging: Path) -> list[str]:
    """Everything below pipelines' own directories, which may stay."""
    return sorted(str(path.relative_to(staging)) for path in staging.glob("*/**/*"))


def lose_one(staging: Path) -> None:
    parquet_files(staging)[0].unlink()


def copy_all(staging: Path) -> None:
    for path in parquet_files(staging):
        number = re.compile(r"-(\d+)\.parquet$")
        shutil.copyfile(path, path.with_name(number.sub(lambda found: f"-{int(found[1]) + COPY}.parquet", path.name)))


def parquet_files(staging: Path) -> list[Path]:
    found = sorted(staging.glob("*/*/*.parquet"))
    assert found, f"nothing is staged in {staging}"
    return found
