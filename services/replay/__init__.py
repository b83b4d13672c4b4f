"""What can be done with a past experience stream: train a new run on it, verify it, score it anew, carry it about.

The run that the stream belongs to is only read.
"""
