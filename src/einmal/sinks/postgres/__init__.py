"""PostgreSQL as a sink: its options, the driver's session, and what its errors mean."""
