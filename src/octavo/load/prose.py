"""Text of a given length, without a tokenizer: common words, of which each is a token in the usual vocabularies.

A prompt begins with words of the load run, so that no cache of an earlier one knows it; then come the stretches that it
shares with other prompts, then words that number it, so that no further one is shared by accident.
"""

from __future__ import annotations

import random
import zlib

from octavo.workload.job import Job

_SPELLED = """
the of and to in is was for that it as with on by he at from his an be this are which not have had were one all they
but when you what so there who if out up into do some more time them see other than then now look only come its over
think also back after use two how our work first well way even new want because any these give day most us people
year your good just him know take make like get about would could should very through before right too mean old
great same tell boy follow came show form three small set put end does another large must big such turn here why ask
went men read need land different home move try kind hand picture again change off play spell air away animal house
point page letter mother answer found study still learn plant cover food sun four between state keep eye never last
let thought city tree cross farm hard start might story saw far sea draw left late run while press close night real
life few north open seem together next white children begin got walk example ease paper group always music those
both mark often until mile river car feet care second book carry took science eat room friend began idea fish
mountain stop once base hear horse cut sure watch color face wood main enough plain girl usual young ready above
ever red list though feel talk bird soon body dog family
"""
WORDS = _SPELLED.split()
CORPUS = 2**16  # words
SALT_WORDS, NUMBER_WORDS = 2, 3


class Prose:
    """salt: of the run. Equal salts and jobs give equal texts."""

    def __init__(self, salt: str) -> None:
        self._salt = salt
        words = random.Random("prose").choices(WORDS, k=CORPUS)
        self._text = " ".join((*words, *words))
        self._starts = [0]
        for word in (*words, *words):
            self._starts.append(self._starts[-1] + len(word) + 1)
        self._opening = _spelled(zlib.crc32(salt.encode()), SALT_WORDS)

    def prompt(self, job: Job, number: int) -> str:
        """number: of the job, which no other one of this run has."""
        left = max(0, job.input_tokens - SALT_WORDS)
        parts = [self._opening]
        for identity, tokens in job.shared:
            taken = min(tokens, left)
            parts.append(self._words(f"shared {identity}", taken))
            left -= taken
        parts.append(_spelled(number, min(left, NUMBER_WORDS)))
        parts.append(self._words(f"own {number}", left - min(left, NUMBER_WORDS)))
        return " ".join(part for part in parts if part)

    def _words(self, what: str, count: int) -> str:
        """The same for the same `what`, each count a prefix of the greater ones."""
        begin = zlib.crc32(f"{self._salt} {what}".encode()) % CORPUS
        pieces = []
        while count > 0:
            taken = min(count, CORPUS)
            pieces.append(self._text[self._starts[begin] : self._starts[begin + taken] - 1])
            count -= taken
        return " ".join(pieces)


def _spelled(number: int, words: int) -> str:
    """The low digits of a number to the base of WORDS, the lowest first."""
    base = len(WORDS)
    return " ".join(WORDS[number // base**place % base] for place in range(words))
