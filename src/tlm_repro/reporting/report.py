"""The report: one HTML page with the verdicts, figures, tables, cost and configuration of a reproduction.

The page needs no network and no other file, and equal inputs give equal bytes.
"""

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import get_args
from xml.etree import ElementTree

import jinja2

from tlm_repro.errors import ArtifactError
from tlm_repro.records.claims import Claim
from tlm_repro.reporting.claims.registry import TOY_SENTENCE
from tlm_repro.reporting.claims.verdicts import Verdict
from tlm_repro.reporting.published import NOT_PUBLISHED
from tlm_repro.reporting.sheets import Sheet

SVG = "http://www.w3.org/2000/svg"
XLINK = "http://www.w3.org/1999/xlink"
TARGET = re.compile(r"url\(#([^)]+)\)")
POINTS = re.compile(r"^([\d.]+)pt$")
# What a drawing consists of. Scripts, animations, HTML and images from elsewhere aren't among them.
SHAPES = {"path", "rect", "circle", "ellipse", "line", "polyline", "polygon", "text", "tspan", "textPath", "image"}
STRUCTURE = {"svg", "g", "defs", "symbol", "use", "style", "title", "desc", "a"}
PAINT = {"clipPath", "mask", "marker", "pattern", "linearGradient", "radialGradient", "stop"}
ELEMENTS = SHAPES | STRUCTURE | PAINT
HREFS = ("href", f"{{{XLINK}}}href")
XML_SPACE = "{http://www.w3.org/XML/1998/namespace}space"
EMBEDDED = re.compile(r"data:image/(png|jpeg|gif|webp);base64,[A-Za-z0-9+/=\s]*")
ELSEWHERE = re.compile(r"url\(\s*(?!#)|image-set\(|src\(", re.IGNORECASE)  # in CSS or an attribute
LONG = 32  # characters of a cell from which on it may be broken into lines
LARGEST = 1.35  # CSS pixels a point of a figure: its text, of 9 points and more, stays that of the page

CHOICES = (
    "Corpus and tokenizer: the paper names neither its corpus nor how a Llama 3 tokenizer comes to have 32K entries.",
    "Model shapes (layers, width, heads, tied or untied embeddings): none are published; parameter totals are matched.",
    "Optimiser betas, epsilon, clipping, warm-up and final learning rate.",
    "Group widths of Figure 2 (wider-early, wider-middle, wider-late).",
    "Which Titans variant is meant, and when the levels of Hope's continuum memory are updated.",
    "How texts longer than in training are read in needle-in-a-haystack, and by which rule its scores are compared.",
    "How token cosines are averaged in layer novelty.",
    "Number of seeds: the paper reports no spread over seeds.",
)


