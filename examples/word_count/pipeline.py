"""Word count as a function of DataFrames: the same as pipeline.toml."""

import os

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from einmal.spark import pipeline


@pipeline(
    transactional_id="word-count-py",
    checkpointLocation="build/examples/word-count-py",
    kafka={"bootstrap.servers": os.environ.get("KAFKA_BROKERS", "127.0.0.1:9092")},
    outputMode="update",
    sources={"sentences": {"subscribe": "sentences", "startingOffsets": "earliest", "maxOffsetsPerTrigger": 50}},
    sinks={"counts": {"topic": "word-counts-py"}},
)
def word_count(sentences: DataFrame) -> DataFrame:
    lines = F.lower(sentences.value.cast("string"))
    words = sentences.select(F.explode(F.regexp_extract_all(lines, F.lit("[a-z]+"), 0)).alias("word"))
    return words.groupBy("word").count().selectExpr("word AS key", "CAST(count AS STRING) AS value")
