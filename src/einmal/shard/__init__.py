"""What the coordinators share: a request is decided into records, an answer and actions; only ``replay`` mutates."""
