"""A Delta table keeps what every target must keep, beside other writers and after its log was cleaned."""

from __future__ import annotations

from pathlib import Path

import pytest
from deltalake import DeltaTable

from einmal.spark.options import Options
from einmal.spark.targets.delta import DeltaDestination
from einmal.spark.targets.staged_files import directory_of
from einmal.testing.targets import TargetTests
from tests.spark.targets import files

pytestmark = [pytest.mark.spark, pytest.mark.slow]


class DeltaHooks(TargetTests):
    def destination(self, location: Path) -> DeltaDestination:
        return DeltaDestination(Options({"path": location / "words"}))

    def rows(self, location: Path) -> list[tuple[int, str]]:
        return files.rows_in(read_delta(location / "words"))

    def staged(self, location: Path) -> list[str]:
        """What is in the table's directory, and in no commit."""
        table = location / "words"
        return files.staged_in(table / "_einmal" / "staging") + files.unnamed(table, read_delta(table))

    def lose_staged(self, location: Path) -> None:
        files.lose_one(location / "words" / "_einmal" / "staging")

    def copy_staged(self, location: Path) -> None:
        files.copy_all(location / "words" / "_einmal" / "staging")

    def damage_record(self, location: Path, name: str) -> None:
        for path in (location / "words" / "_einmal" / "records" / directory_of(name)).glob("*.json"):
            path.write_text("{")


def read_delta(table: Path) -> list[Path]:
    """The data files of the newest snapshot."""
    if not DeltaTable.is_deltatable(str(table)):
        return []
    return [Path(each.removeprefix("file://")) for each in DeltaTable(str(table)).file_uris()]


class TestDelta(DeltaHooks):
    """The battery."""
