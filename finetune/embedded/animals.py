"""Drawn animals for the pets task: six kinds that a person tells apart at a glance, no two pictures alike.

A drawing is its own few numbers. It is drawn anew whenever it is looked at, so the data set has no files.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING, Any

from finetune.tasks.base import Split

if TYPE_CHECKING:
    from PIL.Image import Image

SIDE = 384
"""Pixels. The embedded model's image processor makes squares this large: it has nothing to resize."""
_OUTLINE_POINTS = 28  # of an ellipse
_HELD_OUT = 5  # one wall colour in five is for testing

Colour = tuple[int, int, int]
Point = tuple[float, float]

BLACK: Colour = (28, 27, 32)
WHITE: Colour = (250, 249, 244)
PINK: Colour = (232, 140, 150)


@dataclass(frozen=True)
class Drawing:
    """A picture of one animal (fits tasks/base.Picture). The same four values always give the same pixels."""

    label: str
    split: Split
    number: int
    seed: int

    @property
    def name(self) -> str:
        return f"drawing {self.number} (seed {self.seed})"

    def open(self) -> "Image":
        """Draw it: RGB, SIDE x SIDE, about 3 ms."""
        from PIL import Image

        random = Random(f"{self.split} {self.seed} {self.number}")
        wall = _wall(self.split, random)
        image = Image.new("RGB", (SIDE, SIDE), wall)
        pen = Pen(image, random)
        pen.floor(_shade(wall, 0.85))
        _ANIMALS[self.label](pen, random)
        return image


def rows(split: Split, count: int, seed: int) -> list[dict[str, Any]]:
    """`count` rows of `split`: an `image` (a Drawing) and its `label`. The same arguments give the same rows.

    Every label is there equally often, but for the last few rows. No wall of a "test" drawing has the colour of one
    of "train", whatever the seeds, so no picture is in both.
    """
    random = Random(f"{split} {seed}")
    labels = [label for _ in range(0, count, len(CLASSES)) for label in random.sample(CLASSES, len(CLASSES))]
    return [
        {"image": Drawing(label, split, number, seed), "label": label}
        for number, label in enumerate(labels[:count], start=1)
    ]


class Pen:
    """Draws in an animal's own coordinates, x ahead and y down, about 1 from its middle to its end.

    Where the animal stands, how large, how tilted and which way it looks is the pen's affair.
    """

    def __init__(self, image: "Image", random: Random) -> None:
        from PIL import ImageDraw

        self.draw = ImageDraw.Draw(image)
        self.size = SIDE * random.uniform(0.34, 0.44)
        self.x = SIDE * random.uniform(0.46, 0.54)
        self.y = SIDE * random.uniform(0.45, 0.53)
        self.ahead = random.choice((-1, 1))
        self.tilt = math.radians(random.uniform(-12, 12))

    def floor(self, colour: Colour) -> None:
        """The ground, up to where the animal stands."""
        self.draw.rectangle((0, self.y + 0.45 * self.size, SIDE, SIDE), fill=colour)

    def shape(self, points: Sequence[Point], colour: Colour) -> None:
        """A filled polygon."""
        self.draw.polygon(self._places(points), fill=colour)

    def blob(self, x: float, y: float, width: float, height: float, colour: Colour, turn: float = 0.0) -> None:
        """A filled ellipse of these radii, turned by degrees (clockwise for an animal that looks right)."""
        self.shape(_ellipse(x, y, width, height, turn), colour)

    def line(self, points: Sequence[Point], width: float, colour: Colour) -> None:
        """A line with round ends."""
        places, radius = self._places(points), width * self.size / 2
        self.draw.line(places, fill=colour, width=max(1, round(2 * radius)), joint="curve")
        for x, y in (places[0], places[-1]):
            self.draw.ellipse((x - radius, y - radius, x + radius, y + radius), fill=colour)

    def eye(self, x: float, y: float, radius: float, colour: Colour = WHITE) -> None:
        self.blob(x, y, radius, radius, colour)
        self.blob(x + 0.25 * radius, y, 0.6 * radius, 0.7 * radius, BLACK)

    def _places(self, points: Sequence[Point]) -> list[Point]:
        """Points in pixels."""
        cos, sin = self.size * math.cos(self.tilt), self.size * math.sin(self.tilt)
        return [(self.x + self.ahead * (cos * x - sin * y), self.y + sin * x + cos * y) for x, y in points]


