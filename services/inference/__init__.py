"""Engines that sample, behind one port, with the loading of announced weights."""
