"""What files of pipelines, ingesters and mirrors declare, as links of one chain."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from einmal.chains.declared import BrokenSection, DeclaredLink, declared_links
from einmal.chains.graph import LinkKind, Location, LocationKind, chain_of
from einmal.chains.lags import lag_of
from einmal.options.guarantees import NONE, UNKNOWN
from einmal.options.sink import AT_LEAST_ONCE, AT_MOST_ONCE, EXACTLY_ONCE

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


READER = """
"transactional.id" = "reader"
checkpointLocation = "/tmp/reader"
kafka.bootstrap.servers = "a:9092"

[sources.clean]
subscribe = "clean"

[sinks.copy]
from = "clean"
topic = "copy"
"""


@pytest.mark.parametrize(
    ("source", "guarantee"),
    [
        ('format = "socket"\nhost = "h"\nport = 1', AT_MOST_ONCE),
        ('format = "somebodys"', UNKNOWN),
        ('subscribe = "raw"\nfailOnDataLoss = false', AT_MOST_ONCE),
        ('subscribe = "raw"\nkafka.isolation.level = "read_uncommitted"', AT_LEAST_ONCE),
        ('subscribe = "raw"\nkafka.isolation.level = "read_uncommitted"\nfailOnDataLoss = false', NONE),
    ],
)
def test_a_chain_promises_no_more_than_the_source_of_its_first_link(source: str, guarantee: str) -> None:
    first = PIPELINE.replace('subscribe = "raw"', source)
    chain = chain_of([each.link for each in links(READER, first)])
    assert [step.guarantee for step in chain.steps] == [guarantee, guarantee]
    assert (chain.steps[0].why, chain.steps[1].why) == (f"{guarantee} by its source raw", "so does a link before")


DECODED = """subscribe = "raw"
value.format = "json"
value.schema = '{"type": "object"}'
errors.tolerance = "all"
errors.deadletterqueue.topic.name = "bad"
"""


def test_dead_letters_are_read_by_links_behind() -> None:
    weak = PIPELINE.replace('subscribe = "raw"', DECODED).replace(
        "\n[sources", "\nprocessing.guarantee = 'at_least_once'\n[sources"
    )
    repairs = READER.replace('subscribe = "clean"', 'subscribe = "bad"')
    chain = chain_of([each.link for each in links(repairs, weak)])
    assert chain.guarantee_of(Location("a:9092", "copy")) == AT_LEAST_ONCE
    # Where a bad row stops the pipeline there are none.
    stops = PIPELINE.replace('subscribe = "raw"', DECODED.replace('"all"', '"none"'))
    assert not links(stops)[0].link.dead_letters


def test_dead_letters_beside_a_database_are_in_the_cluster_of_the_source() -> None:
    source = DECODED.replace('"raw"', '"clean"')
    rejecting = 'errors.tolerance = "all"\nerrors.deadletterqueue.topic.name = "rejected"\n'
    text = TO_DATABASE.replace('subscribePattern = "A\\\\..*"', source) + rejecting
    assert "errors" in text
    (link,) = links(text)
    assert set(link.link.dead_letters) == {Location("b:9092", "bad"), Location("b:9092", "rejected")}


def test_a_link_whose_rows_name_their_topics_ends_in_what_is_not_known() -> None:
    chain = chain_of([each.link for each in links(PIPELINE.replace('topic = "clean"\n', ""))])
    (end,) = chain.ends
    assert (end.kind, chain.guarantee_of(end)) == (LocationKind.NAMED_BY_ROWS, UNKNOWN)


def test_of_several_databases_the_last_to_commit_has_the_record_of_the_link() -> None:
    second = TO_DATABASE.partition("[sinks.totals]")[2].replace("totals.db", "other.db")
    assert [each.record for each in links(TO_DATABASE + "[sinks.other]" + second)] == ["totals/other"]


@pytest.mark.parametrize("guarantee", ["at_least_once", "at_most_once"])
def test_the_lag_of_a_link_without_commit_record_is_unknown(guarantee: str) -> None:
    weak = PIPELINE.replace("\n[sources", f"\nprocessing.guarantee = '{guarantee}'\n[sources")
    (link,) = links(weak)
    assert link.record is None
    assert "in its checkpoint alone" in str(lag_of(link))


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
