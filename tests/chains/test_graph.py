"""Claims about the graph of a chain: what is connected, and what is promised from end to end."""

from __future__ import annotations

import pytest

from einmal.chains.drawing import svg, text
from einmal.chains.graph import (
    AT_LEAST_ONCE,
    EXACTLY_ONCE,
    UNKNOWN,
    CircularChain,
    Link,
    LinkKind,
    Location,
    LocationKind,
    chain_of,
)

LOGS = Location("host", "/var/log/*.log", LocationKind.FILES)
RAW = Location("A", "raw")
CLEAN = Location("A", "clean")
COPY = Location("B", "A.clean")
TABLE = Location("db", "public.totals", LocationKind.TABLE)


def prefixed(location: Location) -> Location | None:
    return Location("B", f"A.{location.name}") if location.name == "clean" else None


INGESTER = Link(name="logs", kind=LinkKind.INGESTER, inputs=(LOGS,), outputs=(RAW,))
CLEANER = Link(name="cleaner", kind=LinkKind.PIPELINE, inputs=(RAW,), outputs=(CLEAN,))
MIRROR = Link(name="A->B", kind=LinkKind.MIRROR, patterns=(("A", ".*"),), copies=prefixed)
TOTALS = Link(name="totals", kind=LinkKind.PIPELINE, patterns=(("B", r"A\..*"),), outputs=(TABLE,))


def test_links_are_connected_through_mirrors_and_patterns_whatever_their_order() -> None:
    for links in ([INGESTER, CLEANER, MIRROR, TOTALS], [TOTALS, MIRROR, CLEANER, INGESTER]):
        chain = chain_of(links)
        assert [step.link.name for step in chain.steps] == ["logs", "cleaner", "A->B", "totals"]
        assert [step.inputs for step in chain.steps] == [(LOGS,), (RAW,), (CLEAN,), (COPY,)]
        assert chain.ends == [TABLE]
        assert chain.guarantee_of(TABLE) == EXACTLY_ONCE
        assert [chain.depths[each] for each in (LOGS, RAW, CLEAN, COPY, TABLE)] == [0, 1, 2, 3, 4]


def test_a_weak_link_weakens_all_behind_it_and_nothing_before() -> None:
    weak = Link(name="cleaner", kind=LinkKind.PIPELINE, inputs=(RAW,), outputs=(CLEAN,), guarantee=AT_LEAST_ONCE)
    chain = chain_of([INGESTER, weak, MIRROR, TOTALS])
    assert [step.guarantee for step in chain.steps] == [EXACTLY_ONCE, AT_LEAST_ONCE, AT_LEAST_ONCE, AT_LEAST_ONCE]
    assert [step.why for step in chain.steps] == [
        "",
        "promises no more by itself",
        "so does a link before",
        "so does a link before",
    ]


def test_whoever_reads_uncommitted_repeats_what_the_link_before_aborts() -> None:
    reader = Link(name="cleaner", kind=LinkKind.PIPELINE, inputs=(RAW,), outputs=(CLEAN,), reads_uncommitted=True)
    chain = chain_of([INGESTER, reader])
    assert (chain.steps[1].guarantee, chain.guarantee_of(CLEAN)) == (AT_LEAST_ONCE, AT_LEAST_ONCE)
    assert "read_uncommitted" in chain.steps[1].why
    # Alone, it reads what is nobody's output here.
    assert chain_of([reader]).guarantee_of(CLEAN) == EXACTLY_ONCE


def test_topics_that_are_written_by_a_pattern_are_those_that_are_read_or_found() -> None:
    capture = Link(name="shop", kind=LinkKind.INGESTER, inputs=(TABLE,), writes=(("A", r"shop\..*"),))
    orders, items = Location("A", "shop.public.orders"), Location("A", "shop.public.items")
    reader = Link(name="reader", kind=LinkKind.PIPELINE, inputs=(orders,), outputs=(CLEAN,))
    assert chain_of([reader, capture], [items]).steps[0].outputs == (items, orders)


def test_two_links_into_one_location_promise_what_the_weaker_one_does() -> None:
    other = Link(name="other", kind=LinkKind.PIPELINE, inputs=(RAW,), outputs=(CLEAN,), guarantee=UNKNOWN)
    assert chain_of([CLEANER, other]).guarantee_of(CLEAN) == UNKNOWN


def test_what_lies_before_a_location_is_found_in_order() -> None:
    other = Link(name="other", kind=LinkKind.PIPELINE, inputs=(RAW,), outputs=(Location("A", "else"),))
    chain = chain_of([TOTALS, MIRROR, other, CLEANER, INGESTER])
    assert [step.link.name for step in chain.upstream(TABLE)] == ["logs", "cleaner", "A->B", "totals"]


def test_a_circle_is_named() -> None:
    back = Link(name="back", kind=LinkKind.PIPELINE, inputs=(CLEAN,), outputs=(RAW,))
    with pytest.raises(CircularChain, match=r"cleaner|back"):
        chain_of([CLEANER, back])


def test_the_text_names_every_location_and_link() -> None:
    lines = "\n".join(text(chain_of([INGESTER, CLEANER, MIRROR, TOTALS]), {"cleaner": "lag 7"}))
    assert "/var/log/*.log [files, host]  -->  raw [topic, A]" in lines
    assert "clean [topic, A]  ~~>  A.clean [topic, B]" in lines
    assert "pipeline cleaner: exactly_once_v2; lag 7" in lines


def test_the_picture_has_every_location_and_escapes_their_names() -> None:
    odd = Location("A", "<b>&")
    picture = svg(chain_of([CLEANER, Link(name="x", kind=LinkKind.PIPELINE, inputs=(CLEAN,), outputs=(odd,))]), {})
    assert picture.startswith("<svg ") and picture.rstrip().endswith("</svg>")
    assert picture.count("<rect ") == 3
    assert "&lt;b&gt;&amp;" in picture and "<b>" not in picture
