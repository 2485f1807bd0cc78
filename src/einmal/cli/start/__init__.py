"""``einmal start``: the process of a broker, and of a cluster of them."""
