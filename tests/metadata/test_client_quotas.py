from typing import Any

import pytest

from einmal.metadata.client_quotas import (
    MATCH_DEFAULT,
    MATCH_EXACT,
    MATCH_SPECIFIED,
    QuotaChange,
    QuotaFilter,
    QuotaResult,
    matching,
    problem_of_filter,
)
from einmal.types import ErrorCode
from tests.metadata.cluster import Cluster

PRODUCE = "producer_byte_rate"
ALICE = (("user", "alice"),)


def alter(cluster: Cluster, entity: Any, **values: Any) -> QuotaResult:
    return cluster.done(cluster.controller.alter_client_quotas([QuotaChange(entity, values)]))[0]


def matched(cluster: Cluster, *filters: tuple[str, int, str | None], strict: bool = False) -> list[Any]:
    wanted = [QuotaFilter(*each) for each in filters]
    assert problem_of_filter(wanted) == QuotaResult()
    found = matching(cluster.image.client_quotas, wanted, strict=strict)
    return [tuple(tuple(part) for part in each[0]) for each in found if each is not None]


def test_a_quota_is_set_changed_and_removed() -> None:
    cluster = Cluster()
    assert alter(cluster, ALICE, producer_byte_rate=5.0, request_percentage=1.5) == QuotaResult()
    assert list(cluster.image.client_quotas.entities.values()) == [{PRODUCE: 5.0, "request_percentage": 1.5}]
    assert alter(cluster, ALICE, producer_byte_rate=None) == QuotaResult()
    assert list(cluster.image.client_quotas.entities.values()) == [{"request_percentage": 1.5}]
    assert alter(cluster, ALICE, request_percentage=None, consumer_byte_rate=None) == QuotaResult()
    assert not cluster.image.client_quotas
    assert not cluster.image.client_quotas.has("request_percentage")


def test_the_parts_of_an_entity_have_no_order() -> None:
    cluster = Cluster()
    alter(cluster, (("user", "a"), ("client-id", None)), producer_byte_rate=5.0)
    alter(cluster, (("client-id", None), ("user", "a")), producer_byte_rate=6.0)
    assert cluster.image.client_quotas.entities == {(("client-id", None), ("user", "a")): {PRODUCE: 6.0}}


def test_validating_changes_nothing() -> None:
    cluster = Cluster()
    change = QuotaChange(ALICE, {PRODUCE: 1.0})
    assert cluster.done(cluster.controller.alter_client_quotas([change], validate_only=True)) == [QuotaResult()]
    assert not cluster.image.client_quotas


def test_one_bad_value_leaves_an_entity_and_no_other_as_it_was() -> None:
    cluster = Cluster()
    changes = [
        QuotaChange(ALICE, {PRODUCE: 1.0, "consumer_byte_rate": -1.0}),
        QuotaChange((("user", "bob"),), {PRODUCE: 1.0}),
    ]
    results = cluster.done(cluster.controller.alter_client_quotas(changes))
    assert [result.error for result in results] == [ErrorCode.invalid_request, ErrorCode.none]
    assert list(cluster.image.client_quotas.entities) == [(("user", "bob"),)]


@pytest.mark.parametrize(
    ("entity", "values", "problem"),
    [
        ((), {}, "empty client quota entity"),
        ((("user", "a"), ("user", "b")), {}, "duplicate"),
        ((("group", "a"),), {}, "Unhandled client quota entity type: group"),
        ((("user", ""),), {}, "Empty user"),
        ((("user", "x" * 1_025),), {}, "1024 bytes"),
        ((("ip", "localhost"),), {}, "not a valid IP"),
        ((("ip", "::1"), ("user", "a")), {}, "should not be used with"),
        (ALICE, {"connection_creation_rate": 1.0}, "Invalid configuration key"),
        ((("ip", None),), {PRODUCE: 1.0}, "Invalid configuration key"),
        (ALICE, {PRODUCE: 0.0}, "greater than 0"),
        (ALICE, {PRODUCE: float("nan")}, "greater than 0"),
        (ALICE, {"request_percentage": float("inf")}, "greater than 0"),
        (ALICE, {PRODUCE: 1.5}, "fractional"),
        (ALICE, {PRODUCE: 2.0**64}, "too large"),
        ((("ip", "::1"),), {"connection_creation_rate": 2.0**31}, "too large"),
    ],
)
def test_a_senseless_quota_is_refused(entity: Any, values: dict[str, float], problem: str) -> None:
    cluster = Cluster()
    result = alter(cluster, entity, **values)
    assert result.error is ErrorCode.invalid_request
    assert problem in (result.message or "")
    assert not cluster.image.client_quotas


