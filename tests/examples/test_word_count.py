"""Claims about examples/word_count, by its README's own commands."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from itertools import pairwise

import pytest

from tests.examples.readme import ROOT, Reader, records_printed
from tests.spark.topics import records

pytestmark = [pytest.mark.spark, pytest.mark.long]

EXAMPLE = ROOT / "examples" / "word_count"


def test_every_word_is_counted_once_by_a_pipeline_that_is_killed(reader: Reader) -> None:
    reader.follow(EXAMPLE / "README.md", kill_in="pipeline.toml")
    expected = Counter(re.findall("[a-z]+", (ROOT / "LICENSE").read_text().lower()))
    for topic in ("word-counts", "word-counts-py"):
        history = defaultdict(list)
        for _, record in records(reader.bootstrap, topic):
            history[(record.key or b"").decode()].append(int(record.value or b""))
        assert {word: counts[-1] for word, counts in history.items()} == expected
        # No batch is in twice.
        assert all(before < after for counts in history.values() for before, after in pairwise(counts))
        assert sum(map(len, history.values())) == records_printed(EXAMPLE / "README.md", "pipeline.toml")
    assert (reader.folder / "build/examples/word-counts.svg").read_text() == (EXAMPLE / "result.svg").read_text()
