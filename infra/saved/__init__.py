"""Checkpoints that a trainer saved: where they are, which of them are complete, and which of those are to be evaluated."""
