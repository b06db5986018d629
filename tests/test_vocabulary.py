"""The vocabulary of the project: plain technical English, counted in each part of the repository.

Run this file for the counts, or with the names of folders or files for each word that is counted in them:

    python tests/test_vocabulary.py
    python tests/test_vocabulary.py packages/common docs
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parent.parent

# What is counted, and what to write instead. The parts of an identifier count like the words of a sentence. Text in
# capitals never counts. A space matches a line break, too, since a phrase may continue on the next line.
WORDS = {
    # Verbs of people, used of programs.
    "tell|tells|told|telling": "report, log, send, warn, notify; distinguish",
    "say|says|said|saying": "report, log, print, state, specify",
    "hear|hears|heard|hearing": "receive, subscribe; 'last event at T'",
    "look|looks|looked|looking": "check, read, inspect, search for, poll; seem",
    # People, where a program, a file or a thread is meant.
    "who|whom": "the process, the thread, the caller, the user",
    "whose": "with, of, that has; or a sentence of its own",
    "somebody|nobody|anybody|everybody": "another process, the caller, the user; no process",
    "keeper|keepers": "control plane; store",
    # Things of daily life, where a path, a method or a module is meant.
    "place|places": "path, target, destination, position",
    "way|ways": "method, mode; 'how to ...'",
    "room|rooms|house|door|doors": "space, capacity; package; entry point",
    "(?:a|no|any|last|one's|its|their|own|same) words?|in words": "message, reason; 'without a reason', 'unexpectedly'",
    "figures|(?:a|each|one|every|this|that|same|no) figure": "number, result, benchmark; metric (of the product)",
    # Starts, arrivals and ends.
    "begin|begins|began|begun": "start, starts, started",
    "come|comes|came|coming": "arrive, is received, is returned",
    r"lets? (?:it |them |the \w+ )?go": "release",
    "anew|again and again": "again, from scratch; repeatedly",
    r"how (?:\w+ ){1,3}(?:ends|ended)": "outcome; exit reason",
    # States.
    "in peace|humble": "backs off until; lowers its priority",
    "(?:lost|dead) (?:call|request|answer|reply|write|poll)s?"
    "|(?:call|request|answer|reply|write|poll)s? (?:is|are|was|were|gets?) (?:lost|dead)": "dropped; failed",
    "what (?:is there|was there|it has|they have)": "existing files; its contents",
    "mend|mends|mended|mending": "fix",
    "as (?:others'|everybody's)": "like any other",
    # "Is no number" for "is not a number".
    r"(?:is|are|was|were) no [a-z]\w+": "'is not a valid X'; 'expected X, got Y'",
}

# Good English with the same words, and text that is not ours to word: taken out before counting.
FINE = [
    r"(?:there|here) (?:is|are|was|were) no",
    r"(?:is|are|was|were) no (?:longer|more|one|such|need|other|better|worse|different|use|problem)",
    r"(?:users?|people|persons?|engineers?|colleagues?|readers?|you|anyone|someone|those|ones?) who(?:m|se)?",
    r"(?:users?|people|you|docs|documentation) says?",
    r"that is to say|[a-z]+, say,|in other words",
    r"looks? up|looked up|looking up|look-ups?",
    r"come(?:s)? (?:from|with)|coming from|came from|up-and-coming|to come",
    r"in place|takes? place|took place|taking place|decimal places?",
    r"(?:by the|on the|either|under|half|one|two|both|right of|give|gives)(?: |-)ways?",
    r"nobody'|'nobody|\"nobody\"|nogroup",  # The user of that name.
    r"on_[a-z]+(?:_[a-z]+)?_begin",  # Hooks of Keras and Hugging Face.
    r"process_began",  # A field of journals on users' disks.
]

# Each part has at most so many of these words in 1,000 lines, like well-kept open projects.
WORDS_IN_1000_LINES = 2
PARTS = [
    "packages/cloud_tpu_diagnostics",
    "packages/common",
    "packages/console",
    "packages/fleet",
    "packages/google_cloud_mldiagnostics",
    "packages/ml_diagnostics",
    "packages/ml_goodput_measurement",
    "packages/testing",
    "packages/xprofiler",
    "docs",
    "tests",
    "benchmarks examples",
    "README.md CONTRIBUTING.md SECURITY.md CODE_OF_CONDUCT.md noxfile.py .ci .github",
]

_SPACE = r"[\s_#]+"
_COUNTED = re.compile(
    "|".join(f"({words.replace(' ', _SPACE)})" for words in WORDS).join(["(?:", ")(?![A-Za-z])"]), re.IGNORECASE
)
_FINE = re.compile("|".join(FINE).replace(" ", _SPACE).join([r"(?<![A-Za-z])(?:", r")(?![A-Za-z])"]), re.IGNORECASE)
_WORD = re.compile("[A-Za-z]+")
# The words that a row may start with. Matching rows at these alone is six times as fast as searching the text for rows.
_FIRST = {word for words in WORDS for word in _WORD.findall(words)}
_FIRST |= {word.capitalize() for word in _FIRST}


class Hit(NamedTuple):
    file: str
    line: int
    word: str
    instead: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.word!r}; instead: {self.instead}"


def git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True).stdout


def files_of(*folders: str) -> list[str]:
    names = git("ls-files", "-z", "--", *folders).split("\0")
    itself = Path(__file__).relative_to(ROOT).as_posix()
    return [name for name in names if name.endswith((".py", ".md")) and name != itself and (ROOT / name).is_file()]


def hits_in(text: str, file: str = "") -> list[Hit]:
    hits = []
    for start in (match.start() for match in _WORD.finditer(text) if match.group() in _FIRST):
        match = _COUNTED.match(text, start)
        if match is None:
            continue
        context = text[max(0, start - 40) : match.end() + 40]
        spans = [fine.span() for fine in _FINE.finditer(context)]
        if any(first <= min(start, 40) < last for first, last in spans):
            continue
        instead = list(WORDS.values())[(match.lastindex or 1) - 1]
        hits.append(Hit(file, text.count("\n", 0, start) + 1, " ".join(match.group().split()), instead))
    return hits


def count(*folders: str) -> tuple[int, list[Hit]]:
    """Return the number of lines and the counted words of the tracked Python and Markdown files of these folders."""
    lines, hits = 0, []
    for file in files_of(*folders):
        text = (ROOT / file).read_text(encoding="utf-8")
        lines += text.count("\n")
        hits += hits_in(text, file)
    return lines, hits


@pytest.mark.parametrize("part", PARTS)
def test_a_part_keeps_to_the_vocabulary(part: str) -> None:
    lines, hits = count(*part.split())
    allowed = WORDS_IN_1000_LINES * lines // 1000
    if len(hits) > allowed:
        words = "\n".join(str(hit) for hit in hits[:50])
        pytest.fail(f"{part} has {len(hits)} words to replace, {allowed} are allowed:\n{words}", pytrace=False)


def test_words_are_counted_in_identifiers_and_over_line_ends() -> None:
    text = "def say_nothing():\n    Told = 1  # without a\n    # word, TELL and telltale\n"
    assert [(hit.line, hit.word.split()[0]) for hit in hits_in(text)] == [(1, "say"), (2, "Told"), (2, "a")]


def test_good_english_is_not_counted() -> None:
    text = (
        "Users who look up a name that came from there take place in it, say, but there is no limit. It is no longer."
    )
    assert hits_in(text) == []


if __name__ == "__main__":
    for part in sys.argv[1:] or PARTS:
        found_lines, found = count(*part.split())
        for hit in found if sys.argv[1:] else []:
            print(hit)
        print(f"{part}: {len(found)} words, {1000 * len(found) / max(1, found_lines):.1f} in 1,000 lines")
