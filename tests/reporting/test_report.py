"""The page: self-contained, the same bytes twice, no clash between figures, and read with an HTML parser."""

import re
from collections import Counter
from html.parser import HTMLParser

import pandas as pd
import pytest

from tlm_repro.errors import ArtifactError
from tlm_repro.reporting import report
from tlm_repro.reporting.claims import registry as claims
from tlm_repro.reporting.published import NOT_PUBLISHED
from tlm_repro.reporting.sheets import Sheet

SVG = """<?xml version="1.0" encoding="utf-8"?>
<!DOCTYPE svg PUBLIC "-//W3C//DTD SVG 1.1//EN" "http://www.w3.org/Graphics/SVG/1.1/DTD/svg11.dtd">
<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink" viewBox="0 0 9 9" id="top">
<metadata><date>2026-01-01T00:00:00</date></metadata>
<defs><style type="text/css">*{stroke-linejoin: round}</style><clipPath id="RANDOM"><rect width="9"/></clipPath>
<path id="mark" d="M0 0"/></defs>
<g clip-path="url(#RANDOM)" style="fill: url(#RANDOM)"><use xlink:href="#mark"/></g></svg>
"""


class Page(HTMLParser):
    """Collects what the tests ask about."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.ids, self.references, self.text = Counter(), [], [], []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags[tag] += 1
        for name, value in attrs:
            if name == "id":
                self.ids.append(value)
            if name in ("href", "src", "xlink:href"):
                self.references.append((tag, value))

    def handle_data(self, data):
        self.text.append(data)


def page(toy=True, svg=SVG, names=("sweep", "motivation")):
    text = pd.DataFrame({"Allocation": ["uniform", "<b>"], "Loss": ["2.79 ± 0.01", NOT_PUBLISHED]})
    tones = pd.DataFrame({"Allocation": ["", ""], "Loss": ["better", ""]})
    return report.render(
        title="A report",
        config="demo",
        toy=toy,
        claims=claims.published(),
        figures=[report.Figure(name, f"Figure {name}", svg) for name in names],
        tables=[Sheet("t", "A table.", text, tones, ("Loss",))],
        cost=Sheet("cost", "What it took.", text, tones, ("Loss",)),
        configuration="model: <tiny> & small",
        environment={"torch": "2.13.0"},
        links={"claims": "claims.json"},
    )


def test_equal_inputs_give_equal_bytes_whatever_ids_the_figures_drew():
    assert page() == page(svg=SVG.replace("RANDOM", "p4f9c"))


def test_nothing_is_fetched_and_links_are_relative():
    found = Page(page())
    assert not {"script", "link", "img", "iframe"} & set(found.tags)
    assert all(tag in ("a", "use") and not re.match(r"[a-z]+:|//", target) for tag, target in found.references)
    assert "@import" not in page()


def test_figures_share_no_id_and_every_reference_resolves():
    text = page()
    found = Page(text)
    assert max(Counter(found.ids).values()) == 1
    targets = re.findall(r"url\(#([^)]+)\)", text) + [t[1:] for _, t in found.references if t.startswith("#")]
    assert len(targets) >= 6
    assert set(targets) <= set(found.ids)


def test_figures_lose_dates_prologue_and_page_wide_styles():
    text = page()
    assert "2026-01-01" not in text
    assert "<?xml" not in text
    assert text.count("<!") == 1  # the page's own doctype
    assert "#sweep *{stroke-linejoin: round}" in text


def test_every_claim_has_its_badge():
    text = page()
    reproduced = sum(claim.verdict == "reproduced" for claim in claims.published())
    assert len(re.findall(r'<article class="claim">', text)) == len(claims.ENTRIES)
    assert len(re.findall(r'<span class="badge reproduced">reproduced</span>', text)) == reproduced
    assert f'<span class="badge reproduced">{reproduced} reproduced</span>' in text
    assert '<span class="badge not-run">3 not run</span>' in text


@pytest.mark.parametrize("toy", [True, False])
def test_toy_stamp(toy):
    assert ("no evidence for or against the paper" in "".join(Page(page(toy)).text)) is toy


def test_contents_are_escaped_and_cells_classed():
    text = page()
    assert "model: &lt;tiny&gt; &amp; small" in text
    assert '<th scope="row">&lt;b&gt;</th>' in text
    assert '<td class="better numeric">2.79 ± 0.01</td>' in text
    assert f'<td class="numeric absent">{NOT_PUBLISHED}</td>' in text


def test_page_adapts_to_phones_and_dark_mode():
    text = page()
    assert 'name="viewport"' in text
    assert "prefers-color-scheme: dark" in text
    assert text.count('<div class="scroll"') == Page(text).tags["table"] == 2  # the table and the cost


def test_figures_keep_a_pixel_a_point_and_scroll_where_that_is_too_wide():
    """Text of 9 points stays readable on a phone."""
    drawn = page(svg=SVG.replace('viewBox="0 0 9 9"', 'width="662.4pt" height="316.8pt" viewBox="0 0 662.4 316.8"'))
    assert drawn.count("min-width: 662px; max-width: 894px") == 2
    assert "min-width: 0px" not in page()


def test_page_is_read_by_keyboard_and_screen_reader():
    text = page()
    found = Page(text)
    assert '<html lang="en">' in text
    assert found.tags["title"] == found.tags["h1"] == found.tags["main"] == found.tags["nav"] == 1
    assert text.index('<a class="skip" href="#claims">') < text.index("<main>")
    for name in re.findall(r'<a(?: class="skip")? href="#([^"]+)"', text):
        assert name in found.ids
    assert set(re.findall(r'aria-labelledby="([^"]+)"', text)) <= set(found.ids)
    assert len(re.findall(r'<svg[^>]* role="img" aria-label="Figure [a-z]+"', text)) == found.tags["svg"] == 2
    assert all("scope=" in cell for cell in re.findall(r"<th[ >][^>]*", text) if cell != "<thead")
    assert text.count('tabindex="0" role=') == found.tags["table"] + found.tags["figure"]
    headings = re.findall(r"<h(\d)", text)
    assert headings[0] == "1"
    assert set(headings[1:]) == {"2"}


# Every colour that text has, and those that lie behind it.
TEXT = [
    ("ink", ("paper", "card", "better", "better-pale", "worse", "worse-pale")),
    ("soft", ("paper", "card")),
    ("accent", ("paper", "card")),
    ("good", ("good-bg",)),
    ("bad", ("bad-bg",)),
    ("open", ("open-bg",)),
    ("none", ("none-bg",)),
]


def schemes():
    """Scheme → variable → hexadecimal colour; dark inherits what it doesn't set."""
    style = page().split("<style>")[1].split("</style>")[0]
    light, dark = style.split("prefers-color-scheme: dark", 1)
    colours = [dict(re.findall(r"--([a-z-]+): (#[0-9a-f]{6})\b", part)) for part in (light, dark)]
    return {"light": colours[0], "dark": {**colours[0], **colours[1]}}


