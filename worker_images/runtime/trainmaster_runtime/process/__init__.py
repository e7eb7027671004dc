"""Starting, signalling and ending process trees."""
