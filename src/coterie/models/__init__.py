"""Networks by name, and how a module becomes a row of numbers."""
