"""A pipeline as programs see it: events, errors, reasons for a guarantee, and dead letters. Pure."""
