"""Cloud Storage's JSON API over the volumes."""
