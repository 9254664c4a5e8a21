"""What a run tells: metrics.jsonl, TensorBoard and the terminal, behind one facade."""

from warprun.runtime.records.records import Records
from warprun.runtime.records.sink import Mark

__all__ = ["Mark", "Records"]
