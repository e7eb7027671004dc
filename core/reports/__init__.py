"""What replicas report: from the wire, or from where they kept it, into the database."""
