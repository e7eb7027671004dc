"""The environment every training framework expects, as pure functions of a layout."""
