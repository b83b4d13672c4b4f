"""The launcher: starts a run's services as processes of this machine, restarts what crashes, and shows progress."""
