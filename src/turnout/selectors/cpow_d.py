"""cpow-d: pow-d whose candidates evaluate their loss on one mini-batch only.

Paper:      Y. J. Cho, J. Wang, G. Joshi, Client Selection in Federated Learning: Convergence
            Analysis and Power-of-Choice Selection Strategies, arXiv:2010.01243 (pi_cpow-d).
Setting:    The candidates are polled for an estimate of their loss. The server knows num_samples.
Idea:       The computation-efficient variant of pow-d. Candidates and ranking are the same, but the
            loss is estimated on one mini-batch, so polling costs the client next to nothing.
Symbols:    candidates = d, polled_loss = mini-batch estimate of F_k(w).
Equations:  poll and select as in pow-d.
Deviations: as in pow-d. The selector asks for the mini-batch through ``poll_data``; the runner
            honours it when it polls the clients.
Limits:     As for pow-d. A mini-batch loss is noisy, and so is the ranking.
Cost:       O(n) poll, O(d) select; no state; d mini-batches on clients per round.
Checked:    In tests/selectors/test_power_of_choice.py.
"""

from __future__ import annotations

from turnout.core.registry import register
from turnout.selectors.pow_d import PowD


@register("cpow-d")
class CPowD(PowD):
    """pow-d on mini-batch losses.

    Args:
        candidates: Number of clients that are polled; d in the paper. At least the cohort size.
            None polls twice the cohort.
    """

    poll_data = "mini-batch"
