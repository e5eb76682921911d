"""Text that is safe for a terminal or a log.

Text from clients, records, files and file names is untrusted: a control character in it could move
the cursor, hide words or forge a line. So everything is printed through this module.
"""

from __future__ import annotations

import re
import sys
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    import logging

_NOT_ASCII = re.compile("[^ -~]")


def printable(text: str, keep: str = "") -> str:
    r"""Write every character that is not a letter, mark, sign or space as JSON does.

    These are control characters (terminal sequences begin with one), line separators, characters
    that change the direction of writing or have no width, and halves of surrogate pairs, which
    stand for bytes of a file name that are not UTF-8. JSON text keeps its meaning.

    Args:
        text: The text.
        keep: Characters that stay as they are.

    Returns:
        The printable text.

    Example:
        >>> print(printable("caf\u00e9 \x1b[31m\u202e\udcff"))
        café \u001b[31m\u202e\udcff
    """

    # Printable letters of other alphabets stay; this is called only for what is not ASCII.
    def escaped(match: re.Match[str]) -> str:
        character = match[0]
        return character if character.isprintable() or character in keep else _escape(character)

    return _NOT_ASCII.sub(escaped, text)


def one_line(text: str, max_length: int = 2000) -> str:
    """Return ``text`` as one :func:`printable` line; one longer than ``max_length`` is cut in the middle."""
    line = printable(" ".join(text.split()))
    if len(line) <= max_length:
        return line
    # The beginning says what went wrong, and the end often why.
    return f"{line[: max_length // 2]} [...] {line[-max_length // 4 :]}"


def _escape(character: str) -> str:
    r"""A character in JSON's way: ``\u`` and four hexadecimal digits for each unit of UTF-16."""
    # A letter beyond the first 65,536 has two units.
    hexadecimal = character.encode("utf-16-be", "surrogatepass").hex()
    return "".join(
        f"\\u{hexadecimal[start : start + 4]}" for start in range(0, len(hexadecimal), 4)
    )


def say(text: str, to: TextIO | None = None, end: str = "\n") -> None:
    """Print lines on stdout, or on ``to``, without buffering; each of them is made :func:`printable`."""
    print(printable(text, keep="\n\t"), file=to or sys.stdout, end=end, flush=True)


def printable_record(record: logging.LogRecord) -> bool:
    """Make the message of a log record :func:`printable`; a filter for a logger."""
    record.msg = printable(record.getMessage())
    record.args = ()
    return True
