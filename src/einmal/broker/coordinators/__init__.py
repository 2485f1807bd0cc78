"""Transaction and group coordinators on the shards (partitions) of their replicated topics."""
