"""Static pictures of attention: made with matplotlib, without a window or global state."""
