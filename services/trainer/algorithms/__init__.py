"""Advantages and losses: pure functions on tensors, chosen by name in visible tables."""
