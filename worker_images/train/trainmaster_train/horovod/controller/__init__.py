"""The controller: negotiation, response cache, stall inspector."""
