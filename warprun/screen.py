"""The line of a terminal that moves, and who may write it. Imported before signals are watched, so it imports next to nothing."""

import threading

MOVING = threading.Lock()
"""Held by a thread while it writes the line. Who ends the process takes it for good, so that nothing follows the last words."""
