"""From the rows of a batch to the record batches of each partition.

Calls and tasks dominate the cost of a small batch: a PySpark column object is four or five round trips to the JVM. So
the job of a batch is described as text, with columns that are created once (``routing``, ``job``). Together with
partitions that share a task in the source this saves a third of a batch of 100 records.
"""
