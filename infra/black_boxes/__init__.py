"""Evaluations that can be named as a black box, also as examples of how to write one's own: docs/black-box.md."""
