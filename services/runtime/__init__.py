"""What every service process has in common: its place on the bus, its heartbeat, its logs and its signals."""
