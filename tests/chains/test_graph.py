"""Claims about the graph of a chain: what is connected, and what is promised from end to end."""

from __future__ import annotations

import itertools

import pytest

from einmal.chains.drawing import svg, text
from einmal.chains.graph import CircularChain, Link, LinkKind, Location, LocationKind, chain_of
from einmal.chains.lags import LinkLag, end_to_end
from einmal.options.guarantees import NONE, UNKNOWN
from einmal.options.sink import AT_LEAST_ONCE, AT_MOST_ONCE, EXACTLY_ONCE

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


def test_a_link_that_may_lose_behind_one_that_may_repeat_guarantees_nothing() -> None:
    repeats = Link(name="a", kind=LinkKind.PIPELINE, inputs=(RAW,), outputs=(CLEAN,), guarantee=AT_LEAST_ONCE)
    loses = Link(name="b", kind=LinkKind.PIPELINE, inputs=(CLEAN,), outputs=(TABLE,), guarantee=AT_MOST_ONCE)
    assert chain_of([repeats, loses]).guarantee_of(TABLE) == NONE
    beside = Link(name="c", kind=LinkKind.PIPELINE, inputs=(RAW,), outputs=(CLEAN,), guarantee=AT_MOST_ONCE)
    assert chain_of([repeats, beside]).guarantee_of(CLEAN) == NONE


def test_dead_letters_are_outputs_and_a_link_that_repairs_them_makes_no_circle() -> None:
    letters = Location("A", "bad")
    loads = Link(
        name="loads",
        kind=LinkKind.PIPELINE,
        inputs=(RAW,),
        outputs=(CLEAN,),
        dead_letters=(letters,),
        guarantee=AT_LEAST_ONCE,
    )
    shows = Link(name="shows", kind=LinkKind.PIPELINE, inputs=(letters,), outputs=(TABLE,))
    assert chain_of([shows, loads]).guarantee_of(TABLE) == AT_LEAST_ONCE
    repairs = Link(name="repairs", kind=LinkKind.PIPELINE, inputs=(letters,), outputs=(RAW,))
    chain = chain_of([loads, repairs])
    assert {step.link.name: step.guarantee for step in chain.steps} == {
        "repairs": AT_LEAST_ONCE,
        "loads": AT_LEAST_ONCE,
    }


def test_topics_that_rows_name_are_an_end_of_which_nothing_is_known() -> None:
    named = Location("A", "topics that each row names", LocationKind.NAMED_BY_ROWS)
    chain = chain_of([Link(name="x", kind=LinkKind.PIPELINE, inputs=(RAW,), outputs=(named, CLEAN))])
    assert chain.ends == [CLEAN, named]
    assert (chain.guarantee_of(CLEAN), chain.guarantee_of(named)) == (EXACTLY_ONCE, UNKNOWN)


def test_a_lag_from_end_to_end_names_the_links_of_which_it_is_not_known() -> None:
    reader = Link(name="reader", kind=LinkKind.PIPELINE, inputs=(CLEAN,), outputs=(TABLE,))
    chain = chain_of([CLEANER, reader])
    started = {CLEANER: LinkLag(3, 5.0), reader: LinkLag(why="nothing committed yet")}
    assert str(end_to_end(chain, TABLE, started)) == (
        "lag 3 or more, oldest record 5 s old; lag unknown: reader (nothing committed yet)"
    )
    idle = started | {CLEANER: LinkLag(0, 0.0)}
    assert str(end_to_end(chain, TABLE, idle)) == "lag 0 or more; lag unknown: reader (nothing committed yet)"
    neither = started | {CLEANER: LinkLag(why="lag unknown: it reads no topics")}
    assert str(end_to_end(chain, TABLE, neither)) == (
        "lag unknown: cleaner (it reads no topics), reader (nothing committed yet)"
    )
    assert str(end_to_end(chain, TABLE, {CLEANER: LinkLag(3, 5.0), reader: LinkLag(4, 2.0)})) == (
        "lag 7, oldest record 7 s old"
    )


