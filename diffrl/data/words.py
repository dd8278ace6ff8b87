"""The world of words: prompts that ask for a short word in two colours, and pictures of them.

A picture shows one word of three to five capital letters, beginning one letter from the left, in one colour on another.
What is held out are *words*: no word of one split is in another, so that a held-out word can only be spelled, never
remembered. Whether a picture is right is for `reward_models.text.ocr` to read; `metadata["text"]` is its target.

    prompt = prompts("tune")[0]
    picture = render(parse_prompt(prompt.text), np.random.default_rng(0))

Only `render` needs a font: DejaVu Sans Mono in matplotlib's package, under the licence of Bitstream Vera (its file
LICENSE_DEJAVU).
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from diffrl.data.worlds import Split, require_split
from diffrl.errors import DiffrlError
from diffrl.records import Prompt

HEIGHT, WIDTH = 24, 48
"""Of a picture, in pixels."""

DARK = {"black": (20, 20, 20), "red": (190, 30, 30), "blue": (30, 60, 190), "green": (20, 120, 40)}
LIGHT = {"white": (245, 245, 245), "yellow": (245, 215, 60)}
COLORS = DARK | LIGHT

FACES = ("DejaVuSansMono-Bold.ttf", "DejaVuSansMono-BoldOblique.ttf")
"""Of matplotlib; every letter is equally wide."""

FONT_SIZE = 13
CELL = 8
"""Pixels that a letter takes in x, and the first one's distance from the left edge: a patch of the transformer each."""

LINES = (-4, 0, 4)
"""Where the centre of a word that is spread may be, in pixels below the picture's: steps of the autoencoder's grid."""

PAIRS = tuple((a, b) for one, other in ((DARK, LIGHT), (LIGHT, DARK)) for a in one for b in other)
"""Ink and paper: always one dark and one light."""

_PROMPT = re.compile(r'the word "([a-z]{3,5})" in (\w+) on (\w+)')
_HELD_OUT = 90  # words of "tune", and as many of "report"


@dataclass(frozen=True)
class Sign:
    """What a picture shows: a word in lower case, the colour of its letters and the colour behind them."""

    word: str
    ink: str
    paper: str


def format_prompt(sign: Sign) -> str:
    """Return the prompt that asks for a sign."""
    return f'the word "{sign.word}" in {sign.ink} on {sign.paper}'


def parse_prompt(text: str) -> Sign:
    """Return the sign that a prompt asks for.

    Raises:
        DiffrlError: it is no prompt of this world.
    """
    match = _PROMPT.fullmatch(text)
    if match is None or match.groups()[1:] not in PAIRS:
        raise DiffrlError(
            'A prompt of the world of words is: the word "cat" in red on white; one colour of '
            f"{', '.join(DARK)}, the other of {', '.join(LIGHT)}. Got {text!r}."
        )
    return Sign(*match.groups())


def words(split: Split) -> tuple[str, ...]:
    """Return the words of a split, in a fixed order that knows nothing of the alphabet.

    Raises:
        ConfigError: there is no such split.
    """
    require_split("words", split)
    ordered = sorted(VOCABULARY, key=lambda word: hashlib.sha256(word.encode()).digest())
    cuts = {"tune": (0, _HELD_OUT), "report": (_HELD_OUT, 2 * _HELD_OUT), "train": (2 * _HELD_OUT, len(ordered))}
    return tuple(ordered[slice(*cuts[split])])


def prompts(split: Split) -> list[Prompt]:
    """Every word of a split in every pair of colours; `metadata["text"]` is the word.

    The list goes through all words once for every pair, each word in another pair than its neighbours, so that its
    first prompts stand for all of it.

    Raises:
        ConfigError: there is no such split.
    """
    chosen = words(split)
    made = []
    for turn in range(len(PAIRS)):
        for i, word in enumerate(chosen):
            sign = Sign(word, *PAIRS[(7 * i + turn) % len(PAIRS)])
            made.append(Prompt(format_prompt(sign), {"text": word}))
    return made


