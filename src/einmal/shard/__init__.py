"""Common basis of the coordinators: a request is decided into records, an answer and actions; only ``replay``
mutates."""
