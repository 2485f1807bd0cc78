"""Which cluster: its topics, offsets and settings, for whatever runs beside Spark's tasks on the driver."""
