"""Training on experiences more than once."""