def test_two_links_of_one_name_have_a_lag_each() -> None:
    other = Link(name="cleaner", kind=LinkKind.PIPELINE, inputs=(CLEAN,), outputs=(TABLE,))
    chain = chain_of([CLEANER, other])
    assert end_to_end(chain, TABLE, {CLEANER: LinkLag(3, 5.0), other: LinkLag(0, 0.0)}).offsets == 3
    lines = "\n".join(text(chain, {CLEANER: "lag 3", other: "lag 0"}))
    assert "exactly_once_v2; lag 3" in lines and "exactly_once_v2; lag 0" in lines


def test_whoever_reads_uncommitted_repeats_what_the_link_before_aborts() -> None:
    reader = Link(name="cleaner", kind=LinkKind.PIPELINE, inputs=(RAW,), outputs=(CLEAN,), reads_uncommitted=True)
    chain = chain_of([INGESTER, reader])
    assert (chain.steps[1].guarantee, chain.guarantee_of(CLEAN)) == (AT_LEAST_ONCE, AT_LEAST_ONCE)
    assert "read_uncommitted" in chain.steps[1].why
    # Who writes to the first topic of a chain may abort, too.
    assert chain_of([reader]).guarantee_of(CLEAN) == AT_LEAST_ONCE


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


def test_links_that_repair_dead_letters_lie_before_what_is_behind_them_in_any_order() -> None:
    letters, report = Location("A", "bad"), Location("A", "report")
    loads = Link(name="loads", kind=LinkKind.PIPELINE, inputs=(RAW,), outputs=(CLEAN,), dead_letters=(letters,))
    repairs = Link(name="repairs", kind=LinkKind.PIPELINE, inputs=(letters,), outputs=(RAW,))
    reports = Link(name="reports", kind=LinkKind.PIPELINE, inputs=(letters,), outputs=(report,))
    for links in itertools.permutations([loads, repairs, reports]):
        chain = chain_of(links)
        assert {step.link.name for step in chain.upstream(report)} == {"loads", "repairs", "reports"}
        assert {step.link.name for step in chain.upstream(CLEAN)} == {"loads", "repairs"}


def test_a_pipeline_of_several_steps_is_no_circle_and_a_mirror_onto_itself_is() -> None:
    steps = Link(name="steps", kind=LinkKind.PIPELINE, inputs=(RAW, CLEAN), outputs=(CLEAN, TABLE))
    chain = chain_of([INGESTER, steps])
    assert [step.link.name for step in chain.upstream(TABLE)] == ["logs", "steps"]
    mirror = Link(name="A->A", kind=LinkKind.MIRROR, inputs=(RAW,), copies=lambda location: location)
    with pytest.raises(CircularChain):
        chain_of([mirror])


def test_a_circle_is_named() -> None:
    back = Link(name="back", kind=LinkKind.PIPELINE, inputs=(CLEAN,), outputs=(RAW,))
    with pytest.raises(CircularChain, match=r"cleaner|back"):
        chain_of([CLEANER, back])


def test_the_text_names_every_location_and_link() -> None:
    lines = "\n".join(text(chain_of([INGESTER, CLEANER, MIRROR, TOTALS]), {CLEANER: "lag 7"}))
    assert "/var/log/*.log [files, host]  -->  raw [topic, A]" in lines
    assert "clean [topic, A]  ~~>  A.clean [topic, B]" in lines
    assert "pipeline cleaner: exactly_once_v2; lag 7" in lines


def test_the_picture_has_every_location_and_escapes_their_names() -> None:
    odd = Location("A", "<b>&")
    picture = svg(chain_of([CLEANER, Link(name="x", kind=LinkKind.PIPELINE, inputs=(CLEAN,), outputs=(odd,))]), {})
    assert picture.startswith("<svg ") and picture.rstrip().endswith("</svg>")
    assert picture.count("<rect ") == 3
    assert "&lt;b&gt;&amp;" in picture and "<b>" not in picture
