"""How it is carried: the only package that knows NATS. It knows no service."""
