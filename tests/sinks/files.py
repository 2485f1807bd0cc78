"""What the tests of all sinks with staged files do to their staging."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Final

from pyarrow import parquet
from pyspark.sql import SparkSession

from einmal.sinks.row_schema import RowSchema
from einmal.spark.environment.plans import row_schemas

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


def rows_in(paths: list[Path]) -> list[tuple[int, str]]:
    """The rows of data files."""
    rows = []
    for path in paths:
        table = parquet.ParquetFile(path).read()
        rows += list(zip(table["id"].to_pylist(), table["name"].to_pylist(), strict=True))
    return rows


def unnamed(directory: Path, named: list[Path]) -> list[str]:
    """Data files of einmal below a directory that no snapshot names."""
    return sorted(str(path) for path in directory.glob("einmal-*/*/*") if path not in named)


def schema_of(spark: SparkSession, columns: str) -> RowSchema:
    """Of columns as in SQL."""
    return row_schemas.schema_of(spark.createDataFrame([], columns).schema)
