"""The documentation site: ``make docs`` builds it into build/docs with Sphinx. The pages stay plain Markdown.

What is special here: the sidebar is read from the index pages (tools/docs/navigation.py), settings are tables
made from the fields they are, and links out of docs/ lead to a page of the reference, to a copy of
the file, or are left out.
"""

from __future__ import annotations

import inspect
import os
import pkgutil
import re
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import latex2mathml.converter
from docutils import nodes
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.ext.napoleon import Config, GoogleDocstring
from sphinx.pycode import ModuleAnalyzer
from sphinx.transforms import SphinxTransform

DOCS = Path(__file__).resolve().parent
ROOT = DOCS.parent
sys.path[:0] = [str(ROOT / "tools" / "docs"), str(ROOT / "src")]

import navigation  # noqa: E402

import coterie  # noqa: E402
import coterie.core  # noqa: E402
from coterie.methods import METHODS  # noqa: E402
from coterie.report.listing import allowed, plain  # noqa: E402
from coterie.settings import documented  # noqa: E402

project = "Coterie"
author = "The Coterie authors"
version = release = coterie.__version__
project_copyright = author

extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.viewcode",
    "sphinx_copybutton",
]
autosummary_generate = False
exclude_patterns = ["results"]
myst_enable_extensions = ["dollarmath"]
nb_execution_mode = "off"  # the notebook is shown as it is committed; a test runs it
myst_heading_anchors = 4
autodoc_inherit_docstrings = False
autodoc_default_options = {"no-value": True}
autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 100

html_theme = "furo"
html_title = f"Coterie {release}"
html_math_renderer = "mathml"
html_static_path = ["_static"]
html_css_files = ["coterie.css"]
html_favicon = "_static/favicon.svg"
html_theme_options = {
    "light_logo": "logo.svg",
    "dark_logo": "logo-dark.svg",
    "light_css_variables": {"color-brand-primary": "#005ea8", "color-brand-content": "#005ea8"},
    "dark_css_variables": {"color-brand-primary": "#7cc0f5", "color-brand-content": "#7cc0f5"},
}
copybutton_exclude = ".linenos, .gp, .go"  # prompts and output of Python sessions are not copied
html_show_search_summary = False  # would be fetched, which browsers refuse to pages that are files
html_show_sourcelink = False
html_show_sphinx = False
html_show_copyright = False
html_copy_source = False

nitpicky = True
nitpick_ignore_regex = [
    # Other projects' names: their inventories would have to be fetched from a network.
    (r"py:.*", r"(torch|numpy|collections|pathlib|os|flwr)\..*"),
    # Type variables, and types in brackets that Sphinx takes apart at their commas.
    (
        r"py:class",
        r"coterie\.(core\.(clients\.(StateClass|Value)|method\.MethodState)|extensions\.ExtensionType|records\.record\.T)|.*\[(int|str)",
    ),
    # The types of methods' results, which are imported for types only; their pages have the whole names.
    (r"py:class", r"Differences|ClassicReferences|PlacedClients"),
    # What benchmarks and tuning take and return, besides what one calls.
    (r"py:class", r"coterie\.contrib\.(bench|tune)\.\w+\.\w+"),
    (r"py:class", r"coterie\.runs\.(placing\.Placement|predicting\.Predictions)"),
    # What a strategy and its result take besides a text or a table, and nobody makes.
    (r"py:class", r"coterie\.engines\.flower\.(nodes\.Identity|messages\.OtherTensors)"),
    # Types inside of the data and the settings, which nobody makes.
    (
        r"py:class",
        r"coterie\.(settings\.calls\.F|data\.losses\.\w+|data\.target_scale\.\w+|report\.explain\.Explanation)",
    ),
    # The states of methods, which are their own affair.
    (r"py:class", r"coterie\.(methods|contrib\.(private|fleet))\.\w+\.\w+"),
]


# -- the sidebar
# ----------------------------------------------------------------------------------------------------------


def add_toctrees(app: Sphinx, docname: str, source: list[str]) -> None:
    """Give an index page the toctrees of what it lists."""
    if docname.rpartition("/")[2] == "index" and Path(app.env.doc2path(docname)).suffix == ".md":
        source[0] += navigation.directives(docname, source[0])


PAGES_OF_THE_ROOT = {
    "changes": "CHANGELOG.md",
    "contributing": "CONTRIBUTING.md",
    "security": "SECURITY.md",
}
"""Page of the site -> the file in the root of the repository that it shows. In docs/ there is just a link to it."""


