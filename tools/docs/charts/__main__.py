"""Draw every chart anew."""

from __future__ import annotations

from tools.docs.charts.all_charts import drawn

if __name__ == "__main__":
    for path, text in drawn().items():
        path.write_text(text, encoding="utf-8")