@dataclass(frozen=True)
class Figure:
    """`svg` is the text of an SVG file; `name` must be unique on the page, ids inside are made from it."""

    name: str
    caption: str
    svg: str

    @classmethod
    def read(cls, path: Path, caption: str) -> "Figure":
        """Raises ArtifactError when the file isn't there; its name without suffix becomes the figure's name."""
        try:
            return cls(path.stem, caption, path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise ArtifactError(f"{path} does not exist: make it with `snakemake figures`") from None


@dataclass(frozen=True)
class HtmlCell:
    text: str
    classes: str


def render(
    *,
    title: str,
    config: str,
    toy: bool,
    claims: Sequence[Claim],
    figures: Sequence[Figure],
    tables: Sequence[Sheet],
    cost: Sheet | None,
    configuration: str,
    environment: Mapping[str, str],
    links: Mapping[str, str],
    choices: Sequence[str] = CHOICES,
    fidelity: str = "../docs/fidelity.md",
) -> str:
    """The page as text.

    Args:
        cost: what the runs took; None: there were none.
        config: name of the configuration; `configuration` is its YAML text.
        toy: stamps the page as no evidence for or against the paper.
        environment: component → version; links: title → path relative to the page; fidelity: path of the choices' page.

    Raises:
        ArtifactError: a figure isn't well-formed SVG, or two figures share a name.
    """
    names = Counter(figure.name for figure in figures)
    doubled = [name for name, count in names.items() if count > 1]
    if doubled:
        raise ArtifactError(f"two figures are called '{doubled[0]}': give each its own name")
    counts = Counter((claim.outcome, claim.verdict) for claim in claims)
    environment_ = jinja2.Environment(
        loader=jinja2.PackageLoader("tlm_repro.reporting"), autoescape=True, undefined=jinja2.StrictUndefined
    )
    environment_.filters["cells"] = html_cells
    return environment_.get_template("report.html.j2").render(
        title=title,
        config=config,
        toy=toy,
        toy_sentence=TOY_SENTENCE.replace("this verdict is", "these verdicts are").replace(" is no ", " are no "),
        claims=claims,
        tally=sorted(counts.items(), key=lambda item: (get_args(Verdict).index(item[0][0]), item[0][1])),
        figures=[replace(figure, svg=inline_svg(figure)) for figure in figures],
        tables=tables,
        cost=cost,
        configuration=configuration,
        environment=environment,
        links=links,
        choices=choices,
        fidelity=fidelity,
    )


def html_cells(table: Sheet) -> Iterator[list[HtmlCell]]:
    """The rows of a table with their CSS classes: shade, alignment, absence."""
    for texts, tones in zip(table.text.itertuples(index=False), table.tones.itertuples(index=False), strict=True):
        row = []
        for column, text, tone in zip(table.text.columns, texts, tones, strict=True):
            classes = [tone, "numeric" if column in table.numeric else "", "absent" if text == NOT_PUBLISHED else ""]
            classes.append("long" if len(text) > LONG else "")
            row.append(HtmlCell(text, " ".join(filter(None, classes))))
        yield row


def inline_svg(figure: Figure) -> str:
    """The figure's `svg` element alone, its ids numbered in order after the figure's name.

    Several inline SVGs share one space of ids, and plotting libraries draw theirs at random: both would break the page.
    Metadata, which holds dates, is dropped, and style rules are confined to the figure. So is all that could run or
    fetch something: an SVG inside a page has the page's rights.
    """
    try:
        root = ElementTree.fromstring(figure.svg)
    except ElementTree.ParseError as error:
        raise ArtifactError(f"figure '{figure.name}' is not well-formed SVG ({error}): make it again") from None
    if root.tag != f"{{{SVG}}}svg":
        raise ArtifactError(f"figure '{figure.name}' is a <{root.tag}> document, an SVG was expected: make it again")
    for element in list(root.iter()):
        remove_active_content(element)
    root.attrib.pop("id", None)
    originals = [element.attrib["id"] for element in root.iter() if "id" in element.attrib]
    ids = {old: f"{figure.name}-{index}" for index, old in enumerate(dict.fromkeys(originals), start=1)}
    for element in root.iter():
        renamed(element, ids, figure.name)
    root.attrib |= {"id": figure.name, "role": "img", "aria-label": figure.caption}
    if width := POINTS.match(root.get("width", "")):  # never smaller than a pixel a point: narrow screens scroll
        root.attrib["style"] = f"min-width: {float(width[1]):.0f}px; max-width: {LARGEST * float(width[1]):.0f}px"
    ElementTree.register_namespace("", SVG)
    ElementTree.register_namespace("xlink", XLINK)
    try:
        return ElementTree.tostring(root, encoding="unicode")
    except RecursionError:
        raise ArtifactError(f"figure '{figure.name}' is nested too deeply: make it again") from None


def remove_active_content(element: ElementTree.Element) -> None:
    """Removes an element's children that aren't parts of a drawing, and attributes that run or fetch something."""
    only_text = element.tag in (f"{{{SVG}}}title", f"{{{SVG}}}desc", f"{{{SVG}}}style")
    for child in list(element):
        namespace, _, name = str(child.tag).removeprefix("{").partition("}")
        is_style = name == "style"
        if only_text or namespace != SVG or name not in ELEMENTS or (is_style and not is_plain_css(child.text or "")):
            element.remove(child)
    for name, value in list(element.attrib.items()):
        if name in HREFS:
            keep = value.startswith("#") or (element.tag == f"{{{SVG}}}image" and bool(EMBEDDED.fullmatch(value)))
        elif name == "style":
            keep = is_plain_css(value)
        else:
            namespaced = name.startswith("{") and name != XML_SPACE
            keep = not namespaced and not name.lower().startswith("on") and not ELSEWHERE.search(value)
        if not keep:
            del element.attrib[name]


def is_plain_css(text: str) -> bool:
    """Whether style rules refer to the figure alone. At-rules and escapes could hide an address."""
    return not ELSEWHERE.search(text) and "@" not in text and "\\" not in text


def renamed(element: ElementTree.Element, ids: Mapping[str, str], scope: str) -> None:
    """Renames the ids an element has and refers to; a style sheet gets `scope` before each of its selectors."""

    def target(match: re.Match[str]) -> str:
        return f"url(#{ids.get(match[1], match[1])})"

    for name, value in element.attrib.items():
        if name == "id":
            element.attrib[name] = ids[value]
        elif name in ("href", f"{{{XLINK}}}href") and value.startswith("#"):
            element.attrib[name] = f"#{ids.get(value[1:], value[1:])}"
        else:
            element.attrib[name] = TARGET.sub(target, value)
    if element.tag == f"{{{SVG}}}style" and element.text:
        selector = scope.replace(".", r"\\.")  # a dot would begin a class
        element.text = re.sub(r"(^|\})\s*([^{}]+)\{", rf"\1#{selector} \2{{", TARGET.sub(target, element.text))
