"""What sinks need of Spark: a DataFrame as the rows of a batch, topics written by tasks, several sinks in one commit."""
