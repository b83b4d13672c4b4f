"""What a run on a bare machine needs before it starts: a small model and data, made here, without a model hub."""
