"""The world of written words: prompts that ask for a picture with a text in it, for the reward `ocr`.

A text has one to three words, in capitals, title case or small letters (the reward does not tell them apart), on a
sign, a poster, a T-shirt and the like. What is held out are *words*: no word that one split asks to be written is asked
for by another, so that a held-out text can only be spelled, never remembered. `metadata["text"]` is the target, and the
only text in quotes of its prompt.

    prompt = prompts("tune")[0]
    prompt.metadata["text"]
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Mapping, Sequence
from typing import TypeVar

from diffrl.data import words as short_words
from diffrl.data.worlds import Split, require_split
from diffrl.records import Prompt

T = TypeVar("T")

SIZES: Mapping[Split, int] = {"train": 5000, "tune": 500, "report": 500}
"""Prompts of each split."""

LENGTHS = (1, 1, 2, 2, 3)
"""Words of a text; each entry is as likely."""

_HELD_OUT = 0.15  # of all words, for tune and as much for report

PLACES = (
    "a wooden sign in a forest that says {}",
    "a neon sign over a bar at night that reads {}",
    "a chalkboard outside a small restaurant with {} written on it",
    "a movie poster with the title {}",
    "the cover of an old hardback with the title {}",
    "a shop window with {} painted on the glass",
    "a white T-shirt with the print {}",
    "a coffee mug with {} on its side",
    "a street corner with a sign that reads {}",
    "a billboard beside a highway that says {}",
    "a birthday cake with {} in icing",
    "a newspaper with the headline {}",
    "a brick wall with the graffiti {}",
    "a shipping crate stamped with {}",
    "a bottle with a paper label that says {}",
    "a laptop screen that shows {} in large letters",
    "a museum plaque engraved with {}",
    "a banner across a village square that reads {}",
    "a delivery van with {} on its side",
    "a subway station with {} in tiles on the wall",
    "a sticky note on a fridge that says {}",
    "a stadium scoreboard that displays {}",
    "a stone gate with {} carved above it",
    "a beach with {} drawn in the sand",
    "a cardboard box with {} written in marker",
    "a metal door with a plate that says {}",
    "a menu on a table with the heading {}",
    "a protest march where someone holds a placard that says {}",
)


def prompts(split: Split) -> list[Prompt]:
    """Prompts of a split, in a fixed order.

    Raises:
        ConfigError: there is no such split.
    """
    chosen = words(split)
    made: dict[str, Prompt] = {}
    for number in itertools.count():
        if len(made) == SIZES[split]:
            break
        at = f"{split} {number}"
        length = _pick(f"{at} length", LENGTHS)
        text = " ".join(_pick(f"{at} word {i}", chosen) for i in range(length))
        text = _pick(f"{at} letters", (text.upper(), text.title(), text))
        sentence = _pick(f"{at} place", PLACES).format(f'"{text}"')
        made.setdefault(sentence, Prompt(sentence, {"text": text}))
    return list(made.values())


def words(split: Split) -> tuple[str, ...]:
    """Return the words of a split's texts, in a fixed order that knows nothing of the alphabet.

    Raises:
        ConfigError: there is no such split.
    """
    require_split("ocr", split)
    common = {word.strip(",.").lower() for phrase in PLACES for word in phrase.split()}
    known = sorted({*short_words.VOCABULARY, *_LONGER.split()} - common, key=_digest)
    held = round(_HELD_OUT * len(known))
    cuts = {"tune": (0, held), "report": (held, 2 * held), "train": (2 * held, len(known))}
    return tuple(known[slice(*cuts[split])])


def _pick(where: str, options: Sequence[T]) -> T:
    """One of the options, which follows from an address alone."""
    return options[int.from_bytes(_digest(where)[:8], "big") % len(options)]


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode()).digest()


_LONGER = """
account airport alphabet antique archive artist autumn avenue bakery balance balloon bamboo barrel basket battery
bazaar beacon bicycle biscuit blanket blossom bottle bracket breakfast breeze bridge bright broadway bronze bucket
buffet bundle butcher butter button cabinet camera canyon captain caramel carnival carpet castle cellar ceramic champion
chapel charity cherry chicken chocolate chorus cinema circus citizen classic clinic coconut college comet comfort
compass concert copper corner cottage cotton council counter courage courier cricket crystal curtain cushion dancer
december delivery desert diamond dinner dolphin dragon eagle eastern eclipse elephant emerald engine evening express
fabric factory feather festival fiction florist flower fortune freedom friend galaxy gallery garage garden garlic
gazette giraffe grocer guitar hammer harbor harvest highland history holiday horizon hostel hunter island jacket jasmine
journal journey jungle kettle kitchen kitten ladder lantern laundry leather legend library lighthouse lobster locker
machine magnet manual marble market meadow medicine melody mermaid midnight mineral mirror modern monday monkey morning
mountain mustard mystery nature nectar needle neptune notice number october office orange orchard orchid oyster pacific
paddle palace parade parrot passage pastry patrol peanut pebble pencil penguin pepper phoenix picnic pigeon planet
platform pocket potato pottery printer public pumpkin purple puzzle quality quarter rabbit railway rainbow record
repair rescue ribbon rocket saddle sailor salmon sandal saturday scarlet science season secret service shadow shelter
signal silence silver singer sketch soldier spider spirit spring station stitch studio summer sunday sunrise sunset
surgery tailor teapot temple tennis theater thunder ticket timber tobacco tomato tonight tractor traffic travel
treasure tunnel turtle umbrella uniform universe valley vanilla velvet victory village vintage violet volcano voyage
walnut warehouse welcome western whisper willow window winter wonder workshop yellow yogurt
"""
