"""A mirror as one process: performs what ``mirror.machine`` asks for, with the blocking client, on two clusters."""
