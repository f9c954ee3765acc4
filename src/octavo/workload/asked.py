"""Questions to a chat model, as people ask them. None of their words are among those that `octavo train head` asks."""

from __future__ import annotations

import random
from collections.abc import Mapping

# What is asked, by what it is about.
_ASKED: Mapping[str, tuple[str, ...]] = {
    "matter": (
        "Can you help me understand {}? I never paid attention at school.",
        "My daughter asked me about {} at breakfast and I did not know what to say. What would you answer?",
        "Could you give me an overview of {}, with the main points as a list?",
        "I keep hearing about {} on the radio. What is all the talk about?",
        "What do beginners usually get wrong when they read about {}?",
    ),
    "errand": (
        "I want to {} next weekend. Where do I begin?",
        "What should I pay attention to if I {}?",
        "Please write me a checklist so that I can {} without forgetting anything.",
        "My friend says it is a bad idea to {}. What do you think?",
    ),
    "scene": (
        "Tell me a bedtime tale in which {}.",
        "Please write the opening of a novel in which {}.",
        "I need four rhyming lines for a card: {}.",
        "Imagine that {}. What happens next?",
    ),
    "message": (
        "Draft a short message in which I {}.",
        "Can you write a formal letter in which I {}?",
        "How would you phrase it if you had to {}, without sounding rude?",
    ),
}
_ABOUT: Mapping[str, tuple[str, ...]] = {
    "matter": (
        "tides",
        "magnets",
        "rust",
        "yeast",
        "mortgages",
        "pensions",
        "glaciers",
        "the ozone layer",
        "the Vikings",
        "the printing press",
        "compasses",
        "radar",
        "batteries",
        "search engines",
        "spam filters",
        "blood types",
        "asthma",
        "left-handedness",
        "bilingual children",
        "hibernation",
        "monsoons",
        "cheese making",
        "the metric system",
        "leap years",
    ),
    "errand": (
        "repaint the kitchen",
        "adopt an older dog",
        "sell my car",
        "hang a heavy picture on a thin wall",
        "bake bread in a cast-iron pot",
        "swap my lawn for wild plants",
        "take the night train with two small children",
        "change my bank",
        "repair a dripping tap",
        "run a stall at a flea market",
        "join a choir",
        "give up my television",
    ),
    "scene": (
        "a postman finds a letter addressed to himself",
        "a hedgehog opens a bicycle shop",
        "the tide does not come back",
        "two neighbours share one tree",
        "a lift stops between two floors",
        "a baker loses his sense of taste",
        "the youngest goat learns to whistle",
        "a map shows a street that nobody can find",
    ),
    "message": (
        "cancel my gym membership",
        "ask for two days off",
        "apologize for a broken vase",
        "remind the tenants to close the gate",
        "thank the crew for their help with the flood",
        "decline an invitation to a barbecue",
        "ask for my deposit back",
        "offer my old piano for free",
    ),
}


_CLOSINGS = (
    "",
    " Keep it short, please.",
    " Take your time.",
    " Half a page is enough.",
    " Do not be too serious.",
    " I would like to read it aloud.",
    " Thank you!",
)


def asked(noise: random.Random) -> str:
    pairs = [
        (question, about) for kind, questions in _ASKED.items() for question in questions for about in _ABOUT[kind]
    ]
    question, about = noise.choice(pairs)
    return question.format(about) + noise.choice(_CLOSINGS)
