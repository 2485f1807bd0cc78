"""Usage of each client, and how long it is throttled for it."""
