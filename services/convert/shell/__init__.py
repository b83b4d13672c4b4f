"""A reader of shell scripts that evaluates their words and runs none of their commands."""
