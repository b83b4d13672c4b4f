"""What must hold between keys before anything starts: a file for each field, and `general` with the table of all."""
