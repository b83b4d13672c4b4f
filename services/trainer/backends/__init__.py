"""Where the model lives: veRL's FSDP engine on Ray, behind one port, and a fake for tests."""
