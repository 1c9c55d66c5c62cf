"""What SGLang's `/weights_checker` must say of a tensor follows from the snapshot's own bytes, laid out as SGLang does.

Followed, from sglang 0.5.23: which tensors are one parameter and how ranks share it out (`layout`), in which dtype it is served
(`casting`), and how it is checksummed on a CPU and on a GPU (`algorithms`). A tensor that SGLang lays out in another way
(quantised, packed for a processor, shared out over pipeline or expert ranks) is not reproduced, and not taken for proved.
"""

from infra.reproduction.comparison import Coverage, reproduce
from infra.reproduction.layout import sources

__all__ = ["Coverage", "reproduce", "sources"]
