from __future__ import annotations

import numpy as np
import pytest

from weft.pictures.palette import palette


def luminance(colours) -> np.ndarray:
    """Relative luminance of sRGB colours (WCAG 2.1)."""
    colours = np.asarray(colours)[..., :3]
    linear = np.where(colours <= 0.04045, colours / 12.92, ((colours + 0.055) / 1.055) ** 2.4)
    return linear @ [0.2126, 0.7152, 0.0722]


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


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_both_signs_of_a_difference_stand_out_alike(theme) -> None:
    colours = palette(theme).difference(np.linspace(0, 1, 256))
    ramp = luminance(colours)
    assert np.abs(ramp - ramp[::-1]).max() < 0.1
    middle = ramp[127]
    assert (middle == ramp.max()) if theme == "light" else (middle <= ramp.min() + 1e-3)


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_texts_can_be_read_on_their_ground(theme) -> None:
    from matplotlib.colors import to_rgb

    colours = palette(theme)
    for name in ("ink", "faint", "query", "key"):
        ratio = contrast(to_rgb(getattr(colours, name)), to_rgb(colours.ground))
        assert ratio >= (4.0 if name != "ink" else 7.0), (name, ratio)
    assert len(set(colours.heads)) == 12
