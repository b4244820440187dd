"""matplotlib's SVG made part of a page.

It loses its colours and fonts: every stroke and fill gets a class that the style sheet of the page colours (light, dark, print), and text
takes the font of the page. Nothing is left that needs inline styles, so the content-security policy can forbid them.
"""

import re
import xml.etree.ElementTree as ET
from collections.abc import Mapping

_KEPT = {
    "opacity",
    "fill-opacity",
    "text-anchor",
    "font-size",
    *(f"stroke-{name}" for name in ("width", "linecap", "linejoin", "dasharray", "dashoffset", "opacity")),
}


def inline(svg: str, classes: Mapping[str, str], prefix: str, label: str) -> str:
    """The element to put into a page: no style, no metadata (it holds the date), ids that are unique there and the same at every drawing.

    Args:
        svg: what matplotlib wrote, with ``svg.fonttype`` none.
        classes: colour as "#rrggbb" -> class; a fill gets it as ``f-class``, a stroke as ``s-class``.
        prefix: begins every id.
        label: what a screen reader says in place of the picture.
    """
    root = ET.fromstring(svg)
    names: dict[str, str] = {}

    def renamed(match: re.Match[str]) -> str:
        return names.setdefault(match[0], f"{prefix}-{len(names)}")

    for element in list(root.iter()):
        element.tag = element.tag.rpartition("}")[2]
        for child in list(element):
            if child.tag.rpartition("}")[2] in ("metadata", "style"):
                element.remove(child)
        for key in list(element.attrib):  # xlink:href, which HTML writes as href
            if key.startswith("{"):
                element.set(key.rpartition("}")[2], element.attrib.pop(key))
        for key in ("href", "clip-path"):
            if value := element.get(key):
                element.set(key, re.sub(r"(?<=#)[^)]+", renamed, value))
        if style := element.attrib.pop("style", None):
            _restyle(element, style, classes)
    for element in root.iter():
        if (old := element.attrib.pop("id", None)) and old in names:
            element.set("id", names[old])
    for key in ("width", "height", "version"):
        root.attrib.pop(key, None)
    root.attrib |= {"role": "img", "aria-label": label, "fill": "currentColor", "stroke-linejoin": "round", "stroke-linecap": "butt"}
    return ET.tostring(root, encoding="unicode")


def _restyle(element: ET.Element, style: str, classes: Mapping[str, str]) -> None:
    names = []
    for key, value in (part.split(":", 1) for part in style.split(";") if ":" in part):
        key, value = key.strip(), value.strip()
        if key in ("fill", "stroke"):
            if name := classes.get(value):
                names.append(f"{key[0]}-{name}")
            else:
                element.set(key, value)
        elif key == "font":  # "8.5px 'DejaVu Sans'": the size is ours, the family is the page's
            if size := re.search(r"[\d.]+px", value):
                element.set("font-size", size[0])
        elif key in _KEPT:
            element.set(key, value)
    if names:
        element.set("class", " ".join(names))
