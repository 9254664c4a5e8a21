"""What a run tells: metrics.jsonl, TensorBoard and the terminal, behind one facade."""

from warprun.records.records import Records
from warprun.records.sink import Mark

__all__ = ["Mark", "Records"]
