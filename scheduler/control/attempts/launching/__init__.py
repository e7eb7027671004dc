"""From rows to replica orders for the executor."""
