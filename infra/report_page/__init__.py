"""A run's history as one HTML page, which opens from disk and asks the network for nothing."""

SAMPLES_OF_A_KIND = 3
