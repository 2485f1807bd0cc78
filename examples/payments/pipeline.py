"""Alerts from a stream of payments: a card that pays too often, or an amount far from what the card usually pays.

A window contains all payments of a card in ten minutes of event time: the time when a payment was made, not when it
arrived. Payments may arrive ten minutes late and out of order. A window produces at most one alert, when it is final.
"""

import os

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from einmal.spark import pipeline

PAYMENT = "card STRING, merchant STRING, cents BIGINT, at TIMESTAMP"
MANY = 12
"""Number of payments of a card in a window from which on they are too many."""
TIMES_USUAL = 10
"""Multiple of the average of the card's other payments in the window from which on an amount is far from usual."""


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
