"""Claims about a broker that is killed with -9, again and again, while real clients write and read.

Four kinds of client (``load.py``) run as processes throughout. ``EINMAL_KILLS`` is how often the broker dies; the
default is 3.
"""

from __future__ import annotations

import json
import os
import random
import time
from pathlib import Path
from typing import Final

import pytest

from tests.interop.einmal_broker import EinmalBroker
from tests.interop.topics import Broker, create_topic
from tests.system.clients import (
    Part,
    committed_so_far,
    everybody_gets_something_done,
    finish,
    judge,
    load_on,
    no_transaction_is_left_open,
    read_all,
    until,
)
from tests.system.load import PARTITIONS, TOPICS

pytestmark = [pytest.mark.system, pytest.mark.slow]

KILLS: Final = int(os.environ.get("EINMAL_KILLS", "3"))
SEED: Final = 20_261
_UNREST_S: Final = 0.7
_LOAD: Final = (
    *(Part("idempotent", seed) for seed in range(2)),
    *(Part("transactional", seed) for seed in range(2)),
    Part("copier", 0),
    Part("reader", 0),
)
_FLUSH: Final = {"page-cache": {}, "every-message": {"log.flush.interval.messages": "1"}}


@pytest.mark.parametrize("flush", ["page-cache", pytest.param("every-message", marks=pytest.mark.long)])
def test_nothing_acknowledged_is_lost_doubled_or_torn_by_kill_9(tmp_path: Path, flush: str) -> None:
    chance = random.Random(SEED)
    broker = EinmalBroker(tmp_path / "broker", _FLUSH[flush])
    broker.start()
    restarts = []
    try:
        for topic in TOPICS:
            create_topic(Broker(broker.host, broker.port), topic, PARTITIONS)
        with load_on(broker.bootstrap, tmp_path, _LOAD) as clients:
            for _ in range(KILLS):
                everybody_gets_something_done(clients)
                time.sleep(chance.uniform(0, _UNREST_S))
                broker.kill()
                began = time.monotonic()
                broker.start()
                restarts.append(time.monotonic() - began)
            everybody_gets_something_done(clients)
            until(lambda: committed_so_far(clients) > KILLS)
            reports = finish(clients)
        no_transaction_is_left_open(lambda _topic, _index: Broker(broker.host, broker.port))
        values = read_all(broker.bootstrap)
    finally:
        broker.stop()
    counts = judge(values, reports)
    assert counts["transactions"]["committed"] > KILLS
    figures = {
        "kills": KILLS,
        "flush": flush,
        **counts,
        "restart_s_max": round(max(restarts, default=0), 2),
        "restart_s_mean": round(sum(restarts) / max(1, len(restarts)), 2),
    }
    (tmp_path / "figures.json").write_text(json.dumps(figures))
    print(json.dumps(figures))
