"""The way of records from ``send`` to their leaders, and the transactions around them."""
