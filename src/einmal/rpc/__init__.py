"""One connection of the Kafka protocol, which pairs requests and answers: what clients and nodes send requests over."""
