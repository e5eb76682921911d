"""Words that a stranger knows: the pages have no words of the project's own where there is a standard one.

Pages that are not clean yet stand in ``words_counts.json`` with their counts, which may only go
down. ``python tests/docs/test_words.py`` shows where the counts come from (``PAGE ...`` for these
pages), ``--write`` makes the list anew.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
COUNTS_FILE = Path(__file__).with_name("words_counts.json")

INSTEAD: Mapping[str, str] = {
    r"alike": "with the same data distribution",
    r"arms?": "candidate",
    r"beside": "compared with; next to",
    r"beyond noise": "larger than noise; significantly",
    r"boundar(?:y|ies)": "privacy",
    r"crossed": "cross-validated",
    r"first draws?": "initial model",
    r"halves": "two random halves of the client's data (once on the page)",
    r"in turns": "alternately",
    r"leaders?": "the candidate in use",
    r"notes?": "event; or details",
    r"ours": "not in the paper; Coterie's choice",
    r"prob(?:e|es|ed|ing)": "test round; test",
    r"pull(?:s|ed)?": "proximal weight; keep near",
    r"regrets?": "gap to the best",
    r"serve[sd]?": "use; give",
    r"silen(?:t|ce)": "drop-out; does not answer; misses the round",
    r"told": "known; reported",
    r"unlikeness": "difference",
    r"way (?:up|down)": "upload; download",
    r"what was tried": "leave it out, or move it to notes/",
    r"worlds?": "setting; data",
}
"""What must not stand on a page, as a pattern -> what to say."""

LITERAL = {
    "boundary": ("decision boundary",),
    "notes": ("release notes", "notes/"),
    "pull": ("pull request",),
    "served": ("first come, first served",),
}
"""A word -> phrases in which it has its usual sense."""

ALLOWED: Mapping[str, frozenset[str]] = {
    # It explains the words.
    "docs/reference/glossary.md": frozenset(INSTEAD),
    # Notes and halves are names of the API, which these pages are about.
    "docs/reference/contract.md": frozenset({"notes?"}),
    "docs/reference/runs.md": frozenset({"notes?"}),
    "docs/research/add-a-method.md": frozenset({"notes?"}),
    # Names of the method's own, explained there.
    "docs/methods/auto.md": frozenset({"leaders?"}),
    "docs/methods/race.md": frozenset({"leaders?"}),
    # A spring pulls.
    "docs/methods/cfl.md": frozenset({"pull(?:s|ed)?"}),
    "docs/methods/ditto.md": frozenset({"pull(?:s|ed)?"}),
    # Models that answer requests.
    "docs/deploy/operate.md": frozenset({"serve[sd]?"}),
    "docs/index.md": frozenset({"serve[sd]?"}),
    "docs/sites/serve.md": frozenset({"serve[sd]?"}),
}
"""Page -> patterns that it may have, as names of the API or in their literal sense."""

CODE = re.compile(r"^( *)```.*?^\1```$", re.MULTILINE | re.DOTALL)
GENERATED = re.compile(r"^<!-- ([\w-]+)[^\n]* -->\n.*?^<!-- /\1 -->$", re.MULTILINE | re.DOTALL)
LEFT_OUT = (
    GENERATED,
    CODE,
    re.compile(r"\[[\w ]*notes\]\([^)]*notes/[^)]*\)"),  # links to the folder of this name
    re.compile(r"<!--.*?-->", re.DOTALL),
    re.compile(r"``.*?``|`[^`]*`"),
    re.compile(r"\]\([^)]*\)"),  # where links lead to
)


def pages() -> dict[str, str]:
    """The pages that are on the site, and the README."""
    paths = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    return {str(path.relative_to(ROOT)): path.read_text(encoding="utf-8") for path in paths}


def prose(text: str) -> str:
    """A page without code, generated parts and targets of links; lines keep their numbers."""
    for pattern in LEFT_OUT:
        text = pattern.sub(lambda found: " " + "\n" * found[0].count("\n"), text)
    for phrases in LITERAL.values():
        for phrase in phrases:
            text = re.sub(rf"\b{phrase}", "", text, flags=re.IGNORECASE)
    return text


def faults(page: str, text: str) -> Iterator[tuple[int, str, str]]:
    """(line, word, what to say) of each word of a page that a stranger does not know."""
    words = prose(text)
    for pattern, instead in INSTEAD.items():
        if pattern in ALLOWED.get(page, ()):
            continue
        if pattern == "halves" and re.search(r"random\s+halves", words):
            continue
        spaced = pattern.replace(" ", r"\s+")
        for found in re.finditer(rf"(?<![\w-]){spaced}(?![\w-])", words, re.IGNORECASE):
            yield words.count("\n", 0, found.start()) + 1, " ".join(found[0].split()), instead


def counts() -> dict[str, int]:
    """Page -> how many such words it has; pages that have none are left out."""
    found = {page: len(list(faults(page, text))) for page, text in pages().items()}
    return {page: count for page, count in found.items() if count}


def test_pages_have_words_that_a_stranger_knows() -> None:
    allowance: dict[str, int] = json.loads(COUNTS_FILE.read_text(encoding="utf-8"))
    grown = {
        page: f"{count}, allowed {allowance.get(page, 0)}"
        for page, count in counts().items()
        if count > allowance.get(page, 0)
    }
    assert not grown, "python tests/docs/test_words.py PAGE shows the lines, and what to say"


def test_pages_with_an_exception_are_there() -> None:
    assert set(ALLOWED) <= set(pages())
    for patterns in ALLOWED.values():
        assert patterns <= set(INSTEAD)


def test_what_is_seen() -> None:
    """A check of the check."""
    text = """# A world
A client is served by `arms`, [beside](beside.md) others; a pull request.
<!-- settings cfl -->
| silent |
<!-- /settings -->
```text
regret
```
They fall
silent on the way
up. Two random halves; then the halves.
"""
    seen = sorted((line, word) for line, word, _ in faults("README.md", text))
    assert seen == [(1, "world"), (2, "beside"), (2, "served"), (10, "silent"), (10, "way up")]
    assert [word for _, word, _ in faults("README.md", "The halves differ.")] == ["halves"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("pages", nargs="*", help="such as docs/index.md; none: all")
    parser.add_argument("--write", action="store_true", help="make the list of counts anew")
    arguments = parser.parse_args()
    if arguments.write:
        COUNTS_FILE.write_text(json.dumps(counts(), indent=1) + "\n", encoding="utf-8")
        return
    for page, text in pages().items():
        if not arguments.pages or page in arguments.pages:
            for line, word, instead in sorted(faults(page, text)):
                print(f"{page}:{line}: {word} -> {instead}")


if __name__ == "__main__":
    main()
