"""Images from files of Pillow's formats, and images with labels from arrays or folders."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from headloom.errors import DataError, InputError, installing
from headloom.formats.files import cannot_read, check_file, in_brief
from headloom.formats.stored_arrays import read_npz

if TYPE_CHECKING:
    from PIL.Image import Image


#: Suffixes of the image files in a folder, in lower case.
_ENDINGS = (".png", ".jpg", ".jpeg")
#: Pillow's modes that have no colour.
_GREY = ("1", "L", "LA", "I", "I;16", "F")
#: Errors of Pillow for damaged files; SyntaxError comes from the chunks of a PNG.
_UNREADABLE = (OSError, ValueError, SyntaxError, EOFError)


@dataclass(frozen=True, eq=False)
class LabelledImages:
    """Images of one size, each with a class.

    images: (images, channels, rows, columns), float32, 0 (black) to 1.
    labels: class name of each image.
    names: path of each image, for errors.
    """

    images: NDArray[np.float32]
    labels: list[str]
    names: list[str]

    def chosen(self, indices: list[int]) -> LabelledImages:
        """Return the images at these indices, in this order."""
        return LabelledImages(
            self.images[indices],
            [self.labels[index] for index in indices],
            [self.names[index] for index in indices],
        )


def open_image(path: Path, mode: str | None = "RGB") -> Image:
    """Open a picture with Pillow.

    Args:
        path: of a PNG or JPEG file; or of an image in a file of arrays: "digits.npz:17", from 0.
        mode: "RGB" for red, green and blue, "L" for grey; None: grey if the file is grey, else RGB.

    Raises: DataError: no such file, or no picture; InputError: Pillow is missing.
    """
    try:
        from PIL import Image, ImageOps, UnidentifiedImageError
    except ImportError:
        raise InputError(
            f"an image needs Pillow, which is not installed. {installing('hf')}"
        ) from None
    arrays, colon, number = str(path).rpartition(":")
    if colon and arrays.endswith(".npz") and number.isdecimal() and number.isascii():
        return _of_arrays(Path(arrays), number).convert(mode)
    check_file(path, "image")
    if path.suffix == ".npz":
        raise DataError(f"{path}: a file of arrays. Name one of its images, as {path}:0.")
    try:
        with Image.open(path) as opened:
            # Turned upright by its EXIF orientation, as viewers do.
            turned = ImageOps.exif_transpose(opened)
            picture = _to_8_bits(turned) if turned.mode[0] in "IF" else turned
            return picture.convert(mode or ("L" if picture.mode in _GREY else "RGB"))
    except (*_UNREADABLE, UnidentifiedImageError, Image.DecompressionBombError) as error:
        reason = "not an image that Pillow can read"
        if isinstance(error, Image.DecompressionBombError):
            reason = "too many pixels"
        elif not isinstance(error, UnidentifiedImageError):
            reason = f"damaged, or not readable ({in_brief(error)})"
        raise DataError(f"{path}: {reason}. Give a PNG or JPEG file.") from None


def _to_8_bits(picture: Image) -> Image:
    """Convert a grey picture from 16 bits to 8; Pillow itself would clip the values."""
    from PIL import Image

    pixels = np.asarray(picture)
    if pixels.dtype.kind == "f" or pixels.min(initial=0) < 0 or pixels.max(initial=0) >= 2**16:
        raise ValueError("its pixels are no whole numbers of 8 or 16 bits")
    return Image.fromarray(np.rint(pixels / 257).astype(np.uint8))


def _of_arrays(path: Path, number: str) -> Image:
    """Open an image of a file of arrays as a picture."""
    from PIL import Image

    images = read_images(path).images
    if len(number) > 18 or int(number) >= len(images):
        raise InputError(f"{path}:{number}: the file has images 0 to {len(images) - 1}.")
    pixels = np.rint(images[int(number)] * 255).astype(np.uint8)
    return Image.fromarray(pixels[0] if len(pixels) == 1 else np.moveaxis(pixels, 0, -1))


def image_array(picture: Image) -> NDArray[np.float32]:
    """Return a grey or coloured picture as an array (channels, rows, columns), 0 to 1."""
    pixels = np.asarray(picture, dtype=np.float32) / np.float32(255)
    return pixels[None] if pixels.ndim == 2 else np.moveaxis(pixels, -1, 0)


def read_images(
    path: Path, *, colour: bool | None = None, size: tuple[int, int] | None = None
) -> LabelledImages:
    """Read labelled images.

    Args:
        path: a .npz file with "images", (images, rows, columns) or (images, rows, columns,
            channels), bytes or numbers from 0 to 1, and "labels", an integer or a string each; or
            a folder with a subfolder of PNG or JPEG files for each class.
        colour: whether to convert to colour or to grey; None: keep; if a folder has both kinds,
            all become coloured.
        size: rows and columns to scale the files of a folder to; None: all must have one size.

    Raises:
        DataError: a file is missing or damaged.
        InputError: a class has no images, sizes differ, or arrays do not match.
    """
    if path.is_dir():
        return _read_folder(path, colour, size)
    return _from_arrays(path, colour, size)


def _from_arrays(path: Path, colour: bool | None, size: tuple[int, int] | None) -> LabelledImages:
    arrays = read_npz(path, "file of images")
    images, labels = (arrays.get(name, np.zeros(0)) for name in ("images", "labels"))
    shape = images.shape if images.ndim == 4 else (*images.shape, 1)
    fits = images.ndim in (3, 4) and len(images) and shape[3] in (1, 3)
    if not fits or labels.shape != shape[:1] or labels.dtype.kind not in "iuU":
        held = ", ".join(f"{name} {array.dtype} {array.shape}" for name, array in arrays.items())
        raise InputError(
            f'{path}: it holds {held or "nothing"}; expected "images", (images, rows, columns) or '
            '(images, rows, columns, 3), and "labels", a whole number or a text for each.'
        )
    if size not in (None, shape[1:3]):
        raise InputError(
            f"{path}: images have {shape[1]} x {shape[2]} pixels, task.size is {size}; arrays "
            "are not scaled. Leave task.size out."
        )
    pixels = np.moveaxis(images.reshape(shape), -1, 1).astype(np.float32)
    if images.dtype == np.uint8:
        pixels /= np.float32(255)
    elif images.dtype.kind != "f" or not (pixels.min() >= 0 and pixels.max() <= 1):
        raise InputError(
            f"{path}: images are {images.dtype} from {pixels.min():g} to {pixels.max():g}; "
            "expected bytes (uint8), or floats from 0 to 1."
        )
    if colour and shape[3] == 1:
        pixels = np.repeat(pixels, 3, 1)
    elif colour is False and shape[3] == 3:
        # Luma of ITU-R 601-2, Pillow's conversion to grey.
        luma = np.array([0.299, 0.587, 0.114], dtype=np.float32)
        pixels = np.einsum("nchw,c->nhw", pixels, luma)[:, None]
    names = [f"{path}, image {number}" for number in range(len(pixels))]
    texts = [str(label) for label in labels.tolist()]
    return LabelledImages(np.ascontiguousarray(pixels), texts, names)


def _read_folder(folder: Path, colour: bool | None, size: tuple[int, int] | None) -> LabelledImages:
    files = _files(folder)
    mode = None if colour is None else "RGB" if colour else "L"
    pictures = [open_image(path, mode) for path, _ in files]
    if any(picture.mode == "RGB" for picture in pictures):
        pictures = [picture.convert("RGB") for picture in pictures]
    if size is not None:
        pictures = [picture.resize((size[1], size[0])) for picture in pictures]
    first = pictures[0].size
    for picture, (path, _) in zip(pictures, files, strict=True):
        if picture.size != first:
            raise InputError(
                f"{path}: {picture.size[1]} x {picture.size[0]} pixels, {files[0][0]} has "
                f"{first[1]} x {first[0]}; a model reads images of one size. Scale them, or set "
                f"task.size = [{first[1]}, {first[0]}]."
            )
    images = np.stack([image_array(picture) for picture in pictures])
    return LabelledImages(images, [label for _, label in files], [str(path) for path, _ in files])


def _files(folder: Path) -> list[tuple[Path, str]]:
    """Return the image files in the subfolders of a folder, each with its class."""
    try:
        classes = sorted(path for path in folder.iterdir() if path.is_dir())
        files = {
            path: sorted(file for file in path.iterdir() if file.suffix.lower() in _ENDINGS)
            for path in classes
        }
    except OSError as error:
        raise cannot_read(folder, "folder", error) from error
    if not files:
        raise InputError(
            f"{folder}: no folders in it; expected one for each class, with its images."
        )
    for path, images in files.items():
        if not images:
            raise InputError(
                f"{path}: the class {path.name!r} has no images. Put PNG or JPEG files there, or "
                "remove the folder."
            )
    return [(file, path.name) for path, images in files.items() for file in images]
