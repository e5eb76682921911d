"""Engines: what carries plans to clients and replies back."""
