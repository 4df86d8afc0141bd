"""What numbers over seeds say: means with intervals, tests of differences, sums over tasks."""

from turnout.statistics.estimates import Estimate, estimate, paired_difference, student_quantile

__all__ = ["Estimate", "estimate", "paired_difference", "student_quantile"]
