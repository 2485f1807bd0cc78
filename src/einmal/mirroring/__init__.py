"""A mirror as one process: performs what ``mirror_protocol.machine`` asks for, with blocking clients."""
