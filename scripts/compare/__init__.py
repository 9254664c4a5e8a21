"""What policies of single environments are compared with: references, and how both play the same episodes.

A module may have `measured(folder)`, the numbers of a run beside those of its records; `references()`, by case the numbers of what needs no
run; and `draw(folder)`, which draws the picture of the page with a run. scripts/results.py calls them.
"""
