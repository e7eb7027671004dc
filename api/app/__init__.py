"""The application: its parts, its routers, one unit of work per request, graceful shutdown."""
