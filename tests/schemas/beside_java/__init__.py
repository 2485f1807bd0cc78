"""Random schemas and records, decoded here and by the Java implementations of their formats."""
