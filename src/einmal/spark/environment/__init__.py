"""The JVM, the Python workers and the session that a pipeline runs in."""
