"""Alerts from a stream of payments: a card that pays too often, or an amount far from what the card usually pays.

All payments of a card in ten minutes are looked at together. Time is when a payment was made, not when it arrived:
payments may come ten minutes late and out of order. A window gives at most one alert, when it cannot change any more.
"""

import os

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from einmal.spark import pipeline

PAYMENT = "card STRING, merchant STRING, cents BIGINT, at TIMESTAMP"
MANY = 12
"""So many payments of a card in a window are too many."""
TIMES_USUAL = 10
"""An amount is far from usual, if it is so many times the average of the card's other payments in the window."""


@pipeline(
    transactional_id="payment-alerts",
    checkpointLocation="build/examples/payment-alerts",
    kafka={"bootstrap.servers": os.environ.get("KAFKA_BROKERS", "127.0.0.1:9092")},
    sources={"payments": {"subscribe": "payments", "startingOffsets": "earliest", "maxOffsetsPerTrigger": 500}},
    sinks={"alerts": {"topic": "payment-alerts"}},
    spark={"sql.session.timeZone": "UTC"},
)
def payment_alerts(payments: DataFrame) -> DataFrame:
    parsed = payments.select(F.from_json(payments.value.cast("string"), PAYMENT).alias("payment")).select("payment.*")
    windows = (
        parsed.withWatermark("at", "10 minutes")
        .groupBy("card", F.window("at", "10 minutes"))
        .agg(F.count("*").alias("payments"), F.sum("cents").alias("total"), F.max("cents").alias("largest"))
    )
    # Whole numbers on both sides: sums of floating-point numbers depend on their order.
    far_from_usual = F.expr(f"payments >= 3 AND largest * (payments - 1) > {TIMES_USUAL} * (total - largest)")
    reason = F.when(F.col("payments") >= MANY, "many payments").when(far_from_usual, "large amount")
    alerts = windows.select("card", reason.alias("reason"), F.col("window.start").alias("since"), "payments", "largest")
    return alerts.where("reason IS NOT NULL").selectExpr("card AS key", "to_json(struct(*)) AS value")
