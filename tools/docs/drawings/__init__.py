"""The drawings of the documents, as SVG: ``python -m tools.docs.drawings`` writes them all."""
