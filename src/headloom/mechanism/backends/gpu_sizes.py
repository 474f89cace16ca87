"""Block and buffer sizes of the GPU kernels, by device and call."""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import lru_cache

import torch

from headloom.mechanism.backends.compiled import NativeCall

#: Number of keys that a thread's list can index, beside 7 bits for the row.
MOST_LISTED = 2**25
#: Largest number of tiles with four maxima each, if some rows see few tiles.
FINE = 512
#: Largest length of a thread's list; a full list only costs time.
LONGEST_LIST = 256
#: Bytes of shared memory of a program on large devices (A100 has 166,912, H100 232,448), and on
#: the smallest since Ampere.
MUCH_SHARED, LEAST_SHARED = 166_912, 101_376


#: Compile-time constants of a kernel by name.
Constants = dict[str, int | str]


def interpreted() -> bool:
    """Whether Triton interprets kernels, on the CPU, instead of compiling them."""
    return os.environ.get("TRITON_INTERPRET", "") == "1"


@dataclass(frozen=True, slots=True)
class Device:
    """Properties of a device that the sizes depend on.

    shared: bytes of shared memory for a program. warp: threads of a warp (AMD: wavefront).
    amd: whether it is an AMD device. processors: number of multiprocessors.
    """

    shared: int
    warp: int = 32
    amd: bool = False
    processors: int = 2


def _power(number: int, least: int) -> int:
    """Return the smallest power of two that is at least a number and at least `least`."""
    return max(least, 1 << (number - 1).bit_length())


@lru_cache
def described(device: torch.device) -> Device:
    """Return the properties of a torch device that sizes depend on."""
    if device.type != "cuda":
        return Device(MUCH_SHARED)
    cuda = torch.cuda.get_device_properties(device)
    shared = getattr(cuda, "shared_memory_per_block_optin", cuda.shared_memory_per_block)
    processors = cuda.multi_processor_count
    return Device(shared, cuda.warp_size, torch.version.hip is not None, processors)


@dataclass(frozen=True, slots=True)
class Sizes:
    """Sizes of the kernels, and the constants that each is compiled with.

    rows, tile: queries of a block and keys of a tile, the same in all kernels. tiles: the largest
    number of tiles of a block. softmax, edges: constants of the two kernels.
    """

    rows: int
    tile: int
    tiles: int
    softmax: Constants
    edges: Constants


def sizes_of(native: NativeCall, kept: int, device: Device) -> Sizes:
    """Return the sizes for a call on a device. kept: edges of a row, 0 for none."""
    depths = native.queries.shape[3], native.values.shape[3]
    added = (native.bias, native.offset_bias, native.allowed)
    by_cells = any(tensor is not None for tensor in added)
    single = native.queries.dtype == torch.float32
    length = native.keys.shape[2]
    ranges = (native.key_range, native.row_range)
    uneven = native.banded or any(tensor is not None for tensor in ranges)
    left, right = band_of(native)
    widest = max(1, min(length, right - left + 1)) if native.banded else length
    return _sizes(depths, length, widest, uneven, single, by_cells, kept, device, interpreted())


@lru_cache(maxsize=256)
def _sizes(
    depths: tuple[int, int], length: int, widest: int, uneven: bool, single: bool, by_cells: bool,
    kept: int, device: Device, interpreting: bool,
) -> Sizes:  # fmt: skip
    """Compute `sizes_of`, cached.

    widest: largest number of keys of a row; uneven: whether some rows may have far fewer; single:
    whether tensors are float32; by_cells: whether there is a bias or mask for each score.
    """
    widths = _power(depths[0], 16), _power(depths[1], 16)
    deepest = max(widths)
    if interpreting:
        rows, tile, warps, stages = 16, 32, 4, 1
    elif device.shared < LEAST_SHARED and not device.amd and not single:
        rows, tile, warps, stages = 64, 32, 4, 1
    elif device.amd:
        # RDNA's warps of 32 threads have half as many registers.
        large = device.warp == 64 and not (single and deepest > 128)
        rows, tile = (128, 32) if large else (64, 16)
        warps, stages = 4, 1
    elif single and deepest > 128:
        rows, tile, warps, stages = 16, 16, 8, 1
    elif single:
        rows, tile, warps, stages = (64, 32, 4, 2) if deepest <= 64 else (64, 16, 4, 1)
    elif deepest <= 128 and device.shared >= MUCH_SHARED:
        rows, tile, warps, stages = 128, 64, 8, 3
    elif deepest <= 64:
        rows, tile, warps, stages = 128, 64, 8, 2
    else:
        rows, tile, warps, stages = 64, 32, 4, 2 if deepest <= 128 else 1
    common: Constants = {
        "ROWS": rows, "TILE": tile, "DEPTH": widths[0],
        # Full float32 precision: three tf32 products if there are enough registers; AMD's matrix
        # units multiply float32 directly.
        "PRECISION": "tf32x3" if single and deepest <= 128 and not device.amd else "ieee",
        # Cells are not prefetched: they would take the shared memory of many keys.
        "STAGES": 1 if by_cells else stages, "num_warps": warps, "num_stages": stages,
        # Fused multiply-add, independent of Triton's default.
        "enable_fp_fusion": True,
    }  # fmt: skip
    threads = warps * device.warp
    fold = _power(2 * kept, 32)
    # A threshold needs the maxima of at least k groups of keys in every row.
    tiles = -(-min(length, widest + rows) // tile) + 1
    few = tiles < 4 * kept or (uneven and tiles <= FINE)
    softmax = common | {
        "PARTS": 4 if few else 1, "FOLD": fold,
        "FOLDED_ROWS": max(1, min(rows, 32 * threads // fold)), "VALUE_DEPTH": widths[1],
        "WHOLE_DEPTHS": widths == depths,
    }  # fmt: skip
    left, segment = _power(2 * kept, 16), 2
    full = left + min(left, 256)
    capacity = full + segment * tile
    width = _power(capacity, 16)
    # Each thread has its own scores of a tile.
    disjoint = rows * tile >= 8 * threads
    listing = disjoint and length <= MOST_LISTED and not (interpreting or device.amd)
    edges = common | {
        "SEGMENT": segment, "LEFT": left, "FULL": full, "CAPACITY": capacity, "WIDTH": width,
        "CUT": max(1, min(rows, 16 * threads // width)),
        "SORTED_ROWS": max(1, min(rows, 16 * threads // left)),
        "LISTS": threads if listing else 0,
        "LIST": min(max(64, _power(4 * kept * rows // threads, 16)), LONGEST_LIST),
        "WHOLE_DEPTHS": widths[0] == depths[0],
    }  # fmt: skip
    return Sizes(rows, tile, tiles, softmax, edges)


def candidates(rows: int, sizes: Constants) -> int:
    """Return the 8-byte numbers of a program: candidates and two more per row, and thread lists."""
    lists, length, capacity = (int(sizes[name]) for name in ("LISTS", "LIST", "CAPACITY"))
    return lists * (8 * length + 1) + rows * (capacity + 2)


def band_of(native: NativeCall) -> tuple[int, int]:
    """Return the two sides of the band; an open side reaches beyond every key."""
    beyond = native.queries.shape[2] + native.keys.shape[2]
    return max(native.left, -beyond), min(native.right, beyond)
