"""The tick: quarantine, snapshot, plan, apply."""
