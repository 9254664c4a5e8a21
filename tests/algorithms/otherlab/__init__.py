"""A package of someone else's, with an agent."""
