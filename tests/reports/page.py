"""A page of HTML as a test reads it."""

from __future__ import annotations

import re
from collections import Counter
from html.parser import HTMLParser


class Page(HTMLParser):
    """The number of tags of a page, its ids, references and text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: Counter[str] = Counter()
        self.ids: list[str] = []
        self.references: set[str] = set()
        self.text = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags[tag] += 1
        for name, value in attrs:
            assert not name.startswith("on"), name
            if name == "id":
                self.ids.append(value or "")
            self.references.update(re.findall(r"(?:^|url\()#([\w.-]+)", value or ""))
            if name in ("src", "href", "action"):
                assert (value or "").startswith("#"), value

    def handle_data(self, data: str) -> None:
        self.text += data
