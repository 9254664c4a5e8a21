"""Claims of EXARL: runs of sleeping ranks, a model of the protocols that they check, and what one process can show."""
