"""The batches of a Produce: verified, appended or refused."""
