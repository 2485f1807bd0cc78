"""State of the cluster: topics, partitions, settings, producer-id blocks, in KRaft's records. No I/O, no clock."""
