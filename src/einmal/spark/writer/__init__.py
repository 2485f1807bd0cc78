"""``format("einmal")`` as a sink, of streams and of batch writes, behind Spark's interface for data sources."""
