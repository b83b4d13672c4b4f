"""The monitor: turns the metrics stream into a TensorBoard record."""
