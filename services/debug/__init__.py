"""Trying a workflow by itself: no trainer, no bus, and an engine that stays warm between tries."""