def add_page_of_the_root(app: Sphinx, docname: str, source: list[str]) -> None:
    """Show a file of the root of the repository as a page of the site."""
    if docname in PAGES_OF_THE_ROOT:
        file = ROOT / PAGES_OF_THE_ROOT[docname]
        app.env.note_dependency(file)
        source[0] = file.read_text().replace("](docs/", "](").replace("](notes/", "](../notes/")


# -- formulas
# ------------------------------------------------------------------------------------------------------------


def inline_formula(translator: Any, node: nodes.math) -> None:
    """A formula within a line, as MathML: browsers set it without a script and without a network."""
    translator.body.append(latex2mathml.converter.convert(node.astext()))
    raise nodes.SkipNode


def displayed_formula(translator: Any, node: nodes.math_block) -> None:
    """A formula on lines of its own."""
    formula = latex2mathml.converter.convert(node.astext(), display="block")
    translator.body.append(f'<div class="formula">{formula}</div>\n')
    raise nodes.SkipNode


# -- docstrings
# -----------------------------------------------------------------------------------------------------------


def has_settings(thing: Any) -> bool:
    return (
        inspect.isclass(thing)
        and hasattr(thing, "__dataclass_fields__")
        and bool(documented(thing))
    )


def signature(
    app: Sphinx,
    what: str,
    name: str,
    thing: Any,
    options: Any,
    text: str | None,
    returns: str | None,
) -> Any:
    """Settings stand in a table, not in the signature; what a default factory makes is not told."""
    return (
        ("(**settings)", None)
        if has_settings(thing)
        else (text and text.replace("=<factory>", "=..."), returns)
    )


def docstring(
    app: Sphinx, what: str, name: str, thing: Any, options: Any, lines: list[str]
) -> None:
    """Arguments and fields where a docstring tells of them, as ``name: ...``, in bold; a table of settings."""
    if {"Args:", "Attributes:"} & {line.strip() for line in lines}:  # Google's sections
        lines[:] = GoogleDocstring(
            lines, Config(napoleon_use_ivar=True), app, what, name, thing, options
        ).lines()
    elif callable(thing):
        names = "|".join(map(re.escape, parameters(thing)))
        told = re.compile(rf"(?:^|(?<=[.;)`] ))((?:{names})(?:, (?:{names}))*):(?= |$)")
        lines[:] = [told.sub(r"**\1**:", line) if names else line for line in lines]
    if has_settings(thing):
        if thing is METHODS.get(getattr(thing, "name", "")):
            lines += [
                "",
                f":doc:`Card </methods/{thing.name}>`; ``{thing.name}`` on the command line.",
                "",
            ]
        lines += settings(thing)


def parameters(thing: Any) -> Sequence[str]:
    """The names of a callable's arguments, a dataclass's fields included."""
    try:
        return tuple(inspect.signature(thing).parameters)
    except (TypeError, ValueError):
        return ()


def settings(cls: type[Any]) -> Iterable[str]:
    """A table of settings, from the fields that the command line and the files read."""
    yield from (
        "",
        ".. list-table::",
        "   :header-rows: 1",
        "",
        *row("setting", "default", "allowed", "meaning"),
    )
    for name, words, default, sentence in documented(cls):
        if name not in ("about", "training"):  # a scenario's sentence, and a table of its own
            limits = cls.__dataclass_fields__[name].metadata.get("limits", {})
            yield from row(
                f"``{name}``",
                f"``{plain(default)}``",
                allowed(words, limits),
                sentence.replace("*", "\\*"),
            )
    yield ""


def row(*cells: str) -> list[str]:
    return [f"   {'*' if i == 0 else ' '} - {cell}" for i, cell in enumerate(cells)]


METHOD_MODULES = (
    "coterie.methods.",
    "coterie.contrib.fleet.timed",
    "coterie.contrib.rivals.",
    "coterie.contrib.private.split_half",
)
"""How the names of the modules of methods begin."""


def skip(app: Sphinx, what: str, name: str, thing: Any, skipped: bool, options: Any) -> bool | None:
    """Left out: what methods do for the contract's functions, and fields of named tuples, which their class tells of."""
    inner = getattr(thing, "fget", thing)
    of_a_method = (
        getattr(inner, "__module__", "").startswith(METHOD_MODULES) and "." in inner.__qualname__
    )
    return True if of_a_method or thing is Any or type(thing).__name__ == "_tuplegetter" else None


# -- links out of docs/
# ---------------------------------------------------------------------------------------------------

PAGES = {
    ROOT / "README": "index",
    ROOT / "CHANGELOG": "changes",
    ROOT / "CONTRIBUTING": "contributing",
    ROOT / "SECURITY": "security",
    **{
        ROOT / "src/coterie" / name: f"reference/{name}"
        for name in ("clustering", "methods", "boundary")
    },
}
"""What is linked to, without a suffix -> the page that has what it says."""

