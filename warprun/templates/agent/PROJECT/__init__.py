"""An algorithm for warprun: `agent=PROJECT`."""
