# SPDX-License-Identifier: MIT
r"""Regular expressions of somebody else's file, matched in bounded time.

PEFT names modules by regular expressions. Python's own engine tries one way after the other, and for a
pattern such as ``((a+)+)+!`` there are more ways than can ever be tried. Here the ends of all matches are
followed at the same time, and a pattern that takes too many steps is refused.

Understood are letters, ``.``, classes such as ``[0-9]``, escapes such as ``\d`` and ``\.``, groups, ``|``,
the counts ``* + ? {2} {2,} {2,5}`` (greedy or lazy, which makes no difference to whether a text matches), and
``^`` and ``$``. Anything else is refused.

Example:
    >>> matches(r"layers\.[0-9]+\.(q|v)_proj", "layers.11.v_proj")
    True
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from attnscope.untrusted.limits import MAX_PATTERN_CHARACTERS

#: Letters of the name of a module.
MAX_LETTERS = 1_000
#: Steps of all patterns of a file; a name of 100 letters and a usual pattern take some hundreds.
MAX_STEPS = 5_000_000
#: Groups inside of each other.
_MAX_DEPTH = 50
_COUNT = re.compile(r"[*+?]|\{\d{1,4}\}|\{\d{0,4},\d{0,4}\}")
_CLASS = re.compile(r"\[\^?\]?(?:\\.|[^\]\\])*\]")
_GROUP = re.compile(r"\((?:\?:|\?P<\w+>)?(?!\?)")

#: From a place in the text to the places where a match of a part of the pattern can end.
_Ends = Callable[[int], frozenset[int]]


class Steps:
    """A count of the steps that patterns have taken, and the most that they may take."""

    def __init__(self, most: int = MAX_STEPS) -> None:
        self.count, self.most = 0, most

    def take(self, count: int, pattern: str) -> None:
        """Count steps; raise ValueError when there are too many."""
        self.count += count
        if self.count > self.most:
            raise ValueError(f"the pattern {pattern[:80]!r} takes more than {self.most:,} steps")


def matches(pattern: str, text: str, steps: Steps | None = None) -> bool:
    """Return whether a regular expression matches a whole text, as `re.fullmatch` tells.

    Args:
        pattern: the expression.
        text: the text.
        steps: count that several calls share; None takes a new one.

    Raises:
        ValueError: a pattern or a text that is too long, a pattern that is not understood, or one that takes
            too many steps.
    """
    if len(pattern) > MAX_PATTERN_CHARACTERS or len(text) > MAX_LETTERS:
        most = f"{MAX_PATTERN_CHARACTERS} letters and a name of more than {MAX_LETTERS:,}"
        raise ValueError(f"a pattern of more than {most} are not matched")
    matcher = _Matcher(pattern, text, steps or Steps())
    ends = matcher.alternatives(0)
    if matcher.place < len(pattern):
        raise ValueError(f"the pattern {pattern[:80]!r} has a ) without its (")
    return len(text) in ends(0)


@dataclass
class _Matcher:
    """A pattern that is read once, and the text that it is matched against.

    Attributes:
        place: how far the pattern is read.
    """

    pattern: str
    text: str
    steps: Steps
    place: int = 0

    def alternatives(self, depth: int) -> _Ends:
        """Read alternatives up to the end of the pattern or of its group."""
        if depth > _MAX_DEPTH:
            raise ValueError(f"the pattern {self.pattern[:80]!r} has groups nested too deeply")
        options = [self._sequence(depth)]
        while self.pattern.startswith("|", self.place):
            self.place += 1
            options.append(self._sequence(depth))
        if len(options) == 1:
            return options[0]
        return self._remembered(lambda start: frozenset().union(*(ends(start) for ends in options)))

    def _after(self, places: frozenset[int], part: _Ends) -> frozenset[int]:
        """Return where a part can end that begins at any of some places."""
        reachable: set[int] = set()
        for start in places:
            ends = part(start)
            self._step(1 + len(ends))
            reachable |= ends
        return frozenset(reachable)

    def _sequence(self, depth: int) -> _Ends:
        parts = []
        while self.place < len(self.pattern) and self.pattern[self.place] not in "|)":
            parts.append(self._counted(self._part(depth)))

        def ends(start: int) -> frozenset[int]:
            places = frozenset({start})
            for part in parts:
                places = self._after(places, part)
            return places

        return self._remembered(ends)

    def _part(self, depth: int) -> _Ends:
        letter = self.pattern[self.place]
        if letter == "(":
            opening = _GROUP.match(self.pattern, self.place)
            if opening is None:
                raise self._refused(self.pattern[self.place : self.place + 3])
            self.place = opening.end()
            inside = self.alternatives(depth + 1)
            if not self.pattern.startswith(")", self.place):
                raise ValueError(f"the pattern {self.pattern[:80]!r} has a ( without its )")
            self.place += 1
            return inside
        if letter in "^$":
            self.place += 1
            where = 0 if letter == "^" else len(self.text)
            return lambda start: frozenset({start} if start == where else ())
        return self._letter()

    def _letter(self) -> _Ends:
        """Read what matches a single letter."""
        letter, size = self.pattern[self.place], 1
        if letter == "[":
            match = _CLASS.match(self.pattern, self.place)
            if match is None:
                raise ValueError(f"the pattern {self.pattern[:80]!r} has a [ without its ]")
            size = len(match[0])
        elif letter == "\\":
            size = 2
        source = self.pattern[self.place : self.place + size]
        if letter in "*+?" or (letter == "\\" and not re.fullmatch(r"\\([dDsSwW]|[^a-zA-Z0-9])", source)):
            raise self._refused(source)
        self.place += size
        if source == ".":
            return lambda start: self._advance(start, start < len(self.text) and self.text[start] != "\n")
        try:
            single = re.compile(source)
        except re.error as error:
            raise ValueError(f"the pattern {self.pattern[:80]!r} is no regular expression: {error}") from None
        return lambda start: self._advance(start, single.match(self.text, start, start + 1) is not None)

    def _advance(self, start: int, fits: bool) -> frozenset[int]:
        self._step()
        return frozenset({start + 1} if fits else ())

    def _counted(self, part: _Ends) -> _Ends:
        """Read how often a part may stand."""
        count = _COUNT.match(self.pattern, self.place)
        if count is None:
            return part
        self.place = count.end()
        if self.pattern.startswith("?", self.place):
            self.place += 1
        elif self.pattern.startswith(("*", "+", "{"), self.place):
            raise self._refused(self.pattern[self.place])
        least, most = {"*": (0, None), "+": (1, None), "?": (0, 1)}.get(count[0], (-1, None))
        if least < 0:
            low, comma, high = count[0][1:-1].partition(",")
            least = int(low or 0)
            most = int(high) if high else None if comma else least

        def ends(start: int) -> frozenset[int]:
            places, number = frozenset({start}), 0
            reached: set[int] = set()
            while places and (most is None or number <= most):
                if number >= least:
                    if places <= reached:
                        break
                    reached |= places
                after = self._after(places, part)
                if number < least and after == places:
                    # it stands for nothing, so that it stands as often as it has to
                    number = least
                    continue
                places, number = after, number + 1
            return frozenset(reached)

        return self._remembered(ends)

    def _remembered(self, ends: _Ends) -> _Ends:
        results: dict[int, frozenset[int]] = {}

        def remembered(start: int) -> frozenset[int]:
            if start not in results:
                results[start] = ends(start)
                self._step(len(results[start]))
            return results[start]

        return remembered

    def _step(self, count: int = 1) -> None:
        self.steps.take(count, self.pattern)

    def _refused(self, part: str) -> ValueError:
        return ValueError(f"the pattern {self.pattern[:80]!r} has {part!r}, which is not understood")