def _tabby_cat(pen: Pen, random: Random) -> None:
    fur = _vary((188, 146, 102), random)
    stripe = _shade(fur, 0.5)
    tail = _tail(random)
    pen.line(tail, 0.13, fur)
    for start in range(2, len(tail) - 1, 3):
        pen.line(tail[start : start + 2], 0.13, stripe)
    _legs(pen, random, fur, 0.13)
    pen.blob(-0.1, 0.08, 0.56, 0.27, fur)
    for x in (-0.5, -0.34, -0.18, -0.02, 0.14):
        top = 0.08 - 0.27 * math.sqrt(1 - ((x + 0.1) / 0.56) ** 2)
        pen.shape([(x - 0.05, top), (x + 0.05, top), (x + 0.03, top + 0.32)], stripe)
    _cat_head(pen, fur, (150, 190, 70))
    for x in (0.36, 0.46, 0.56):
        pen.shape([(x - 0.035, -0.42), (x + 0.035, -0.42), (x, -0.26)], stripe)


def _black_cat(pen: Pen, random: Random) -> None:
    fur = _vary((40, 38, 46), random)
    pen.line(_tail(random), 0.13, fur)
    _legs(pen, random, fur, 0.13)
    pen.blob(-0.1, 0.08, 0.56, 0.27, fur)
    _cat_head(pen, fur, (240, 205, 60))


def _cat_head(pen: Pen, fur: Colour, iris: Colour) -> None:
    for side in (-1, 1):
        tip = 0.46 + side * 0.24
        pen.shape([(tip, -0.62), (0.46 + side * 0.06, -0.38), (0.46 + side * 0.27, -0.24)], fur)
        pen.shape([(tip - side * 0.02, -0.54), (0.46 + side * 0.1, -0.38), (0.46 + side * 0.23, -0.3)], PINK)
    pen.blob(0.46, -0.2, 0.29, 0.25, fur)
    for side in (-1, 1):
        pen.eye(0.47 + side * 0.12, -0.22, 0.065, iris)
        for rise in (-0.05, 0.02):
            pen.line([(0.5 + side * 0.1, -0.1), (0.5 + side * 0.36, -0.1 + rise)], 0.012, WHITE)
    pen.shape([(0.45, -0.14), (0.55, -0.14), (0.5, -0.08)], PINK)


def _dalmatian(pen: Pen, random: Random) -> None:
    coat, spot = _vary((244, 243, 240), random), _vary(BLACK, random)
    pen.line([(-0.58, 0.0), (-0.78, -0.14), (-0.92, -0.34)], 0.07, coat)
    _legs(pen, random, coat, 0.12, longer=0.12)
    pen.blob(-0.1, 0.02, 0.56, 0.24, coat)
    pen.line([(0.28, -0.02), (0.48, -0.32)], 0.24, coat)
    pen.blob(0.52, -0.38, 0.23, 0.2, coat)
    pen.blob(0.74, -0.31, 0.2, 0.12, coat, 8)
    for x in (-0.53, -0.37, -0.21, -0.05, 0.11, 0.27):
        for y in (-0.1, 0.04, 0.16):
            if abs(y) < 0.12 or -0.5 < x < 0.2:
                size = random.uniform(0.035, 0.062)
                pen.blob(x + random.uniform(-0.04, 0.04), y + random.uniform(-0.03, 0.03), size, size * 0.85, spot)
    for x, y in ((0.36, -0.14), (0.62, -0.48), (0.7, -0.38)):
        pen.blob(x, y, 0.035, 0.03, spot)
    pen.blob(0.4, -0.3, 0.1, 0.22, spot, 12)
    pen.eye(0.6, -0.4, 0.05)
    pen.blob(0.9, -0.33, 0.06, 0.05, BLACK)
    pen.line([(0.3, -0.1), (0.44, -0.02)], 0.07, (205, 45, 50))


