"""View from outside while the demo runs: records that readers see, and who leads and coordinates."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Final

from einmal.client import Admin, Consumer, KafkaError
from einmal.demo.brokers import Brokers, coordinator, leaders
from einmal.demo.pipeline_names import CONTROL, EXACTLY_ONCE, SENTENCES, transactional_id
from einmal.demo.timeline import Parts, Timeline
from einmal.demo.topics import reader

_PACE_S: Final = 0.2
_LAST_LOOK_MS: Final = 200
_SERIES: Final = {EXACTLY_ONCE: "words counted, exactly once", CONTROL: "words counted, at least once"}


@contextmanager
def watching(
    brokers: Brokers, timeline: Timeline, now: Callable[[], float], loaded: Callable[[], float], words: int
) -> Iterator[None]:
    """Fill the timeline until the block ends. ``loaded``: the acknowledged share of the input."""
    is_over = threading.Event()
    threads = [
        threading.Thread(target=_watch_records, args=(brokers, timeline, now, loaded, words, is_over), daemon=True),
        threading.Thread(target=_watch_parts, args=(brokers, timeline, now, is_over), daemon=True),
    ]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        is_over.set()
        for thread in threads:
            thread.join()


def _watch_records(
    brokers: Brokers,
    timeline: Timeline,
    now: Callable[[], float],
    loaded: Callable[[], float],
    words: int,
    is_over: threading.Event,
) -> None:
    readers: dict[str, Consumer] = {}
    totals = dict.fromkeys(_SERIES, 0)

    def look(timeout_ms: int) -> None:
        timeline.series["sentences acknowledged"].append((now(), loaded()))
        for topic, name in _SERIES.items():
            with suppress(KafkaError):
                if topic not in readers:
                    readers[topic] = reader(brokers.bootstrap_servers, topic)
                while records := readers[topic].poll(timeout_ms):
                    totals[topic] += sum(int(record.value or 0) for record in records)
                timeline.series[name].append((now(), totals[topic] / words))

    while not is_over.wait(_PACE_S):
        look(0)
    look(_LAST_LOOK_MS)
    for consumer in readers.values():
        consumer.close()


def _watch_parts(brokers: Brokers, timeline: Timeline, now: Callable[[], float], is_over: threading.Event) -> None:
    with brokers.admin() as admin:
        while not is_over.wait(_PACE_S):
            with suppress(KafkaError):
                parts = Parts(now(), leaders(admin, SENTENCES), _coordinator(admin))
                last = timeline.parts[-1] if timeline.parts else None
                if last is None or (last.leads, last.coordinator) != (parts.leads, parts.coordinator):
                    timeline.parts.append(parts)


def _coordinator(admin: Admin) -> int | None:
    try:
        return coordinator(admin, transactional_id(EXACTLY_ONCE))
    except KafkaError:
        return None
