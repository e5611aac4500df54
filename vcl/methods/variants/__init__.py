"""Variants: departures from the published methods, each under a name of its own."""
