"""The benchmark behind ``sh ci/bench``: each claim about speed is a row of measurements.md.

A family of files adds a module in ``sections`` and a line in its list, and the page has one
section more.
"""
