"""A mirror from one cluster to another: records, source positions and translated group offsets in one transaction.

Pure: knows no socket and no clock. ``scan`` keeps what batch headers and markers of the source show, ``cut`` decides up
to which offsets no transaction is torn, ``offset_map`` translates offsets, ``replication_policy`` names topics, and
``machine`` puts the steps in order. Each target transaction runs through ``commit_protocol.committer``: epoch, commit
record and fencing are the pipeline's.
"""
