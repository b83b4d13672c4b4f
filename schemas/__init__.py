"""What is said: every message that crosses the bus, and how it becomes bytes."""
