"""The tick: snapshot, plan, apply."""
