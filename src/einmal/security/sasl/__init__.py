"""SASL mechanisms of brokers and clients, and SCRAM credentials (RFC 5802)."""
