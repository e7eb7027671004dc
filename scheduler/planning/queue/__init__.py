"""Order of the queue: fair shares, quotas, job classes."""
