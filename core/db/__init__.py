"""Tables, repositories, unit of work, leases."""
