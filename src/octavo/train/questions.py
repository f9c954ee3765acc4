"""Ordinary questions to a chat model: what a head learns from where no log of requests is at hand."""

from __future__ import annotations

import random
from collections.abc import Iterator

# {} is a subject of the same name's list below.
ASKED: dict[str, tuple[str, ...]] = {
    "subject": (
        "Explain {} in simple words.",
        "What is {}?",
        "How does {} work?",
        "Why is {} important?",
        "Give me five facts about {}.",
        "What are the advantages and disadvantages of {}?",
        "Write a short introduction to {} for beginners.",
        "What are common mistakes people make about {}?",
        "Tell me about the history of {}.",
        "How would you explain {} to a ten-year-old child?",
        "Summarize what one should know about {} in three sentences.",
        "Write a paragraph about {}.",
        "What questions should I ask an expert on {}?",
        "List the most important ideas behind {}.",
        "What is the future of {}?",
        "I have a test about {} tomorrow. What should I study?",
        "Write a short essay on {}.",
        "What is a good example of {}?",
        "Is {} overrated? Give reasons for both sides.",
        "How has {} changed over the last hundred years?",
    ),
    "activity": (
        "How do I get started with {}?",
        "Give me ten tips for {}.",
        "What do I need for {}?",
        "Write a plan for learning {} in a month.",
        "What are the benefits of {}?",
        "Write an e-mail inviting a friend to try {} with me.",
        "List reasons why people enjoy {}.",
        "How can I get better at {}?",
        "Is {} good for your health?",
        "Write a blog post about {}.",
        "I am bored of {}. What else could I try?",
        "What are some safety rules for {}?",
        "How much time does {} take every week?",
        "Describe a perfect day of {}.",
    ),
    "thing": (
        "Write a short story about {}.",
        "Write a poem about {}.",
        "Describe {} in detail.",
        "Write a funny dialogue about {}.",
        "Write a product description for {}.",
        "Invent a riddle whose answer is {}.",
        "Compare {} with something similar.",
        "Write a letter of complaint about {}.",
        "What can you do with {}?",
        "Think of a name for a company that sells {}.",
        "Write a thank-you note for {}.",
        "What should I know before I buy {}?",
        "Where does the idea of {} come from?",
        "Write a story for children in which {} plays the main part.",
        "What would the world be without {}?",
    ),
    "place": (
        "What is {} known for?",
        "Plan a three-day trip to {}.",
        "What is the weather like in {}?",
        "What should I eat in {}?",
        "Write a postcard from {}.",
        "Tell me something about the people and the culture of {}.",
        "What are the best places to visit in {}?",
        "How do I travel around {} on a small budget?",
    ),
    "food": (
        "Give me a recipe for {}.",
        "How do I cook {} for four people?",
        "Which ingredients do I need for {}?",
        "Is {} healthy?",
        "What goes well with {}?",
        "Write a restaurant review about {}.",
        "How can I make {} without milk and eggs?",
    ),
    "person": (
        "Write an e-mail to {} asking for advice.",
        "How do I say no to {} politely?",
        "What is a good gift for {}?",
        "Write a short speech for {}.",
        "What does {} do all day?",
        "Give me advice on a disagreement with {}.",
        "Write a birthday message to {}.",
        "Write an interview with {}.",
    ),
    "module": (
        "What is Python's {} module for?",
        "Write a short Python program that uses the {} module.",
        "Explain how to use {} in Python to a beginner.",
    ),
}


def _listed(text: str) -> tuple[str, ...]:
    return tuple(" ".join(one.split()) for one in text.split("|"))


