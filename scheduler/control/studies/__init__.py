"""Studies in the control loop: one fenced round at a time, from what the rows say."""
