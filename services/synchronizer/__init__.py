"""The synchronizer: decides which tasks may start under which weights."""
