"""The records of a run: metrics.jsonl, TensorBoard and the terminal, behind one facade."""

from warprun.runs.records.records import Records

__all__ = ["Records"]
