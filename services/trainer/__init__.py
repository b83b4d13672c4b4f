"""The trainer: trains on experience groups in stream order, announces weights, commits checkpoints."""
