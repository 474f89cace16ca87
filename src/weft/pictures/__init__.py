"""Static pictures of attention: made with matplotlib, without a window or global state."""

from weft.pictures.alignment import alignment
from weft.pictures.canvas import save_picture
from weft.pictures.eviction import eviction
from weft.pictures.heads import heads
from weft.pictures.history import history
from weft.pictures.places import places
from weft.pictures.threads import threads
from weft.pictures.word_map import word_map

__all__ = [
    "alignment",
    "eviction",
    "heads",
    "history",
    "places",
    "save_picture",
    "threads",
    "word_map",
]
