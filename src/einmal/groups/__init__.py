"""The group coordinator as a value machine: the classic protocol, and committed offsets (KIP-447). No I/O, no clock."""
