"""How large the parts of the kernels for GPUs are: by the device, and by what a call is."""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import lru_cache

import torch

from headloom.mechanism.backends.compiled import NativeCall

#: Keys that a thread's list can name, beside 7 bits of a row.
MOST_LISTED = 2**25
#: Of how many tiles at most four maxima each are kept where some rows see few of them.
FINE = 512
#: Times that most lists are appended to at most; one that is full is no loss but of time.
LONGEST_LIST = 256
#: Bytes of shared memory of a program on devices that have much: A100 has 166,912, H100 232,448;
#: and on the least since Ampere.
MUCH_SHARED, LEAST_SHARED = 166_912, 101_376


#: Names and values that a kernel is compiled for.
Constants = dict[str, int | str]


def interpreted() -> bool:
    """Whether Triton interprets kernels, on the CPU, instead of compiling them."""
    return os.environ.get("TRITON_INTERPRET", "") == "1"


@dataclass(frozen=True, slots=True)
class Device:
    """What the sizes of the kernel depend on.

    shared: bytes of shared memory that a program may take. warp: threads of a warp (of a wavefront,
    as AMD says). amd: whether AMD made it, and Triton compiles for its instructions. processors:
    how many run programs at once.
    """

    shared: int
    warp: int = 32
    amd: bool = False
    processors: int = 2


def _power(number: int, least: int) -> int:
    """The power of two that holds a number, and is no smaller than another one."""
    return max(least, 1 << (number - 1).bit_length())


@lru_cache
def described(device: torch.device) -> Device:
    """A device of torch's, as far as sizes depend on it."""
    if device.type != "cuda":
        return Device(MUCH_SHARED)
    found = torch.cuda.get_device_properties(device)
    shared = getattr(found, "shared_memory_per_block_optin", found.shared_memory_per_block)
    processors = found.multi_processor_count
    return Device(shared, found.warp_size, torch.version.hip is not None, processors)


@dataclass(frozen=True, slots=True)
class Sizes:
    """How large the parts of the kernels are, and how each is compiled.

    rows, tile: queries of a block and keys of a tile; all kernels take the same. tiles: how many a
    block sees at most. both: what all are given.
    """

    rows: int
    tile: int
    tiles: int
    softmax: Constants
    edges: Constants


def sizes_of(native: NativeCall, kept: int, device: Device) -> Sizes:
    """The sizes for a call on a device. kept: edges of a row, 0 for none."""
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
    depths: tuple[int, int],
    length: int,
    widest: int,
    uneven: bool,
    single: bool,
    by_cells: bool,
    kept: int,
    device: Device,
    interpreting: bool,
) -> Sizes:
    """See `sizes_of`.

    widest: how many keys a row sees at most; uneven: whether some may see far fewer; single:
    whether numbers are float32; by_cells: whether there is something for each score.
    """
    widths = _power(depths[0], 16), _power(depths[1], 16)
    deepest = max(widths)
    if interpreting:
        rows, tile, warps, stages = 16, 32, 4, 1
    elif device.shared < LEAST_SHARED and not device.amd and not single:
        rows, tile, warps, stages = 64, 32, 4, 1
    elif device.amd:
        # Of RDNA's warps of 32 threads each has half as many registers.
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
        # Of float32 all digits: three products of fewer bits for one, where there are registers;
        # AMD's matrix units multiply float32 itself.
        "PRECISION": "tf32x3" if single and deepest <= 128 and not device.amd else "ieee",
        # Cells are not asked for ahead: they would take the shared memory of many keys.
        "STAGES": 1 if by_cells else stages, "num_warps": warps, "num_stages": stages,
        # Sums of products round once, whichever the default of a Triton is.
        "enable_fp_fusion": True,
    }  # fmt: skip
    threads = warps * device.warp
    fold = _power(2 * kept, 32)
    # A threshold needs maxima of as many groups of keys as edges are kept, in every row.
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
    # Each thread has some scores of a tile, and nobody else has these.
    own = rows * tile >= 8 * threads
    listing = own and length <= MOST_LISTED and not (interpreting or device.amd)
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
    """Numbers of 8 bytes of a program: candidates and two more of each row; lists of threads."""
    lists, length, capacity = (int(sizes[name]) for name in ("LISTS", "LIST", "CAPACITY"))
    of_lists, of_rows = lists * (8 * length + 1), rows * (capacity + 2)
    return of_lists + of_rows


def band_of(native: NativeCall) -> tuple[int, int]:
    """Its two sides, of which an open one reaches beyond every key."""
    beyond = native.queries.shape[2] + native.keys.shape[2]
    return max(native.left, -beyond), min(native.right, beyond)
