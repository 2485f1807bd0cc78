"""The JVM, the Python workers and the session that a pipeline runs in. No other package reaches into the JVM."""
