"""Configurations of veRL, read, written in our own keys, and back. Needs neither torch nor veRL, and runs nothing."""
