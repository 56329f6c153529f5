"""Every interleaving of small cases satisfies the protocol's invariants, and each rule is shown to be necessary."""

import pytest

from tests.model.explore import explore
from tests.model.invariants import INVARIANTS, is_done
from tests.model.rules import BROKEN_RULES, Rules
from tests.model.state import BEGIN, Budget, State


def begin(misfortunes: int) -> State:
    """Return the initial state of a case with at most this number of faults."""
    return BEGIN._replace(budget=Budget(misfortunes))


def test_the_protocol_keeps_its_rules() -> None:
    explored = explore(begin(2), Rules().steps, INVARIANTS, is_done)
    assert explored.wrong is None, str(explored.wrong)
    assert explored.num_states > 10_000


@pytest.mark.parametrize("rule", BROKEN_RULES)
def test_each_rule_is_needed(rule: str) -> None:
    found = (explore(begin(misfortunes), Rules(rule).steps, INVARIANTS, is_done).wrong for misfortunes in (1, 2))
    wrong = next((one for one in found if one is not None), None)
    assert wrong is not None
    assert wrong.way
