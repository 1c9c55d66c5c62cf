"""Engines leased through Ray: placed together, kept warm between points, used by one flow at a time."""
