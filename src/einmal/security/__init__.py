"""TLS and SASL: settings in Kafka's two naming schemes, mechanisms, certificates, tokens; principals and ACLs."""
