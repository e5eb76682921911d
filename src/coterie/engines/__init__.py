"""Engines: they carry plans to the clients and replies back to the server."""
