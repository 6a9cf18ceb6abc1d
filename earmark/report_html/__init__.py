"""A story as one HTML file that needs no network: geometry in ``drawing``, words in ``page``, looks beside them."""