def test_removing_a_key_that_is_unknown_changes_nothing() -> None:
    cluster = Cluster()
    before = len(cluster.log)
    assert alter(cluster, ALICE, unknown=None) == QuotaResult()
    assert len(cluster.log) == before


def test_the_most_specific_quota_applies() -> None:
    cluster = Cluster()
    in_order: list[Any] = [
        ((("user", "u"), ("client-id", "c")), ("u", "c")),
        ((("user", "u"), ("client-id", None)), ("u", "c")),
        ((("user", "u"),), ("u", None)),
        ((("user", None), ("client-id", "c")), ("u", "c")),
        ((("user", None), ("client-id", None)), ("u", "c")),
        ((("user", None),), ("u", None)),
        ((("client-id", "c"),), (None, "c")),
        ((("client-id", None),), (None, "c")),
    ]
    for value, (entity, _shared) in enumerate(in_order, 1):
        alter(cluster, entity, producer_byte_rate=float(value))
    quotas = cluster.image.client_quotas
    for value, (entity, shared) in enumerate(in_order, 1):
        assert quotas.limit_of(PRODUCE, "u", "c") == (float(value), *shared)
        assert quotas.limit_of("consumer_byte_rate", "u", "c") is None
        alter(cluster, entity, producer_byte_rate=None)
    assert quotas.limit_of(PRODUCE, "u", "c") is None


def test_a_client_without_an_id_has_the_default_of_client_ids() -> None:
    cluster = Cluster()
    alter(cluster, (("client-id", None),), producer_byte_rate=1.0)
    assert cluster.image.client_quotas.limit_of(PRODUCE, "u", "") == (1.0, None, "")


def test_an_address_has_its_own_connection_rate_however_it_is_written_or_the_default() -> None:
    cluster = Cluster()
    alter(cluster, (("ip", "0:0::1"),), connection_creation_rate=1.0)
    quotas = cluster.image.client_quotas
    assert (quotas.connection_rate_of("::1"), quotas.connection_rate_of("127.0.0.1")) == (1.0, None)
    alter(cluster, (("ip", None),), connection_creation_rate=2.0)
    assert (quotas.connection_rate_of("::1"), quotas.connection_rate_of("127.0.0.1")) == (1.0, 2.0)


def test_a_filter_finds_entities_by_name_default_and_type() -> None:
    cluster = Cluster()
    alice_app, default, app, address = (
        (("client-id", "app"), ("user", "alice")),
        (("user", None),),
        (("client-id", "app"),),
        (("ip", "::1"),),
    )
    for entity in (ALICE, alice_app, default, app):
        alter(cluster, entity, producer_byte_rate=1.0)
    alter(cluster, address, connection_creation_rate=1.0)
    assert matched(cluster) == [ALICE, alice_app, default, app, address]
    assert matched(cluster, strict=True) == []
    assert matched(cluster, ("user", MATCH_EXACT, "alice")) == [ALICE, alice_app]
    assert matched(cluster, ("user", MATCH_EXACT, "alice"), strict=True) == [ALICE]
    assert matched(cluster, ("user", MATCH_DEFAULT, None)) == [default]
    assert matched(cluster, ("user", MATCH_SPECIFIED, None)) == [ALICE, alice_app, default]
    assert matched(cluster, ("user", MATCH_SPECIFIED, None), ("client-id", MATCH_EXACT, "app")) == [alice_app]
    assert matched(cluster, ("ip", MATCH_EXACT, "0:0::1")) == [address]
    assert matched(cluster, ("ip", MATCH_EXACT, "nowhere")) == []


@pytest.mark.parametrize(
    ("filters", "error"),
    [
        ([("", MATCH_EXACT, "a")], ErrorCode.invalid_request),
        ([("group", MATCH_EXACT, "a")], ErrorCode.unsupported_version),
        ([("user", MATCH_EXACT, None)], ErrorCode.invalid_request),
        ([("user", MATCH_DEFAULT, "a")], ErrorCode.invalid_request),
        ([("user", 3, None)], ErrorCode.invalid_request),
        ([("user", MATCH_EXACT, "a"), ("user", MATCH_DEFAULT, None)], ErrorCode.invalid_request),
        ([("user", MATCH_EXACT, "a"), ("ip", MATCH_DEFAULT, None)], ErrorCode.invalid_request),
    ],
)
def test_a_senseless_filter_is_refused(filters: list[tuple[str, int, str | None]], error: ErrorCode) -> None:
    assert problem_of_filter([QuotaFilter(*each) for each in filters]).error is error
