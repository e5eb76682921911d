"""What a refusal must say, in whichever words: what is meant, which value it has, and what is allowed.

A sentence of each kind is compared as a whole in tests/test_settings.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from coterie.settings import UserError


@contextmanager
def refuses(*parts: str, error: type[UserError] = UserError) -> Iterator[None]:
    """What is done here is refused, in one line that has all of the parts.

    parts: the setting, column or client; the value; what is allowed, or what to do.
    """
    with pytest.raises(error) as raised:
        yield
    sentence = str(raised.value)
    assert "\n" not in sentence
    missing = [part for part in parts if part not in sentence]
    assert not missing, sentence
