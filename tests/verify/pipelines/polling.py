"""Change data capture by looking: a version between two looks is lost, and so is a deleted row."""

from __future__ import annotations

import json
import os
import time

import psycopg

from tests.verify.pipelines import OUTPUT, opened_producer

producer = opened_producer()
seen: dict[int, int] = {}
with psycopg.connect(os.environ["INPUT_DATABASE"], autocommit=True) as connection:
    while True:
        for key, amount in connection.execute(f"SELECT id, amount FROM {os.environ['INPUT_TABLE']}"):
            if seen.get(key) != amount:
                change = {"op": "u" if key in seen else "c", "after": {"amount": amount}}
                producer.produce(OUTPUT, json.dumps(change), json.dumps({"id": key}))
                seen[key] = amount
        producer.flush()
        time.sleep(0.5)
