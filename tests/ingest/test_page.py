"""Claims about docs/ingest.md: its declaration and its program, as they stand."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

import pytest

from einmal.client import Admin, NewTopic
from einmal.ingest import Deduplicate, declaration
from einmal.ingest.files import FilesSource
from einmal.ingest.tables import TableSource
from tests.ingest.sources import committed
from tests.interop.einmal_broker import EinmalBroker

PAGE: Final = Path(__file__).parents[2] / "docs" / "ingest.md"
_BLOCK: Final = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks(language: str) -> list[str]:
    return [str(text) for found, text in _BLOCK.findall(PAGE.read_text()) if found == language]


@pytest.mark.system
def test_the_program_of_the_page_ingests_its_records_once(tmp_path: Path) -> None:
    broker = EinmalBroker(tmp_path / "broker")
    broker.start()
    try:
        with Admin({"bootstrap.servers": broker.bootstrap}) as admin:
            admin.create_topics([NewTopic("squares", num_partitions=1)])
        program = compile(blocks("python")[0].replace("127.0.0.1:9092", broker.bootstrap), str(PAGE), "exec")
        exec(program, {})
        exec(program, {})
        assert committed(broker.bootstrap, "squares", 1) == [[b"%d" % number**2 for number in range(10)]]
    finally:
        broker.stop()


def test_a_source_takes_ten_lines() -> None:
    source = blocks("python")[0].partition("class ")[2].partition("\n\n\n")[0]
    assert len(source.splitlines()) <= 10


def test_the_examples_of_the_page_are_one_valid_declaration() -> None:
    found = declaration.declared("".join(blocks("toml")), {"PGPASSWORD": "s3cret"}, lambda path: "")
    assert [type(each.source()) for each in found.values()] == [FilesSource, TableSource]
    assert found["orders"].deduplicate == Deduplicate("value.order_id", window_ms=3_600_000)
    assert {each.client["bootstrap.servers"] for each in found.values()} == {"127.0.0.1:9092"}


@pytest.mark.parametrize(
    ("heading", "names"),
    [
        ("## Files", declaration.FILES_OPTIONS),
        ("## Tables", declaration.TABLE_OPTIONS),
        ("## Duplicates", declaration.DEDUPLICATE_OPTIONS),
    ],
)
def test_the_page_lists_every_option(heading: str, names: tuple[str, ...]) -> None:
    section = PAGE.read_text().partition(heading)[2]
    rows = section.partition("| option |")[2].partition("\n\n")[0].splitlines()
    assert sorted(
        re.findall(r"`(.*?)`", " ".join(row.split("|")[1] for row in rows if row.startswith("| `")))
    ) == sorted(names)
