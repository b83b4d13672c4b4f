"""The evaluator: judges announced weights on the eval tasksets, each version with exactly its own weights."""
