"""The sheet of a method's picture: small, with one line below."""

from __future__ import annotations

from tools.docs.drawings.canvas import Drawing

WIDTH = 360
HEIGHT = 200
MIDDLE = WIDTH / 2
CAPTION_Y = 186


def sheet(name: str, caption: str, description: str) -> Drawing:
    """An empty sheet with the caption, which is the title as well."""
    drawing = Drawing(WIDTH, HEIGHT, f"{name}: {caption}", description)
    drawing.text(MIDDLE, CAPTION_Y, caption, anchor="middle", colour="quiet")
    return drawing
