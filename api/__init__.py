"""The HTTP boundary: one folder per noun, `http` and `app` below them, foreign dialects in `protocols`."""
