"""Arrow's columns in the text format of COPY."""

from __future__ import annotations

import random
import tracemalloc
from typing import Any

import pyarrow
import pytest

from einmal.sinks.postgres.copy_text import copy_text


def batch(**columns: Any) -> Any:
    return pyarrow.RecordBatch.from_pydict(columns)


def test_values_are_escaped_and_null_is_no_empty_string() -> None:
    rows = batch(a=["x", "", None, "\\N", "a\tb\nc\rd\\e"], n=[1, None, -3, 4, 5])
    assert copy_text(rows) == b"x\t1\n\t\\N\n\\N\t-3\n\\\\N\t4\na\\tb\\nc\\rd\\\\e\t5\n"


@pytest.mark.parametrize("offset", [0, 1, 3])
def test_slices_of_binary_values_and_arrays_are_written_alone(offset: int) -> None:
    rows = batch(
        b=pyarrow.array([b"\x00\xff", None, b"", b"z"]),
        a=pyarrow.array([["x", None, 'q"\\'], None, [], ["NULL"]]),
        i=pyarrow.array([[1, 2], [None], None, [3]]),
    )
    lines = [
        b'\\\\x00ff\t{"x",NULL,"q\\\\"\\\\\\\\"}\t{"1","2"}\n',
        b"\\N\t\\N\t{NULL}\n",
        b"\\\\x\t{}\t\\N\n",
        b'\\\\x7a\t{"NULL"}\t{"3"}\n',
    ]
    assert copy_text(rows.slice(offset)) == b"".join(lines[offset:])


def test_memory_for_a_piece_does_not_depend_on_the_batch_that_it_is_of() -> None:
    """Of Spark's batches with more than a gibibyte of binary values, the bounds of all would not fit into 32 bits."""
    rows = batch(b=pyarrow.array([bytes([number]) * 100_000 for number in range(200)]))
    tracemalloc.start()
    try:
        text = copy_text(rows.slice(150, 2))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert text == b"".join(b"\\\\x" + b"%02x" % number * 100_000 + b"\n" for number in (150, 151))
    assert peak < 4_000_000


def test_null_arrays_over_values_do_not_move_their_neighbours() -> None:
    values = pyarrow.array(["a", "b", "c", "d"])
    arrays = pyarrow.ListArray.from_arrays([0, 1, 3, 4], values, mask=pyarrow.array([False, True, False]))
    assert copy_text(batch(a=arrays)) == b'{"a"}\n\\N\n{"d"}\n'


def test_random_text_survives() -> None:
    chosen = random.Random(4)
    alphabet = "ab\\\t\n\rN.é𝄞\"'"
    texts = ["".join(chosen.choices(alphabet, k=chosen.randrange(8))) for _ in range(2_000)]
    lines = copy_text(batch(a=texts, b=texts[::-1])).decode().splitlines(keepends=False)
    unescaped = {"t": "\t", "n": "\n", "r": "\r", "\\": "\\"}

    def read(field: str) -> str:
        found, at = "", 0
        while at < len(field):
            step = 2 if field[at] == "\\" else 1
            found += unescaped[field[at + 1]] if step == 2 else field[at]
            at += step
        return found

    fields = [line.split("\t") for line in lines]
    assert [read(first) for first, _ in fields] == texts
    assert [read(second) for _, second in fields] == texts[::-1]


def test_a_float_has_the_digits_of_its_value() -> None:
    single = pyarrow.array([0.1, None, 1.5], pyarrow.float32())
    assert copy_text(batch(f=single)) == b"0.10000000149011612\n\\N\n1.5\n"
    assert copy_text(batch(f=pyarrow.array([[0.1]], pyarrow.list_(pyarrow.float32())))) == b'{"0.10000000149011612"}\n'


def test_times_far_away_have_a_text_that_the_server_reads() -> None:
    day, time = (
        pyarrow.array([11_248_738], pyarrow.date32()),
        pyarrow.array([2**63 - 1], pyarrow.timestamp("us", "UTC")),
    )
    arrays = pyarrow.array([[11_248_738]], pyarrow.list_(pyarrow.date32()))
    line = b'32768-01-01\t294247-01-10 04:00:54.775807\t{"32768-01-01"}\n'
    assert copy_text(batch(d=day, t=time, a=arrays)) == line
