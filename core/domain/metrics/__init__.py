"""Series of numbers that a training reports: their points, what stands for many points at once, and their limits."""