def render(sign: Sign, rng: np.random.Generator, spread: bool = False) -> NDArray[np.uint8]:
    """Draw a sign in a random face.

    Args:
        sign: what to draw; its word may be any text that fits.
        rng: where the randomness comes from.
        spread: centre the word in x and draw it at a random height, as no picture of the world is: for an autoencoder,
            which is to know letters in other places too.

    Returns:
        (HEIGHT, WIDTH, 3) uint8 RGB.
    """
    from PIL import Image, ImageDraw

    y = HEIGHT / 2 + (LINES[int(rng.integers(len(LINES)))] if spread else 0)
    left = (WIDTH - CELL * len(sign.word)) / 2 if spread else CELL
    face = _face(FACES[int(rng.integers(len(FACES)))])
    image = Image.new("RGB", (WIDTH, HEIGHT), COLORS[sign.paper])
    canvas = ImageDraw.Draw(image)
    for i, letter in enumerate(sign.word.upper()):
        canvas.text((left + CELL * (i + 0.5), y), letter, COLORS[sign.ink], face, anchor="mm")
    return np.asarray(image)


@lru_cache
def _face(name: str) -> Any:
    import matplotlib
    from PIL import ImageFont

    path = Path(matplotlib.get_data_path()) / "fonts" / "ttf" / name
    return ImageFont.truetype(str(path), FONT_SIZE, layout_engine=ImageFont.Layout.BASIC)


_WORDS = """
ace act add age aid aim air ant ape apple arch arm army art ash aunt axe baby back bag ball band bank bar bark barn
base bath bay beach beak beam bean bear beard beat bed bee beer bell belt bench berry bike bill bird bit boat body
bone book boot born bowl box boy brain brake brave bread brick bride brook broom brush bulb bull bus bush busy cab
cabin cable cafe cage cake calf calm camel camp candy cap cape car card cart case cash cat cave chain chair chalk
cheek chess chest chief child chin city clam class claw clay clean cliff clock cloth cloud club coach coal coast
coat cod coin cold comb cook cool cord corn cow crab craft crane crow crown cube cup curl dad daisy dance dark dawn
day deer desk dew dish ditch doll door dove down draw dream dress drink drop drum duck dune dust ear earth east egg
elbow elf elm end face fact fair fall farm fast fear feet fence fern field fig film fin fire fish fist flag flame
flat flour flute fly foam fog food foot fork fort fox frame frog frost fruit fun fur game gate gem ghost giant gift
girl glass globe glove glue goat gold golf good goose grape grass grid guide gum gym hail hair half hall ham hand
harp hat hawk hay head heart heat hen herb hero hill hip hive home honey hood hook hope horn horse hose hotel hour
house hug human hut ice idea ink iron jam jar jazz jeans jelly jet job joke joy judge juice jump key kid king kite
knee knife knot lace lake lamb lamp land lane lava lawn leaf leg lemon lid life lily lime line lion lip list lock
log love luck lunch magic maid mail map march mask match maze meal meat melon mice milk mill mind mint moon moss
moth mouse mouth mud mule music nail name neck nest net news night noon nose note nurse nut oak oat ocean oil olive
onion opera orbit otter oven owl pack page paint palm pan panda paper park party path paw pea peach pear pearl pen
pet photo piano pie pig pilot pin pine pipe pizza plane plant plate plum poem pond pony pool pork port pot prize
puppy purse quail queen quiz race radio rain ram ranch rat raven rice ring river road robe robot rock roof room root
rope rose ruby rug ruler sail salad salt sand sauce scale scarf scene seal seat seed shark sheep shelf shell ship
shirt shoe shop show silk sink skate skin skirt sky sled sleep slide smile smoke snail snake snow soap sock sofa
soil song soup space spice spoon spy squid stage stair star steam stem step stone stool storm stove straw sugar suit
sun surf swan swim table tail tank taxi tea team tent tiger time toad toast toe tool tooth torch towel tower toy
track train tray tree truck tub tube tulip tuna uncle unit van vase vest video view vine viola visit voice wagon
wall watch water wave wax web west whale wheat wheel whip wind wing wish wolf wood wool world worm wrist yard yarn
year young youth zebra zero zone zoo
"""
VOCABULARY = tuple(_WORDS.split())
