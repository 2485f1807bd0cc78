"""What becomes of a broker whose files are damaged: the table in docs/damage.md, cell by cell.

In all of them: no acknowledged record vanishes silently, no directory is gone, no start hangs, and a message names what
is damaged.
"""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import pytest

from einmal.log.errors import LogCorruption
from einmal.types import ErrorCode
from tests.broker.damage import (
    DAMAGES,
    DIRECTORY_DAMAGES,
    ENDINGS,
    FILES,
    METADATA,
    SECONDS_MAX,
    damage,
    examine,
    logged,
    make,
    outcome,
)
from tests.broker.nodes import Client, new_node, run
from tests.suite.patience import patient

pytestmark = [pytest.mark.slow, pytest.mark.time_limit(300)]

PAGE = Path(__file__).parents[2] / "docs" / "damage.md"


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("damage")
    run(make(folder))
    return folder


async def topics_after_start(folder: Path) -> list[str] | None:
    """None if the broker refuses to start."""
    node = new_node(folder)
    try:
        await node.start()
    except LogCorruption:
        return None
    finally:
        await node.stop()
    return sorted(name for name in node.metadata.image.topics if not name.startswith("__"))


def table() -> dict[str, dict[str, str]]:
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")] for line in PAGE.read_text().splitlines() if "|" in line
    ]
    assert tuple(rows[0][1:]) == DAMAGES
    return {row[0]: dict(zip(DAMAGES, row[1:], strict=True)) for row in rows[2:]}


def test_the_page_has_a_row_for_every_kind_of_file() -> None:
    assert list(table()) == list(FILES)


@pytest.mark.representatives(5)
@pytest.mark.parametrize("file", FILES)
async def test_damage_has_the_documented_outcome(base: Path, tmp_path: Path, file: str) -> None:
    row = table()[file]
    for how in DIRECTORY_DAMAGES if "directory" in file else DAMAGES:
        found = [await outcome(base, tmp_path / f"{ending} {how}", file, how, ending) for ending in ENDINGS]
        assert {name for name in found if name} == {row[how]}, how


@pytest.mark.representatives(2)
@pytest.mark.parametrize("how", DAMAGES)
async def test_in_its_first_seconds_a_partition_is_known_by_one_file_only(base: Path, tmp_path: Path, how: str) -> None:
    """Later it is rebuilt, by the mark or by the checkpoint, which name the topic, too."""
    folder = tmp_path / "copy"
    shutil.copytree(base / "killed", folder)
    path = folder / "late-0" / "partition.metadata"
    damage(folder, path, how)
    node = new_node(folder)
    with logged() as lines:
        await node.start()
        async with Client.connect(node) as client:
            answer = await client.fetch("late", 0)
        await node.stop()
    if how == "swap":
        # Another topic's name: the directory is kept under a name of its own.
        assert any("is stray and kept" in line for line in lines), lines
        return
    assert answer.error_code is ErrorCode.kafka_storage_error
    assert any(str(path) in line and "Restore it from a backup" in line for line in lines), lines


@pytest.mark.parametrize("ending", ENDINGS)
async def test_an_undamaged_directory_opens_without_a_warning(base: Path, tmp_path: Path, ending: str) -> None:
    shutil.copytree(base / ending, tmp_path / "copy")
    result = await examine(tmp_path / "copy")
    assert (result.outcome(stray=False), result.logged) == ("same", [])


@pytest.mark.time_limit(600)
@pytest.mark.parametrize("flips", [15, pytest.param(60, marks=pytest.mark.long)])
async def test_no_flipped_bit_of_the_metadata_log_hangs_a_start_or_loses_a_topic(
    base: Path, tmp_path: Path, flips: int
) -> None:
    """Also of what was written after the last checkpoint, which kill -9 leaves as the process has written it."""
    path = next((base / "killed" / METADATA).glob("*.log"))
    data = path.read_bytes()
    for number in range(flips):
        place = len(data) * 8 * number // flips + number % 8
        folder = tmp_path / str(number)
        shutil.copytree(base / "killed", folder)
        flipped = bytearray(data)
        flipped[place // 8] ^= 1 << place % 8
        (folder / METADATA / path.name).write_bytes(flipped)
        async with asyncio.timeout(patient(SECONDS_MAX)):
            assert await topics_after_start(folder) in (None, ["late", "other", "t"]), f"bit {place}"
        assert not list(folder.glob("*-stray"))
        shutil.rmtree(folder)
