"""What clients use, and how long each is throttled for it."""
