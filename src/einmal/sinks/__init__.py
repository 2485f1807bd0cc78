"""Where output goes: topics and databases, each with the commit record in the transaction of the rows. Without Spark.

``commit_point`` is the interface, ``perform`` carries out what the committer decides on one, ``sink`` names and
configures it, ``kinds`` finds a sink by the word of its type.
"""
