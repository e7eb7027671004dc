"""Studies in the control loop: one fenced pass at a time, from what the rows say."""
