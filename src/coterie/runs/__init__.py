"""Experiments and runs, and the tools for run directories: export, check, estimate."""
