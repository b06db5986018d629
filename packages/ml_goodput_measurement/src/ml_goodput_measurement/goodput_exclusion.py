"""GoodputExclusion, under the name that the public package has for its module."""

from ml_goodput_measurement._query.exclusion import ExclusionInterval, GoodputExclusion, excluded_intervals

__all__ = ["ExclusionInterval", "GoodputExclusion", "excluded_intervals"]
