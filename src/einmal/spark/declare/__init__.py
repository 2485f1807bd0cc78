"""What was asked for, and whether it can hold: declarations, guarantees, the preflight."""
