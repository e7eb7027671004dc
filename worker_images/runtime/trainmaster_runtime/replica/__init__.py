"""One replica from order to exit record: its processes, its log, its worlds, its end."""
