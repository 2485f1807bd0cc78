"""Parts of sinks that need Spark: a DataFrame as rows, topics that tasks write, topics and a database in one commit."""
