"""Reading and writing attempts in batched transactions."""
