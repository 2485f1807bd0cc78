"""Topics and settings in requests: described, changed, found by name or by id."""
