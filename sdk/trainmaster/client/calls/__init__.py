"""Every operation of the API as a function from typed arguments to a :class:`~trainmaster.client.steps.Call`."""
