"""The metadata quorum: Raft in which followers pull, as KRaft does it (KIP-595). No I/O, no clock."""
