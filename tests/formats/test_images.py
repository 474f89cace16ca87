"""Labelled images from arrays and folders, and what cannot be read."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from headloom.errors import DataError, HeadloomError, InputError
from headloom.formats.images import image_array, open_image, read_images

#: One image of 2 x 3 pixels, grey.
GREY = np.array([[0, 51, 102], [153, 204, 255]], dtype=np.uint8)
#: Red, green, blue; a row.
COLOURS = np.array([[[255, 0, 0], [0, 255, 0], [0, 0, 255]]], dtype=np.uint8)


def saved(path: Path, **arrays: object) -> Path:
    np.savez(path, **arrays)
    return path


def folder(tmp_path: Path, **classes: list[np.ndarray]) -> Path:
    for name, images in classes.items():
        (tmp_path / name).mkdir()
        for number, image in enumerate(images):
            Image.fromarray(image).save(tmp_path / name / f"{number}.png")
    return tmp_path


def test_grey_arrays(tmp_path) -> None:
    path = saved(tmp_path / "x.npz", images=np.stack([GREY, 255 - GREY]), labels=[7, 3])
    found = read_images(path)
    assert found.images.shape == (2, 1, 2, 3) and found.images.dtype == np.float32
    np.testing.assert_allclose(found.images[0, 0], [[0, 0.2, 0.4], [0.6, 0.8, 1]], atol=1e-7)
    assert found.labels == ["7", "3"]
    assert found.chosen([1]).labels == ["3"]
    np.testing.assert_allclose(found.chosen([1]).images[0, 0, 0], [1, 0.8, 0.6], atol=1e-7)


def test_coloured_arrays_and_their_grey(tmp_path) -> None:
    path = saved(tmp_path / "x.npz", images=COLOURS[None], labels=[0])
    found = read_images(path).images
    assert found.shape == (1, 3, 1, 3)
    np.testing.assert_array_equal(found[0, :, 0], np.eye(3, dtype=np.float32))
    grey = read_images(path, colour=False).images
    np.testing.assert_allclose(grey[0, 0, 0], [0.299, 0.587, 0.114], atol=1e-6)
    as_pillow = image_array(Image.fromarray(COLOURS).convert("L"))
    np.testing.assert_allclose(grey[0], as_pillow, atol=1 / 255)
    both = saved(tmp_path / "y.npz", images=GREY[None], labels=[0])
    assert read_images(both, colour=True).images.shape == (1, 3, 2, 3)


def test_a_folder_a_class(tmp_path) -> None:
    found = read_images(folder(tmp_path, cat=[GREY, GREY], ant=[255 - GREY]))
    assert found.labels == ["ant", "cat", "cat"] and found.images.shape == (3, 1, 2, 3)
    np.testing.assert_allclose(found.images[1, 0, 0], [0, 0.2, 0.4], atol=1e-7)


def test_a_folder_of_grey_and_coloured_files_is_coloured(tmp_path) -> None:
    colours = np.repeat(COLOURS, 2, 0)
    path = folder(tmp_path, a=[GREY], b=[colours])
    found = read_images(path).images
    assert found.shape == (2, 3, 2, 3)
    np.testing.assert_array_equal(found[0, 0], found[0, 2])
    assert read_images(path, colour=False).images.shape == (2, 1, 2, 3)


def test_files_are_scaled_where_a_size_is_asked_for(tmp_path) -> None:
    path = folder(tmp_path, a=[GREY], b=[np.full((8, 8), 51, dtype=np.uint8)])
    with pytest.raises(InputError, match=r"0.png: 8 x 8 pixels, .*0.png has 2 x 3; a model reads"):
        read_images(path)
    found = read_images(path, size=(4, 6)).images
    assert found.shape == (2, 1, 4, 6)
    np.testing.assert_allclose(found[1], 0.2, atol=1e-7)


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"x": GREY}, 'it holds x uint8 .2, 3.; expected "images"'),
        ({"images": GREY[None], "labels": [1, 2]}, r"labels int64 \(2,\); expected"),
        ({"images": GREY[None], "labels": [0.5]}, "labels float64"),
        ({"images": GREY[None] / 16.0, "labels": [1]}, "images are float64 from 0 to 15.9375"),
        ({"images": np.full((1, 2, 2), np.nan), "labels": [1]}, "images are float64 from nan"),
        ({"images": GREY[None].astype(np.int64), "labels": [1]}, "images are int64 from 0 to 255"),
        ({"images": np.zeros((1, 3, 8, 8)), "labels": [1]}, r"expected .*rows, columns, 3"),
    ],
)
def test_arrays_that_do_not_fit(arrays, message, tmp_path) -> None:
    with pytest.raises(InputError, match=message):
        read_images(saved(tmp_path / "x.npz", **arrays))


def test_folders_that_cannot_be_read(tmp_path) -> None:
    with pytest.raises(InputError, match="no folders in it; expected one for each class"):
        read_images(tmp_path)
    path = folder(tmp_path, a=[GREY], b=[])
    with pytest.raises(InputError, match=r"the class 'b' has no images\. Put PNG or JPEG files"):
        read_images(path)
    (tmp_path / "b" / "x.png").write_bytes(b"no image")
    with pytest.raises(DataError, match=r"x\.png: not an image that Pillow can read"):
        read_images(path)
    with pytest.raises(HeadloomError, match="no such file of images"):
        read_images(tmp_path / "missing.npz")


def test_an_image_of_arrays_is_opened_by_its_number(tmp_path) -> None:
    saved(tmp_path / "x.npz", images=np.stack([255 - GREY, GREY]), labels=[7, 3])
    picture = open_image(tmp_path / "x.npz:1", None)
    np.testing.assert_array_equal(np.asarray(picture), GREY)
    with pytest.raises(InputError, match=r"x\.npz:2: the file has images 0 to 1"):
        open_image(tmp_path / "x.npz:2")


def test_a_grey_picture_of_16_bits_is_not_cut_off(tmp_path: Path) -> None:
    Image.fromarray(GREY.astype(np.uint16) * 257).save(tmp_path / "x.png")
    for mode in (None, "L", "RGB"):
        read = image_array(open_image(tmp_path / "x.png", mode))
        np.testing.assert_allclose(read[0], GREY / 255, atol=1e-6)


def test_a_picture_is_turned_as_its_camera_was_held(tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.fromarray(np.repeat(COLOURS, 2, 0)).save(tmp_path / "x.png", exif=exif)
    turned = np.asarray(open_image(tmp_path / "x.png"))
    assert turned.shape == (3, 2, 3)
    assert (turned[0] == [255, 0, 0]).all() and (turned[2] == [0, 0, 255]).all()
