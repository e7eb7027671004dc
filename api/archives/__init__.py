"""Code archives: resumable uploads, by digest."""
