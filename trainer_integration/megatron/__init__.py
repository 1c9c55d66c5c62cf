"""A Megatron-Core model under training is staged as a Hugging Face checkpoint, whatever its parallel layout.

Nothing of Megatron is loaded before an exporter is made. See docs/export.md.
"""
