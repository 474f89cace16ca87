"""Python functions behind the commands; they combine training, tracing, analysis and studio."""
