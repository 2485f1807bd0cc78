"""What sinks need of Spark: a DataFrame as rows, topics that tasks write, topics and a database in one commit."""
