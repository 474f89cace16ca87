"""Static pictures of attention: made with matplotlib, without a window or global state."""

from headloom.studio.pictures.alignment import alignment
from headloom.studio.pictures.canvas import save_picture
from headloom.studio.pictures.eviction import eviction
from headloom.studio.pictures.heads import heads
from headloom.studio.pictures.history import history
from headloom.studio.pictures.images import places, word_map

__all__ = ["alignment", "eviction", "heads", "history", "places", "save_picture", "word_map"]
