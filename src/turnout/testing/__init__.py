"""The contract checks that every selector must pass, ours and those of others.

In a test file of a plug-in::

    import pytest
    from turnout.testing import yield_checks

    @pytest.mark.parametrize(("name", "check"), yield_checks(MySelector))
    def test_contract(name, check):
        check()
"""

from turnout.testing.checks import (
    CHECKS,
    CheckResult,
    assert_selector,
    check_selector,
    name_of_check,
    yield_checks,
)
from turnout.testing.harness import ToyFederation

__all__ = [
    "CHECKS",
    "CheckResult",
    "ToyFederation",
    "assert_selector",
    "check_selector",
    "name_of_check",
    "yield_checks",
]
