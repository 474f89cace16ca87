from __future__ import annotations

import re
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
from matplotlib.colors import to_rgb

from headloom.analysis.heads.roles import NO_NUMBER, ROLE_WORDS
from headloom.studio.pictures.palette import palette

#: What an eye without red or without green cones makes of linear red, green and blue.
#: Machado et al. 2009, table 1, severity 1.
EYES = {
    "all cones": np.eye(3),
    "no red cones": np.array([
        [0.152286, 1.052583, -0.204868],
        [0.114503, 0.786281, 0.099216],
        [-0.003882, -0.048116, 1.051998],
    ]),
    "no green cones": np.array([
        [0.367322, 0.860646, -0.227968],
        [0.280085, 0.672501, 0.047413],
        [-0.011820, 0.042940, 0.968881],
    ]),
}  # fmt: skip
#: In OKLab, where 0.02 can just be told apart side by side: of all, of roles that many models have,
#: and of those that most heads have.
APART = 0.07
COMMON = 0.1, {"previous", "next", "same", "first", "induction", "local", "broad", "mixed"}
MOST = 0.15, {"previous", "first", "mixed"}
#: The studio's grounds, those of least contrast. WCAG 2.2, 1.4.11: what is no text has 3.
GROUNDS = {"light": "#fbfaf6", "dark": "#161a20"}


def linear_of(colours) -> np.ndarray:
    colours = np.asarray(colours)[..., :3]
    return np.where(colours <= 0.04045, colours / 12.92, ((colours + 0.055) / 1.055) ** 2.4)


def oklab(linear: np.ndarray) -> np.ndarray:
    """Ottosson 2020."""
    cones = linear @ np.array([
        [0.4122214708, 0.2119034982, 0.0883024619],
        [0.5363325363, 0.6806995451, 0.2817188376],
        [0.0514459929, 0.1073969566, 0.6299787005],
    ])  # fmt: skip
    return np.cbrt(cones) @ np.array([
        [0.2104542553, 1.9779984951, 0.0259040371],
        [0.7936177850, -2.4285922050, 0.7827717662],
        [-0.0040720468, 0.4505937099, -0.8086757660],
    ])  # fmt: skip


def luminance(colours) -> np.ndarray:
    """Relative luminance of sRGB colours (WCAG 2.1)."""
    return linear_of(colours) @ [0.2126, 0.7152, 0.0722]


def contrast(one, other) -> np.ndarray:
    high, low = sorted((luminance(one), luminance(other)), reverse=True)
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_more_weight_is_always_further_from_the_ground(theme) -> None:
    ramp = luminance(palette(theme).weight(np.linspace(0, 1, 256)))
    assert (np.diff(ramp) < 1e-4).all() if theme == "light" else (np.diff(ramp) > -1e-4).all()
    # Equal steps look equal: lightness (the cube root of luminance) is nearly linear.
    lightness = np.cbrt(ramp)
    straight = np.linspace(lightness[0], lightness[-1], 256)
    assert np.abs(lightness - straight).max() < 0.07
    # Both signs of a difference stand out alike.
    ramp = luminance(palette(theme).difference(np.linspace(0, 1, 256)))
    assert np.abs(ramp - ramp[::-1]).max() < 0.1
    assert (ramp[127] == ramp.max()) if theme == "light" else (ramp[127] <= ramp.min() + 1e-3)


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_texts_can_be_read_on_their_ground(theme) -> None:
    colours = palette(theme)
    for name in ("ink", "faint", "query", "key"):
        ratio = contrast(to_rgb(getattr(colours, name)), to_rgb(colours.ground))
        assert ratio >= (4.0 if name != "ink" else 7.0), (name, ratio)
    assert len(set(colours.heads)) == 12


def colours_of(theme: str, what: str) -> dict[str, str]:
    """By what has it each colour that is to be told from the others."""
    if what == "heads":
        return dict(zip(map(str, range(12)), palette(theme).heads, strict=True))
    place = ["light", "dark"].index(theme)
    # A head without numbers has no role either, as a mixed one.
    return {name: of.colours[place] for name, of in ROLE_WORDS.items() if name != NO_NUMBER}


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("what", ["roles", "heads"])
def test_every_eye_tells_the_colours_apart(theme, what) -> None:
    colours = colours_of(theme, what)
    names = list(colours)
    linear = linear_of([to_rgb(colour) for colour in colours.values()])
    for eye, matrix in EYES.items():
        seen = oklab((linear @ matrix.T).clip(0, 1))
        apart = np.linalg.norm(seen[:, None] - seen, axis=-1)
        for least, among in ((APART, {*names}), COMMON, MOST):
            places = [place for place, name in enumerate(names) if name in among]
            for one, other in combinations(places, 2):
                assert apart[one, other] >= least, (eye, names[one], names[other])
    for name, colour in colours.items():
        ratio = contrast(to_rgb(colour), to_rgb(GROUNDS[theme]))
        assert ratio >= 3, (name, ratio)


def test_the_studio_has_the_same_colours_of_heads() -> None:
    source = Path(__file__).parents[3] / "studio" / "src" / "colour.ts"
    found = source.read_text("utf-8").split("HEADS:")[1].split("};")[0]
    both = palette("light").heads + palette("dark").heads
    assert tuple(re.findall(r"#[0-9a-f]{6}", found)) == both
