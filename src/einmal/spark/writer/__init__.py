"""``df.writeStream.format("einmal")``: an exactly-once sink behind Spark's interface for data sources."""