def _goldfish(pen: Pen, random: Random) -> None:
    gold = _vary((246, 132, 28), random)
    fin, dark = _mixed(gold, (255, 214, 110), 0.45), _shade(gold, 0.82)
    pen.size *= 0.82  # leaves room for the bowl
    bowl = _ellipse(0, 0, 1.14, 1.1, 0)
    pen.shape(bowl, (222, 240, 248))
    pen.shape([(x, max(y, -0.76)) for x, y in bowl], _vary((96, 178, 222), random))
    spread = random.uniform(0.28, 0.42)
    pen.shape([(-0.4, 0), (-0.95, -spread - 0.08), (-0.74, 0), (-0.95, spread + 0.08)], fin)
    pen.shape([(0.2, -0.28), (-0.1, -0.58), (-0.38, -0.48), (-0.34, -0.16)], fin)
    pen.shape([(0.0, 0.28), (-0.22, 0.52), (-0.32, 0.2)], fin)
    pen.blob(0.06, 0, 0.58, 0.35, gold)
    for x in (-0.3, -0.14, 0.02, 0.18):
        for y in (-0.16, 0.0, 0.16):
            if abs(y) < 0.1 or x > -0.2:
                pen.blob(x, y, 0.06, 0.06, dark)
                pen.blob(x + 0.025, y, 0.06, 0.06, gold)
    pen.shape([(0.2, 0.1), (-0.06, 0.24), (0.0, 0.04)], fin)
    pen.eye(0.42, -0.08, 0.08)
    pen.line([(0.52, 0.13), (0.61, 0.09)], 0.025, _shade(gold, 0.6))
    for _ in range(4):
        size = random.uniform(0.03, 0.06)
        pen.blob(random.uniform(0.66, 0.84), random.uniform(-0.6, -0.05), size, size, (214, 238, 250))


def _parrot(pen: Pen, random: Random) -> None:
    green, red = _vary((46, 160, 66), random), _vary((214, 44, 48), random)
    blue = _vary((40, 92, 200), random)
    pen.line([(-0.9, 0.5), (0.9, 0.44)], 0.09, (120, 84, 54))
    pen.shape([(-0.24, 0.3), (-0.06, 0.34), (-0.36, 1.02), (-0.5, 0.96)], blue)
    pen.shape([(-0.12, 0.3), (0.04, 0.34), (-0.22, 1.06), (-0.32, 1.02)], red)
    pen.blob(0.02, 0.02, 0.3, 0.52, green, 18)
    pen.blob(0.24, -0.02, 0.12, 0.3, _mixed(green, (250, 225, 70), 0.75), 14)
    pen.blob(-0.12, 0.1, 0.19, 0.42, blue, 20)
    pen.blob(-0.06, -0.04, 0.16, 0.24, _shade(green, 0.75), 20)
    pen.blob(0.22, -0.5, 0.27, 0.26, red)
    pen.blob(0.33, -0.5, 0.12, 0.12, WHITE)
    pen.eye(0.34, -0.52, 0.06, (250, 225, 70))
    pen.shape([(0.44, -0.6), (0.64, -0.5), (0.62, -0.26), (0.54, -0.36), (0.42, -0.38)], (60, 58, 62))
    for x in (0.0, 0.14):
        pen.line([(x, 0.42), (x + 0.02, 0.52)], 0.06, (96, 96, 104))


