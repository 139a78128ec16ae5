"""Tokens: lanes, the scheduler, the sampling rule and the engine thread."""
