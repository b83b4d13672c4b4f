"""Rows of data as experiences: read, laid out by the chat template, and delivered like a stream."""
