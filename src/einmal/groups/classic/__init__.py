"""Groups of the classic protocol: joins, syncs, heartbeats, and the generations that come of them."""