NOTES = ROOT / "notes"
PAGE_OF_NAME = {
    path.stem: f"{folder}/{path.stem}"
    for folder in ("reference", "start", "methods", "sites", "research", "deploy", "evidence")
    for path in (DOCS / folder).glob("*.md")
}
"""Name of a page -> the page; of two with one name, the page of results."""
PAGE_OF_NOTE = {
    **{
        note.with_suffix(""): PAGE_OF_NAME[note.stem]
        for note in NOTES.glob("*.md")
        if note.stem in PAGE_OF_NAME
    },
    NOTES / "never-worse": "evidence/regret",
    NOTES / "studies": "evidence/replications",
    NOTES / "suggest": "research/thresholds",
}
"""A note, or a folder of notes -> the page that sums it up: the one of its name. Notes are not on the site."""


def page_for(path: Path) -> str | None:
    """The page of the site that stands for a file outside of docs/, given without its suffix; None if there is none."""
    for note, page in PAGE_OF_NOTE.items():
        if path.is_relative_to(note):
            return page
    return PAGES.get(path)


class LinksOut(SphinxTransform):
    """Links out of docs/: to the page that stands for it where there is one; to another folder, just the text.

    Links to other files are MyST's: they lead to a copy of the file. So do links to a note that no
    page of results sums up, and links to a note on the page that sums it up.
    """

    default_priority = 5

    def apply(self, **_: Any) -> None:
        here = Path(self.env.doc2path(self.env.docname)).parent
        for link in list(self.document.findall(addnodes.pending_xref)):
            if link.get("reftype") != "myst":
                continue
            path = (here / link["reftarget"]).resolve()
            page = page_for(path)
            is_own_note = page == self.env.docname
            is_single_note = page is None and path.is_relative_to(NOTES)
            if is_own_note or is_single_note:
                file = os.path.relpath(path.with_suffix(".md"), here)
                copy = addnodes.download_reference("", "", *link.children, reftarget=file)
                copy["refdoc"] = self.env.docname
                link.replace_self(copy)
            elif page is not None:
                link.attributes.update(refdomain="doc", reftarget=page, reftargetid=None)
            elif path.is_dir():
                link.replace_self(nodes.inline("", "", *link.children))


class Doors(SphinxTransform):
    """The first table of the first page has the class ``doors``: its cells are shown as cards."""

    default_priority = 5

    def apply(self, **_: Any) -> None:
        if self.env.docname == "index":
            table = next(self.document.findall(nodes.table))
            table["classes"].append("doors")


def back_links(
    app: Sphinx, page: str, template: str, context: dict[str, Any], doctree: Any
) -> None:
    """Leave out links of the pages of sources that lead nowhere.

    Back to the reference: some names are documented as the package's, under another anchor. To the
    module of a type alias, which Sphinx takes to be that of ``dict`` or ``tuple``.
    """
    if page.startswith("_modules/"):
        known = app.env.domains.python_domain.objects
        back = re.compile(r'<a class="viewcode-back" href="[^"#]*#([^"]*)">.*?</a>')

        def place(link):
            return (
                link[0].replace(f"#{link[1]}", f"#{known[link[1]].node_id}")
                if link[1] in known
                else ""
            )

        context["body"] = back.sub(place, context["body"])
        context["body"] = re.sub(r'<li><a href="builtins.html">.*?</li>', "", context["body"])


def documented_constants(app: Sphinx) -> None:
    """Give the constants that ``coterie.core`` takes from its files the docstrings that they have there.

    Sphinx looks for the docstring of a constant only in the module in which it documents it.
    """
    package = ModuleAnalyzer.for_module("coterie.core")
    package.analyze()
    for module in pkgutil.iter_modules(coterie.core.__path__, "coterie.core."):
        analyzer = ModuleAnalyzer.for_module(module.name)
        analyzer.analyze()
        for (owner, name), lines in analyzer.attr_docs.items():
            if not owner and name in coterie.core.__all__:
                package.attr_docs[owner, name] = lines


def setup(app: Sphinx) -> None:
    app.connect("builder-inited", documented_constants)
    app.connect("source-read", add_toctrees)
    app.connect("source-read", add_page_of_the_root)
    app.add_html_math_renderer("mathml", (inline_formula, None), (displayed_formula, None))
    app.connect("autodoc-process-signature", signature)
    app.connect("autodoc-process-docstring", docstring)
    app.connect("autodoc-skip-member", skip)
    app.connect("html-page-context", back_links)
    app.add_transform(LinksOut)
    app.add_transform(Doors)
