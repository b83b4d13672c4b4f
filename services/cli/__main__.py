"""`python -m services.cli`, the same as `trinity`."""

from services.cli.main import main

main()
