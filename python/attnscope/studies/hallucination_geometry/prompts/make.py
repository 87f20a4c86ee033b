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

from attnscope.studies.hallucination_geometry.prompts.known import KNOWN
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
        self.known = {one.lower() for one in subjects} | KNOWN
        self.following: dict[str, list[str]] = defaultdict(list)
        for subject in subjects:
            letters = f"^^{subject.lower()}$"
            for at in range(len(letters) - 2):
                self.following[letters[at : at + 2]].append(letters[at + 2])

    def draw(self, length: int) -> str:
        """A word of so many letters that is no subject and has not been drawn before.

        Three and four letters have few words that end as subjects do; then any end will do.
        """
        for attempt in range(100_000):
            word = "^^"
            while len(word) - 2 < length:
                choices = [one for one in self.following[word[-2:]] if one != "$"]
                if not choices:
                    break
                word += self.rng.choice(choices)
            made = word[2:]
            ends = len(made) == length and ("$" in self.following[word[-2:]] or attempt > 500)
            if ends and made not in self.known:
                self.known.add(made)
                return made
        raise RuntimeError(f"no word of {length} letters is left")


def rows() -> Iterator[dict[str, str]]:
    """The questions, in the order of the file."""
    subjects = [subject for pair in PAIRS for _, _, listed in pair for subject, _ in slots(listed)]
    names = Names(subjects, random.Random(SEED))
    for number, pair in enumerate(PAIRS):
        own = [slots(listed) for _, _, listed in pair]
        for side, (name, template, _) in enumerate(pair):
            for slot, (subject, answer) in enumerate(own[side]):
                fixed = {"template": name, "pair": f"{name}-{slot:02d}", "fold": str(number)}
                other = own[1 - side][slot][0]
                made = [names.draw(len(subject)) for _ in range(CANDIDATES)]
                made = [one.capitalize() if subject[0].isupper() else one for one in made]
                for bucket, word, right in (
                    ("factual", subject, answer),
                    ("impossible", other, ""),
                    ("unknown", made[0], ""),
                ):
                    yield {
                        **fixed, "question": template.format(word), "bucket": bucket, "answer": right,
                        "subject": subject if bucket == "unknown" else word,
                        "candidates": "|".join(made) if bucket == "unknown" else "",
                    }  # fmt: skip


def text() -> str:
    """The file as a text."""
    made = io.StringIO()
    writer = csv.DictWriter(made, COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows())
    return made.getvalue()


if __name__ == "__main__":
    FILE.write_text(text(), encoding="utf-8")
