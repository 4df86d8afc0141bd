"""cpow-d: pow-d whose candidates evaluate their loss on one mini-batch only.

Paper:      Y. J. Cho, J. Wang, G. Joshi, Client Selection in Federated Learning: Convergence
            Analysis and Power-of-Choice Selection Strategies, arXiv:2010.01243 (pi_cpow-d).
Setting:    polls the candidates for an estimate of their loss; needs the column num_samples.
Idea:       The computation-efficient variant of pow-d: same candidates, same ranking, but the loss
            is estimated on a mini-batch, so that polling costs next to nothing on the client.
Symbols:    candidates = d, polled_loss = mini-batch estimate of F_k(w).
Equations:  poll and select as in pow-d.
Deviations: as in pow-d. The selector asks for the mini-batch through ``poll_data``; whoever
            evaluates the clients honours it.
Limits:     As pow-d; a mini-batch loss is noisy, so that the ranking is.
Cost:       O(n) poll, O(d) select; no state; d mini-batches on clients per round.
Checked:    tests/test_power_of_choice.py.
"""

from __future__ import annotations

from turnout.registry import register
from turnout.selectors.pow_d import PowD


@register("cpow-d")
class CPowD(PowD):
    """pow-d on mini-batch losses.

    Args:
        candidates (integer >= 1 or None): Number of clients that are polled; d in the paper. At
            least the cohort size. None polls twice the cohort.
    """

    poll_data = "mini-batch"
