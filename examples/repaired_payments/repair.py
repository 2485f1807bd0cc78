"""Repair payments that were replayed to a topic of their own, and write them to the topic of all payments."""

import json
import os

from pyspark.sql import functions as F

from einmal.spark import pipeline


@pipeline(
    transactional_id="repair-payments",
    checkpointLocation="build/examples/repair-payments",
    kafka={"bootstrap.servers": os.environ.get("KAFKA_BROKERS", "127.0.0.1:9092")},
    sources={"broken": {"subscribe": "card-payments-repair", "startingOffsets": "earliest"}},
    sinks={"payments": {"topic": "card-payments"}},
)
def repair_payments(broken):
    return broken.select("key", F.udf(repaired, "string")(F.col("value").cast("string")).alias("value"))


def repaired(text):
    """Its producers had three bugs; what was cut off is a brace."""
    payment = json.loads(text if text.endswith("}") else text + "}")
    cents = int(payment["cents"])
    payment["cents"] = cents // 10**8 if cents > 10_000_000 else cents
    payment.setdefault("currency", "EUR")
    return json.dumps(payment)
