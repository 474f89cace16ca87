"""The image, tile, row and column of each position of a text with images."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from headloom.formats.traced_images import NAMES, TracedImage
from headloom.tracing.arguments import Inputs
from headloom.tracing.vision_language.layouts import LAYOUTS, Request

__all__ = ["ImagesOfText", "images_of_texts"]


@dataclass(frozen=True)
class ImagesOfText:
    """The images of one text of a batch.

    places: image, tile, row and column of each of its tokens, -1 where it is no patch.
    """

    images: tuple[TracedImage, ...]
    places: list[tuple[int, int, int, int]]

    def known(self, span: slice) -> dict[str, list[int]]:
        """What `Trace.positions` says of some positions."""
        return {
            name: [place[number] for place in self.places[span]]
            for number, name in enumerate(NAMES)
        }

    def named(self, names: list[str], span: slice) -> list[str]:
        """The names of some positions, those of patches by where they lie."""
        return [
            name if place[0] < 0 else self._name(place)
            for name, place in zip(names, self.places[span], strict=True)
        ]

    def _name(self, place: tuple[int, int, int, int]) -> str:
        image, tile, row, column = place
        name = f"patch {row},{column}"
        if len(self.images[image].tiles) > 1:
            name = f"tile {tile}, {name}"
        return f"image {image}, {name}" if len(self.images) > 1 else name


def images_of_texts(
    model: nn.Module, inputs: Inputs, processor: Any, prompt: int | None = None
) -> list[ImagesOfText] | None:
    """The images of each text of a batch; None: there are none, or their layout is not known.

    Args:
        model: of Transformers.
        inputs: what its processor made.
        processor: of the model, or of images; anything else says nothing.
        prompt: how many tokens were given; what was generated after them holds no image.
    """
    config: Any = getattr(model, "config", None)
    layout = LAYOUTS.get(getattr(config, "model_type", ""))
    ids, pixels = inputs.get("input_ids"), inputs.get("pixel_values")
    if layout is None or not isinstance(ids, Tensor) or not isinstance(pixels, Tensor):
        return None
    token = getattr(config, "image_token_id", None)
    if ids.ndim != 2 or token is None:
        return None
    found = ids == token
    found[:, prompt:] &= prompt is None
    seen = layout(
        Request(config, inputs, int(found.sum()), getattr(processor, "image_processor", processor))
    )
    if not seen:
        return None
    features = [
        (number, feature) for number, image in enumerate(seen) for feature in image.features
    ]
    # Several texts may be written of one, side by side in the batch.
    copies, left = divmod(int(found.sum()), len(features))
    if left or not copies or len(found) % copies:
        return None
    texts, start = [], 0
    for row, of_text in enumerate(found, 1):
        count = int(of_text.sum())
        own = features[start : start + count]
        if len(own) != count:
            return None
        start += count if row % copies == 0 else 0
        first = own[0][0] if own else 0
        # The features of a text are those of whole images.
        if own and len(own) != sum(len(x.features) for x in seen[first : own[-1][0] + 1]):
            return None
        images = tuple(image.image for image in seen[first : own[-1][0] + 1]) if own else ()
        places = [(-1, -1, -1, -1)] * ids.shape[1]
        for place, (number, feature) in zip(
            torch.nonzero(of_text)[:, 0].tolist(), own, strict=True
        ):
            if feature is not None:
                places[place] = (number - first, *feature)
        texts.append(ImagesOfText(images, places))
    return texts