def _hedgehog(pen: Pen, random: Random) -> None:
    quills, face = _vary((104, 72, 50), random), _vary((232, 204, 168), random)
    for x in (-0.4, -0.2, 0.22, 0.4):
        pen.blob(x, 0.38, 0.09, 0.08, _shade(face, 0.75))
    pen.blob(-0.02, 0.18, 0.6, 0.24, face)
    pen.shape([(0.36, -0.18), (0.7, 0.06), (0.94, 0.19), (0.7, 0.32), (0.3, 0.36)], face)
    for length, colour in ((1.0, quills), (0.72, _mixed(quills, face, 0.4)), (0.5, _shade(quills, 0.7))):
        outline: list[Point] = []
        for spike in range(23):
            angle = math.radians(-202 + 9.2 * spike)
            for reach, turn in ((0.84, 0.0), (random.uniform(1.0, 1.12), 0.08)):
                x, y = math.cos(angle + turn) * reach, math.sin(angle + turn) * reach
                outline.append((-0.1 + 0.62 * length * x, 0.12 + 0.6 * length * y))
        pen.shape(outline, colour)
    pen.blob(0.44, -0.02, 0.1, 0.1, _shade(face, 0.85))
    pen.eye(0.62, 0.08, 0.05, BLACK)
    pen.blob(0.93, 0.19, 0.065, 0.06, BLACK)


def _legs(pen: Pen, random: Random, colour: Colour, width: float, longer: float = 0.0) -> None:
    """Four of them, in mid-stride or not."""
    stride = random.uniform(0.02, 0.14)
    for x, step in ((-0.46, -stride), (-0.36, stride), (0.18, -stride), (0.3, stride)):
        pen.line([(x, 0.12), (x + step, 0.46 + longer)], width, colour)


def _tail(random: Random) -> list[Point]:
    """A cat's, from the root to the tip: up, or out to the back."""
    reach, rise = random.uniform(0.1, 0.4), random.uniform(0.35, 0.6)
    root, bend, tip = (-0.6, 0.02), (-0.64 - reach, 0.0), (-0.66 - 0.6 * reach, -rise)
    shares = [step / 11 for step in range(12)]
    return [
        (
            (1 - share) ** 2 * root[0] + 2 * share * (1 - share) * bend[0] + share**2 * tip[0],
            (1 - share) ** 2 * root[1] + 2 * share * (1 - share) * bend[1] + share**2 * tip[1],
        )
        for share in shares
    ]


def _ellipse(x: float, y: float, width: float, height: float, turn: float) -> list[Point]:
    cos, sin = math.cos(math.radians(turn)), math.sin(math.radians(turn))
    angles = [2 * math.pi * step / _OUTLINE_POINTS for step in range(_OUTLINE_POINTS)]
    around = [(width * math.cos(angle), height * math.sin(angle)) for angle in angles]
    return [(x + cos * u - sin * v, y + sin * u + cos * v) for u, v in around]


def _wall(split: Split, random: Random) -> Colour:
    """A pale colour. Its red can be divided by _HELD_OUT if the drawing is for testing, and only then."""
    red, green, blue = (random.randrange(150, 235) for _ in range(3))
    red -= red % _HELD_OUT
    return (red if split == "test" else red + random.randrange(1, _HELD_OUT)), green, blue


def _vary(colour: Colour, random: Random) -> Colour:
    red, green, blue = (min(255, max(0, part + random.randint(-14, 14))) for part in colour)
    return red, green, blue


def _mixed(one: Colour, other: Colour, share: float) -> Colour:
    red, green, blue = (round(a + share * (b - a)) for a, b in zip(one, other, strict=True))
    return red, green, blue


def _shade(colour: Colour, share: float) -> Colour:
    return _mixed((0, 0, 0), colour, share)


_ANIMALS: Mapping[str, Callable[[Pen, Random], None]] = {
    "tabby_cat": _tabby_cat,
    "black_cat": _black_cat,
    "dalmatian": _dalmatian,
    "goldfish": _goldfish,
    "parrot": _parrot,
    "hedgehog": _hedgehog,
}
CLASSES = tuple(_ANIMALS)
