# SPDX-License-Identifier: MIT
"""Makes the packaged questions: `python -m attnscope.studies.hallucination_geometry.prompts.make`.

* `factual`: a template with a subject of its own.
* `impossible`: the templates of a pair exchange their subjects, slot by slot in the order of lengths, so that
  over a pair both buckets have the same words.
* `unknown`: the template with an invented subject of as many letters, drawn from the letter trigrams of all
  subjects; of six candidates the study takes the first that has as many tokens as the subject.
"""

from __future__ import annotations

import csv
import io
import random
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from attnscope.studies.hallucination_geometry.prompts.known import COMMON_WORDS
from attnscope.studies.hallucination_geometry.prompts.subjects import PAIRS, slots

FILE = Path(__file__).with_name("hallucination_geometry.csv")
COLUMNS = ("question", "bucket", "template", "pair", "answer", "fold", "subject", "candidates")
SEED, CANDIDATES = 0, 6


class Names:
    """Words that are spelt as the subjects are.

    Args:
        subjects: all of them.
        rng: seeded.
    """

    def __init__(self, subjects: list[str], rng: random.Random) -> None:
        self.rng = rng
        self.known = {subject.lower() for subject in subjects} | COMMON_WORDS
        self.following: dict[str, list[str]] = defaultdict(list)
        for subject in subjects:
            letters = f"^^{subject.lower()}$"
            for at in range(len(letters) - 2):
                self.following[letters[at : at + 2]].append(letters[at + 2])

    def draw(self, length: int) -> str:
        """Return a word of a number of letters that is no subject and has not been drawn before.

        Three and four letters have few words that end as subjects do; then any end will do.
        """
        for attempt in range(100_000):
            word = "^^"
            while len(word) - 2 < length:
                choices = [letter for letter in self.following[word[-2:]] if letter != "$"]
                if not choices:
                    break
                word += self.rng.choice(choices)
            drawn = word[2:]
            ends = len(drawn) == length and ("$" in self.following[word[-2:]] or attempt > 500)
            if ends and drawn not in self.known:
                self.known.add(drawn)
                return drawn
        raise RuntimeError(f"no word of {length} letters is left")


def rows() -> Iterator[dict[str, str]]:
    """Yield the questions, in the order of the file."""
    subjects = [subject for pair in PAIRS for _, _, listed in pair for subject, _ in slots(listed)]
    names = Names(subjects, random.Random(SEED))
    for number, pair in enumerate(PAIRS):
        slots_of_side = [slots(listed) for _, _, listed in pair]
        for side, (name, template, _) in enumerate(pair):
            for slot, (subject, answer) in enumerate(slots_of_side[side]):
                fixed = {"template": name, "pair": f"{name}-{slot:02d}", "fold": str(number)}
                other = slots_of_side[1 - side][slot][0]
                invented = [names.draw(len(subject)) for _ in range(CANDIDATES)]
                invented = [name.capitalize() if subject[0].isupper() else name for name in invented]
                for bucket, word, right in (
                    ("factual", subject, answer),
                    ("impossible", other, ""),
                    ("unknown", invented[0], ""),
                ):
                    yield {
                        **fixed,
                        "question": template.format(word),
                        "bucket": bucket,
                        "answer": right,
                        "subject": subject if bucket == "unknown" else word,
                        "candidates": "|".join(invented) if bucket == "unknown" else "",
                    }


def text() -> str:
    """Return the file as a text."""
    stream = io.StringIO()
    writer = csv.DictWriter(stream, COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows())
    return stream.getvalue()


if __name__ == "__main__":
    FILE.write_text(text(), encoding="utf-8")
