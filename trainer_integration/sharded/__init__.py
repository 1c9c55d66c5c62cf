"""Ranks that each hold a part of a model stage it together as one Hugging Face folder, each copying what it holds and no more.

A tensor of the folder is a set of rectangles (`blocks`), each a copy of a run of one rank's memory. Who copies what to where
is settled, checked and agreed on before anything is copied (`plan`); then the ranks write side by side into the same
preallocated files in memory (`stage`). So what a training loop waits for is one copy: no gather, no conversion, no writer
that the others wait for. docs/decisions/0007-ranks-write-in-place.md has the reasons, docs/export.md the use.
"""
