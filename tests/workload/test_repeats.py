"""Texts to measure drafts on: the same by seed, unlike by seed, and the ones that repeat do."""

import pytest

from octavo.drafters.suffix import Automaton
from octavo.train.questions import SUBJECTS
from octavo.workload.asked import _ABOUT
from octavo.workload.repeats import TEXTS, text


@pytest.mark.parametrize("name", TEXTS)
def test_equal_seeds_give_equal_texts(name):
    assert text(name, 3) == text(name, 3)
    assert len({text(name, seed) for seed in range(50)}) >= 48


def share(words):
    """Of places at which the longest end that stood before tells the next word."""
    automaton, right = Automaton(), 0
    for word in words:
        length, end = automaton.matched
        right += length >= 2 and automaton.tokens[end] == word
        automaton.add(word)
    return right / len(words)


def test_code_repeats_and_prose_does_not():
    def words(name):
        known = {}
        return [known.setdefault(word, len(known)) for word in text(name, 1).split()]

    assert share(words("code")) > 0.2 > 0.05 > share(words("prose"))


def test_questions_are_about_other_things_than_those_that_heads_learn_from():
    learnt = {subject.lower() for subjects in SUBJECTS.values() for subject in subjects}
    assert not learnt & {about.lower() for abouts in _ABOUT.values() for about in abouts}
