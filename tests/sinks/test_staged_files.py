"""Files of tasks: durable before they are reported, compared before they are read, removed when they are nobody's."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow
import pytest
from pyarrow import parquet

from einmal.sinks.commit_point import Identity, SinkFailed
from einmal.sinks.staged_files import StagedFile, StagedFiles, directory_of, stage_file
from einmal.sinks.text import NotText
from einmal.types import ProducerEpoch, ProducerId


def rows(*counts: int) -> Iterator[pyarrow.RecordBatch]:
    for count in counts:
        yield pyarrow.RecordBatch.from_pydict({"id": list(range(count))})


def identity(epoch: int, transaction: int = 0) -> Identity:
    return Identity(ProducerId(epoch), ProducerEpoch(transaction))


def staged(root: Path, name: str, epoch: int, batch_id: int = 0, attempt: int = 1) -> StagedFile:
    directory = root / directory_of(name) / f"{epoch}-0-{batch_id}"
    directory.mkdir(parents=True, exist_ok=True)
    file = stage_file(directory, 0, attempt, rows(3))
    assert file is not None
    return file


def test_report_describes_the_file(tmp_path: Path) -> None:
    file = stage_file(tmp_path, 3, 17, rows(4, 0, 5))
    assert file is not None
    assert (file.path.name, file.count, file.size) == ("part-00003-17.parquet", 9, file.path.stat().st_size)
    assert parquet.ParquetFile(file.path).read()["id"].to_pylist() == [*range(4), *range(5)]
    file.compare()


def test_same_rows_make_the_same_bytes(tmp_path: Path) -> None:
    first, second = (stage_file(tmp_path, 0, attempt, rows(10, 10)) for attempt in (1, 2))
    assert first is not None and second is not None
    assert (first.size, first.crc) == (second.size, second.crc) and first.path != second.path


def test_small_batches_become_one_row_group(tmp_path: Path) -> None:
    file = stage_file(tmp_path, 0, 1, rows(*[10_000] * 30))
    assert file is not None
    assert parquet.read_metadata(file.path).num_row_groups <= 6


def test_task_without_rows_writes_no_file(tmp_path: Path) -> None:
    assert stage_file(tmp_path, 0, 1, rows(0, 0)) is None
    assert list(tmp_path.iterdir()) == []


def test_task_that_fails_leaves_no_file(tmp_path: Path) -> None:
    def failing() -> Iterator[pyarrow.RecordBatch]:
        yield from rows(200_000)
        raise RuntimeError("the input fails")

    with pytest.raises(RuntimeError, match="the input fails"):
        stage_file(tmp_path, 0, 1, failing())
    assert list(tmp_path.iterdir()) == []


def test_task_without_its_directory_explains_both_causes(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="ended without this task, or the executors do not mount"):
        stage_file(tmp_path / "removed", 0, 1, rows(1))


def test_changed_bytes_are_found(tmp_path: Path) -> None:
    file = stage_file(tmp_path, 0, 1, rows(1_000))
    assert file is not None
    data = bytearray(file.path.read_bytes())
    data[40] ^= 1
    file.path.write_bytes(data)
    with pytest.raises(SinkFailed, match="CRC"):
        file.compare()


def test_only_earlier_epochs_of_the_same_pipeline_are_removed(tmp_path: Path) -> None:
    removed = [staged(tmp_path, "mine", epoch).path for epoch in (1, 2)]
    kept = [staged(tmp_path, "mine", 3).path, staged(tmp_path, "other", 1).path, staged(tmp_path, "mine2", 1).path]
    foreign = tmp_path / directory_of("mine") / "1-0-0.backup"
    foreign.mkdir()
    StagedFiles(tmp_path, "mine").discard_before(3)
    assert [path.exists() for path in removed] == [False, False]
    assert not removed[0].parent.exists()
    assert [path.exists() for path in kept] == [True] * 3 and foreign.exists()


def test_unfinished_files_are_removed_and_files_of_others_are_not(tmp_path: Path) -> None:
    file = staged(tmp_path, "mine", 1)
    unfinished, foreign = file.path.with_name("part-00001-2.parquet.tmp"), file.path.with_name("notes.txt")
    unfinished.touch()
    foreign.touch()
    StagedFiles(tmp_path, "mine").discard_before(2)
    assert list(file.path.parent.iterdir()) == [foreign]


def test_unpublished_are_files_of_the_transaction_that_is_asked_for(tmp_path: Path) -> None:
    files = StagedFiles(tmp_path / "staging", "mine")
    published = []
    for transaction in (0, 1):
        staging = tmp_path / "staging" / directory_of("mine") / f"1-{transaction}-{transaction}"
        staging.mkdir(parents=True)
        file = stage_file(staging, 0, 1, rows(3))
        assert file is not None
        files._reported[identity(1, transaction)] = (file,)
        published += [each.path for each in files.publish(identity(1, transaction), tmp_path)]
    assert all(path.exists() for path in published)
    files.unpublish(identity(1, 1), tmp_path)
    assert [path.exists() for path in published] == [True, False]


def test_files_of_an_equal_identity_are_neither_replaced_nor_removed(tmp_path: Path) -> None:
    """Of a table whose epochs have begun again: nothing is staged under their mark."""
    files, committed = StagedFiles(tmp_path / "staging", "mine"), []
    for transaction in (0, 1):
        file = staged(tmp_path / "staging", "mine", 1, transaction)
        files._reported[identity(1)] = (file,)
        committed += [each.path for each in files.publish(identity(1), tmp_path)]
        files.discard(identity(1))
    again = StagedFiles(tmp_path / "staging", "mine")
    with pytest.raises(SinkFailed, match="another transactional.id"):
        again.check_unpublished(identity(1), 0, tmp_path)
    again._reported[identity(1)] = (staged(tmp_path / "staging", "mine", 1),)
    with pytest.raises(FileExistsError):
        again.publish(identity(1), tmp_path)
    assert [path.exists() for path in committed] == [True, True]


@pytest.mark.parametrize("pair", [("a", "A"), ("a/b", "a_b"), (".", ".."), ("x" * 249, "x" * 248), ("ü", "u")])
def test_two_names_are_two_directories_also_where_case_does_not_count(pair: tuple[str, str]) -> None:
    first, second = map(directory_of, pair)
    assert first.lower() != second.lower()
    assert all(len(each) <= 100 and "/" not in each and not each.startswith(".") for each in (first, second))


def not_utf_8() -> list[pyarrow.Array]:
    """Texts of Spark's that nothing has checked, alone and in each nested type."""
    text = pyarrow.array([b"good", b"caf\xe9 secret"]).view(pyarrow.string())
    bounds = pyarrow.array([0, 1, 2], pyarrow.int32())
    return [
        text,
        pyarrow.ListArray.from_arrays(bounds, text),
        pyarrow.StructArray.from_arrays([text], ["inner"]),
        pyarrow.MapArray.from_arrays(bounds, pyarrow.array(["a", "b"]), text),
        pyarrow.MapArray.from_arrays(bounds, text, pyarrow.array([1, 2])),
    ]


@pytest.mark.parametrize("column", not_utf_8(), ids=lambda each: str(each.type))
def test_text_that_is_not_utf_8_is_never_staged(tmp_path: Path, column: pyarrow.Array) -> None:
    batch = pyarrow.RecordBatch.from_arrays([column], names=["v"])
    with pytest.raises(NotText, match='column "v"') as raised:
        stage_file(tmp_path, 0, 1, iter([batch]))
    assert "secret" not in str(raised.value)
    assert list(tmp_path.iterdir()) == []
    good = batch.take(pyarrow.array([0]))
    assert stage_file(tmp_path, 0, 1, iter([good])) is not None
    record = pyarrow.array([{"topic": "in", "partition": 0, "offset": at} for at in range(2)])
    tolerant = batch.append_column("einmal_record", record)
    file = stage_file(tmp_path, 1, 1, iter([tolerant]))
    assert file is not None
    found = parquet.read_table(file.path)
    assert [each is None for each in found["einmal_refused"].to_pylist()] == [True, False]
    assert [each is None for each in found["v"].to_pylist()] == [False, True]
