"""A run as one self-contained page: a document of numbers made from its records, and a page that draws it.

The drawing is by hand, in SVG and canvas, and no plotting library is bundled: a page then has 60 kB of script in place of
some megabytes, follows the reader's light, dark and print, is worked by keyboard, and draws 1,000 clients at once.
"""

from coterie.report.page.document import document
from coterie.report.page.html import page

__all__ = ["document", "page"]
