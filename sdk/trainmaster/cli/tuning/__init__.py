"""Commands about studies and AutoML."""
