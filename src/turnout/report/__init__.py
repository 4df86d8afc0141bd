"""One self-contained HTML page from run folders. It reads only files, so old results stay readable.

>>> from turnout.report import write_report
>>> written = write_report(["runs/e3cs"], "report.html")  # doctest: +SKIP
"""

from turnout.report.page import Report, Row, report_page, write_advice, write_report
from turnout.results.reader import Problem

__all__ = ["Problem", "Report", "Row", "report_page", "write_advice", "write_report"]