SUBJECTS: dict[str, tuple[str, ...]] = {
    "subject": _listed(
        """
        photosynthesis | gravity | inflation | democracy | evolution | the water cycle | climate change | the
        stock market | electricity | the human heart | the immune system | black holes | the solar system |
        plate tectonics | the Roman Empire | the Renaissance | the French Revolution | the Industrial
        Revolution | ancient Egypt | the Silk Road | the Cold War | human rights | supply and demand |
        compound interest | insurance | taxes | machine learning | artificial intelligence | the internet |
        encryption | databases | operating systems | computer viruses | cloud computing | recursion |
        object-oriented programming | version control | algebra | geometry | probability | statistics | prime
        numbers | calculus | logic | chemistry | acids and bases | the periodic table | atoms | DNA | vaccines
        | antibiotics | sleep | memory | stress | dreams | happiness | motivation | friendship | leadership |
        teamwork | creativity | critical thinking | time management | emotional intelligence | public speaking
        | journalism | advertising | marketing | globalization | renewable energy | solar power | nuclear
        energy | recycling | biodiversity | rainforests | coral reefs | oceans | volcanoes | earthquakes |
        hurricanes | rainbows | the seasons | the moon | stars | comets | space travel | satellites |
        airplanes | electric cars | trains | bridges | architecture | sculpture | jazz | classical music |
        opera | theatre | cinema | photography | poetry | the novel | mythology | philosophy | ethics |
        religion | education | online learning | homework | universities | social media | privacy | free
        speech | immigration | poverty | urban planning | agriculture | organic farming | nutrition | vitamins
        | protein | sugar | caffeine | obesity | mental health | meditation | the nervous system | the lungs |
        bones | muscles | allergies | the common cold | fever | first aid | genetics | cloning | ecosystems |
        food chains | migration of birds | bees | dinosaurs | fossils | whales | bacteria | mushrooms | trees
        | flowers | language | grammar | translation | writing systems | calendars | money | banks | credit
        cards | cryptocurrency | entrepreneurship | unions | contracts | the court system | elections |
        constitutions | monarchy | diplomacy | peace treaties | the United Nations | the Olympic Games
        """
    ),
    "activity": _listed(
        """
        running | swimming | yoga | cycling | hiking | climbing | gardening | painting | drawing | knitting |
        sewing | pottery | woodworking | baking | cooking at home | bird watching | fishing | camping |
        sailing | skiing | skating | dancing | singing | playing the guitar | playing the piano | playing
        chess | reading more books | keeping a diary | writing a novel | learning a language | learning
        Spanish | learning to code | building a website | saving money | investing | budgeting | volunteering
        | mentoring | networking | job hunting | working from home | studying for exams | taking notes |
        giving presentations | cleaning the house | decluttering | moving house | raising a puppy | keeping an
        aquarium | growing tomatoes | growing herbs | composting | beekeeping | stargazing | travelling alone
        | backpacking | road trips | weight lifting | stretching | walking every day | waking up early |
        drinking more water | eating less sugar | making friends | hosting a dinner party | planning a wedding
        | organizing a birthday party | playing board games | doing puzzles | photography on a phone | making
        videos | starting a podcast | starting a small business | public debates | calligraphy | origami
        """
    ),
    "thing": _listed(
        """
        a lost umbrella | a talking cat | a brave dog | a clever fox | an old clock | a broken bicycle | a red
        balloon | a lighthouse | a magic mirror | a secret garden | a rainy afternoon | the first snow | the
        last train | a letter that arrived too late | a robot that wants to paint | a dragon who is afraid of
        fire | a small boat | a wooden chair | a coffee machine | a smart watch | a mobile phone | a laptop |
        noise-cancelling headphones | an electric kettle | a vacuum cleaner | a bookshelf | a pair of shoes |
        a winter coat | a backpack | a tent | a telescope | a camera | a violin | a piano | a chess set | a
        treasure map | a pirate ship | an island | a desert | a mountain | a river | the sea | the sun | the
        moon and the stars | autumn leaves | a spring morning | a summer night | a thunderstorm | a library |
        a school bus | a hospital | a bakery | a market | a museum | an empty house | a haunted castle | a
        time machine | a spaceship | a distant planet | a friendly ghost | a lazy wizard | a curious child | a
        tired teacher | a village fair | a garden gnome | a snail | an elephant | an owl | a bear | a
        butterfly | a spider | a wolf | a horse | a penguin | a turtle | a dolphin
        """
    ),
    "place": _listed(
        """
        Paris | London | Rome | Berlin | Madrid | Lisbon | Vienna | Prague | Athens | Istanbul | Cairo |
        Marrakesh | Nairobi | Cape Town | Mumbai | Delhi | Bangkok | Singapore | Hanoi | Beijing | Shanghai |
        Tokyo | Kyoto | Seoul | Sydney | New Zealand | Hawaii | San Francisco | New York | Chicago | New
        Orleans | Mexico City | Havana | Peru | Brazil | Argentina | Canada | Iceland | Norway | Sweden |
        Finland | Scotland | Ireland | Switzerland | Greece | Croatia | Poland | Hungary | Morocco | Egypt |
        Tanzania | Nepal | Sri Lanka | Indonesia | the Philippines | Australia
        """
    ),
    "food": _listed(
        """
        pancakes | apple pie | chocolate cake | banana bread | tomato soup | chicken soup | vegetable curry |
        fried rice | spaghetti with tomato sauce | lasagna | pizza | risotto | omelettes | scrambled eggs |
        mashed potatoes | roast chicken | beef stew | chili | tacos | burritos | guacamole | hummus | falafel
        | Greek salad | potato salad | coleslaw | grilled fish | sushi | dumplings | noodle soup | pad thai |
        oatmeal | granola | smoothies | lemonade | hot chocolate | cheesecake | cookies | brownies | muffins |
        sourdough bread | garlic bread | lentil soup | bean salad
        """
    ),
    "person": _listed(
        """
        my boss | a colleague | my neighbour | a teacher | a doctor | a nurse | my grandmother | my
        grandfather | my best friend | my little brother | my sister | a student | a customer | a landlord | a
        firefighter | a farmer | a pilot | a scientist | a musician | a painter | a chef | a librarian | a
        detective | an engineer | a lawyer | a journalist | a gardener | a tour guide | an astronaut | a
        football coach
        """
    ),
    "module": _listed(
        """
        random | math | datetime | json | csv | os | sys | re | pathlib | collections | itertools | functools
        | string | time | statistics | urllib | sqlite3 | logging | argparse | unittest | threading |
        subprocess | shutil | hashlib | decimal | fractions | heapq | tempfile | zipfile | typing
        """
    ),
}


def questions() -> Iterator[str]:
    """All of them, each once, those of a kind far from one another."""
    pairs = [(template, subject) for kind, asked in ASKED.items() for template in asked for subject in SUBJECTS[kind]]
    random.Random("questions").shuffle(pairs)
    yield from (template.format(subject) for template, subject in pairs)
