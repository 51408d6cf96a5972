"""A whole page: one file that contains its style and script, and loads nothing."""

from __future__ import annotations

from spotrun.report.html.assets import POLICY, SCRIPT, STYLE
from spotrun.report.html.markup import Markup, element, join


def document(title: str, body: Markup) -> str:
    head = join(
        Markup('<meta charset="utf-8">'),
        Markup(f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">'),
        Markup('<meta name="viewport" content="width=device-width, initial-scale=1">'),
        element("title", title),
        element("style", Markup(STYLE)),
    )
    whole = join(element("head", head), element("body", body, element("script", Markup(SCRIPT))))
    return f"<!doctype html>\n{element('html', whole, lang='en').text}\n"
