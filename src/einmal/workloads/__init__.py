"""Workloads: what is asked of a system under test, and what must hold then. Written against the asyncio client only."""
