"""Metrics and health of this node, over HTTP: reads what the other packages count and know, and changes nothing."""
