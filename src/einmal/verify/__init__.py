"""Evidence about a cluster: workloads through a client of choice, faults on a cluster of our own, and a verdict."""
