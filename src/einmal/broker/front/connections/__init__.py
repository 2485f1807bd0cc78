"""The connections of a listener: accepted, decrypted, read and answered in order, throttled, closed."""
