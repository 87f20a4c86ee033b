# SPDX-License-Identifier: MIT
"""Compares what `kernel_numbers` printed on two processors: `compare_numbers.py EXPECTED RESULT`.

Each line is a place (`float64 wide causal 40 17`) and 64 bits, a float64 or a whole number. Whole numbers are
equal; other numbers differ by no more than what sums in another order and products fused with a sum leave.
"""

from __future__ import annotations

import math
import struct
import sys
from pathlib import Path

#: Relative and absolute difference that is allowed: as in tests/python/package/test_isa.py, and in float32.
BOUNDS = {"float64": (1e-9, 1e-11), "float32": (2e-5, 1e-6)}
#: Bits below these read as a float64 are subnormal: those of a whole number.
SMALLEST_NORMAL = 1 << 52


def read_numbers(path: str | Path) -> dict[str, int]:
    """Return the bits of every place of a file."""
    numbers = {}
    for line in Path(path).read_text("ascii").splitlines():
        place, _, bits = line.rpartition(" ")
        numbers[place] = int(bits, 16)
    return numbers


def as_float(bits: int) -> float:
    return float(struct.unpack("<d", struct.pack("<Q", bits))[0])


def is_whole(bits: int) -> bool:
    """Return whether the bits are a whole number, of either sign, and not zero."""
    return 0 < bits < SMALLEST_NORMAL or bits > (1 << 64) - SMALLEST_NORMAL


def distance(place: str, expected: int, result: int) -> float:
    """Return the difference of two numbers, in multiples of the allowed one; 0 of equal bits."""
    if expected == result:
        return 0.0
    if is_whole(expected) or is_whole(result):
        return math.inf
    a, b = as_float(expected), as_float(result)
    if math.isnan(a) or math.isnan(b):
        return 0.0 if math.isnan(a) and math.isnan(b) else math.inf
    relative, absolute = BOUNDS[place.split()[0]]
    return abs(a - b) / (absolute + relative * abs(a))


def compare(expected: dict[str, int], result: dict[str, int]) -> tuple[str, list[str]]:
    """Return a sentence about all numbers, and a line for every one that is not allowed."""
    if expected.keys() != result.keys():
        return "other places", [f"{len(expected)} numbers, {len(result)} of the other"]
    equal = sum(expected[place] == result[place] for place in expected)
    distances = {place: distance(place, expected[place], result[place]) for place in expected}
    wrong = [
        f"{place}: {as_float(expected[place])!r} and {as_float(result[place])!r}, {far:.3g} times the bound"
        for place, far in distances.items()
        if far > 1
    ]
    allowed = [far for far in distances.values() if far <= 1]
    largest = max(allowed, default=0.0)
    counts = f"{len(expected)} numbers, {equal} to the bit, {len(wrong)} beyond the bound"
    return f"{counts}, the others within {largest:.2g} of it", wrong


def main(expected: str, result: str) -> int:
    sentence, wrong = compare(read_numbers(expected), read_numbers(result))
    print(sentence, *wrong[:20], sep="\n")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
