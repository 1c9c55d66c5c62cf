"""Trainers that Pinpoint knows: each is a few lines in a user's script, and loads its framework only when it is used."""
