"""What keys do: a state and one step per key, with no terminal in it."""

from __future__ import annotations

import codecs
import re
from dataclasses import dataclass, field
from typing import Final

from bottomless.errors import InvalidRequest
from bottomless.top.columns import DEFAULT_SORT, SORT_KEYS, find_sort_key

_SEQUENCES: Final = {
    "[A": "up",
    "OA": "up",
    "[B": "down",
    "OB": "down",
    "[5~": "page up",
    "[6~": "page down",
    "[H": "home",
    "OH": "home",
    "[1~": "home",
    "[F": "end",
    "OF": "end",
    "[4~": "end",
}
_SEQUENCE: Final = re.compile(r"(\[[0-9;?]*[ -/]*[@-~]|O[@-~])")
_UNFINISHED: Final = re.compile(r"\[[0-9;?]*|O|")
_NAMED: Final = {"\r": "enter", "\n": "enter", "\x7f": "backspace", "\x08": "backspace"}
_MOVES: Final = {"up": -1, "k": -1, "down": 1, "j": 1}
_FILTER_MAX: Final = 256


class KeyReader:
    """Turns what a terminal sends into the names of keys."""

    def __init__(self) -> None:
        self._decode = codecs.getincrementaldecoder("utf-8")("replace").decode
        self._rest = ""

    def feed(self, data: bytes) -> list[str]:
        """The keys that were pressed; a sequence may come in two parts."""
        text = self._rest + self._decode(data)
        self._rest = ""
        keys = []
        while text:
            first, text = text[0], text[1:]
            if first != "\x1b":
                keys.append(_NAMED.get(first, first))
            elif match := _SEQUENCE.match(text):
                keys.append(_SEQUENCES.get(match[1], "unknown"))
                text = text[match.end() :]
            elif _UNFINISHED.fullmatch(text):
                self._rest, text = first + text, ""
            else:
                keys.append("escape")
        return keys

    def flush(self) -> list[str]:
        """Nothing more has come: what is left was Escape itself."""
        rest, self._rest = self._rest, ""
        return ["escape", *rest[1:]] if rest else []


@dataclass(slots=True)
class Controls:
    """How the figures are looked at."""

    sort: str = DEFAULT_SORT
    reverse: bool = False
    name_filter: str = ""
    rows_max: int | None = None
    """Show no more streams than that; None for what the terminal has room for."""
    is_paused: bool = False
    has_help: bool = False
    is_over: bool = False
    selected: int = 0
    """Which of the streams on the list is marked."""
    prompt: str = ""
    """What is being asked for: ``/``, ``o`` or ``n``; nothing where keys are commands."""
    typed: str = ""
    message: str = ""
    page: int = field(default=10)
    """How many streams are seen at a time; whoever draws knows."""

    def press(self, key: str) -> None:
        """One key."""
        self.message = ""
        if self.prompt:
            self._type(key)
        elif self.has_help:
            # Any key leads back; q does not also leave, one may have asked for help by mistake.
            self.has_help = False
        elif key in _MOVES:
            self.selected += _MOVES[key]
        elif key in {"page up", "page down", "home", "end"}:
            self._leap(key)
        else:
            self._command(key)

    def settle(self, count: int) -> None:
        """There are that many streams on the list."""
        self.selected = max(0, min(self.selected, count - 1))

    def _leap(self, key: str) -> None:
        leaps = {"page up": self.selected - self.page, "page down": self.selected + self.page}
        self.selected = leaps.get(key, 0 if key == "home" else 10**9)

    def _command(self, key: str) -> None:
        match key:
            case "q" | "Q":
                self.is_over = True
            case "p" | " ":
                self.is_paused = not self.is_paused
            case "s":
                following = SORT_KEYS.index(self.sort) + 1
                self.sort = SORT_KEYS[following % len(SORT_KEYS)]
            case "r":
                self.reverse = not self.reverse
            case "?" | "h":
                self.has_help = True
            case "/" | "o" | "n":
                self.prompt = key
                self.typed = self.name_filter if key == "/" else ""
            case "escape":
                self.name_filter = ""

    def _type(self, key: str) -> None:
        if key == "enter":
            self._finish(self.prompt, self.typed.strip() if self.prompt != "/" else self.typed)
            self.prompt = ""
        elif key == "escape":
            self.prompt = ""
        elif key == "backspace":
            self.typed = self.typed[:-1]
        elif key == "\x15":
            # Ctrl-U, as in a shell.
            self.typed = ""
        elif len(key) == 1 and key.isprintable() and len(self.typed) < _FILTER_MAX:
            self.typed += key

    def _finish(self, prompt: str, text: str) -> None:
        if prompt == "/":
            self.name_filter, self.selected = text, 0
        elif prompt == "o":
            try:
                self.sort = find_sort_key(text)
            except InvalidRequest as error:
                self.message = str(error)
        elif not text or text == "0":
            self.rows_max = None
        elif text.isascii() and text.isdigit():
            self.rows_max = int(text[:9])
        else:
            self.message = f"{text!r} is no number of rows"
