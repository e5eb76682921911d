"""Coterie's objects in notebooks: short texts and tables that show them, data frames, and a progress bar."""
