"""An Iceberg table keeps what every target must keep, beside other writers and after its snapshots have expired."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyiceberg.catalog import load_catalog
from pyiceberg.exceptions import NoSuchTableError

from einmal.spark.options import Options
from einmal.spark.targets.iceberg import IcebergDestination
from einmal.testing.targets import TargetTests
from tests.spark.targets import files

pytestmark = [pytest.mark.spark, pytest.mark.slow]


class IcebergHooks(TargetTests):
    def destination(self, location: Path) -> IcebergDestination:
        location.mkdir(exist_ok=True)
        settings = {f"catalog.{name}": value for name, value in catalog_settings(location).items()}
        return IcebergDestination(Options({"table": "lake.words", **settings}))

    def rows(self, location: Path) -> list[tuple[int, str]]:
        return files.rows_in(data_files(location))

    def staged(self, location: Path) -> list[str]:
        """What is in the table's directory, and in no commit."""
        table = location / "lake" / "words"
        return files.staged_in(table / "_einmal" / "staging") + files.unnamed(table / "data", data_files(location))

    def lose_staged(self, location: Path) -> None:
        files.lose_one(location / "lake" / "words" / "_einmal" / "staging")

    def copy_staged(self, location: Path) -> None:
        files.copy_all(location / "lake" / "words" / "_einmal" / "staging")

    def damage_record(self, location: Path, name: str) -> None:
        with table_at(location).transaction() as transaction:
            transaction.set_properties({f"einmal.state.{name}": "{"})


def catalog_settings(location: Path) -> dict[str, str]:
    return {"type": "sql", "uri": f"sqlite:///{location}/catalog.db", "warehouse": f"file://{location}"}


def table_at(location: Path) -> Any:
    return load_catalog("default", **catalog_settings(location)).load_table("lake.words")


def data_files(location: Path) -> list[Path]:
    """The data files of the current snapshot."""
    try:
        scan = table_at(location).scan().plan_files()
    except NoSuchTableError:
        return []
    return [Path(each.file.file_path.removeprefix("file://")) for each in scan]


class TestIceberg(IcebergHooks):
    """The battery."""
