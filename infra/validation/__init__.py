"""A checkpoint is known to be complete and sane before any GPU is taken, from headers and ranged reads alone.

`layout` and `headers` need the standard library only; what compares with the config's model loads transformers, and only
when it is called.
"""
