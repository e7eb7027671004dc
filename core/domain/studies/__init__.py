"""Studies: state machines, results, early stopping, budgets. Pure."""
