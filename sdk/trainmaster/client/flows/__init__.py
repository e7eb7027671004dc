"""What takes more than one request, as flows: pages, streams, waiting, uploads and downloads."""
