"""What the streams and the store say of a run: for `status`, `view`, `export` and the summary. It only reads."""
