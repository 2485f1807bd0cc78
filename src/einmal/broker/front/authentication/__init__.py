"""Who is on a connection: SASL, and the keys that tokens are verified by."""
