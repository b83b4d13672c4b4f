"""An engine behind an OpenAI-compatible address, with every token told as it was sampled."""
