"""Experiments and runs, and what is done with a run directory: export, check, estimate, suggest."""
