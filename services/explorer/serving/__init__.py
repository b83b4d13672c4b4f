"""Serving real conversations, and collecting them with their feedback as experiences."""
