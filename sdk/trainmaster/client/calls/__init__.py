"""The operations of the API, as functions that return a :class:`~trainmaster.client.steps.Call`."""
