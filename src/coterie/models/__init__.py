"""Networks by name, and the conversion between a module and a flat row of numbers."""
