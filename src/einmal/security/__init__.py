"""TLS and SASL for clients: settings in Kafka's two naming schemes, mechanisms, certificates, tokens."""
