"""The explorer: answers tasks with one engine and publishes the experiences."""
