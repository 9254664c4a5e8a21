"""Claims of EXARL: runs of sleeping ranks, and what one process can show."""
