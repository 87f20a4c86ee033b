# SPDX-License-Identifier: MIT
"""Text as pdflatex sets it."""

from __future__ import annotations

import re

#: Letters of our own words and of tokens that pdflatex does not set by itself.
_LETTERS = {
    "−": "$-$",
    "–": "--",
    "…": r"\dots{}",
    "“": "``",
    "”": "''",
    "‖": r"$\Vert$",
    "∞": r"$\infty$",
    "→": r"$\to$",
    "≥": r"$\ge$",
    "λ": r"$\lambda$",
    "β": r"$\beta$",
    "σ": r"$\sigma$",
    "₀": "$_0$",
    "₁": "$_1$",
    "₂": "$_2$",
    "␣": r"\textvisiblespace{}",
    "×": r"$\times$",
    "<": "$<$",
    ">": "$>$",
    "|": "$|$",
}

#: Letters of LaTeX that a backslash does not make ordinary.
_SPECIAL = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}


def escaped(text: str) -> str:
    r"""Return plain text with LaTeX's own letters made ordinary.

    >>> print(escaped(r"50 % of a_b, \input{x}^2"))
    50 \% of a\_b, \textbackslash{}input\{x\}\textasciicircum{}2
    """
    return re.sub(r"[&%$#_{}\\~^]", lambda match: _SPECIAL.get(match[0], rf"\{match[0]}"), text)


def pdflatex(source: str) -> str:
    r"""Return LaTeX source in letters that pdflatex can set; those that it has no glyph for by their code
    point.

    >>> pdflatex("λ₂ − 1, 漢")
    '$\\lambda$$_2$ $-$ 1, \\texttt{U+6F22}'
    """
    # a bracket at the start of a row would be read as the argument of the line break before it
    source = source.replace("\\\\\n[", "\\\\\n{}[")
    return re.sub(
        r"[^\n -~\u00a0-\u017f]|[<>|]",
        lambda match: _LETTERS.get(match[0]) or rf"\texttt{{U+{ord(match[0]):04X}}}",
        source,
    )
