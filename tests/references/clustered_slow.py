"""Clustered sampling of Fraboni et al., one unit of data at a time with exact fractions."""

from __future__ import annotations

from fractions import Fraction

Urns = list[dict[int, Fraction]]


def _pour(urns: Urns, start: int, clients: list[int], amounts: dict[int, Fraction]) -> None:
    """Fill urns from ``start`` on, one after the other, up to 1 each."""
    k = start
    for i in clients:
        left = amounts[i]
        while left > 0:
            room = 1 - sum(urns[k].values())
            if room == 0:
                k += 1
                continue
            part = min(room, left)
            urns[k][i] = urns[k].get(i, Fraction(0)) + part
            left -= part


def by_size(sizes: list[int], m: int) -> Urns:
    """Alg. 1: clients by size, the largest first, poured into m urns."""
    total = sum(sizes)
    amounts = {i: Fraction(m * size, total) for i, size in enumerate(sizes)}
    urns: Urns = [{} for _ in range(m)]
    _pour(urns, 0, sorted(amounts, key=lambda i: (-amounts[i], i)), amounts)
    return urns


def by_groups(sizes: list[int], m: int, groups: list[list[int]]) -> Urns:
    """Alg. 2 for groups that fit into an urn: the m heaviest begin, the others fill up."""
    total = sum(sizes)
    amounts = {i: Fraction(m * size, total) for i, size in enumerate(sizes)}
    weight = [sum(amounts[i] for i in members) for members in groups]
    order = sorted(range(len(groups)), key=lambda g: (-weight[g], g))
    urns: Urns = [{i: amounts[i] for i in groups[g]} for g in order[:m]]
    urns += [{} for _ in range(m - len(urns))]
    rest = [i for g in order[m:] for i in sorted(groups[g], key=lambda i: (-amounts[i], i))]
    _pour(urns, 0, rest, amounts)
    return urns
