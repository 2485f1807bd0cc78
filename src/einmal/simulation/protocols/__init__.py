"""Models of the protocols on a log and a database without brokers: the commit protocol, the mirror and the ingester."""