def luminance(colour):
    """WCAG 2.2, relative luminance."""
    parts = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one, other):
    """WCAG 2.2, contrast ratio: 1 to 21."""
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def test_contrast_by_known_values():
    assert contrast("#ffffff", "#000000") == pytest.approx(21)
    assert contrast("#777777", "#ffffff") == pytest.approx(4.48, abs=0.005)  # the grey that famously just fails


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize(("text", "behind"), [(text, one) for text, several in TEXT for one in several])
def test_text_stands_out(scheme, text, behind):
    """AA: 4.5 to 1 for text of any size."""
    colours = schemes()[scheme]
    assert contrast(colours[text], colours[behind]) >= 4.5


def test_every_colour_of_text_is_checked():
    style = page().split("<style>")[1].split("</style>")[0]
    assert set(re.findall(r"[ {;]color: var\(--([a-z-]+)\)", style)) == {text for text, _ in TEXT}


def test_the_cost_has_its_section():
    text = page()
    assert text.index('<section id="cost">') > text.index('<section id="tables">')
    assert "What it took." in text


def test_bad_figures_are_refused_by_name(tmp_path):
    with pytest.raises(ArtifactError, match="'sweep' is not well-formed"):
        page(svg="<svg")
    with pytest.raises(ArtifactError, match="an SVG was expected"):
        page(svg="<html/>")
    with pytest.raises(ArtifactError, match="two figures are called 'a'"):
        page(names=("a", "a"))
    with pytest.raises(ArtifactError, match=r"lost\.svg does not exist"):
        report.Figure.read(tmp_path / "lost.svg", "lost")


RASTER = "data:image/png;base64,iVBORw0KGgo="


@pytest.mark.parametrize(
    "part",
    [
        "<script>alert(1)</script>",
        "<g><g><script href='x.js'/></g></g>",
        "<foreignObject><p xmlns='http://www.w3.org/1999/xhtml' onclick='alert(1)'/></foreignObject>",
        "<b xmlns='http://www.w3.org/1999/xhtml' onclick='alert(1)'>x</b>",
        "<rect onload='alert(1)' OnClick='alert(1)'/>",
        "<a href='javascript:alert(1)'><rect/></a>",
        "<a xlink:href='https://alert.example'><rect/></a>",
        "<use href='other.svg#alert'/>",
        "<image href='https://alert.example/x.png'/>",
        "<image href='data:image/svg+xml;base64,alert'/>",
        "<use href='#m'><animate attributeName='href' to='javascript:alert(1)'/><set to='alert'/></use>",
        "<style>@import 'https://alert.example/x.css';</style>",
        "<style>rect { fill: url(https://alert.example/x.svg#y) }</style>",
        "<style>rect { fill: u\\72l(//alert.example) }</style>",
        "<rect style='fill: url( \"//alert.example\")'/>",
        "<rect fill='url(//alert.example#x)'/>",
        "<rect style='background: image-set(\"//alert.example\" 1x)'/>",
        "<g xml:base='https://alert.example'><rect/></g>",
        "<title><style>&lt;/style&gt;alert</style></title>",
        "<feImage href='//alert.example'/>",
        "<unknown>alert</unknown>",
    ],
)
def test_nothing_in_a_figure_runs_or_fetches(part):
    svg = SVG.replace("</svg>", f"{part}<rect id='last'/></svg>")
    drawn = report.inline_svg(report.Figure("own", "Own", svg))
    assert not re.search(r"alert|javascript|script|foreignObject|animate|\bon\w+=|x\.js|@import|base=", drawn)
    assert drawn.rstrip().endswith('<rect id="own-3" /></svg>')


def test_embedded_images_and_references_within_a_figure_stay():
    part = f"<title>Loss</title><image xlink:href='{RASTER}'/><rect style='fill: url(#RANDOM)' transform='scale(2)'/>"
    drawn = report.inline_svg(report.Figure("own", "Own", SVG.replace("</svg>", f"{part}</svg>")))
    for kept in (RASTER, "<title>Loss</title>", 'style="fill: url(#own-1)"', 'transform="scale(2)"'):
        assert kept in drawn


def test_deep_figures_are_refused_by_name():
    svg = '<svg xmlns="http://www.w3.org/2000/svg">' + "<g>" * 50_000 + "</g>" * 50_000 + "</svg>"
    with pytest.raises(ArtifactError, match="figure 'deep' is nested too deeply"):
        report.inline_svg(report.Figure("deep", "Deep", svg))
