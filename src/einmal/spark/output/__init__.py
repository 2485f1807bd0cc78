"""From a DataFrame to records in topics: the rows of a batch are encoded and written by tasks (``sinks/kafka``).

Calls and tasks dominate the cost of a small batch: a PySpark column object is four or five round trips to the JVM. So
the job of a batch is described as text, with columns that are created once (``job``). Together with partitions that
share a task in the source this saves a third of a batch of 100 records.
"""
