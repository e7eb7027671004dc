"""Messages, codecs and shared memory between workers and servers."""
