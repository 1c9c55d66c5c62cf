"""A dataset is read row by row and checked before anything is asked of an engine; a row that can't be used is named.

Sources: files (`files`, `tables`), families of reasoning-gym (`gym`), tasks of lm-eval (`harness`), and functions
(`functions`). Whatever the source, a row becomes a problem by the same rules (`problems`).
"""

from infra.datasets.digest import dataset_digest, digest_of, suite_digest
from infra.datasets.loading import LoadedDataset, load_dataset, load_problems, read_problems

__all__ = [
    "LoadedDataset",
    "dataset_digest",
    "digest_of",
    "load_dataset",
    "load_problems",
    "read_problems",
    "suite_digest",
]
