"""How the whole suite runs as one: which worker gets which tests, the servers that all workers share, and how long a
test waits on a machine that is busy."""
