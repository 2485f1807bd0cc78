"""A consumer's Fetch: its session, what it reads, how it waits."""
