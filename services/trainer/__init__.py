"""The trainer: consumes experience groups in stream order, updates the model, announces weights, commits checkpoints."""
