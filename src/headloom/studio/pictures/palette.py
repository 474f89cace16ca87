"""Colours: queries teal, keys amber, weights one ramp, differences two hues.

The ramps run in OKLCH with lightness linear in the value, so that equal steps look equal, and
read the same in grey.

Source: Ottosson 2020, a perceptual colour space for image processing (OKLab).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from matplotlib import rcParams, rcParamsDefault
from matplotlib.colors import ListedColormap, to_hex, to_rgb

from headloom.mechanism.shapes import chosen

Theme = Literal["light", "dark"]
#: Lightness (0 to 1), chroma and hue (degrees) of the stops of a ramp, evenly spaced.
Stops = Sequence[tuple[float, float, float]]

_WEIGHT_LIGHT: Stops = (
    (0.995, 0.004, 90), (0.86, 0.100, 72), (0.725, 0.155, 48), (0.59, 0.180, 22),
    (0.455, 0.165, -8), (0.32, 0.120, -40), (0.185, 0.055, -72),
)  # fmt: skip
_WEIGHT_DARK: Stops = (
    (0.17, 0.012, -80), (0.305, 0.100, -62), (0.44, 0.155, -38), (0.575, 0.180, -8),
    (0.71, 0.165, 32), (0.845, 0.125, 72), (0.975, 0.055, 100),
)  # fmt: skip
_DIFFERENCE_LIGHT: Stops = (
    (0.36, 0.130, 262), (0.57, 0.145, 255), (0.78, 0.085, 250), (0.985, 0.003, 90),
    (0.78, 0.100, 12), (0.57, 0.180, 8), (0.36, 0.140, 2),
)  # fmt: skip
_DIFFERENCE_DARK: Stops = (
    (0.88, 0.075, 240), (0.65, 0.140, 252), (0.42, 0.110, 260), (0.20, 0.008, 270),
    (0.42, 0.130, 6), (0.65, 0.180, 10), (0.88, 0.080, 16),
)  # fmt: skip


@dataclass(frozen=True)
class Palette:
    """Colours of a theme; heads: twelve colours that are safe for colour-blind readers."""

    ground: str
    ink: str
    faint: str  # secondary text
    line: str
    query: str
    key: str
    weight: ListedColormap
    difference: ListedColormap  # of signed numbers
    heads: tuple[str, ...]


def _ramp(name: str, stops: Stops) -> ListedColormap:
    lightness, chroma, hue = np.array(stops).T
    # Between two stops in a straight line, so that a way through grey takes on no third hue.
    places = np.linspace(0, 1, 256), np.linspace(0, 1, len(stops))
    corners = lightness, chroma * np.cos(np.radians(hue)), chroma * np.sin(np.radians(hue))
    oklab = np.stack([np.interp(*places, axis) for axis in corners])
    cones = np.array([
        [1, 0.3963377774, 0.2158037573],
        [1, -0.1055613458, -0.0638541728],
        [1, -0.0894841775, -1.2914855480],
    ]) @ oklab  # fmt: skip
    linear = np.array([
        [4.0767416621, -3.3077115913, 0.2309699292],
        [-1.2684380046, 2.6097574011, -0.3413193965],
        [-0.0041960863, -0.7034186147, 1.7076147010],
    ]) @ cones**3  # fmt: skip
    linear = linear.clip(0, 1)
    encoded = np.where(
        linear <= 0.0031308, 12.92 * linear, 1.055 * linear.clip(1e-9) ** (1 / 2.4) - 0.055
    )
    return ListedColormap(encoded.T.clip(0, 1), name)


#: The colours of heads, near Okabe and Ito's, moved apart for eyes without red or green cones.
_HEADS_LIGHT = (
    "#0a73ab", "#e0691f", "#29a06f", "#c470d0", "#826604", "#5a4fcf",
    "#555c60", "#902d0c", "#32969c", "#7d227a", "#6e7272", "#464646",
)  # fmt: skip
_HEADS_DARK = (
    "#51aacd", "#ffc79f", "#41c18f", "#c17699", "#f2e644", "#7267da",
    "#3292d1", "#dc6c57", "#a4d55a", "#e88bfa", "#b3bac5", "#c6a44d",
)  # fmt: skip


_THEMES: dict[Theme, Palette] = {
    "light": Palette(
        "#ffffff", "#1c2126", "#5f6670", "#dcdad3", "#0a716e", "#945407",
        _ramp("headloom-weight-light", _WEIGHT_LIGHT),
        _ramp("headloom-difference-light", _DIFFERENCE_LIGHT), _HEADS_LIGHT,
    ),
    "dark": Palette(
        "#101317", "#e9e7e2", "#8d949e", "#2c323a", "#5cc8c2", "#f2b05e",
        _ramp("headloom-weight-dark", _WEIGHT_DARK),
        _ramp("headloom-difference-dark", _DIFFERENCE_DARK), _HEADS_DARK,
    ),
}  # fmt: skip


def palette(theme: Theme | None = None) -> Palette:
    """Return the colours of a theme; None: by the background of figures in ``rcParams``.

    >>> palette("light").query
    '#0a716e'
    """
    if theme is not None:
        chosen("picture", "theme", theme, ("light", "dark"))
        return _THEMES[theme]
    ground, ink = (to_hex(rcParams[name]) for name in ("figure.facecolor", "text.color"))
    fitting = _THEMES["light" if sum(to_rgb(ground)) > 1.5 else "dark"]
    chosen_ink = ink if rcParams["text.color"] != rcParamsDefault["text.color"] else fitting.ink
    return replace(fitting, ground=ground, ink=chosen_ink)
