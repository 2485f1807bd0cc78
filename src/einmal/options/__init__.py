"""The options of sources and sinks, from a program, a declaration or Spark: checked before anything is sent."""
