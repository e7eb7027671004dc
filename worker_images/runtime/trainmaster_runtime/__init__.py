"""Starts a replica's processes in any container or on a bare machine, keeps their log, and says how they ended.

Standard library only, Python 3.8 or newer: it runs inside whatever image a user brings. Every import is paid before
the first line of the user's code, so modules import little and late.
"""

__version__ = "0.1.0"
