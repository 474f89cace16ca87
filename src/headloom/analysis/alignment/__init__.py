"""Word alignment: which word of a source each word of a target was written from."""
