"""Write all drawings to docs/figures/ and docs/_static/."""

from __future__ import annotations

from tools.docs.drawings.all_drawings import drawn

if __name__ == "__main__":
    for path, text in drawn().items():
        path.write_text(text, encoding="utf-8")
