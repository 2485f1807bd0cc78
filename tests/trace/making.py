"""Exchanges by hand, in seconds from 0."""

from __future__ import annotations

from typing import Any

from einmal.trace.exchanges import Exchange, ExchangePart, SeenMarker


def asked(api: str, sent_at: float, took: float | None = 0.001, **fields: Any) -> Exchange:
    answered_at = None if took is None else sent_at + took
    identity = {} if api == "Fetch" else {"transactional_id": "id", "producer_id": 7, "producer_epoch": 0}
    return Exchange(api, sent_at, answered_at, fields.pop("broker", 1), "client", **{**identity, **fields})


def produced(sent_at: float, offset: int, records: int = 1, topic: str = "t", **fields: Any) -> Exchange:
    return asked("Produce", sent_at, parts=(ExchangePart(topic, 0, records, offset),), **fields)


def fetched(sent_at: float, stable: int, topic: str = "t", took: float = 0.001, marker: bool | None = None) -> Exchange:
    """``marker``: committed or not, right below the last stable offset."""
    markers = () if marker is None else (SeenMarker(7, stable - 1, marker),)
    return asked("Fetch", sent_at, took, parts=(ExchangePart(topic, 0, last_stable_offset=stable, markers=markers),))


def ended(sent_at: float, took: float | None = 0.001, committed: bool = True, **fields: Any) -> Exchange:
    return asked("EndTxn", sent_at, took, committed=committed, **fields)
