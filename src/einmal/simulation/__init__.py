"""The real node, client and commit protocol on virtual time, network and disk, with faults from a seed."""
