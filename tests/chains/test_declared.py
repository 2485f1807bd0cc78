"""What files of pipelines, ingesters and mirrors declare, as links of one chain."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from einmal.chains.declared import BrokenSection, DeclaredLink, declared_links
from einmal.chains.graph import AT_LEAST_ONCE, EXACTLY_ONCE, LinkKind, Location, LocationKind, chain_of

PIPELINE = """
"transactional.id" = "cleaner"
checkpointLocation = "/tmp/cleaner"
kafka.bootstrap.servers = "a:9092"

[sources.raw]
subscribe = "raw"

[sinks.clean]
from = "raw"
topic = "clean"
"""
TO_DATABASE = """
"transactional.id" = "totals"
checkpointLocation = "/tmp/totals"

[sources.clean]
kafka.bootstrap.servers = "b:9092"
subscribePattern = "A\\\\..*"

[sinks.totals]
from = "clean"
type = "sqlite"
path = "/data/totals.db"
table = "totals"
"""
INGESTERS = """
kafka.bootstrap.servers = "a:9092"

[ingest.logs]
type = "files"
path = "/var/log/*.log"
topic = "raw"
"""
MIRROR = """
clusters = ["A", "B"]
A.bootstrap.servers = "a:9092"
B.bootstrap.servers = "b:9092"
["A->B"]
topics = "clean"
"""


def links(*texts: str) -> list[DeclaredLink]:
    def system(client: Mapping[str, str]) -> str:
        return client["bootstrap.servers"]

    found = [each for text in texts for each in declared_links(text, {}, lambda path: "", system)]
    assert not [each for each in found if isinstance(each, BrokenSection)]
    return [each for each in found if isinstance(each, DeclaredLink)]


def test_files_of_every_kind_are_one_chain() -> None:
    chain = chain_of([each.link for each in links(TO_DATABASE, MIRROR, PIPELINE, INGESTERS)])
    assert [(step.link.kind, step.link.name) for step in chain.steps] == [
        (LinkKind.INGESTER, "logs"),
        (LinkKind.PIPELINE, "cleaner"),
        (LinkKind.MIRROR, "A->B"),
        (LinkKind.PIPELINE, "totals"),
    ]
    (end,) = chain.ends
    assert (end, end.kind) == (Location("/data/totals.db", "totals"), LocationKind.TABLE)
    assert chain.guarantee_of(end) == EXACTLY_ONCE


def test_a_source_of_sparks_own_reads_uncommitted_by_default() -> None:
    sparks = PIPELINE.replace('subscribe = "raw"', 'format = "kafka"\nsubscribe = "raw"')
    chain = chain_of([each.link for each in links(INGESTERS, sparks)])
    assert chain.steps[-1].guarantee == AT_LEAST_ONCE


def test_the_names_of_the_commit_records_are_those_of_the_links() -> None:
    assert [each.record for each in links(PIPELINE, INGESTERS, MIRROR)] == [
        "cleaner",
        "einmal-ingest-logs",
        "einmal-mirror-A-B",
    ]


@pytest.mark.parametrize(
    ("text", "whole", "broken"),
    [
        (
            MIRROR.replace('["A", "B"]', '["A", "B", "C"]').replace(
                '["A->B"]', 'C.bootstrap.servers = "c:9092"\nC.sasl.password = "${env:MISSING}"\n["A->B"]'
            )
            + '["A->C"]\ntopics = ".*"\n["B->A"]\nenabled = false\n["C->B"]\ntopics = ".*"\n',
            ["A->B"],
            ["A->C", "C->B"],
        ),
        (MIRROR + '["B->A"]\ntopic = ".*"\n', ["A->B"], ["B->A"]),
        (
            INGESTERS
            + '[ingest.shop]\ntype = "postgresql"\npassword = "${env:MISSING}"\n[ingest.odd]\ntype = "odd"\n'
            + PIPELINE.partition("\n\n")[2]
            + '[sinks.odd]\nfrom = "nothing"\n',
            ["logs"],
            ["ingest.shop", "ingest.odd", "pipeline"],
        ),
        ("ingest = 1\n" + PIPELINE, ["cleaner"], []),
        (PIPELINE + '[ingest.shop]\npassword = "${env:MISSING}"\n', ["cleaner"], ["ingest.shop"]),
    ],
)
def test_a_broken_section_keeps_no_other_from_being_a_link(text: str, whole: list[str], broken: list[str]) -> None:
    found = [*declared_links(text, {}, lambda path: "", lambda client: client["bootstrap.servers"])]
    assert [each.link.name for each in found if isinstance(each, DeclaredLink)] == whole
    assert [each.name for each in found if isinstance(each, BrokenSection)] == broken
