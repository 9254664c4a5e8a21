"""Parts of scripts/exarl_claims.py: a model of the protocols, runs that check it, learning runs, figures."""
