"""Spelling, letter by letter: words of this project, common words and made-up ones."""

import random
import re
from functools import cache

from orcastream.demo.questions import questions
from orcastream.demo.tasks import Example

KIND = "spelling"
FORMS = ("Spell {word}", "Spell {word}", "Spell the word {word}", 'Spell "{word}"', "How do you spell {word}?")
LETTERS = "abcdefghijklmnopqrstuvwxyz"
ONSETS = """
b c d f g h j k l m n p qu r s t v w x y z bl br ch cl cr dr fl fr gl gr ph pl pr sc sh sk sl sm sn sp st
str sw th tr wh
"""
VOWELS = """
a e i o u a e i o u ai au ea ee ie io oa oo ou ui y
"""
CODAS = """
b ck d f g l ll m n n r r s s t t x st nd ng nt rt ld mp sh th ch ss tion ing er ed ly
"""
COMMON = """
apple arrow autumn baker banana basket beach bicycle bird blanket boat book bottle bread breakfast bridge brother
butter button candle captain carpet castle cat chair cheese cherry chicken circle city clock cloud coffee coral
corner cotton cousin crystal dance daughter desert dinner doctor dog dolphin door dragon dream eagle earth elephant
engine evening family farmer father feather fire fish flower forest friend frog garden giraffe glass gold grape grass
guitar hammer harbor harbour hat heart hill honey horse house ice island jacket jewel jungle kettle key king kitchen
kite kitten ladder lake lamp language leaf lemon letter library light lion lizard machine magnet market meadow melon
mirror money monkey moon morning mother mountain mouse music narwhal needle nest night north ocean octopus olive
onion orange orca oven owl paint paper parrot pearl pebble pencil penguin pepper piano picture pillow pirate planet
pocket pond potato pumpkin puzzle queen question rabbit rain rainbow raven ribbon river road robot rocket rose sailor
salmon salt sand scarf school science sea seal season shark sheep shell ship shoe silver sister snow soap song south
spider spoon spring squirrel stable star station stone storm story stream street summer sun swan table tailor teacher
thunder tiger tomato tower train travel tree triangle trumpet turtle umbrella uncle valley village violin violet
wagon wall walrus water weather whale wheel whisper window winter wizard wolf wonder wood world yellow zebra
"""


def spell(word: str) -> str:
    """Return the letters of a word, joined by hyphens."""
    return "-".join(word)


def example(rng: random.Random) -> Example:
    """Draw a word: a real one, a compound of two, one made of syllables, or a few random letters.

    Some words are a single token. Training sees the spelling of a held-out one only as part of a compound.
    """
    draw = rng.random()
    if draw < 0.35:
        word = rng.choice(words())
    elif draw < 0.6:
        word = (rng.choice(words()) + rng.choice(words()))[:14]
    elif draw < 0.9:
        word = _made_up(rng)
    else:
        word = "".join(rng.choices(LETTERS, k=rng.randint(2, 8)))
    if rng.random() < 0.15:
        word = word.capitalize()
    return Example(
        KIND, f"spell {word.lower()}", rng.choice(FORMS).format(word=word), spell(word), depends_on_case=True
    )


@cache
def words() -> tuple[str, ...]:
    """Return the real words, sorted: common ones and those of the questions and answers."""
    texts = " ".join(f"{item.question} {item.answer}" for item in questions())
    found = {word.lower() for word in re.findall(r"[A-Za-z]{2,12}", texts)}
    return tuple(sorted(found | set(COMMON.split())))


def _made_up(rng: random.Random) -> str:
    onsets, vowels, codas = ONSETS.split(), VOWELS.split(), ["", "", *CODAS.split()]
    syllables = (rng.choice(onsets) + rng.choice(vowels) + rng.choice(codas) for _ in range(rng.randint(1, 3)))
    return "".join(syllables)[:11]
