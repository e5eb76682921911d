"""Figures of a run for papers, by Matplotlib."""
