"""Commands about the platform: access, projects, nodes, quotas, volumes."""
