"""Jobs, attempts, replicas: states, transitions, exits, layout."""
