"""State machines of the producer, the consumer, the member of a group and the transaction, without I/O."""
