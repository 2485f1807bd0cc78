"""A user's pipeline under faults: input of ours, a command that is killed, and what its output must be."""
