"""A run's configuration: read from YAML, checked as a whole, and able to say where each value came from."""
